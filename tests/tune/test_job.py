"""The tuner of one job: a fold of blocks that saves energy, keeps the bound, and leaves alone what it cannot help."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.block import Role, Rung
from joulewise.core.event import Event, Seen, Shifted
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.core.objective import Budget, Edp, MinEnergy, Money, Objective, Weighted, Within
from joulewise.model.dvfs import Belief
from joulewise.model.learnt import LoadPrior
from joulewise.tune.coins import VOID, void_says
from joulewise.tune.job import JobTuner, Stage
from joulewise.tune.proof import PROOF_REASON
from tests.tune.played_job import SPACE, TOP_MHZ, PlayedJob


def tuner(objective: Objective | None = None, *, space: Space = SPACE, seed: int = 0, **more: object) -> JobTuner:
    belief = Belief(space, model=None, default_limit_w=700.0, seed=seed)
    return JobTuner(belief, objective or MinEnergy(0.05), seed=seed, **more)  # type: ignore[arg-type]


def best(job: PlayedJob, bound: float) -> float:
    clocks = [Setting(sm_mhz=mhz) for mhz in SPACE.knobs["sm_mhz"].all()]
    return max(job.saving(setting) for setting in clocks if job.slowdown(setting) <= bound)


def until_verified(job: PlayedJob, tuned: JobTuner) -> None:
    next(role for role, _ in job.play(tuned) if tuned.verified and tuned.stage is Stage.HOLD)


@pytest.mark.parametrize("bound", [0.02, 0.05])
def test_a_calm_job_ends_near_its_best_setting_and_within_its_bound(bound: float) -> None:
    job, tuned = PlayedJob(), tuner(MinEnergy(bound))
    blocks = job.run(tuned)
    assert job.slowdown(tuned.chosen) <= bound
    assert job.saving(tuned.chosen) > 0.75 * best(job, bound)
    base_s = sum(block.work for _, block in blocks) * job.truth(DEFAULT)[0]
    assert job.time_s / base_s - 1.0 <= bound


def test_the_first_candidate_comes_early_and_is_verified_soon() -> None:
    job, tuned = PlayedJob(step_s=1.0, length_s=200.0), tuner(MinEnergy(0.05))
    steps = candidate_after = verified_after = 0.0
    for role, block in job.play(tuned):
        if role is Role.CANDIDATE and not candidate_after:
            candidate_after = steps
        steps += block.work
        if tuned.verified and not verified_after:
            verified_after = steps
    assert 0 < candidate_after <= 40
    assert 0 < verified_after <= 130


def test_few_settings_are_visited() -> None:
    job = PlayedJob()
    visited = {block.setting for _, block in job.run(tuner())} - {DEFAULT}
    assert 1 <= len(visited) <= 6


def test_while_a_setting_is_held_the_baseline_gets_two_per_cent_of_the_time() -> None:
    job, tuned = PlayedJob(length_s=1500.0), tuner()
    blocks = job.run(tuned)
    held_s = sum(block.duration_s for role, block in blocks if role is Role.HOLD)
    proof_s = sum(block.duration_s for role, block in blocks if role is Role.PROOF)
    assert held_s > 1000.0
    assert 0.01 * held_s < proof_s <= 0.021 * (held_s + proof_s)


def test_a_job_that_no_clock_helps_is_left_alone_quickly() -> None:
    # All of its time scales with the clock, and its power hardly falls.
    job, tuned = PlayedJob(sm_share=1.0, dynamic_w=10.0), tuner(MinEnergy(0.02))
    blocks = job.run(tuned)
    assert tuned.stage is Stage.ALONE
    assert tuned.chosen == DEFAULT
    assert tuned.says.startswith("left alone")
    elsewhere_s = sum(block.duration_s for _, block in blocks if block.setting != DEFAULT)
    assert elsewhere_s < 10.0


def test_without_a_time_signal_nothing_is_tried() -> None:
    job, tuned = PlayedJob(rung=Rung.UNKNOWN, length_s=60.0), tuner()
    assert {block.setting for _, block in job.run(tuned)} == {DEFAULT}
    assert "how fast" in tuned.says


def test_a_ruler_coarser_than_the_bound_is_refused() -> None:
    job, tuned = PlayedJob(noise=0.2, length_s=60.0), tuner(MinEnergy(0.01))
    assert {block.setting for _, block in job.run(tuned)} == {DEFAULT}
    assert "too coarse" in tuned.says


def test_nothing_that_can_be_set_is_left_alone() -> None:
    job, tuned = PlayedJob(length_s=30.0), tuner(space=Space({}))
    assert {block.setting for _, block in job.run(tuned)} == {DEFAULT}
    assert tuned.stage is Stage.ALONE


def test_asking_twice_gives_the_same_move() -> None:
    job, tuned = PlayedJob(length_s=40.0), tuner()
    for _ in job.play(tuned):
        assert tuned.ask() is tuned.ask()


def test_both_halves_of_a_pair_want_equal_work_in_an_order_that_the_seed_draws() -> None:
    orders = set()
    for seed in range(3):
        job, tuned = PlayedJob(length_s=20.0), tuner(seed=seed)
        moves = []
        while job.time_s < job.length_s:
            moves.append(tuned.ask())
            tuned.tell(job.observe(moves[-1]))
        halves = [move for move in moves if move.role in (Role.CANDIDATE, Role.REFERENCE)]
        pairs = list(zip(halves[::2], halves[1::2], strict=False))
        for one, other in pairs:
            assert {one.role, other.role} == {Role.CANDIDATE, Role.REFERENCE}
            assert (one.least_work, one.least_s) == (other.least_work, other.least_s)
        orders.add(tuple(one.role for one, _ in pairs))
    assert len(orders) > 1


def test_a_setting_that_becomes_too_slow_is_given_up_within_two_windows() -> None:
    job, tuned = PlayedJob(length_s=1e9), tuner()
    until_verified(job, tuned)
    chosen = tuned.chosen
    job.stretch = lambda setting, time_s: 1.15 if setting == chosen else 1.0
    windows = 0
    for role, _ in job.play(tuned):
        windows += role is Role.PROOF or role is Role.REFERENCE
        if tuned.chosen != chosen:
            break
        assert windows <= 4  # two that may have begun before, and two
    assert tuned.chosen != chosen


def test_the_whole_job_stays_within_its_bound_when_its_settings_lie() -> None:
    # Settings get slower than they were when they were verified, so slowly that no window shows it clearly.
    job = PlayedJob(length_s=1500.0, stretch=lambda s, time_s: 1.0 + (1e-5 * time_s if s else 0.0))
    tuned = tuner(MinEnergy(0.02))
    blocks = job.run(tuned)
    base_s = sum(block.work for _, block in blocks) * job.truth(DEFAULT)[0]
    assert job.time_s / base_s - 1.0 <= 0.02


def test_proof_windows_are_named_as_the_auditor_knows_them() -> None:
    job, tuned = PlayedJob(length_s=400.0), tuner()
    reasons = set()
    while job.time_s < job.length_s:
        move = tuned.ask()
        if move.role is Role.PROOF:
            reasons.add(move.decision.reason)
        tuned.tell(job.observe(move))
    assert reasons == {PROOF_REASON}


def test_a_pair_whose_half_came_to_nothing_is_no_pair() -> None:
    job, tuned = PlayedJob(), tuner()
    while tuned.ask().role not in (Role.CANDIDATE, Role.REFERENCE):
        tuned.tell(job.observe(tuned.ask()))
    tuned.tell(job.observe(tuned.ask()))
    tuned.tell(None)
    trial = tuned.trials[-1]
    assert trial.pairs == 0
    tuned.tell(job.observe(tuned.ask()))
    tuned.tell(job.observe(tuned.ask()))
    assert trial.pairs == 1


def test_what_an_earlier_run_was_best_at_is_confirmed_without_probing() -> None:
    setting = Setting(sm_mhz=1800.0)
    job, tuned = PlayedJob(length_s=40.0), tuner(start=setting)
    blocks = job.run(tuned)
    assert Role.PROBE not in {role for role, _ in blocks}
    assert next(block.setting for role, block in blocks if role is Role.CANDIDATE) == setting


def test_a_small_shift_has_the_setting_verified_again_and_a_large_one_starts_anew() -> None:
    job, tuned = PlayedJob(length_s=1e9), tuner()
    until_verified(job, tuned)
    chosen = tuned.chosen
    tuned.shift("small")
    assert (tuned.stage, tuned.chosen, tuned.verified) == (Stage.VERIFY, chosen, False)
    job.run(tuned, until_s=job.time_s + 60.0)
    tuned.shift("large")
    assert tuned.ask().role is Role.BASELINE
    job.sm_share = 0.9
    job.run(tuned, until_s=job.time_s + 300.0)
    assert tuned.chosen != chosen
    assert job.slowdown(tuned.chosen) <= 0.055  # what is a little over is held for a part of the time


def test_edp_is_tuned_without_a_bound() -> None:
    job, tuned = PlayedJob(sm_share=0.3), tuner(Edp())
    job.run(tuned)
    setting = tuned.chosen
    assert tuned.verified
    assert (1.0 - job.saving(setting)) * (1.0 + job.slowdown(setting)) < 0.95


@pytest.mark.parametrize("objective", [Money(gpu_hour_price=3.0, kwh_price=0.2), Weighted(eta=0.0, max_power_w=700.0)])
def test_where_time_is_dear_nothing_is_slowed_down(objective: Objective) -> None:
    job, tuned = PlayedJob(sm_share=0.8), tuner(objective)
    blocks = job.run(tuned)
    assert tuned.chosen == DEFAULT
    assert sum(block.duration_s for _, block in blocks if block.setting) < 0.05 * job.length_s


def test_a_power_budget_that_the_default_breaks_is_kept() -> None:
    budget_w = 380.0
    job, tuned = PlayedJob(), tuner(Within(Edp(), Budget(power_w=budget_w)))
    assert job.truth(DEFAULT)[1] > budget_w
    job.run(tuned)
    assert tuned.verified
    assert job.truth(tuned.chosen)[1] <= budget_w


def test_a_bound_around_another_objective_is_kept() -> None:
    job, tuned = PlayedJob(), tuner(Within(Edp(), max_slowdown=0.03))
    job.run(tuned)
    assert tuned.chosen != DEFAULT
    assert job.slowdown(tuned.chosen) <= 0.03


class Refuted(Belief):
    """A belief whose law does not explain what it was told."""

    @property
    def misfit(self) -> float:
        return 10.0


def test_when_the_law_is_refuted_local_search_still_saves_within_the_bound() -> None:
    job = PlayedJob(length_s=1500.0)
    tuned = JobTuner(Refuted(SPACE, model=None, default_limit_w=700.0), MinEnergy(0.05))
    job.run(tuned)
    assert job.slowdown(tuned.chosen) <= 0.05
    assert job.saving(tuned.chosen) > 0.4 * best(job, 0.05)


def test_memory_clocks_and_limits_are_taken_where_they_pay() -> None:
    space = Space({**SPACE.knobs, "memory_mhz": Choices.of([2201.0, 3201.0])})
    # The memory clock costs no time here, and saves nothing either: whatever is chosen keeps the bound.
    job, tuned = PlayedJob(), tuner(space=space)
    job.run(tuned)
    assert job.slowdown(tuned.chosen) <= 0.05
    assert tuned.chosen.get("sm_mhz", TOP_MHZ) < TOP_MHZ


def test_the_frontier_holds_the_default_and_what_is_thriftier() -> None:
    job, tuned = PlayedJob(length_s=60.0), tuner()
    with pytest.raises(ValueError, match="baseline"):
        tuned.frontier()
    job.run(tuned)
    frontier = tuned.frontier()
    assert frontier.thriftiest.energy_j < frontier.fastest.energy_j
    assert frontier.fastest.time_s == pytest.approx(job.step_s, rel=0.02)


def state(tuned: JobTuner) -> tuple[object, ...]:
    trials = [(trial.setting, trial.pairs, trial.verdict.kept) for trial in tuned.trials]
    move = tuned.ask()
    return tuned.stage, tuned.chosen, tuned.says, trials, tuned.debt.seconds, move.role, move.setting, move.least_s


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000), shift_s=st.floats(15.0, 90.0), kind=st.sampled_from(["small", "large"]))
def test_a_replay_of_the_journal_gives_the_state_of_the_one_that_wrote_it(seed: int, shift_s: float, kind: str) -> None:
    job, live = PlayedJob(seed=seed, noise=0.01, length_s=1e9), tuner(MinEnergy(0.03), seed=seed)
    job.run(live, until_s=shift_s)
    before: list[Event] = list(job.seen)
    live.shift(kind)
    shift = Shifted(job.time_s, kind, "another pace")
    idle = Shifted(job.time_s, "idle", "waiting for data")  # not the tuner's business
    job.run(live, until_s=shift_s + 40.0)
    after = job.seen[len(before) :]
    again = tuner(MinEnergy(0.03), seed=seed).replay([*before, shift, idle, *after])
    assert state(again) == state(live)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000), missed=st.sets(st.integers(0, 30), max_size=6), waited_s=st.floats(0.0, 70.0))
def test_a_replay_survives_moves_that_came_to_nothing(seed: int, missed: set[int], waited_s: float) -> None:
    job, live = PlayedJob(seed=seed, length_s=1e9), tuner(seed=seed)
    events: list[Event] = []
    for number in range(30):
        move = live.ask()
        block = job.observe(move)
        if number in missed:
            live.tell(None, waited_s=waited_s)
            events.append(Shifted(job.time_s, VOID, void_says(move.role, waited_s)))
        else:
            live.tell(block)
            events.append(Seen(job.time_s, move.role, block, live.says))
    again = tuner(seed=seed).replay(events)
    assert state(again) == state(live)
    assert [trial.test.wealth for trial in again.trials] == [trial.test.wealth for trial in live.trials]
    assert again.lost_thread == 0


def test_a_journal_that_other_knowledge_led_to_is_followed_all_the_same() -> None:
    job, live = PlayedJob(length_s=1e9), tuner()
    until_verified(job, live)
    job.run(live, until_s=job.time_s + 20.0)
    chosen, trial = live.chosen, next(each for each in live.trials if each.setting == live.chosen)
    expected = LoadPrior({"sm_share": 0.95}, {"sm_share": 0.2})
    belief = Belief(SPACE, model=None, default_limit_w=700.0, prior=expected, seed=9)
    again = JobTuner(belief, MinEnergy(0.05), seed=0).replay(job.seen)
    assert again.lost_thread > 0
    assert (again.chosen, again.stage, again.verified) == (chosen, Stage.HOLD, True)
    same = next(each for each in again.trials if each.setting == chosen)
    assert (same.pairs, same.verdict.kept) == (trial.pairs, True)


@pytest.mark.parametrize("role", [Role.PROBE, Role.CANDIDATE, Role.HOLD])
def test_a_setting_under_which_nothing_can_be_measured_is_charged_and_given_up(role: Role) -> None:
    job, tuned = PlayedJob(length_s=1e9), tuner()
    while tuned.ask().role is not role:
        tuned.tell(job.observe(tuned.ask()))
    lost_s, setting = tuned.debt.seconds, tuned.ask().setting
    for _ in range(12):
        if tuned.ask().setting == DEFAULT and tuned.stage is Stage.ALONE:
            break
        tuned.tell(None if tuned.ask().setting == setting else job.observe(tuned.ask()), waited_s=30.0)
        if role is Role.CANDIDATE and tuned.ask().role is Role.REFERENCE:
            tuned.tell(None)
    assert (tuned.chosen, tuned.stage) == (DEFAULT, Stage.ALONE)
    assert "nothing comparable could be measured" in tuned.says
    assert tuned.debt.seconds > lost_s
    job.run(tuned, until_s=job.time_s + 50.0)
    assert tuned.chosen == DEFAULT  # for a while


@pytest.mark.parametrize("seed", range(3))
def test_what_is_held_before_it_is_verified_is_called_so_and_leaves_the_baseline_what_the_bound_demands(
    seed: int,
) -> None:
    job, tuned = PlayedJob(noise=0.015, length_s=600.0, seed=seed), tuner(MinEnergy(0.01), seed=seed)
    blocks = []
    for role, block in job.play(tuned):
        blocks.append(block)
        if role is Role.HOLD and block.setting and tuned.stage is Stage.HOLD and not tuned.verified:
            assert "not verified" in tuned.says or "not decided" in tuned.says
    held = sum(block.work for block in blocks if block.setting) / sum(block.work for block in blocks)
    assert 0.2 < held < 1.0
    base_s = sum(block.work for block in blocks) * job.truth(DEFAULT)[0]
    assert job.time_s / base_s - 1.0 <= 0.01 + 0.001


def test_a_setting_that_may_cost_more_than_the_bound_is_held_for_a_part_of_the_time() -> None:
    # One clock only, and it costs half as much again as may be lost.
    space = Space({"sm_mhz": Choices.of([1500.0, TOP_MHZ])})
    job = PlayedJob(length_s=1200.0)
    bound = 0.67 * job.slowdown(Setting(sm_mhz=1500.0))
    tuned = tuner(MinEnergy(bound), space=space)
    blocks = [block for _, block in job.run(tuned)]
    work = sum(block.work for block in blocks)
    assert job.time_s / (work * job.truth(DEFAULT)[0]) - 1.0 <= bound


def test_an_unsteady_job_is_measured_on_and_tuned_when_it_calms_down() -> None:
    job, tuned = PlayedJob(noise=0.3, length_s=400.0), tuner(MinEnergy(0.05))
    job.run(tuned, until_s=60.0)
    assert "too coarse" in tuned.says
    job.noise = 0.005
    job.run(tuned)
    assert tuned.chosen != DEFAULT
    assert job.slowdown(tuned.chosen) <= 0.05


def test_nothing_new_is_tried_while_the_whole_job_is_over_its_bound() -> None:
    job, tuned = PlayedJob(length_s=1e9), tuner(MinEnergy(0.02))
    while tuned.ask().role is not Role.CANDIDATE:
        tuned.tell(job.observe(tuned.ask()))
    tuned.debt.charge(20.0)
    first = tuned.trials[-1].setting
    tuned.refuse(first, "slower than it may be")
    while tuned.debt.over and job.time_s < 3000.0:
        assert tuned.ask().setting == DEFAULT
        tuned.tell(job.observe(tuned.ask()))
    job.run(tuned, until_s=job.time_s + 120.0)
    assert tuned.chosen != DEFAULT  # when there is room again


def test_a_setting_refused_after_a_small_shift_has_the_job_measured_anew() -> None:
    job, tuned = PlayedJob(length_s=1e9), tuner()
    until_verified(job, tuned)
    chosen = tuned.chosen
    job.stretch = lambda setting, time_s: 1.2 if setting else 1.0
    tuned.shift("small")
    for role, _ in job.play(tuned, until_s=job.time_s + 100.0):
        if role is Role.BASELINE:
            break
    assert role is Role.BASELINE
    assert tuned.chosen != chosen
