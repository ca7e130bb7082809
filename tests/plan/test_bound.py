"""The outside bound by HiGHS: the same as another program's, and what a plan is measured against."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.core.frontier import Point
from joulewise.plan.bound import Bound, gap, lp_bound
from joulewise.plan.flow import solve
from tests.plan.problems import Case, cases, linear_program

A = (Point(1.0, 10.0, "x"), Point(2.0, 6.0, "y"), Point(4.0, 4.0, "z"))
B = (Point(1.0, 8.0, "x"), Point(3.0, 2.0, "y"))
C = (Point(3.0, 9.0, "x"), Point(6.0, 6.0, "y"))


@pytest.fixture(autouse=True)
def _highs() -> None:
    pytest.importorskip("highspy", reason="HiGHS (extra plan) is not installed")


@settings(max_examples=60, deadline=None)
@given(cases())
def test_it_agrees_with_another_program_and_with_the_frontier(case: Case) -> None:
    problem = case.problem()
    bound = Bound(problem)
    frontier = solve(case.options, case.edges, blocking_w=case.blocking_w, lanes=case.lanes)
    for time_s in (frontier.t_min_s, (frontier.t_min_s + frontier.t_max_s) / 2, frontier.t_max_s):
        assert bound.effective_j(time_s) == pytest.approx(linear_program(problem, time_s), rel=1e-6, abs=1e-6)
        assert bound.effective_j(time_s) == pytest.approx(frontier.effective_j(time_s), rel=1e-6, abs=1e-6)


def test_the_gap_of_a_plan_is_its_excess_over_the_bound() -> None:
    bound_j = lp_bound([A, B, C], [(0, 1, 0.0)], 5.5, blocking_w=0.0, lanes=0)
    assert bound_j == pytest.approx(14.0)
    plan = solve([A, B, C], [(0, 1, 0.0)], blocking_w=0.0, lanes=0).at(5.5)
    assert gap(plan.energy_j, bound_j) == pytest.approx(plan.energy_j / 14.0 - 1.0)
    assert gap(plan.energy_j, bound_j) >= 0


def test_a_deadline_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(BadSpec, match="no plan ends within 2 s"):
        lp_bound([A, B, C], [(0, 1, 0.0)], 1.0 + 1.0, blocking_w=0.0, lanes=0)


def test_without_highs_it_says_which_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingPart, match=r"joulewise\[plan\]"):
        lp_bound([A], [], 2.0, blocking_w=0.0, lanes=0)
