import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import ModelError
from joulewise.model.fleet import Interval, Sight, outlook, reached_share
from joulewise.model.fleet_kin import kin_of

H200 = kin_of("NVIDIA H200")
DENSE = Sight(640.0, sm_mhz=1900.0, memory_mhz=3201.0, busy=0.98, sm_active=0.9, dram_active=0.15)


def possible(seen: Sight, bound: float = 0.02, kin=H200) -> Interval:
    return Interval.of(outlook(kin, seen, bound).possible)


def test_work_that_waits_for_memory_can_save_more_than_dense_arithmetic():
    streaming = Sight(450.0, sm_mhz=1980.0, memory_mhz=3201.0, busy=0.98, sm_active=0.95, dram_active=0.85)
    assert possible(streaming).mean > 1.5 * possible(DENSE).mean


def test_work_that_waits_for_its_host_can_save_more_than_work_that_never_waits():
    waiting = replace(DENSE, power_w=380.0, busy=0.5, sm_active=0.45, dram_active=0.07, sm_mhz=1980.0)
    assert possible(waiting).mean > 1.3 * possible(replace(DENSE, sm_mhz=1980.0, power_w=600.0)).mean


def test_a_wider_bound_saves_more_and_every_draw_keeps_its_bound():
    narrow, wide = outlook(H200, DENSE, 0.01), outlook(H200, DENSE, 0.05)
    assert wide.possible.mean() > narrow.possible.mean() > 0.0
    assert narrow.slowdown.max() <= 0.01 + 1e-9
    assert wide.slowdown.max() <= 0.05 + 1e-9


def test_less_that_is_known_makes_the_interval_wider():
    blind = replace(DENSE, busy=None, sm_active=None, dram_active=None)
    assert possible(blind).half > possible(DENSE).half


def test_a_neighbours_law_makes_the_interval_wider_than_the_models_own():
    other = kin_of("NVIDIA H100 80GB HBM3", limit_w=700.0, most_sm_mhz=1980.0, most_memory_mhz=3201.0)
    assert (
        possible(DENSE, kin=replace(other, memory_mhz=())).half > possible(DENSE, kin=replace(H200, memory_mhz=())).half
    )


def test_memory_clocks_that_may_not_exist_are_used_in_half_of_the_draws():
    other = kin_of("NVIDIA H100 80GB HBM3", limit_w=700.0, most_sm_mhz=1980.0, most_memory_mhz=2619.0)
    dense = replace(DENSE, memory_mhz=2619.0, dram_active=0.02)
    used = outlook(other, dense, 0.05).memory < 1.0
    assert not used[1::2].any()
    assert used[::2].any()


def test_reached_is_about_the_benchs_share_of_what_is_possible_and_hardly_ever_more_than_all_of_it():
    found = outlook(H200, DENSE, 0.02)
    assert (found.reached <= 1.1 * found.possible + 1e-12).all()
    assert found.reached.mean() / found.possible.mean() == pytest.approx(reached_share(0.02), abs=0.05)


def test_of_some_jobs_the_tuner_keeps_nothing_as_the_bench_has_seen():
    found = outlook(H200, DENSE, 0.02, draws=2000)
    some = found.possible > 0.0
    assert (found.reached[some] == 0.0).mean() == pytest.approx(0.07, abs=0.02)
    assert Interval.of(found.reached).low == 0.0


def test_the_share_reached_is_that_of_the_bench_at_its_bounds():
    assert [reached_share(bound) for bound in (0.01, 0.02, 0.05)] == pytest.approx([0.65, 0.71, 0.78])


def test_the_same_arguments_give_the_same_draws():
    one, other = outlook(H200, DENSE, 0.02, seed=7), outlook(H200, DENSE, 0.02, seed=7)
    assert np.array_equal(one.possible, other.possible)


def test_without_a_clock_the_law_says_where_the_limit_leaves_it():
    assert 0.0 < possible(replace(DENSE, sm_mhz=None, power_w=690.0)).mean < 0.3


def test_a_power_that_cannot_be_is_refused_in_one_line():
    with pytest.raises(ModelError, match="cannot be of NVIDIA H200"):
        outlook(H200, replace(DENSE, power_w=0.0), 0.02)


@given(
    power_w=st.floats(60.0, 690.0),
    sm_mhz=st.floats(400.0, 2100.0),
    busy=st.floats(0.02, 1.0),
    dram=st.floats(0.0, 1.0),
    bound=st.floats(0.0, 0.2),
)
@settings(max_examples=12, deadline=None)
def test_whatever_was_seen_savings_are_shares_within_the_bound(power_w, sm_mhz, busy, dram, bound):
    seen = Sight(power_w, sm_mhz=sm_mhz, busy=busy, dram_active=dram * busy)
    found = outlook(H200, seen, bound, draws=60)
    for draws in (found.possible, found.reached):
        assert np.isfinite(draws).all()
        assert draws.min() >= 0.0
        assert draws.max() < 1.0
    assert found.slowdown.max() <= bound + 1e-9
    assert 0.0 < found.clock.min() <= found.clock.max() <= 1.0


def test_an_interval_scales_and_has_half_its_width():
    interval = Interval.of(np.linspace(0.0, 1.0, 1001)).times(10.0)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((5.0, 0.25, 9.75))
    assert math.isclose(interval.half, 4.75)
