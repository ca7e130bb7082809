import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import NotNow
from joulewise.daemon.pace import Pace


def spent(pace: Pace, times_s: list[float], uid: int = 1) -> int:
    done = 0
    for now_s in times_s:
        try:
            pace.spend("GPU-aa", uid, now_s)
            done += 1
        except NotNow:
            pass
    return done


def test_a_burst_passes_and_the_next_write_is_told_when():
    pace = Pace(20, 40)
    assert spent(pace, [0.0] * 100) == 40
    with pytest.raises(NotNow, match="at most 20 a second and 40 at once") as refused:
        pace.spend("GPU-aa", 1, 0.0)
    assert refused.value.retry_s == pytest.approx(1 / 20)
    pace.spend("GPU-aa", 1, refused.value.retry_s)


def test_one_user_or_gpu_does_not_slow_another():
    pace = Pace(1, 1)
    pace.spend("GPU-aa", 1, 0.0)
    pace.spend("GPU-aa", 2, 0.0)
    pace.spend("GPU-bb", 1, 0.0)
    with pytest.raises(NotNow):
        pace.spend("GPU-aa", 1, 0.0)


@given(st.lists(st.floats(0, 10), max_size=200), st.floats(0.1, 50), st.floats(1, 50))
def test_no_more_pass_than_the_burst_and_what_time_refills(times_s, writes_per_s, burst):
    times_s = sorted(times_s)
    done = spent(Pace(writes_per_s, burst), times_s)
    lasted_s = times_s[-1] - times_s[0] if times_s else 0.0
    assert done <= burst + writes_per_s * lasted_s + 2e-6


@given(st.floats(0.1, 50), st.floats(1, 50), st.floats(0, 1e6))
def test_whoever_waits_as_told_is_let_through(writes_per_s, burst, now_s):
    pace = Pace(writes_per_s, burst)
    for _ in range(200):
        try:
            pace.spend("GPU-aa", 1, now_s)
        except NotNow as refused:
            now_s += refused.retry_s
            pace.spend("GPU-aa", 1, now_s)


def test_time_that_runs_backwards_gives_nothing_away():
    pace = Pace(1, 1)
    pace.spend("GPU-aa", 1, 100.0)
    assert spent(pace, [0.0, 50.0, 100.5]) == 0


def test_buckets_that_are_full_again_are_forgotten():
    pace = Pace(20, 40)
    for uid in range(10_000):
        pace.spend("GPU-aa", uid, uid * 1.0)
    assert len(pace._buckets) <= 4097
