"""The bench of control: its arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.control import percentile
from bench.control_day import _slope


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(values: list[int], share: float):
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert all(sum(value <= other for value in values) < share * len(values) for other in values if other < found)


@given(st.integers(-100, 100), st.integers(-100, 100))
def test_one_jump_does_not_tilt_the_slope(start: int, rise: int):
    points = [(float(t), float(start + rise * t)) for t in range(40)]
    points[20] = (20.0, 1e9)
    assert abs(_slope(points) - rise) < 1e-6
