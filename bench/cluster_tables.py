"""Readers of the public tables that say what an iteration takes: by GPUs and batch, by clock, by power limit.

Every table becomes `Measured`: one job each, its spots, seconds and, where they were metered, joules of an iteration.
The files are found through JOULEWISE_DATA.

* ``a100``: ElasticFlow's iterations/s by global batch × 1–64 A100, 8 a node.
* ``t4``: Pollux's measured step times on T4, 4 a node, by local batch, for jobs packed into the fewest nodes
  (placements.csv) and on whole nodes (scalability.csv).
* ``t4-table``: ElasticFlow's T4 tables. They are Pollux's steps again, interpolated and with accumulated steps: 384
  samples of bert on one GPU take 32 steps of 12, to the last digit.
* ``zeus``: epochs under power limits by batch, one GPU, V100 and A40. Only ratios of seconds mean anything.
* ``t4-spread``: Pollux's steps again, of jobs on more nodes than they need.
* ``sweep``: applications (not training) over SM clocks on an RTX 8000.
* ``stages``: forward and backward of GPT-3's stages by SM clock, one GPU each, A100 and A40 (Perseus).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import public_sweeps
from bench.cluster_truth import Table
from joulewise.core.errors import BadSpec
from joulewise.model.sweep import Series
from joulewise.model.throughput import Spots, local_batch
from joulewise.model.throughput_fit import Seen

T4_PER_NODE, A100_PER_NODE = 4, 8
_SAMPLES = 1e5  # of an epoch, so that iterations of a Zeus series last a usual time; only ratios are looked at


@dataclass(frozen=True)
class Measured:
    """One job as it was measured. ``model`` is what is left out of the prior for it."""

    table: str
    gpu: str
    model: str
    name: str
    seen: Seen
    series: tuple[Series, ...] = ()  # the same as sweeps, where clocks or limits were set

    @property
    def usual_batch(self) -> float:
        """Geometric middle of the batches a GPU."""
        batch = self.seen.spots.batch
        return float(math.sqrt(batch.min() * batch.max()))


def a100(data: Path) -> list[Measured]:
    """One job a network; all batches that were measured."""
    return [_table_job("a100", "a100", path, A100_PER_NODE, math.inf) for path in _tables(data, "A100")]


def t4_table(data: Path) -> list[Measured]:
    """One job a network; a GPU takes no more samples than Pollux measured."""
    found = []
    for path in _tables(data, "T4"):
        most = max(batch for _, _, batch in _steps(data, path.stem))
        found.append(_table_job("t4-table", "t4", path, T4_PER_NODE, most))
    return found


def t4(data: Path, *, spread: bool = False) -> list[Measured]:
    """One job an application; the mean where several placements use as many GPUs and nodes.

    ``spread``: also those on more nodes than they need.
    """
    found = []
    for path in sorted((data / "cluster" / "pollux" / "traces").glob("*/placements.csv")):
        steps = _steps(data, path.parent.name)
        kept = {key: times for key, times in steps.items() if spread or is_packed(*key[:2])}
        rows = [(gpus, nodes, batch, 0, 1.0, math.inf) for gpus, nodes, batch in kept]
        seconds = np.array([sum(times) / len(times) for times in kept.values()])
        name, table = path.parent.name, "t4-spread" if spread else "t4"
        found.append(Measured(table, "t4", name, name, Seen(Spots.of(rows), seconds, np.full(len(rows), math.nan))))
    return found


def is_packed(gpus: int, nodes: int) -> bool:
    """Whether so many T4 are on as few nodes as they can be."""
    return nodes == -(-gpus // T4_PER_NODE)


def sweep(data: Path, max_mhz: float) -> list[Measured]:
    """One job an application and argument; a model is a benchmark."""
    sweeps = public_sweeps.sweep([data / "dvfs" / "rtx8000-dvfs-real-profile.csv"])
    return [_clocked("sweep", "rtx8000", series.name.split("/")[0], series, max_mhz, 260.0) for series in sweeps]


def zeus(data: Path, gpu: str) -> list[Measured]:
    """One job a data set, network and optimiser: all its batches and limits."""
    jobs: dict[str, list[Series]] = defaultdict(list)
    for series in public_sweeps.zeus(data / "zeus" / f"summary_power_{gpu}.csv"):
        dataset, network, _, optimiser = series.name.split("/")
        jobs[f"{dataset}/{network}/{optimiser}"].append(series)
    found = []
    for name, many in jobs.items():
        rows, seconds, joules = [], [], []
        for series in many:
            batch = float(series.name.split("/")[2])
            for point in series.points:
                rows.append((1, 1, batch, 0, 1.0, point.limit_w or math.inf))
                seconds.append(point.time_s * batch / _SAMPLES)
                joules.append(point.time_s * batch / _SAMPLES * point.power_w)
        seen = Seen(Spots.of(rows), np.array(seconds), np.array(joules))
        found.append(Measured("zeus", gpu, "/".join(name.split("/")[:2]), name, seen, tuple(many)))
    return found


def stages(data: Path, gpu: str, max_mhz: float) -> list[Measured]:
    """One job a stage and direction, at its one batch; all are of one network.

    The A40 was at its default limit; these A100 drew up to 480 W, so that of 400 W was not in force.
    """
    stem, limit_w = {"a100": ("gpt3-175b+a100_sxm_bf16", math.inf), "a40": ("gpt3-175b+a40_bf16", 300.0)}[gpu]
    sweeps = public_sweeps.stages(data / "perseus" / "stage_profile" / f"{stem}.csv")
    return [_clocked("stages", gpu, "gpt3", series, max_mhz, limit_w) for series in sweeps]


def grid(data: Path, max_mhz: float) -> list[Measured]:
    """Three codes on an A100 over SM clocks and limits: other work on the same chip."""
    sweeps = public_sweeps.grid(data / "dvfs" / "a100_clock_powerlimit_grid.csv")
    return [_clocked("grid", "a100", series.name, series, max_mhz, 300.0) for series in sweeps]


def _clocked(table: str, gpu: str, model: str, series: Series, max_mhz: float, limit_w: float) -> Measured:
    rows = [(1, 1, 1.0, 0, (p.lock_mhz or max_mhz) / max_mhz, p.limit_w or limit_w) for p in series.points]
    seconds = np.array([point.time_s for point in series.points])
    joules = np.array([point.time_s * point.power_w for point in series.points])
    return Measured(table, gpu, model, series.name, Seen(Spots.of(rows), seconds, joules), (series,))


def _tables(data: Path, gpu: str) -> Iterable[Path]:
    folder = data / "cluster" / "elasticflow" / "throughputs" / f"throughputs_{gpu}"
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise BadSpec(f"{folder} has no throughput tables; set JOULEWISE_DATA to the folder of public data")
    return paths


def _table_job(table: str, gpu: str, path: Path, per_node: int, most: float) -> Measured:
    rows, seconds = [], []
    for batch, rates in Table.read(path).rates.items():
        for gpus, rate in rates.items():
            local, steps = local_batch(batch, gpus, most)
            rows.append((gpus, -(-gpus // per_node), local, steps, 1.0, math.inf))
            seconds.append(1.0 / rate)
    seen = Seen(Spots.of(rows), np.array(seconds), np.full(len(rows), math.nan))
    return Measured(table, gpu, path.stem, path.stem, seen)


def _steps(data: Path, application: str) -> dict[tuple[int, int, int], list[float]]:
    """(GPUs, nodes, samples a GPU) → measured step times of one of Pollux's applications."""
    folder = data / "cluster" / "pollux" / "traces" / application
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for row in public_sweeps.rows_of(folder / "placements.csv", "placement", "local_bsz", "step_time"):
        where = [int(gpus) for gpus in row["placement"]]
        found[sum(where), len(where), int(row["local_bsz"])].append(float(row["step_time"]))
    for row in public_sweeps.rows_of(folder / "scalability.csv", "num_nodes", "num_replicas", "local_bsz", "step_time"):
        key = (int(row["num_replicas"]), int(row["num_nodes"]), int(row["local_bsz"]))
        found[key].append(float(row["step_time"]))
    return found
