"""What came of a step in the cap, from two series."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.response import response, smoothed
from joulewise.core.errors import BadSpec


def test_power_that_follows_at_once_complies_at_once() -> None:
    power = [(0.0, 990.0), (100.0, 790.0), (200.0, 795.0)]
    came = response(power, lambda _: 800.0, 100.0, 300.0)
    assert (came.complied_s, came.overshoot_j, came.after_j, came.held) == (0.0, 0.0, 0.0, True)
    assert (came.before_w, came.after_w) == (990.0, 792.5)


def test_seconds_and_joules_until_power_is_below_the_cap_are_counted() -> None:
    power = [(0.0, 1000.0), (100.5, 900.0), (102.0, 780.0)]
    came = response(power, lambda time_s: 1000.0 if time_s < 100.0 else 800.0, 100.0, 200.0)
    assert came.complied_s == 2.0
    assert came.overshoot_j == pytest.approx(0.5 * 200.0 + 1.5 * 100.0)
    assert came.held


def test_a_dip_shorter_than_it_takes_to_settle_is_not_compliance() -> None:
    power = [(0.0, 1000.0), (101.0, 700.0), (102.0, 1000.0), (105.0, 700.0)]
    assert response(power, lambda _: 800.0, 100.0, 200.0, settle_s=5.0).complied_s == 5.0
    early = response(power, lambda _: 800.0, 100.0, 200.0)
    assert early.complied_s == 1.0
    assert not early.held
    assert (early.after_j, early.above_w) == (pytest.approx(600.0), 200.0)


def test_power_that_never_comes_down_never_complies() -> None:
    came = response([(0.0, 1000.0), (50.0, 1000.0)], lambda _: 800.0, 100.0, 200.0)
    assert (came.complied_s, came.held) == (None, False)
    assert came.overshoot_j == pytest.approx(20_000.0)


def test_without_a_cap_nothing_is_passed_and_a_tolerance_lets_a_hair_through() -> None:
    power = [(0.0, 1000.0), (50.0, 1000.0)]
    assert response(power, lambda _: None, 100.0, 200.0).held
    assert response(power, lambda _: 995.0, 100.0, 200.0, tolerance=0.01).held


def test_a_series_that_does_not_reach_over_the_step_is_refused() -> None:
    for power in ([], [(0.0, 1.0)], [(150.0, 1.0), (160.0, 1.0)]):
        with pytest.raises(BadSpec, match="cannot tell of a step at 100 s"):
            response(power, lambda _: 1.0, 100.0, 200.0)
    with pytest.raises(BadSpec):
        smoothed([(0.0, 1.0)], 0.0)


def test_a_mean_over_a_while_is_what_a_slower_meter_sees() -> None:
    assert smoothed([(0.0, 100.0), (1.0, 300.0), (2.0, 300.0), (4.0, 0.0)], 2.0) == [
        (0.0, 100.0),
        (1.0, 100.0),
        (2.0, 200.0),
        (4.0, 300.0),
    ]


SERIES = st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.0, 2000.0)), min_size=2, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SERIES, st.floats(0.0, 2000.0), st.floats(0.0, 5.0))
def test_overshoot_before_and_after_compliance_is_all_that_was_above_the_cap(
    gaps: list[tuple[float, float]], cap_w: float, settle_s: float
) -> None:
    time_s, power = 0.0, []
    for gap_s, watts in gaps:
        power.append((time_s, watts))
        time_s += gap_s
    came = response(power, lambda _: cap_w, 0.0, time_s, settle_s=settle_s)
    above_j = sum(gap_s * max(0.0, watts - cap_w) for gap_s, watts in gaps)
    assert came.overshoot_j + came.after_j == pytest.approx(above_j, abs=1e-6)
    assert came.complied_s is None or 0 <= came.complied_s <= time_s


@settings(max_examples=60, deadline=None)
@given(SERIES, st.floats(0.01, 100.0))
def test_a_mean_stays_between_the_least_and_the_most(gaps: list[tuple[float, float]], mean_s: float) -> None:
    time_s, power = 0.0, []
    for gap_s, watts in gaps:
        power.append((time_s, watts))
        time_s += gap_s
    low, high = min(watts for _, watts in power), max(watts for _, watts in power)
    assert all(low - 1e-6 <= watts <= high + 1e-6 for _, watts in smoothed(power, mean_s))
