"""Readings of a sampler, thinned to what is worth keeping for years: one sample a second and GPU.

It sits between the sampler and a recording (it has the recorder's face), like ``report.history``, so that nothing is
read twice. Taking a reading in is a few additions; what is ready waits in a queue that drops its oldest when nobody
fetches it, so that a store that is away costs neither memory nor the job.

**Power readings are scaled to the energy counter.** A board updates its power reading ten times a second from a short
look, so a job whose steps last about a tenth of a second shows it the same part of every step for a while: on an H200,
steps of 0.1 s that are busy for half of the time read 850 W where the counter says 540 W. Readings therefore wait until
the counter has been looked at ``COUNTED_S`` apart, and their power is multiplied so that it adds up to the counter's
joules. What that leaves open within such a stretch is known from how much the factor differs from one to the next
(``readings_error``). Without a counter readings stay as they are.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

from joulewise.core.measurement import EnergyReading, Reading
from joulewise.store.readings import Sample

COUNTED_S: Final = 8.0
"""Between two looks that readings are scaled by. A look may be a tick of the counter (0.1 s) late: half a per cent."""
HELD_S: Final = 30.0
"""Readings wait no longer for a look at the counter."""
_LEAST_COUNTED_S: Final = 2.0  # at a run's end, where no other look will come
_TICK_S: Final = 0.1
_SOUND: Final = 0.1, 10.0  # a factor beyond is a counter that stood still, or was reset
SECOND_S = 1.0
MOST_WAITING = 7200
"""Samples of a GPU that wait for the store: two hours."""
_MEANS = ("power_w", "sm_mhz", "memory_mhz", "utilization")
_LATEST = {"temperature_c": "temperature_c", "limit_w": "power_limit_w"}


class Recording(Protocol):
    """Where readings go on to; ``device.recording.Recorder`` is one."""

    def reading(self, index: int, reading: Reading) -> None:
        """Take one reading."""
        ...

    def energy(self, index: int, energy: EnergyReading) -> None:
        """Take one look at a counter."""
        ...


class _Second:
    """The readings of one GPU within one second."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._time = [0.0, 0]
        self._sums = {name: [0.0, 0] for name in _MEANS}
        self._latest: dict[str, float | None] = dict.fromkeys(_LATEST)

    def add(self, reading: Reading, factor: float) -> None:
        self._time[0] += reading.time_s
        self._time[1] += 1
        for name, sums in self._sums.items():
            value = getattr(reading, name)
            if value is not None and math.isfinite(value):
                sums[0] += factor * value if name == "power_w" else value
                sums[1] += 1
        for name, theirs in _LATEST.items():
            value = getattr(reading, theirs)
            if value is not None:
                self._latest[name] = value

    def sample(self, unix_s: float) -> Sample:
        means = {name: total / count if count else None for name, (total, count) in self._sums.items()}
        return Sample(unix_s + self._time[0] / self._time[1], **means, **self._latest)


class _Scaled:
    """The readings of one GPU that wait for the counter, and how the readings before them compared with it."""

    def __init__(self) -> None:
        self.waiting: list[Reading] = []
        self._since: EnergyReading | None = None
        """The look that they wait since; None while the counter has not been seen."""
        self._latest: EnergyReading | None = None
        self._joules = self._sum = self._squares = self._known = 0.0

    def reading(self, reading: Reading) -> float | None:
        """Take one in. None while it waits, else the factor for all that wait."""
        self.waiting.append(reading)
        if self._since is not None and reading.time_s - self._since.time_s <= HELD_S:
            return None
        return self._restart(self._latest, self._factor(self._latest, _LEAST_COUNTED_S))

    def look(self, look: EnergyReading) -> float | None:
        """Take in a look at the counter. None while readings wait on, else the factor for all that wait."""
        since = self._since
        if since is None or look.energy_j < since.energy_j:
            return self._restart(look, 1.0)
        if look.time_s > since.time_s:
            self._latest = look
        return None if look.time_s - since.time_s < COUNTED_S else self._restart(look, self._factor(look, COUNTED_S))

    def end(self) -> float:
        """No more will come: the factor for all that wait."""
        return self._restart(None, self._factor(self._latest, _LEAST_COUNTED_S))

    @property
    def stray(self) -> tuple[float, float]:
        """The variance of the factor from stretch to stretch beyond that of the looks, as a share, and its weight."""
        if not self._joules > 0 or not self._sum > 0:
            return 0.0, self._joules
        mean = self._sum / self._joules
        return max(0.0, self._squares / self._joules / mean**2 - 1.0 - self._known / self._joules), self._joules

    def _restart(self, since: EnergyReading | None, factor: float) -> float:
        self._since, self._latest = since, None
        return factor

    def _factor(self, look: EnergyReading | None, least_s: float) -> float:
        """What the power of those that wait is multiplied by: 1 where the counter does not tell."""
        since = self._since
        if since is None or look is None or look.time_s - since.time_s < least_s:
            return 1.0
        known = [(each.time_s, each.power_w) for each in self.waiting if each.power_w is not None]
        within = [each for each in known if math.isfinite(each[1]) and since.time_s <= each[0] <= look.time_s]
        if len(within) < 2:
            return 1.0
        # What each stands for reaches to the middles between it and its neighbours, and to both looks.
        edges = [since.time_s, *((a + b) / 2 for (a, _), (b, _) in pairwise(within)), look.time_s]
        read_j = sum(
            power_w * (to_s - from_s) for (_, power_w), (from_s, to_s) in zip(within, pairwise(edges), strict=True)
        )
        counted_j, span_s = look.energy_j - since.energy_j, look.time_s - since.time_s
        factor = counted_j / read_j if read_j > 0 else 0.0
        if not _SOUND[0] <= factor <= _SOUND[1]:
            return 1.0
        self._joules += counted_j
        self._sum += counted_j * factor
        self._squares += counted_j * factor**2
        self._known += counted_j * (_TICK_S / span_s) ** 2 / 6.0  # two looks, each late by anything up to a tick
        return factor


