"""What a belief was told: blocks gathered by setting, and the points of an earlier run of the same work.

What it is: sums, precise means and their errors; whether new blocks say anything new. What it is not: a belief.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model.learnt import Learnt, LearntPoint

_TIME_FLOOR = 0.0015  # relative: no average over blocks is a better measure of a setting, jobs drift
_POWER_FLOOR = 0.003  # the same; the board also warms
_FORMER = 0.01  # what another run of the same work may differ by
_SAYS_NEW = 0.5  # standard errors by which a known setting must move to say something new


_LEAST_MHZ = 1.0  # no GPU that works runs so slowly: whatever says less is no reading of a clock


@dataclass(frozen=True, slots=True)
class Row:
    """One measured setting: logarithms of unit time and of one GPU's average power, with relative standard errors."""

    setting: Setting
    log_time: float
    time_error: float
    log_power: float
    power_error: float
    sm_mhz: float | None
    capped: bool
    session: int = 0
    """Which run its level belongs to; 0 is this one."""


@dataclass(slots=True)
class _Seen:
    """All blocks of one setting: precision-weighted means of logarithms."""

    log_time: float = 0.0
    time_weight: float = 0.0
    log_power: float = 0.0
    power_weight: float = 0.0
    clock_s: float = 0.0
    clock_mhz_s: float = 0.0
    capped_s: float = 0.0  # seconds with the cap in force, less those without

    def add(self, block: Block, power_w: float) -> None:
        weight = 1.0 / (block.time_error**2 + 1e-8)
        self.time_weight += weight
        self.log_time += (math.log(block.unit_s) - self.log_time) * weight / self.time_weight
        weight = 1.0 / (block.power_error**2 + 1e-8)
        self.power_weight += weight
        self.log_power += (math.log(power_w) - self.log_power) * weight / self.power_weight
        if block.sm_mhz is not None and block.sm_mhz >= _LEAST_MHZ:
            self.clock_s += block.duration_s
            self.clock_mhz_s += block.duration_s * block.sm_mhz
        if block.power_capped is not None:
            self.capped_s += block.duration_s if block.power_capped else -block.duration_s

    def row(self, setting: Setting) -> Row:
        return Row(
            setting,
            self.log_time,
            math.hypot(self.time_weight**-0.5, _TIME_FLOOR),
            self.log_power,
            math.hypot(self.power_weight**-0.5, _POWER_FLOOR),
            float(self.clock_mhz_s / self.clock_s) if self.clock_s > 0 else None,
            bool(self.capped_s > 0),
        )


class Evidence:
    """Blocks by setting, in the order in which settings were first seen, after an earlier run's points."""

    def __init__(self, former: Learnt) -> None:
        self._former = former
        self._seen: dict[Setting, _Seen] = {}

    def add(self, block: Block, power_w: float) -> None:
        """Take in a block; `power_w` is one GPU's part of its power."""
        self._seen.setdefault(block.setting, _Seen()).add(block, power_w)

    @property
    def default_mhz(self) -> float | None:
        """The clock seen at the default; None where it was not."""
        seen = self._seen.get(DEFAULT)
        return seen.row(DEFAULT).sm_mhz if seen is not None else None

    def rows(self) -> tuple[Row, ...]:
        """Every measured setting."""
        rows = [seen.row(setting) for setting, seen in self._seen.items()]
        power_w = self._former.power_w
        if power_w is not None:
            rows += [
                Row(
                    point.setting,
                    math.log(point.time),
                    math.hypot(point.time_error, _FORMER),
                    math.log(point.power * power_w),
                    math.hypot(point.power_error, _FORMER),
                    point.sm_mhz,
                    point.capped,
                    session=1,
                )
                for point in self._former.points
            ]
        return tuple(rows)

    def learnt(self) -> tuple[tuple[LearntPoint, ...], float | None]:
        """The points to remember, and the power at the default: this run's if it saw the default, else the former's."""
        default = self._seen.get(DEFAULT)
        if default is None:
            return self._former.points, self._former.power_w
        rows = [seen.row(setting) for setting, seen in self._seen.items()]
        points = tuple(
            LearntPoint(
                row.setting,
                math.exp(row.log_time - default.log_time),
                row.time_error,
                math.exp(row.log_power - default.log_power),
                row.power_error,
                row.sm_mhz,
                row.capped,
            )
            for row in rows
        )
        return points, math.exp(default.log_power)


def alike(old: Sequence[Row], new: Sequence[Row]) -> bool:
    """Whether blocks told since change nothing to speak of."""
    if len(old) != len(new):
        return False
    for before, now in zip(old, new, strict=True):
        if before.setting != now.setting or before.capped != now.capped:
            return False
        for moved, was, error in (
            (now.log_time - before.log_time, before.time_error, now.time_error),
            (now.log_power - before.log_power, before.power_error, now.power_error),
        ):
            if abs(moved) > _SAYS_NEW * was or error < 0.8 * was:
                return False
    return True
