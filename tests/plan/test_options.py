"""Curves of measured options: hulls of noisy, repeated and non-convex points, and their whole-number form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.options import Curve, Units, WholeHull

UNITS = Units(1e9, 1e6)
points = st.lists(
    st.tuples(st.integers(0, 60), st.integers(-50, 500)).map(lambda p: Point(p[0] / 1000, p[1] / 10, p)),
    min_size=1,
    max_size=12,
)


def curve_of(*pairs: tuple[float, float], blocking_w: float = 0.0) -> Curve[int]:
    return Curve([Point(t, e, i) for i, (t, e) in enumerate(pairs)], blocking_w=blocking_w)


def test_what_an_operation_costs_beyond_waiting_decides_the_hull() -> None:
    pairs = ((1.0, 10.0), (2.0, 9.0), (4.0, 10.0))
    assert [Point.time_s for Point in (curve_of(*pairs).options[i] for i in curve_of(*pairs).hull)] == [2.0, 1.0]
    waiting = curve_of(*pairs, blocking_w=1.0)
    assert waiting.effective_j.tolist() == [9.0, 7.0, 6.0]
    assert waiting.time_s[waiting.hull].tolist() == [4.0, 2.0, 1.0]


def test_a_noisy_point_above_the_line_is_no_corner_but_stays_an_option() -> None:
    curve = curve_of((1.0, 10.0), (2.0, 9.9), (3.0, 4.0), (3.5, 5.0), (4.0, 3.9))
    assert curve.time_s[curve.hull].tolist() == [4.0, 3.0, 1.0]
    assert len(curve.options) == 5
    assert curve.cheapest.tolist() == [0, 1, 2, 2, 4]


@settings(max_examples=200, deadline=None)
@given(points, st.sampled_from((0.0, 70.0)))
def test_a_hull_is_below_every_option_and_touches_the_fastest_and_the_cheapest(
    options: list[Point[tuple[int, int]]], blocking_w: float
) -> None:
    curve = Curve(options, blocking_w=blocking_w)
    for time_s, effective_j in zip(curve.time_s, curve.effective_j, strict=True):
        assert curve.cost_j(float(time_s)) <= effective_j + 1e-9
    assert curve.fastest_s == min(point.time_s for point in options)
    assert curve.cost_j(curve.slowest_s) == min(curve.effective_j)
    slopes = np.diff(curve.effective_j[curve.hull]) / -np.diff(curve.time_s[curve.hull])
    assert (slopes > 0).all()
    assert (np.diff(slopes) > 0).all()
    if len(curve.hull) > 1:
        assert curve.steepest_w == pytest.approx(slopes[-1])


@settings(max_examples=200, deadline=None)
@given(points, st.sampled_from((0.0, 3.0, 100.0)))
def test_whole_hulls_fall_and_rise_strictly_and_cost_what_the_curve_costs(
    options: list[Point[tuple[int, int]]], grid_w: float
) -> None:
    curve = Curve(options, blocking_w=0.0)
    whole = curve.whole(UNITS, grid_w=grid_w)
    assert (np.diff(whole.duration) < 0).all()
    assert (np.diff(whole.slope, prepend=0) > 0).all()
    assert len(whole.duration) == len(whole.energy) == len(whole.slope) + 1
    assert whole.duration[-1] == UNITS.up(curve.fastest_s)
    np.testing.assert_array_equal(np.diff(whole.energy), whole.slope * -np.diff(whole.duration))
    if not grid_w:
        for ticks, energy in zip(whole.duration, whole.energy, strict=True):
            assert energy / UNITS.per_j == pytest.approx(curve.cost_j(ticks / UNITS.per_s), abs=1e-6)


def test_options_less_than_a_unit_apart_are_one() -> None:
    curve = curve_of((1.0, 9.0), (1.0 + 2e-10, 8.0), (1.0 + 4e-10, 7.5), (2.0, 1.0))
    whole = curve.whole(UNITS)
    assert whole.duration.tolist() == [2 * 10**9, 10**9 + 1, 10**9]


def test_times_are_never_rounded_down_and_deadlines_never_up() -> None:
    assert UNITS.up(1.0000000001) == 10**9 + 1
    assert UNITS.up(0.1 + 0.2) == 300_000_000
    assert UNITS.down(0.9999999999) == 10**9 - 1
    assert UNITS.down(0.1 + 0.2) == 300_000_000


def test_numbers_beyond_the_units_overflow_as_an_error() -> None:
    with pytest.raises(OverflowError):
        curve_of((1.0, 1e12), (2.0, 0.0)).whole(UNITS)
    with pytest.raises(OverflowError):
        WholeHull.of(np.array([10]), np.array([]), 1e19)


@pytest.mark.parametrize("bad", [-1.0, -1e-9])
def test_a_time_below_zero_is_refused(bad: float) -> None:
    with pytest.raises(BadSpec, match="forward of stage 3 has an option of"):
        Curve([Point(bad, 1.0, "x")], blocking_w=0.0, name="forward of stage 3")
