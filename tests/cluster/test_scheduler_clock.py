"""A scheduler whose clock is set, or that stood still: nobody is stopped for it, and rounds go on."""

from __future__ import annotations

from dataclasses import replace

from joulewise.cluster.declared import Report
from tests.cluster.test_scheduler import TOP_W, aims, long_jobs, looks
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, first_come, toy_job


class Off:
    """How far a rig's clocks are from the site's."""

    def __init__(self, rig: Rig) -> None:
        self.by_s = 0.0

        def now() -> float:
            return rig.site.now() + self.by_s

        assert rig.desk is not None
        rig.scheduler._now = rig.scheduler._sight.now = rig.desk._now = now


def under_a_cap() -> Rig:
    """Four jobs on four nodes, at clocks that keep a cap of 80 %."""
    rig = Rig([TOY], long_jobs(), first_come, period_s=10.0)
    looks(rig, 80)
    rig.scheduler.cap(0.8 * TOP_W)
    looks(rig, 100)
    assert not aims(rig, "preempt")
    return rig


def test_a_clock_that_is_set_forward_by_ten_seconds_under_a_cap_stops_nobody() -> None:
    rig = under_a_cap()
    off = Off(rig)
    off.by_s = 10.0
    looks(rig, 30)
    assert not rig.scheduler._sight.silent
    assert not aims(rig, "preempt")


def test_a_clock_that_is_set_back_by_an_hour_does_not_stop_rounds_for_an_hour() -> None:
    jobs = [toy_job("a", 0.0, 5_000, 8), toy_job("b", 100.0, 500, 8)]
    rig = Rig([TOY], jobs, first_come, period_s=10.0)
    off = Off(rig)
    looks(rig, 50)
    off.by_s = -3600.0
    looks(rig, 100)
    assert rig.site.jobs["b"].state in ("running", "ended")


def test_a_cap_that_is_said_after_the_clock_was_set_back_is_kept_at_once() -> None:
    rig = Rig([TOY], long_jobs(), first_come, period_s=10.0)
    off = Off(rig)
    looks(rig, 80)
    rig.scheduler.cap(0.9 * TOP_W)
    looks(rig, 50)
    off.by_s = -600.0
    looks(rig, 5)
    rig.scheduler.cap(0.8 * TOP_W)
    looks(rig, 5)
    assert sum(agent.power_w() for agent in rig.agents.values()) <= 0.8 * TOP_W
    status = rig.scheduler.status()
    assert (status.cap_w, status.cap_until_s) == (0.8 * TOP_W, None)


def test_a_node_whose_clock_is_set_back_is_still_heard() -> None:
    rig = under_a_cap()
    one = next(iter(rig.agents.values()))
    plain = one.report
    one.report = lambda: replace(plain(), time_s=plain().time_s - 30.0)  # type: ignore[method-assign]
    looks(rig, 15)
    assert not rig.scheduler._sight.silent
    assert not aims(rig, "preempt")


def test_a_report_of_an_epoch_that_nobody_led_is_said_in_status_and_ends_nothing() -> None:
    rig = Rig([TOY], long_jobs(), first_come)
    looks(rig, 3)
    assert rig.desk is not None
    rig.desk.exchange(Report("n99", rig.site.now(), 2**53, 1, 500.0, 0.0, 0.0))
    looks(rig, 1)
    assert any("node n99 follows epoch" in line for line in rig.scheduler.status().troubles)
    rig.desk.exchange(Report("n99", rig.site.now(), 0, 0, 500.0, 0.0, 0.0))
    looks(rig, 1)
    assert not any("n99" in line for line in rig.scheduler.status().troubles)
