"""Which trial a recurrence gets next: it is finished, by something that works, and never by what has just failed."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.measurement import Outcome
from joulewise.core.series import Purpose
from joulewise.tune.series_learnt import CRASHED
from joulewise.tune.series_next import _coin
from tests.tune.series_jobs import A40, SIZES, V100, Series, expected, job, level


def fails(
    series: Series, recurrence: str, times: int, outcome: Outcome = Outcome.FAILED, epochs: int = 50
) -> list[int]:
    """The sizes that are handed out while every run of a recurrence fails."""
    sizes = []
    for _ in range(times):
        asked = series.ask(recurrence)
        sizes.append(asked.batch_size)
        series.tell(asked, outcome, epochs, profile=None if epochs else ())
    return sizes


def test_a_recurrence_goes_on_after_its_trial_ran_out_of_memory():
    series = Series()
    series.recur(level)
    series.ran(128, Outcome.OUT_OF_MEMORY, 0, recurrence="mine", profile=())
    again = series.ask("mine")
    assert (again.batch_size, again.purpose) == (32, Purpose.FINISH)


def test_a_run_that_was_preempted_is_repeated():
    series = Series()
    for _ in range(2):
        series.recur(level)
    before = expected(series)
    asked = series.ask("mine")
    series.tell(asked, Outcome.PREEMPTED, 3, profile=())
    assert expected(series) == before
    again = series.ask("mine")
    assert (again.batch_size, again.purpose) == (asked.batch_size, asked.purpose)


def test_after_a_trial_in_vain_a_size_that_works_finishes_the_recurrence():
    series = Series()
    series.recur(level)
    asked = series.ask("mine")
    assert asked.purpose is Purpose.EXPLORE
    series.tell(asked, Outcome.STOPPED_EARLY, 8)
    again = series.ask("mine")
    assert (again.batch_size, again.purpose) == (32, Purpose.FINISH)


def test_a_finishing_run_that_fails_too_leaves_the_default_to_finish():
    series = Series()
    for _ in range(12):
        series.recur(level)
    sizes = []
    for _ in range(5):
        asked = series.ask("unlucky")
        sizes.append(asked.batch_size)
        series.tell(asked, Outcome.FAILED, 50)
    assert sizes[-1] == 32


def test_where_no_size_reaches_the_target_all_are_tried_in_turn_and_there_is_always_an_answer():
    series = Series()
    for number in range(3 * len(SIZES)):
        asked = series.ask("one and the same" if number < 2 * len(SIZES) else None)
        series.tell(asked, Outcome.FAILED, 50)
    assert set(series.sizes()[: 2 * len(SIZES)]) == set(SIZES)
    assert series.tuner.summary(V100).best is None


def test_coins_are_each_trials_own_and_always_the_same():
    """Zeus, D4: without a seed, draws of the same second are equal."""
    coins = np.array([[_coin(name, trial) for trial in range(1000)] for name in ("nightly", "weekly", "nightly2")])
    assert [_coin("nightly", trial) for trial in range(1000)] == coins[0].tolist()
    assert coins.min() >= 0.0
    assert coins.max() < 1.0
    np.testing.assert_allclose(coins.mean(axis=1), 0.5, atol=4.0 / math.sqrt(12.0 * 1000.0))
    # Four standard errors of a correlation of 1,000.
    between = [np.corrcoef(coins[one], coins[two])[0, 1] for one, two in ((0, 1), (0, 2), (1, 2))]
    after = [np.corrcoef(each[:-lag], each[lag:])[0, 1] for each in coins for lag in (1, 2, 10)]
    assert np.abs([*between, *after]).max() < 4.0 / math.sqrt(1000.0)


@pytest.mark.parametrize("recurrences", [0, 1, 12])
@pytest.mark.parametrize(("outcome", "epochs"), [(Outcome.FAILED, 50), (Outcome.OUT_OF_MEMORY, 2)])
def test_a_size_that_failed_is_not_handed_out_again_in_its_recurrence_but_the_default_at_last(
    recurrences, outcome, epochs
):
    series = Series()
    for _ in range(recurrences):
        series.recur(level)
    sizes: list[int] = []
    with contextlib.suppress(BadSpec):  # where not even the smallest fits
        for _ in range(2 * len(SIZES)):
            sizes += fails(series, "unlucky", 1, outcome, epochs)
    others = [size for size in sizes if size != 32]
    assert len(others) == len(set(others))
    assert 32 in sizes
    after = sizes[sizes.index(32) + 1 :]
    assert 32 not in after or set(after[after.index(32) :]) == {32}


def test_a_working_size_that_was_stopped_for_being_late_is_begun_anew():
    again = {}
    for outcome, epochs in ((Outcome.STOPPED_EARLY, 12), (Outcome.FAILED, 50)):
        series = Series()
        for size in (32, 128, 128):
            series.ran(size)
        series.ran(128, outcome, epochs, recurrence="mine")
        again[outcome] = series.ask("mine").batch_size
    assert again == {Outcome.STOPPED_EARLY: 128, Outcome.FAILED: 32}


def test_three_crashes_in_a_row_are_the_jobs_own_and_end_the_recurrence_but_not_the_job():
    series = Series()
    series.recur(level)
    for night in ("one", "two", "three"):
        sizes = []
        for _ in range(3):
            asked = series.ask(night)
            sizes.append(asked.batch_size)
            series.tell(asked, Outcome.FAILED, 0, notes=(CRASHED,), profile=())
        with pytest.raises(BadSpec, match="the last 3 runs of 'nightly' crashed") as refused:
            series.ask(night)
        assert "the job itself seems broken" in str(refused.value)
        assert ", ".join(map(str, dict.fromkeys(sizes))) in str(refused.value)
    assert len(series.tuner.history()) == 10
    # Mended, it goes on as if nothing had been.
    for _ in range(20):
        series.recur(level)
    assert series.tuner.summary(V100).best == 256


def test_a_mistyped_command_leaves_the_default_where_it_was():
    series = Series()
    for _ in range(5):
        series.ran(32, Outcome.FAILED, 0, notes=(CRASHED,), profile=(), purpose=Purpose.DEFAULT)
    asked = series.ask()
    assert (asked.batch_size, asked.purpose) == (32, Purpose.DEFAULT)
    assert [belief.state for belief in series.tuner.beliefs(V100)] == ["open"] * len(SIZES)


def test_not_even_a_default_that_crashes_after_an_epoch_is_barred():
    series = Series()
    for _ in range(5):
        series.ran(32, Outcome.FAILED, 2, notes=(CRASHED,), profile=())
    assert series.ask().batch_size == 32


def test_where_every_size_ran_out_of_memory_that_is_said_and_the_next_recurrence_tries_the_default():
    series = Series()

    def recur(recurrence: str) -> None:
        for _ in range(len(SIZES) + 1):
            series.tell(series.ask(recurrence), Outcome.OUT_OF_MEMORY, 0, profile=())

    for recurrence in ("one", "two"):
        with pytest.raises(BadSpec, match="no batch size of 'nightly' can be run"):
            recur(recurrence)
    assert series.sizes() == [32, 16, 8, 32]
    # Somebody else had the memory.
    for _ in range(20):
        series.recur(level)
    assert series.tuner.summary(V100).best == 256


def test_what_ran_out_of_memory_on_one_platform_is_answered_on_another():
    series = Series(job(batch_sizes=(8,), default=8))
    series.tell(series.ask("mine"), Outcome.OUT_OF_MEMORY, 0, profile=())
    assert series.ask("other", A40).batch_size == 8


def test_where_to_stop_is_told_as_the_guess_that_it_is():
    series = Series()
    series.recur(level)
    asked = series.ask()
    assert asked.purpose is Purpose.EXPLORE
    assert "at a first guess it is stopped after" in asked.reason
    assert len(asked.reason) <= 200  # as long a text as travels


def test_why_a_safe_size_finishes_says_what_became_of_the_other():
    says = {
        (Outcome.STOPPED_EARLY, 3, ()): "batch size 256 was not there after 3 epochs; 32, which works, finishes",
        (Outcome.OUT_OF_MEMORY, 0, ()): "batch size 256 ran out of memory after 0 epochs; 32, which works, finishes",
        (Outcome.FAILED, 1, (CRASHED,)): "batch size 256 crashed after 1 epoch; 32, which works, finishes",
    }
    for (outcome, epochs, notes), reason in says.items():
        series = Series()
        series.recur(level)
        series.ran(256, outcome, epochs, notes=notes, recurrence="mine", profile=())
        assert series.ask("mine").reason == reason
