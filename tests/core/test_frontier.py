import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.frontier import Frontier, Point

points = st.lists(
    st.builds(
        Point,
        st.floats(min_value=0.1, max_value=100),
        st.floats(min_value=1, max_value=1e4),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=12,
)


@given(points)
def test_a_frontier_rises_in_time_and_falls_in_energy(given_points):
    frontier = Frontier(given_points)
    assert all(a.time_s < b.time_s and a.energy_j > b.energy_j for a, b in itertools.pairwise(frontier))


@given(points)
def test_nothing_given_beats_a_point_of_the_frontier_in_both(given_points):
    frontier = Frontier(given_points)
    for point in given_points:
        assert any(p.time_s <= point.time_s and p.energy_j <= point.energy_j for p in frontier)


@given(points, st.floats(min_value=0, max_value=120))
def test_within_a_deadline_is_the_thriftiest_point_that_meets_it(given_points, deadline_s):
    chosen = Frontier(given_points).within(deadline_s)
    meeting = [p.energy_j for p in given_points if p.time_s <= deadline_s]
    assert (chosen is None) == (not meeting)
    if chosen is not None:
        assert chosen.time_s <= deadline_s
        assert chosen.energy_j == min(meeting)


@given(points)
def test_a_hull_is_convex_and_keeps_both_ends(given_points):
    frontier = Frontier(given_points)
    hull = frontier.hull()
    assert hull.fastest == frontier.fastest
    assert hull.thriftiest == frontier.thriftiest
    slopes = [(b.energy_j - a.energy_j) / (b.time_s - a.time_s) for a, b in itertools.pairwise(hull)]
    assert slopes == sorted(slopes)


@given(points, points)
def test_one_after_another_is_the_hull_of_all_pairs(first, second):
    chain = Frontier(first).then(Frontier(second))
    every = Frontier(
        Point(a.time_s + b.time_s, a.energy_j + b.energy_j, (a.setting, b.setting)) for a in first for b in second
    ).hull()
    for price in (0.01, 1.0, 37.0, 1e4):
        cheapest = min(p.energy_j + price * p.time_s for p in chain)
        assert math.isclose(cheapest, min(p.energy_j + price * p.time_s for p in every), rel_tol=1e-9)


def test_points_of_a_chain_carry_both_settings_and_errors_in_squares():
    chain = Frontier([Point(1, 10, "a", 0.3, 3)]).then(Frontier([Point(2, 20, "b", 0.4, 4)]))
    assert chain[0] == Point(3, 30, ("a", "b"), 0.5, 5)


def test_scaling_scales_errors_too_and_refuses_nonsense():
    assert Frontier([Point(1, 10, "a", 0.1, 1)]).scaled(time=2, energy=3)[0] == Point(2, 30, "a", 0.2, 3)
    with pytest.raises(ValueError, match="above 0"):
        Frontier([Point(1, 10, "a")]).scaled(time=0)


def test_an_empty_frontier_and_a_point_that_is_no_number_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        Frontier([])
    with pytest.raises(ValueError, match="finite"):
        Point(math.nan, 1, "a")
