"""Frontiers: Pareto sets of (time, energy, setting). Every floor makes one out of those below and hands it up.

A Frontier is sorted by time; energy falls strictly along it. It is closed under ``scaled`` and ``then``. Points carry
errors. Pure algebra: nothing here measures or decides for anyone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, overload

S = TypeVar("S")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Point(Generic[S]):
    """One way to do the work: how long, how many joules, and the setting that does it. Errors: one standard error."""

    time_s: float
    energy_j: float
    setting: S
    time_error_s: float = 0.0
    energy_error_j: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_s) and math.isfinite(self.energy_j)):
            raise ValueError(f"a point needs finite time and energy, not {self.time_s} s, {self.energy_j} J")

    @property
    def power_w(self) -> float:
        """Average power."""
        return self.energy_j / self.time_s


class Frontier(Sequence[Point[S]], Generic[S]):
    """Points that nothing else beats in both time and energy, fastest first. Never empty."""

    __slots__ = ("_points",)

    def __init__(self, points: Iterable[Point[S]]) -> None:
        kept: list[Point[S]] = []
        for point in sorted(points, key=lambda p: (p.time_s, p.energy_j)):
            if not kept or point.energy_j < kept[-1].energy_j:
                kept.append(point)
        if not kept:
            raise ValueError("a frontier needs at least one point")
        self._points: tuple[Point[S], ...] = tuple(kept)

    @overload
    def __getitem__(self, index: int) -> Point[S]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Point[S]]: ...
    def __getitem__(self, index: int | slice) -> Point[S] | Sequence[Point[S]]:
        return self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __iter__(self) -> Iterator[Point[S]]:
        return iter(self._points)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frontier) and self._points == other._points

    def __hash__(self) -> int:
        return hash(self._points)

    def __repr__(self) -> str:
        first, last = self.fastest, self.thriftiest
        return (
            f"Frontier({len(self)} points, {first.time_s:g} s {first.energy_j:g} J … "
            f"{last.time_s:g} s {last.energy_j:g} J)"
        )

    @property
    def fastest(self) -> Point[S]:
        """Least time, most energy."""
        return self._points[0]

    @property
    def thriftiest(self) -> Point[S]:
        """Least energy, most time."""
        return self._points[-1]

    def within(self, deadline_s: float) -> Point[S] | None:
        """The point of least energy that meets the deadline, or None when even the fastest is too slow."""
        best = None
        for point in self._points:
            if point.time_s > deadline_s:
                break
            best = point
        return best

    def best(self, cost: Callable[[Point[S]], float]) -> Point[S]:
        """The point of least cost; the faster one in a tie. See ``core.objective`` for costs."""
        return min(self._points, key=lambda point: (cost(point), point.time_s))

    def hull(self) -> Frontier[S]:
        """The lower-left convex hull: the points that some price of time in joules would pick."""
        hull: list[Point[S]] = []
        for point in self._points:
            while len(hull) >= 2 and _above(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        return Frontier(hull)

    def scaled(self, *, time: float = 1.0, energy: float = 1.0) -> Frontier[S]:
        """The same settings doing ``time`` times longer work for ``energy`` times the joules; factors above 0."""
        if not (time > 0 and energy > 0):
            raise ValueError(f"scale factors must be above 0, not time {time}, energy {energy}")
        return Frontier(
            replace(
                point,
                time_s=point.time_s * time,
                energy_j=point.energy_j * energy,
                time_error_s=point.time_error_s * time,
                energy_error_j=point.energy_error_j * energy,
            )
            for point in self._points
        )

    def then(self, other: Frontier[U]) -> Frontier[tuple[S, U]]:
        """This work followed by other work, chosen together: settings become pairs.

        The result is the hull of all pairs (Minkowski sum of the hulls, edges merged by slope), so its size is
        the sum of the sizes and not their product.
        """
        a, b = self.hull(), other.hull()
        i = j = 0
        pairs = [_joined(a[0], b[0])]
        while i + 1 < len(a) or j + 1 < len(b):
            if j + 1 >= len(b) or (i + 1 < len(a) and _slope(a[i], a[i + 1]) <= _slope(b[j], b[j + 1])):
                i += 1
            else:
                j += 1
            pairs.append(_joined(a[i], b[j]))
        return Frontier(pairs).hull()


def _slope(p: Point[S], q: Point[S]) -> float:
    """Joules gained per second spent from p to q; negative, steepest first on a hull."""
    return (q.energy_j - p.energy_j) / (q.time_s - p.time_s)


def _above(p: Point[S], q: Point[S], r: Point[S]) -> bool:
    """Whether q lies on or above the line from p to r."""
    return (q.energy_j - p.energy_j) * (r.time_s - p.time_s) >= (r.energy_j - p.energy_j) * (q.time_s - p.time_s)


def _joined(p: Point[S], q: Point[U]) -> Point[tuple[S, U]]:
    return Point(
        p.time_s + q.time_s,
        p.energy_j + q.energy_j,
        (p.setting, q.setting),
        math.hypot(p.time_error_s, q.time_error_s),
        math.hypot(p.energy_error_j, q.energy_error_j),
    )
