"""A journal accounts for the whole of a run: what is taken out leaves a hole in time, however it was sealed again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT
from joulewise.tune.chain import LATE, LOST, READY, UNMARKED, WAITS, holes
from joulewise.tune.coins import VOID, void_says
from joulewise.tune.proof import prove
from joulewise.tune.verify import verify
from tests.tiers import sample
from tests.tune.jobs import Played
from tests.tune.lived import HELD, Life, seal_of, usual_run
from tests.tune.runs import tune


def again(events: list[Event]) -> list[Event]:
    """Claimed and sealed again."""
    made: list[Event] = []
    for event in events:
        if isinstance(event, Proven):
            seen = [each for each in made if isinstance(each, Seen)]
            shifts = [each for each in made if isinstance(each, Shifted)]
            event = prove(seen, shifts).event(event.time_s) or event
        elif isinstance(event, Finished):
            event = replace(event, facts={**event.facts, "seal": seal_of(made)})
        made.append(event)
    return made


@pytest.fixture(scope="module")
def lived() -> list[Event]:
    """The journal of a real loop."""
    return tune(Played.steady(step_s=0.2, jitter=0.02), duration_s=300.0).events


def links(events: list[Event]) -> list[tuple[int, int]]:
    """Places of what was decided on and of the block that came of it."""
    return [
        (i, j)
        for i, j in itertools.pairwise(i for i, event in enumerate(events) if isinstance(event, Decided | Seen))
        if isinstance(events[i], Decided) and isinstance(events[j], Seen)
    ]


def test_an_honest_journal_has_no_holes(lived: list[Event]) -> None:
    assert verify(lived).problems == ()
    assert len(links(lived)) > 30
    assert {event.role for event in lived if isinstance(event, Seen)} == set(Role)


@pytest.mark.sampled
@pytest.mark.parametrize("decision", [True, False])
def test_any_block_that_is_taken_out_is_missed(lived: list[Event], decision: bool) -> None:
    """With its decision or without; the claim and the seal are written again."""
    for decided, seen in sample(links(lived)[:-1], 10, of="blocks that are taken out"):
        gone = {decided, seen} if decision else {seen}
        assert verify(again([event for i, event in enumerate(lived) if i not in gone])).problems, lived[seen]


@pytest.mark.sampled
def test_two_blocks_made_one_are_missed(lived: list[Event]) -> None:
    """The first block and the second decision taken out: what was decided on first seems to have led to the second."""
    pairs = list(itertools.pairwise(links(lived)[:-1]))
    for (_, seen), (decided, _) in sample(pairs, 10, of="blocks that are joined"):
        left = [event for i, event in enumerate(lived) if i not in (seen, decided)]
        assert verify(again(left)).problems, lived[seen]


def test_all_that_was_seen_late_in_a_run_cannot_be_cut_off(lived: list[Event]) -> None:
    decided, _ = links(lived)[len(links(lived)) // 2]
    cut = [event for i, event in enumerate(lived) if i <= decided or isinstance(event, Proven | Finished)]
    assert any("to the end" in hole for hole in holes(again(cut)))
    assert any(
        "blocks are missing" in hole for hole in holes(again([each for i, each in enumerate(cut) if i != decided]))
    )


def test_a_machine_that_is_slow_to_set_anything_is_no_forger() -> None:
    life = Life()
    life.block(Role.BASELINE, DEFAULT, 5.0)
    for index in range(20):
        place = len(life.events)
        life.now_s += 1.2  # eight GPUs, one after the other
        life.block(Role.REFERENCE if index % 2 else Role.CANDIDATE, DEFAULT if index % 2 else HELD, 2.0)
        decided = life.events[place]
        assert isinstance(decided, Decided)
        life.events[place] = replace(decided, time_s=decided.time_s - 1.2)
    assert holes(life.finish()) == []


def excused(what: str, count: int) -> list[str]:
    """Holes of three seconds that somebody explains."""
    life = usual_run(hold_s=100.0)
    for _ in range(count):
        life.now_s += 3.0
        life.events.append(Shifted(life.now_s, what, "for some reason"))
        life.block(Role.HOLD, HELD, 5.0)
    return holes(life.finish())


@pytest.mark.parametrize("what", [LATE, WAITS, UNMARKED])
def test_a_hole_may_be_explained_now_and_then_but_not_by_the_dozen(what: str) -> None:
    assert excused(what, 2) == []
    assert any("reasons that no block bears out" in hole for hole in excused(what, 12))


def test_words_that_explain_nothing_do_not_help() -> None:
    assert any("nothing was decided on" in hole for hole in excused("idle", 1))


def test_a_decision_that_comes_to_nothing_may_take_as_long_as_it_says() -> None:
    life = usual_run(hold_s=100.0)
    for waited_s, told in ((30.0, 30.0), (30.0, 4.0)):
        life.events.append(replace(decided_at(life), time_s=life.now_s))
        life.now_s += waited_s
        life.events.append(Shifted(life.now_s, VOID, void_says(Role.HOLD, told)))
    life.block(Role.HOLD, HELD, 5.0)
    (hole,) = holes(life.finish())
    assert "was decided on long before" in hole


def decided_at(life: Life) -> Decided:
    return next(event for event in reversed(life.events) if isinstance(event, Decided))


@pytest.mark.parametrize("what", ["small", "large", "ruler"])
def test_a_change_of_the_job_breaks_off_what_is_under_way(what: str) -> None:
    life = usual_run(hold_s=100.0)
    life.events.append(replace(decided_at(life), time_s=life.now_s))
    life.now_s += 6.0
    life.events.append(Shifted(life.now_s, what, "another job"))
    life.block(Role.BASELINE, DEFAULT, 5.0)
    assert holes(life.finish()) == []


def test_nothing_is_asked_of_the_time_before_the_pace_is_known_or_after_the_lease_is_lost() -> None:
    life = Life(now_s=40.0)
    life.events.append(Shifted(life.now_s, READY, "steps of 100 ms"))
    life.block(Role.BASELINE, DEFAULT, 5.0)
    life.events.append(Shifted(life.now_s, LOST, "somebody else sets it"))
    life.now_s += 100.0
    life.block(Role.HOLD, DEFAULT, 20.0)
    assert holes(life.finish()) == []


def test_what_was_taken_out_before_the_first_block_is_missed_from_when_the_pace_was_known() -> None:
    life = Life(now_s=40.0)
    life.events.append(Shifted(life.now_s, READY, "steps of 100 ms"))
    life.now_s += 5.0
    life.block(Role.BASELINE, DEFAULT, 5.0)
    assert any("from 40.0 s to 45.0 s" in hole for hole in holes(life.finish()))


def test_in_faster_time_a_loop_may_be_later() -> None:
    life = usual_run(hold_s=50.0)
    life.now_s += 5.0
    life.block(Role.HOLD, HELD, 5.0)
    began = life.events[0]
    assert isinstance(began, Began)
    events = life.finish()
    assert holes(events)
    assert holes([replace(began, facts={**began.facts, "speed": 20.0}), *events[1:]]) == []


def test_where_blocks_of_two_phases_are_under_way_time_is_no_chain() -> None:
    train = usual_run(phase="train", hold_s=50.0)
    train.events.append(replace(decided_at(train), time_s=train.now_s))
    rollout = Life(phase="rollout", now_s=train.now_s + 3.0, events=train.events)
    rollout.block(Role.BASELINE, DEFAULT, 5.0)
    assert holes(rollout.finish()) == []
