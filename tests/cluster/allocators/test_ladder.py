"""Which way stands for a number of GPUs."""

from __future__ import annotations

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.state import Snapshot, Way
from tests.cluster.allocators.snapshots import OTHER, job, snapshot
from tests.cluster.toys import TOY, toy_ways


def wanted_gpus(gpus: int, there: tuple[int, ...], nodes: int = 4) -> list[int]:
    seen = snapshot(job("a", gpus, ways=toy_ways(there)), nodes=nodes)
    return [way.gpus for way in asked(seen, ladders())(seen.jobs[0])]


def test_the_number_asked_for_else_the_nearest_below_else_the_nearest_above() -> None:
    assert wanted_gpus(4, (1, 2, 4, 8)) == [4]
    assert wanted_gpus(6, (1, 2, 4, 8)) == [4]
    assert wanted_gpus(1, (4, 8)) == [4]


def test_more_than_a_kind_has_is_never_wanted() -> None:
    assert wanted_gpus(16, (1, 4, 16), nodes=1) == [4]
    assert wanted_gpus(16, (16,), nodes=1) == []


def test_the_fastest_kind_comes_first_unless_a_job_runs_on_another() -> None:
    slow = tuple(Way(way.gpus, way.unit_s * 3, way.unit_j, way.setting, OTHER.name) for way in toy_ways())
    ways = toy_ways() + slow
    waits, runs = job("a", 2, ways=ways), job("b", 2, ways=slow + toy_ways(), running=2)
    seen = Snapshot(0.0, (TOY, OTHER), (waits, runs))
    wanted = asked(seen, ladders())
    assert [way.kind for way in wanted(waits)] == ["toy", "other"]
    assert [way.kind for way in wanted(runs)] == ["other", "toy"]


def test_a_way_that_names_no_clock_is_at_the_top() -> None:
    bare = (Way(1, 1.0, 300.0, kind="toy"),)
    seen = snapshot(job("a", ways=bare))
    assert asked(seen, ladders(0.5))(seen.jobs[0]) == bare
