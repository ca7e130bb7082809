"""A plan of one training iteration: which setting every operation runs at, for each of several iteration times.

A plan is data. It carries what it was made from (schedule, measured options, blocking power), so that everything it
promises can be computed again, and what it was made for (``plan_identity``), so that it is refused elsewhere. It is
kept as JSON (``plan_files``), made by ``plan_making`` and played by others; nothing here applies anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.units import format_energy, format_si
from joulewise.plan.execution import knobs, launches
from joulewise.plan.plan_identity import Identity
from joulewise.plan.profile import Options, Profile
from joulewise.plan.schedules import Schedule

_TOLERANCE = 1e-6
"""Relative: a promise is kept to the microsecond; sums of floats in another order differ by less."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of one rank as planned. Energy is of one GPU."""

    kind: str
    stage: int
    microbatch: int
    setting: Setting
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One way to run the iteration. Energy is of all GPUs, with what they draw while they wait."""

    time_s: float
    energy_j: float
    choice: tuple[int, ...]
    """For every operation of the schedule's Dag the index of its option, fastest first, of its stage and kind."""
    bound_j: float | None = None
    """No choice of settings that ends by ``time_s`` needs less than this."""

    @property
    def power_w(self) -> float:
        """The mean over the iteration, of all GPUs."""
        return self.energy_j / self.time_s


