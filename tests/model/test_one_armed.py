"""What it is worth to be able to try again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.model.one_armed import option

gaps = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=8).map(np.array)
variances = st.floats(1e-4, 2.0)
choices = st.floats(0.0, 500.0)


@given(gaps, variances, variances, choices)
def test_it_is_never_worth_less_than_nothing(gap, variance, noise, count):
    assert np.all(option(gap, variance, noise, count) >= 0.0)


@given(gaps, variances, choices)
def test_what_is_known_or_chosen_once_more_only_is_worth_no_second_look(gap, noise, count):
    assert not option(gap, 0.0, noise, count).any()
    assert not option(gap, 0.5, noise, 1.0).any()


@given(st.floats(0.0, 1.0), st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.floats(3.0, 200.0))
def test_the_more_choices_are_to_come_the_more_it_is_worth(gap, variance, noise, count):
    here = np.array([gap])
    assert option(here, variance, noise, 2.0 * count)[0] >= option(here, variance, noise, count)[0] - 1e-9


@given(st.floats(0.05, 0.5), st.floats(0.01, 0.2), st.floats(10.0, 200.0))
def test_it_is_worth_most_where_the_two_look_alike(variance, noise, count):
    worth = option(np.array([-0.4, 0.0, 0.4]), variance, noise, count)
    assert worth[1] > worth[0]
    assert worth[1] > worth[2]


@pytest.mark.parametrize("gap", [-0.5, 0.0, 0.125, 0.625])
def test_with_two_choices_left_it_is_what_one_run_can_teach_for_the_other(gap):
    last = 1.15**5 - 1.0  # as finely as horizons are told apart, two choices are 2.01
    moved = math.sqrt(0.5)  # a run as noisy as the doubt is large halves it
    density = math.exp(-0.5 * (gap / moved) ** 2) / math.sqrt(2.0 * math.pi)
    beyond = 0.5 * math.erfc(gap / moved / math.sqrt(2.0))
    tried = -gap + last * (moved * density - gap * beyond)
    expected = max(0.0, tried - (last + 1.0) * max(-gap, 0.0))
    assert option(np.array([gap]), 1.0, 1.0, 2.0)[0] == pytest.approx(expected, abs=0.01)


def test_it_lasts_through_bad_luck_as_long_as_luck_may_have_been_it():
    # One run came out 20 % dearer, runs differ by 20 %: over thirty recurrences to come that is looked at again,
    # and twice as dear is not.
    seen = option(np.array([0.2, 1.0]), 0.04, 0.04, 30.0)
    assert seen[0] > 0.05
    assert seen[1] == 0.0
