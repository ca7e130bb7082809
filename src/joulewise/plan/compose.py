"""From partitions to a microbatch: the options of one forward or backward, for ``plan/flow``.

A microbatch runs at one clock (a switch costs milliseconds), with one schedule for each kind of partition, executed
once a layer and nanobatch. So for each clock: the sums over partitions of time and energy, every choice of schedules,
times the measured *additivity* (a stack of layers against the sum of its partitions, each with its error); plus the
parts outside partitions; beside the undivided, sequential microbatch. What nothing else beats in (time, energy beyond
waiting) is an option; whether overlapped or sequential is better at a clock comes out by itself.

Kareus' published code multiplies sums by a constant 1.15 without a source. Here the ratio is measured or absent:
``compose`` refuses to work without one, and ``PLAIN_SUM`` says in every option that nobody has measured it. Pure
algebra: nothing here measures or simulates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.execution import Execution, Launch
from joulewise.plan.profile import Options

_S = TypeVar("_S")
_Named = tuple[tuple[str, str], ...]

_MOST = 400  # options kept after each partition; a sum of fronts can grow as their product


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of partition, or a part outside partitions: executed ``count`` times in a microbatch.

    ``options``: clock in MHz → measured ways to execute it once, each named by its setting (a schedule).
    """

    name: str
    count: int
    options: Mapping[float, Sequence[Point[str]]]


@dataclass(frozen=True, slots=True)
class Additivity:
    """A measured stack of layers relative to the sum of its parts; errors are one standard error of the ratio."""

    time_ratio: float
    time_error: float
    energy_ratio: float
    energy_error: float
    stacks: int  # how many were measured; 0: none

    @property
    def measured(self) -> bool:
        """Whether anybody looked."""
        return self.stacks > 0


PLAIN_SUM = Additivity(1.0, 0.0, 1.0, 0.0, 0)
"""The sum of parts as it is, on purpose: options made with it say that additivity was not measured."""


@dataclass(frozen=True, slots=True)
class Microbatch:
    """How to run one microbatch: the clock, the schedule of each kind of partition; none: sequential, undivided."""

    sm_mhz: float
    schedules: tuple[tuple[str, str], ...]
    additivity_measured: bool = True

    @property
    def overlapped(self) -> bool:
        """Whether it is divided into nanobatches that overlap."""
        return bool(self.schedules)

    def __str__(self) -> str:
        how = ", ".join(f"{part} {schedule}" for part, schedule in self.schedules) or "sequential"
        return f"{self.sm_mhz:g} MHz: {how}" + ("" if self.additivity_measured else " (additivity not measured)")


def options(points: Sequence[Point[Microbatch]]) -> Options:
    """What ``compose`` found as options of a Profile: schedules are SLOT×SMS, as in ``"rope×15"``; BadSpec else."""
    found = []
    for point in points:
        microbatch = point.setting
        launches = [Launch.read(part, how) for part, how in microbatch.schedules]
        clock = {"sm_mhz": microbatch.sm_mhz}
        setting = Execution(launches, **clock) if launches else Setting(**clock)
        found.append(Point(point.time_s, point.energy_j, setting, point.time_error_s, point.energy_error_j))
    return tuple(found)


def additivity(stacks: Sequence[tuple[Point[object], Point[object]]]) -> Additivity:
    """The ratio from (measured stack, sum of its parts) pairs: mean of logarithms, with its error.

    The error is the larger of what the points' own errors give and what the pairs scatter (from two pairs on). With
    one pair and no errors nobody knows the error: BadSpec, as for no pairs at all.
    """
    if not stacks:
        raise BadSpec("additivity was not measured: give a stack of layers and the sum of its partitions")
    time = [(math.log(stack.time_s / parts.time_s), _relative(stack, parts)[0]) for stack, parts in stacks]
    energy = [(math.log(stack.energy_j / parts.energy_j), _relative(stack, parts)[1]) for stack, parts in stacks]
    (time_log, time_error), (energy_log, energy_error) = _mean(time), _mean(energy)
    if len(stacks) == 1 and (time_error == 0 or energy_error == 0):
        raise BadSpec("one stack without errors cannot say how well its additivity is known; repeat it")
    time_ratio, energy_ratio = math.exp(time_log), math.exp(energy_log)
    return Additivity(time_ratio, time_ratio * time_error, energy_ratio, energy_ratio * energy_error, len(stacks))