@dataclass(frozen=True, slots=True)
class Costs:
    """What an iteration costs besides its operations. BadSpec where it cannot be that."""

    blocking_w: float
    """What one GPU draws while it waits."""
    gpus_per_rank: int = 1
    """How many do what one rank does, in lockstep: tensor-parallel times data-parallel."""
    switch_s: float = 0.0
    """How long a rank waits where an operation has another setting than the one before it."""
    switch_j: float = 0.0
    """What such a change costs one GPU beyond waiting."""

    def __post_init__(self) -> None:
        for name in ("blocking_w", "switch_s", "switch_j"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadSpec(f"{name} is {value:g}; it must be 0 or more")
        if self.gpus_per_rank < 1:
            raise BadSpec(f"gpus_per_rank is {self.gpus_per_rank}; it must be 1 or more")


@dataclass(frozen=True)
class Plan:
    """Points, fastest first, and all they rest on. BadSpec where a point does not do what it promises."""

    schedule: Schedule
    profile: Profile
    costs: Costs
    points: tuple[PlanPoint, ...]
    identity: Identity = field(default_factory=Identity)
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise BadSpec("a plan needs at least one point")
        for at, point in enumerate(self.points):
            self._check(at, point)
        for one, next_ in zip(self.points, self.points[1:], strict=False):
            if not (one.time_s < next_.time_s and one.energy_j > next_.energy_j):
                raise BadSpec(
                    f"the points at {one.time_s:g} s and {next_.time_s:g} s are not faster and dearer in turn"
                )

    @cached_property
    def options(self) -> list[Options]:
        """What each operation may choose from."""
        return self.profile.of(self.schedule.dag)

    @cached_property
    def baseline(self) -> PlanPoint:
        """Nothing set: every operation as measured so, else at its highest clock, else at its fastest setting."""
        choice = tuple(map(unset, self.options))
        return self.point(choice)

    def point(self, choice: Sequence[int], *, bound_j: float | None = None) -> PlanPoint:
        """What a choice of one option per operation takes: played through the schedule, waiting GPUs charged."""
        return PlanPoint(*play(self.schedule, self._chosen(choice), self.costs), tuple(choice), bound_j)

    def steps(self, point: PlanPoint) -> list[list[Step]]:
        """For every rank what it does, in its order."""
        ranks: list[list[Step]] = [[] for _ in range(self.schedule.ranks)]
        for operation, chosen in zip(self.schedule.dag.operations, self._chosen(point.choice), strict=True):
            ranks[operation.rank].append(
                Step(
                    operation.kind,
                    operation.stage,
                    operation.microbatch,
                    chosen.setting,
                    chosen.time_s,
                    chosen.energy_j,
                )
            )
        return ranks

    def energy_error_j(self, point: PlanPoint) -> float:
        """One standard error of a point's energy, from those of the options; operations share their option's error."""
        errors: dict[tuple[int, int], float] = {}
        for options, index in zip(self.options, point.choice, strict=True):
            key = (id(options), index)
            errors[key] = errors.get(key, 0.0) + options[index].energy_error_j
        return self.costs.gpus_per_rank * math.hypot(*errors.values())

    def times_s(self, point: PlanPoint) -> list[tuple[float, float]]:
        """When each operation of the Dag computes: from, to. What lies before it is waiting, or a change of setting."""
        chosen = self._chosen(point.choice)
        waits = _switches_s(self.schedule, chosen, self.costs)
        durations = [each.time_s + wait for each, wait in zip(chosen, waits, strict=True)]
        starts = self.schedule.dag.starts_s(durations)
        return [(start + wait, start + length) for start, wait, length in zip(starts, waits, durations, strict=True)]

    def by_deadline(self, deadline_s: float) -> PlanPoint:
        """Least energy within a time. BadSpec where none is fast enough."""
        fit = [point for point in self.points if point.time_s <= deadline_s * (1 + _TOLERANCE)]
        if not fit:
            least_s = self.points[0].time_s
            raise BadSpec(
                f"no plan ends within {deadline_s:g} s: the fastest takes {least_s:.5g} s; give it that or more"
            )
        return fit[-1]

    def by_energy(self, energy_j: float) -> PlanPoint:
        """Least time within an energy. BadSpec where none is thrifty enough."""
        fit = [point for point in self.points if point.energy_j <= energy_j * (1 + _TOLERANCE)]
        if not fit:
            least_j = self.points[-1].energy_j
            raise BadSpec(f"no plan needs only {format_energy(energy_j)}: the least is {format_energy(least_j)}")
        return fit[0]

    def by_power(self, power_w: float) -> PlanPoint:
        """Least time within a mean power of all GPUs. BadSpec where none draws so little."""
        fit = [point for point in self.points if point.power_w <= power_w * (1 + _TOLERANCE)]
        if not fit:
            least_w = min(point.power_w for point in self.points)
            raise BadSpec(f"no plan draws only {format_si(power_w, 'W')}: the least is {format_si(least_w, 'W')}")
        return fit[0]

    def _chosen(self, choice: Sequence[int]) -> list[Point[Setting]]:
        if len(choice) != len(self.options):
            raise BadSpec(f"{len(choice)} choices were given for {len(self.options)} operations")
        for operation, options, index in zip(self.schedule.dag.operations, self.options, choice, strict=True):
            if not 0 <= index < len(options):
                raise BadSpec(f"the {operation} has {len(options)} options, and none of number {index}")
        return [options[index] for options, index in zip(self.options, choice, strict=True)]

    def _check(self, at: int, point: PlanPoint) -> None:
        played = self.point(point.choice)
        for said, true, unit in ((point.time_s, played.time_s, "s"), (point.energy_j, played.energy_j, "J")):
            if not math.isclose(said, true, rel_tol=_TOLERANCE):
                raise BadSpec(f"point {at} promises {said:.6g} {unit}, but its settings give {true:.6g} {unit}")


def play(schedule: Schedule, chosen: Sequence[Point[Setting]], costs: Costs) -> tuple[float, float]:
    """Seconds and joules of one iteration with these settings, of all GPUs.

    Energy = GPUs a rank × (energies of all operations and changes + blocking power × the time without an operation).
    """
    waits = _switches_s(schedule, chosen, costs)
    durations = [point.time_s + wait for point, wait in zip(chosen, waits, strict=True)]
    starts = schedule.dag.starts_s(durations)
    time_s = max(start + length for start, length in zip(starts, durations, strict=True))
    waiting_s = schedule.ranks * time_s - math.fsum(point.time_s for point in chosen)
    switched = _switched(schedule, chosen).count(True)
    operations_j = math.fsum(point.energy_j for point in chosen) + costs.switch_j * switched
    return time_s, costs.gpus_per_rank * (operations_j + costs.blocking_w * waiting_s)


def _switches_s(schedule: Schedule, chosen: Sequence[Point[Setting]], costs: Costs) -> list[float]:
    if not costs.switch_s:
        return [0.0] * len(chosen)
    return [costs.switch_s if each else 0.0 for each in _switched(schedule, chosen)]


def _switched(schedule: Schedule, chosen: Sequence[Point[Setting]]) -> list[bool]:
    """Whether each operation has another setting than the one before it on its rank; a Dag has them in that order."""
    ranks = [operation.rank for operation in schedule.dag.operations]
    return [
        at > 0 and ranks[at] == ranks[at - 1] and knobs(chosen[at].setting) != knobs(chosen[at - 1].setting)
        for at in range(len(chosen))
    ]


def unset(options: Options) -> int:
    """The option that runs when nothing is set: at the highest clock; without launches, where there is such a one."""
    for index, point in enumerate(options):
        if point.setting == DEFAULT:
            return index

    def place(index: int) -> tuple[float, bool, int]:
        setting = options[index].setting
        return setting.get("sm_mhz", 0.0), not launches(setting), -index

    return max(range(len(options)), key=place)
