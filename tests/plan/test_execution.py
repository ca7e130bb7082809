"""Settings with launches: told apart, carried along, and no change of clock where only launches differ."""

from __future__ import annotations

import pickle

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.compose import PLAIN_SUM, Part, compose, options
from joulewise.plan.execution import Execution, Launch, knobs, launches
from joulewise.plan.plan import Costs
from joulewise.plan.plan_making import make
from joulewise.plan.profile import Profile
from joulewise.plan.profile_files import read, write
from joulewise.plan.schedules_named import named

ROPE, NORM = Launch("attention", "rope", 15), Launch("attention", "norm", 6)


def test_executions_are_told_apart_from_settings_and_from_each_other() -> None:
    rope, norm = Execution([ROPE], sm_mhz=1410.0), Execution([NORM], sm_mhz=1410.0)
    assert rope == Execution([ROPE], sm_mhz=1410.0)
    assert len({rope, norm, Setting(sm_mhz=1410.0), Execution([ROPE], sm_mhz=900.0)}) == 4
    assert Setting(sm_mhz=1410.0) != rope
    assert knobs(rope) == knobs(norm) == Setting(sm_mhz=1410.0)
    assert launches(rope) == (ROPE,)
    assert launches(Setting(sm_mhz=1410.0)) == ()
    assert rope.with_(sm_mhz=900.0) == Execution([ROPE], sm_mhz=900.0)
    assert pickle.loads(pickle.dumps(rope)) == rope
    assert repr(rope) == "Execution(attention rope×15; sm_mhz=1410)"


@pytest.mark.parametrize("how", ["rope", "rope×", "×3", "rope×x", "rope×-1", "rope×0"])
def test_a_schedule_that_is_none_is_refused(how: str) -> None:
    with pytest.raises(BadSpec):
        Launch.read("attention", how)


def test_one_part_cannot_be_launched_in_two_ways() -> None:
    with pytest.raises(BadSpec, match="one way"):
        Execution([ROPE, NORM])


def test_partitions_become_a_profile_a_file_and_a_plan(tmp_path_factory: pytest.TempPathFactory) -> None:
    attention = {1410.0: [Point(1.0, 400.0, "rope×15")], 900.0: [Point(1.3, 300.0, "norm×6")]}
    whole = {1410.0: [Point(2.6, 900.0, "")], 900.0: [Point(3.0, 560.0, "")]}
    found = options(compose([Part("attention", 2, attention)], additivity=PLAIN_SUM, blocking_w=80.0, sequential=whole))
    assert found[0].setting == Execution([ROPE], sm_mhz=1410.0)
    assert found[-1].setting == Setting(sm_mhz=900.0)
    profile = Profile({(stage, kind): found for stage in range(2) for kind in ("forward", "backward")})
    path = tmp_path_factory.mktemp("made") / "profile.json"
    write(profile, path)
    assert read(path) == profile
    plan = make(named("1f1b", stages=2, microbatches=3, ask=False), read(path), Costs(80.0)).plan
    fastest = {step.setting for row in plan.steps(plan.points[0]) for step in row}
    assert Execution([ROPE], sm_mhz=1410.0) in fastest


def test_only_a_change_of_clock_takes_time() -> None:
    ways = (
        Point(1.0, 400.0, Execution([ROPE], sm_mhz=1410.0)),
        Point(1.1, 380.0, Execution([NORM], sm_mhz=1410.0)),
        Point(1.4, 300.0, Setting(sm_mhz=900.0)),
    )
    schedule = named("1f1b", stages=2, microbatches=2, ask=False)
    profile = Profile({(stage, kind): ways for stage in range(2) for kind in ("forward", "backward")})
    free, dear = (make(schedule, profile, Costs(80.0, switch_s=cost)).plan for cost in (0.0, 10.0))
    launches_only = tuple(at % 2 for at in range(8))
    clocks = tuple(2 * (at % 2) for at in range(8))
    assert dear.point(launches_only).time_s == free.point(launches_only).time_s
    assert dear.point(clocks).time_s > free.point(clocks).time_s + 10.0


def test_nothing_set_is_the_highest_clock_without_launches() -> None:
    ways = (Point(1.0, 400.0, Execution([ROPE], sm_mhz=1410.0)), Point(1.2, 420.0, Setting(sm_mhz=1410.0)))
    schedule = named("1f1b", stages=2, microbatches=2, ask=False)
    profile = Profile({(stage, kind): ways for stage in range(2) for kind in ("forward", "backward")})
    plan = make(schedule, profile, Costs(80.0)).plan
    assert plan.baseline.choice == (1,) * 8
    assert plan.points[0].energy_j < plan.baseline.energy_j
