"""Trials: told once, given up when nothing is heard, and the same from a snapshot however long the job has run."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Event, Expired, Progressed, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose
from joulewise.tune import series_trials
from joulewise.tune.series_trials import Trials

V100 = Platform("V100", 1, 250.0)
COST = EpochCost(10.0, 2000.0)


def asked(trial: int, time_s: float = 0.0, recurrence: str = "r", key: str = "") -> Asked:
    return Asked(time_s, trial, recurrence, 32, V100, Purpose.BEST, "because", time_s + 100.0, "me", key)


def told(trial: int, outcome: Outcome = Outcome.REACHED, time_s: float = 50.0) -> Told:
    return Told(time_s, trial, outcome, 3, 30.0, 6000.0, (COST,), ("a note",))


def fold(trials: Trials, event: Event) -> bool | None:
    match event:
        case Asked():
            trials.asked(event)
        case Progressed():
            return trials.progressed(event)
        case Told():
            return trials.told(event)
        case Expired():
            trials.expired(event)
    return None


def again(trials: Trials) -> Trials:
    """As a new process would have it."""
    return Trials.from_json(json.loads(json.dumps(trials.to_json())))


numbers = st.integers(-1, 14)
times = st.floats(0.0, 500.0)
happenings = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), times, st.sampled_from("abcd"), st.sampled_from(["", "k1", "k2", "k3"])),
        st.builds(
            Progressed, times, numbers, st.integers(0, 5), times, st.sampled_from([(), (COST,), (EpochCost(9.0, 1.0),)])
        ),
        st.builds(told, numbers, st.sampled_from(Outcome), times),
        st.builds(Expired, times, numbers, st.just("gone")),
        st.just("snapshot"),
    ),
    max_size=60,
)


@given(happenings)
def test_from_snapshots_or_from_events_alone_it_is_the_same(happened):
    with pytest.MonkeyPatch.context() as few:
        few.setattr(series_trials, "_BLOCK", 3)  # so that there are some
        live, kept = Trials(), Trials()
        for each in happened:
            if each == "snapshot":
                kept = again(kept)
                assert again(kept).to_json() == kept.to_json()
                continue
            event = asked(len(live), *each[1:]) if isinstance(each, tuple) else each
            assert fold(live, event) == fold(kept, event)
        assert (len(live), live.recurrences) == (len(kept), kept.recurrences)
        assert list(live.open()) == list(kept.open())
        assert live.overdue(250.0) == kept.overdue(250.0)
        assert [live.keyed(key) for key in ("k1", "k2", "k3", "")] == [
            kept.keyed(key) for key in ("k1", "k2", "k3", "")
        ]
        assert [live.of_recurrence(name) for name in "abcd"] == [kept.of_recurrence(name) for name in "abcd"]
        assert live.records() == kept.records()
        assert live.to_json() == kept.to_json()


@given(happenings)
def test_a_trial_is_told_at_most_once_and_is_open_or_ended(happened):
    trials = Trials()
    news = 0
    for each in happened:
        if each != "snapshot":
            event = asked(len(trials), *each[1:]) if isinstance(each, tuple) else each
            news += fold(trials, event) is True and isinstance(event, Told)
    records = trials.records()
    assert news == sum(record.told is not None for record in records)
    assert [record for record in records if record.is_open] == sorted(trials.open(), key=lambda each: each.asked.trial)


def test_many_that_were_told_are_read_only_when_somebody_looks():
    trials = Trials()
    for trial in range(1000):
        trials.asked(asked(trial, float(trial), f"r{trial}", f"k{trial}"))
        if trial != 123:
            trials.told(told(trial))
    kept = again(trials)
    whole = json.dumps([series_trials._row(record) for record in trials.records()])
    assert len(json.dumps(kept.to_json())) < 0.3 * len(whole)
    assert [record.asked.trial for record in kept.open()] == [123]
    assert kept.told(told(7)) is False  # known to be told, and not opened for it
    assert kept.of(7) == trials.of(7)
    assert kept.keyed("k777") == trials.keyed("k777")
    assert kept.records() == trials.records()


def test_a_damaged_block_is_seen_before_it_is_needed():
    trials = Trials()
    for trial in range(100):
        trials.asked(asked(trial))
        trials.told(told(trial))
    kept = trials.to_json()
    kept["blocks"][0] = kept["blocks"][0][:50] + ("A" if kept["blocks"][0][50] != "A" else "B") + kept["blocks"][0][51:]
    with pytest.raises(ValueError, match="damaged"):
        Trials.from_json(kept)


def test_a_trial_of_which_nothing_is_heard_is_overdue_since_it_was_last_heard_of():
    trials = Trials()
    trials.asked(asked(0, 1000.0))
    assert trials.overdue(1100.0) == []
    assert trials.overdue(1101.0) == [(0, 1000.0)]
    trials.progressed(Progressed(1050.0, 0, 1, 1150.0))  # without a word on what an epoch costs
    assert trials.overdue(1101.0) == []
    assert trials.overdue(1151.0) == [(0, 1050.0)]


def test_who_was_given_up_and_is_heard_of_again_is_under_way():
    trials = Trials()
    trials.asked(asked(0))
    trials.expired(Expired(200.0, 0, "gone"))
    assert list(trials.open()) == []
    trials.progressed(Progressed(250.0, 0, 2, 350.0, (COST,)))
    (record,) = trials.open()
    assert (record.expired, record.profiled.profile) == (None, (COST,))


def test_what_was_given_up_and_comes_back_late_counts():
    trials = Trials()
    trials.asked(asked(0))
    trials.expired(Expired(200.0, 0, "gone"))
    assert trials.told(told(0)) is True
    assert trials.told(told(0, Outcome.FAILED)) is False
    assert trials.of(0).told.outcome is Outcome.REACHED
    trials.expired(Expired(300.0, 0, "gone again"))
    assert trials.of(0).expired.reason == "gone"


def test_a_number_that_is_taken_or_leaves_a_gap_is_nobodys():
    trials = Trials()
    for trial in (1, 0, 0, 5, -1):
        trials.asked(asked(trial, recurrence=f"r{trial}"))
    assert [record.asked.trial for record in trials.records()] == [0]
    assert trials.recurrences == 1
    for trial in (-1, 1, 10**9):
        with pytest.raises(BadSpec, match="never handed out; there are 1, from 0"):
            trials.of(trial)
        assert trials.told(told(trial)) is False


def test_the_first_trial_under_a_key_is_the_keys():
    trials = Trials()
    trials.asked(asked(0, key="mine"))
    trials.asked(asked(1, key="mine"))
    trials.asked(asked(2))
    assert trials.keyed("mine").trial == 0
    assert trials.keyed("") is None
