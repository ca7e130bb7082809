"""What holds when: words that end by themselves, ramps, a feed that fails closed, the same again from a journal."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.cap_feed import CapFeed
from joulewise.cluster.limits import Limits
from joulewise.core.errors import BadSpec
from joulewise.core.event import Limited
from tests.tiers import examples


def said(limits: Limits, event: Limited) -> Limited:
    limits.hear(event)
    return event


def test_without_a_word_there_is_no_limit() -> None:
    limit = Limits().at(100.0)
    assert (limit.cap_w, limit.aim_w, limit.next_s, limit.source, limit.energy_j) == (None, None, None, "", None)


def test_a_word_counts_once_it_is_heard_and_not_before_it_was_said() -> None:
    limits = Limits()
    event = limits.cap(100.0, 20_000.0)
    assert limits.at(200.0).cap_w is None
    limits.hear(event)
    assert limits.at(100.0).cap_w == limits.at(1e9).cap_w == 20_000.0
    assert limits.at(1e9).source == "operator"


def test_demand_response_ends_by_itself_and_what_was_before_comes_back() -> None:
    limits = Limits()
    said(limits, limits.cap(0.0, 20_000.0))
    said(limits, limits.cap(1000.0, 15_000.0, for_s=10_800.0))
    assert limits.at(1000.0).cap_w == limits.at(11_799.0).cap_w == 15_000.0
    assert limits.at(1000.0).next_s == limits.at(1000.0).until_s == 11_800.0
    assert limits.at(11_800.0).cap_w == 20_000.0
    assert limits.at(11_800.0).next_s is None


def test_the_word_that_began_last_holds_so_an_operator_can_end_a_demand_response_early() -> None:
    limits = Limits()
    said(limits, limits.cap(0.0, 15_000.0, for_s=10_800.0))
    said(limits, limits.cap(600.0, 18_000.0))
    assert limits.at(600.0).cap_w == limits.at(20_000.0).cap_w == 18_000.0


def test_a_schedule_ahead_takes_over_when_its_time_is_there() -> None:
    limits = Limits()
    said(limits, limits.cap(0.0, 20_000.0))
    for at_s in (3600.0, 90_000.0):
        said(limits, limits.cap(0.0, 12_000.0, at_s=at_s, for_s=7200.0))
    said(limits, limits.cap(100.0, 19_000.0))  # what holds today does not undo what is planned
    seen = [limits.at(time_s).cap_w for time_s in (100.0, 3600.0, 10_799.0, 10_800.0, 90_000.0, 97_200.0)]
    assert seen == [19_000.0, 12_000.0, 12_000.0, 19_000.0, 12_000.0, 19_000.0]
    said(limits, limits.forget(200.0))
    assert limits.at(3600.0).cap_w is None


def test_a_ramp_leads_into_a_word_and_out_of_it_again() -> None:
    limits = Limits()
    said(limits, limits.cap(0.0, 20_000.0))
    said(limits, limits.cap(1000.0, 15_000.0, for_s=3600.0, ramp_w_per_s=10.0))
    assert limits.at(1000.0).cap_w == 20_000.0
    assert limits.at(1000.0).aim_w == 15_000.0
    assert limits.at(1100.0).cap_w == pytest.approx(19_000.0)
    assert limits.at(1100.0).next_s == 1101.0
    assert limits.at(1500.0).cap_w == limits.at(4599.0).cap_w == 15_000.0
    assert limits.at(4700.0).cap_w == pytest.approx(16_000.0)
    assert limits.at(5100.0).cap_w == limits.at(9e9).cap_w == 20_000.0
    assert limits.lowest_w(1000.0, 1100.0) == pytest.approx(19_000.0)
    assert limits.lowest_w(900.0, 9e9) == 15_000.0


def test_a_ramp_from_no_cap_sets_out_at_the_most_the_cluster_can_draw() -> None:
    limits = Limits(most_w=30_000.0)
    said(limits, limits.cap(0.0, 20_000.0, for_s=5000.0, ramp_w_per_s=10.0))
    assert limits.at(0.0).cap_w == 30_000.0
    assert limits.at(500.0).cap_w == pytest.approx(25_000.0)
    assert limits.at(5500.0).cap_w == pytest.approx(25_000.0)
    assert limits.at(6000.0).cap_w is None
    blunt = Limits()
    said(blunt, blunt.cap(0.0, 20_000.0, ramp_w_per_s=10.0))
    assert blunt.at(0.0).cap_w == 20_000.0


def test_a_cap_below_idle_power_is_refused_with_both_numbers_and_the_old_one_stays() -> None:
    limits = Limits(idle_w=4800.0)
    said(limits, limits.cap(0.0, 20_000.0))
    with pytest.raises(BadSpec, match=r"cap of 4,000 W is below the 4,800 W .* \(the cap stays at 20,000 W\)"):
        limits.cap(10.0, 4000.0)
    assert limits.at(10.0).cap_w == 20_000.0
    with pytest.raises(BadSpec, match="budget of 1,000 W on average is below the 4,800 W"):
        limits.budget(10.0, 86.4e6)


def test_where_idle_power_rises_above_the_cap_the_cap_is_held_at_idle_power_and_said() -> None:
    limits = Limits()
    said(limits, limits.cap(0.0, 4000.0))
    limits.idle_w = 4800.0
    limit = limits.at(10.0)
    assert limit.cap_w == limits.lowest_w(10.0, 20.0) == 4800.0
    assert limit.says == (
        "the cap of 4,000 W is below the 4,800 W that the cluster draws with nothing to do; held at 4,800 W",
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"cap_w": 0.0},
        {"cap_w": float("nan")},
        {"cap_w": 1.0, "for_s": 0.0},
        {"cap_w": 1.0, "ramp_w_per_s": -1.0},
        {"cap_w": 1.0, "at_s": 10.0, "for_s": 5.0},
    ],
)
def test_words_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadSpec):
        Limits().cap(100.0, **bad)


def test_the_last_budget_said_holds() -> None:
    limits = Limits()
    said(limits, limits.budget(0.0, 8.64e8))
    said(limits, limits.budget(50.0, 3.6e7, 3600.0))
    assert (limits.at(60.0).energy_j, limits.at(60.0).period_s) == (3.6e7, 3600.0)
    said(limits, limits.budget(70.0, None))
    assert limits.at(80.0).energy_j is None


class Feed:
    """A feed's file, and limits that hear it."""

    def __init__(self, folder: Path, *, safe_w: float | None = 14_000.0) -> None:
        self.file = folder / "cap.json"
        self.limits = Limits(feed=CapFeed(self.file, safe_w=safe_w))
        self.events: list[Limited] = []

    def write(self, what: object) -> None:
        self.file.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")

    def look(self, now_s: float) -> tuple[float | None, str]:
        for event in self.limits.poll(now_s):
            self.events.append(said(self.limits, event))
        limit = self.limits.at(now_s)
        return limit.cap_w, " ".join(limit.says)


