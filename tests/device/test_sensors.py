from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.measurement import SensorTiming
from joulewise.device.power_trace import PowerTrace
from joulewise.device.sensors import Sensors

EXACT = SensorTiming(
    power_update_s=0.1,
    power_window_s=0.1,
    average_window_s=1.0,
    counter_update_s=0.1,
    utilization_update_s=0.2,
)
PART_TIME = SensorTiming(power_update_s=0.1, power_window_s=0.025, counter_update_s=0.1, counter_window_s=0.025)


def square_wave(duration_s: float, *, period_s: float, high_w: float = 500.0, low_w: float = 100.0) -> PowerTrace:
    """Half of each period high and busy, then half of it low and idle."""
    trace = PowerTrace(keep_s=math.inf)
    number = 0
    while trace.end_s < duration_s:
        number += 1
        busy = number % 2
        trace.append(number * period_s / 2, high_w if busy else low_w, float(busy))
    return trace


def test_power_is_held_between_updates_and_is_the_mean_before_them() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(0.15, 100.0)
    trace.append(0.4, 300.0)
    assert sensors.power_w(0.199) == pytest.approx(100.0)
    assert sensors.power_w(0.2) == pytest.approx(200.0)
    assert sensors.power_w(0.299) == pytest.approx(200.0)
    assert sensors.power_w(0.3) == pytest.approx(300.0)


def test_before_its_first_update_a_sensor_has_no_reading_not_zero() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(1.0, 100.0)
    assert sensors.power_w(0.0) is None
    assert sensors.utilization(0.1) is None
    assert sensors.counter_j(0.05) == 0.0


def test_the_counter_shows_the_energy_up_to_its_last_update() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.03)
    trace.append(10.0, 250.0)
    assert sensors.counter_j(5.0) == pytest.approx(250.0 * 4.93, abs=0.001)
    assert sensors.counter_j(5.0299) == sensors.counter_j(5.0)
    assert sensors.counter_j(5.03) == pytest.approx(250.0 * 5.03, abs=0.001)


def test_the_slow_average_lags_behind() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(2.0, 100.0)
    trace.append(2.5, 500.0)
    assert sensors.power_w(2.5) == pytest.approx(500.0)
    assert sensors.average_power_w(2.5) == pytest.approx(300.0)
    no_average = Sensors(SensorTiming(average_window_s=None), trace, phase_s=0.0)
    assert no_average.average_power_w(2.5) is None


def test_utilization_is_the_busy_share_between_updates() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(0.25, 100.0, 0.0)
    trace.append(1.0, 400.0, 1.0)
    assert sensors.utilization(0.41) == pytest.approx(0.75)
    assert sensors.utilization(0.59) == pytest.approx(0.75)
    assert sensors.utilization(0.6) == pytest.approx(1.0)


def test_time_at_the_memory_is_a_share_between_the_same_updates_not_a_moments() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(0.25, 100.0, 1.0, 0.0)
    trace.append(1.0, 100.0, 1.0, 0.8)
    assert sensors.memory_utilization(0.41) == pytest.approx(0.6)
    assert sensors.memory_utilization(0.59) == pytest.approx(0.6)
    assert sensors.memory_utilization(0.6) == pytest.approx(0.8)
    trace.rewind(0.7)
    trace.append(1.0, 100.0, 1.0, 0.0)
    assert sensors.memory_utilization(0.81) == pytest.approx(0.4)


def test_readings_come_in_the_steps_of_nvml() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, phase_s=0.0)
    trace.append(1.0, 123.456789)
    assert sensors.power_w(1.0) == 123.46
    assert sensors.counter_j(1.0) == 123.456


def test_the_gain_is_on_power_and_energy_alike() -> None:
    trace = PowerTrace()
    sensors = Sensors(EXACT, trace, gain=1.05, phase_s=0.0)
    trace.append(10.0, 200.0)
    assert sensors.power_w(10.0) == pytest.approx(210.0)
    assert sensors.counter_j(10.0) == pytest.approx(2100.0, abs=0.01)


def test_a_part_time_sensor_is_wrong_on_a_wave_that_keeps_pace_with_it() -> None:
    # Period 100 ms = the sensor's own: it always looks at the same quarter of the wave.
    trace = square_wave(30.0, period_s=0.1)
    in_high = Sensors(PART_TIME, trace, phase_s=0.04)
    in_low = Sensors(PART_TIME, trace, phase_s=0.09)
    assert in_high.power_w(30.0) == pytest.approx(500.0)
    assert in_low.power_w(30.0) == pytest.approx(100.0)
    truth_j = trace.energy_j(trace.end_s)
    assert (in_high.counter_j(30.0) or 0.0) / truth_j == pytest.approx(500 / 300, rel=0.01)
    assert (in_low.counter_j(30.0) or 0.0) / truth_j == pytest.approx(100 / 300, rel=0.01)


