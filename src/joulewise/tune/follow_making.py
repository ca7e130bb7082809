"""The plan of a running job: made from what its ranks measured, mended by what they saw, without changes too short.

Pure: what all ranks have said goes in, a plan comes out, the same wherever it is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import DEFAULT, Setting, Space
from joulewise.plan.execution import launches
from joulewise.plan.plan import Costs, Plan, PlanPoint
from joulewise.plan.plan_fields import Fields
from joulewise.plan.plan_identity import Fact, Identity, parallelism
from joulewise.plan.plan_making import make
from joulewise.plan.profile import Profile, averaged
from joulewise.plan.profile_files import options_from
from joulewise.plan.schedules import Schedule
from joulewise.tune.follow_clocks import ceiling_mhz, without_short_runs
from joulewise.tune.follow_profile import paced
from joulewise.tune.follow_promise import Waiting
from joulewise.tune.follow_spans import Kind


@dataclass(frozen=True)
class Measured:
    """What all ranks have measured of themselves."""

    profile: Profile
    waiting: tuple[Waiting | None, ...]
    """Of every rank; None where it never waited."""
    blocking_w: float
    span_s: float
    """From a rank's first operation to its last, where that is longest."""
    switch_s: float
    """What a change of clock takes."""

    @classmethod
    def heard(cls, said: Sequence[Mapping[str, Any]], switch_s: float) -> Measured:
        """From what each rank has said. BadSpec where that makes no profile."""
        rows = [Fields(row, f"rank {rank}") for rank, each in enumerate(said) for row in each["options"]]
        waiting = tuple(_waiting(each) for each in said)
        waits_w = [each(DEFAULT) for each in waiting if each is not None]
        return cls(
            averaged(options_from(rows)),
            waiting,
            sum(waits_w) / len(waits_w) if waits_w else 0.0,
            max(float(each["span_s"]) for each in said),
            switch_s,
        )

    def transfer_s(self, schedule: Schedule) -> float:
        """What a transfer between ranks takes, as far as the length of an iteration tells."""
        return paced(schedule, self.profile, self.span_s).transfer_s

    def waiting_w(self, rank: int, setting: Setting) -> float:
        """What a rank's GPU draws while it waits."""
        found = self.waiting[rank] if rank < len(self.waiting) else None
        return self.blocking_w if found is None else found(setting)


def identity(facts: Sequence[Mapping[str, Any]], schedule: Schedule, gpus_per_rank: int, model: str | None) -> Identity:
    """What is here, from the facts of all ranks: ``gpu``, ``driver`` and ``model``, a hash of each one's parameters."""
    stages = ", ".join(str(each["model"]) for each in facts)
    gpus = sorted({str(each["gpu"]) for each in facts})
    drivers = sorted({str(each["driver"]) for each in facts if each["driver"]})
    named = Fact.of(model if model is not None else f"parameters {Fact.of(stages).sha256[:16]}")
    return Identity(
        model=named,
        parallelism=parallelism(schedule, gpus_per_rank),
        gpu=Fact.of(" + ".join(gpus)),
        driver=Fact.of(" + ".join(drivers)) if drivers else None,
    )


def made(schedule: Schedule, measured: Measured, here: Identity, gpus_per_rank: int, max_slowdown: float) -> Plan:
    """The plan of what was measured. BadSpec as planning goes."""
    pipeline = paced(schedule, measured.profile, measured.span_s)
    costs = Costs(measured.blocking_w, gpus_per_rank)
    return _best(pipeline, measured.profile, costs, here, max_slowdown, measured.switch_s)


def mended(plan: Plan, drift: Mapping[Kind, float], max_slowdown: float, switch_s: float) -> Plan:
    """The plan made anew for operations that take ``drift`` times as long as it expects, at the same power."""
    options = dict(plan.profile.options)
    for kind in drift.keys() & options.keys():
        options |= Profile({kind: options[kind]}).scaled(time=drift[kind], energy=drift[kind]).options
    return _best(plan.schedule, Profile(options), plan.costs, plan.identity, max_slowdown, switch_s)


