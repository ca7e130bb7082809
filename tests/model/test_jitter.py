"""Jitter: what it promises of its factors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from joulewise.model.jitter import Jitter


def logs(jitter: Jitter, count: int = 20_000, seed: str = "a") -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.log(list(itertools.islice(jitter.factors(seed), count)))


def test_no_spread_is_no_jitter() -> None:
    assert list(itertools.islice(Jitter(spread=0.0).factors("a"), 100)) == [1.0] * 100


def test_the_same_seed_gives_the_same_factors_and_another_seed_gives_others() -> None:
    jitter = Jitter(spread=0.1)
    assert (logs(jitter, 50) == logs(jitter, 50)).all()
    assert (logs(jitter, 50) != logs(jitter, 50, "b")).any()


@pytest.mark.parametrize("correlation", [0.0, 0.6])
@pytest.mark.parametrize("tail", [4.0, math.inf])
def test_spread_and_correlation_are_as_asked(correlation: float, tail: float) -> None:
    series = logs(Jitter(spread=0.05, correlation=correlation, tail=tail))
    # A tail of 4 has no finite fourth moment, so the sample deviation converges slowly.
    assert series.std() == pytest.approx(0.05, rel=0.15)
    assert np.corrcoef(series[:-1], series[1:])[0, 1] == pytest.approx(correlation, abs=0.05)
    assert np.exp(series).mean() == pytest.approx(1.0, abs=0.005)


def test_a_small_tail_index_makes_long_steps_far_more_common_than_a_normal_does() -> None:
    def beyond_four_deviations(tail: float) -> float:
        series = logs(Jitter(spread=0.01, tail=tail))
        return float((np.abs(series) > 0.04).mean())

    assert beyond_four_deviations(3.0) > 0.003
    assert beyond_four_deviations(math.inf) < 0.0005


def test_no_factor_is_beyond_the_stated_bound() -> None:
    factors = list(itertools.islice(Jitter(spread=0.1, tail=2.01).factors("a"), 50_000))
    assert max(factors) <= math.exp(20 * 0.1)
    assert min(factors) >= math.exp(-20 * 0.1 - 0.005)
