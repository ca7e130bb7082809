"""A recorded run as a GPU: what its sensors showed then, shown again on any time source.

The recording starts when the ReplayGpu is made and runs as fast as its time does. Readings are held until the
next one, as a sensor holds them. The counter was looked at rarely (its call is dear); in between it follows the
recorded power, scaled so that it passes through every recorded value. When the recording is over the GPU is
lost: frozen values would look like a reading.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadRecording, GpuLost, Unsupported
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.core.timeline import TimeSource
from joulewise.device.gpu import GpuInfo
from joulewise.device.recording import Recording

# A reading is held until the next is due; after ten missed ones, or a second, there is none.
_MISSED_READINGS = 10
_LEAST_HOLD_S = 1.0


class ReplayGpu:
    """GPU number ``index`` of a recording, on ``time``."""

    def __init__(self, recording: Recording, index: int, *, time: TimeSource, started_s: float | None = None) -> None:
        """Let the recording start now, or at ``started_s`` of ``time`` so that several GPUs start as one.

        BadRecording if it holds no reading of that GPU.
        """
        if not 0 <= index < len(recording.gpus):
            raise BadRecording(f"{recording.path} has {len(recording.gpus)} GPUs, none with number {index}")
        readings, energies = recording.readings[index], recording.energies[index]
        if not readings:
            raise BadRecording(
                f"{recording.path} holds no reading of GPU {index} ({recording.gpus[index].uuid}); record again"
            )
        self._time = time
        self._readings = readings
        self._times = [reading.time_s for reading in readings]
        self._hold_s = _hold_s(self._times)
        self._end_s = max([readings[-1].time_s, *(energy.time_s for energy in energies[-1:])])
        first_s = min(series[0].time_s for series in recording.readings if series)
        self._shift_s = (time.now_s() if started_s is None else started_s) - first_s
        self._counter = _Counter(readings, energies) if energies else None
        recorded = recording.gpus[index]
        self._info = replace(
            recorded,
            backend="replay",
            sensors=recorded.sensors if energies else replace(recorded.sensors, counter_update_s=None),
            notes=(*recorded.notes, f"replay of {recording.path.name}, recorded through {recorded.backend}"),
        )

    @property
    def info(self) -> GpuInfo:
        """The recorded GPU's, with this backend's name."""
        return self._info

    @property
    def time(self) -> TimeSource:
        """The time on which the recording runs."""
        return self._time

    @property
    def ends_s(self) -> float:
        """When the recording will be over, in this GPU's time."""
        return self._end_s + self._shift_s

    def read(self) -> Reading:
        """What was shown at this point of the recording; no values where it had a hole. GpuLost after its end."""
        now_s = self._time.now_s()
        then_s = self._then_s(now_s)
        place = bisect.bisect_right(self._times, then_s) - 1
        if place < 0 or then_s - self._times[place] > self._hold_s:
            return Reading(now_s)
        return replace(self._readings[place], time_s=now_s)

    def energy(self) -> EnergyReading:
        """The counter at this point of the recording. Unsupported if none was recorded, GpuLost after its end."""
        if self._counter is None:
            raise Unsupported(f"no energy counter was recorded for {self._info.uuid}; power was, so use that")
        now_s = self._time.now_s()
        return EnergyReading(now_s, self._counter.energy_j(self._then_s(now_s)))

    def processes(self) -> None:
        """Not recorded."""
        return

    def _then_s(self, now_s: float) -> float:
        then_s = now_s - self._shift_s
        if then_s > self._end_s:
            raise GpuLost(f"the recording of {self._info.uuid} is over ({self._info.notes[-1]})")
        return then_s


class _Counter:
    """The counter between the moments at which it was looked at."""

    def __init__(self, readings: Sequence[Reading], energies: Sequence[EnergyReading]) -> None:
        power = [(reading.time_s, reading.power_w) for reading in readings if reading.power_w is not None]
        looks_s = np.array([energy.time_s for energy in energies])
        looks_j = np.array([energy.energy_j for energy in energies])
        self._times_s = np.union1d(looks_s, [time_s for time_s, _ in power])
        straight = self._times_s - self._times_s[0]
        raw_j = _held_integral_j(self._times_s, power) if power else straight
        self._energies_j = _through(raw_j, np.searchsorted(self._times_s, looks_s), looks_j)

    def energy_j(self, time_s: float) -> float:
        place = int(np.searchsorted(self._times_s, time_s, side="right")) - 1
        if 0 <= place < len(self._times_s) - 1 and self._energies_j[place + 1] < self._energies_j[place]:
            return float(self._energies_j[place])  # a counter goes back at once, not little by little
        return float(np.interp(time_s, self._times_s, self._energies_j))


def _held_integral_j(times_s: NDArray[np.float64], power: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Joules up to each of ``times_s``, each power sample held until the next (the first also before itself)."""
    sample_s = np.array([time_s for time_s, _ in power])
    sample_w = np.array([power_w for _, power_w in power])
    held_w = sample_w[np.maximum(np.searchsorted(sample_s, times_s[:-1], side="right") - 1, 0)]
    return np.concatenate(([0.0], np.cumsum(held_w * np.diff(times_s))))


def _through(raw_j: NDArray[np.float64], places: NDArray[np.intp], looks_j: NDArray[np.float64]) -> NDArray[np.float64]:
    """``raw_j`` bent to be ``looks_j[i]`` at ``places[i]``, rising as it does in between, and never below 0.

    Before the first and after the last look it rises by the recorded power itself. Where the counter went
    back (a driver reload), it does so here too.
    """
    bent_j = np.empty_like(raw_j)
    bent_j[: places[0] + 1] = np.maximum(looks_j[0] + raw_j[: places[0] + 1] - raw_j[places[0]], 0.0)
    for left, right, from_j, to_j in zip(places[:-1], places[1:], looks_j[:-1], looks_j[1:], strict=True):
        rise_j = raw_j[left : right + 1] - raw_j[left]
        share = rise_j / rise_j[-1] if rise_j[-1] > 0 and to_j >= from_j else 0.0
        bent_j[left : right + 1] = from_j + (to_j - from_j) * share
        bent_j[right] = to_j
    bent_j[places[-1] :] = looks_j[-1] + raw_j[places[-1] :] - raw_j[places[-1]]
    return bent_j


def _hold_s(times_s: Sequence[float]) -> float:
    """How long a reading stands before it counts as missing."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(times_s)]
    return max(_LEAST_HOLD_S, _MISSED_READINGS * statistics.median(gaps)) if gaps else _LEAST_HOLD_S
