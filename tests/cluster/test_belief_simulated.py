"""Beliefs of their own kind in a simulated cluster: brought frontiers are run on, batches move only where known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.belief import Fabric, FittedBelief, FrontierBelief, WorkGuess
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import Submission, simulate
from joulewise.cluster.state import Allocation, Budget, Snapshot, Way
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.model import catalog
from joulewise.model.throughput import iteration_gain
from tests.cluster.toys import TOY, ToyTruth

PLANS = {
    2: Frontier([Point(1.0, 500.0, "plan 1"), Point(1.2, 380.0, "plan 2")]),
    4: Frontier([Point(0.6, 620.0, "plan 3"), Point(0.7, 450.0, "plan 4")]),
}
CLOCKS = {"plan 1": 1400, "plan 2": 1000, "plan 3": 1410, "plan 4": 1050}


@pytest.mark.parametrize(("joule_s", "gpus", "plan"), [(0.0, 4, "plan 3"), (1.0, 2, "plan 2")])
def test_a_job_that_brings_a_frontier_for_each_gpu_count_runs_on_its_points(
    joule_s: float, gpus: int, plan: str
) -> None:
    belief = FrontierBelief(
        PLANS, guess=WorkGuess(2000.0), kind="toy", as_setting=lambda plan: Setting(sm_mhz=CLOCKS[plan])
    )
    truth = ToyTruth(slower=1.1)
    out = simulate(
        [Submission("a", 0.0, 2000.0, 2, truth, belief)], [TOY], Round(priced(), budget=Budget(joule_s=joule_s))
    )
    (span,) = out.spans
    assert (span.gpus, span.setting) == (gpus, Setting(sm_mhz=CLOCKS[plan]))
    point = next(point for point in PLANS[gpus] if point.setting == plan)
    assert span.to_s - span.from_s - span.start_s == pytest.approx(2000.0 * 1.1 * point.time_s)
    # What was seen of it moved all of its points.
    assert belief.ways()[0].unit_s == pytest.approx(1.1 * 1.0)


NOISE, SIGNAL, BATCH = 900.0, 10.0, 256.0


@dataclass(frozen=True)
class Talkative:
    """A job that spends most of an iteration on talk, whatever its batch; a unit is one iteration at ``BATCH``."""

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        scale = (way.batch or BATCH) / BATCH
        compute_s, talk_s = 0.1 * scale / way.gpus, 0.2
        gain = iteration_gain(NOISE, SIGNAL, scale)
        joules = way.gpus * (compute_s * 300.0 + talk_s * 90.0)
        return (compute_s + talk_s) * nodes / gain, joules * nodes / gain


def fastest(snapshot: Snapshot, budget: Budget) -> Allocation:
    """Four GPUs for everybody, in the fastest way."""
    return Allocation({job.name: min(_four(job.ways), key=lambda way: way.unit_s) for job in snapshot.jobs})


def _four(ways: tuple[Way, ...]) -> list[Way]:
    return [way for way in ways if way.gpus == 4]


def test_only_a_job_with_known_gradient_noise_is_offered_other_batches_and_gains_by_them() -> None:
    fabric = Fabric(catalog.load("a100-sxm"), 8, kind="toy")
    offered: dict[str, set[int | None]] = {"known": set(), "unknown": set()}
    taken: dict[str, list[int | None]] = {"known": [], "unknown": []}

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        for job in snapshot.jobs:
            offered[job.name] |= {way.batch for way in job.ways}
        for move in decision.moves:
            taken[move.job].append(move.way.batch if move.way else None)

    jobs = []
    for name, gradient in (("known", (NOISE, SIGNAL)), ("unknown", None)):
        belief = FittedBelief(
            fabric, name, batch=BATCH, gpus_asked=4, guess=WorkGuess(20_000.0), gradient=gradient, batch_most=1024.0
        )
        jobs.append(Submission(name, 0.0, 20_000.0, 4, Talkative(), belief))
    out = simulate(jobs, [TOY], Round(fastest), watch=watch)
    assert offered == {"known": {256, 512, 1024}, "unknown": {None}}
    assert taken["known"][0] == 256  # a larger one is not trusted before anything was seen
    assert taken["known"][-1] == 1024
    assert set(taken["unknown"]) == {None}
    jct_s = {job.name: job.jct_s for job in out.jobs}
    assert jct_s["known"] is not None
    assert jct_s["unknown"] is not None
    assert jct_s["known"] < 0.5 * jct_s["unknown"]
