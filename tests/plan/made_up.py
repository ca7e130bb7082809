"""Made-up stages: laws of time and energy by clock that are convex or not, for schedules of any shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.plan.execution import Execution, Launch
from joulewise.plan.plan import Costs, Plan, PlanPoint, play
from joulewise.plan.plan_identity import Fact, Identity, parallelism
from joulewise.plan.profile import Profile
from joulewise.plan.schedules import Schedule
from joulewise.plan.schedules_named import named

CLOCKS = (1410.0, 1200.0, 990.0)


def options(work_s: float, clocks: Iterable[float] = CLOCKS) -> tuple[Point[Setting], ...]:
    """Half of the time goes with the clock; power above 60 W with its cube."""
    return tuple(
        Point(time_s, time_s * (60.0 + 340.0 * (mhz / 1410.0) ** 3), Setting(sm_mhz=mhz))
        for mhz in clocks
        for time_s in [work_s * (0.5 + 0.5 * 1410.0 / mhz)]
    )


def profile(stages: int, kinds: Sequence[str] = ("forward", "backward")) -> Profile:
    """Stages that differ; a backward takes twice a forward."""
    return Profile(
        {
            (stage, kind): options((0.05 + 0.01 * (stage % 3)) * (2.0 if kind == "backward" else 1.0))
            for stage in range(stages)
            for kind in kinds
        }
    )


def plan(stages: int = 3, microbatches: int = 4, gpus_per_rank: int = 2, schedule: Schedule | None = None) -> Plan:
    """Points that a child could make: all fast, all but the first rank slower, all slow."""
    order = schedule or named("1f1b", stages=stages, microbatches=microbatches, ask=False)
    measured = profile(order.stages)
    costs = Costs(80.0, gpus_per_rank)
    dag = order.dag
    found = []
    for rule in (lambda rank: 0, lambda rank: min(rank, 1), lambda rank: 1, lambda rank: 2):
        choice = tuple(rule(operation.rank) for operation in dag.operations)
        chosen = [points[index] for points, index in zip(measured.of(dag), choice, strict=True)]
        found.append(Point(*play(order, chosen, costs), choice))
    points = tuple(
        PlanPoint(each.time_s, each.energy_j, each.setting, each.energy_j * 0.99) for each in Frontier(found)
    )
    return Plan(
        order,
        measured,
        costs,
        points,
        Identity(Fact.of("tiny"), parallelism(order, gpus_per_rank), Fact.of("NVIDIA A100-SXM4-40GB"), None),
        ("made up",),
    )


def partitioned(made: Plan) -> Plan:
    """The same plan, with communication launched in some way at every clock but the lowest."""
    ways = {1410.0: 15, 1200.0: 9}
    options = {
        key: tuple(
            replace(point, setting=Execution([Launch("mlp", "norm", 6), Launch("attention", "rope", sms)], sm_mhz=mhz))
            if (sms := ways.get(mhz := point.setting["sm_mhz"]))
            else point
            for point in points
        )
        for key, points in made.profile.options.items()
    }
    return replace(made, profile=Profile(options))
