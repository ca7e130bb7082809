from dataclasses import replace

import pytest

from joulewise.core.block import Role
from joulewise.core.event import Began, Decided, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.report.story import Story, stretches, tried
from tests.cli import made_up


@pytest.fixture(scope="module")
def story():
    return Story.of(made_up.run())


def test_a_run_is_told_in_chapters_with_their_reasons(story):
    told = [(each.kind, each.setting, each.reason) for each in stretches(story)]
    assert told == [
        ("baseline", DEFAULT, "learn what default is"),
        ("probe", Setting(sm_mhz=1725), "the law is steepest here"),
        ("probe", Setting(sm_mhz=1305), "and here it is nearly flat"),
        ("verify", made_up.HELD, "expected −8 % energy at +0.8 % time"),
        ("hold", made_up.HELD, "verified: at most 2 % slower"),
        ("pace", DEFAULT, "steps are 2 % slower <than> before"),
    ]


def test_baseline_windows_are_counted_with_what_they_are_about(story):
    verify, hold = (each for each in stretches(story) if each.kind in ("verify", "hold"))
    assert (verify.blocks, verify.windows) == (12, 6)
    assert hold.blocks == 120 + hold.windows
    assert hold.windows > 5
    assert verify.says == "pair 6 of a test"


def test_every_setting_that_ran_is_compared_with_default(story):
    found = {each.setting: each for each in tried(story.seen)}
    assert found[DEFAULT].energy_change == 0
    assert found[made_up.HELD].energy_change == pytest.approx(-0.081, abs=0.004)
    assert found[made_up.HELD].time_change == pytest.approx(0.008, abs=0.003)
    assert {setting for setting, each in found.items() if each.held} == {made_up.HELD}


def test_a_run_can_be_seen_as_it_stood_earlier(story):
    early = story.until(3)
    assert len(early.seen) == 3
    assert early.shifted == ()
    assert early.held() is None
    assert story.held() == made_up.HELD
    assert story.until(0).seen == ()


def test_an_empty_journal_tells_nothing():
    story = Story.of([])
    assert (story.span_s, story.watched_s, story.judged_s) == (0.0, 0.0, 0.0)
    assert (story.held(), stretches(story), tried(story.seen)) == (None, [], [])


def test_the_digest_tells_an_edited_journal_from_the_true_one():
    events = made_up.run()
    assert Story.of(events).digest() == Story.of(made_up.run()).digest()
    assert Story.of(events).digest() != Story.of(events[:-1]).digest()
    assert Story.of(events).digest() != Story.of(made_up.run(seed=2)).digest()


def told(*blocks):
    made = made_up.Made()
    for setting, role, reason in blocks:
        made.block(setting, role, reason)
    return Story.of([Began(made_up.START_S, "r", {}), *made.events])


def test_a_hold_carries_its_own_reason_though_its_first_step_began_before_it_was_decided_on():
    events = list(told((made_up.HELD, Role.CANDIDATE, "expected"), (made_up.HELD, Role.HOLD, "verified")).events)
    decided = events[3]
    assert isinstance(decided, Decided)
    events[3] = replace(decided, time_s=decided.time_s + 0.05)
    assert [(each.kind, each.reason) for each in stretches(Story.of(events))] == [
        ("verify", "expected"),
        ("hold", "verified"),
    ]


def test_pairs_that_are_compared_while_a_setting_is_held_are_no_chapters_of_their_own():
    first, last = ((made_up.HELD, Role.HOLD, f"held {share}% of the time, not verified: …") for share in (80, 90))
    pairs = [
        [(DEFAULT, Role.REFERENCE, "to compare"), (made_up.HELD, Role.CANDIDATE, held[2])] for held in (first, last)
    ]
    story = told(first, *pairs[0], last, *pairs[1], last, (made_up.HELD, Role.HOLD, "verified"))
    assert [(each.kind, each.reason, each.blocks, each.windows) for each in stretches(story)] == [
        ("hold", last[2], 7, 2),  # as well as it was known in the end
        ("hold", "verified", 1, 0),
    ]


def test_idle_gaps_are_no_changes_of_the_job():
    events = [Began(0.0, "r", {}), *(Shifted(float(at), what, what) for at, what in enumerate(("idle", "awake")))]
    story = Story.of([*events, Shifted(3.0, "large", "steps changed")])
    assert [change.what for change in story.changes] == ["large"]
    assert [each.kind for each in stretches(story)] == ["large"]


def test_a_run_that_was_gone_on_with_later_was_watched_for_as_long_as_somebody_lived():
    story = Story.of(
        [Began(0.0, "r", {}), Shifted(10.0, "small", ""), Began(36_000.0, "r", {}), Shifted(36_005.0, "x", "")]
    )
    assert story.watched_s == 15.0
    assert story.span_s == 36_005.0
