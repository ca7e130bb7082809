"""The block solver against problems whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from joulewise.model.levenberg import Prior, Problem, own_covariance, solve_all, solve_own

Array = NDArray[Any]
SERIES, POINTS = 6, 9


def lines(outlier: float = 0.0) -> tuple[Problem, Array, Array]:
    """Straight lines with slopes of their own and one shared curvature."""
    draw = np.random.default_rng(4)
    x = np.tile(np.linspace(-1.0, 1.0, POINTS), SERIES)
    owner = np.repeat(np.arange(SERIES), POINTS)
    shared, own = np.array([0.7]), draw.normal(size=(2, SERIES))
    y = own[0][owner] + own[1][owner] * x + shared[0] * x**2
    y[3] += outlier

    def residuals(curvature: Array, each: Array) -> Array:
        row = each[0][owner] + each[1][owner] * x + curvature[0] * x**2 - y
        return np.asarray(row[None])

    flat = Prior(np.zeros(1), np.array([1e6])), Prior(np.zeros(2), np.array([1e6, 1e6]))
    return Problem(residuals, owner, *flat, scale=0.05, noise=0.02), shared, own


def test_shared_and_own_unknowns_are_found_together() -> None:
    problem, shared, own = lines()
    solution = solve_all(problem, np.zeros(1), np.zeros_like(own))
    assert solution.shared == pytest.approx(shared, abs=1e-4)
    assert solution.own == pytest.approx(own, abs=1e-4)
    assert solution.cost < 1e-6


def test_own_unknowns_are_found_where_the_shared_ones_are_held() -> None:
    problem, shared, own = lines()
    assert solve_own(problem, shared, np.zeros_like(own)).own == pytest.approx(own, abs=1e-4)


def test_an_outlier_moves_the_answer_little() -> None:
    problem, shared, own = lines(outlier=5.0)
    solution = solve_all(problem, np.zeros(1), np.zeros_like(own))
    assert solution.shared == pytest.approx(shared, abs=0.01)
    assert solution.own[:, 1:] == pytest.approx(own[:, 1:], abs=0.01)


def test_the_stated_covariance_is_that_of_least_squares() -> None:
    problem, shared, own = lines()
    covariance = own_covariance(problem, solve_own(problem, shared, own))
    x = np.linspace(-1.0, 1.0, POINTS)
    assert covariance[0][0, 0] == pytest.approx(0.02**2 / POINTS, rel=1e-3)
    assert covariance[0][1, 1] == pytest.approx(0.02**2 / float((x**2).sum()), rel=1e-3)


def test_a_prior_decides_what_no_point_shows() -> None:
    problem, shared, own = lines()

    def blind(curvature: Array, each: Array) -> Array:
        return problem.residuals(curvature, np.vstack([each[:1], np.zeros_like(each[1:])]))

    prior = Prior(np.array([0.0, 3.0]), np.array([1e6, 0.5]))
    seen = Problem(blind, problem.owner, problem.shared_prior, prior, problem.scale, problem.noise)
    assert solve_own(seen, shared, np.zeros_like(own)).own[1] == pytest.approx(np.full(SERIES, 3.0), abs=1e-3)
