"""Fits find what was planted, and few points give sane loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from joulewise.core.errors import ModelError
from joulewise.model import catalog
from joulewise.model.fit import Point, Series, fit_chip, fit_load, fit_loads, generic_chip, predict
from joulewise.model.physics import Chip, Load, operate
from tests.tiers import examples

A40 = catalog.load("a40").chip
LIMITS = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0, 275.0, 300.0)


def measured(chip: Chip, load: Load, settings: list[dict[str, float]], noise: float = 0.0, seed: int = 0) -> Series:
    """What a sweep over `settings` would have shown, with relative noise."""
    draw = np.random.default_rng(seed)
    points = []
    for setting in settings:
        seen = operate(chip, load, **setting)
        time_s, power_w = np.array([seen.step_s, seen.average_power_w]) * np.exp(noise * draw.normal(size=2))
        points.append(Point(float(time_s), float(power_w), **setting))
    return Series(f"work {seed}", tuple(points))


def planted(count: int, seed: int = 3) -> list[Load]:
    draw = np.random.default_rng(seed)
    return [
        Load(
            gpu_s=float(draw.uniform(0.05, 2.0)),
            sm_share=float(draw.uniform(0.3, 1.0)),
            dynamic_w=float(draw.uniform(100.0, 350.0)),
            host_s=float(draw.uniform(0.0, 0.3)),
        )
        for _ in range(count)
    ]


def test_planted_voltage_and_static_power_are_found_from_clocks_and_limits() -> None:
    grid = [{"lock_mhz": f * 1740.0, "limit_w": w} for f in (0.3, 0.45, 0.6, 0.75, 0.9, 1.0) for w in (150.0, 300.0)]
    series = [measured(A40, load, grid, 0.002, seed) for seed, load in enumerate(planted(8))]
    start = replace(A40, volt_knee=0.75, volt_floor=0.6, static_w=55.0, limiter_gain=0.98)
    fit = fit_chip(series, start=start, hold=("idle_w", "sm_floor", "overlap", "memory_share", "sharpness"), starts=4)
    assert fit.time_mape < 0.5
    assert fit.power_mape < 0.5
    assert fit.chip.volt_knee == pytest.approx(A40.volt_knee, abs=0.04)
    assert fit.chip.volt_floor == pytest.approx(A40.volt_floor, abs=0.04)
    assert fit.chip.limiter_gain == pytest.approx(A40.limiter_gain, abs=0.01)
    assert fit.chip.static_w == pytest.approx(A40.static_w, rel=0.15)


def test_limits_alone_are_enough_to_predict_unseen_limits_of_unseen_work() -> None:
    every = [{"limit_w": w} for w in LIMITS]
    loads = planted(12)
    known = [measured(A40, load, every, 0.005, seed) for seed, load in enumerate(loads[:9])]
    fit = fit_chip(known, start=generic_chip(known), starts=6)
    for seed, load in enumerate(loads[9:], start=9):
        series = measured(A40, load, every, 0.005, seed)
        found = fit_load(fit.chip, [series.points[i] for i in (0, 4, 8)], prior=fit.loads)
        times, powers = predict(fit.chip, found.load, series.points)
        assert np.mean(np.abs(times / [p.time_s for p in series.points] - 1.0)) < 0.04
        assert np.mean(np.abs(powers / [p.power_w for p in series.points] - 1.0)) < 0.04


def test_memory_power_and_dram_share_are_found_where_the_memory_clock_moves() -> None:
    chip = replace(A40, memory_w=25.0)
    grid = [{"lock_mhz": x * 1740.0, "memory_mhz": y * 7251.0} for x in (0.6, 0.8, 1.0) for y in (0.6, 0.8, 1.0)]
    loads = [replace(load, dram_share=0.8 * (1.0 - load.sm_share)) for load in planted(4)]
    series = [measured(chip, load, grid, 0.001, seed) for seed, load in enumerate(loads)]
    hold = ("idle_w", "static_w", "overlap", "sharpness", "memory_share", "volt_knee", "volt_floor")
    fit = fit_chip(series, start=replace(chip, memory_w=10.0), hold=hold, starts=3)
    assert fit.chip.memory_w == pytest.approx(25.0, abs=6.0)
    for found, load in zip(fit.loads, loads, strict=True):
        assert found.dram_share == pytest.approx(load.dram_share, abs=0.1)


def test_only_what_the_points_can_tell_is_free() -> None:
    limits = [measured(A40, load, [{"limit_w": w} for w in LIMITS]) for load in planted(2)]
    clocks = [measured(A40, load, [{"lock_mhz": f} for f in (600.0, 1000.0, 1400.0)]) for load in planted(2)]
    by_limit = fit_chip(limits, start=A40, starts=1)
    by_clock = fit_chip(clocks, start=A40, starts=1)
    assert {"limiter_gain", "sm_floor"} <= set(by_limit.free)
    assert not {"limiter_gain", "sm_floor"} & set(by_clock.free)
    assert "sharpness" in by_clock.free
    assert "sharpness" not in by_limit.free
    assert "memory_w" not in by_limit.free + by_clock.free
    assert by_clock.chip.sm_floor == A40.sm_floor


def test_the_limiter_shows_directly_where_clocks_are_observed() -> None:
    points = []
    for limit_w in (150.0, 175.0, 200.0, 225.0, 250.0, 300.0):
        seen = operate(replace(A40, limiter_gain=0.97), Load(1.0, 0.9, 280.0), limit_w=limit_w)
        points.append(Point(seen.step_s, seen.average_power_w, limit_w=limit_w, sm_mhz=seen.sm_mhz))
    fit = fit_chip([Series("gemm", tuple(points))], start=A40, hold=("idle_w", "overlap"), starts=2)
    assert fit.chip.limiter_gain == pytest.approx(0.97, abs=0.005)


@pytest.mark.sampled
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.floats(0.05, 1.0),
    st.floats(50.0, 400.0),
    st.floats(0.0, 2.0),
    st.lists(st.sampled_from(LIMITS), min_size=2, max_size=4, unique=True),
    st.integers(0, 1000),
)
def test_two_to_four_points_give_a_load_that_tells_them(
    sm_share: float, dynamic_w: float, host_part: float, limits: list[float], seed: int
) -> None:
    load = Load(0.2, sm_share, dynamic_w, 0.2 * host_part)
    series = measured(A40, load, [{"limit_w": w} for w in limits], 0.01, seed)
    found = fit_load(A40, series.points)
    assert 0.0 <= found.load.sm_share <= 1.0
    assert found.load.gpu_s > 0.0
    assert found.load.dynamic_w > 0.0
    assert all(np.isfinite(error) and error >= 0.0 for error in found.errors.values())
    times, powers = predict(A40, found.load, series.points)
    assert np.max(np.abs(np.log(times / [p.time_s for p in series.points]))) < 0.06
    assert np.max(np.abs(np.log(powers / [p.power_w for p in series.points]))) < 0.06


def test_more_points_leave_less_open() -> None:
    load = Load(0.2, 0.8, 250.0, 0.1)
    few = measured(A40, load, [{"lock_mhz": f} for f in (1500.0, 1740.0)], 0.005)
    many = measured(A40, load, [{"lock_mhz": f} for f in range(300, 1741, 120)], 0.005)
    assert fit_load(A40, many.points).errors["sm_share"] < 0.5 * fit_load(A40, few.points).errors["sm_share"]


def test_many_series_at_once_are_each_fitted_alone() -> None:
    series = [measured(A40, load, [{"limit_w": w} for w in LIMITS[::2]], 0.01, i) for i, load in enumerate(planted(5))]
    together = fit_loads(A40, series)
    alone = [fit_load(A40, one.points) for one in series]
    for a, b in zip(together, alone, strict=True):
        times_a, _ = predict(A40, a.load, series[0].points)
        times_b, _ = predict(A40, b.load, series[0].points)
        assert times_a == pytest.approx(times_b, rel=0.01)


def test_an_outlier_does_not_rule() -> None:
    load = Load(0.2, 0.8, 250.0, 0.1)
    series = measured(A40, load, [{"limit_w": w} for w in LIMITS], 0.002)
    spoilt = [replace(p, time_s=2.0 * p.time_s) if i == 4 else p for i, p in enumerate(series.points)]
    times, _ = predict(A40, fit_load(A40, spoilt).load, series.points)
    good = [i for i in range(len(LIMITS)) if i != 4]
    assert np.max(np.abs(np.log(times / [p.time_s for p in series.points]))[good]) < 0.03


def test_nothing_to_fit_is_refused_in_words() -> None:
    with pytest.raises(ModelError, match="without points"):
        fit_load(A40, [])
    with pytest.raises(ModelError, match="must be above 0"):
        fit_load(A40, [Point(1.0, 0.0, limit_w=200.0)])
    with pytest.raises(ModelError, match="3 points cannot fix a chip"):
        fit_chip([measured(A40, planted(1)[0], [{"limit_w": w} for w in LIMITS[:3]])], start=A40)
