"""One GPU's record: recent readings, looks at the counter, and what was learned about its sensors.

A Track is where all that is read of a GPU comes together, whoever read it: the sampler's polls, the edges of
windows, the search for ticks. It remembers a couple of minutes in detail and for good only sums. It decides nothing:
when to read is the sampler's, what it means is the estimator's.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from typing import NamedTuple, Protocol

import numpy as np

from joulewise.core.errors import GpuError, GpuLost, NoReading, Unsupported
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.device.gpu import Gpu, GpuInfo
from joulewise.monitor.estimate import Evidence, estimate
from joulewise.monitor.ticks import Look, Ticks, TickTracker

KEPT = 1200
"""Readings and counter looks that are remembered: two minutes at 10 Hz."""
AROUND_S = 1.5
"""What is kept around the begin of a long window: the readings that its edge is interpolated from."""
HISTORY_S = 20.0
"""How far before a short window readings still say what the load is like."""
SLOW_CALL_S = 1e-4
"""A counter call above this is too slow for the thread that is being measured (3.45 ms on an H200)."""
_LATE_CALL = 4.0  # times what calls cost: one that takes longer was held up by the machine, and is taken for this

_log = logging.getLogger("joulewise")


class Recording(Protocol):
    """Where readings go as they are made; ``device.recording.Recorder`` is one."""

    def reading(self, index: int, reading: Reading) -> None:
        """Take one reading."""
        ...

    def energy(self, index: int, energy: EnergyReading) -> None:
        """Take one look at a counter."""
        ...


class Sample(NamedTuple):
    """What the estimator needs of a reading."""

    time_s: float
    power_w: float
    utilization: float
    summed_j: float


class Reset(NamedTuple):
    """The counter went back (a driver reload); the energy in between is from power."""

    from_s: float
    to_s: float
    error_j: float


@dataclass(frozen=True, slots=True)
class Extract:
    """What a track held around one moment, for a window that outlives the track's memory."""

    samples: tuple[Sample, ...]
    counter: tuple[EnergyReading, ...]


