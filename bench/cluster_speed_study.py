"""The PowerFlow-style greedy against the exact optimum of a snapshot: a study from the literature on it, redone.

What it is: jobs of seven models with step times fitted to published A100 tables (1 to 64 GPUs), random batch, lognormal
(9, 1.3) seconds of work on one GPU, six clocks, and the power law assumed there. The greedy was found to take 1.04 to
1.16 times the exact average remaining time; one that is much better or worse is not the same greedy. What it is not: a
comparison of policies over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bench.cluster_made import CLOCKS, COUNTS, TOP_MHZ, kind
from joulewise.cluster.allocators.powerflow import powerflow
from joulewise.cluster.milp import shortest
from joulewise.cluster.state import Allocation, Budget, Job, Snapshot, Way
from joulewise.core.knob import Setting

# Milliseconds: compute α + β·(batch a GPU), synchronisation α + β·(n − 2) inside a node and across nodes, and the
# exponent of their overlap; the share of compute that does not follow the clock (assumed); the tables' global batches.
MODELS: dict[str, tuple[tuple[float, ...], float, tuple[int, ...]]] = {
    "bert": ((48.6, 1.832, 65.2, 1.639, 72.0, 0.456, 2.61), 0.2, (64, 128)),
    "deepspeech2": ((45.9, 8.956, 2.9, 2.788, 16.4, 0.0, 1.0), 0.5, (32, 64)),
    "gpt2": ((23.7, 0.880, 21.5, 1.879, 31.3, 0.349, 1.71), 0.25, (128, 256)),
    "inception3": ((21.4, 2.898, 40.4, 2.604, 58.9, 0.222, 1.76), 0.35, (64, 128)),
    "resnet50": ((7.4, 2.133, 15.9, 2.042, 32.2, 0.155, 1.21), 0.4, (64, 128, 256)),
    "resnet50_cifar10": ((29.1, 0.081, 13.6, 1.110, np.inf, 0.0, 1.83), 0.45, (64, 128, 256)),
    "vgg16": ((0.0, 3.061, 13.0, 2.266, 26.9, 0.094, 1.0), 0.3, (64, 128, 256)),
}


def study(cases: Sequence[tuple[int, int, int]], out: Callable[[str], None]) -> float:
    """Average remaining time of the greedy over the exact one, for (jobs, GPUs, seeds); the mean over all."""
    greedy = powerflow(sticky=False)
    every: list[float] = []
    for jobs, gpus, seeds in cases:
        ratios: dict[float, list[float]] = {0.2: [], 0.5: [], 0.8: []}
        for seed in range(seeds):
            seen = drawn(jobs, gpus, seed)
            slot_w = seen.kinds[0].slot_w
            least_j = sum(
                job.work_left * min(way.unit_j + way.unit_s * slot_w for way in job.ways if way.gpus == 1)
                for job in seen.jobs
            )
            whole_j = _energy_j(seen, greedy(seen, Budget()))
            for share, found in ratios.items():
                budget = Budget(energy_j=least_j + share * (whole_j - least_j))
                _, exact_s = shortest(seen, budget, gap=1e-3, everyone=True)
                found.append(_time_s(seen, greedy(seen, budget)) / exact_s)
        means = " / ".join(f"{np.mean(found):.3f}" for found in ratios.values())
        every += [ratio for found in ratios.values() for ratio in found]
        out(f"{jobs} jobs, {gpus} GPUs: greedy over exact {means} at 20 / 50 / 80 % of the energy, {seeds} seeds")
    return float(np.mean(every))


def drawn(jobs: int, gpus: int, seed: int) -> Snapshot:
    """A snapshot of the study."""
    rng = np.random.default_rng(seed)
    names = list(MODELS)
    made = []
    for number in range(jobs):
        model = names[rng.integers(len(names))]
        batches = MODELS[model][2]
        ways = _ways(model, batches[rng.integers(len(batches))], gpus)
        alone_s = min(way.unit_s for way in ways if way.gpus == 1)
        made.append(Job(f"{model}-{number}", 0.0, float(rng.lognormal(9.0, 1.3)) / alone_s, ways, gpus_asked=1))
    return Snapshot(0.0, (kind(gpus),), tuple(made))


def _ways(model: str, batch: int, most: int) -> tuple[Way, ...]:
    (alpha, beta, near, near_more, far, far_more, overlap), fixed, _ = MODELS[model]
    ways = []
    for gpus in COUNTS:
        sync = 0.0 if gpus == 1 else near + near_more * (gpus - 2) if gpus <= 8 else far + far_more * (gpus - 2)
        if gpus > min(most, batch) or sync == np.inf:
            continue
        for clock in CLOCKS:
            compute = (alpha + beta * batch / gpus) * (fixed + (1.0 - fixed) / clock)
            step_s = (compute**overlap + sync**overlap) ** (1.0 / overlap) / 1000.0
            busy = min(1.0, compute / 1000.0 / step_s)
            power_w = 63.0 + busy * (80.0 * clock + 240.0 * clock**3) + (1.0 - busy) * 60.0
            ways.append(Way(gpus, step_s, gpus * step_s * power_w, Setting(sm_mhz=round(TOP_MHZ * clock))))
    return tuple(ways)


def _energy_j(seen: Snapshot, said: Allocation) -> float:
    slot_w = seen.kinds[0].slot_w
    work = {job.name: job.work_left for job in seen.jobs}
    return sum(work[name] * (way.unit_j + way.unit_s * way.gpus * slot_w) for name, way in said.ways.items())


def _time_s(seen: Snapshot, said: Allocation) -> float:
    work = {job.name: job.work_left for job in seen.jobs}
    return sum(work[name] * way.unit_s for name, way in said.ways.items())
