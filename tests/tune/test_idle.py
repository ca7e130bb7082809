"""Idle gaps: learnt, acted upon when they pay, and ended at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.event import Shifted
from joulewise.device.hold import hold
from joulewise.model.physics import Load
from joulewise.tune.idle import FEWEST, WORTHWHILE_S, Cost, Gaps
from joulewise.tune.online import Online
from tests.tune.jobs import Played
from tests.tune.runs import tune


def known(*lengths_s: float) -> Gaps:
    gaps = Gaps()
    for length_s in lengths_s:
        gaps.ended(length_s)
    return gaps


def test_nothing_is_done_about_gaps_that_are_not_known() -> None:
    gaps = known(*[20.0] * (FEWEST - 1))
    assert not gaps.worth_it(5.0, room_s=10.0)
    gaps.ended(20.0)
    assert gaps.worth_it(5.0, room_s=10.0)


def test_a_job_without_time_to_lose_is_left_awake() -> None:
    assert not known(20.0, 20.0, 20.0).worth_it(5.0, room_s=0.0)


def test_short_gaps_are_no_gaps() -> None:
    gaps = known(*[0.9 * WORTHWHILE_S] * 20)
    assert gaps.seen == 0
    assert not gaps.worth_it(WORTHWHILE_S, room_s=10.0)


def test_a_gap_near_its_usual_end_is_waited_out() -> None:
    gaps = known(10.0, 10.1, 10.2, 9.9)
    assert gaps.worth_it(1.0, room_s=10.0)
    assert not gaps.worth_it(9.85, room_s=10.0)


@given(st.lists(st.floats(0.6, 100.0), min_size=3, max_size=60), st.floats(0.0, 120.0))
def test_what_remains_is_never_negative(lengths_s: list[float], elapsed_s: float) -> None:
    remaining_s = known(*lengths_s).remaining_s(elapsed_s)
    assert remaining_s is None or 0.0 < remaining_s <= max(lengths_s) * (1 + 1e-12)


@pytest.mark.slow
def test_a_job_with_long_gaps_is_clocked_down_in_them_and_loses_almost_nothing() -> None:
    job = Played.with_gaps(step_s=0.2, steps=100, gap_s=15.0)
    run = tune(job, duration_s=500.0)
    slept = [event for event in run.events if isinstance(event, Shifted) and event.what == "idle"]
    awake = [event for event in run.events if isinstance(event, Shifted) and event.what == "awake"]
    assert len(slept) >= 5
    assert abs(len(slept) - len(awake)) <= 1
    # Woken within a poll: no step after a gap is longer than the usual one by more than that and the sensors' delay.
    steps_s = [b - a for a, b in zip(job.ends_s, job.ends_s[1:], strict=False)]
    assert max(steps_s) < 15.0 + 0.2 * 1.1 + 0.5


def test_a_wake_costs_what_the_sensor_is_late_too() -> None:
    assert Cost(update_s=0.2).lost_s == pytest.approx(0.8 * 0.15 + 0.025)
    assert Cost(update_s=0.2).lost_s > Cost(update_s=0.0).lost_s


def test_a_gpu_that_shows_work_late_is_left_awake() -> None:
    gaps = Gaps(cost=Cost(update_s=1.0))
    for _ in range(5):
        gaps.ended(20.0)
    assert not gaps.worth_it(5.0, room_s=10.0)
    assert known(*[20.0] * 5).worth_it(5.0, room_s=10.0)


def test_a_host_bound_job_is_not_put_to_rest_between_its_steps() -> None:
    run = tune(Played.steady(step_s=1.0, load=Load(0.003, 0.5, 200.0, host_s=0.197)), duration_s=60.0)
    assert run.shifts("idle") == []


def test_a_lease_that_cannot_write_now_is_asked_again_at_the_next_look() -> None:
    job = Played.with_gaps(step_s=0.2, steps=60, gap_s=15.0)
    lease = hold([job.gpu])
    refused: list[float] = []

    def captures(online: Online) -> Iterator[float]:
        while len(refused) < 2:  # a graph capture just as work comes back
            yield 0.5
            if online.subject.asleep is not None:
                refused.append(job.time.now_s())
                lease.quiet(20.0, "graph capture")
                yield 25.0

    run = tune(job, duration_s=300.0, lease=lease, meanwhile=captures)
    assert refused
    assert run.shifts("lost") == []
    assert len(run.shifts("awake")) >= len(refused)
    assert run.online.subject.asleep is None or run.shifts("idle")[-1].time_s > 280.0
