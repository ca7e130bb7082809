"""What a plan promises of a running job, and when it has kept it."""

from __future__ import annotations

import random

import pytest

from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.plan.plan import Costs, Plan
from joulewise.plan.plan_making import make
from joulewise.plan.profile import Profile
from joulewise.plan.schedules_named import named
from joulewise.tune.follow_making import mended, playable
from joulewise.tune.follow_promise import Iterations, Waiting, saved_j, verify

SLOW = Setting(sm_mhz=1005)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two stages, the second half as long: it can be slowed down for nothing."""
    long = (Point(0.2, 100.0, DEFAULT), Point(0.3, 80.0, SLOW))
    short = (Point(0.1, 50.0, DEFAULT), Point(0.15, 40.0, SLOW))
    options = {(0, "forward"): long, (0, "backward"): long, (1, "forward"): short, (1, "backward"): short}
    return make(named("1f1b", stages=2, microbatches=4, ask=False), Profile(options), Costs(100.0)).plan


def test_the_promise_is_in_joules_of_the_job_as_it_was_measured(plan: Plan) -> None:
    point = plan.by_deadline(plan.baseline.time_s)
    assert point.energy_j < plan.baseline.energy_j
    without = Iterations(plan.baseline.time_s + 0.5, plan.baseline.energy_j + 100.0, 1.0, 4)
    saved = plan.baseline.energy_j - point.energy_j
    kept = verify(plan, point, without, Iterations(without.time_s, without.energy_j - saved, 1.0, 4))
    assert kept.promised_saving == pytest.approx(saved / without.energy_j)
    assert kept.saving == pytest.approx(kept.promised_saving)
    assert (kept.slowdown, kept.promised_slowdown) == (0.0, 0.0)
    assert kept.kept
    assert "which was kept" in kept.says


def test_less_than_two_points_below_the_promise_is_kept_and_more_is_not(plan: Plan) -> None:
    point = plan.by_deadline(plan.baseline.time_s)
    without = Iterations(plan.baseline.time_s, plan.baseline.energy_j, 0.1, 4)
    saved = plan.baseline.energy_j - point.energy_j

    def says(energy_j: float, time_s: float) -> bool:
        return verify(plan, point, without, Iterations(time_s, energy_j, 0.1, 4)).kept

    promised_j = without.energy_j - saved
    assert says(promised_j + 0.018 * without.energy_j, without.time_s)
    assert not says(promised_j + 0.023 * without.energy_j, without.time_s)
    assert says(promised_j, 1.018 * without.time_s)
    assert not says(promised_j, 1.023 * without.time_s)


def test_waiting_at_a_lower_clock_saves_too(plan: Plan) -> None:
    point = plan.by_deadline(plan.baseline.time_s)
    assert saved_j(plan, point, lambda *_: 100.0) == pytest.approx(saved_j(plan, point))
    waiting = Waiting({DEFAULT: 100.0, SLOW: 60.0}, 1980.0)
    more = saved_j(plan, point, lambda _, setting: waiting(setting))
    steps = [step for row in plan.steps(point) for step in row]
    waits_s = plan.schedule.ranks * point.time_s - sum(step.time_s for step in steps)
    assert saved_j(plan, point) < more <= saved_j(plan, point) + 40.0 * waits_s


def test_watts_of_waiting_are_straight_lines_between_measured_clocks() -> None:
    waiting = Waiting({DEFAULT: 120.0, Setting(sm_mhz=990): 90.0}, 1980.0)
    assert waiting(DEFAULT) == waiting(Setting(sm_mhz=1980)) == 120.0
    assert waiting(Setting(sm_mhz=1485)) == pytest.approx(105.0)
    assert waiting(Setting(sm_mhz=345)) == 90.0


def test_changes_too_short_to_act_are_not_played_and_the_promise_knows(plan: Plan) -> None:
    free = playable(plan, 0.0, 0.0)
    assert free == plan.by_deadline(plan.baseline.time_s)
    assert {step.setting for step in plan.steps(free)[1]} == {DEFAULT, SLOW}
    smooth = playable(plan, 0.0, 10.0)
    for row in plan.steps(smooth):
        assert len({step.setting for step in row}) == 1
    assert smooth.time_s <= free.time_s + 1e-9
    assert smooth.energy_j >= free.energy_j


def test_a_plan_made_anew_knows_how_long_operations_really_take(plan: Plan) -> None:
    anew = mended(plan, {(1, "forward"): 2.0, (1, "backward"): 2.0}, 0.0, 0.01)
    assert anew.profile.options[1, "forward"][0].time_s == pytest.approx(0.2)
    assert anew.profile.options[0, "forward"] == plan.profile.options[0, "forward"]
    assert anew.identity == plan.identity
    assert {step.setting for step in anew.steps(anew.by_deadline(anew.baseline.time_s))[1]} <= {DEFAULT, SLOW}


@pytest.mark.parametrize("seed", [0, 1, 6])
def test_where_changes_take_longer_than_operations_a_plan_made_with_few_of_them_may_be_better(seed: int) -> None:
    draw = random.Random(f"stages {seed}")
    options = {}
    for stage in range(3):
        share = draw.uniform(0.6, 1.0)
        for kind, time_s in (("forward", 0.02 * share), ("backward", 0.04 * share)):
            options[stage, kind] = tuple(
                Point(
                    time_s * (0.3 + 0.7 / x),
                    time_s * (0.3 + 0.7 / x) * (100.0 + 300.0 * x**2.5),
                    Setting(sm_mhz=1980 * x) if x < 1 else DEFAULT,
                )
                for x in (1.0, 0.9, 0.8, 0.7, 0.6)
            )
    schedule = named("1f1b", stages=3, microbatches=4, ask=False)
    free = make(schedule, Profile(options), Costs(90.0)).plan
    played, instead = (playable(each, 0.0, 0.06) for each in (mended(free, {}, 0.0, 0.06), free))
    assert played.energy_j < 0.999 * instead.energy_j
    assert played.energy_j > playable(free, 0.0, 0.0).energy_j
    assert played.time_s <= free.baseline.time_s * (1 + 1e-6)
    assert mended(free, {}, 0.0, 0.001).points == free.points


def test_iterations_of_all_ranks_are_one_and_those_that_were_held_up_do_not_count() -> None:
    one = [(1.0, 100.0, 3.0), (5.0, 400.0, 3.0), (1.2, 110.0, 3.0)]
    other = [(1.1, 50.0, 4.0), (4.9, 300.0, 4.0), (1.1, 40.0, 4.0)]
    whole = Iterations.of([one, other])
    assert whole == Iterations(pytest.approx(1.15), pytest.approx(150.0), pytest.approx(50.0**0.5 / 2), 2)
    assert whole.and_(Iterations(1.3, 170.0, 2.5, 3)).energy_j == pytest.approx(160.0)
