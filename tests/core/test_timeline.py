import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.timeline import ScaledTime, VirtualTime, WallTime


def ticker(seen, name, every_s, count, clock):
    for _ in range(count):
        seen.append((round(clock.now_s(), 6), name))
        yield every_s
    return name


def test_an_hour_of_virtual_time_passes_at_once():
    clock = VirtualTime()
    clock.sleep(3600)
    assert clock.now_s() == 3600


def test_loops_share_one_virtual_time_in_order():
    clock, seen = VirtualTime(), []
    clock.spawn(ticker(seen, "a", 1.0, 3, clock))
    clock.spawn(ticker(seen, "b", 1.5, 2, clock))
    clock.run_until(10)
    assert seen == [(0, "a"), (0, "b"), (1, "a"), (1.5, "b"), (2, "a")]
    assert clock.now_s() == 10


def test_run_returns_the_loops_result_and_stops_there():
    clock, seen = VirtualTime(), []
    clock.spawn(ticker(seen, "background", 0.5, 1000, clock))
    assert clock.run(ticker([], "main", 2.0, 3, clock)) == "main"
    assert clock.now_s() == 6
    assert len(seen) in (12, 13)


def test_sleeping_inside_a_loop_of_the_same_time_is_refused():
    clock = VirtualTime()

    def bad():
        clock.sleep(1)
        yield 1.0

    clock.spawn(bad())
    with pytest.raises(RuntimeError, match="yield the wait"):
        clock.sleep(5)


def test_an_error_in_a_loop_reaches_the_one_who_waits_and_time_can_go_on():
    clock = VirtualTime()

    def bad():
        yield 1.0
        raise KeyError("lost")

    clock.spawn(bad())
    with pytest.raises(KeyError):
        clock.sleep(5)
    clock.sleep(5)
    assert clock.now_s() == 6


@given(st.lists(st.floats(min_value=0, max_value=100), max_size=20))
def test_virtual_time_never_goes_back(waits):
    clock, stamps = VirtualTime(), []

    def loop(wait):
        yield wait
        stamps.append(clock.now_s())

    for wait in waits:
        clock.spawn(loop(wait))
    clock.sleep(200)
    assert stamps == sorted(waits)


def test_scaled_time_runs_k_times_faster_and_maps_both_ways():
    clock = ScaledTime(20, origin_s=100, wall_origin_s=50)
    assert clock.at_wall_s(51) == 120
    assert clock.wall_at_s(120) == 51
    before = clock.now_s()
    clock.sleep(0.1)
    assert clock.now_s() - before >= 0.1
    with pytest.raises(ValueError, match="above 0"):
        ScaledTime(0)


def test_wall_time_is_the_monotonic_clock_and_drives_loops():
    clock = WallTime()
    assert abs(clock.now_s() - time.monotonic()) < 1
    assert clock.run(ticker([], "done", 0.0, 2, clock)) == "done"
