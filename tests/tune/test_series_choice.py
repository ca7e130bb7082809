"""What a trial is worth: more where more may be saved, never where it cannot win, and never a dear recurrence."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.model.curves import Belief, epochs_family, octaves
from joulewise.tune.series_choice import Outlook
from tests.tune.series_jobs import SIZES

COUNT = len(SIZES)
SAFE = 2
FAMILY = epochs_family(octaves(SIZES, SIZES[SAFE]), 10.0, slope_sd=0.25, bump_sd=0.3, reach=2.0)

outlooks = st.builds(
    lambda epochs, shape, doubt, lost, noise, recurrences: outlook(
        FAMILY.given([SAFE], [math.log(epochs)], [noise]),
        log_epoch=np.log(1000.0) - shape * np.arange(COUNT),
        epoch_sd=doubt,
        lost=lost,
        noise=noise,
        recurrences=recurrences,
    ),
    st.floats(1.5, 60.0),
    st.floats(-0.6, 0.6),
    st.floats(0.0, 0.5),
    st.floats(0.0, 0.9),
    st.floats(0.001, 0.1),
    st.integers(0, 500),
)


def outlook(
    belief: Belief,
    *,
    log_epoch: np.ndarray,
    epoch_sd: float = 0.1,
    lost: float = 0.1,
    noise: float = 0.02,
    recurrences: int = 5,
    max_epochs: int = 60,
    vain: int = 0,
) -> Outlook:
    log_cost = log_epoch + belief.mean
    return Outlook(
        belief,
        np.full(COUNT, noise),
        np.full(COUNT, lost),
        np.where(np.arange(COUNT) == SAFE, 0.0, float(vain)),
        log_cost,
        log_epoch,
        np.where(np.arange(COUNT) == SAFE, 0.0, epoch_sd**2),
        epoch_sd**2 * np.eye(COUNT),
        SAFE,
        math.exp(float(log_cost[SAFE])),
        0.05,
        recurrences,
        max_epochs,
    )


def usual(**more: float) -> Outlook:
    belief = FAMILY.given([SAFE], [math.log(10.0)], [0.02])
    return outlook(belief, log_epoch=np.log(1000.0) - 0.3 * np.arange(COUNT), **more)


@given(outlooks, st.integers(0, COUNT - 1))
def test_a_trial_is_stopped_within_the_jobs_epochs_or_not_begun(look, place):
    weighed = look.weigh(place)
    assert not math.isnan(weighed.net)
    assert 0 <= weighed.most_epochs <= look.max_epochs
    assert (weighed.most_epochs == 0) == math.isinf(weighed.net)
    assert 0.0 <= weighed.chance <= 1.0
    assert weighed.saving >= 0.0


@given(outlooks, st.integers(0, COUNT - 1))
def test_no_recurrence_is_expected_to_be_dear_for_what_it_tries(look, place):
    weighed = look.weigh(place)
    safe_cost = math.exp(float(look.log_cost[SAFE]))
    assert safe_cost + weighed.chance * weighed.price <= 1.5 * look.default_cost * (1.0 + 1e-9)


@given(outlooks, st.integers(0, COUNT - 1), st.floats(0.1, 2.0))
def test_what_turns_out_cheaper_is_worth_no_less(look, place, less):
    log_epoch = float(look.log_epoch[place])
    seen, cheaper = look.weigh(place, log_epoch), look.weigh(place, log_epoch - less)
    assert cheaper.net >= seen.net - 1e-6 * look.default_cost


def test_what_is_far_dearer_is_pruned_without_a_run():
    look = usual(epoch_sd=0.0)
    assert look.weigh(3).net > 0
    log_epoch = look.log_epoch.copy()
    log_epoch[3] += math.log(50.0)
    dear = replace(look, log_epoch=log_epoch, log_cost=log_epoch + look.epochs.mean)
    assert dear.weigh(3).net == -math.inf
    # Also when only its first epoch has shown what it costs.
    assert look.weigh(3, float(look.log_epoch[3]) + math.log(50.0)).most_epochs == 0


def test_a_size_that_may_not_run_is_worth_nothing():
    look = usual()
    log_cost = look.log_cost.copy()
    log_cost[4] = math.inf
    assert replace(look, log_cost=log_cost).weigh(4).net == -math.inf


def test_the_longer_a_job_recurs_the_more_a_trial_is_worth():
    assert usual(recurrences=200).weigh(3).net > usual(recurrences=5).weigh(3).net > 0


def test_what_is_likely_never_to_arrive_is_worth_less():
    worth = [usual(lost=lost).weigh(3).net for lost in (0.0, 0.3, 0.6, 0.9)]
    assert worth == sorted(worth, reverse=True)


@given(outlooks)
def test_a_size_that_works_is_given_more_epochs_than_it_needs(look):
    most = look.patience(SAFE)
    assert 1 <= most <= look.max_epochs
    assert most >= min(look.max_epochs, math.exp(float(look.epochs.mean[SAFE])))


def test_the_more_luck_there_is_the_more_patience():
    calm, wild = usual(noise=0.001), usual(noise=0.1)
    assert wild.patience(SAFE) > calm.patience(SAFE) >= 10
    assert usual(noise=0.1, max_epochs=12).patience(SAFE) == 12


def test_a_neighbour_under_way_makes_a_size_worth_less():
    look = usual()
    asked = replace(look, epochs=look.epochs.seen(3, float(look.noise[3])))
    assert asked.weigh(3).net < look.weigh(3).net
    assert asked.weigh(4).net == pytest.approx(look.weigh(4).net, rel=1.0)


@given(outlooks, st.integers(0, COUNT - 1), st.integers(1, 60))
def test_a_size_that_was_stopped_in_vain_is_tried_again_only_for_longer(look, place, vain):
    again = dataclasses.replace(look, vain=np.full(COUNT, float(vain))).weigh(place)
    assert again.most_epochs == 0 or again.most_epochs > vain


def test_a_run_of_the_safe_size_teaches_too():
    # Two sizes look alike, and it is the safe one that is hardly known: its own runs tell which is better.
    belief = Belief(np.zeros(COUNT) + math.log(10.0), 0.04 * np.eye(COUNT))
    belief.cov[SAFE + 1, SAFE + 1] = 1e-4
    look = outlook(belief, log_epoch=np.zeros(COUNT), epoch_sd=0.0, lost=0.0)
    assert look.weigh(SAFE).net > max(look.weigh(SAFE + 1).net, 0.0)
