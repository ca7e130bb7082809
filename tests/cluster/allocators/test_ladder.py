"""Which way stands for a number of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.state import Snapshot, Way
from joulewise.core.knob import DEFAULT, Setting
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


@pytest.mark.parametrize(("share", "mhz"), [(1.0, None), (0.926, 1305), (0.85, 1200), (0.5, 1095)])
def test_shares_are_of_the_kinds_own_top_clock_which_no_way_may_name(share: float, mhz: int | None) -> None:
    settings = (DEFAULT, Setting(sm_mhz=1305), Setting(sm_mhz=1200), Setting(sm_mhz=1095))
    ways = tuple(Way(1, 1.0 + 0.1 * at, 300.0, setting, "toy") for at, setting in enumerate(settings))
    (picked,) = ladders(share).of(ways, (replace(TOY, top_mhz=1410.0),))["toy"]
    assert picked.setting.get("sm_mhz") == mhz
