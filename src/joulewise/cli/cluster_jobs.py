"""The jobs of a trace, ready for the simulator: how much work each is, what it really does, and what is believed of it.

A job that names a network for which there is a law follows that; any other name gets one by seed, the same for the same
name; a job that names none gets one by seed of its own. Its work is what fills its recorded duration on the GPUs it
asked for, at full clock; else its recorded iterations; else, for Pollux' applications, a size drawn from their class.

The scheduler knows none of this. The first job of each network and batch is probed (one GPU, one node, two nodes, and
two lower clocks; short, noisy measurements, for which it is restarted), later looks teach more, and the size of a job
is predicted with an error. Every policy starts from the same knowledge and keeps its own.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.cli.cluster_gpus import Rack
from joulewise.cli.cluster_laws import ALIKE, BATCHES, LAWS, JobTruth, drawn
from joulewise.cluster.belief import CLOCKS, Fabric, FittedBelief, WorkGuess
from joulewise.cluster.simulator import Belief, Submission
from joulewise.cluster.state import Costs, Way
from joulewise.cluster.traces import TraceJob
from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT

_CLASSES_GPU_H = {"ncf": 0.1, "cifar10": 0.1, "bert": 1.0, "deepspeech2": 1.0, "yolov3": 10.0, "imagenet": 100.0}
"""Least GPU-hours of Pollux' applications; the most is ten times as many (size classes of its authors, OSDI'21, from
memory)."""
_TIME_NOISE, _ENERGY_NOISE = 0.02, 0.03
"""Of one probe: relative standard deviations of a minute's mean (assumed)."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A job of a trace with its truth. ``network`` and ``batch`` say which jobs are alike to the scheduler."""

    job: TraceJob
    network: str
    batch: int
    truth: JobTruth
    work: float

    @property
    def gpu_s(self) -> float:
        """What it takes on the GPUs it asked for, at full clock, on the first rack."""
        first = next(iter(self.truth.racks))
        return self.job.gpus * self.work * self.truth.seconds(first, self.job.gpus)


def sized(jobs: Sequence[TraceJob], racks: Sequence[Rack], seed: int) -> tuple[Sized, ...]:
    """Every job with a law, a batch and an amount of work, all by seed where the trace does not say."""
    there = {rack.kind.name: rack for rack in racks}
    return tuple(_sized(job, there, seed) for job in jobs)


def at_load(jobs: Sequence[Sized], racks: Sequence[Rack], load: float) -> tuple[Sized, ...]:
    """The same jobs, the gaps between them stretched all alike, so that they offer ``load`` (1: all GPUs, always)."""
    first_s = jobs[0].job.submitted_s
    span_s = jobs[-1].job.submitted_s - first_s
    if span_s <= 0:
        raise BadSpec("--load needs some time between the jobs of a trace; these are all submitted at once")
    gpus = sum(rack.kind.gpus for rack in racks)
    stretch = sum(job.gpu_s for job in jobs) / (span_s * load * gpus)

    def moved(job: TraceJob) -> TraceJob:
        at_s = (job.submitted_s - first_s) * stretch
        # A deadline is as far from the submission as it was: run times have not changed.
        deadline_s = None if job.deadline_s is None else at_s + job.deadline_s - job.submitted_s
        return replace(job, submitted_s=at_s, deadline_s=deadline_s)

    return tuple(replace(each, job=moved(each.job)) for each in jobs)


def offered(jobs: Sequence[Sized], racks: Sequence[Rack]) -> float | None:
    """The load that jobs offer as they come; None where all come at once."""
    span_s = jobs[-1].job.submitted_s - jobs[0].job.submitted_s
    return sum(job.gpu_s for job in jobs) / (span_s * sum(rack.kind.gpus for rack in racks)) if span_s > 0 else None


def refuse_too_large(jobs: Sequence[TraceJob], racks: Sequence[Rack]) -> None:
    """BadSpec for a job that no rack has room for, however empty."""
    most = max(racks, key=lambda rack: rack.kind.gpus).kind
    for job in jobs:
        if job.gpus > most.gpus:
            raise BadSpec(
                f"job {job.name!r} asks for {job.gpus} GPUs, but the cluster has {most.gpus} of {most.name}; "
                "give --gpu more, or leave the job out"
            )


