"""Expected hypervolume gain against what drawing a million points says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.tune.pareto_gain import expected_improvement, hypervolume, improvement, non_dominated

FRONT = np.array([[1.0, 8.0], [2.0, 5.0], [4.0, 3.0]])
REFERENCE = np.array([5.0, 10.0])


def test_the_area_of_a_front_is_what_one_counts_by_hand() -> None:
    assert hypervolume(FRONT, REFERENCE) == pytest.approx(4 * 2 + 3 * 3 + 1 * 2)


@given(time=st.floats(0.5, 6.0), energy=st.floats(1.0, 11.0))
def test_an_improvement_is_the_difference_of_two_areas(time: float, energy: float) -> None:
    grown = hypervolume(np.vstack([FRONT, [[time, energy]]]), REFERENCE)
    added = float(improvement(FRONT, REFERENCE, np.array(time), np.array(energy)))
    assert added == pytest.approx(grown - hypervolume(FRONT, REFERENCE), abs=1e-9)


@pytest.mark.parametrize(("time", "energy", "slope"), [(1.5, 5.0, 0.0), (3.0, 4.0, 2.0), (2.0, 9.0, -1.0)])
def test_the_expectation_agrees_with_draws(time: float, energy: float, slope: float) -> None:
    random = np.random.default_rng(1)
    times = time * np.exp(0.1 * random.normal(size=200_000))
    energies = energy + slope * (times - time) + 0.8 * random.normal(size=len(times))
    drawn = improvement(FRONT, REFERENCE, times, energies)
    told = expected_improvement(
        FRONT,
        REFERENCE,
        np.array([np.log(time)]),
        np.array([0.1]),
        np.array([energy]),
        np.array([0.8]),
        np.array([slope]),
    )
    assert float(told[0]) == pytest.approx(drawn.mean(), abs=0.02 + 5 * drawn.std() / np.sqrt(len(drawn)))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_beats_everything_and_nothing_beats_it(rows: list[tuple[int, int]]) -> None:
    points = np.array(rows, float)
    front = points[non_dominated(points)]
    assert (np.diff(front[:, 0]) > 0).all()
    assert (np.diff(front[:, 1]) < 0).all()
    for point in points:
        assert ((front <= point).all(axis=1)).any()
