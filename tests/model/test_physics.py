"""The law's own laws: monotone, bounded, and the same for one point and for many."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.model import catalog, physics
from joulewise.model.physics import Chip, Load

fractions = st.floats(0.0, 1.0)
clocks = st.floats(0.05, 1.0)
chips = st.builds(
    Chip,
    sm_max_mhz=st.floats(800.0, 3000.0),
    memory_max_mhz=st.floats(500.0, 9000.0),
    sm_floor=st.floats(0.05, 0.5),
    static_w=st.floats(20.0, 200.0),
    idle_w=st.floats(40.0, 200.0),
    deep_idle_w=st.floats(10.0, 40.0),
    volt_knee=st.floats(0.2, 0.9),
    volt_floor=st.floats(0.4, 1.0),
    limiter_gain=st.floats(0.95, 1.05),
    overlap=st.floats(1.0, 8.0),
    memory_share=fractions,
    memory_w=st.floats(0.0, 20.0),
    idle_sm_share=fractions,
)


@st.composite
def draw_loads(draw: st.DrawFn) -> Load:
    sm_share = draw(fractions)
    return Load(
        gpu_s=draw(st.floats(1e-3, 10.0)),
        sm_share=sm_share,
        dynamic_w=draw(st.floats(1.0, 1000.0)),
        host_s=draw(st.floats(0.0, 10.0)),
        dram_share=draw(fractions) * (1.0 - sm_share),
        sharpness=draw(st.floats(1.0, 6.0)),
        static_part=draw(st.floats(0.8, 1.2)),
    )


loads = draw_loads()
H200 = catalog.load("h200").chip
STEP = Load(gpu_s=0.1, sm_share=0.8, dynamic_w=700.0, host_s=0.03)


@given(chips, loads, clocks, clocks, clocks)
def test_a_higher_clock_is_never_slower_and_never_draws_less(
    chip: Chip, load: Load, a: float, b: float, y: float
) -> None:
    low, high = sorted((a, b))
    assert physics.step_s(chip, load, high, y) <= physics.step_s(chip, load, low, y) * (1 + 1e-12)
    assert physics.busy_power_w(chip, load, high, y) >= physics.busy_power_w(chip, load, low, y) * (1 - 1e-12)


@given(chips, loads, clocks, clocks, clocks)
def test_a_higher_memory_clock_is_never_slower(chip: Chip, load: Load, x: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert physics.busy_s(chip, load, x, high) <= physics.busy_s(chip, load, x, low) * (1 + 1e-12)


@given(chips, loads, st.floats(0.05, 1.0), st.floats(10.0, 2000.0), clocks)
def test_the_limiter_keeps_its_limit_unless_it_is_at_the_floor(
    chip: Chip, load: Load, lock_x: float, cap_w: float, y: float
) -> None:
    x = physics.limited_x(chip, load, lock_x, cap_w, y)
    assert 0.0 < x <= lock_x
    held_w = chip.limiter_gain * cap_w
    power_w = physics.busy_power_w(chip, load, x, y)
    if x > chip.sm_floor:
        assert power_w <= held_w * (1 + 1e-6)
        if x < lock_x * (1 - 1e-9):  # and it takes no more clock away than it must
            assert power_w == pytest.approx(held_w, rel=1e-5)
    elif x == chip.sm_floor < lock_x:
        above = physics.busy_power_w(chip, load, x + 1e-6, y)
        assert above >= held_w * (1 - 1e-5)


@given(chips, loads, clocks, clocks)
def test_energy_is_average_power_times_time_and_power_lies_between_idle_and_busy(
    chip: Chip, load: Load, x: float, y: float
) -> None:
    average_w = physics.average_power_w(chip, load, x, y)
    ends_w = physics.idle_power_w(chip, x, y), physics.busy_power_w(chip, load, x, y)
    assert min(ends_w) * (1 - 1e-9) <= average_w <= max(ends_w) * (1 + 1e-9)
    assert physics.energy_j(chip, load, x, y) == pytest.approx(average_w * physics.step_s(chip, load, x, y))


@given(chips, loads, clocks)
def test_a_step_lasts_at_least_the_longer_of_its_parts_and_at_most_their_sum(chip: Chip, load: Load, x: float) -> None:
    busy_s, step_s = physics.busy_s(chip, load, x), physics.step_s(chip, load, x)
    assert max(busy_s, load.host_s) * (1 - 1e-12) <= step_s <= (busy_s + load.host_s) * (1 + 1e-12)


@given(chips, loads, st.lists(st.tuples(clocks, st.floats(10.0, 2000.0), clocks), min_size=1, max_size=20))
def test_one_point_and_many_points_agree(chip: Chip, load: Load, settings: list[tuple[float, float, float]]) -> None:
    lock, cap, y = (np.array(column) for column in zip(*settings, strict=True))
    many_x = physics.limited_x(chip, load, lock, cap, y)
    many_w = physics.average_power_w(chip, load, many_x, y)
    many_s = physics.step_s(chip, load, many_x, y)
    for i, (one_lock, one_cap, one_y) in enumerate(settings):
        x = physics.limited_x(chip, load, one_lock, one_cap, one_y)
        assert x == pytest.approx(many_x[i], rel=1e-9)
        assert physics.average_power_w(chip, load, x, one_y) == pytest.approx(many_w[i], rel=1e-9)
        assert physics.step_s(chip, load, x, one_y) == pytest.approx(many_s[i], rel=1e-9)


@given(loads, st.one_of(st.none(), st.floats(345.0, 1980.0)), st.one_of(st.none(), st.floats(200.0, 700.0)))
def test_operate_says_the_same_as_the_formulas(load: Load, lock_mhz: float | None, limit_w: float | None) -> None:
    seen = physics.operate(H200, load, lock_mhz=lock_mhz, limit_w=limit_w)
    x = seen.sm_mhz / H200.sm_max_mhz
    assert seen.step_s == pytest.approx(physics.step_s(H200, load, x))
    assert seen.average_power_w == pytest.approx(physics.average_power_w(H200, load, x))
    assert seen.energy_j == pytest.approx(seen.average_power_w * seen.step_s)
    wanted_x = physics.limited_x(H200, load, 1.0 if lock_mhz is None else lock_mhz / H200.sm_max_mhz, limit_w or 1e9)
    assert x == pytest.approx(wanted_x)


def test_operate_names_what_holds_the_clock_down() -> None:
    assert physics.operate(H200, STEP).limited_by == "clock"
    assert physics.operate(H200, STEP, lock_mhz=1000.0, limit_w=700.0).limited_by == "clock"
    assert physics.operate(H200, STEP, limit_w=500.0).limited_by == "power"
    assert physics.operate(H200, STEP, limit_w=100.0).limited_by == "floor"
    assert physics.operate(H200, STEP, limit_w=700.0, temperature_c=89.0).limited_by == "heat"


def test_a_lower_memory_clock_slows_dram_work_and_saves_memory_power() -> None:
    chip = replace(H200, memory_w=30.0)
    load = replace(STEP, sm_share=0.2, dram_share=0.7)
    full = physics.operate(chip, load)
    slow = physics.operate(chip, load, memory_mhz=chip.memory_max_mhz / 2)
    assert slow.busy_s == pytest.approx(full.busy_s * 1.7)
    assert slow.busy_power_w < full.busy_power_w - 15.0


def test_a_pure_wait_costs_idle_power_and_no_clock_shortens_it() -> None:
    wait = Load(gpu_s=0.0, sm_share=0.0, dynamic_w=0.0, host_s=2.0)
    seen = physics.operate(H200, wait, limit_w=300.0)
    assert (seen.step_s, seen.busy_s, seen.limited_by) == (2.0, 0.0, "clock")
    assert seen.average_power_w == pytest.approx(H200.idle_w)


def test_idle_power_falls_with_either_clock_and_not_below_deep_idle() -> None:
    full = physics.idle_power_w(H200, 1.0, 1.0)
    assert full == pytest.approx(H200.idle_w)
    assert physics.idle_power_w(H200, 0.2, 1.0) < full > physics.idle_power_w(H200, 1.0, 0.2)
    assert physics.idle_power_w(H200, 0.0, 0.0) == pytest.approx(H200.deep_idle_w)


def test_a_warm_board_leaks_more_and_a_limited_one_slows_for_it() -> None:
    cold = physics.operate(H200, STEP, limit_w=500.0, temperature_c=30.0)
    warm = physics.operate(H200, STEP, limit_w=500.0, temperature_c=80.0)
    assert warm.sm_mhz < cold.sm_mhz
    assert warm.busy_power_w == pytest.approx(cold.busy_power_w)
    assert physics.busy_power_w(H200, STEP, 0.5, 1.0, 80.0) > physics.busy_power_w(H200, STEP, 0.5, 1.0, 30.0)


@given(st.floats(20.0, 95.0), st.floats(0.0, 700.0), st.floats(0.001, 1000.0), st.floats(0.001, 1000.0))
def test_warming_in_two_stretches_is_warming_in_one(start_c: float, power_w: float, a: float, b: float) -> None:
    halfway = physics.warmed_c(H200, start_c, power_w, a)
    both = physics.warmed_c(H200, halfway, power_w, b)
    assert both == pytest.approx(physics.warmed_c(H200, start_c, power_w, a + b))
    lasting = physics.warmed_c(H200, start_c, power_w, 1e6)
    assert lasting == pytest.approx(physics.settled_c(H200, power_w))


def test_heat_takes_the_clock_back_only_above_its_threshold() -> None:
    assert physics.heat_limited_x(H200, H200.heat.throttle_c) == 1.0
    assert H200.sm_floor < physics.heat_limited_x(H200, H200.heat.throttle_c + 2.0) < 1.0
    assert physics.heat_limited_x(H200, 200.0) == H200.sm_floor


def test_half_the_clock_doubles_purely_clock_bound_work() -> None:
    bound = Load(gpu_s=1.0, sm_share=1.0, dynamic_w=300.0)
    assert physics.step_s(H200, bound, 0.5) == pytest.approx(2.0)
    assert physics.step_s(H200, replace(bound, sm_share=0.0), 0.5) == pytest.approx(1.0)


def test_a_sharper_kernel_hides_the_clock_for_longer() -> None:
    soft = Load(gpu_s=1.0, sm_share=0.5, dynamic_w=300.0)
    sharp = replace(soft, sharpness=4.0)
    assert physics.busy_s(H200, sharp, 0.9) == pytest.approx((0.5 / 0.9**4 + 0.5) ** 0.25)
    # At a low clock it tends to a pure 1/x of its clock-bound part.
    assert physics.busy_s(H200, sharp, 0.01) * 0.01 == pytest.approx(0.5**0.25, rel=1e-3)
    assert math.isclose(physics.busy_s(H200, sharp, 1.0), 1.0)