class Knowledge:
    """What is known before anything runs: the probes of one job of each network and batch."""

    def __init__(self, jobs: Sequence[Sized], racks: Sequence[Rack], seed: int, size_error: float) -> None:
        self._jobs = jobs
        self._seed = seed
        self._size_error = size_error
        self._fabrics = [Fabric(rack.model, rack.kind.gpus_per_node, kind=rack.kind.name) for rack in racks]
        self._most = {rack.kind.name: rack.kind.gpus for rack in racks}
        self._extra: dict[str, float] = {}
        probed: set[tuple[str, int]] = set()
        for job in jobs:
            if (job.network, job.batch) not in probed:
                probed.add((job.network, job.batch))
                self._extra[job.job.name] = sum(self._probe(job, fabric) for fabric in self._fabrics)

    def submissions(self) -> list[Submission]:
        """All jobs, with beliefs that know the probes and nothing more: no run learns from another."""
        fabrics = copy.deepcopy(self._fabrics)
        return [
            Submission(
                each.job.name,
                each.job.submitted_s,
                each.work + self._extra.get(each.job.name, 0.0),
                each.job.gpus,
                each.truth,
                self._belief(each, fabrics),
                each.job.deadline_s,
                each.job.tenant,
                weight=each.job.weight,
            )
            for each in self._jobs
        ]

    def _belief(self, job: Sized, fabrics: Sequence[Fabric]) -> Belief:
        luck = random.Random(f"size {self._seed} {job.job.name}").gauss(0.0, 1.0)
        guess = WorkGuess(job.work * math.exp(self._size_error * luck), self._size_error)
        fits = [fabric for fabric in fabrics if job.job.gpus <= self._most[fabric.kind]]
        beliefs = {
            fabric.kind: FittedBelief(
                fabric,
                (job.network, job.batch),
                batch=job.batch,
                gpus_asked=job.job.gpus,
                guess=guess,
                gpus_most=max(job.job.gpus, min(job.truth.law.most_gpus, self._most[fabric.kind])),
            )
            for fabric in fits
        }
        return next(iter(beliefs.values())) if len(beliefs) == 1 else OnSeveralKinds(beliefs)

    def _probe(self, job: Sized, fabric: Fabric) -> float:
        """Tell a fabric what a new kind of job does on it; the work that the restarts would have done."""
        rng = random.Random(f"probe {self._seed} {fabric.kind} {job.job.name}")
        each = fabric.gpus_per_node
        most = min(max(job.job.gpus, job.truth.law.most_gpus), self._most[fabric.kind])
        sizes = sorted({min(gpus, most) for gpus in (1, each, 2 * each)})
        asked = min(job.job.gpus, most)
        slower = fabric.settings[len(CLOCKS) // 2 :: len(CLOCKS) // 2 - 1][:2]
        belief = self._belief(job, [fabric]) if asked == job.job.gpus else None
        if belief is None:
            return 0.0
        for gpus, setting in [*((size, DEFAULT) for size in sizes), *((asked, setting) for setting in slower)]:
            way = Way(gpus, 1.0, 1.0, setting, fabric.kind)
            nodes = -(-gpus // each)
            unit_s, unit_j = job.truth.unit(way, nodes)
            unit_s *= math.exp(_TIME_NOISE * rng.gauss(0.0, 1.0))
            belief.tell(way, nodes, unit_s, unit_j * math.exp(_ENERGY_NOISE * rng.gauss(0.0, 1.0)))
        lost_s = sum(Costs().of(gpus, again=True) for gpus in sizes)
        return lost_s / job.truth.seconds(fabric.kind, asked)


class OnSeveralKinds:
    """A job that may run on GPUs of several kinds: one belief for each, and one prediction of its size."""

    def __init__(self, beliefs: Mapping[str, Belief]) -> None:
        self._beliefs = beliefs
        self._of: tuple[tuple[Way, ...], ...] = ()
        self._ways: tuple[Way, ...] = ()

    def ways(self) -> tuple[Way, ...]:
        """Those of all kinds; the same tuple while no kind's have changed."""
        found = tuple(belief.ways() for belief in self._beliefs.values())
        if len(found) != len(self._of) or any(new is not old for new, old in zip(found, self._of, strict=True)):
            self._of = found
            self._ways = tuple(way for ways in found for way in ways)
        return self._ways

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """To the belief of the kind that it ran on."""
        self._beliefs[way.kind].tell(way, nodes, unit_s, unit_j)

    def work_left(self, done: float) -> float:
        """The same on any kind."""
        return next(iter(self._beliefs.values())).work_left(done)


def _sized(job: TraceJob, racks: dict[str, Rack], seed: int) -> Sized:
    said = None if job.model is None else ALIKE.get(job.model, job.model)
    network = drawn(seed, job.name) if said is None else said
    law = LAWS[network if network in LAWS else drawn(seed, network)]
    batch = job.batch or random.Random(f"batch {seed} {job.name}").choice(BATCHES)
    truth = JobTruth.of(law, max(batch, job.gpus), racks, seed, job.name)
    where = next((kind for kind, rack in racks.items() if rack.kind.gpus >= job.gpus), next(iter(racks)))
    unit_s = truth.seconds(where, job.gpus)
    if job.duration_s is not None:
        work = job.duration_s / unit_s
    elif job.iterations is not None:
        work = job.iterations
    elif job.model in _CLASSES_GPU_H:
        size = random.Random(f"class {seed} {job.name}").random()
        work = _CLASSES_GPU_H[job.model] * 10.0**size * 3600.0 / (job.gpus * unit_s)
    else:
        raise BadSpec(
            f"job {job.name!r} says neither how long it ran nor how many iterations, and no size is known for "
            f"{job.model!r}; add a column duration_s"
        )
    return Sized(job, network, truth.batch, truth, work)