def compose(
    parts: Sequence[Part],
    *,
    additivity: Additivity | None,
    blocking_w: float,
    outside: Sequence[Part] = (),
    sequential: Mapping[float, Sequence[Point[str]]] | None = None,
) -> tuple[Point[Microbatch], ...]:
    """The options of one microbatch, fastest first, over all clocks at which every part was measured.

    ``outside``: parts that run as they are (embedding, head), to which additivity does not apply. ``sequential``: the
    undivided microbatch as measured at each clock, without ``outside``. Raises BadSpec without a measured additivity
    (see ``PLAIN_SUM``), and where no clock is common to all parts.
    """
    if additivity is None:
        raise BadSpec("additivity was not measured; measure a stack of layers (compose.additivity), or pass PLAIN_SUM")
    found: list[Point[Microbatch]] = []
    for clock in sorted(set.intersection(*(set(part.options) for part in (*parts, *outside))) if parts else ()):
        # Before the stretch a second weighs as much against a joule as it will after it.
        sums = _sums(parts, clock, blocking_w * additivity.time_ratio / additivity.energy_ratio)
        found += [
            Point(
                p.time_s,
                p.energy_j,
                Microbatch(clock, p.setting, additivity.measured),
                p.time_error_s,
                p.energy_error_j,
            )
            for p in _with(outside, clock, [_stretched(point, additivity) for point in sums], blocking_w)
        ]
    for clock, points in (sequential or {}).items():
        if all(clock in part.options for part in outside):
            whole: list[Point[_Named]] = [
                Point(p.time_s, p.energy_j, (), p.time_error_s, p.energy_error_j) for p in points
            ]
            found += [
                Point(p.time_s, p.energy_j, Microbatch(clock, ()), p.time_error_s, p.energy_error_j)
                for p in _with(outside, clock, whole, blocking_w)
            ]
    if not found:
        clocks = {part.name: sorted(part.options) for part in (*parts, *outside)}
        raise BadSpec(f"no clock at which every part was measured: {clocks}")
    return tuple(_kept(found, blocking_w))


def _sums(parts: Sequence[Part], clock: float, blocking_w: float) -> list[Point[_Named]]:
    """Every useful choice of one schedule for each part, times and energies added."""
    sums: list[Point[_Named]] = [Point(0.0, 0.0, ())]
    for part in parts:
        if not part.options[clock] or part.count < 1:
            raise BadSpec(f"part {part.name!r} at {clock:g} MHz needs an option and a count of 1 or more")
        # The same schedule every time: its error is the same every time too, so it grows with the count.
        sums = _kept(
            [
                Point(
                    done.time_s + part.count * one.time_s,
                    done.energy_j + part.count * one.energy_j,
                    (*done.setting, (part.name, one.setting)),
                    math.hypot(done.time_error_s, part.count * one.time_error_s),
                    math.hypot(done.energy_error_j, part.count * one.energy_error_j),
                )
                for done in sums
                for one in part.options[clock]
            ],
            blocking_w,
        )
        sums = _thinned(sums)
    return sums


def _with(
    outside: Sequence[Part], clock: float, points: Sequence[Point[_Named]], blocking_w: float
) -> list[Point[_Named]]:
    """The same with the parts outside, each in its fastest way: they are few and have one way as a rule."""
    more = _sums(outside, clock, blocking_w) if outside else [Point(0.0, 0.0, ())]
    return [
        Point(
            a.time_s + b.time_s,
            a.energy_j + b.energy_j,
            a.setting,
            math.hypot(a.time_error_s, b.time_error_s),
            math.hypot(a.energy_error_j, b.energy_error_j),
        )
        for a in points
        for b in more[:1]
    ]


def _stretched(point: Point[_Named], by: Additivity) -> Point[_Named]:
    return Point(
        point.time_s * by.time_ratio,
        point.energy_j * by.energy_ratio,
        point.setting,
        math.hypot(point.time_error_s * by.time_ratio, point.time_s * by.time_error),
        math.hypot(point.energy_error_j * by.energy_ratio, point.energy_j * by.energy_error),
    )


def _kept(points: Sequence[Point[_S]], blocking_w: float) -> list[Point[_S]]:
    """Those that no other beats in time and in energy beyond waiting: slower may pay where there is slack."""
    kept: list[Point[_S]] = []
    least = math.inf
    for point in sorted(points, key=lambda p: (p.time_s, p.energy_j)):
        effective = point.energy_j - blocking_w * point.time_s
        if effective < least:
            kept.append(point)
            least = effective
    return kept


def _thinned(points: list[Point[_Named]]) -> list[Point[_Named]]:
    if len(points) <= _MOST:
        return points
    return [points[round(i * (len(points) - 1) / (_MOST - 1))] for i in range(_MOST)]


def _relative(stack: Point[object], parts: Point[object]) -> tuple[float, float]:
    """Relative errors of the ratios of time and of energy."""
    return (
        math.hypot(stack.time_error_s / stack.time_s, parts.time_error_s / parts.time_s),
        math.hypot(stack.energy_error_j / stack.energy_j, parts.energy_error_j / parts.energy_j),
    )


def _mean(logs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    count = len(logs)
    mean = sum(value for value, _ in logs) / count
    stated = math.sqrt(sum(error**2 for _, error in logs)) / count
    scatter = 0.0
    if count > 1:
        scatter = math.sqrt(sum((value - mean) ** 2 for value, _ in logs) / (count - 1) / count)
    return mean, max(stated, scatter)
