"""Traces as offered loads: which jobs, on how many GPUs, how close together, and how well their sizes are predicted.

A *case* is all that the policies share: jobs with their truths, the cluster, the load, the error of the size
predictions, the power law. Where no number of GPUs is given, it is the one with which the trace as recorded offers a
load of 0.9 (in whole nodes, and no fewer than the largest job asks for); the gaps between submissions are then
stretched, all alike, so that the load is exact, and for the other loads again. A long trace is cut to a contiguous
window from its middle.

A job that names no model gets one by seed. One that names no number of iterations has as many as fill its recorded
duration on the GPUs it asked for, at full clock; one of Pollux' workloads as many as its validation file counts at its
batch.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from bench import public_sweeps
from bench.cluster_energy_power import kind_of
from bench.cluster_truth import JobTruth, Tables
from joulewise.cluster.state import Kind
from joulewise.cluster.traces import TraceJob, read_trace
from joulewise.core.errors import BadSpec

LOADS = (0.5, 0.9, 1.1)
SIGMAS = (0.0, 0.5, 1.0)
SIZING_LOAD = 0.9
"""The load that the default number of GPUs is chosen for."""


@dataclass(frozen=True)
class Sized:
    """A job as offered: when, how much work, and what is predicted of it."""

    name: str
    submitted_s: float
    gpus: int
    work: float
    truth: JobTruth
    guess: float
    """The predicted work: true × exp(σ·z)."""
    deadline_s: float | None = None


@dataclass(frozen=True)
class Case:
    """What all policies share."""

    trace: str
    gpu: str
    kind: Kind
    load: float
    sigma: float
    power: str
    clocks_mhz: tuple[int, ...]
    jobs: tuple[Sized, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """For people and files."""
        return f"{self.trace} load {self.load:g} σ {self.sigma:g} {self.power}"


def gpu_of(jobs: Sequence[TraceJob]) -> str:
    """Pollux' workloads name applications that were measured on T4; everything else runs on A100."""
    return "t4" if any(job.model in ("cifar10", "ncf", "yolov3", "imagenet") for job in jobs) else "a100"


def read_window(spec: str, count: int | None) -> tuple[str, tuple[TraceJob, ...]]:
    """A trace's name and jobs: ``FILE`` or ``FILE@TENANT``. Of a file with tenants and no choice, the tenant that used
    most GPU time (a virtual cluster is scheduled alone). ``count``: a window of so many from the middle; None: all."""
    file, _, tenant = spec.partition("@")
    path = Path(file)
    jobs = read_trace(path, tenant=tenant or None)
    if not tenant and len({job.tenant for job in jobs}) > 1:
        used: dict[str, float] = defaultdict(float)
        for job in jobs:
            used[job.tenant] += job.gpus * (job.duration_s or 0.0)
        tenant = max(sorted(used), key=used.__getitem__)
        jobs = tuple(job for job in jobs if job.tenant == tenant)
    if len(jobs) < 2:
        raise BadSpec(f"{spec} has {len(jobs)} job; a load needs at least 2")
    if count is not None and count < len(jobs):
        first = (len(jobs) - count) // 2
        jobs = jobs[first : first + count]
    stem = path.name.split(".")[0]
    return f"{stem}@{tenant}" if tenant else stem, jobs


def cases(
    spec: str,
    data: Path,
    *,
    gpus: int | None = None,
    count: int | None = None,
    loads: Iterable[float] = LOADS,
    sigmas: Iterable[float] = SIGMAS,
    powers: Iterable[str] = ("note", "mixture"),
    seed: int = 0,
) -> list[Case]:
    """Every load × prediction error × power law of one trace. BadSpec where a job asks for more than there is."""
    name, window = read_window(spec, count)
    gpu = gpu_of(window)
    tables = Tables(gpu, data)
    found = []
    for power in powers:
        sized = [_sized(job, tables, data, power, seed) for job in window]
        demand_gpu_s = sum(job.gpus * job.work * job.truth.seconds(job.gpus) for job in sized)
        span_s = window[-1].submitted_s - window[0].submitted_s
        if span_s <= 0:
            raise BadSpec(f"{spec}: all jobs are submitted at once; a load needs some time between them")
        kind = _cluster(gpu, sized, demand_gpu_s / span_s, gpus)
        for load in loads:
            stretch = demand_gpu_s / (span_s * load * kind.gpus)
            first_s = window[0].submitted_s
            at = [replace(job, submitted_s=(job.submitted_s - first_s) * stretch) for job in sized]
            for sigma in sigmas:
                jobs = tuple(replace(job, guess=job.work * math.exp(sigma * _luck(seed, job.name))) for job in at)
                found.append(Case(name, gpu, kind, load, sigma, power, tables.clocks_mhz, jobs))
    return found


def _sized(job: TraceJob, tables: Tables, data: Path, power: str, seed: int) -> Sized:
    model, batch = job.model, job.batch
    if model is None:
        model, batch = tables.draw(seed, job.name)
    elif batch is None:
        batch = tables.speeds[model].batches[0] if model in tables.speeds else 1
    assert batch is not None
    truth = tables.truth(model, batch, job.name, power, seed=seed)
    # The recorded duration is that of an average job of its model: this one's own speed then makes it differ.
    if job.iterations is not None:
        work = job.iterations
    elif job.duration_s is not None:
        work = job.duration_s * truth.speed_factor / truth.seconds(job.gpus)
    else:
        work = _validated(data / "cluster" / "pollux" / "traces" / model, batch)
    return Sized(job.name, job.submitted_s, job.gpus, work, truth, work)


def _validated(folder: Path, batch: int) -> float:
    """Iterations to the end at that batch, log-log between the validated ones."""
    ends = []
    for path in folder.glob("validation-*.csv"):
        rows = public_sweeps.rows_of(path, "iteration")
        ends.append((int(path.stem.split("-")[1]), float(rows[-1]["iteration"])))
    if not ends:
        raise BadSpec(f"{folder} has no validation files; a workload without durations needs them")
    ends.sort()
    (low, low_n), (high, high_n) = ends[0], ends[-1]
    for one, two in pairwise(ends):
        if one[0] <= batch <= two[0]:
            (low, low_n), (high, high_n) = one, two
            break
    if low == high or batch <= low:
        return low_n
    part = min(1.0, math.log(batch / low) / math.log(high / low))
    return math.exp((1 - part) * math.log(low_n) + part * math.log(high_n))


def _cluster(gpu: str, jobs: Sequence[Sized], average: float, gpus: int | None) -> Kind:
    largest = max(jobs, key=lambda job: job.gpus)
    each = kind_of(gpu, 1).gpus_per_node
    if gpus is None:
        nodes = max(-(-largest.gpus // each), round(average / (SIZING_LOAD * each)), 1)
        return kind_of(gpu, nodes)
    if gpus % each:
        raise BadSpec(f"--gpus {gpus} is no whole number of nodes with {each} GPUs; give a multiple of {each}")
    if gpus < largest.gpus:
        raise BadSpec(f"job {largest.name} asks for {largest.gpus} GPUs, the cluster has {gpus}; give --gpus more")
    return kind_of(gpu, gpus // each)


def _luck(seed: int, name: str) -> float:
    return random.Random(f"size {seed} {name}").gauss(0.0, 1.0)
