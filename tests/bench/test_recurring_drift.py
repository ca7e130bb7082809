"""The drifting job really trains, its optimum really moves, and the Zeus beside it is helped where it would end."""

from __future__ import annotations

import numpy as np

from bench.recurring_drift import DEFAULT, DRIFT, MAX_EPOCHS, STREAMS, Windowed, epochs_to_target
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.tune.series_baselines import Job


def test_worse_labels_lengthen_small_batches_and_spare_the_default() -> None:
    small, usual = (epochs_to_target((STREAMS[0], size)) for size in (16, DEFAULT))
    assert np.all(usual > 0)
    assert usual[DRIFT + 4 :].mean() < 1.3 * usual[:DRIFT].mean()
    assert np.all(small[:DRIFT] > 0)
    needed = np.where(small > 0, small, MAX_EPOCHS)
    assert needed[DRIFT + 4 :].mean() > 2.0 * needed[:DRIFT].mean()


def test_a_zeus_that_cannot_go_on_is_finished_by_the_default_and_given_its_bound() -> None:
    profile = [EpochCost(1.0, 250.0, Setting(power_limit_w=250.0))]
    zeus = Windowed(Job((16, 32), 32, 20, 250.0), 1)
    for recurrence in range(4):
        run = zeus.ask(recurrence)
        zeus.allow(run, profile)
        zeus.tell(run, Outcome.REACHED, epochs=1, duration_s=1.0, energy_j=250.0)
    assert zeus.bound.least == 250.0
    for _ in range(5):
        run = zeus.ask(4)
        assert zeus.allow(run, profile).epochs == 2
        zeus.tell(run, Outcome.STOPPED_EARLY, epochs=2, duration_s=2.0, energy_j=500.0)
    run = zeus.ask(4)
    assert (run.batch_size, zeus.allow(run, profile).epochs) == (32, 20)
    zeus.tell(run, Outcome.REACHED, epochs=6, duration_s=6.0, energy_j=1500.0)
    assert zeus.bound.least == 1500.0
