"""What the scheduler is given to know of a case's jobs, the same for every policy: probes, beliefs, size predictions.

Jobs of one model and batch are alike to the scheduler (one fingerprint). The first of them is probed before it starts:
on 1 GPU, one node, two and four nodes at full clock, and at two lower clocks on the GPUs it asked for, each with the
noise of a short measurement. Its iterations count as work done, but it pays the restarts between them. What it and its
likes take later, on the ways that a policy chooses, is told to the belief by the simulator. Every job still differs
from its likes (``bench.cluster_truth.Scatter``), so that what is believed is never quite what happens.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, pstdev

from bench.cluster_energy_loads import Case, Sized
from bench.cluster_energy_power import gpu_model
from joulewise.cluster.belief import Fabric, FittedBelief, WorkGuess
from joulewise.cluster.simulator import Belief, Submission
from joulewise.cluster.state import Costs, Way
from joulewise.core.knob import DEFAULT, Setting

COSTS = Costs()
TIME_NOISE, ENERGY_NOISE = 0.02, 0.03
"""Of one probe: relative standard deviations of a minute's mean."""


@dataclass(frozen=True)
class Wrong:
    """Beliefs that are off on purpose: every believed time and energy is multiplied, whatever is told."""

    time: float = 1.0
    energy: float = 1.0


class SkewedBelief:
    """A belief whose ways are wrong by fixed factors, and stay so."""

    def __init__(self, belief: Belief, wrong: Wrong) -> None:
        self._belief = belief
        self._wrong = wrong
        self._of: tuple[Way, ...] = ()
        self._ways: tuple[Way, ...] = ()

    def ways(self) -> tuple[Way, ...]:
        """The inner ones, multiplied; the same tuple while they are."""
        inner = self._belief.ways()
        if inner is not self._of:
            wrong = self._wrong
            self._of = inner
            self._ways = tuple(
                replace(way, unit_s=way.unit_s * wrong.time, unit_j=way.unit_j * wrong.energy) for way in inner
            )
        return self._ways

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """As it is."""
        self._belief.tell(way, nodes, unit_s, unit_j)

    def work_left(self, done: float) -> float:
        """The inner one's."""
        return self._belief.work_left(done)


class Known:
    """A case with its jobs probed: hands out fresh submissions, so that no run learns from another."""

    def __init__(self, case: Case, *, costs: Costs = COSTS, elastic: bool = True, sizes: bool = True) -> None:
        self.case = case
        self._elastic = elastic
        self._sizes = sizes
        lengths = [math.log(job.work * job.truth.seconds(job.gpus)) for job in case.jobs]
        self._usual_s, self._spread = math.exp(median(lengths)), pstdev(lengths)
        model = gpu_model(case.gpu)
        clocks = [mhz / case.clocks_mhz[-1] for mhz in case.clocks_mhz]
        self._fabric = Fabric(model, case.kind.gpus_per_node, kind=case.kind.name, clocks=clocks)
        self._extra: dict[str, float] = {}
        probed = set()
        for job in case.jobs:
            if (fingerprint := _fingerprint(job)) not in probed:
                probed.add(fingerprint)
                self._extra[job.name] = self._probe(job, costs)

    def submissions(self, wrong: Wrong | None = None) -> list[Submission]:
        """All jobs, with beliefs that know what the probes told and nothing more."""
        fabric = copy.deepcopy(self._fabric)
        found = []
        for job in self.case.jobs:
            belief = self._belief(job, fabric)
            found.append(
                Submission(
                    name=job.name,
                    submitted_s=job.submitted_s,
                    work=job.work + self._extra.get(job.name, 0.0),
                    gpus_asked=job.gpus,
                    truth=job.truth,
                    belief=SkewedBelief(belief, wrong) if wrong else belief,
                    elastic=self._elastic,
                )
            )
        return found

    def _belief(self, job: Sized, fabric: Fabric) -> FittedBelief:
        guess = WorkGuess(job.guess, self.case.sigma)
        if not self._sizes:
            # Every job is taken to be of the trace's median length on what it asked for; the spread is the trace's own.
            guess = WorkGuess(self._usual_s / job.truth.seconds(job.gpus), self._spread)
        speed = job.truth.speed
        return FittedBelief(
            fabric,
            _fingerprint(job),
            batch=job.truth.batch,
            gpus_asked=job.gpus,
            guess=guess,
            gpus_most=max(job.gpus, min(speed.most_gpus(job.truth.batch), self.case.kind.gpus)),
            local_batch_most=speed.most_local,
            elastic=self._elastic,
        )

    def _probe(self, job: Sized, costs: Costs) -> float:
        """Tell the fabric what a new kind of job does; the work that its restarts would have done."""
        rng = random.Random(f"probe {job.name}")
        belief = self._belief(job, self._fabric)
        each = self.case.kind.gpus_per_node
        most = max(job.gpus, min(job.truth.speed.most_gpus(job.truth.batch), self.case.kind.gpus))
        low, middle = self.case.clocks_mhz[0], self.case.clocks_mhz[len(self.case.clocks_mhz) // 2]
        ways = [(gpus, DEFAULT) for gpus in _sizes(each, most)]
        ways += [(job.gpus, Setting(sm_mhz=mhz)) for mhz in (low, middle)]
        for gpus, setting in ways:
            way = Way(gpus, 1.0, 1.0, setting, self.case.kind.name)
            nodes = -(-gpus // each)
            unit_s, unit_j = job.truth.unit(way, nodes)
            slower, dearer = (math.exp(noise * rng.gauss(0.0, 1.0)) for noise in (TIME_NOISE, ENERGY_NOISE))
            belief.tell(way, nodes, unit_s * slower, unit_j * slower * dearer)
        lost_s = sum(costs.of(gpus, again=True) for gpus in _sizes(each, most))
        return lost_s / job.truth.seconds(job.gpus)


def _fingerprint(job: Sized) -> tuple[str, int]:
    return job.truth.model, job.truth.batch


def _sizes(per_node: int, most: int) -> Sequence[int]:
    """One GPU, one node, two and four nodes, as far as they are there."""
    return sorted({min(most, gpus) for gpus in (1, per_node, 2 * per_node, 4 * per_node)})
