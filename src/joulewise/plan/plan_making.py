"""From a schedule and a profile to a plan: solve the frontier once, keep plans along it.

The frontier has thousands of corners; a plan keeps a few dozen points of it, evenly over the times that are of use to
anyone: from the fastest to the one of least energy, and always the one that takes no longer than nothing set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.plan.flow import IterationFrontier, solve
from joulewise.plan.plan import Costs, Plan, PlanPoint, play, unset
from joulewise.plan.plan_identity import Identity, parallelism
from joulewise.plan.profile import Options, Profile
from joulewise.plan.schedules import Schedule

POINTS = 33
"""Kept by default: with the usual 10 to 20 % between fastest and thriftiest, steps of about half a percent."""


@dataclass(frozen=True, slots=True)
class Made:
    """A plan and the frontier that it was taken from, which is of one GPU a rank."""

    plan: Plan
    frontier: IterationFrontier[Setting]


def make(
    schedule: Schedule,
    profile: Profile,
    costs: Costs,
    *,
    points: int = POINTS,
    deadlines_s: Sequence[float] = (),
    slope_grid_w: float | None = None,
    identity: Identity | None = None,
    assumptions: Sequence[str] = (),
) -> Made:
    """A plan of at most ``points`` points, and those of ``deadlines_s`` besides.

    ``slope_grid_w`` makes very large pipelines quicker and their plans slightly dearer (see ``plan.flow``). BadSpec
    where the profile does not fit the schedule, leaves nothing to choose, or a deadline cannot be met.
    """
    if points < 1:
        raise BadSpec(f"a plan of {points} points is none; ask for 1 or more")
    dag = schedule.dag
    options = profile.of(dag)
    lanes: list[list[int]] = [[] for _ in range(dag.ranks)]
    for index, operation in enumerate(dag.operations):
        lanes[operation.rank].append(index)
    # Of one GPU a rank: those in lockstep do the same, and multiply the energy of whatever is chosen.
    frontier = solve(
        options,
        dag.edges,
        blocking_w=costs.blocking_w,
        lanes=dag.ranks,
        slope_grid=slope_grid_w,
        lane_order=lanes,
    )
    places = {id(each): {point.setting: at for at, point in enumerate(each)} for each in options}
    unset_s, _ = play(schedule, [each[unset(each)] for each in options], costs)
    found: list[Point[PlanPoint]] = []
    for deadline_s in _deadlines(frontier, points, unset_s, deadlines_s):
        try:
            chosen = frontier.at(deadline_s, switch_s=costs.switch_s, switch_j=costs.switch_j).choice
        except BadSpec:
            # Changes of setting take time, too: with them the fastest plans of all may not be possible.
            if deadline_s in deadlines_s:
                raise
            continue
        choice = tuple(places[id(each)][point.setting] for each, point in zip(options, chosen, strict=True))
        point = _point(schedule, options, choice, costs)
        if slope_grid_w is None:
            of_one_j = frontier.total_j(min(point.time_s, frontier.t_star_s))
            point = replace(point, bound_j=costs.gpus_per_rank * of_one_j)
        found.append(Point(point.time_s, point.energy_j, point))
    if not found:
        raise BadSpec(f"no plan is possible if every change of setting takes {costs.switch_s:g} s")
    identity = replace(identity or Identity(), parallelism=parallelism(schedule, costs.gpus_per_rank))
    kept = tuple(each.setting for each in Frontier(found))
    return Made(Plan(schedule, profile, costs, kept, identity, tuple(assumptions)), frontier)


def _deadlines(
    frontier: IterationFrontier[Setting], points: int, unset_s: float, deadlines_s: Sequence[float]
) -> list[float]:
    """Iteration times to plan for. The fastest and the thriftiest are among them, if there is room for both."""
    first_s, last_s = frontier.t_min_s, frontier.t_star_s
    steps = max(1, points - 1)
    even = [first_s + (last_s - first_s) * at / steps for at in range(1 if points == 1 else 0, steps + 1)]
    return sorted({*even, *deadlines_s, *([unset_s] if first_s <= unset_s <= last_s else [])})


def _point(schedule: Schedule, options: Sequence[Options], choice: tuple[int, ...], costs: Costs) -> PlanPoint:
    chosen = [each[at] for each, at in zip(options, choice, strict=True)]
    return PlanPoint(*play(schedule, chosen, costs), choice)