class Track:
    """Everything read of one GPU. Safe to use from several threads."""

    def __init__(self, gpu: Gpu, index: int, *, recording: Recording | None = None) -> None:
        self.gpu = gpu
        self.index = index
        self.lost: GpuLost | None = None
        """Why the GPU cannot be read any more."""
        self.latest: Reading | None = None
        self.missed_s: deque[float] = deque(maxlen=KEPT)
        """When a reading failed."""
        self.resets: deque[Reset] = deque(maxlen=64)
        timing = gpu.info.sensors
        self.power_ticks = TickTracker(timing.power_update_s)
        self.counter_ticks = TickTracker(timing.counter_update_s) if timing.counter_update_s else None
        """None where there is no counter."""
        self.counter_call_s = timing.counter_call_s
        """What a look at the counter costs; learned from the looks."""
        self.seen_s: float | None = None
        """When the GPU was last read."""
        self._recording = recording
        self._samples: deque[Sample] = deque(maxlen=KEPT)
        self._readings: deque[Reading] = deque(maxlen=KEPT)
        self._counter: deque[EnergyReading] = deque(maxlen=KEPT)
        self._shown_j: float | None = None  # the counter as last shown, resets included
        self._offset_j = 0.0
        self._reading_lock = threading.Lock()
        self._counter_lock = threading.Lock()

    @property
    def has_counter(self) -> bool:
        """Whether there is a counter to look at."""
        return self.counter_ticks is not None and self.lost is None

    @property
    def slow_counter(self) -> bool:
        """Whether a look at the counter would hold up the caller."""
        return self.counter_call_s > SLOW_CALL_S

    def poll(self) -> Reading | None:
        """Read the GPU now and keep it. None if that failed; ``lost`` or ``missed_s`` says how."""
        with self._reading_lock:
            if self.lost is not None:
                return None
            try:
                reading = self.gpu.read()
            except GpuLost as error:
                self._lose(error)
                return None
            except GpuError:
                self.missed_s.append(self.gpu.time.now_s())
                return None
            before, self.latest, self.seen_s = self.latest, reading, reading.time_s
            if (
                before is not None
                and None not in (powers := (before.power_w, reading.power_w))
                and powers[0] != powers[1]
            ):
                self.power_ticks.changed(before.time_s, reading.time_s)
            self._keep(reading)
            return reading

    def _keep(self, reading: Reading) -> None:
        """Remember a reading, unless it is the last one seen again before the sensor's next update."""
        last = self._samples[-1] if self._samples else None
        if reading.power_w is None:
            self.missed_s.append(reading.time_s)
        elif last is None:
            self._samples.append(Sample(reading.time_s, reading.power_w, _or_nan(reading.utilization), 0.0))
        else:
            passed_s = reading.time_s - last.time_s
            if passed_s < 0.9 * self.power_ticks.period_s and reading.power_w == last.power_w:
                return
            summed_j = last.summed_j + 0.5 * (last.power_w + reading.power_w) * passed_s
            self._samples.append(Sample(reading.time_s, reading.power_w, _or_nan(reading.utilization), summed_j))
        self._readings.append(reading)
        if self._recording is not None:
            self._recording.reading(self.index, reading)

    def count(self) -> EnergyReading | None:
        """Look at the counter now and keep it, resets taken out. None if there is none or that failed."""
        with self._counter_lock:
            if not self.has_counter:
                return None
            try:
                shown = self.gpu.energy()
            except GpuLost as error:
                self._lose(error)
                return None
            except Unsupported:
                self.counter_ticks = None
                return None
            except GpuError:
                return None
            self.seen_s = shown.time_s + shown.call_s
            # The cost of a call differs from call to call; one hung call must not make all look slow.
            call_s = min(shown.call_s, max(_LATE_CALL * self.counter_call_s, SLOW_CALL_S))
            self.counter_call_s += 0.2 * (call_s - self.counter_call_s)
            if self._shown_j is not None and shown.energy_j < self._shown_j:
                self._bridge(shown)
            self._shown_j = shown.energy_j
            look = EnergyReading(shown.time_s, shown.energy_j + self._offset_j, shown.call_s)
            if self._counter and self.counter_ticks is not None:
                before = self._counter[-1]
                told = self.counter_ticks.changed if look.energy_j != before.energy_j else self.counter_ticks.unchanged
                told(before.time_s, look.time_s + look.call_s)
            self._counter.append(look)
            if self._recording is not None:
                self._recording.energy(self.index, shown)
            return look

    def _bridge(self, shown: EnergyReading) -> None:
        """Carry on after a reset as if the counter had not fallen: power says what it missed."""
        before = self._counter[-1]
        try:
            missed = estimate(
                before.time_s, shown.time_s, replace(self.witness(before.time_s, shown.time_s)(), counter=())
            )
            energy_j, error_j = missed.energy_j, missed.error_j
        except NoReading:
            energy_j, error_j = shown.energy_j, shown.energy_j
        self._offset_j = before.energy_j + energy_j - shown.energy_j
        self.resets.append(Reset(before.time_s, shown.time_s, error_j))

    def lively(self) -> bool:
        """Whether power has changed at half of the last polls; its ticks cannot be found where it stands still."""
        with self._reading_lock:
            last = [sample.power_w for sample in islice(reversed(self._samples), 5)]
        return sum(a != b for a, b in pairwise(last)) >= 2

    def look_at_power(self) -> Look:
        """A look for the power sensor's ticks."""
        reading = self.poll()
        now_s = self.gpu.time.now_s()
        return Look(now_s, now_s, None) if reading is None else Look(reading.time_s, reading.time_s, reading.power_w)

    def look_at_both(self) -> Look:
        """A look for the counter's ticks that takes power along, which often ticks with it."""
        self.poll()
        return self.look_at_counter()

    def look_at_counter(self) -> Look:
        """A look for the counter's ticks."""
        seen = self.count()
        now_s = self.gpu.time.now_s()
        return Look(now_s, now_s, None) if seen is None else Look(seen.time_s, seen.time_s + seen.call_s, seen.energy_j)

    def readings(self, since_s: float = -math.inf) -> list[Reading]:
        """Readings that are still remembered, oldest first."""
        with self._reading_lock:
            recent = list(takewhile(lambda reading: reading.time_s >= since_s, reversed(self._readings)))
        return recent[::-1]

    def extract(self, from_s: float, to_s: float) -> Extract:
        """What is remembered of the time around [from_s, to_s]."""
        low_s, high_s = from_s - AROUND_S, to_s + AROUND_S
        with self._reading_lock:
            samples = list(takewhile(lambda sample: sample.time_s >= low_s, reversed(self._samples)))
        counter = [look for look in list(self._counter) if low_s <= look.time_s <= high_s]
        return Extract(tuple(sample for sample in reversed(samples) if sample.time_s <= high_s), tuple(counter))

    def witness(self, from_s: float, to_s: float, head: Extract | None = None) -> Callable[[], Evidence]:
        """What is known now about [from_s, to_s], to be worked up into Evidence later, off the caller's path.

        ``head`` is what was kept of a begin that the track may have forgotten since.
        """
        history_s = max(0.0, HISTORY_S - (to_s - from_s))
        tail = self.extract(from_s - history_s, to_s)
        counter_ticks = self.counter_ticks.ticks() if self.counter_ticks is not None else None
        return partial(_evidence, self.gpu.info, tail, head, self.power_ticks.ticks(), counter_ticks)

    def unlock(self) -> None:
        """In a forked child: whoever held the locks is not here."""
        self._reading_lock, self._counter_lock = threading.Lock(), threading.Lock()

    def _lose(self, error: GpuLost) -> None:
        if self.lost is None:
            self.lost = error
            _log.debug("%s: %s", self.gpu.info.uuid, error)


def _evidence(
    info: GpuInfo, tail: Extract, head: Extract | None, power_ticks: Ticks, counter_ticks: Ticks | None
) -> Evidence:
    samples, counter = tail.samples, tail.counter
    left_out = None
    if head is not None:
        if samples and head.samples and head.samples[-1].time_s < samples[0].time_s:
            left_out = len(head.samples)
            samples = head.samples + samples
        if head.counter and (not counter or head.counter[-1].time_s < counter[0].time_s):
            counter = head.counter + counter
    columns = np.array(samples, dtype=np.float64).reshape(-1, 4).T
    return Evidence(
        timing=info.sensors,
        time_s=columns[0],
        power_w=columns[1],
        utilization=columns[2],
        summed_j=columns[3],
        power_ticks=power_ticks,
        counter_ticks=counter_ticks,
        counter=counter,
        left_out=left_out,
        idle_power_w=info.idle_power_w,
        limit_w=info.default_limit_w,
    )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def affordable(tracks: Sequence[Track], duration_s: float, *, share: float = 5e-3) -> bool:
    """Whether looking at all their counters costs less than ``share`` of ``duration_s``."""
    return sum(track.counter_call_s for track in tracks if track.has_counter) <= share * duration_s
