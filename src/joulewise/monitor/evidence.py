"""What was read of a GPU around a window, and what follows from it: the two ends of the estimator.

Plain values, so that the arithmetic in between (``estimate``) can be tried on anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.measurement import EnergyReading, SensorTiming, Source
from joulewise.monitor.load import Array
from joulewise.monitor.ticks import Ticks


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read of one GPU around a window. Arrays are equally long and in order of time."""

    timing: SensorTiming
    time_s: Array
    """When power was read."""
    power_w: Array
    utilization: Array
    """Share of time busy, NaN where unknown."""
    summed_j: Array
    """Power held and summed up to each reading, by the time of reading."""
    power_ticks: Ticks
    counter_ticks: Ticks | None = None
    counter: Sequence[EnergyReading] = ()
    """Looks at the counter, with resets taken out so that it never falls."""
    left_out: int | None = None
    """Index of the reading before which others were left out, as they lie amid a long window."""
    idle_power_w: float | None = None
    limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Joules, one standard error, and where they come from."""

    energy_j: float
    error_j: float
    source: Source
    notes: tuple[str, ...] = ()
