"""Readings of a sampler, thinned to what is worth keeping for years: one sample a second and GPU.

It sits between the sampler and a recording (it has the recorder's face), like ``report.history``, so that nothing is
read twice. Taking a reading in is a few additions; what is ready waits in a queue that drops its oldest when nobody
fetches it, so that a store that is away costs neither memory nor the job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from joulewise.core.measurement import EnergyReading, Reading
from joulewise.store.readings import Sample

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

    def add(self, reading: Reading) -> None:
        self._time[0] += reading.time_s
        self._time[1] += 1
        for name, sums in self._sums.items():
            value = getattr(reading, name)
            if value is not None and math.isfinite(value):
                sums[0] += value
                sums[1] += 1
        for name, theirs in _LATEST.items():
            value = getattr(reading, theirs)
            if value is not None:
                self._latest[name] = value

    def sample(self, unix_s: float) -> Sample:
        means = {name: total / count if count else None for name, (total, count) in self._sums.items()}
        return Sample(unix_s + self._time[0] / self._time[1], **means, **self._latest)


class Thinned:
    """Samples of ``gpus`` GPUs, ready to be fetched. ``unix_s`` is what Unix time is when the GPUs' clock shows 0.

    ``reading`` is for the sampler's thread, ``fetch`` and ``put_back`` for one other.
    """

    def __init__(self, gpus: int, unix_s: float, recorder: Recording | None = None) -> None:
        self._unix_s, self._recorder = unix_s, recorder
        self._open: list[_Second | None] = [None] * gpus
        self._ready: list[deque[Sample]] = [deque(maxlen=MOST_WAITING) for _ in range(gpus)]

    def reading(self, index: int, reading: Reading) -> None:
        """Take in one reading of GPU number ``index``."""
        number = int(reading.time_s // SECOND_S)
        second = self._open[index]
        if second is None or second.number != number:
            if second is not None:
                self._ready[index].append(second.sample(self._unix_s))
            second = self._open[index] = _Second(number)
        second.add(reading)
        if self._recorder is not None:
            self._recorder.reading(index, reading)

    def energy(self, index: int, energy: EnergyReading) -> None:
        """A look at the counter; passed on."""
        if self._recorder is not None:
            self._recorder.energy(index, energy)

    def end(self) -> None:
        """No more will come: the last second is ready, too."""
        for index, second in enumerate(self._open):
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
