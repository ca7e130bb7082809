"""The law of an iteration by GPUs, nodes, batch and clock."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import ModelError
from joulewise.model import catalog
from joulewise.model.throughput import (
    INDEX,
    UNKNOWNS,
    Frame,
    Spots,
    evaluate,
    iteration_gain,
    local_batch,
    statistical_efficiency,
)
from joulewise.model.throughput_fit import GENERIC

MODEL = catalog.load("a100-sxm")
FRAME = Frame(MODEL.chip, MODEL.default_limit_w - MODEL.chip.static_w, batch=32.0)

unknowns = st.lists(st.floats(-1.5, 1.5), min_size=len(UNKNOWNS), max_size=len(UNKNOWNS)).map(
    lambda steps: GENERIC.mean + np.minimum(GENERIC.spread, 1.5) * np.array(steps)
)


def seconds_and_joules(z, *rows):
    log_time, log_energy = evaluate(FRAME, np.atleast_2d(z), Spots.of(rows))
    return np.exp(log_time[0]), np.exp(log_energy[0])


@given(unknowns, st.floats(1.0, 256.0))
def test_more_samples_never_take_less_time(z, batch):
    few, many = seconds_and_joules(z, (4, 1, batch, 0, 1.0, math.inf), (4, 1, 2 * batch, 0, 1.0, math.inf))[0]
    assert many >= few


@given(unknowns, st.floats(0.4, 0.95))
def test_a_lower_clock_is_never_faster_and_never_draws_more_power(z, x):
    seconds, joules = seconds_and_joules(z, (8, 1, 32, 0, 1.0, math.inf), (8, 1, 32, 0, x, math.inf))
    assert seconds[1] >= seconds[0]
    assert joules[1] / seconds[1] <= joules[0] / seconds[0] * (1 + 1e-9)


@given(unknowns)
def test_gpus_that_talk_take_longer_than_one_that_does_not(z):
    alone, near, nearer = seconds_and_joules(
        z, (1, 1, 32, 0, 1.0, math.inf), (2, 1, 32, 0, 1.0, math.inf), (8, 1, 32, 0, 1.0, math.inf)
    )[0]
    assert alone <= near <= nearer


@given(unknowns)
def test_only_the_last_of_accumulated_steps_synchronises(z):
    alone, once, thrice = seconds_and_joules(
        z, (1, 1, 32, 0, 1.0, math.inf), (8, 1, 32, 0, 1.0, math.inf), (8, 1, 32, 2, 1.0, math.inf)
    )[0]
    assert thrice == pytest.approx(2 * alone + once)


@given(unknowns, st.floats(60.0, 150.0))
def test_a_power_limit_is_held_while_busy_or_the_clock_is_at_its_floor(z, above):
    limit_w = MODEL.chip.static_w * 1.5 + above
    seconds, joules = seconds_and_joules(z, (1, 1, 32, 0, 1.0, limit_w), (1, 1, 32, 0, MODEL.chip.sm_floor, math.inf))
    assert joules[0] / seconds[0] <= max(limit_w, joules[1] / seconds[1]) * 1.01


def test_what_a_place_adds_is_added_to_synchronisation_alone():
    spots = Spots.of([(1, 1, 32, 0, 1.0, math.inf), (8, 1, 32, 0, 1.0, math.inf)])
    plain, _ = evaluate(FRAME, GENERIC.mean[None], spots)
    slow, _ = evaluate(FRAME, GENERIC.mean[None], spots, np.array([0.5, 0.5]))
    assert slow[0, 0] == plain[0, 0]
    assert slow[0, 1] > plain[0, 1]


def test_a_row_of_unknowns_gives_a_row_of_answers():
    z = np.vstack([GENERIC.mean, GENERIC.mean])
    z[1, INDEX["busy"]] += math.log(2.0)
    log_time, log_energy = evaluate(FRAME, z, Spots.of([(4, 1, 32, 0, 1.0, 300.0), (16, 2, 8, 1, 0.7, math.inf)]))
    assert log_time[1] - log_time[0] == pytest.approx(math.log(2.0))
    assert log_energy[1] - log_energy[0] == pytest.approx(math.log(2.0))


@given(st.floats(0.01, 100.0), st.floats(0.01, 100.0), st.floats(1.0, 64.0))
def test_a_larger_batch_makes_more_progress_but_less_a_sample(noise, signal, scale):
    assert iteration_gain(noise, signal, scale) >= 1 - 1e-9
    assert iteration_gain(noise, signal, scale) <= scale * (1 + 1e-9)
    assert statistical_efficiency(noise, signal, scale) <= 1 + 1e-9


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 256))
def test_local_batches_add_up_to_the_global_one_and_fit(batch, gpus, most):
    local, steps = local_batch(batch, gpus, most)
    assert local <= most * (1 + 1e-9)
    assert local * gpus * (steps + 1) == pytest.approx(batch)


def test_what_cannot_be_told_is_refused():
    with pytest.raises(ModelError, match="signal 0"):
        statistical_efficiency(0.0, 0.0, 2.0)
    with pytest.raises(ModelError, match="above 0"):
        Frame(MODEL.chip, -5.0, 32.0)