class Thinned:
    """Samples of ``gpus`` GPUs, ready to be fetched. ``unix_s`` is what Unix time is when the GPUs' clock shows 0.

    ``reading`` and ``energy`` are for any thread, ``fetch`` and ``put_back`` for one.
    """

    def __init__(self, gpus: int, unix_s: float, recorder: Recording | None = None) -> None:
        self._unix_s, self._recorder = unix_s, recorder
        self._scaled = [_Scaled() for _ in range(gpus)]
        self._open: list[_Second | None] = [None] * gpus
        self._ready: list[deque[Sample]] = [deque(maxlen=MOST_WAITING) for _ in range(gpus)]
        self._lock = threading.Lock()

    @property
    def readings_error(self) -> float:
        """One standard error of the power that was kept of some seconds, as a share of it, beyond the scatter of these
        seconds: as readings of about ``COUNTED_S`` have strayed from the counter so far. 0 where nothing tells."""
        with self._lock:
            strays = [each.stray for each in self._scaled]
        joules = sum(weight for _, weight in strays)
        return math.sqrt(sum(variance * weight for variance, weight in strays) / joules) if joules > 0 else 0.0

    def reading(self, index: int, reading: Reading) -> None:
        """Take in one reading of GPU number ``index``."""
        with self._lock:
            self._release(index, self._scaled[index].reading(reading))
        if self._recorder is not None:
            self._recorder.reading(index, reading)

    def energy(self, index: int, energy: EnergyReading) -> None:
        """Take in a look at the counter of GPU number ``index``."""
        with self._lock:
            self._release(index, self._scaled[index].look(energy))
        if self._recorder is not None:
            self._recorder.energy(index, energy)

    def end(self) -> None:
        """No more will come: the last second is ready, too."""
        with self._lock:
            for index, scaled in enumerate(self._scaled):
                self._release(index, scaled.end())
                second = self._open[index]
                if second is not None:
                    self._ready[index].append(second.sample(self._unix_s))
                    self._open[index] = None

    def fetch(self, index: int) -> list[Sample]:
        """What is ready of GPU number ``index``, in order of time; it no longer waits here."""
        ready = self._ready[index]
        return [ready.popleft() for _ in range(len(ready))]

    def put_back(self, index: int, samples: Sequence[Sample]) -> None:
        """What could not be kept waits again; where there is no room for all, the oldest go."""
        ready = self._ready[index]
        room = max(0, MOST_WAITING - len(ready))
        ready.extendleft(reversed(samples[-room:] if room else ()))

    def _release(self, index: int, factor: float | None) -> None:
        """Add what has waited to its seconds, its power times ``factor``; None: it waits on."""
        if factor is None:
            return
        waiting = self._scaled[index].waiting
        for reading in waiting:
            number = int(reading.time_s // SECOND_S)
            second = self._open[index]
            if second is None or second.number != number:
                if second is not None:
                    self._ready[index].append(second.sample(self._unix_s))
                second = self._open[index] = _Second(number)
            second.add(reading, factor)
        waiting.clear()
