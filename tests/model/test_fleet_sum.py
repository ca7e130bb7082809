import numpy as np
import pytest

from joulewise.model.fleet_sum import ALL, MODEL, added

RANDOM = np.random.default_rng(3)
JOBS = [np.exp(RANDOM.normal(size=400)) for _ in range(30)]


def test_means_add_up():
    total = added(JOBS, ["a"] * len(JOBS))
    assert total.mean() == pytest.approx(sum(draws.mean() for draws in JOBS), rel=0.01)


def test_a_sum_of_one_is_that_one():
    total = added(JOBS[:1], ["a"])
    assert np.quantile(total, (0.025, 0.5, 0.975)) == pytest.approx(np.quantile(JOBS[0], (0.025, 0.5, 0.975)), rel=0.03)


def test_errors_in_common_keep_many_jobs_from_becoming_certain():
    normal = [np.random.default_rng(place).normal(size=2000) for place in range(100)]
    spread = added(normal, ["a"] * 100).std()
    assert spread == pytest.approx(100 * np.sqrt(ALL + MODEL + (1 - ALL - MODEL) / 100), rel=0.1)


def test_jobs_on_different_models_have_less_in_common():
    apart = added(JOBS, [str(place) for place in range(len(JOBS))]).std()
    assert apart < 0.95 * added(JOBS, ["a"] * len(JOBS)).std()


def test_nothing_adds_up_to_nothing():
    assert added([], []).max() == 0.0
