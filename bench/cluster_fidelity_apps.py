"""Pollux' six applications as its authors measured them on T4 GPUs: step times and gradient noise, read and joined.

What it is: the truth that Pollux' simulator plays by, re-told from its tables (petuum/adaptdl, osdi21-artifact). What
it is not: a model that anything in the product believes in.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np

Placement = tuple[int, ...]
"""GPUs on each node that a job has GPUs on."""

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
MAX_LOCAL = {"yolov3": 8}
"""Where memory holds less than what was measured."""
MOST_NODES = 16
"""No measurement is wider."""


@dataclass(frozen=True, slots=True)
class Local:
    """How a global batch is cut: ``size`` samples a GPU and pass, ``extra`` passes before the one that synchronises."""

    size: int
    extra: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """One validation row: the progress at its end, iterations until then, and the gradient's square and variance."""

    progress: float
    iteration: float
    grad_sqr: float
    grad_var: float


class Application:
    """One application's tables."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.epochs = EPOCHS[self.name]
        self._placed: dict[Placement, list[tuple[float, ...]]] = defaultdict(list)
        for row in _table(folder / "placements.csv"):
            placement = tuple(int(digit) for digit in row["placement"])
            self._placed[placement].append(tuple(float(row[name]) for name in ("local_bsz", "step_time", "sync_time")))
        self._scaled = [
            tuple(float(row[name]) for name in ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"))
            for row in _table(folder / "scalability.csv")
        ]
        self._validated = dict(sorted((int(p.stem.split("-")[1]), _epochs(p)) for p in folder.glob("validation-*.csv")))
        sizes = [row[0] for rows in self._placed.values() for row in rows]
        self.min_local, self._max_local = int(min(sizes)), MAX_LOCAL.get(self.name, int(max(sizes)))
        self.first_batch, self._last_batch = min(self._validated), max(self._validated)
        self._known: dict[tuple[Placement, int], tuple[float, float]] = {}

    def local(self, batch: int, gpus: int, *, always_accumulate: bool = False) -> Local:
        """How ``batch`` is cut for so many GPUs. On one GPU a batch above the first accumulates: the gradient's
        variance is measured between passes. ``always_accumulate``: whatever the batch, as Optimus' estimate does."""
        each = -(-batch // gpus)
        extra = -(-each // self._max_local) - 1
        if gpus == 1 and (always_accumulate or batch > self.first_batch):
            extra = max(extra, 1)
        passes = extra + 1
        return Local(min(-(-each // passes), self._last_batch // (gpus * passes)), extra)

    def iteration_s(self, placement: Placement, local: Local) -> float:
        """Seconds of one iteration, accumulation included."""
        step_s, sync_s = self._step(placement, local.size)
        return step_s + local.extra * (step_s - sync_s)

    def goodput(self, placement: Placement, local: Local, epoch: int) -> float:
        """Progress a second: iterations at the first batch that one second is worth."""
        batch = sum(placement) * local.size * (local.extra + 1)
        _, sqr, var = self._validation(batch, epoch)
        gain = (var + sqr) / (var / (batch / self.first_batch) + sqr)
        return gain / self.iteration_s(placement, local)

    @cached_property
    def ends(self) -> Sequence[float]:
        """The progress at which each epoch ends: what the quickest of all batches had then."""
        return [min(rows[epoch].progress for rows in self._validated.values()) for epoch in range(self.epochs)]

    def iterations_left(self, batch: int, epoch: int) -> float:
        """From the end of the present epoch to the end of the last; 1 in the last."""
        left = self._validation(batch, self.epochs - 1)[0] - self._validation(batch, epoch)[0]
        return left if epoch < self.epochs - 1 else 1.0

    @cache  # noqa: B019 - a handful of applications that live as long as the bench
    def _validation(self, batch: int, epoch: int) -> tuple[float, float, float]:
        """Iteration, gradient square and variance of an epoch's row, linear between the two nearest batches."""
        batches = list(self._validated)
        high = batches[min(bisect_left(batches, batch), len(batches) - 1)]
        low = max((b for b in batches if b <= batch), default=batches[0])
        share = 0.0 if high == low else (batch - low) / (high - low)
        a, b = self._validated[low][epoch], self._validated[high][epoch]
        return (
            (1 - share) * a.iteration + share * b.iteration,
            (1 - share) * a.grad_sqr + share * b.grad_sqr,
            (1 - share) * a.grad_var + share * b.grad_var,
        )

    def _step(self, placement: Placement, size: int) -> tuple[float, float]:
        """Step and synchronisation seconds: measured for this placement, else between placements like it."""
        turned = min(placement[i:] + placement[:i] for i in range(len(placement)))
        if (turned, size) not in self._known:
            self._known[turned, size] = self._looked_up(turned, size)
        return self._known[turned, size]

    def _looked_up(self, placement: Placement, size: int) -> tuple[float, float]:
        if placement in self._placed:
            rows = np.array(sorted(self._placed[placement]))
            if not rows[0, 0] <= size <= rows[-1, 0]:
                raise ValueError(f"{self.name} was not measured at {size} samples a GPU on {placement}")
            return float(np.interp(size, rows[:, 0], rows[:, 1])), float(np.interp(size, rows[:, 0], rows[:, 2]))
        nodes = min(len(placement), MOST_NODES)
        step_s, sync_s = self._between([(nodes, sum(placement), size)])[0]
        if math.isnan(step_s):
            raise ValueError(f"{self.name} was not measured around {size} samples a GPU on {placement}")
        return float(step_s), float(sync_s)

    @cached_property
    def _between(self) -> Callable[[Sequence[tuple[int, int, int]]], Sequence[tuple[float, float]]]:
        from scipy.interpolate import LinearNDInterpolator

        groups: dict[tuple[float, ...], list[tuple[float, ...]]] = defaultdict(list)
        for placement, rows in self._placed.items():
            for size, *times in rows:
                groups[len(placement), sum(placement), size].append(tuple(times))
        # The order of the points decides between equal triangulations: means by key first, then scalability.csv.
        points = [(*key, *np.mean(groups[key], axis=0)) for key in sorted(groups)] + self._scaled
        table = np.array(points)
        between: Callable[[Sequence[tuple[int, int, int]]], Sequence[tuple[float, float]]]
        between = LinearNDInterpolator(table[:, :3], table[:, 3:])
        return between


def packed(gpus: int, per_node: int) -> Placement:
    """Full nodes and a rest."""
    whole, rest = divmod(gpus, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def applications(folder: Path) -> Mapping[str, Application]:
    """All of them, by name."""
    return {name: Application(folder / name) for name in EPOCHS}


def _epochs(path: Path) -> list[Epoch]:
    names = ("progress", "iteration", "grad_sqr", "grad_var")
    return [Epoch(*(float(row[name]) for name in names)) for row in _table(path)]


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
