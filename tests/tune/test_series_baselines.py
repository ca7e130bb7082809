"""The baselines do what their authors say: Zeus prunes, bounds and samples, and grid search walks its grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.tune.series_baselines import Aborted, Bound, Default, Grid, Job, Run, SeriesPolicy, Zeus

HIGH, LOW = Setting(power_limit_w=250.0), Setting(power_limit_w=150.0)
JOB = Job((8, 16, 32, 64, 128), 32, 20, max_power_w=250.0)
PROFILE = (EpochCost(1.0, 250.0, HIGH), EpochCost(1.2, 150.0, LOW))
"""At η = ½: 250 J at the high limit, 225 J at the low one."""


def finish(policy: SeriesPolicy, run: Run, cost: float, outcome: Outcome = Outcome.REACHED, epochs: int = 1) -> None:
    """A run that cost so much: energy and time are chosen so that each is half of it."""
    policy.allow(run, PROFILE)
    policy.tell(run, outcome, epochs=epochs, duration_s=cost / 250.0, energy_j=cost)


def test_zeus_walks_down_then_up_twice_and_leaves_a_way_at_its_first_failure() -> None:
    zeus = Zeus(JOB, seed=1)
    costs = {32: 100.0, 16: 90.0, 64: 110.0, 128: 120.0}
    walked: list[int] = []
    while not zeus.arms:
        run = zeus.ask(len(walked))
        walked.append(run.batch_size)
        failed = run.batch_size not in costs
        finish(zeus, run, costs.get(run.batch_size, 200.0), Outcome.STOPPED_EARLY if failed else Outcome.REACHED)
    # The second round begins at the first one's cheapest, without the size that failed.
    assert walked == [32, 16, 8, 64, 128, 16, 32, 64, 128]
    assert zeus.arms == [16, 32, 64, 128]


def test_zeus_bounds_a_run_by_twice_the_cheapest_recurrence_with_its_retries() -> None:
    zeus = Zeus(JOB, seed=1)
    first = zeus.ask(0)
    assert zeus.allow(first, PROFILE).epochs == JOB.max_epochs
    zeus.tell(first, Outcome.REACHED, epochs=5, duration_s=5.0, energy_j=1250.0)
    assert zeus.bound.least == 1250.0
    second = zeus.ask(1)
    allowed = zeus.allow(second, PROFILE)
    assert (allowed.setting, allowed.epochs) == (LOW, 11)  # 2500 J at 225 J an epoch
    zeus.tell(second, Outcome.STOPPED_EARLY, epochs=3, duration_s=2.0, energy_j=500.0)
    third = zeus.ask(1)
    zeus.allow(third, PROFILE)
    zeus.tell(third, Outcome.REACHED, epochs=4, duration_s=4.0, energy_j=1000.0)
    assert zeus.bound.least == 1250.0  # 500 J and 1000 J in one recurrence are no record


def test_a_size_that_zeus_refuses_never_looks_cheap() -> None:
    zeus = Zeus(Job((16, 32), 32, 20, 250.0), seed=1)
    for recurrence in range(4):
        finish(zeus, zeus.ask(recurrence), 100.0 + recurrence)
    assert zeus.arms == [16, 32]
    dear = [EpochCost(100.0, 25_000.0, HIGH)]
    for recurrence in range(4, 200):
        run = zeus.ask(recurrence)
        if run.batch_size == 16:
            assert zeus.allow(run, dear).epochs == 0
            zeus.tell(run, Outcome.STOPPED_EARLY, epochs=0, duration_s=0.0, energy_j=0.0)
            run = zeus.ask(recurrence)
        finish(zeus, run, 100.0)
        if run.batch_size == 16:
            break
    assert sum(zeus.ask(200 + recurrence).batch_size == 32 for recurrence in range(100)) > 60


def test_zeus_gives_up_where_the_default_fails_at_first_and_where_nothing_is_left() -> None:
    zeus = Zeus(JOB, seed=1)
    with pytest.raises(Aborted, match="default size 32"):
        finish(zeus, zeus.ask(0), 100.0, Outcome.FAILED)
    zeus = Zeus(Job((16, 32), 32, 20, 250.0), seed=1)
    finish(zeus, zeus.ask(0), 100.0)
    finish(zeus, zeus.ask(1), 100.0, Outcome.STOPPED_EARLY)
    with pytest.raises(Aborted, match="pruned"):
        finish(zeus, zeus.ask(2), 100.0, Outcome.STOPPED_EARLY)


def test_zeus_gives_others_the_cheapest_known_size_while_a_pruning_run_is_out() -> None:
    zeus = Zeus(JOB, seed=1)
    out = [zeus.ask(recurrence) for recurrence in range(3)]
    assert [run.batch_size for run in out] == [32, 32, 32]
    finish(zeus, out[0], 100.0)
    exploring, other = zeus.ask(3), zeus.ask(4)
    assert (exploring.batch_size, other.batch_size) == (16, 32)
    finish(zeus, out[1], 90.0)
    finish(zeus, exploring, 50.0)
    assert (zeus.ask(5).batch_size, zeus.ask(6).batch_size) == (8, 16)


def test_the_draws_of_zeus_follow_its_seed_and_are_not_the_same_for_all_arms() -> None:
    def sampling(seed: int) -> list[int]:
        zeus = Zeus(Job((16, 32), 32, 20, 250.0), seed)
        for recurrence, cost in enumerate((100.0, 90.0, 100.0, 90.0)):  # 32, 16, then 16, 32: equal beliefs
            finish(zeus, zeus.ask(recurrence), cost)
        return [zeus.ask(recurrence).batch_size for recurrence in range(4, 404)]

    assert sampling(3) == sampling(3) != sampling(4)
    share = np.mean([size == 16 for size in sampling(3)])
    assert 0.4 < share < 0.6


def test_only_the_windows_last_costs_count() -> None:
    zeus = Zeus(Job((32,), 32, 20, 250.0), seed=1, window=2)
    for recurrence, cost in enumerate((1000.0, 1000.0, 10.0, 10.0)):
        finish(zeus, zeus.ask(recurrence), cost)
    assert zeus._draw(32) == 10.0  # no variance left: the draw is the mean


def test_a_bound_of_nothing_seen_allows_everything() -> None:
    assert Bound(JOB).epochs(1e9) == JOB.max_epochs
    assert math.isinf(Bound(JOB).most)


def test_the_grid_is_walked_from_the_default_and_a_failing_size_is_dropped() -> None:
    grid = Grid(Job((16, 32, 64), 32, 20, 250.0), [HIGH, LOW])
    walked = []
    for recurrence, (cost, reached) in enumerate(
        [(100.0, True), (80.0, True), (90.0, False), (70.0, True), (75.0, True)]
    ):
        run = grid.ask(recurrence)
        walked.append((run.batch_size, run.setting))
        finish(grid, run, cost, Outcome.REACHED if reached else Outcome.STOPPED_EARLY)
    assert walked == [(32, HIGH), (32, LOW), (16, HIGH), (64, HIGH), (64, LOW)]
    best = grid.ask(5)
    assert (best.batch_size, best.setting) == (64, HIGH)
    assert grid.allow(best, PROFILE) == grid.allow(best, PROFILE[:1])
    assert grid.allow(best, PROFILE[1:]).epochs == 0


def test_default_runs_the_users_size_to_its_end_and_just_in_time_only_lowers_the_limit() -> None:
    for policy, setting in ((Default(JOB), DEFAULT), (Default(JOB, just_in_time=True), LOW)):
        run = policy.ask(0)
        allowed = policy.allow(run, PROFILE)
        assert (run.batch_size, allowed.setting, allowed.epochs) == (32, setting, 20)
