"""What crashes say of a batch size: a command that cannot run says nothing, a size that alone cannot run is left."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.measurement import Outcome
from joulewise.tune.series_crashes import Crashes
from joulewise.tune.series_learnt import CRASHED
from tests.tune.series_jobs import V100, Series, level

DEFAULT = 2
places = st.integers(0, 5)
happenings = st.lists(st.tuples(places, st.sampled_from(["at once", "later", "ran"])), max_size=30)


def after(happened: list[tuple[int, str]]) -> Crashes:
    crashes = Crashes(DEFAULT)
    for place, what in happened:
        if what == "ran":
            crashes.ran(place)
        else:
            crashes.crashed(place, 0 if what == "at once" else 3)
    return crashes


@given(happenings)
def test_the_default_is_never_barred_and_a_size_that_never_crashed_neither(happened):
    barred = after(happened).barred
    assert DEFAULT not in barred
    for place, count in barred.items():
        assert 2 <= count <= sum(what != "ran" for where, what in happened if where == place)


@given(st.lists(places, max_size=30))
def test_where_nothing_ever_ran_an_epoch_no_size_is_to_blame(crashed):
    assert not after([(place, "at once") for place in crashed]).barred


@given(happenings)
def test_a_snapshot_goes_on_as_it_would_have(happened):
    live, kept = after(happened), Crashes(DEFAULT)
    kept.load(json.loads(json.dumps(live.to_json())))
    for crashes in (live, kept):
        crashes.ran(0)
    assert (live.barred, live.suspect) == (kept.barred, kept.suspect)


def test_a_size_that_crashes_at_once_while_another_runs_is_to_blame():
    assert after([(5, "at once"), (2, "ran")] * 2).barred == {5: 2}
    assert after([(5, "at once"), (5, "at once"), (2, "ran")]).barred == {5: 2}


def test_if_it_runs_later_itself_it_was_not():
    assert after([(5, "at once"), (5, "ran")] * 3).barred == {}


@pytest.mark.parametrize("how", ["at once", "later"])
def test_if_others_crashed_too_it_was_the_job(how):
    assert after([(5, how), (4, how), (2, "ran")] * 3).barred == {}
    assert after([(5, "later"), (5, "later"), (4, how)]).barred == {}


def test_a_crash_after_an_epoch_counts_at_once():
    assert after([(5, "later")] * 2).barred == {5: 2}
    assert after([(5, "later")]).barred == {}
    assert after([(5, "later"), (2, "ran")] * 2).barred == {5: 2}


def test_what_crashed_is_under_suspicion_until_something_runs():
    assert after([(5, "at once"), (4, "later")]).suspect == {4, 5}
    assert after([(5, "at once"), (4, "later"), (2, "ran")]).suspect == set()


@pytest.mark.parametrize("epochs", [0, 3])
def test_a_size_that_crashes_twice_is_not_offered_again(epochs):
    series = Series()
    series.recur(level)
    for _ in range(2):
        series.ran(256, Outcome.FAILED, epochs, notes=(CRASHED,), profile=())
    first = len(series.sizes())
    for _ in range(20):
        series.recur(level)
    assert 256 not in series.sizes(first)
    assert {belief.batch_size: belief.state for belief in series.tuner.beliefs(V100)}[256] == "crashes"


def test_a_size_that_always_crashes_at_once_is_tried_twice_though_each_submission_is_one_trial():
    series = Series()
    series.recur(level)
    for _ in range(20):
        asked = series.ask()
        crashes = asked.batch_size == 256
        series.tell(
            asked, Outcome.FAILED if crashes else Outcome.REACHED, 0 if crashes else 10, notes=(CRASHED,) * crashes
        )
    assert series.sizes().count(256) == 2
    assert series.tuner.summary(V100).best == 128


@pytest.mark.parametrize("epochs", [0, 3])
def test_one_crash_is_no_reason_to_leave_a_size(epochs):
    series = Series()
    series.recur(level)
    series.ran(256, Outcome.FAILED, epochs, notes=(CRASHED,), profile=())
    for _ in range(20):
        series.recur(level)
    assert series.tuner.summary(V100).best == 256


def test_the_best_that_crashes_from_now_on_is_left_though_each_submission_is_one_trial():
    series = Series()
    for _ in range(20):
        series.recur(level)
    first = len(series.sizes())
    for _ in range(20):
        asked = series.ask()
        crashes = asked.batch_size == 256
        series.tell(
            asked, Outcome.FAILED if crashes else Outcome.REACHED, 0 if crashes else 10, notes=(CRASHED,) * crashes
        )
    assert series.sizes(first).count(256) == 2
    assert series.tuner.summary(V100).best == 128
