"""Predictions of jobs from few spots, and priors from other jobs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from joulewise.core.errors import ModelError
from joulewise.model import catalog
from joulewise.model.throughput import INDEX, Frame, Spots, evaluate
from joulewise.model.throughput_fit import GENERIC, Seen, believe, fit
from joulewise.model.throughput_prior import learn, pooled

MODEL = catalog.load("a100-sxm")
FRAME = Frame(MODEL.chip, MODEL.default_limit_w - MODEL.chip.static_w, batch=16.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
ALL = Spots.of(
    [(n, -(-n // 8), batch / n, 0, x, math.inf) for n in SIZES for batch in (64, 128) for x in (1.0, 0.8, 0.6)]
)


def made_job(seed: int, *, noise: float = 0.01, slow: dict[tuple[int, int], float] | None = None) -> Seen:
    """A job of a fabric whose networks are alike: growth by 1 % a GPU between nodes."""
    random = np.random.default_rng(seed)
    z = GENERIC.mean.copy()
    z += random.normal(size=len(z)) * np.minimum(GENERIC.spread, 0.5)
    z[INDEX["near"]] = -1.0 + 0.3 * random.normal()
    z[INDEX["far_growth"]] = math.log(0.01) + 0.1 * random.normal()
    talk = np.array([(slow or {}).get((int(n), int(k)), 0.0) for n, k in zip(ALL.gpus, ALL.nodes, strict=True)])
    log_time, log_energy = evaluate(FRAME, z[None], ALL, talk)
    shaken = noise * random.normal(size=(2, len(ALL)))
    return Seen(ALL, np.exp(log_time[0] + shaken[0]), np.exp(log_energy[0] + shaken.sum(axis=0)))


def shown(*gpus: int) -> np.ndarray:
    """Full clock at these counts, and one lower clock on one GPU."""
    return (np.isin(ALL.gpus, gpus) & (ALL.x == 1.0)) | ((ALL.gpus == 1) & (ALL.x == 0.6))


def off(seen: Seen, which: np.ndarray, prior) -> np.ndarray:
    said = fit(FRAME, seen.pick(which), prior).predict(seen.spots)
    return np.abs(said.seconds / seen.seconds - 1.0)


def test_a_job_seen_at_a_few_spots_is_told_at_all_others():
    for seed in range(4):
        seen = made_job(seed)
        found = fit(FRAME, seen.pick(shown(1, 2, 8, 16, 32)))
        said = found.predict(seen.spots)
        assert np.mean(np.abs(said.seconds / seen.seconds - 1.0)) < 0.04
        assert np.mean(np.abs(said.joules / seen.joules - 1.0)) < 0.06


def test_one_inter_node_size_is_enough_with_a_prior_from_other_jobs_and_not_without():
    others = [(FRAME, made_job(seed)) for seed in range(10, 18)]
    prior = learn(others)
    which, far = shown(1, 2, 8, 16), ALL.gpus == 64
    with_prior = np.mean([off(made_job(seed), which, prior)[far].mean() for seed in range(4)])
    without = np.mean([off(made_job(seed), which, GENERIC)[far].mean() for seed in range(4)])
    assert with_prior < 0.08
    assert with_prior < without


def test_a_place_that_is_slow_for_other_jobs_is_slow_for_the_next():
    slow = {(16, 2): 0.6}
    prior = learn([(FRAME, made_job(seed, slow=slow)) for seed in range(10, 18)])
    which, there = shown(1, 2, 8, 32, 64), ALL.gpus == 16
    known, unknown = (
        np.mean([off(made_job(seed, slow=slow), which, taught)[there].mean() for seed in range(4)])
        for taught in (prior, replace(prior, places={}))
    )
    assert prior.places[16, 2] > prior.places[32, 4]
    assert known < unknown - 0.01


def test_bands_hold_about_nine_in_ten():
    prior = learn([(FRAME, made_job(seed, noise=0.03)) for seed in range(10, 18)])
    held = []
    for seed in range(8):
        seen = made_job(seed, noise=0.03)
        which = shown(1, 4, 16)
        said = fit(FRAME, seen.pick(which), prior).predict(seen.spots.pick(~which))
        low, high = said.time_band()
        held += [(low <= seen.seconds[~which]) & (seen.seconds[~which] <= high)]
        low, high = said.energy_band()
        held += [(low <= seen.joules[~which]) & (seen.joules[~which] <= high)]
    assert 0.80 <= np.mean(np.concatenate(held)) <= 0.99


def test_bands_are_wider_farther_from_what_was_seen():
    seen = made_job(3)
    said = fit(FRAME, seen.pick(shown(1, 2, 4))).predict(
        Spots.of([(n, -(-n // 8), 8, 0, 1.0, math.inf) for n in SIZES])
    )
    assert said.time_error[-1] > 2 * said.time_error[2]


def test_one_wild_spot_does_not_rule_the_others():
    seen = made_job(1)
    which = shown(1, 2, 4, 8, 16, 32)
    calm = off(seen, which, GENERIC)
    wild = seen.seconds.copy()
    wild[np.flatnonzero(which & (ALL.gpus == 4))[0]] *= 2.0
    shaken = fit(FRAME, Seen(ALL, wild, seen.joules).pick(which)).predict(ALL)
    assert np.mean(np.abs(shaken.seconds / seen.seconds - 1.0)[ALL.gpus != 4]) < np.mean(calm) + 0.06


def test_a_fit_from_the_last_one_says_nearly_the_same_as_one_from_anew():
    seen = made_job(2)
    first = fit(FRAME, seen.pick(shown(1, 2, 8)))
    anew = fit(FRAME, seen.pick(shown(1, 2, 8, 16, 32))).predict(ALL)
    again = fit(FRAME, seen.pick(shown(1, 2, 8, 16, 32)), start=first.z).predict(ALL)
    assert np.max(np.abs(np.log(again.seconds / anew.seconds))) < 0.05


def test_energy_that_nobody_metered_leaves_the_prior_of_power():
    seen = made_job(2)
    blind = Seen(ALL, seen.seconds, np.full(len(ALL), math.nan))
    found = fit(FRAME, blind)
    assert found.z[INDEX["dynamic"]] == pytest.approx(GENERIC.mean[INDEX["dynamic"]], abs=0.05)
    assert np.all(found.predict(ALL).energy_error > found.predict(ALL).time_error)


def test_a_job_of_which_nothing_was_seen_is_the_prior():
    said = believe(FRAME, GENERIC).predict(ALL)
    assert np.all(said.time_error > 1.0)
    assert pooled([fit(FRAME, made_job(1))]).spread[INDEX["far_growth"]] <= GENERIC.spread[INDEX["far_growth"]] * 1.1


def test_nothing_seen_and_times_of_zero_are_refused():
    with pytest.raises(ModelError, match="at least one spot"):
        Seen(Spots.of([]), np.zeros(0), np.zeros(0))
    with pytest.raises(ModelError, match="above 0"):
        Seen(ALL, np.zeros(len(ALL)), np.ones(len(ALL)))
