"""What an operation may choose from, as a curve: the lower convex hull of its measured options.

An operation is charged for what it costs beyond waiting: *effective* energy = measured energy − blocking power × time.
Of its hull only the part counts from the fastest option to the one of least effective energy; beyond that, slower is
dearer too. Between hull points the curve is a straight line, an idealisation that ``plan.rounding`` removes. Curves are
then turned into integers (``Units``), so that the solver's sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point

S = TypeVar("S")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_S, MOST_J = 1e8, 1e15
"""Of one operation: three years, and a day of the world's largest power stations. What is beyond is a mistake."""
LIMIT = float(1 << 60)
"""The solver refuses sums of 2⁶² and more; two bits are left for what rounding to units adds."""


@dataclass(frozen=True, slots=True)
class Units:
    """How many steps of the solver's integers a second and a watt have."""

    per_s: float = 1e9
    per_w: float = 1e6

    @property
    def per_j(self) -> float:
        """Steps of energy: of time × of slope."""
        return self.per_s * self.per_w

    def up(self, time_s: float) -> int:
        """The least whole number of steps that is no shorter; what floats add (1e-6 steps) does not count."""
        return max(0, math.ceil(time_s * self.per_s - 1e-6))

    def down(self, time_s: float) -> int:
        """The largest whole number of steps that is no longer."""
        return math.floor(time_s * self.per_s + 1e-6)


class Curve(Generic[S]):
    """All options of one operation (or of many that share them), fastest first, and their hull, slowest first."""

    def __init__(self, options: Sequence[Point[S]], *, blocking_w: float, name: str = "an operation") -> None:
        if not options:
            raise BadSpec(f"{name} has no option; it needs at least one measured time and energy")
        for point in options:
            if not (0 <= point.time_s <= LONGEST_S and abs(point.energy_j) <= MOST_J):
                raise BadSpec(
                    f"{name} has an option of {point.time_s:g} s and {point.energy_j:g} J; "
                    f"a time is from 0 to {LONGEST_S:g} s, an energy at most {MOST_J:g} J"
                )
        given = list(options)
        time_s = np.array([point.time_s for point in given])
        effective_j = np.array([point.energy_j for point in given]) - blocking_w * time_s
        order = np.lexsort((effective_j, time_s))
        self.options: tuple[Point[S], ...] = tuple(given[i] for i in order)
        self.time_s: Floats = time_s[order]
        self.effective_j: Floats = effective_j[order]
        self.cheapest: NDArray[np.intp] = _running_argmin(self.effective_j)
        """Of all options up to each one, the index of the one of least effective energy."""
        self.hull = self._lower_hull()

    @property
    def fastest_s(self) -> float:
        """The shortest time measured."""
        return float(self.time_s[0])

    @property
    def slowest_s(self) -> float:
        """The time of least effective energy: no plan is slower."""
        return float(self.time_s[self.hull[0]])

    @property
    def steepest_w(self) -> float:
        """What the last second to the fastest option costs; 0 where there is one option."""
        if len(self.hull) < 2:
            return 0.0
        last, before = self.hull[-1], self.hull[-2]
        return float((self.effective_j[last] - self.effective_j[before]) / (self.time_s[before] - self.time_s[last]))

    def cost_j(self, time_s: float) -> float:
        """Effective energy on the hull at a time from ``fastest_s`` on; at ``slowest_s`` it ends falling."""
        points = self.hull[::-1]
        return float(np.interp(time_s, self.time_s[points], self.effective_j[points]))

    def whole(self, units: Units, *, grid_w: float = 0.0) -> WholeHull:
        """The hull in whole units; slopes rounded to multiples of ``grid_w`` (steps that then cost nothing, or the
        same, become one). Slopes are those of the measured times, so that operations alike in slope stay alike."""
        ticks = np.array([units.up(time_s) for time_s in self.time_s[self.hull].tolist()], dtype=np.int64)
        # Of points less than a unit apart the slower, cheaper one stays.
        apart = np.concatenate([[True], np.diff(ticks) < 0])
        duration, corners = ticks[apart], self.hull[apart]
        slope_w = np.diff(self.effective_j[corners]) / -np.diff(self.time_s[corners])
        step = max(1.0, round(grid_w * units.per_w))
        least = float(self.effective_j[corners[0]]) * units.per_j
        return WholeHull.of(duration, np.rint(slope_w * units.per_w / step) * step, least)

    def _lower_hull(self) -> NDArray[np.intp]:
        """Indexes of the corners, slowest first, from least effective energy to least time."""
        time, energy = self.time_s.tolist(), self.effective_j.tolist()
        hull: list[int] = []
        for i in range(len(time)):
            if hull and energy[i] >= energy[hull[-1]]:
                continue
            if hull and time[i] == time[hull[-1]]:
                hull.pop()
            while len(hull) >= 2:
                a, b = hull[-2], hull[-1]
                if (energy[b] - energy[a]) * (time[i] - time[a]) < (energy[i] - energy[a]) * (time[b] - time[a]):
                    break
                hull.pop()
            hull.append(i)
        return np.array(hull[::-1], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class WholeHull:
    """A hull in whole units, slowest first: durations fall, slopes (one fewer) rise, energies follow from them."""

    duration: Ints
    slope: Ints
    energy: Ints

    @classmethod
    def of(cls, duration: Ints, slope: Floats, least: float) -> WholeHull:
        """From slopes that rise, perhaps not strictly, and the least energy: equal ones become one, free steps none."""
        if max(abs(least), float(np.dot(slope, -np.diff(duration)))) > LIMIT or slope.max(initial=0.0) > LIMIT:
            raise OverflowError
        whole = slope.astype(np.int64)
        # A point stays where the curve bends: where the slope after it is steeper than before it. The first keeps its
        # place unless the step after it is free.
        bends = np.diff(whole, prepend=0) > 0
        kept = np.append(np.flatnonzero(bends), len(duration) - 1)
        durations, slopes = duration[kept], whole[kept[:-1]]
        rises = np.concatenate([[0], np.cumsum(slopes * -np.diff(durations))])
        return cls(durations, slopes, (round(least) + rises).astype(np.int64))


def _running_argmin(values: Floats) -> NDArray[np.intp]:
    best = np.minimum.accumulate(values)
    fresh = np.concatenate([[True], values[1:] < best[:-1]])
    return np.maximum.accumulate(np.where(fresh, np.arange(len(values)), 0))
