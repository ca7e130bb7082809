"""What the instruments of a virtual GPU show, which is not what happens.

Real sensors update rarely, average over a window that may cover only part of the time, round, and carry a gain
error of their own. All timing comes from ``SensorTiming``; all truth comes from ``PowerTrace``. Nothing here
ticks: a value is computed when somebody looks, for the last update before that moment.
"""

from __future__ import annotations

import math
import random
from collections import deque

from joulewise.core.measurement import SensorTiming
from joulewise.device.power_trace import PowerTrace

_POWER_STEPS_PER_W = 100  # NVML power comes in steps of 10 mW (public polling data of A100 and V100)
_COUNTER_STEPS_PER_J = 1000  # nvmlDeviceGetTotalEnergyConsumption is in whole mJ


class _Ticks:
    """The moments at which one instrument updates: ``phase_s + k·update_s``."""

    __slots__ = ("phase_s", "update_s")

    def __init__(self, update_s: float, phase_s: float) -> None:
        self.update_s = update_s
        self.phase_s = phase_s

    def last(self, time_s: float) -> int:
        """Index of the last update at or before ``time_s`` (a billionth of a period counts as at)."""
        return math.floor((time_s - self.phase_s) / self.update_s + 1e-9)

    def at_s(self, index: int) -> float:
        """When update ``index`` happens."""
        return self.phase_s + index * self.update_s


class Sensors:
    """The instruments of one GPU, looking at ``trace``.

    ``gain`` multiplies what power and energy show, constant per card. The updates of each instrument begin at a
    phase drawn from ``seed``, or at ``phase_s`` for all of them. Every method takes the present moment, which the
    trace must have reached, and is meant to be asked with times that do not go back by more than the trace
    remembers.
    """

    def __init__(
        self,
        timing: SensorTiming,
        trace: PowerTrace,
        *,
        gain: float = 1.0,
        phase_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self.timing = timing
        self.gain = gain
        self._trace = trace
        self._born_s = trace.start_s
        draw = random.Random(f"sensor phases {seed}")
        # Ten seconds are many periods of every instrument, so each phase is even over its own period.
        phases_s = [draw.uniform(0.0, 10.0) if phase_s is None else phase_s for _ in range(3)]
        self._power = _Ticks(timing.power_update_s, phases_s[0])
        self._utilization = _Ticks(timing.utilization_update_s, phases_s[1])
        self._counter: _Ticks | None = None
        self._shown: dict[str, tuple[int, float | None]] = {}
        self._counter_zero_j = 0.0
        self._most_shown_j = 0.0
        # The part-time counter's sum after an update, the last few of them, so that a rewind can go back.
        self._sums: deque[tuple[int, float]] = deque(maxlen=256)
        if timing.counter_update_s is not None:
            # Where both update at one pace they are one instrument, so they share the phase too.
            same = timing.counter_update_s == timing.power_update_s
            self._counter = _Ticks(timing.counter_update_s, phases_s[0] if same else phases_s[2])
            self._sums.append((self._counter.last(self._born_s), 0.0))
            if self._part_time_s is not None:
                trace.before_forgetting(lambda: self._sum_until(trace.end_s))
                trace.after_rewind(self._unsum)

    @property
    def _part_time_s(self) -> float | None:
        """The window that a part-time counter looks at before each update, or None if it sees all."""
        window_s, update_s = self.timing.counter_window_s, self.timing.counter_update_s
        return window_s if window_s is not None and update_s is not None and window_s < update_s else None

    def power_w(self, time_s: float) -> float | None:
        """The instant power reading: the mean over ``power_window_s`` before the last update.

        None before the first update.
        """
        return self._held("power", self._power, time_s, self.timing.power_window_s)

    def average_power_w(self, time_s: float) -> float | None:
        """The driver's slow average, updated with the instant reading; None where there is none."""
        window_s = self.timing.average_window_s
        return None if window_s is None else self._held("average", self._power, time_s, window_s)

    def utilization(self, time_s: float) -> float | None:
        """Share of time with a kernel running between the last two updates, in whole percent, as a ratio."""
        return self._held("utilization", self._utilization, time_s, self.timing.utilization_update_s)

    def memory_utilization(self, time_s: float) -> float | None:
        """Share of time at the memory between the same updates, in whole percent, as a ratio."""
        return self._held("memory", self._utilization, time_s, self.timing.utilization_update_s)

    def counter_j(self, time_s: float) -> float | None:
        """What the energy counter shows; None where there is no counter.

        Exact counters show gain × energy up to the last update; part-time ones sum window mean × update time.
        """
        if self._counter is None:
            return None
        if self._part_time_s is None:
            at_s = min(self._counter.at_s(self._counter.last(time_s)), time_s)
            seen_j = self._trace.energy_j(at_s) if at_s > self._born_s else 0.0
        else:
            seen_j = self._sum_until(time_s)
        since_zero_j = max(0.0, self.gain * seen_j - self._counter_zero_j)
        shown_j = math.floor(since_zero_j * _COUNTER_STEPS_PER_J) / _COUNTER_STEPS_PER_J
        # A counter never goes back, not even where late news takes energy back that it has shown.
        self._most_shown_j = max(self._most_shown_j, shown_j)
        return self._most_shown_j

    def reset_counter(self, time_s: float) -> None:
        """The counter starts again at 0, as after a driver reload."""
        self._counter_zero_j += self.counter_j(time_s) or 0.0
        self._most_shown_j = 0.0

    def next_update_s(self, time_s: float) -> float:
        """The first moment after ``time_s`` at which power or energy shows something new."""
        ticks = [self._power, *([self._counter] if self._counter else [])]
        return min(each.at_s(each.last(time_s) + 1) for each in ticks)

    def _held(self, name: str, ticks: _Ticks, time_s: float, window_s: float) -> float | None:
        tick = ticks.last(time_s)
        held = self._shown.get(name)
        if held is not None and held[0] == tick:
            return held[1]
        to_s = min(ticks.at_s(tick), time_s)
        from_s = max(to_s - window_s, self._born_s)
        value: float | None = None
        if to_s > from_s:
            if name == "utilization":
                value = round(self._trace.mean_busy(from_s, to_s), 2)
            elif name == "memory":
                value = round(self._trace.mean_memory(from_s, to_s), 2)
            else:
                value = round(self.gain * self._trace.mean_w(from_s, to_s) * _POWER_STEPS_PER_W) / _POWER_STEPS_PER_W
        self._shown[name] = (tick, value)
        return value

    def _sum_until(self, time_s: float) -> float:
        """What a part-time counter has summed by ``time_s``, whole segments of constant power at a time."""
        ticks, window_s, trace = self._counter, self._part_time_s, self._trace
        tick, sum_j = self._sums[-1]
        if ticks is None or window_s is None:
            return sum_j
        last = ticks.last(time_s)
        while tick < last:
            at_s = min(ticks.at_s(tick + 1), time_s)
            from_s = max(at_s - window_s, self._born_s)
            steady_until_s = min(trace.segment_end_s(from_s), time_s)
            steps = 1
            if steady_until_s >= at_s:
                steps = min(last - tick, 1 + int((steady_until_s - at_s) / ticks.update_s))
            sum_j += trace.mean_w(from_s, at_s) * ticks.update_s * steps
            tick += steps
            self._sums.append((tick, sum_j))
        return sum_j

    def _unsum(self, time_s: float) -> None:
        """Forget the part-time sums after ``time_s``: what they looked at has been taken back."""
        while len(self._sums) > 1 and self._counter is not None and self._sums[-1][0] > self._counter.last(time_s):
            self._sums.pop()
