"""Epochs by batch size: successes teach, stops only raise, luck is pooled, and what has changed is forgotten."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.tune.series_epochs import Epochs, steps
from tests.tune.series_jobs import SIZES

MAX_EPOCHS = 50

places = st.integers(0, len(SIZES) - 1)
counts = st.integers(1, MAX_EPOCHS)
runs = st.lists(st.tuples(places, counts, st.booleans()), max_size=25)


def new() -> Epochs:
    return Epochs(SIZES, 32, MAX_EPOCHS)


def taught(happened: list[tuple[int, int, bool]]) -> Epochs:
    epochs = new()
    for place, count, reached in happened:
        (epochs.reached if reached else epochs.stopped)(place, count)
    return epochs


def expected(epochs: Epochs) -> np.ndarray:
    return epochs.expected(epochs.belief(), epochs.noise)


@given(runs)
def test_whatever_happened_there_is_a_sane_belief(happened):
    epochs = taught(happened)
    belief = epochs.belief()
    assert np.isfinite(belief.mean).all()
    assert np.linalg.eigvalsh(belief.cov).min() > -1e-8
    assert np.all(expected(epochs) >= 1.0)
    assert np.all((epochs.noise > 0.0) & (epochs.noise < 25.0))
    assert all(0.0 <= epochs.lost(place) <= 1.0 for place in range(len(SIZES)))
    assert epochs.proven == sorted({place for place, _, reached in happened if reached})


@given(runs)
def test_it_is_the_same_from_a_snapshot(happened):
    epochs, other = taught(happened), new()
    other.load(json.loads(json.dumps(epochs.to_json())))
    assert other.to_json() == epochs.to_json()
    np.testing.assert_array_equal(other.belief().mean, epochs.belief().mean)
    np.testing.assert_array_equal(other.belief().cov, epochs.belief().cov)
    assert [other.lost(place) for place in range(len(SIZES))] == [epochs.lost(place) for place in range(len(SIZES))]
    for each in (epochs, other):
        each.reached(2, 9)
    assert other.to_json() == epochs.to_json()


@given(runs, places, counts)
def test_a_stop_never_makes_its_size_look_better(happened, place, count):
    """Zeus, D12 and its truncated costs: a run that was cut short counts there as if it had been cheap."""
    epochs = taught(happened)
    before, lost = expected(epochs)[place], epochs.lost(place)
    epochs.stopped(place, count)
    assert expected(epochs)[place] >= before * (1.0 - 1e-3)
    assert epochs.lost(place) >= lost - 1e-9


@pytest.mark.parametrize("size", [8, 64, 256])
def test_a_run_that_was_stopped_raises_what_is_believed_of_its_size(size):
    epochs = taught([(2, 10, True)])
    place = SIZES.index(size)
    before = float(epochs.belief().mean[place])
    epochs.stopped(place, 8)
    assert epochs.belief().mean[place] > before + 0.02


def test_the_further_a_run_went_in_vain_the_less_likely_it_ever_arrives():
    known = taught([(2, 10, True)])
    lost = []
    for count in (1, 5, 10, 20, 40):
        epochs = taught([(2, 10, True), (3, count, False)])
        assert epochs.belief().mean[3] > known.belief().mean[3]
        lost.append(epochs.lost(3))
    assert lost == sorted(lost)
    assert lost[-1] > 0.5 > 0.2 > lost[0]


def test_what_reached_the_target_is_believed_more_and_more():
    epochs = new()
    spread = []
    for _ in range(10):
        epochs.reached(3, 12)
        spread.append(epochs.belief().sd(3))
        assert math.exp(epochs.belief().mean[3]) == pytest.approx(12.0, rel=0.1)
    assert spread == sorted(spread, reverse=True)
    assert spread[-1] < 0.05


def test_what_fails_at_one_size_is_feared_beyond_it_and_not_on_the_other_side():
    known = taught([(2, 10, True)])
    failed = taught([(2, 10, True), (4, 50, False), (4, 50, False)])
    assert failed.lost(4) > 0.8
    assert failed.lost(5) > failed.lost(4) - 1e-9  # beyond it
    assert failed.lost(5) > known.lost(5) + 0.3
    assert failed.lost(1) == pytest.approx(known.lost(1))
    assert failed.lost(0) == pytest.approx(known.lost(0))


def test_a_size_that_works_is_not_lost_for_one_unlucky_run():
    epochs = taught([(2, 10, True)] * 5)
    before = float(epochs.belief().mean[2])
    epochs.stopped(2, 40)
    assert epochs.failures[2] == 1
    assert epochs.belief().mean[2] == pytest.approx(before)
    assert epochs.lost(2) < 0.3
    assert expected(epochs)[2] == pytest.approx(18.0, rel=0.1)  # 50 epochs in success and 40 in vain, for 5 successes


def test_luck_is_learnt_from_runs_and_a_size_never_run_is_believed_to_be_as_lucky():
    rng = np.random.default_rng(1)
    calm, wild = new(), new()
    for number in range(150):
        for epochs, luck in ((calm, 0.02), (wild, 0.3)):
            epochs.reached(number % 3 + 1, max(1, round(40.0 * math.exp(luck * rng.standard_normal()))))
    assert np.all(np.sqrt(calm.noise[1:4]) < 0.04)
    assert np.sqrt(wild.noise) == pytest.approx(0.3, rel=0.4)
    assert math.sqrt(calm.noise[5]) < 0.08 < 0.2 < math.sqrt(wild.noise[5])


def test_a_size_that_runs_every_night_says_no_more_of_the_others_luck_than_a_few_runs_of_it_would():
    few, many = new(), new()
    for epochs, nights in ((few, 6), (many, 200)):
        for _ in range(nights):
            epochs.reached(2, 40)
    assert math.sqrt(many.noise[2]) < 0.02
    assert math.sqrt(many.noise[4]) > 0.6 * math.sqrt(few.noise[4]) > 0.05


def test_a_size_that_scatters_makes_itself_doubtful_more_than_the_others():
    epochs = new()
    for night in range(24):
        epochs.reached(2, 40)
        epochs.reached(3, 25 if night % 2 else 55)
    assert epochs.noise[3] > 10.0 * epochs.noise[2]
    assert epochs.noise[2] < epochs.noise[5] < epochs.noise[3]


def test_twenty_jobs_that_stay_as_they_are_are_never_found_to_have_drifted():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        epochs, luck = new(), 0.02 + 0.25 * rng.random()
        level = 3.0 + 30.0 * rng.random()
        for _ in range(60):
            place = int(rng.integers(2, 5))
            needs = level * (1.0 + SIZES[place] / 200.0) * math.exp(luck * rng.standard_normal())
            epochs.reached(place, max(1, round(needs)))
        assert epochs.resets == 0, f"job {seed}"


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_job_that_has_become_another_is_found_out_and_learnt_anew(factor):
    rng = np.random.default_rng(3)
    epochs = new()

    def run(place: int, needs: float) -> None:
        epochs.reached(place, max(1, round(needs * math.exp(0.08 * rng.standard_normal()))))

    for number in range(20):
        run(2 + number % 3, 20.0)
    assert epochs.resets == 0
    late = 0
    while not epochs.resets:
        run(3, 20.0 * factor)
        late += 1
        assert late <= 8
    assert epochs.proven == [2, 3, 4]  # what works is known to work still
    for _ in range(3):
        run(3, 20.0 * factor)
    believed = np.exp(epochs.belief().mean)
    assert believed[3] == pytest.approx(20.0 * factor, rel=0.15)
    # Sizes that were not run since are believed to have changed in the same way, with more doubt.
    assert abs(math.log(believed[2] / (20.0 * factor))) < abs(math.log(factor)) / 2
    assert epochs.belief().sd(2) > epochs.belief().sd(3)


def test_a_run_may_be_stopped_after_any_of_few_epochs_and_after_some_of_many():
    np.testing.assert_array_equal(steps(5), [1, 2, 3, 4, 5])
    many = steps(1000)
    assert (many[0], many[-1]) == (1, 1000)
    assert len(many) < 60
    assert np.all(np.diff(many) > 0)
