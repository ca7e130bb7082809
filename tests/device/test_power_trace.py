from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.device.power_trace import PowerTrace

SEGMENTS = st.lists(
    st.tuples(st.floats(0.001, 3.0), st.floats(0.0, 1000.0), st.floats(0.0, 1.0)), min_size=1, max_size=40
)


def traced(segments: list[tuple[float, float, float]], *, keep_s: float = math.inf) -> PowerTrace:
    trace = PowerTrace(keep_s=keep_s)
    for duration_s, power_w, busy in segments:
        trace.append(trace.end_s + duration_s, power_w, busy)
    return trace


@given(SEGMENTS, st.floats(0.0, 1.0))
def test_energy_is_the_sum_of_power_times_time(segments: list[tuple[float, float, float]], share: float) -> None:
    trace = traced(segments)
    at_s = share * trace.end_s
    expected_j, from_s = 0.0, 0.0
    for duration_s, power_w, _ in segments:
        expected_j += power_w * max(0.0, min(at_s - from_s, duration_s))
        from_s += duration_s
    assert trace.energy_j(at_s) == pytest.approx(expected_j, rel=1e-9, abs=1e-6)


@given(SEGMENTS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_energy_never_falls(segments: list[tuple[float, float, float]], one: float, other: float) -> None:
    trace = traced(segments)
    early_s, late_s = sorted((one * trace.end_s, other * trace.end_s))
    assert trace.energy_j(early_s) <= trace.energy_j(late_s) + 1e-9


@given(SEGMENTS, st.floats(0.0, 1.0))
def test_what_is_taken_back_and_lived_again_is_as_if_it_had_been_so_from_the_start(
    segments: list[tuple[float, float, float]], share: float
) -> None:
    trace = traced(segments)
    end_s, back_s = trace.end_s, share * trace.end_s
    before_j = trace.energy_j(back_s)
    trace.rewind(back_s)
    assert trace.end_s == back_s
    trace.append(end_s + 1.0, 123.0, 1.0)
    assert trace.energy_j(end_s + 1.0) == pytest.approx(before_j + 123.0 * (end_s + 1.0 - back_s), rel=1e-9, abs=1e-6)


def test_detail_is_forgotten_but_never_the_total() -> None:
    trace = PowerTrace(keep_s=1.0)
    for number in range(20_000):
        trace.append((number + 1) * 0.01, 100.0 + number % 2, 0.5, 0.25)
    assert trace.start_s > 150.0
    assert trace.mean_memory(trace.end_s - 1.0, trace.end_s) == pytest.approx(0.25)
    assert trace.energy_j(trace.end_s) == pytest.approx(200.0 * 100.5)
    assert trace.busy_s(trace.end_s) == pytest.approx(100.0)
    assert trace.mean_w(trace.end_s - 1.0, trace.end_s) == pytest.approx(100.5)


def test_whoever_must_look_first_is_asked_before_detail_is_forgotten() -> None:
    trace = PowerTrace(keep_s=1.0)
    reached_s: list[float] = []
    trace.before_forgetting(lambda: reached_s.append(trace.start_s))
    for number in range(10_000):
        trace.append((number + 1) * 0.01, float(number), 0.0)
    assert reached_s[0] == 0.0
    assert trace.start_s > 0.0


def test_asking_beyond_what_is_known_is_refused() -> None:
    trace = traced([(1.0, 100.0, 1.0)])
    with pytest.raises(ValueError, match=r"not at 1\.5 s"):
        trace.energy_j(1.5)
    with pytest.raises(ValueError, match="already known until"):
        trace.append(0.5, 100.0, 1.0)
