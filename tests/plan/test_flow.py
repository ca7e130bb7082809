"""The frontier solver: exact against a linear program on every vertex, and what must hold of any frontier."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.dag import Edge
from joulewise.plan.flow import IterationFrontier, solve
from tests.plan.problems import Case, cases, linear_program, pipeline
from tests.tiers import examples

A = (Point(1.0, 10.0, "x"), Point(2.0, 6.0, "y"), Point(4.0, 4.0, "z"))
B = (Point(1.0, 8.0, "x"), Point(3.0, 2.0, "y"))
C = (Point(3.0, 9.0, "x"), Point(6.0, 6.0, "y"))
UNITS = 1e-6
"""A frontier is exact in its own units, which are finer than this share of its energy."""


def solved(case: Case, **more: float) -> IterationFrontier[str]:
    return solve(case.options, case.edges, blocking_w=case.blocking_w, lanes=case.lanes, **more)  # type: ignore[arg-type]


def test_the_example_that_was_solved_by_hand() -> None:
    frontier = solve([A, B, C], [Edge(0, 1)], blocking_w=0.0, lanes=0)
    assert frontier.time_s.tolist() == [3, 5, 6, 7]
    assert frontier.energy_j.tolist() == [23, 15, 13, 12]
    assert frontier.slope_w.tolist() == [4, 2, 1, 0]
    # Two lanes at 0.75 W: subtracted from every operation, charged for the whole iteration.
    options = [tuple(Point(p.time_s, p.energy_j + 0.75 * p.time_s, p.setting) for p in each) for each in (A, B, C)]
    waiting = solve(options, [(0, 1, 0.0)], blocking_w=0.75, lanes=2)
    assert waiting.energy_j.tolist() == [23, 15, 13, 12]
    assert waiting.t_star_s == 6
    assert waiting.total_j(6.0) == pytest.approx(13 + 1.5 * 6)
    assert waiting.total_j(7.0) > waiting.total_j(6.0)


@pytest.mark.sampled
@settings(max_examples=examples(150), deadline=None)
@given(cases())
def test_every_vertex_is_what_a_linear_program_says(case: Case) -> None:
    frontier, problem = solved(case), case.problem()
    for time_s, energy_j in zip(frontier.time_s, frontier.energy_j, strict=True):
        assert linear_program(problem, time_s) == pytest.approx(energy_j, rel=UNITS, abs=UNITS)
    for one_s, other_s in pairwise(frontier.time_s):
        middle_s = (one_s + other_s) / 2
        assert linear_program(problem, middle_s) == pytest.approx(frontier.effective_j(middle_s), rel=UNITS, abs=UNITS)
    fastest_s = problem.end_s([curve.fastest_s for curve in map(problem.curve, range(problem.operations))])
    assert frontier.t_min_s == pytest.approx(fastest_s, abs=1e-7)


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(cases())
def test_a_frontier_is_convex_and_falls(case: Case) -> None:
    frontier = solved(case)
    assert (np.diff(frontier.time_s) > 0).all()
    assert (np.diff(frontier.energy_j) < 0).all()
    assert (np.diff(frontier.slope_w) < 0).all()
    assert frontier.slope_w[-1] == 0
    assert frontier.t_min_s <= frontier.t_star_s <= frontier.t_max_s
    totals_j = [frontier.total_j(time_s) for time_s in frontier.time_s]
    assert frontier.total_j(frontier.t_star_s) == min(totals_j)


@settings(max_examples=60, deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_operations_edges_and_options_changes_nothing(case: Case, random: Random) -> None:
    order = list(range(len(case.options)))
    random.shuffle(order)
    place = {at: new for new, at in enumerate(order)}
    mixed = [tuple(random.sample(case.options[at], len(case.options[at]))) for at in order]
    edges = [(place[a], place[b], lag_s) for a, b, lag_s in random.sample(case.edges, len(case.edges))]
    one, other = solved(case), solved(Case(mixed, edges, case.blocking_w, case.lanes))
    np.testing.assert_array_equal(one.time_s, other.time_s)
    np.testing.assert_array_equal(one.energy_j, other.energy_j)


@settings(max_examples=60, deadline=None)
@given(cases(most=4), cases(most=4))
def test_parts_that_do_not_touch_add_up_at_every_time(one: Case, other: Case) -> None:
    shift = len(one.options)
    edges = [*one.edges, *((a + shift, b + shift, lag_s) for a, b, lag_s in other.edges)]
    both = solved(Case([*one.options, *other.options], edges, one.blocking_w, 0))
    parts = [solved(one), solved(Case(other.options, other.edges, one.blocking_w, 0))]
    for time_s in both.time_s:
        sum_j = sum(part.effective_j(time_s) for part in parts)
        assert both.effective_j(time_s) == pytest.approx(sum_j, rel=UNITS, abs=UNITS)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 40), st.integers(1, 400))
def test_another_option_never_makes_it_worse_and_a_second_copy_changes_nothing(
    case: Case, ms: int, deci_j: int
) -> None:
    before = solved(case)
    same = solved(Case([each + each for each in case.options], case.edges, case.blocking_w, case.lanes))
    np.testing.assert_array_equal(before.energy_j, same.energy_j)
    more = [(*case.options[0], Point(ms / 1000, deci_j / 10, "new")), *case.options[1:]]
    after = solved(Case(more, case.edges, case.blocking_w, case.lanes))
    assert after.t_min_s <= before.t_min_s
    for time_s in before.time_s:
        assert after.effective_j(time_s) <= before.effective_j(time_s) + UNITS * (1 + abs(before.effective_j(time_s)))


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from((20.0, 500.0)))
def test_a_grid_of_slopes_stays_within_its_bound_and_never_below_the_truth(case: Case, grid_w: float) -> None:
    exact, coarse = solved(case), solved(case, slope_grid=grid_w)
    assert coarse.t_min_s == exact.t_min_s
    problem = case.problem()
    room_s = sum(problem.curve(at).slowest_s - problem.curve(at).fastest_s for at in range(problem.operations))
    for time_s, energy_j in zip(coarse.time_s, coarse.energy_j, strict=True):
        over_j = energy_j - exact.effective_j(time_s)
        rounding_j = UNITS * (1 + abs(energy_j))
        assert -rounding_j <= over_j <= grid_w * room_s + rounding_j


def test_a_pipeline_is_never_beaten_by_one_setting_for_all() -> None:
    kinds, edges, _ = pipeline(3, 6)
    options = {
        (stage, kind): tuple(
            Point(base_s * (0.8 / r + 0.2), base_s * (60 + 340 * r**3) * (0.8 / r + 0.2), f"{r:.2f}")
            for r in np.linspace(0.5, 1.0, 11)
        )
        for stage in range(3)
        for kind, base_s in (("forward", 0.05 + 0.01 * stage), ("backward", 0.1 + 0.02 * stage))
    }
    case = Case([options[kind] for kind in kinds], edges, 60.0, 3)
    frontier, problem = solved(case), case.problem()
    for at in range(11):
        points = [each[at] for each in case.options]
        time_s = problem.end_s([point.time_s for point in points])
        effective_j = sum(point.energy_j - 60.0 * point.time_s for point in points)
        assert frontier.effective_j(time_s) <= effective_j + 1e-9


def test_work_without_a_choice_has_one_vertex() -> None:
    frontier = solve([(Point(2.0, 5.0, "only"),), (Point(0.0, 1.0, "only"),)], [(0, 1, 0.5)], blocking_w=0.0, lanes=1)
    assert frontier.time_s.tolist() == [2.5]
    assert frontier.energy_j.tolist() == [6.0]
    assert frontier.at(9.0).time_s == 2.5


@pytest.mark.parametrize(
    ("options", "edges", "more", "words"),
    [
        ([], [], {}, "no operation to plan"),
        ([A, ()], [], {}, "operation 1 has no option"),
        ([A, B], [(0, 1, 0.0), (1, 0, 0.0)], {}, "in a circle: it is among 0, 1"),
        ([A], [(0, 0, 0.0)], {}, "in a circle"),
        ([A, B], [(0, 2, 0.0)], {}, r"edge 0 → 2 leaves the 2 operations"),
        ([A, B], [(0, 1, -1.0)], {}, "lag of -1.0 s"),
        ([A, B], [(0, 1, float("nan"))], {}, "lag of nan s"),
        ([(Point(-1.0, 2.0, "x"),)], [], {}, "option of -1 s and 2 J"),
        ([(Point(1e9, 2.0, "x"),)], [], {}, r"option of 1e\+09 s"),
        ([(Point(1.0, -1e300, "x"),)], [], {}, r"1e\+300 J"),
        ([A], [], {"blocking_w": -5.0}, "wait at -5 W"),
        ([A], [], {"blocking_w": float("nan")}, "wait at nan W"),
        ([A], [], {"slope_grid": 0.0}, "slope grid of 0 W"),
        ([A], [], {"lane_order": [[0, 1]]}, "operation 1 of a lane's order"),
        ([A, B], [], {"lane_order": [[0, 1], [1]]}, "is there twice"),
        ([(Point(1e8, 1e15, "x"), Point(9e7, 1e15, "y"))] * 9000, [], {}, "sums of 62 bits"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(
    options: list[tuple[Point[str], ...]], edges: list[tuple[int, int, float]], more: dict[str, float], words: str
) -> None:
    given_: dict[str, object] = {"blocking_w": 0.0, "lanes": 1, **more}
    with pytest.raises(BadSpec, match=words):
        solve(options, edges, **given_)  # type: ignore[arg-type]


def test_very_large_and_very_small_work_keeps_its_precision() -> None:
    """Units follow the problem: kernels of microseconds and steps of minutes are both exact to a millionth."""
    for time_s, energy_j in ((1e-6, 1e-4), (100.0, 1e6)):
        scaled = [tuple(Point(p.time_s * time_s, p.energy_j * energy_j, p.setting) for p in each) for each in (A, B, C)]
        frontier = solve(scaled * 50, [(3 * i, 3 * i + 1, 0.0) for i in range(50)], blocking_w=0.0, lanes=1)
        np.testing.assert_allclose(frontier.time_s / time_s, [3, 5, 6, 7], rtol=1e-6)
        np.testing.assert_allclose(frontier.energy_j / energy_j, [1150, 750, 650, 600], rtol=1e-6)