def test_a_feed_is_heard_and_the_lower_of_it_and_the_operators_word_holds(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    feed.write({"cap_w": 20_000, "until_unix_s": 5000})
    assert feed.look(0.0) == (20_000.0, "")
    assert feed.limits.at(0.0).source == "feed"
    said(feed.limits, feed.limits.cap(1.0, 18_000.0))
    assert feed.look(2.0) == (18_000.0, "")
    feed.write({"cap_w": 16_000, "at": 0, "for": 5000})
    assert feed.look(3.0) == (16_000.0, "")
    assert len(feed.events) == 2  # only what changed


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (None, "it is missing"),
        ("{", "it is not JSON"),
        ("", "it is not JSON"),
        ("[]", "it holds no word"),
        ("7", "must be an object"),
        ({"watts": 3}, "must be an object"),
        ({"cap_w": "20kW"}, "not a number"),
        ({"cap_w": -5}, "makes no sense"),
        ('{"cap_w": NaN}', "makes no sense"),
        ({"cap_w": True}, "not a number"),
        pytest.param('{"cap_w": 1' + "0" * 400 + "}", '"cap_w" is a number of 401 digits', id="10**400"),
        pytest.param('{"cap_w": 1' + "0" * 5000 + "}", "it is not JSON", id="10**5000"),
        pytest.param("[" * 60_000, "it is nested too deeply", id="nested"),
        ({"cap_w": 25_000, "for": 100}, '"for" needs "at"'),
        ({"cap_w": 25_000, "untl": 100}, "'untl', which is not known"),
        ({"cap_w": 25_000, "until_unix_s": 50}, "expired"),
        ({"cap_w": 25_000, "at": 5000, "for": 10}, "has not begun"),
        ("x" * 70_000, "larger than"),
    ],
)
def test_a_feed_that_is_lost_fails_closed_says_so_and_comes_back_by_itself(
    tmp_path: Path, spoilt: object, why: str
) -> None:
    feed = Feed(tmp_path)
    feed.write({"cap_w": 20_000})
    feed.look(0.0)
    feed.file.unlink() if spoilt is None else feed.write(spoilt)
    cap_w, says = feed.look(100.0)
    assert cap_w == 14_000.0
    assert why in says
    assert says.endswith("held at 14,000 W (last: 20,000 W; safe: 14,000 W)")
    feed.write({"cap_w": 12_000})
    assert feed.look(101.0) == (12_000.0, "")
    feed.file.unlink()
    assert feed.look(102.0)[0] == 12_000.0  # the last known is the lower one


