"""Plans read from a frontier: in time, on measured options, never below the bound, switches paid for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.flow import IterationFrontier, Planned, solve
from tests.plan.problems import Case, cases, pipeline
from tests.tiers import examples

CLOCKS = np.linspace(0.5, 1.0, 11)


def solved(case: Case, lane_order: list[list[int]] | None = None) -> IterationFrontier[str]:
    return solve(case.options, case.edges, blocking_w=case.blocking_w, lanes=case.lanes, lane_order=lane_order or ())


def played(case: Case, plan: Planned[str], switched_s: list[float]) -> tuple[float, float]:
    """Time and effective energy of a plan's choice by its own numbers."""
    problem = case.problem()
    durations_s = [point.time_s + more_s for point, more_s in zip(plan.choice, switched_s, strict=True)]
    effective_j = sum(point.energy_j - case.blocking_w * point.time_s for point in plan.choice)
    return problem.end_s(durations_s), effective_j


def a_pipeline(stages: int = 3, microbatches: int = 5) -> tuple[Case, list[list[int]]]:
    kinds, edges, lanes = pipeline(stages, microbatches)
    options = {
        (stage, kind): tuple(
            Point(base_s * (0.8 / r + 0.2), base_s * (60 + 340 * r**3) * (0.8 / r + 0.2), f"{r:.2f}") for r in CLOCKS
        )
        for stage in range(stages)
        for kind, base_s in (("forward", 0.05 + 0.01 * stage), ("backward", 0.1 + 0.02 * stage))
    }
    return Case([options[kind] for kind in kinds], edges, 60.0, stages), lanes


@pytest.mark.sampled
@settings(max_examples=examples(150), deadline=None)
@given(cases(), st.floats(0.0, 1.3))
def test_a_rounded_plan_keeps_the_deadline_and_is_never_below_the_bound(case: Case, share: float) -> None:
    frontier = solved(case)
    deadline_s = frontier.t_min_s + share * (frontier.t_max_s - frontier.t_min_s)
    plan = frontier.at(deadline_s)
    assert all(point in options for point, options in zip(plan.choice, case.options, strict=True))
    time_s, effective_j = played(case, plan, [0.0] * len(case.options))
    assert time_s <= deadline_s * (1 + 1e-9) + 1e-12
    assert plan.time_s == pytest.approx(time_s)
    assert plan.energy_j == pytest.approx(effective_j + case.blocking_w * case.lanes * time_s)
    # The frontier is exact in its own units, which are a ten-millionth of its energy or finer.
    rounding_j = 1e-6 * (1.0 + abs(effective_j))
    assert effective_j >= frontier.effective_j(time_s) - rounding_j
    assert plan.energy_j >= frontier.total_j(time_s) - rounding_j
    assert plan.relaxed_energy_j == pytest.approx(frontier.total_j(plan.deadline_s))


@pytest.mark.sampled
@settings(max_examples=examples(60), deadline=None)
@given(cases(most=4), st.floats(0.0, 1.0))
def test_a_rounded_plan_cannot_be_bettered_by_one_operation_alone(case: Case, share: float) -> None:
    frontier, problem = solved(case), case.problem()
    deadline_s = frontier.t_min_s + share * (frontier.t_star_s - frontier.t_min_s)
    plan = frontier.at(deadline_s)
    _, effective_j = played(case, plan, [0.0] * len(case.options))
    for at, options in enumerate(case.options):
        for point in options:
            other = [*plan.choice[:at], point, *plan.choice[at + 1 :]]
            other_j = sum(each.energy_j - case.blocking_w * each.time_s for each in other)
            if other_j < effective_j - 1e-6:
                assert problem.end_s([each.time_s for each in other]) > plan.deadline_s - 1e-8


@pytest.mark.sampled
@settings(max_examples=examples(40), deadline=None)
@given(cases(most=4), st.floats(0.0, 1.0))
def test_a_rounded_plan_is_close_to_the_best_of_all_choices_on_small_graphs(case: Case, share: float) -> None:
    """The discrete problem is NP-hard: what is promised is a plan between the bound and nothing slowed at all."""
    frontier, problem = solved(case), case.problem()
    deadline_s = frontier.t_min_s + share * (frontier.t_star_s - frontier.t_min_s)
    assume(np.prod([len(options) for options in case.options]) <= 400)
    plan = frontier.at(deadline_s)
    _, effective_j = played(case, plan, [0.0] * len(case.options))
    in_time = [
        sum(point.energy_j - case.blocking_w * point.time_s for point in choice)
        for choice in product(*case.options)
        if problem.end_s([point.time_s for point in choice]) <= plan.deadline_s + 1e-9
    ]
    fastest_j = sum(curve.effective_j[0] for curve in map(problem.curve, range(problem.operations)))
    assert min(in_time) - 1e-6 <= effective_j <= fastest_j + 1e-6


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(cases(), st.sampled_from((0.0, 0.002, 0.05)), st.sampled_from((0.0, 1.0)), st.floats(0.0, 1.3))
def test_switches_are_paid_for_in_time_and_energy(case: Case, switch_s: float, switch_j: float, share: float) -> None:
    problem = case.problem()
    lane = list(problem.order)  # one lane for all: a chain, so that its order is a fact
    case = replace(case, edges=[*case.edges, *((a, b, 0.0) for a, b in pairwise(lane))])
    frontier = solved(case, [lane])
    deadline_s = frontier.t_min_s + share * (frontier.t_max_s - frontier.t_min_s)
    try:
        plan = frontier.at(deadline_s, switch_s=switch_s, switch_j=switch_j)
    except BadSpec:
        # Only where changes take time can there be no plan, and not where one setting does for all.
        common = set.intersection(
            *({p.setting for p in each if p.time_s == min(q.time_s for q in each)} for each in case.options)
        )
        refused = (switch_s > 0, common)
        assert refused == (True, set())
        return
    settings_ = [plan.choice[at].setting for at in lane]
    changed = {at for at, before, now in zip(lane[1:], settings_, settings_[1:], strict=False) if before != now}
    assert plan.switches == len(changed)
    time_s, effective_j = played(case, plan, [switch_s * (at in changed) for at in range(len(case.options))])
    assert time_s <= deadline_s * (1 + 1e-9) + 1e-12
    assert plan.time_s == pytest.approx(time_s)
    total_j = effective_j + switch_j * len(changed) + case.blocking_w * case.lanes * time_s
    assert plan.energy_j == pytest.approx(total_j)


