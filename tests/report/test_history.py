import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.measurement import Reading
from joulewise.report.history import Series, sparkline, squeezed


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300), st.integers(2, 40))
def test_memory_is_bounded_and_the_mean_of_all_readings_is_kept(powers_w, capacity):
    series = Series(capacity=capacity, width_s=0.1)
    for place, power_w in enumerate(powers_w):
        series.add(Reading(time_s=7.0 + 0.1 * place, power_w=power_w))
    assert len(series.bins) <= capacity + 1
    samples = sum(part.samples for part in series.bins)
    assert samples == len(powers_w)
    assert sum(part.power_w_sum for part in series.bins) / samples == pytest.approx(sum(powers_w) / len(powers_w))
    assert series.peak_w() == max(powers_w)
    assert series.low_w() == min(powers_w)


def test_bins_cover_the_time_they_stand_for_after_merging():
    series = Series(capacity=4, width_s=1.0)
    for second in range(16):
        series.add(Reading(time_s=100.0 + second, power_w=float(second)))
    assert series.width_s == 4.0
    assert series.power_w() == [1.5, 5.5, 9.5, 13.5]
    assert series.end_s == 116.0


def test_a_reading_without_power_is_a_gap_not_a_zero():
    series = Series(width_s=1.0)
    series.add(Reading(time_s=0.0, power_w=100.0))
    for second in range(1, 5):
        series.add(Reading(time_s=second, power_w=None, sm_mhz=1000.0))
    series.add(Reading(time_s=5.0, power_w=100.0))
    assert series.power_w()[1] is None
    assert series.low_w() == 100.0
    assert " " in sparkline(series.power_w(), width=6)


def test_one_late_reading_leaves_no_gap():
    series = Series(width_s=1.0)
    for time_s in (0.0, 2.1, 3.0):
        series.add(Reading(time_s=time_s, power_w=100.0))
    assert series.power_w() == [100.0] * 4


def test_a_sparkline_starts_at_zero_and_ends_at_its_top():
    assert sparkline([0.0, 50.0, 100.0], width=10) == "▁▅█"
    assert sparkline([50.0], width=10, top=100.0) == "▅"
    assert sparkline([], width=10) == ""
    assert sparkline([None, None], width=10) == "  "


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e4)), max_size=200), st.integers(1, 50))
def test_a_sparkline_is_never_wider_than_asked(values, width):
    assert len(sparkline(values, width=width)) == min(width, len(values))
    assert len(squeezed(values, width)) == min(width, len(values))
