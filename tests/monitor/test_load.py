"""What readings tell about the load between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.monitor.load import Load, Part, averaging, describe

SPANS = st.tuples(st.floats(0.0, 2.0), st.floats(0.01, 1.0)).map(lambda span: (span[0], span[0] + span[1]))


def described(power_w: list[float], *, busy: float = 1.0, window_s: float = 0.1, update_s: float = 0.1) -> Load:
    end_s = np.arange(len(power_w)) * 0.1
    return describe(
        end_s,
        np.array(power_w),
        np.full(len(power_w), busy),
        window_s=window_s,
        update_s=update_s,
        idle_power_w=75.0,
        limit_w=700.0,
    )


@given(one=SPANS, other=SPANS, memory_s=st.floats(0.05, 10.0))
@settings(max_examples=40, deadline=None)
def test_covariance_of_two_stretches_is_the_double_integral(
    one: tuple[float, float], other: tuple[float, float], memory_s: float
) -> None:
    part = Part(9.0, memory_s)
    u, du = np.linspace(*one, 401, retstep=True)
    v, dv = np.linspace(*other, 401, retstep=True)
    mid_u, mid_v = u[:-1] + du / 2, v[:-1] + dv / 2
    brute = 9.0 * np.exp(-np.abs(mid_u[:, None] - mid_v[None, :]) / memory_s).sum() * du * dv
    exact = part.covariance(np.array([one[0]]), np.array([one[1]]), np.array([other[0]]), np.array([other[1]]))[0, 0]
    assert exact == pytest.approx(brute, rel=2e-3, abs=1e-6)


@given(memory_s=st.floats(0.005, 5.0), window=st.floats(0.05, 1.0))
@settings(max_examples=40, deadline=None)
def test_a_miss_is_what_the_whole_update_differs_from_its_window(memory_s: float, window: float) -> None:
    part, update_s = Part(4.0, memory_s), 0.1
    window_s = window * update_s
    spans = np.array([0.0, update_s - window_s]), np.array([update_s, update_s])
    energies = part.covariance(*spans, *spans)
    weights = np.array([1.0 / update_s, -1.0 / window_s])
    assert part.miss(update_s, window_s) == pytest.approx(float(weights @ energies @ weights), abs=1e-9)


def test_averaging_removes_nothing_in_an_instant_and_all_in_the_long_run() -> None:
    assert averaging(1e-9) == pytest.approx(1.0)
    assert averaging(1e6) == pytest.approx(0.0, abs=1e-5)
    assert averaging(1e-4 * 1.01) == pytest.approx(averaging(1e-4 * 0.99), rel=1e-6)


def test_steady_readings_of_a_half_idle_gpu_hide_what_its_utilisation_betrays() -> None:
    busy, half = described([300.0] * 50), described([300.0] * 50, busy=0.5)
    assert math.sqrt(half.variance) == pytest.approx(225.0, rel=0.15)  # 75 W idle, 525 W busy
    assert half.variance > 5.0 * busy.variance


def test_a_part_time_sensor_that_reads_idle_power_on_a_busy_gpu_is_not_trusted() -> None:
    load = described([75.0] * 50, busy=0.7, window_s=0.025)
    assert math.sqrt(load.locked) > 100.0


def test_scatter_rules_out_that_the_load_is_in_step() -> None:
    draw = np.random.default_rng(1)
    assert described([400.0] * 60, window_s=0.025).locked > 0.0
    assert described(list(400.0 + 60.0 * draw.standard_normal(60)), window_s=0.025).locked == 0.0


def test_a_pattern_that_repeats_for_ever_is_in_step_with_the_sensor() -> None:
    load = described([690.0, 270.0] * 40, window_s=0.025)
    assert math.sqrt(load.locked) == pytest.approx(105.0, rel=0.05)  # half of a spread of 210 W


def test_slow_wandering_is_told_from_noise() -> None:
    draw = np.random.default_rng(2)
    noise = draw.standard_normal(400)
    wander = np.zeros(400)
    for i in range(1, 400):
        wander[i] = 0.95 * wander[i - 1] + math.sqrt(1.0 - 0.95**2) * noise[i]
    slow, rough = described(list(400.0 + 50.0 * wander)), described(list(400.0 + 50.0 * noise))
    assert slow.slow.memory_s > 10.0 * rough.slow.memory_s
    assert slow.mean_variance > 3.0 * rough.mean_variance


def test_one_reading_is_enough_to_be_unsure() -> None:
    load = described([400.0])
    assert load.mean_w == 400.0
    assert math.sqrt(load.variance) > 40.0


def test_the_mean_of_many_readings_scatters_less_than_one() -> None:
    draw = np.random.default_rng(3)
    load = described(list(400.0 + 60.0 * draw.standard_normal(200)))
    assert load.mean_scatter(0.1) == pytest.approx(3600.0, rel=0.3)
    assert load.mean_scatter(10.0) < 0.2 * load.mean_scatter(0.1)


def test_overlapping_averages_are_thinned_out() -> None:
    slow = described([400.0, 410.0, 405.0, 395.0] * 20, window_s=1.0)
    assert slow.spacing_s == pytest.approx(1.0)
    assert slow.readings == 8
