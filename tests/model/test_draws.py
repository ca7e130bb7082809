"""Draws from a posterior, where the posterior is known."""

from __future__ import annotations

import numpy as np
import pytest

from joulewise.model.draws import posterior


def test_a_normal_prior_and_a_normal_likelihood_give_the_known_normal() -> None:
    # x ~ N(1, 2²) beforehand, x = 4 ± 0.1 seen: almost all of it from what was seen; y was not seen.
    drawn = posterior(
        lambda z: -0.5 * ((z[:, 0] - 4.0) / 0.1) ** 2, np.array([1.0, -3.0]), np.array([2.0, 0.5]), count=2000, seed=1
    )
    assert drawn[:, 0].mean() == pytest.approx(4.0 - 0.0075, abs=0.02)
    assert drawn[:, 0].std() == pytest.approx(0.1, rel=0.15)
    assert drawn[:, 1].mean() == pytest.approx(-3.0, abs=0.08)
    assert drawn[:, 1].std() == pytest.approx(0.5, rel=0.15)


def test_two_explanations_both_stay() -> None:
    drawn = posterior(
        lambda z: -0.5 * ((np.abs(z[:, 0]) - 1.0) / 0.05) ** 2, np.zeros(1), np.ones(1), count=1000, seed=2
    )
    assert 0.35 < (drawn > 0).mean() < 0.65


def test_the_same_seed_gives_the_same_draws() -> None:
    again = [
        posterior(lambda z: -(z**2).sum(axis=1), np.zeros(3), np.ones(3), count=50, seed=seed) for seed in (5, 5, 6)
    ]
    assert np.array_equal(again[0], again[1])
    assert not np.array_equal(again[0], again[2])


def test_a_likelihood_that_is_nowhere_defined_in_part_is_survived() -> None:
    drawn = posterior(
        lambda z: np.where(z[:, 0] > 0.0, -0.5 * z[:, 0] ** 2, np.nan), np.zeros(1), np.ones(1), count=200, seed=3
    )
    assert (drawn > 0.0).all()