def test_a_part_time_sensor_is_right_on_average_on_a_wave_that_drifts_past_it() -> None:
    trace = square_wave(60.0, period_s=0.0731)
    sensors = Sensors(PART_TIME, trace, seed=5)
    shown_w = [sensors.power_w(second * 0.1) or 0.0 for second in range(10, 590)]
    assert statistics.fmean(shown_w) == pytest.approx(300.0, rel=0.02)
    assert statistics.pstdev(shown_w) > 100.0
    assert sensors.counter_j(60.0) == pytest.approx(trace.energy_j(60.0), rel=0.02)


@given(
    st.lists(st.tuples(st.floats(0.001, 0.7), st.floats(0.0, 900.0)), min_size=1, max_size=60),
    st.sampled_from([EXACT, PART_TIME]),
    st.integers(0, 1000),
)
def test_a_counter_never_falls_and_shows_no_more_than_one_update_of_error(
    segments: list[tuple[float, float]], timing: SensorTiming, seed: int
) -> None:
    trace = PowerTrace()
    sensors = Sensors(timing, trace, seed=seed)
    before_j = 0.0
    most_w = max(power_w for _, power_w in segments)
    for duration_s, power_w in segments:
        trace.append(trace.end_s + duration_s, power_w)
        counter_j = sensors.counter_j(trace.end_s)
        assert counter_j is not None
        assert counter_j >= before_j
        before_j = counter_j
        if timing is EXACT:
            behind_j = trace.energy_j(trace.end_s) - counter_j
            assert -1e-6 <= behind_j <= 0.1 * most_w + 0.001 + 1e-6


@given(st.integers(0, 10_000), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30))
def test_what_a_counter_shows_does_not_depend_on_how_often_one_looks(seed: int, looks_s: list[float]) -> None:
    trace = square_wave(5.0, period_s=0.061)
    for timing in (EXACT, PART_TIME):
        often, once = Sensors(timing, trace, seed=seed), Sensors(timing, trace, seed=seed)
        for look_s in sorted(looks_s):
            often.counter_j(look_s)
        assert often.counter_j(5.0) == pytest.approx(once.counter_j(5.0), abs=0.002)


def test_a_part_time_counter_outlives_what_the_trace_forgets() -> None:
    trace = PowerTrace(keep_s=1.0)
    sensors = Sensors(PART_TIME, trace, seed=1)
    for number in range(20_000):
        trace.append((number + 1) * 0.013, 100.0 + 50.0 * (number % 7), 1.0)
    assert trace.start_s > 200.0
    assert sensors.counter_j(trace.end_s) == pytest.approx(trace.energy_j(trace.end_s), rel=0.02)


def test_a_reset_counter_begins_at_zero() -> None:
    for timing in (EXACT, PART_TIME):
        trace = PowerTrace()
        sensors = Sensors(timing, trace, phase_s=0.0)
        trace.append(10.0, 200.0)
        assert sensors.counter_j(10.0) == pytest.approx(2000.0, rel=0.01)
        sensors.reset_counter(10.0)
        assert sensors.counter_j(10.0) == 0.0
        trace.append(11.0, 300.0)
        assert sensors.counter_j(11.0) == pytest.approx(300.0, abs=0.01)


@pytest.mark.parametrize("timing", [EXACT, PART_TIME])
def test_energy_that_is_taken_back_is_counted_as_it_was_lived_again_but_never_uncounted(timing: SensorTiming) -> None:
    trace = PowerTrace()
    sensors = Sensors(timing, trace, phase_s=0.0)
    trace.append(10.0, 100.0)
    assert sensors.counter_j(10.0) == pytest.approx(1000.0, abs=0.01)
    trace.rewind(9.0)
    trace.append(10.0, 400.0)
    trace.append(10.1, 400.0)
    assert sensors.counter_j(10.1) == pytest.approx(900.0 + 400.0 * 1.1, abs=0.01)
    shown_j = sensors.counter_j(10.1)
    trace.rewind(9.0)
    trace.append(10.2, 50.0)
    assert sensors.counter_j(10.2) == shown_j


def test_cards_update_at_moments_of_their_own() -> None:
    trace = square_wave(20.0, period_s=0.9)
    updates_s = {round(Sensors(EXACT, trace, seed=seed).next_update_s(10.0), 6) for seed in range(20)}
    assert len(updates_s) == 20
    assert all(10.0 < update_s <= 10.1 for update_s in updates_s)


def test_a_card_without_a_counter_shows_none() -> None:
    trace = PowerTrace()
    sensors = Sensors(SensorTiming(counter_update_s=None), trace)
    trace.append(1.0, 100.0)
    assert sensors.counter_j(1.0) is None