def test_a_feed_that_cannot_be_read_fails_closed(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    feed.file.mkdir()
    cap_w, says = feed.look(0.0)
    assert cap_w == 14_000.0
    assert "cannot be read (Is a directory)" in says
    assert "last: none is known" in says


def test_a_pipe_as_a_feed_does_not_stop_the_scheduler(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    os.mkfifo(feed.file)
    cap_w, says = feed.look(0.0)
    assert cap_w == 14_000.0
    assert "it is no plain file" in says


def test_a_feed_that_is_silent_from_the_start_without_a_safe_cap_is_refused(tmp_path: Path) -> None:
    feed = Feed(tmp_path, safe_w=None)
    with pytest.raises(
        BadSpec, match=r"it is missing; no earlier one is known, and none is declared safe \(--cap-safe"
    ):
        feed.look(0.0)


def test_after_a_restart_with_the_feed_gone_the_last_cap_heard_is_still_known(tmp_path: Path) -> None:
    feed = Feed(tmp_path, safe_w=None)
    feed.write({"cap_w": 13_000})
    feed.look(0.0)
    feed.file.unlink()
    again = Limits(feed.events, feed=CapFeed(feed.file))
    (event,) = again.poll(10.0)
    again.hear(event)
    assert again.at(10.0).cap_w == 13_000.0
    assert "it is missing" in again.at(10.0).says[0]


def test_a_clock_that_is_set_back_undoes_no_cap() -> None:
    limits = Limits()
    limits.hear(limits.cap(10_000.0, 20_000.0))
    limit = limits.at(9_400.0)
    assert (limit.cap_w, limit.aim_w, limit.source, limit.next_s) == (20_000.0, 20_000.0, "operator", None)
    assert limits.lowest_w(9_400.0, 9_401.0) == 20_000.0


def test_a_cap_that_is_said_after_the_clock_was_set_back_holds_at_once_and_as_long_as_it_says() -> None:
    limits = Limits()
    limits.hear(limits.cap(10_000.0, 20_000.0))
    limits.hear(limits.cap(9_400.0, 10_000.0))
    assert limits.at(9_400.0).cap_w == limits.lowest_w(9_401.0, 9_402.0) == 10_000.0
    limits.hear(limits.cap(9_300.0, 8_000.0, for_s=300.0))
    assert [limits.at(time_s).cap_w for time_s in (9_300.0, 9_599.0, 9_600.0, 20_000.0)] == [
        8_000.0,
        8_000.0,
        10_000.0,
        10_000.0,
    ]
    limits.hear(limits.cap(9_100.0, None))
    assert limits.at(9_100.0).cap_w is None


def test_of_words_that_had_begun_the_one_that_held_still_holds_after_the_clock_was_set_back() -> None:
    limits = Limits()
    limits.hear(limits.cap(100.0, 9_000.0, at_s=900.0))
    limits.hear(limits.cap(800.0, 20_000.0))
    limits.hear(limits.cap(850.0, 5_000.0, for_s=10.0))
    limits.hear(limits.budget(950.0, None))
    limits.hear(limits.cap(950.0, 9_500.0, at_s=2_000.0))
    assert limits.at(950.0).cap_w == 9_000.0
    limits.hear(limits.cap(700.0, 15_000.0, at_s=1_500.0))
    # What has ended does not come back, what held holds, and what is ahead comes at its time.
    assert [limits.at(time_s).cap_w for time_s in (700.0, 855.0, 1_499.0, 1_500.0, 2_000.0)] == [
        9_000.0,
        9_000.0,
        9_000.0,
        15_000.0,
        9_500.0,
    ]


def test_a_ramp_goes_on_from_where_it_was_when_the_clock_is_set_back() -> None:
    limits = Limits()
    limits.hear(limits.cap(0.0, 20_000.0))
    limits.hear(limits.cap(1_000.0, 10_000.0, ramp_w_per_s=10.0))
    limits.hear(limits.cap(1_100.0, 10_000.0, ramp_w_per_s=10.0))
    assert limits.at(1_100.0).cap_w == 19_000.0
    limits.hear(limits.cap(500.0, 10_000.0, ramp_w_per_s=10.0))
    assert limits.at(500.0).cap_w == 19_000.0
    assert limits.at(500.0).next_s == 501.0
    assert limits.at(600.0).cap_w == 18_000.0


def test_events_of_another_kind_are_passed_over() -> None:
    limits = Limits([Limited(0.0, "weather", {"rain": True}), Limited(1.0, "cap", {"cap_w": 9000.0, "later": 1})])
    assert limits.at(2.0).cap_w == 9000.0


WORDS = st.lists(
    st.tuples(
        st.floats(0.0, 500.0),  # after the one before
        st.one_of(st.none(), st.floats(1000.0, 30_000.0)),
        st.one_of(st.none(), st.floats(0.0, 1000.0)),  # ahead
        st.one_of(st.none(), st.floats(1.0, 2000.0)),
        st.one_of(st.none(), st.floats(0.5, 100.0)),
    ),
    max_size=6,
)
Words = list[tuple[float, float | None, float | None, float | None, float | None]]


def spoken(words: Words, **how: float) -> tuple[Limits, list[Limited]]:
    limits, events, now_s = Limits(**how), [], 0.0  # type: ignore[arg-type]
    for gap_s, cap_w, ahead_s, for_s, ramp in words:
        now_s += gap_s
        at_s = None if ahead_s is None else now_s + ahead_s
        events.append(said(limits, limits.cap(now_s, cap_w, at_s=at_s, for_s=for_s, ramp_w_per_s=ramp)))
    return limits, events


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(WORDS, st.lists(st.floats(0.0, 6000.0), min_size=1, max_size=8))
def test_the_same_events_heard_again_give_the_same_limits_to_the_last_bit(words: Words, times: list[float]) -> None:
    limits, events = spoken(words, most_w=40_000.0)
    again = Limits(events, most_w=40_000.0)
    for time_s in times:
        assert again.at(time_s) == limits.at(time_s)


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(WORDS, st.floats(0.5, 100.0))
def test_with_a_ramp_on_every_word_the_cap_never_moves_faster(words: Words, ramp: float) -> None:
    limits, events = spoken([(*word[:4], ramp) for word in words], most_w=40_000.0)
    begun_s = events[-1].time_s if events else 0.0
    times = [begun_s + step * 7.0 for step in range(400)]
    caps = [40_000.0 if (cap := limits.at(time_s).cap_w) is None else cap for time_s in times]
    for one, two in pairwise(caps):
        assert abs(two - one) <= ramp * 7.0 + 1e-6


@pytest.mark.sampled
@settings(max_examples=examples(100), deadline=None)
@given(WORDS, st.floats(0.0, 4000.0), st.floats(0.0, 1000.0))
def test_the_lowest_over_a_while_is_never_above_any_cap_in_it(words: Words, from_s: float, for_s: float) -> None:
    limits, events = spoken(words, most_w=40_000.0)
    from_s += events[-1].time_s if events else 0.0
    lowest = limits.lowest_w(from_s, from_s + for_s)
    for step in range(21):
        cap_w = limits.at(from_s + for_s * step / 20).cap_w
        assert cap_w is None or (lowest is not None and lowest <= cap_w + 1e-6)


@pytest.mark.sampled
@settings(max_examples=examples(60), deadline=None)
@given(WORDS, st.floats(100.0, 30_000.0), st.floats(0.0, 3000.0))
def test_a_later_word_never_changes_what_was_in_force_before_it(words: Words, cap_w: float, at_s: float) -> None:
    limits, events = spoken(words, most_w=40_000.0)
    now_s = (events[-1].time_s if events else 0.0) + at_s
    before = limits.at(now_s).cap_w
    said(limits, limits.cap(now_s + 1.0, cap_w, ramp_w_per_s=5.0))
    kept = limits.at(now_s + 1.0).cap_w
    fresh = Limits(events, most_w=40_000.0).at(now_s + 1.0).cap_w
    assert kept == (40_000.0 if fresh is None else fresh) or (fresh is None and kept == max(cap_w, 40_000.0))
    assert before == Limits(events, most_w=40_000.0).at(now_s).cap_w
