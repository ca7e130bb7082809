"""Plans made from schedules and profiles keep their promise, and are as good as the frontier says they can be."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.plan import Costs, play
from joulewise.plan.plan_files import from_json, to_json
from joulewise.plan.plan_identity import Fact, Identity, parallelism
from joulewise.plan.plan_making import make
from joulewise.plan.profile import Profile
from joulewise.plan.profile_files import read
from joulewise.plan.schedules import read_actions
from joulewise.plan.schedules_named import named
from tests.plan.made_up import profile

ORDER = named("1f1b", stages=3, microbatches=6, ask=False)
COSTS = Costs(80.0, 4)


def test_points_run_from_the_fastest_to_the_thriftiest_and_keep_as_fast_as_nothing_set() -> None:
    made = make(ORDER, profile(3), COSTS)
    points, base = made.plan.points, made.plan.baseline
    assert 5 < len(points) <= 34
    assert points[0].time_s == pytest.approx(made.frontier.t_min_s, rel=1e-6)
    assert points[-1].time_s <= made.frontier.t_star_s * (1 + 1e-6)
    same = made.plan.by_deadline(base.time_s)
    assert same.energy_j < base.energy_j
    assert same.time_s <= base.time_s * (1 + 1e-6)


def test_no_point_is_below_its_bound_nor_far_above_it() -> None:
    for point in make(ORDER, profile(3), COSTS).plan.points:
        assert point.bound_j is not None
        assert point.bound_j <= point.energy_j * (1 + 1e-6)


def test_of_a_small_pipeline_no_choice_of_clocks_beats_the_bound() -> None:
    """Every choice there is, played: two stages, one microbatch, three clocks each."""
    order = read_actions([["0F0", "0B0"], ["1F0", "1B0"]])
    measured = profile(2)
    made = make(order, measured, COSTS, points=9)
    every = [play(order, chosen, COSTS) for chosen in itertools.product(*measured.of(order.dag))]
    for point in made.plan.points:
        least_j = min(energy_j for time_s, energy_j in every if time_s <= point.time_s * (1 + 1e-9))
        assert point.bound_j is not None
        assert point.bound_j <= least_j * (1 + 1e-6)
        assert point.energy_j <= least_j * 1.1


def test_more_gpus_a_rank_multiply_the_energy_and_change_nothing_else() -> None:
    one, four = (make(ORDER, profile(3), Costs(80.0, gpus)).plan for gpus in (1, 4))
    assert one.baseline.energy_j * 4 == pytest.approx(four.baseline.energy_j)
    assert [point.choice for point in one.points] == [point.choice for point in four.points]
    assert [point.energy_j * 4 for point in one.points] == pytest.approx([point.energy_j for point in four.points])


def test_a_deadline_that_is_asked_for_is_kept_to_and_one_that_cannot_be_is_refused() -> None:
    made = make(ORDER, profile(3), COSTS, points=2, deadlines_s=[1.7])
    near = [point.time_s for point in made.plan.points if point.time_s <= 1.7]
    assert max(near) > 1.68
    with pytest.raises(BadSpec, match=r"no plan ends within 0\.1 s"):
        make(ORDER, profile(3), COSTS, deadlines_s=[0.1])
    with pytest.raises(BadSpec, match="0 points is none"):
        make(ORDER, profile(3), COSTS, points=0)


def test_changes_of_clock_cost_time_and_are_then_rarer() -> None:
    def changes(costs: Costs) -> int:
        plan = make(ORDER, profile(3), costs).plan
        rows = plan.steps(plan.by_deadline(plan.baseline.time_s * 1.05))
        return sum(one.setting != next_.setting for row in rows for one, next_ in itertools.pairwise(row))

    assert changes(Costs(80.0, switch_s=0.02, switch_j=1.0)) < changes(Costs(80.0))


def test_noisy_and_bent_curves_are_planned_all_the_same() -> None:
    bent = {
        key: (*points, Point(points[1].time_s * 1.001, points[0].energy_j * 1.3, Setting(sm_mhz=1195)))
        for key, points in profile(3).options.items()
    }
    plan = make(ORDER, Profile(bent), COSTS).plan
    assert all(
        step.setting != Setting(sm_mhz=1195) for point in plan.points for row in plan.steps(point) for step in row
    )


def test_a_grid_of_slopes_promises_no_bound() -> None:
    assert {point.bound_j for point in make(ORDER, profile(3), COSTS, slope_grid_w=5.0).plan.points} == {None}


def test_what_it_is_for_goes_with_it_and_the_whole_comes_back_from_json() -> None:
    identity = Identity(model=Fact.of("tiny"), gpu=Fact.of("NVIDIA H200"))
    plan = make(ORDER, profile(3), COSTS, identity=identity, assumptions=["none"]).plan
    assert plan.identity.model == identity.model
    assert plan.identity.parallelism == parallelism(ORDER, 4)
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("name", ["gpipe", "zero-bubble", "interleaved"])
def test_every_kind_of_schedule_can_be_planned(name: str) -> None:
    ranks = 2 if name == "interleaved" else None
    order = named(name, stages=4, microbatches=6, ranks=ranks, ask=False)
    plan = make(order, profile(4).with_split_backward(0.5), COSTS).plan
    assert plan.by_deadline(plan.baseline.time_s).energy_j < plan.baseline.energy_j


def test_transfers_make_the_iteration_longer() -> None:
    slow = named("1f1b", stages=3, microbatches=6, transfer_s=0.05, ask=False)
    assert make(slow, profile(3), COSTS).plan.points[0].time_s > make(ORDER, profile(3), COSTS).plan.points[0].time_s


def test_a_published_profile_saves_what_was_published(data: Path) -> None:
    """GPT-3 175B on A100, 8 stages: 15.2 % at 12 microbatches by Perseus' own emulation."""
    measured = read(data / "perseus/stage_profile/gpt3-175b+a100_sxm_bf16.csv").scaled(time=10.0, energy=10.0)
    plan = make(named("1f1b", stages=8, microbatches=12, ask=False), measured, Costs(83.64, 8)).plan
    same = plan.by_deadline(plan.baseline.time_s)
    assert 1 - same.energy_j / plan.baseline.energy_j == pytest.approx(0.152, abs=0.01)
