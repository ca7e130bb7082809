"""What people are told: sums that were reckoned by hand, intervals that hold, and a frontier that is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Purpose
from joulewise.tune.series import CRASHED
from tests.tune.series_jobs import A40, SIZES, V100, Series, epoch, expected, job, level

LOW = Setting(power_limit_w=150)
ENERGY = job(objective={"what": "energy"})
"""Where a run costs its joules, so that sums can be done by hand."""


def by_hand() -> Series:
    """The default takes 10 epochs of 1000 J, the size 64 takes 10 of 500 J, and 128 never arrives."""
    series = Series(ENERGY)
    costs = {32: [EpochCost(20.0, 1000.0)], 64: [EpochCost(12.0, 500.0)], 128: [EpochCost(8.0, 400.0)]}

    def ran(size: int, outcome: Outcome, epochs: int, recurrence: str, purpose: Purpose) -> None:
        series.ran(size, outcome, epochs, recurrence=recurrence, purpose=purpose, profile=costs[size])

    ran(32, Outcome.REACHED, 10, "first", Purpose.DEFAULT)  # 10,000 J
    ran(64, Outcome.REACHED, 10, "second", Purpose.EXPLORE)  # 5,000 J
    ran(128, Outcome.STOPPED_EARLY, 5, "third", Purpose.EXPLORE)  # 2,000 J
    ran(64, Outcome.REACHED, 10, "third", Purpose.FINISH)  # 5,000 J
    ran(64, Outcome.REACHED, 10, "fourth", Purpose.BEST)  # 5,000 J
    return series


def test_the_sums_are_those_of_the_runs():
    said = by_hand().tuner.summary(V100)
    assert (said.recurrences, said.trials, said.best) == (4, 5, 64)
    assert said.energy_j == pytest.approx(27_000.0)
    assert said.duration_s == pytest.approx(10 * 20.0 + 30 * 12.0 + 5 * 8.0)


def test_a_run_of_the_default_and_of_the_best_is_the_epochs_that_their_own_runs_took_times_what_one_takes():
    said = by_hand().tuner.summary(V100)
    assert (said.default_energy_j, said.default_duration_s) == (pytest.approx(10_000.0), pytest.approx(200.0))
    assert (said.best_energy_j, said.best_duration_s) == (pytest.approx(5_000.0), pytest.approx(120.0))


def test_what_was_saved_is_against_the_default_run_every_time_whatever_is_believed_of_other_sizes():
    said = by_hand().tuner.summary(V100)
    assert said.saved == pytest.approx(1.0 - 27_000.0 / 40_000.0)
    assert 0.0 < said.saved_error < 0.15


def test_the_more_often_the_default_was_run_the_better_the_saving_is_known():
    once, often = by_hand(), by_hand()
    for _ in range(8):
        often.ran(32, Outcome.REACHED, 10, profile=[EpochCost(20.0, 1000.0)])
    assert often.tuner.summary(V100).saved_error < 0.5 * once.tuner.summary(V100).saved_error


def test_learning_costs_what_recurrences_that_did_not_run_the_best_known_cost_beyond_it():
    series = by_hand()
    said = series.tuner.summary(V100)
    # The first three paid 22,000 J for what three runs of the best do.
    assert said.learning_cost == pytest.approx(22_000.0 / 5_000.0 - 3.0)


def test_what_exploring_has_cost_counts_before_its_recurrence_is_done():
    series = by_hand()
    before = series.tuner.summary(V100)
    series.ran(
        128, Outcome.STOPPED_EARLY, 5, recurrence="fifth", purpose=Purpose.EXPLORE, profile=[EpochCost(8.0, 400.0)]
    )
    after = series.tuner.summary(V100)
    assert after.learning_cost == pytest.approx(24_000.0 / 5_000.0 - 3.0)
    assert after.learning_cost > before.learning_cost + 0.3
    assert after.saved == pytest.approx(1.0 - 29_000.0 / 40_000.0)
    assert after.recurrences == 5


def test_a_run_of_the_best_that_crashed_is_neither_learning_nor_against_the_tuner():
    series = by_hand()
    before = series.tuner.summary(V100)
    series.ran(64, Outcome.FAILED, 3, recurrence="fifth", notes=(CRASHED,), profile=[EpochCost(12.0, 500.0)])
    after = series.tuner.summary(V100)
    assert after.learning_cost == pytest.approx(before.learning_cost)
    assert after.saved == pytest.approx(before.saved)
    assert after.energy_j == before.energy_j + 1500.0


def test_in_the_end_nothing_more_is_paid_for_learning_and_the_saving_is_that_of_the_best():
    series = Series(ENERGY)
    for _ in range(60):
        series.recur(level)
    said = series.tuner.summary(V100)
    true = {size: 10.0 * epoch(size).energy_j for size in SIZES}
    history = series.tuner.history()
    learnt = {record.asked.recurrence for record in history if record.asked.purpose is not Purpose.BEST}
    paid = sum(record.told.energy_j for record in history if record.asked.recurrence in learnt)
    spent = sum(record.told.energy_j for record in history)
    assert said.learning_cost == pytest.approx(paid / true[256] - len(learnt))
    assert said.saved == pytest.approx(1.0 - spent / (60 * true[32]))
    assert said.best_energy_j == pytest.approx(true[256])


def test_nothing_is_claimed_before_there_is_something():
    said = Series(ENERGY).tuner.summary(V100)
    assert (said.recurrences, said.trials, said.energy_j, said.duration_s) == (0, 0, 0, 0)
    assert (said.best, said.learning_cost, said.saved, said.best_energy_j, said.default_energy_j) == (None,) * 5


def test_without_a_run_of_the_default_nothing_is_said_to_be_saved():
    series = Series(ENERGY)
    series.ran(64, Outcome.REACHED, 10)
    said = series.tuner.summary(V100)
    assert (said.best, said.saved, said.default_energy_j) == (64, None, None)


def test_each_platform_has_its_own_sums():
    series = by_hand()
    series.ran(64, Outcome.REACHED, 10, platform=A40, profile=[EpochCost(10.0, 300.0)])
    said = series.tuner.summary(A40)
    assert (said.trials, said.energy_j, said.best_energy_j) == (1, 3000.0, pytest.approx(3000.0))
    assert said.saved is None  # the default was not measured there
    assert (series.tuner.summary(V100).trials, series.tuner.summary(V100).energy_j) == (5, 27_000.0)


def test_a_best_that_must_be_in_time_is_told_at_the_setting_that_is():
    series = Series(job(objective={"what": "energy", "max_slowdown": 0.3}))
    for size in (32, 64):
        series.ran(
            size, Outcome.REACHED, 10, profile=[EpochCost(10.0, 1000.0 / size), EpochCost(15.0, 500.0 / size, LOW)]
        )
    said = series.tuner.summary(V100)
    assert said.best == 64
    assert said.best_duration_s == pytest.approx(100.0)
    assert {each.batch_size: each.epoch.setting for each in series.tuner.beliefs(V100) if each.epoch}[64] != LOW


# Size by size.


def test_each_size_says_where_it_stands():
    series = by_hand()
    series.ran(256, Outcome.OUT_OF_MEMORY, 0, profile=())
    for _ in range(2):
        series.ran(16, Outcome.FAILED, 1, notes=(CRASHED,), profile=())
    believed = {each.batch_size: each for each in series.tuner.beliefs(V100)}
    assert [believed[size].state for size in (16, 32, 64, 256)] == ["crashes", "works", "best", "too large"]
    assert [(believed[size].runs, believed[size].successes) for size in (32, 64, 128)] == [(1, 1), (3, 3), (1, 0)]
    assert believed[128].epoch == EpochCost(8.0, 400.0)
    assert believed[8].epoch is None
    assert all(each.says for each in believed.values())


def test_of_a_size_that_never_got_there_no_more_epochs_are_told_than_a_run_may_take():
    for each in Series(job(max_epochs=2)).tuner.beliefs(V100):
        assert 1.0 <= each.epochs_low <= each.epochs <= each.epochs_high == 2.0


def test_before_anything_works_every_size_is_open_and_has_no_price():
    for each in Series().tuner.beliefs(V100):
        assert (each.state, each.cost, each.cost_low, each.cost_high, each.runs) == ("open", None, None, None, 0)


def test_where_nothing_was_measured_no_price_is_made_up():
    believed = by_hand().tuner.beliefs(A40)
    assert {each.cost for each in believed} == {None}
    assert [each.successes for each in believed if each.batch_size == 64] == [3]


@given(st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from(Outcome), st.integers(1, 50)), max_size=15))
@settings(max_examples=60)
def test_intervals_hold_what_they_are_of(runs):
    series = Series()
    for size, outcome, epochs in runs:
        series.ran(size, outcome, epochs)
    for each in series.tuner.beliefs(V100):
        assert 1.0 <= each.epochs_low <= each.epochs <= each.epochs_high
        assert each.successes or each.epochs_high <= series.job.max_epochs
        if each.cost is not None:
            assert 0.0 < each.cost_low <= each.cost <= each.cost_high


def test_what_is_true_lies_in_the_interval_about_as_often_as_it_says():
    """On jobs whose epochs and costs follow no law that the tuner believes in. It says 95 %."""
    inside = tried = guessed = untried = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        bend, noise = rng.uniform(3.0, 8.0), rng.uniform(0.02, 0.2)
        slopes = -rng.uniform(0.0, 0.4), rng.uniform(0.0, 0.6)
        floor = rng.uniform(4.0, 12.0)
        needs = {
            size: floor * math.exp(slopes[math.log2(size) > bend] * (math.log2(size) - bend) + rng.normal(0.0, 0.05))
            for size in SIZES
        }
        series = Series(job(name=f"job{seed}", max_epochs=100), seed=seed, noise=noise)
        for _ in range(15):
            series.recur(needs.__getitem__)
        for each in series.tuner.beliefs(V100):
            truth = needs[each.batch_size] * math.exp(noise**2 / 2.0)
            held = each.epochs_low <= truth <= each.epochs_high
            if each.successes:
                inside, tried = inside + held, tried + 1
            else:
                guessed, untried = guessed + held, untried + 1
    assert tried > 50
    assert inside / tried > 0.85
    assert untried > 20
    assert guessed / untried > 0.75


# Time and energy of whole runs.


def test_the_frontier_is_of_whole_runs_and_falls():
    series = Series()
    for size in (32, 64, 128):
        plain = epoch(size)
        series.ran(
            size, profile=[plain, EpochCost(1.2 * plain.duration_s, 0.8 * plain.energy_j, LOW)], epochs=10 + size // 16
        )
    series.ran(256, Outcome.STOPPED_EARLY, 5)  # never arrived: no whole run is known
    found = series.tuner.frontier(V100)
    assert len(found) >= 2
    times, energies = [point.time_s for point in found], [point.energy_j for point in found]
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)
    assert 256 not in [point.setting[0] for point in found]
    believed = expected(series)
    for point in found:
        size, setting = point.setting
        plain = epoch(size)
        assert point.time_s == pytest.approx(believed[size] * plain.duration_s * (1.2 if setting == LOW else 1.0))
        assert point.energy_j == pytest.approx(believed[size] * plain.energy_j * (0.8 if setting == LOW else 1.0))
        assert 0.0 < point.energy_error_j < point.energy_j


def test_a_size_that_does_not_fit_is_no_point_of_the_frontier():
    series = Series()
    series.ran(32)
    series.ran(128, Outcome.OUT_OF_MEMORY, 0)
    series.fold(Asked(0.0, 2, "late", 256, V100, Purpose.EXPLORE, "", 10.0**9))
    assert [point.setting[0] for point in series.tuner.frontier(V100)] == [32]


def test_where_nothing_was_measured_there_is_no_frontier():
    with pytest.raises(BadSpec, match="was measured on 1x A40 yet"):
        by_hand().tuner.frontier(A40)
