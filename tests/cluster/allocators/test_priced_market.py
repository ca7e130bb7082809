"""The market: bounds hold, prices clear, and what is settled on is near the best."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.allocators.priced_market import Problem, prices, settle
from joulewise.cluster.milp import Limit, best


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    jobs, offers, kinds = draw(st.integers(1, 15)), draw(st.integers(1, 6)), draw(st.integers(1, 3))
    gpus = rng.choice([1, 2, 3, 4, 8, 16], (jobs, offers))
    value = rng.lognormal(0.0, 1.0, (jobs, offers)) * gpus ** rng.uniform(0.2, 1.0, (jobs, 1)) - rng.uniform(0.0, 1.0)
    return Problem(value, gpus, rng.integers(0, kinds, (jobs, offers)), rng.integers(8, 40, kinds))


def exact(problem: Problem) -> float:
    kinds = range(len(problem.there))
    limits = [Limit(np.where(problem.kind == kind, problem.gpus, 0), float(problem.there[kind])) for kind in kinds]
    return best(problem.value, limits, gap=1e-6).worth


@given(problem=problems())
@settings(max_examples=80, deadline=None)
def test_what_is_settled_on_fits_is_never_above_the_bound_and_the_exact_best_lies_between(problem: Problem) -> None:
    price = prices(problem)
    choice = settle(problem, price)
    assert (price >= 0).all()
    assert (problem.used(choice) <= problem.there).all()
    ours, most, bound = problem.worth(choice), exact(problem), problem.bound(price)
    assert ours <= most * (1 + 1e-6) + 1e-9
    assert most <= bound * (1 + 1e-6) + 1e-9
    if len(problem.there) == 1:  # small enough to be counted through
        assert ours >= most * (1 - 1e-6) - 1e-9
    else:  # a few jobs with a few large offers on several kinds: the hardest case for rounding
        assert ours >= 0.5 * most


def test_many_jobs_are_settled_within_a_thousandth_of_the_best() -> None:
    rng = np.random.default_rng(3)
    gpus = np.tile([1, 2, 4, 8, 16], (200, 1))
    value = rng.lognormal(0.0, 1.0, (200, 1)) * gpus ** rng.uniform(0.3, 0.95, (200, 1))
    problem = Problem(value, gpus, np.zeros_like(gpus), np.array([512]))
    price = prices(problem)
    worth = problem.worth(settle(problem, price))
    assert worth > 0.999 * problem.bound(price)
    assert worth == pytest.approx(exact(problem), rel=1e-3)


@given(problem=problems())
@settings(max_examples=40, deadline=None)
def test_more_gpus_never_make_the_best_worth_less(problem: Problem) -> None:
    more = Problem(problem.value, problem.gpus, problem.kind, problem.there + 3)
    assert exact(more) >= exact(problem) * (1 - 1e-5) - 1e-9


def test_gpus_left_over_cost_nothing() -> None:
    problem = Problem(np.array([[1.0, 1.5]]), np.array([[1, 2]]), np.array([[0, 1]]), np.array([4, 4]))
    assert (prices(problem) == 0.0).all()
    assert settle(problem, np.zeros(2)).tolist() == [1]