def test_dearer_switches_are_fewer_and_one_setting_a_stage_is_never_better() -> None:
    case, lanes = a_pipeline()
    frontier, problem = solved(case, lanes), case.problem()
    deadline_s = 1.08 * frontier.t_min_s
    plans = [frontier.at(deadline_s, switch_s=cost_s) for cost_s in (0.0, 0.005, 0.08)]
    assert plans[0].switches > plans[1].switches > plans[2].switches
    assert plans[0].energy_j < plans[1].energy_j < plans[2].energy_j
    best_j = np.inf
    lane_of = {at: lane for lane, order in enumerate(lanes) for at in order}
    for clocks in product(range(11), repeat=3):
        points = [options[clocks[lane_of[at]]] for at, options in enumerate(case.options)]
        time_s = problem.end_s([point.time_s for point in points])
        if time_s <= deadline_s:
            best_j = min(best_j, sum(p.energy_j - 60.0 * p.time_s for p in points) + 180.0 * time_s)
    assert plans[2].energy_j <= best_j * 1.005


def test_a_switch_cost_needs_the_order_in_lanes() -> None:
    case, _ = a_pipeline()
    with pytest.raises(BadSpec, match="give lane_order"):
        solved(case).at(9.0, switch_s=0.01)
    with pytest.raises(BadSpec, match="a switch cannot cost -1 s"):
        solved(case).at(9.0, switch_s=-1.0)


def test_a_deadline_that_cannot_be_met_is_refused_with_the_fastest() -> None:
    case, _ = a_pipeline()
    frontier = solved(case)
    with pytest.raises(BadSpec, match=rf"no plan ends within 0\.1 s: the fastest takes {frontier.t_min_s:.6g} s"):
        frontier.at(0.1)
    with pytest.raises(BadSpec, match="no plan ends within nan s"):
        frontier.at(float("nan"))


def test_energy_and_power_budgets_are_kept_by_the_rounded_plan() -> None:
    case, lanes = a_pipeline()
    frontier = solved(case, lanes)
    fastest, thriftiest = frontier.at(frontier.t_min_s), frontier.at(frontier.t_star_s)
    for share in (0.2, 0.5, 0.8):
        budget_j = fastest.energy_j + share * (thriftiest.energy_j - fastest.energy_j)
        plan = frontier.within_energy(budget_j)
        assert plan.energy_j <= budget_j * (1 + 1e-9)
        # A little less time, and the bound itself is over the budget.
        assert frontier.total_j(0.97 * plan.time_s) > budget_j
        cap_w = fastest.power_w + share * (thriftiest.power_w - fastest.power_w)
        capped = frontier.within_power(cap_w)
        assert capped.power_w <= cap_w * (1 + 1e-9)
        assert frontier.total_j(0.97 * capped.time_s) / (0.97 * capped.time_s) > cap_w
    assert frontier.within_energy(1e9).time_s == pytest.approx(fastest.time_s)
    # Slower than the least energy: less power still.
    assert frontier.within_power(thriftiest.power_w * 0.98).time_s > thriftiest.time_s
    # Where changes of setting take time the fastest plans may not be possible; others are.
    slow = frontier.within_energy(1.15 * thriftiest.energy_j, switch_s=0.1)
    assert slow.energy_j <= 1.15 * thriftiest.energy_j
    with pytest.raises(BadSpec, match=r"no plan needs only 1 J: the thriftiest needs"):
        frontier.within_energy(1.0)
    with pytest.raises(BadSpec, match=r"no plan draws only 10 W: the least is"):
        frontier.within_power(10.0)


def test_a_straggler_is_waited_for_at_blocking_power() -> None:
    case, _ = a_pipeline()
    frontier = solved(case)
    late_s = 2.0 * frontier.t_star_s
    plan = frontier.straggler(late_s)
    thriftiest = frontier.at(frontier.t_star_s)
    assert plan.time_s == thriftiest.time_s
    assert plan.energy_j == pytest.approx(thriftiest.energy_j + 3 * 60.0 * (late_s - thriftiest.time_s))
    between_s = (frontier.t_min_s + frontier.t_star_s) / 2
    assert frontier.straggler(between_s).choice == frontier.at(between_s).choice
    assert frontier.straggler(0.0).choice == frontier.at(frontier.t_min_s).choice


def test_errors_of_options_that_are_shared_add_up_in_full() -> None:
    shared = (Point(1.0, 10.0, "x", energy_error_j=0.3),)
    alone = (Point(1.0, 5.0, "x", energy_error_j=0.4),)
    plan = solve([shared, shared, alone], [], blocking_w=0.0, lanes=1).at(1.0)
    assert plan.energy_error_j == pytest.approx(np.hypot(0.6, 0.4))
