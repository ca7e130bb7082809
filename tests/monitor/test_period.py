"""A period is found where there is one, with an honest error, kept across clocks, and not invented."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import period_traces
from bench.period_traces import AVERAGE, SENSORS, Sensor, Trace
from joulewise.monitor.period import Found, Period, Signal, find, resolution

SHARP, WHOLE, SLOW = SENSORS


def power(trace: Trace, quantity: str = "") -> Signal:
    return Signal("power", trace.time_s, trace.power_w, trace.sensor.update_s, trace.sensor.window_s, quantity=quantity)


def job(period_s: float, sensor: Sensor = WHOLE, *, seed: int = 11, number: int = 0, stretch: float = 1.0) -> Trace:
    return period_traces.record(period_traces.training(seed, number, period_s).at(stretch), sensor, seed)


def pulses(period_s: float, duration_s: float, *, seed: int = 0, poll_s: float = 0.1) -> Signal:
    """Two levels that take turns exactly, seen at the moment of each poll."""
    draw = np.random.default_rng(seed)
    times_s = np.arange(0.0, duration_s, poll_s) + 0.002 * draw.standard_normal(round(duration_s / poll_s))
    values = np.where((times_s / period_s) % 1.0 < 0.4, 300.0, 500.0) + draw.standard_normal(len(times_s))
    return Signal("power", times_s, values, poll_s, poll_s)


def known(found: Found) -> Period:
    assert found.period is not None, found.says
    return found.period


@pytest.mark.parametrize("sensor", [SHARP, WHOLE])
@pytest.mark.parametrize("period_s", [0.2371, 0.45, 0.83, 1.3, 2.7, 9.0])
def test_a_step_is_told_within_one_percent_by_a_sensor_that_reaches_it(period_s: float, sensor: Sensor) -> None:
    trace = job(period_s, sensor)
    found = find([power(trace)])
    assert found.kind == "stable"
    assert known(found).period_s == pytest.approx(trace.period_s, rel=0.01)
    assert known(found).strength > 0.5


def test_a_slow_average_tells_steps_of_twice_its_window_and_longer() -> None:
    trace = job(2.7, SLOW)
    assert known(find([power(trace)])).period_s == pytest.approx(trace.period_s, rel=0.01)


@settings(max_examples=25, deadline=None)
@given(period_s=st.floats(0.6, 4.0), seed=st.integers(0, 1000))
def test_the_stated_error_covers_the_truth(period_s: float, seed: int) -> None:
    trace = job(period_s, seed=seed)
    assert trace.period_s is not None
    period = known(find([power(trace)]))
    steps = round(period.period_s / trace.period_s) or 0.5  # a step of like halves may pass for two
    assert abs(period.period_s / steps - trace.period_s) <= 4.0 * period.error_s / steps


@pytest.mark.parametrize("stretch", [1.02, 1.15, 1.4])
def test_near_keeps_the_same_number_of_steps_at_another_clock(stretch: float) -> None:
    before, after = job(0.62), job(0.62, stretch=stretch)
    assert before.period_s is not None
    double = Period(2.0 * before.period_s, 0.001, 0.9, multiple=2)
    single = known(find([power(before)]))
    assert known(find([power(after)], near=single)).period_s == pytest.approx(after.period_s, rel=0.01)
    twice = known(find([power(after)], near=double))
    assert after.period_s is not None
    assert twice.period_s == pytest.approx(2.0 * after.period_s, rel=0.01)
    assert twice.multiple == 2


def test_what_lies_outside_the_ratio_is_not_taken_for_the_period_that_was() -> None:
    trace = job(1.3)
    found = find([power(trace)], near=Period(0.7, 0.001, 0.9), ratio=(0.95, 1.3))
    assert found.period is None


@pytest.mark.parametrize("kind", period_traces.APERIODIC)
def test_a_load_without_a_period_is_never_called_stable(kind: str) -> None:
    for number in range(6):
        found = find([power(period_traces.aperiodic(kind, 5, number, SENSORS[number % 3]))])
        assert found.kind != "stable", found.says
        assert found.period is None


def test_a_load_that_changes_without_repeating_is_aperiodic_and_an_even_one_unknown() -> None:
    kinds = {
        kind: [find([power(period_traces.aperiodic(kind, 3, number, WHOLE))]).kind for number in range(6)]
        for kind in ("wander", "flat")
    }
    assert kinds["wander"].count("aperiodic") >= 4
    assert set(kinds["flat"]) == {"unknown"}


def test_a_swing_too_fast_for_the_sensor_is_exposed_by_the_slow_average() -> None:
    exposed = 0
    for number in range(6):
        trace = job(0.137, SHARP, number=number)
        alone = find([power(trace, "power_w")])
        average = Signal("average", trace.time_s, trace.average_w, AVERAGE.update_s, AVERAGE.window_s, "power_w")
        both = find([power(trace, "power_w"), average])
        if alone.period is not None:
            assert alone.period.alias_s is not None  # one signal cannot know, and says so
        assert both.period is None or both.period.alias_s is not None
        exposed += both.period is None
    assert exposed >= 4


def test_the_slow_average_rules_an_alias_out_where_the_period_is_real() -> None:
    trace = job(1.37, SHARP)
    average = Signal("average", trace.time_s, trace.average_w, AVERAGE.update_s, AVERAGE.window_s, "power_w")
    period = known(find([power(trace, "power_w"), average]))
    assert period.period_s == pytest.approx(trace.period_s, rel=0.01)
    assert period.alias_s is None


def test_below_the_reach_of_every_signal_nothing_is_stated_but_multiples() -> None:
    trace = job(0.7, SLOW)
    assert trace.period_s is not None
    found = find([power(trace)])
    if found.period is not None:
        steps = found.period.period_s / trace.period_s
        assert found.period.period_s >= SLOW.reach_s * 0.99
        assert steps == pytest.approx(round(steps), rel=0.01)


def test_a_signal_that_says_nothing_does_not_hide_one_that_does() -> None:
    trace = job(0.83)
    noise = np.random.default_rng(4).standard_normal(len(trace.time_s))
    dull = Signal("utilization", trace.time_s, noise, 0.2, 0.2)
    still = Signal("memory", trace.time_s, np.full(len(noise), 0.5), 0.1, 0.1)
    missing = Signal("tensor", trace.time_s, np.full(len(noise), np.nan), 0.1, 0.1)
    found = find([dull, power(trace), still, missing])
    assert known(found).period_s == pytest.approx(trace.period_s, rel=0.01)


def test_a_stall_in_the_middle_does_not_hide_the_steps() -> None:
    trace = job(0.83)
    values = np.where((trace.time_s > 9.0) & (trace.time_s < 10.5), 90.0, trace.power_w)
    found = find([Signal("power", trace.time_s, values, 0.1, 0.1)])
    assert known(found).period_s == pytest.approx(trace.period_s, rel=0.01)


def test_missing_readings_are_left_out_and_too_many_are_refused() -> None:
    trace = job(0.83)
    draw = np.random.default_rng(1)
    some = np.where(draw.uniform(size=len(trace.power_w)) < 0.1, np.nan, trace.power_w)
    most = np.where(draw.uniform(size=len(trace.power_w)) < 0.5, np.nan, trace.power_w)
    assert known(find([Signal("power", trace.time_s, some, 0.1, 0.1)])).period_s == pytest.approx(
        trace.period_s, rel=0.01
    )
    assert find([Signal("power", trace.time_s, most, 0.1, 0.1)]).kind == "unknown"


def test_polls_faster_than_updates_see_no_more_and_no_less() -> None:
    slow = pulses(0.74, 30.0)
    times_s = np.arange(0.0, 29.8, 0.03)
    held = slow.values[np.clip(np.searchsorted(slow.times_s, times_s, side="right") - 1, 0, None)]
    assert known(find([Signal("power", times_s, held, 0.1, 0.1)])).period_s == pytest.approx(0.74, rel=0.01)


def test_the_origin_of_time_does_not_matter() -> None:
    trace = job(1.3)
    here, there = (
        known(find([Signal("power", trace.time_s + shift_s, trace.power_w, 0.1, 0.1)])) for shift_s in (0.0, 3e6)
    )
    assert here.period_s == pytest.approx(there.period_s, rel=1e-6)


def test_too_little_is_unknown_and_says_why() -> None:
    trace = job(1.3)
    assert find([]).kind == "unknown"
    short = find([Signal("power", trace.time_s[:40], trace.power_w[:40], 0.1, 0.1)])
    assert short.kind == "unknown"
    assert "64 readings" in short.says
    cut = find([Signal("power", trace.time_s[:70], trace.power_w[:70], 0.1, 0.1)], near=Period(4.0, 0.01, 0.9))
    assert "too short" in cut.says


def test_a_longer_window_has_the_finer_resolution_and_no_period_has_none() -> None:
    found = find([power(job(0.62))])
    assert math.inf > resolution(found, 5.0) > resolution(found, 20.0) > resolution(found, 80.0) > 0.0
    assert resolution(found, 1.0) == math.inf
    assert resolution(find([]), 100.0) == math.inf
    assert resolution(found, known(found).period_s * 40) == pytest.approx(known(found).error, rel=0.5)
