"""The proof: windows where the seed draws them, intervals that cover, and honest silence where too little was seen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.block import Block, Role, Rung
from joulewise.core.event import Seen, Shifted
from joulewise.core.knob import DEFAULT
from joulewise.tune.guard import SlowdownTest, candidate_first, compare
from joulewise.tune.proof import LEAST_WINDOWS, RULER, Schedule, prove
from tests.tune.lived import DEEP, HELD, Life, usual_run


def piece(seconds: float, setting: object = HELD) -> Block:
    return Block(setting, 0.0, seconds, seconds, seconds, 1.0, 0.0, 0.0)  # type: ignore[arg-type]


# The schedule.


@given(seed=st.integers(0, 10**6), share=st.floats(0.005, 0.2), window_s=st.floats(0.5, 30.0), chunk_s=st.floats(1, 40))
def test_windows_never_take_more_than_their_share_and_one_window(
    seed: int, share: float, window_s: float, chunk_s: float
) -> None:
    schedule = Schedule(seed, share, window_s=window_s)
    for _ in range(300):
        if schedule.due:
            schedule.tell(Role.PROOF, piece(window_s, DEFAULT))
        else:
            schedule.tell(Role.HOLD, piece(min(chunk_s, schedule.wait_s + 0.1)))
        assert schedule.spent_s <= share * schedule.held_s + window_s * (1 + 1e-9)


def test_every_stretch_of_life_has_its_window() -> None:
    schedule, starts = Schedule(3, 0.02, window_s=2.0), []
    while schedule.held_s < 5000.0:
        if schedule.due:
            starts.append(schedule.held_s)
            schedule.tell(Role.PROOF, piece(2.0, DEFAULT))
        else:
            schedule.tell(Role.HOLD, piece(1.0))
    assert len(starts) == 50
    for index, start_s in enumerate(starts):
        assert 100.0 * index <= start_s <= 100.0 * (index + 1) + 5.0


def test_windows_fall_anywhere_in_their_stretch() -> None:
    places = [Schedule(seed, 0.02, window_s=2.0).due_s / 100.0 for seed in range(400)]
    assert np.histogram(places, bins=4, range=(0, 1))[0].min() > 70


def test_longer_windows_come_less_often() -> None:
    schedule = Schedule(1, 0.02, window_s=2.0)
    schedule.tell(Role.HOLD, piece(schedule.wait_s))
    schedule.tell(Role.PROOF, piece(10.0, DEFAULT))
    # Twelve seconds are paid for with six hundred, of which the next window may lie anywhere.
    schedule.tell(Role.HOLD, piece(schedule.wait_s))
    schedule.tell(Role.PROOF, piece(10.0, DEFAULT))
    assert schedule.spent_s / schedule.share <= schedule.held_s + schedule.wait_s + 1500.0
    assert schedule.windows == 2


def test_the_same_seed_draws_the_same_windows_and_each_phase_its_own() -> None:
    assert Schedule(5).due_s == Schedule(5).due_s
    assert Schedule(5).due_s != Schedule(6).due_s
    assert Schedule(5, phase="rollout").due_s != Schedule(5, phase="train").due_s


def test_holding_the_default_brings_no_window_nearer() -> None:
    schedule = Schedule(5)
    schedule.tell(Role.HOLD, piece(1000.0, DEFAULT))
    schedule.tell(Role.CANDIDATE, piece(1000.0))
    assert schedule.held_s == 0.0


@pytest.mark.parametrize(("share", "window_s"), [(0.0, 1.0), (1.0, 1.0), (0.02, 0.0)])
def test_a_schedule_without_sense_is_refused(share: float, window_s: float) -> None:
    with pytest.raises(ValueError, match=r"share|window"):
        Schedule(0, share, window_s=window_s)


# The estimate.


def test_without_noise_the_effect_is_found_exactly() -> None:
    proof = prove(usual_run().seen)
    assert proof.held_energy is not None
    assert proof.held_time is not None
    assert proof.held_energy.value == pytest.approx(-0.08)
    assert proof.held_time.value == pytest.approx(0.01)
    assert proof.windows == 12
    assert proof.baseline_share == pytest.approx(0.02, abs=0.004)


def test_the_whole_run_counts_probing_and_windows() -> None:
    life = usual_run()
    proof = prove(life.seen)
    assert proof.energy is not None
    assert proof.time is not None
    assert proof.energy.value == pytest.approx(life.used_j / life.default_j - 1)
    assert proof.time.value == pytest.approx(life.used_s / life.default_s - 1)
    assert proof.saved_j == pytest.approx(life.default_j - life.used_j)
    assert abs(proof.energy.value) < 0.08


def test_a_steady_drift_cancels() -> None:
    life = Life(drift=lambda now_s: 0.0005 * now_s)
    life.hold(1200.0)
    proof = prove(life.seen)
    assert proof.held_energy is not None
    assert proof.held_energy.value == pytest.approx(-0.08, abs=0.002)


@pytest.mark.parametrize("windows", [5, 15])
def test_intervals_cover_the_truth(windows: int) -> None:
    covered = 0
    runs = 300
    for seed in range(runs):
        life = Life(seed=seed, noise=0.02, drift=lambda now_s: 0.05 * math.sin(now_s / 300.0))
        life.hold(100.0 * windows)
        proof = prove(life.seen)
        assert proof.energy is not None
        assert proof.time is not None
        truth_j, truth_s = life.used_j / life.default_j - 1, life.used_s / life.default_s - 1
        covered += (proof.energy.low <= truth_j <= proof.energy.high) + (proof.time.low <= truth_s <= proof.time.high)
        assert abs(proof.energy.high - proof.energy.low) < 0.3
    assert covered / (2 * runs) >= 0.93


def test_few_windows_claim_nothing() -> None:
    life = Life()
    life.hold(99.0 * (LEAST_WINDOWS - 1))
    proof = prove(life.seen)
    assert proof.windows < LEAST_WINDOWS
    assert proof.energy is None
    assert proof.saved_j is None
    assert proof.event(0.0) is None
    assert "cannot be judged" in proof.says
    assert "are needed" in proof.unjudged[0]


def test_verification_pairs_serve_where_windows_are_few_and_the_proof_says_so() -> None:
    proof = prove(usual_run(hold_s=120.0).seen)
    assert proof.pairs == 6
    assert proof.held_time is not None
    assert proof.held_time.value == pytest.approx(0.01)
    assert any("verification pairs" in line for line in proof.unjudged)


def test_the_interval_narrows_as_comparisons_come() -> None:
    """Pairs are not dropped when there are windows enough: the fourth window once made the interval three times as
    wide."""
    for seed in range(6):
        life, halves = Life(seed=seed, noise=0.02), []
        life.block(Role.BASELINE, DEFAULT, 5.0)
        for index in range(12):
            life.pair(0, index)
        while life.schedule.windows < 12:
            life.hold(30.0)
            proof = prove(life.seen)
            assert proof.held_time is not None
            halves.append(proof.held_time.half)
        assert all(later < 1.3 * earlier for earlier, later in itertools.pairwise(halves))
        assert halves[-1] < halves[0]


def test_settings_held_between_pairs_are_judged_each_by_its_own() -> None:
    """Long holds, pairs whose order coins draw, and no window: the deeper setting was held for less of the life."""
    covered = runs = 0
    for seed in range(150):
        life = Life(seed=seed, noise=0.01, share=0.001, drift=lambda now_s: 0.05 * math.sin(now_s / 100.0))
        life.block(Role.BASELINE, DEFAULT, 5.0)
        for trial, (setting, pairs, hold_s) in enumerate([(DEEP, 5, 6.0), (HELD, 12, 25.0)]):
            for index in range(pairs):
                life.pair(trial, index, setting)
                life.block(Role.HOLD, setting, hold_s)
        proof = prove(life.seen)
        assert proof.energy is not None
        assert proof.time is not None
        assert (proof.windows, proof.pairs) == (0, 17)
        truth_j, truth_s = life.used_j / life.default_j - 1, life.used_s / life.default_s - 1
        covered += (proof.energy.low <= truth_j <= proof.energy.high) + (proof.time.low <= truth_s <= proof.time.high)
        runs += 2
    assert covered / runs >= 0.93


def test_single_comparisons_of_many_settings_are_judged_as_one() -> None:
    life = Life()
    life.block(Role.BASELINE, DEFAULT, 5.0)
    for trial, mhz in enumerate((1500, 1000, 1500, 1000)):
        setting = HELD if mhz == 1500 else DEEP
        life.pair(trial, 0, setting)
        life.block(Role.HOLD, setting, 10.0)
    proof = prove(life.seen)
    assert proof.held_time is not None
    assert proof.pairs == 4
    assert 0.01 < proof.held_time.value < 0.021
    assert proof.held_time.low < 0.01
    assert proof.held_time.high > 0.0201


def test_slack_has_an_effect_of_its_own() -> None:
    """Pairs compared the common setting: what was held with slack is judged by the windows beside it."""
    life = usual_run(hold_s=300.0)
    slack = Life(seed=7, energy_effect=math.log(0.8), now_s=life.now_s)
    slack.hold(600.0)
    marked = [
        replace(each, block=replace(each.block, slack=True)) if each.role is Role.HOLD else each for each in slack.seen
    ]
    proof = prove([*life.seen, *marked])
    assert proof.energy is not None
    used, default = life.used_j + slack.used_j, life.default_j + slack.default_j
    assert proof.energy.value == pytest.approx(used / default - 1)


def test_pairs_that_decide_when_to_stop_still_give_intervals_that_cover() -> None:
    """The guard keeps a candidate when its pairs look good: that choice must not spoil the interval."""
    covered = kept = 0
    for seed in range(300):
        life, test = Life(seed=seed, noise=0.01), SlowdownTest(0.02, 0.025, most_pairs=30)
        life.block(Role.BASELINE, DEFAULT, 3.0)
        while test.verdict.kept is None:
            halves = [(Role.CANDIDATE, HELD), (Role.REFERENCE, DEFAULT)]
            first = candidate_first(seed, 0, test.pairs)
            for role, setting in halves if first else reversed(halves):
                life.block(role, setting, 1.0)
            one, other = (each.block for each in life.seen[-2:])
            test.add(*compare(*((one, other) if first else (other, one))))
        if test.verdict.kept:
            life.block(Role.HOLD, HELD, 50.0)
            kept += 1
            proof = prove(life.seen)
            assert proof.held_time is not None
            covered += proof.held_time.low <= 0.01 <= proof.held_time.high
    assert kept > 100
    assert covered / kept >= 0.93


def test_a_window_is_not_compared_across_a_shift() -> None:
    life = Life(drift=lambda now_s: 0.7 if now_s > 500.0 else 0.0)
    life.hold(500.0)
    shift = Shifted(life.now_s, "large", "the batch doubled")
    life.hold(500.0)
    honest = prove(life.seen, [shift])
    assert honest.held_time is not None
    assert honest.held_time.value == pytest.approx(0.01)


def test_phases_are_weighed_with_what_was_held_in_each() -> None:
    train = Life(seed=1, phase="train")
    train.hold(2000.0)
    rollout = Life(seed=1, phase="rollout", energy_effect=math.log(0.70), time_effect=math.log(1.05), now_s=train.now_s)
    rollout.hold(1000.0)
    proof = prove([*train.seen, *rollout.seen])
    assert proof.energy is not None
    used, default = train.used_j + rollout.used_j, train.default_j + rollout.default_j
    assert proof.energy.value == pytest.approx(used / default - 1)


def test_a_phase_of_one_window_is_judged_by_it_and_by_the_scatter_of_all() -> None:
    train = Life(seed=1, phase="train", noise=0.01)
    train.hold(1000.0)
    rollout = Life(seed=1, phase="rollout", noise=0.01, energy_effect=math.log(0.7), now_s=train.now_s)
    while not rollout.schedule.windows:
        rollout.hold(1.0)
    rollout.hold(20.0)
    alone, both = prove(train.seen), prove([*train.seen, *rollout.seen])
    assert alone.energy is not None
    assert both.energy is not None
    used, default = train.used_j + rollout.used_j, train.default_j + rollout.default_j
    assert both.energy.low <= used / default - 1 <= both.energy.high
    assert both.energy.value < alone.energy.value - 0.005


def test_what_was_held_where_nothing_was_compared_is_judged_by_its_baseline_and_named() -> None:
    train = Life(seed=1, phase="train")
    train.hold(1000.0)
    rollout = Life(seed=1, phase="rollout", energy_effect=math.log(0.7), now_s=train.now_s)
    rollout.block(Role.BASELINE, DEFAULT, 3.0)
    rollout.block(Role.HOLD, HELD, 5.0)
    proof = prove([*train.seen, *rollout.seen])
    assert proof.energy is not None
    assert any(line.startswith("phase rollout") for line in proof.unjudged)
    used, default = train.used_j + rollout.used_j, train.default_j + rollout.default_j
    assert proof.energy.value == pytest.approx(used / default - 1)


def test_a_phase_of_few_windows_is_judged_by_its_pairs() -> None:
    train = Life(seed=1, phase="train")
    train.hold(1000.0)
    rollout = usual_run(hold_s=60.0, phase="rollout", energy_effect=math.log(0.7), now_s=train.now_s)
    proof = prove([*train.seen, *rollout.seen])
    assert proof.energy is not None
    assert proof.pairs == 6
    used, default = train.used_j + rollout.used_j, train.default_j + rollout.default_j
    assert proof.energy.value == pytest.approx(used / default - 1)


def test_a_job_left_alone_saved_nothing_but_what_probing_cost() -> None:
    life = Life(energy_effect=math.log(1.05))
    life.block(Role.BASELINE, DEFAULT, 10.0)
    life.block(Role.PROBE, DEEP, 5.0)
    life.block(Role.HOLD, DEFAULT, 500.0)
    proof = prove(life.seen)
    assert proof.energy is not None
    assert proof.held_energy is None
    assert proof.energy.value == pytest.approx(life.used_j / life.default_j - 1)
    assert proof.energy.value > 0
    assert proof.says.startswith("lost")


def test_nothing_seen_is_nothing_proven() -> None:
    proof = prove([])
    assert proof.energy is None
    assert proof.windows == 0


def test_time_outside_blocks_is_stated() -> None:
    life = Life()
    life.hold(500.0)
    life.now_s += 100.0
    life.hold(200.0)
    assert any("100 s of 8" in line for line in prove(life.seen).unjudged)


def test_it_says_what_a_user_wants_to_know() -> None:
    says = prove(usual_run(noise=0.003).seen).says
    assert says.startswith("saved 7.")
    assert "±" in says
    assert "time" in says
    assert "kJ" in says


def test_probing_in_a_phase_never_seen_at_default_is_stated() -> None:
    life = Life(phase="rollout")
    life.block(Role.PROBE, DEEP, 5.0)
    other = Life(phase="train", now_s=life.now_s)
    other.block(Role.BASELINE, DEFAULT, 50.0)
    proof = prove([*life.seen, *other.seen])
    assert any("5.0 s of probing" in line for line in proof.unjudged)


def test_it_is_quick_enough_to_be_asked_after_each_window() -> None:
    life = Life(share=0.02)
    life.hold(20_000.0)
    seen: list[Seen] = life.seen
    assert prove(seen).windows == 200


def test_blocks_without_energy_are_passed_over_and_stated() -> None:
    life = usual_run()
    empty = [replace(each, block=replace(each.block, energy_j=0.0)) for each in life.seen[-2:]]
    proof = prove([*life.seen, *empty])
    assert proof.energy is not None
    assert "2 blocks whose energy could not be read" in proof.unjudged


def test_blocks_of_two_rulers_are_never_compared() -> None:
    """Counters first, hooks after: a unit of work is four steps, then one."""
    first = Life(seed=1, rung=Rung.PERIOD, unit_s=0.4)
    first.block(Role.BASELINE, DEFAULT, 5.0)
    first.block(Role.PROBE, DEEP, 3.0)
    first.hold(700.0)
    first.block(Role.PROBE, DEEP, 3.0)  # its nearest block at default is the other ruler's
    first.events.append(Shifted(first.now_s, RULER, "steps are told by hooks"))
    second = Life(seed=1, now_s=first.now_s, events=first.events)
    second.block(Role.BASELINE, DEFAULT, 5.0)
    second.block(Role.PROBE, DEEP, 3.0)
    second.hold(700.0)
    proof = prove(second.seen, second.shifts)
    assert proof.held_energy is not None
    assert proof.held_energy.value == pytest.approx(0.92 - 1, abs=1e-9)
    assert proof.saved_j == pytest.approx(first.default_j + second.default_j - first.used_j - second.used_j, rel=1e-6)


def test_a_ruler_found_anew_may_count_in_another_unit() -> None:
    """The same kind of ruler, twice as coarse: windows at the border have no neighbour on the other side."""
    life = Life(seed=2, rung=Rung.PERIOD)
    life.hold(600.0)
    life.events.append(Shifted(life.now_s, RULER, "the period is twice as long"))
    coarse = Life(seed=2, rung=Rung.PERIOD, unit_s=0.2, now_s=life.now_s, events=life.events)
    coarse.block(Role.PROOF, DEFAULT, 2.0)
    coarse.hold(600.0)
    proof = prove(coarse.seen, coarse.shifts)
    assert proof.held_time is not None
    assert proof.held_time.value == pytest.approx(0.01, abs=1e-9)
    assert proof.held_time.half < 1e-4


def test_a_pair_that_was_broken_off_lends_no_half_to_the_next() -> None:
    life = Life(noise=0.0, drift=lambda time_s: 0.05 * (time_s > 100.0))
    for index in range(4):
        life.pair(0, index)
    life.block(Role.CANDIDATE, HELD, 1.0)
    life.block(Role.REFERENCE, DEFAULT, 1.0)
    life.lose(1, said=True)
    life.now_s = 120.0  # an evaluation later, when the job is slower
    life.block(Role.REFERENCE, DEFAULT, 1.0)
    life.block(Role.CANDIDATE, HELD, 1.0)
    life.hold(20.0)
    proof = prove(life.seen, life.shifts)
    assert proof.pairs == 5
    assert proof.held_time is not None
    assert proof.held_time.value == pytest.approx(0.01, abs=1e-9)


def test_work_after_the_last_block_is_stated() -> None:
    life = usual_run()
    (said,) = prove(life.seen, ended_s=life.now_s + 720.0).unjudged
    assert said.startswith("720 s of")
