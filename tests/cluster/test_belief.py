"""What a scheduler believes of jobs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.belief import Fabric, FittedBelief, FrontierBelief, WorkGuess
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model import catalog

MODEL = catalog.load("a100-sxm")


def fabric() -> Fabric:
    return Fabric(MODEL, 8)


def job(on: Fabric, name: str = "net", **options) -> FittedBelief:
    said = {"batch": 256.0, "gpus_asked": 4, "gpus_most": 64, "guess": WorkGuess(1000.0), **options}
    return FittedBelief(on, name, **said)


def truth(gpus: int, x: float = 1.0) -> tuple[float, float]:
    """A made-up job: compute that scales and follows the clock, talk that grows."""
    compute_s, talk_s = 0.8 / gpus * (0.7 / x + 0.3), 0.0 if gpus == 1 else 0.02 + 0.0005 * gpus
    return compute_s + talk_s, gpus * (compute_s * (90 + 260 * x**2.5) + talk_s * 90)


def show(belief: FittedBelief, *sizes: int, mhz: float | None = None) -> None:
    setting = DEFAULT if mhz is None else Setting(sm_mhz=mhz)
    for gpus in sizes:
        seconds, joules = truth(gpus, 1.0 if mhz is None else mhz / 1410)
        belief.tell(Way(gpus, 1.0, 1.0, setting), -(-gpus // 8), seconds, joules)


def test_sizes_go_up_to_what_was_asked_and_then_to_twice_the_largest_seen():
    belief = job(fabric())
    assert {way.gpus for way in belief.ways()} == {1, 2, 4}
    show(belief, 4)
    assert max(way.gpus for way in belief.ways()) == 8
    show(belief, 8)
    assert {way.gpus for way in belief.ways()} == {1, 2, 4, 8, 16}
    show(belief, 64)
    assert max(way.gpus for way in belief.ways()) == 64  # the cluster has no more


def test_a_job_that_is_not_elastic_has_the_size_that_it_asked_for():
    assert {way.gpus for way in job(fabric(), elastic=False, gpus_asked=6).ways()} == {6}


def test_ways_are_the_same_object_until_something_new_is_seen():
    belief = job(fabric())
    show(belief, 4)
    first = belief.ways()
    show(belief, 4)  # the same again, as believed
    assert belief.ways() is first
    show(belief, 8)
    assert belief.ways() is not first


def test_what_was_seen_is_believed_and_the_next_size_is_foreseen():
    belief = job(fabric())
    show(belief, 1, 2, 4, 8, 16)
    show(belief, 4, mhz=705)
    for way in belief.ways():
        if way.setting == DEFAULT:
            seconds, joules = truth(way.gpus)
            assert way.unit_s == pytest.approx(seconds, rel=0.12)
            assert way.unit_j == pytest.approx(joules, rel=0.15)
            assert way.error < 0.3


def test_jobs_with_one_fingerprint_share_what_is_seen_and_their_ways():
    on = fabric()
    first, second, other = job(on), job(on), job(on, "another")
    show(first, 4, 8)
    assert second.ways() is first.ways()
    assert max(way.gpus for way in second.ways()) == 16
    assert max(way.gpus for way in other.ways()) == 4


def test_what_other_jobs_taught_narrows_what_is_believed_of_a_new_one():
    on = fabric()
    for name in ("a", "b", "c", "d"):
        show(job(on, name), 1, 2, 4, 8, 16, 32)
    taught, untaught = job(on, "new", gpus_asked=32), job(fabric(), "new", gpus_asked=32)
    show(taught, 8)
    show(untaught, 8)
    errors = [max(way.error for way in one.ways() if way.gpus == 32) for one in (taught, untaught)]
    assert errors[0] < errors[1]


def test_the_batch_stays_unless_gradient_noise_is_known():
    assert {way.batch for way in job(fabric(), batch_most=1024).ways()} == {None}
    belief = job(fabric(), batch_most=1024, gradient=(300.0, 100.0))
    assert {way.batch for way in belief.ways()} == {256}  # nothing was seen yet: no larger batch is trusted
    show(belief, 4)
    assert {way.batch for way in belief.ways()} == {256, 512}


def test_a_unit_at_a_larger_batch_is_the_progress_of_one_at_its_own():
    belief = job(fabric(), batch_most=512, gradient=(300.0, 100.0))
    show(belief, 1, 2, 4)
    by_batch = {way.batch: way for way in belief.ways() if way.gpus == 4 and way.setting == DEFAULT}
    gain = 400.0 / (300.0 / 2 + 100.0)
    belief.tell(by_batch[512], 1, 0.5, 500.0)
    again = {way.batch: way for way in belief.ways() if way.gpus == 4 and way.setting == DEFAULT}
    assert again[512].unit_s == pytest.approx(0.5, rel=0.3)
    assert again[512].unit_s < 2.0 / gain  # an iteration of 0.5 s · gain makes gain units


def test_readings_that_are_none_teach_nothing():
    belief = job(fabric())
    before = belief.ways()
    belief.tell(before[0], 1, 0.0, 10.0)
    assert belief.ways() is before


def test_a_frontier_brings_its_own_ways():
    slow, fast = Setting(sm_mhz=900), Setting(sm_mhz=1410)
    brought = {2: Frontier([Point(1.0, 500.0, fast), Point(1.3, 400.0, slow)]), 4: Frontier([Point(0.6, 600.0, fast)])}
    belief = FrontierBelief(brought, guess=WorkGuess(10.0))
    assert [(way.gpus, way.unit_s) for way in belief.ways()] == [(2, 1.0), (2, 1.3), (4, 0.6)]
    same = belief.ways()
    belief.tell(same[0], 1, 1.01, 505.0)
    assert belief.ways() is same
    belief.tell(same[0], 1, 1.3, 600.0)
    moved = belief.ways()
    assert moved[2].unit_s == pytest.approx(0.6 * math.sqrt(1.01 * 1.3))
    belief.tell(moved[0], 1, 1.3, 600.0)  # ways that were moved are known again
    assert belief.ways()[0].unit_s > moved[0].unit_s


def test_a_frontier_of_plans_says_how_its_points_are_set():
    plans = {1: Frontier([Point(1.0, 5.0, "plan 7")])}
    with pytest.raises(BadSpec, match="as_setting"):
        FrontierBelief(plans, guess=WorkGuess(1.0))
    assert FrontierBelief(plans, guess=WorkGuess(1.0), as_setting=lambda _: DEFAULT).ways()[0].setting == DEFAULT
    with pytest.raises(BadSpec, match="at least one"):
        FrontierBelief({}, guess=WorkGuess(1.0))


@given(st.floats(1.0, 1e6), st.floats(0.0, 1.5), st.floats(0.0, 5e6))
def test_work_left_is_never_zero_and_an_exact_prediction_counts_down(work, sigma, done):
    left = WorkGuess(work, sigma).left(done)
    assert left > 0
    assert WorkGuess(work, sigma).left(0.0) == work
    if sigma == 0 and done < 0.99 * work:
        assert left == pytest.approx(work - done)


def test_a_job_that_outlives_its_prediction_is_expected_to_go_on():
    guess = WorkGuess(100.0, 0.5)
    assert guess.left(100.0) > 20.0
    assert guess.left(1000.0) > guess.left(200.0)
    assert WorkGuess(100.0, 0.5).left(90.0) > 10.0


def test_bad_jobs_are_refused():
    with pytest.raises(BadSpec, match="batch"):
        job(fabric(), batch=0.0)
