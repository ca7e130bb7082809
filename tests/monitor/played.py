"""A GPU that draws the power it is told to, shown through the virtual sensors; it knows its truth and its faults."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from joulewise.core.errors import GpuError, GpuLost, Unsupported
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource
from joulewise.device.gpu import GpuInfo
from joulewise.device.power_trace import PowerTrace
from joulewise.device.sensors import Sensors

Segments = Iterable[tuple[float, float]]

EXACT_100 = SensorTiming()
EXACT_20 = SensorTiming(power_update_s=0.02, power_window_s=0.02, counter_update_s=0.02)
QUARTER_100 = SensorTiming(power_window_s=0.025, counter_window_s=0.025)
NO_COUNTER = replace(EXACT_100, counter_update_s=None)
SLOW_COUNTER = replace(EXACT_100, counter_call_s=0.00345)


def constant(power_w: float) -> Iterator[tuple[float, float]]:
    return itertools.repeat((1.0, power_w))


def square(period_s: float, low_w: float, high_w: float, share: float = 0.5) -> Iterator[tuple[float, float]]:
    return itertools.cycle([(period_s * share, high_w), (period_s * (1.0 - share), low_w)])


@dataclass
class Calls:
    read: int = 0
    energy: int = 0


class PlayedGpu:
    """Draws ``segments`` of (seconds, watts), idle below 100 W."""

    def __init__(
        self,
        segments: Segments,
        *,
        time: TimeSource,
        sensors: SensorTiming = EXACT_100,
        seed: int = 0,
        phase_s: float | None = None,
        backend: str = "virtual",
        uuid: str | None = None,
    ) -> None:
        self.time = time
        self.info = GpuInfo(
            uuid or f"GPU-played-{seed}",
            "Played",
            0,
            backend,
            sensors=sensors,
            idle_power_w=75.0,
            default_limit_w=700.0,
        )
        self.calls = Calls()
        self.lost = False
        self.failing = False
        self._segments = iter(segments)
        self._trace = PowerTrace(start_s=time.now_s() - 2.0, keep_s=60.0)
        self._sensors = Sensors(sensors, self._trace, seed=seed, phase_s=phase_s)

    def _now_s(self) -> float:
        now_s = self.time.now_s()
        while self._trace.end_s <= now_s:
            duration_s, power_w = next(self._segments)
            self._trace.append(self._trace.end_s + duration_s, power_w, 0.0 if power_w < 100.0 else 1.0)
        return now_s

    def _check(self) -> None:
        if self.lost:
            raise GpuLost(f"{self.info.uuid} fell off the bus")
        if self.failing:
            raise GpuError(f"{self.info.uuid} did not answer")

    def read(self) -> Reading:
        self._check()
        self.calls.read += 1
        now_s = self._now_s()
        return Reading(now_s, power_w=self._sensors.power_w(now_s), utilization=self._sensors.utilization(now_s))

    def energy(self) -> EnergyReading:
        self._check()
        self.calls.energy += 1
        now_s = self._now_s()
        energy_j = self._sensors.counter_j(now_s)
        if energy_j is None:
            raise Unsupported(f"{self.info.uuid} has no counter")
        return EnergyReading(now_s, energy_j, self.info.sensors.counter_call_s)

    def processes(self) -> None:
        return None

    def truth_j(self) -> float:
        return self._trace.energy_j(self._now_s())

    def reload_driver(self) -> None:
        self._sensors.reset_counter(self._now_s())
