"""Beliefs over batch sizes: what was seen is believed, what was stopped is only known to be more."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.model.curves import (
    Belief,
    Family,
    Stop,
    above,
    cost_family,
    epochs_family,
    normal_cdf,
    octaves,
)

SIZES = (8, 16, 32, 64, 128, 256)
X = octaves(SIZES, 32)
EPOCHS = epochs_family(X, 10.0, slope_sd=0.25, bump_sd=0.3, reach=2.0)
NOISE = 0.02
NOISES = np.full(64, NOISE)

families = st.sampled_from([EPOCHS, cost_family(X, bump_sd=0.12, reach=2.0)])
places = st.integers(0, len(SIZES) - 1)
logs = st.floats(-2.0, 6.0)
variances = st.floats(1e-4, 0.5)
seen = st.lists(st.tuples(places, logs, variances), max_size=8, unique_by=lambda each: each[0])
stops = st.builds(Stop, places, logs, st.floats(0.0, 0.95), st.integers(1, 5))


def belief_of(family: Family, values: list[tuple[int, float, float]]) -> Belief:
    return family.given(*([list(column) for column in zip(*values, strict=True)] if values else ([], [], [])))


def is_psd(cov: np.ndarray) -> bool:
    return bool(np.allclose(cov, cov.T) and np.linalg.eigvalsh(cov).min() > -1e-8 * max(1.0, np.trace(cov)))


@given(families, seen)
def test_a_belief_is_a_gaussian_whatever_was_seen(family, values):
    belief = belief_of(family, values)
    assert np.isfinite(belief.mean).all()
    assert is_psd(belief.cov)


@given(families, seen, st.lists(stops, max_size=6))
def test_a_belief_is_a_gaussian_whatever_was_stopped(family, values, stopped):
    before = belief_of(family, values)
    after = above(before, stopped, NOISES)
    assert np.isfinite(after.mean).all()
    assert is_psd(after.cov)
    if not stopped:
        np.testing.assert_array_equal(after.mean, before.mean)


@given(families, st.lists(st.tuples(places, logs), min_size=1, max_size=6, unique_by=lambda each: each[0]))
def test_what_was_seen_well_is_believed_and_nothing_is_known_better_elsewhere(family, values):
    belief = belief_of(family, [(place, value, 1e-8) for place, value in values])
    for place, value in values:
        assert belief.mean[place] == pytest.approx(value, abs=1e-3)
        assert belief.sd(place) < 1e-3
    before = family.given([], [], [])
    assert all(belief.sd(place) <= before.sd(place) + 1e-9 for place in range(len(SIZES)))


def test_between_two_that_were_seen_lies_what_both_say():
    belief = EPOCHS.given([1, 3], [math.log(10.0), math.log(12.0)], [1e-4, 1e-4])
    assert math.log(10.0) - 0.1 < belief.mean[2] < math.log(12.0) + 0.1
    assert belief.sd(2) < belief.sd(4) < belief.sd(5)


def test_any_value_pulls_its_neighbours_more_than_those_far_away():
    plain = EPOCHS.given([2], [2.3], [0.01])
    pulled = EPOCHS.given([2, 3], [2.3, plain.mean[3] + 0.5], [0.01, 0.01])
    moved = pulled.mean - plain.mean
    assert moved[3] > 0.3
    assert moved[3] > moved[2] > 0
    assert np.all(moved[4:] > 0)


@given(seen, places, logs, st.floats(0.0, 0.9))
def test_a_stop_raises_its_size_and_lowers_no_neighbour_that_goes_with_it(values, place, bound, lost):
    before = belief_of(EPOCHS, values)
    after = above(before, [Stop(place, bound, lost)], NOISES)
    assert after.mean[place] >= before.mean[place] - 1e-9
    with_it = before.cov[:, place] >= 0
    assert np.all(after.mean[with_it] >= before.mean[with_it] - 1e-9)


@given(st.integers(1, 6), st.floats(0.0, 1.0))
def test_a_run_stopped_far_along_raises_more_than_one_stopped_at_once(count, further):
    before = EPOCHS.given([2], [math.log(10.0)], [0.01])
    early = above(before, [Stop(4, math.log(2.0), 0.0, count)], NOISES)
    late = above(before, [Stop(4, math.log(10.0) + further, 0.0, count)], NOISES)
    assert late.mean[4] > early.mean[4] >= before.mean[4]


def test_where_runs_never_arrive_a_stop_says_nothing_of_the_curve():
    before = EPOCHS.given([2], [math.log(10.0)], [0.01])
    moved = [above(before, [Stop(4, 3.0, lost)], NOISES).mean[4] - before.mean[4] for lost in (0.0, 0.5, 0.99, 1.0)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0.2
    assert moved[-1] == pytest.approx(0.0, abs=1e-6)


def test_a_stop_is_weighed_as_its_likelihood_would_have_it():
    """Against the integral itself, at one size."""
    mean, variance, bound = 2.0, 0.3, 2.5
    grid = np.linspace(-4.0, 8.0, 20001)
    density = np.exp(-0.5 * (grid - mean) ** 2 / variance)
    density *= [0.5 * math.erfc(-(value - bound) / math.sqrt(2.0 * NOISE)) for value in grid]
    density /= density.sum()
    truth = float(grid @ density)
    spread = float(((grid - truth) ** 2) @ density)
    after = above(Belief(np.array([mean]), np.array([[variance]])), [Stop(0, bound)], NOISES)
    assert after.mean[0] == pytest.approx(truth, abs=1e-3)
    assert after.cov[0, 0] == pytest.approx(spread, abs=1e-3)


@given(seen, places, st.floats(1e-3, 1.0))
def test_what_is_to_be_seen_narrows_and_moves_nothing(values, place, variance):
    before = belief_of(EPOCHS, values)
    after = before.seen(place, variance)
    np.testing.assert_array_equal(after.mean, before.mean)
    assert is_psd(after.cov)
    assert np.all(np.diag(after.cov) <= np.diag(before.cov) + 1e-12)


def test_doubt_widens_and_moves_nothing():
    before = EPOCHS.given([2], [2.0], [0.01])
    after = before.wider(0.1 * np.eye(len(SIZES)))
    np.testing.assert_array_equal(after.mean, before.mean)
    assert after.sd(2) == pytest.approx(math.sqrt(before.cov[2, 2] + 0.1))


@given(st.lists(st.floats(-40.0, 40.0), min_size=1, max_size=20))
def test_the_normal_distribution_is_that_of_the_library(values):
    truth = [0.5 * math.erfc(-value / math.sqrt(2.0)) for value in values]
    np.testing.assert_allclose(normal_cdf(np.array(values)), truth, atol=1.5e-7)


def test_octaves_are_doublings_from_the_default():
    np.testing.assert_allclose(octaves((8, 16, 48), 16), [-1.0, 0.0, math.log2(3.0)])
