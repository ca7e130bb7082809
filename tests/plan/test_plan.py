"""A plan keeps its promises by arithmetic anyone can repeat, and is refused where it is not for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.plan import Costs, Plan, PlanPoint
from joulewise.plan.plan_identity import Fact, Identity
from joulewise.plan.profile import Profile
from joulewise.plan.schedules import read_actions
from tests.plan.made_up import plan

MADE = plan()


def test_time_and_energy_are_what_playing_it_gives() -> None:
    """Two stages, one microbatch: everything in a row, one rank waiting while the other works."""
    schedule = read_actions([["0F0", "0B0"], ["1F0", "1B0"]])
    each = (Point(1.0, 300.0, Setting(sm_mhz=1410)), Point(1.5, 250.0, Setting(sm_mhz=1000)))
    profile = Profile({(stage, kind): each for stage in (0, 1) for kind in ("forward", "backward")})
    made = Plan(schedule, profile, Costs(80.0, 3), (PlanPoint(4.0, 3 * (4 * 300.0 + 80.0 * 4.0), (0, 0, 0, 0)),))
    assert made.point((0, 1, 0, 0)).time_s == 4.5
    assert made.point((0, 1, 0, 0)).energy_j == pytest.approx(3 * (3 * 300.0 + 250.0 + 80.0 * 4.5))
    assert made.times_s(made.points[0]) == [(0.0, 1.0), (3.0, 4.0), (1.0, 2.0), (2.0, 3.0)]
    switching = replace(made, costs=Costs(80.0, 3, switch_s=0.25, switch_j=7.0))
    changed = switching.point((0, 1, 0, 0))
    assert changed.time_s == 4.75
    assert changed.energy_j == pytest.approx(3 * (3 * 300.0 + 250.0 + 7.0 + 80.0 * (2 * 4.75 - 4.5)))
    assert switching.times_s(changed)[1] == (3.25, 4.75)


def test_steps_are_each_ranks_own_list() -> None:
    point = MADE.points[-1]
    steps = MADE.steps(point)
    assert [f"{step.stage}{step.kind[0].upper()}{step.microbatch}" for step in steps[2]] == [
        str(action) for action in MADE.schedule.rows[2]
    ]
    assert sum(len(row) for row in steps) == len(point.choice)
    assert steps[0][0].setting == Setting(sm_mhz=990)


def test_operations_that_share_an_option_share_its_error() -> None:
    erring = {
        key: tuple(replace(point, energy_error_j=0.5) for point in points)
        for key, points in MADE.profile.options.items()
    }
    plan = replace(MADE, profile=Profile(erring))
    # Six kinds of operation, four microbatches each at one setting, two GPUs a rank.
    assert plan.energy_error_j(plan.points[0]) == pytest.approx(2 * (6 * (4 * 0.5) ** 2) ** 0.5)
    assert MADE.energy_error_j(MADE.points[0]) == 0


def test_the_baseline_sets_nothing() -> None:
    assert MADE.baseline.choice == (0,) * len(MADE.options)
    unset = {
        key: (*points, Point(points[-1].time_s * 2, points[-1].energy_j, Setting()))
        for key, points in MADE.profile.options.items()
    }
    assert set(replace(MADE, profile=Profile(unset)).baseline.choice) == {3}


def test_a_deadline_an_energy_and_a_power_each_find_their_point() -> None:
    fast, *_, slow = MADE.points
    assert len(MADE.points) >= 3
    for point in MADE.points:
        assert MADE.by_deadline(point.time_s) is point
        assert MADE.by_energy(point.energy_j) is point
        assert MADE.by_power(point.power_w) is point
    assert MADE.by_deadline(1e9) is slow
    assert MADE.by_energy(1e9) is fast
    assert MADE.by_power(1e9) is fast
    with pytest.raises(BadSpec, match=rf"no plan ends within 0.001 s: the fastest takes {fast.time_s:.5g} s"):
        MADE.by_deadline(0.001)
    with pytest.raises(BadSpec, match="the least is"):
        MADE.by_energy(1.0)
    with pytest.raises(BadSpec, match="the least is"):
        MADE.by_power(1.0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"points": ()}, "at least one point"),
        ({"costs": Costs(70.0, 2)}, "point 0 promises .* J, but its settings give"),
        ({"points": MADE.points[::-1]}, "faster and dearer in turn"),
        ({"points": (replace(MADE.points[0], time_s=1.0),)}, "promises 1 s"),
        ({"points": (replace(MADE.points[0], choice=(0, 0)),)}, "2 choices were given for 24 operations"),
        ({"points": (replace(MADE.points[0], choice=(9,) * 24),)}, "has 3 options, and none of number 9"),
        ({"points": (replace(MADE.points[0], choice=(-1,) * 24),)}, "none of number -1"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        replace(MADE, **changed)


def test_a_plan_is_refused_where_anything_it_states_differs_or_is_not_known() -> None:
    mine = MADE.identity
    assert mine.refuse(mine) is None
    assert mine.refuse(replace(mine, driver=Fact.of("550.54"))) is None
    other = replace(mine, model=Fact.of("other"), gpu=None)
    assert mine.refuse(other) == (
        "the plan is refused: it is for the model tiny, and here is other; "
        "it is for the gpu NVIDIA A100-SXM4-40GB, and which there is here is not known"
    )
    alike = replace(mine, model=Fact.of({"layers": 3}, "tiny"))
    assert "its model tiny is not the same as here" in str(mine.refuse(alike))
    assert mine.unstated() == ["driver"]
    assert Identity().refuse(mine) is None


def test_the_same_schedule_has_the_same_hash_whoever_wrote_it_down() -> None:
    assert MADE.identity.parallelism == plan().identity.parallelism
    assert MADE.identity.parallelism != plan(gpus_per_rank=4).identity.parallelism
    assert MADE.identity.parallelism != plan(microbatches=5).identity.parallelism
    assert Fact.of({"a": 1, "b": 2}) == Fact.of({"b": 2, "a": 1})


@pytest.mark.parametrize("given", [{"blocking_w": float("nan")}, {"gpus_per_rank": 0}, {"switch_s": -1}])
def test_costs_that_cannot_be_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(BadSpec, match=f"{next(iter(given))} is "):
        Costs(**{"blocking_w": 80.0, **given})
