"""Watts and joules as a scheduler counts them: nodes' own counters, and what is assumed until they speak."""

from __future__ import annotations

import pytest

from joulewise.cluster.declared import Report
from joulewise.cluster.engine import NodeSeen
from joulewise.cluster.scheduler_power import ClusterMeter, needs
from joulewise.cluster.scheduler_track import JobRun
from tests.cluster.toys import TOY, toy_ways

FAST, _, SLOW = toy_ways((8,))
TWO = toy_ways((16,))[0]


def report(node_j: float, power_w: float | None = 1000.0) -> Report:
    return Report("a", 0.0, 1, 1, power_w, node_j, 0.0)


def test_a_node_counts_by_its_own_counter_and_between_reports_by_the_power_it_last_said() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(1.0, {"a": (report(5000.0), 0.0)}, {"a": 1200.0})
    assert meter.whole_j == 0.0  # what it drew before it was heard of is not ours
    meter.count(2.0, {"a": (report(6000.0), 0.5)}, {"a": 1200.0})
    assert meter.whole_j == 1500.0
    meter.count(3.0, {"a": (report(6000.0, None), 1.5)}, {"a": 1200.0})
    assert meter.whole_j == 2800.0


def test_it_goes_on_where_the_book_left_it_with_what_was_drawn_meanwhile() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": (report(100.0), 0.0)}, {"a": 0.0})
    meter.count(1.0, {"a": (report(1100.0), 0.0)}, {"a": 0.0})
    again = ClusterMeter(meter.meters_j(), 50.0)
    again.count(50.0, {"a": (report(9100.0), 0.0)}, {"a": 0.0})
    assert again.whole_j == 9000.0


def test_it_never_falls_and_a_counter_that_begins_anew_loses_nothing() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": (report(100.0), 0.0)}, {"a": 0.0})
    meter.count(1.0, {"a": (report(1100.0), 5.0)}, {"a": 0.0})
    assert meter.whole_j == 6000.0
    meter.count(2.0, {"a": (report(1200.0), 0.0)}, {"a": 0.0})
    assert meter.whole_j == 6000.0
    meter.count(3.0, {"a": (report(50.0), 0.0)}, {"a": 0.0})
    meter.count(4.0, {"a": (report(8050.0), 0.0)}, {"a": 0.0})
    assert meter.whole_j == 1100.0 + 50.0 + 8000.0


def test_a_counter_that_was_added_up_in_another_order_has_not_begun_anew() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": (report(100.0), 0.0)}, {"a": 0.0})
    meter.count(1.0, {"a": (report(90_100.0), 0.0)}, {"a": 0.0})
    meter.count(2.0, {"a": (report(90_100.0 - 1e-9), 0.0)}, {"a": 0.0})
    assert meter.whole_j == 90_000.0


def test_a_node_without_an_agent_is_assumed_and_that_is_remembered() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(10.0, {}, {"a": 800.0})
    assert meter.whole_j == 8000.0
    again = ClusterMeter(meter.meters_j(), 10.0)
    assert again.whole_j == 8000.0


def test_needs_are_the_host_idle_gpus_and_the_jobs_and_one_that_leaves_counts_as_well() -> None:
    nodes = [
        NodeSeen("a", 8, "up", "toy"),
        NodeSeen("b", 8, "up", "toy", foreign_gpus=2),
        NodeSeen("c", 8, "off", "toy"),
    ]
    runs = {
        "one": (JobRun(FAST, {"a": 8}),),
        "two": (JobRun(TWO, {"a": 8, "b": 8}), JobRun(FAST, {"b": 8})),
    }
    made = needs(nodes, {"toy": TOY}, {"toy": 400.0}, runs, {"one": SLOW})
    assert set(made) == {"a", "b"}
    assert made["a"].most_w == 800.0 + 8 * 400.0
    assert made["a"].believed_w == made["a"].most_w  # two jobs on one node: no more than it can draw
    assert made["b"].believed_w == pytest.approx(800.0 + 8 * 50.0 + 2 * 350.0 + 8 * 250.0)
    alone = needs(nodes[:1], {"toy": TOY}, {"toy": 400.0}, {"one": runs["one"]}, {"one": SLOW})["a"]
    assert (alone.believed_w, alone.least_w) == (pytest.approx(3200.0), pytest.approx(800.0 + SLOW.power_w))


def test_sleep_is_counted_as_assumed_since_no_counter_tells_of_it_and_waking_adds_nothing_to_it() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": (report(100.0), 0.0)}, {"a": 1000.0})
    meter.count(10.0, {"a": (report(10_100.0), 0.0)}, {"a": 1000.0})
    for time_s in range(20, 1020, 10):
        meter.count(float(time_s), {"a": (report(10_100.0), time_s - 10.0)}, {"a": 20.0}, asleep={"a"})
    assert meter.whole_j == pytest.approx(10_000.0 + 20.0 * 1000.0)
    meter.count(1020.0, {"a": (report(15_100.0), 0.0)}, {"a": 1000.0})
    assert meter.whole_j == pytest.approx(15_000.0 + 20.0 * 1000.0)


def test_a_node_that_was_never_heard_of_keeps_what_was_assumed_when_it_goes_to_sleep() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(10.0, {}, {"a": 800.0})
    meter.count(20.0, {}, {"a": 20.0}, asleep={"a"})
    assert meter.whole_j == 8200.0
    assert ClusterMeter(meter.meters_j(), 20.0).whole_j == 8200.0


def test_after_a_kill_the_meter_has_not_fallen_and_sleep_has_gone_on() -> None:
    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": (report(100.0), 0.0)}, {"a": 0.0, "b": 20.0}, asleep={"b"})
    meter.count(10.0, {"a": (report(100.0), 10.0)}, {"a": 0.0, "b": 20.0}, asleep={"b"})
    shown_j = meter.whole_j
    assert shown_j == 10_200.0
    again = ClusterMeter(
        meter.meters_j(), 60.0, idle_meters_j=meter.idle_meters_j(), shown_j=meter.whole_j, since_s=10.0
    )
    assert again.whole_j == shown_j
    again.count(60.0, {"a": (report(60_100.0), 0.0)}, {"a": 0.0, "b": 20.0}, asleep={"b"})
    assert again.whole_j == 60_000.0 + 60 * 20.0
    assert again.idle_j == 60 * 20.0


def test_what_is_no_jobs_is_counted_from_the_same_moment_as_the_whole() -> None:
    def said(node_j: float, idle_j: float) -> tuple[Report, float]:
        return Report("a", 0.0, 1, 1, 1000.0, node_j, idle_j), 0.0

    meter = ClusterMeter({}, 0.0)
    meter.count(0.0, {"a": said(9000.0, 9000.0)}, {"a": 0.0})
    assert (meter.whole_j, meter.idle_j) == (0.0, 0.0)
    meter.count(1.0, {"a": said(9900.0, 9300.0)}, {"a": 0.0})
    assert (meter.whole_j, meter.idle_j) == (900.0, 300.0)
    again = ClusterMeter(meter.meters_j(), 2.0, idle_meters_j=meter.idle_meters_j())
    again.count(2.0, {"a": said(10_900.0, 9400.0)}, {"a": 0.0})
    assert (again.whole_j, again.idle_j) == (1900.0, 400.0)
