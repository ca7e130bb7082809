"""Verification: an honest journal passes, and whatever is done to it is told."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from joulewise.core.block import Role, Rung
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted, from_json, to_json
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.proof import prove
from joulewise.tune.verify import verify
from tests.tune.lived import DEEP, HELD, Life, seal_of, usual_run


def windows(events: list[Event]) -> list[int]:
    return [i for i, event in enumerate(events) if isinstance(event, Seen) and event.role is Role.PROOF]


def claimed_again(events: list[Event]) -> list[Event]:
    """The journal of somebody who also rewrites the claim, so that it fits the blocks, and seals it again."""
    seen = [event for event in events if isinstance(event, Seen)]
    made: list[Event] = []
    for event in events:
        proven = prove(seen).event(event.time_s) if isinstance(event, Proven) else None
        if isinstance(event, Finished):
            event = replace(event, facts={**event.facts, "seal": seal_of(made)})
        made.append(proven or event)
    return made


def test_an_honest_journal_bears_out_its_claim() -> None:
    events = usual_run(noise=0.01).finish()
    found = verify(events)
    assert found.problems == ()
    assert found.sound
    assert found.proof == prove([event for event in events if isinstance(event, Seen)])


def test_it_survives_being_written_and_read() -> None:
    events = usual_run(noise=0.01).finish()
    assert verify([from_json(to_json(event)) for event in events]).problems == ()


def test_windows_that_came_to_nothing_now_and_then_are_no_problem() -> None:
    life = usual_run(noise=0.01)
    while not life.schedule.due:
        life.block(Role.HOLD, HELD, 1.0)
    life.miss()
    life.hold(600.0)
    assert verify(life.finish()).problems == ()


def test_a_window_begun_again_after_a_shift_is_no_problem() -> None:
    life = usual_run(noise=0.01)
    while not life.schedule.due:
        life.block(Role.HOLD, HELD, 1.0)
    last = next(
        event for event in reversed(life.events) if isinstance(event, Decided) and event.decision.setting == DEFAULT
    )
    life.events.append(replace(last, time_s=life.now_s))
    life.events.append(Shifted(life.now_s, "small", "the job changed a little"))
    life.hold(600.0)
    assert verify(life.finish()).problems == ()


def test_the_held_half_of_a_pair_may_come_before_its_window() -> None:
    life = usual_run()
    while not life.schedule.due:
        life.block(Role.HOLD, HELD, 1.0)
    life.block(Role.HOLD, HELD, 2.0)
    life.hold(600.0)
    assert verify(life.finish()).problems == ()


def test_each_phase_has_its_own_windows() -> None:
    train = Life(seed=4, phase="train")
    train.hold(800.0)
    rollout = Life(seed=4, phase="rollout", now_s=train.now_s, events=train.events)
    rollout.hold(800.0)
    assert verify(rollout.finish()).problems == ()


def with_less_energy(events: list[Event]) -> list[Event]:
    changed = list(events)
    place = next(i for i, e in enumerate(events) if isinstance(e, Seen) and e.role is Role.HOLD)
    seen = changed[place]
    assert isinstance(seen, Seen)
    changed[place] = replace(seen, block=replace(seen.block, energy_j=0.5 * seen.block.energy_j))
    return changed


def without_a_window(events: list[Event]) -> list[Event]:
    place = windows(events)[3]
    return events[: place - 1] + events[place + 1 :]


def with_a_window_too_many(events: list[Event]) -> list[Event]:
    place = windows(events)[3]
    holds = [i for i, e in enumerate(events) if isinstance(e, Seen) and e.role is Role.HOLD and i > place]
    seen = events[holds[1]]
    assert isinstance(seen, Seen)
    window = events[place]
    assert isinstance(window, Seen)
    moved = replace(window, block=replace(window.block, start_s=seen.block.end_s, end_s=seen.block.end_s + 0.0))
    long = replace(moved, block=replace(moved.block, start_s=seen.block.end_s - 2.0, end_s=seen.block.end_s))
    return [*events[: holds[1] + 1], events[place - 1], long, *events[holds[1] + 1 :]]


def with_another_seed(events: list[Event]) -> list[Event]:
    began = events[0]
    assert isinstance(began, Began)
    return [replace(began, facts={**began.facts, "seed": 999}), *events[1:]]


def with_a_smaller_promise(events: list[Event]) -> list[Event]:
    began = events[0]
    assert isinstance(began, Began)
    return [replace(began, facts={**began.facts, "proof_share": 0.005}), *events[1:]]


def without_a_beginning(events: list[Event]) -> list[Event]:
    return events[1:]


def without_facts(events: list[Event]) -> list[Event]:
    return [Began(0.0, "run", {}), *events[1:]]


def with_an_undecided_block(events: list[Event]) -> list[Event]:
    place = next(i for i, e in enumerate(events) if isinstance(e, Decided))
    return events[:place] + events[place + 1 :]


def with_a_window_at_another_setting(events: list[Event]) -> list[Event]:
    changed, place = list(events), windows(events)[2]
    seen = changed[place]
    assert isinstance(seen, Seen)
    changed[place] = replace(seen, block=replace(seen.block, setting=HELD))
    return changed


def with_too_much_work(events: list[Event]) -> list[Event]:
    changed, place = list(events), windows(events)[2]
    seen = changed[place]
    assert isinstance(seen, Seen)
    changed[place] = replace(seen, block=replace(seen.block, duration_s=3 * seen.block.duration_s))
    return changed


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (without_a_window, "window is missing"),
        (with_a_window_too_many, "not where the seed draws it"),
        (with_another_seed, "window"),
        (with_a_smaller_promise, "promised were 0.5%|seed draws"),
        (without_a_beginning, "how the run began"),
        (without_facts, "does not say seed, proof_share, proof_window_s"),
        (with_an_undecided_block, "without having been decided on"),
        (with_a_window_at_another_setting, "not at default|decided on"),
        (with_too_much_work, "more clean work than it lasted"),
    ],
)
def test_what_is_done_to_a_journal_is_told_even_if_the_claim_is_rewritten(
    done: Callable[[list[Event]], list[Event]], told: str
) -> None:
    problems = verify(claimed_again(done(usual_run(noise=0.01).finish()))).problems
    assert any(part in problem for problem in problems for part in told.split("|"))


def test_an_edited_block_no_longer_fits_the_claim() -> None:
    problems = verify(with_less_energy(usual_run(noise=0.01).finish())).problems
    assert any("the proof says energy_change" in problem for problem in problems)


def test_dropping_the_windows_one_does_not_like_is_told() -> None:
    events = usual_run(noise=0.01, hold_s=2000.0).finish()
    dropped = set(windows(events)[::3])
    kept = [event for i, event in enumerate(events) if i not in dropped]
    problems = verify(claimed_again(kept)).problems
    assert any("baseline windows were never seen" in problem for problem in problems)


def test_a_run_that_ended_without_a_claim_is_told() -> None:
    events = [event for event in usual_run().finish() if not isinstance(event, Proven)]
    assert verify(claimed_again(events)).problems == ("the run finished without journalling its proof",)


def test_a_run_that_was_killed_has_nothing_to_claim_but_did_not_end() -> None:
    (problem,) = verify(usual_run().events).problems
    assert "the run did not end" in problem


def pairs(events: list[Event]) -> list[tuple[int, int]]:
    """Where the two halves of each pair were seen."""
    halves = [i for i, e in enumerate(events) if isinstance(e, Seen) and e.role in (Role.CANDIDATE, Role.REFERENCE)]
    return list(zip(halves[::2], halves[1::2], strict=True))


def long_trial(seed: int = 0) -> list[Event]:
    """A run that is proven by pairs alone."""
    life = Life(seed=seed, noise=0.02)
    life.block(Role.BASELINE, DEFAULT, 5.0)
    for index in range(20):
        life.pair(0, index)
    life.hold(60.0)
    return life.finish()


def without(events: list[Event], places: set[int]) -> list[Event]:
    """Each of these Seen, and the Decided before it, taken out."""
    return [event for i, event in enumerate(events) if i not in places and i + 1 not in places]


@pytest.mark.parametrize("seed", range(8))
def test_deleting_the_pairs_one_does_not_like_is_told(seed: int) -> None:
    events = long_trial(seed)
    assert verify(events).problems == ()

    def saved(pair: tuple[int, int]) -> float:
        one, other = (events[place] for place in pair)
        assert isinstance(one, Seen)
        assert isinstance(other, Seen)
        ratio = one.block.unit_j / other.block.unit_j
        return ratio if one.role is Role.CANDIDATE else 1 / ratio

    worst = sorted(pairs(events), key=saved)[10:]
    problems = verify(claimed_again(without(events, {place for pair in worst for place in pair}))).problems
    assert any("not run in the order that the seed draws" in problem for problem in problems)


def test_pairs_run_in_an_order_of_ones_own_are_told() -> None:
    life = Life()
    for _ in range(8):
        life.block(Role.CANDIDATE, HELD, 1.0)
        life.block(Role.REFERENCE, DEFAULT, 1.0)
    assert any("order that the seed draws" in problem for problem in verify(life.finish()).problems)


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_pairs_that_came_to_nothing_used_up_their_coins(seed: int, said: bool) -> None:
    """Whole pairs, and either half of one. The journal says so; one that does not is told, but its coins are right."""
    life, draws = Life(seed=seed), random.Random(seed)
    life.block(Role.BASELINE, DEFAULT, 5.0)
    for trial, setting in enumerate((DEEP, HELD)):
        for index in range(14):
            seen = len(life.seen)
            life.pair(trial, index, setting)
            lost = draws.choice([0, 0, 0, 0, 1, 2])  # halves that came to nothing, from the last
            if len(life.seen) == seen + 2 and lost:
                life.lose(lost, said=said)
    life.hold(300.0)
    problems = verify(life.finish()).problems
    assert all("neither seen nor broken off" in problem for problem in problems)
    assert bool(problems) is not said


def test_a_setting_that_is_tried_again_has_a_new_number() -> None:
    life = Life(seed=3)
    life.block(Role.BASELINE, DEFAULT, 5.0)
    for trial, setting in enumerate((HELD, DEEP, HELD)):
        for index in range(9):
            life.pair(trial, index, setting)
    life.events.append(Shifted(life.now_s, "small", "the job changed a little"))
    for index in range(9):
        life.pair(3, index)
    life.hold(300.0)
    assert verify(life.finish()).problems == ()


def test_a_journal_that_was_cut_off_did_not_end() -> None:
    events = usual_run(noise=0.01).finish()
    problems = verify(events[: len(events) // 2]).problems
    assert [problem for problem in problems if "the run did not end" in problem]


def test_blocks_after_the_last_claim_are_told() -> None:
    events = usual_run(noise=0.01).finish()
    claim = next(i for i, event in enumerate(events) if isinstance(event, Proven))
    early = [*events[: claim - 4], events[claim], *events[claim - 4 : claim], *events[claim + 1 :]]
    problems = verify(early).problems
    assert any("seen after the last claim" in problem for problem in problems)
    assert any("time goes back" in problem for problem in problems)


def test_what_is_written_after_the_end_is_told() -> None:
    events = usual_run().finish()
    events.append(Shifted(events[-1].time_s, "small", "the job changed a little"))
    assert any("goes on after the run's end" in problem for problem in verify(events).problems)


def test_a_seal_fits_what_it_was_put_on_and_nothing_else() -> None:
    events = usual_run(noise=0.01).finish()
    assert verify([from_json(to_json(event)) for event in events]).problems == ()
    probe = next(i for i, event in enumerate(events) if isinstance(event, Seen) and event.role is Role.PROBE)
    problems = verify(without(events, {probe})).problems
    assert any("taken out, put in or changed" in problem for problem in problems)
    problems = verify([*events[:-1], replace(events[-1], facts={})]).problems
    assert problems == ("the run's end carries no seal of what was written before it",)


def test_an_honest_run_whose_ruler_changed_is_sound() -> None:
    first = Life(seed=5, rung=Rung.PERIOD, unit_s=0.4)
    first.block(Role.BASELINE, DEFAULT, 5.0)
    for index in range(6):
        first.pair(0, index)
    first.hold(700.0)
    first.events.append(Shifted(first.now_s, "ruler", "steps are told by hooks"))
    second = Life(seed=5, now_s=first.now_s, events=first.events)
    second.block(Role.BASELINE, DEFAULT, 5.0)
    for index in range(6):
        second.pair(0, index)
    second.hold(700.0)
    assert verify(second.finish()).problems == ()


def test_a_claim_that_the_blocks_cannot_show_is_told() -> None:
    life = Life()
    life.hold(50.0)
    life.events.append(Proven(life.now_s, -0.2, 0.01, 0.0, 0.01))
    assert any("cannot show" in problem for problem in verify(life.events).problems)


def test_an_empty_journal_says_so() -> None:
    assert verify([]).problems == ("the journal does not say how the run began",)


def test_a_run_whose_baseline_is_gone_is_told() -> None:
    events = long_trial()
    baseline = next(i for i, event in enumerate(events) if isinstance(event, Seen) and event.role is Role.BASELINE)
    problems = verify(claimed_again(without(events, {baseline}))).problems
    assert any("no baseline was seen before" in problem for problem in problems)


@pytest.mark.parametrize(
    ("chosen", "told"), [(HELD, ()), (Setting(sm_mhz=1234), ("never decided on",)), (DEEP, ("by 0 comparisons",))]
)
def test_a_summary_that_cannot_have_come_of_the_run_is_told(chosen: Setting, told: tuple[str, ...]) -> None:
    life = usual_run(hold_s=0.0)
    began = life.events[0]
    assert isinstance(began, Began)
    life.events[0] = replace(began, facts={**began.facts, "alpha": 0.05, "bound": 0.02})
    facts = {"chosen": {"": dict(chosen)}, "verified": {"": chosen != Setting(sm_mhz=1234)}}
    facts["seal"] = seal_of(life.events)
    life.events.append(Finished(life.now_s, "stopped", facts))
    problems = verify(life.events).problems
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True))