def _best(
    schedule: Schedule, profile: Profile, costs: Costs, identity: Identity, max_slowdown: float, switch_s: float
) -> Plan:
    """The plan that is best when it is played: where changes have to be left out, perhaps one made with few of them.

    A change that is asked for ahead costs the GPU nothing, but it has to last. So plans are made without a cost of
    changes; where that leaves some that are too short, also with one, in time and in energy, that makes them rarer,
    and priced without it all the same.
    """
    plan = make(schedule, profile, costs, identity=identity).plan
    if playable(plan, max_slowdown, switch_s) == playable(plan, max_slowdown, 0.0):
        return plan
    plans = [plan]
    deadline_s = plan.baseline.time_s * (1.0 + max_slowdown)
    for wary in (replace(costs, switch_s=switch_s / 3.0), replace(costs, switch_j=costs.blocking_w * switch_s)):
        try:
            found = make(schedule, profile, wary, points=1, deadlines_s=[deadline_s]).plan
            priced = [plan.point(point.choice) for point in found.points]
            frontier = Frontier(Point(point.time_s, point.energy_j, point) for point in priced)
            other = replace(plan, points=tuple(each.setting for each in frontier))
            playable(other, max_slowdown, switch_s)
        except BadSpec:  # every change would make it late
            continue
        plans.append(other)
    return min(plans, key=lambda each: playable(each, max_slowdown, switch_s).energy_j)


def playable(plan: Plan, max_slowdown: float, switch_s: float) -> PlanPoint:
    """The plan's point of least energy within a slowdown, without changes that last less than ``switch_s``.

    BadSpec where no point is fast enough.
    """
    point = plan.by_deadline(plan.baseline.time_s * (1.0 + max_slowdown))
    choice = list(point.choice)
    starts_s = [start_s for start_s, _ in plan.times_s(point)]
    first = 0
    for row in plan.steps(point):
        end = first + len(row)
        begins_s = [*starts_s[first:end], starts_s[first] + point.time_s]
        lasts_s = [after_s - before_s for before_s, after_s in itertools.pairwise(begins_s)]
        smooth = without_short_runs([step.setting for step in row], lasts_s, switch_s)
        for at, (step, setting) in enumerate(zip(row, smooth, strict=True)):
            if setting != step.setting:
                choice[first + at] = _at_least(plan, first + at, setting)
        first = end
    return point if tuple(choice) == point.choice else plan.point(choice)


def unplayable(plan: Plan) -> str | None:
    """Why a plan cannot be played by setting clocks alone; None where it can."""
    if any(launches(point.setting) for points in plan.profile.options.values() for point in points):
        return (
            "the plan is refused: it says where communication is launched and on how many SMs, which nothing here can "
            "set; make one from options without launches"
        )
    return None


def check(plan: Plan, point: PlanPoint, rank: int, space: Space, allowed: Mapping[str, tuple[float, float]]) -> None:
    """Raise Unsupported, OutOfRange or BadSpec unless a rank may set all that the point asks of it."""
    for step in plan.steps(point)[rank]:
        space.check(step.setting, gpu=f"the GPU of rank {rank}")
        for knob, value in step.setting.items():
            low, high = allowed.get(knob, (-float("inf"), float("inf")))
            if not low <= value <= high:
                raise BadSpec(f"the plan asks rank {rank} for {knob}={value:g}, and {low:g} to {high:g} may be set")


def _at_least(plan: Plan, operation: int, setting: Setting) -> int:
    """The option of an operation with this clock, or the next higher one that was measured."""
    options = plan.options[operation]
    enough = [at for at, each in enumerate(options) if ceiling_mhz(each.setting) >= ceiling_mhz(setting)]
    return min(enough, key=lambda at: ceiling_mhz(options[at].setting)) if enough else 0


def _waiting(said: Mapping[str, Any]) -> Waiting | None:
    measured: dict[Setting, list[float]] = {}
    for setting, watts in said["waiting"]:
        measured.setdefault(Setting(**setting), []).append(float(watts))
    if not measured:
        return None
    return Waiting({key: sum(each) / len(each) for key, each in measured.items()}, float(said["default_mhz"]))
