"""Sweeps: the same work measured under several settings, and what the law says of each.

What it is: the points that fits are made from, as a user writes them down and as arrays. What it is not: a reader of
files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model import physics
from joulewise.model.physics import Chip, Load

Array = NDArray[Any]

NO_LIMIT_W = 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """One measured setting of one piece of work. None: not set, or not known."""

    time_s: float  # of one unit of work: an iteration, an epoch, a run
    power_w: float  # average over that time
    lock_mhz: float | None = None  # SM clock asked for
    memory_mhz: float | None = None
    limit_w: float | None = None  # power limit in force
    sm_mhz: float | None = None  # SM clock observed; where given, it stands and lock and limit are not used


@dataclass(frozen=True, slots=True)
class Series:
    """The same work under several settings."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """All points of all series as arrays, sorted by series."""

    owner: Array
    lock_x: Array
    seen_x: Array  # NaN where the clock was not observed
    y: Array
    limit_w: Array
    log_time: Array
    log_power: Array

    @property
    def series(self) -> int:
        """How many series there are."""
        return int(self.owner[-1]) + 1

    @property
    def limited(self) -> bool:
        """Whether the limiter matters anywhere: a limit in force, and the clock not observed."""
        return bool(np.any((self.limit_w < NO_LIMIT_W) & np.isnan(self.seen_x)))

    def most(self, values: Array) -> Array:
        """The largest of `values` in each series."""
        return np.asarray(np.maximum.reduceat(values, np.flatnonzero(np.diff(self.owner, prepend=-1))))

    def times(self, copies: int) -> Columns:
        """The same points several times over, each copy a set of series of its own."""
        owner = np.concatenate([self.owner + copy * self.series for copy in range(copies)])
        rest = (self.lock_x, self.seen_x, self.y, self.limit_w, self.log_time, self.log_power)
        return Columns(owner, *(np.tile(column, copies) for column in rest))


def predict(chip: Chip, load: Load, points: Sequence[Point]) -> tuple[Array, Array]:
    """Seconds and watts that the law gives for `load` at the settings of `points`."""
    columns = columns_of(chip, [Series("", tuple(points))], measured=False)
    return evaluate(chip, load, columns)


def columns_of(chip: Chip, series: Sequence[Series], *, measured: bool = True) -> Columns:
    """Series as arrays; `measured` False ignores time and power. Raises ModelError where there is nothing to use."""
    points = [point for one in series for point in one.points]
    if not points or any(not one.points for one in series):
        raise ModelError("a series without points cannot be fitted; give at least one point")
    if measured and not all(p.time_s > 0 and p.power_w > 0 for p in points):
        bad = next(p for p in points if not (p.time_s > 0 and p.power_w > 0))
        raise ModelError(f"time and power must be above 0, not {bad.time_s:g} s and {bad.power_w:g} W")

    def column(pick: Callable[[Point], float | None], unit: float, missing: float) -> Array:
        return np.array([missing if (v := pick(p)) is None else v / unit for p in points])

    return Columns(
        owner=np.repeat(np.arange(len(series)), [len(one.points) for one in series]),
        lock_x=np.minimum(1.0, column(lambda p: p.lock_mhz, chip.sm_max_mhz, 1.0)),
        seen_x=np.minimum(1.0, column(lambda p: p.sm_mhz, chip.sm_max_mhz, math.nan)),
        y=column(lambda p: p.memory_mhz, chip.memory_max_mhz, 1.0),
        limit_w=column(lambda p: p.limit_w, 1.0, NO_LIMIT_W),
        log_time=np.log(column(lambda p: p.time_s, 1.0, 1.0)) if measured else np.zeros(len(points)),
        log_power=np.log(column(lambda p: p.power_w, 1.0, 1.0)) if measured else np.zeros(len(points)),
    )


def evaluate(chip: Chip, load: Load, columns: Columns) -> tuple[Array, Array]:
    """Step time and average power at every point."""
    x = columns.lock_x
    if columns.limited:
        x = physics.limited_x(chip, load, x, columns.limit_w, columns.y)
    x = np.where(np.isnan(columns.seen_x), x, columns.seen_x)
    return physics.step_s(chip, load, x, columns.y), physics.average_power_w(chip, load, x, columns.y)
