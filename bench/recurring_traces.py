"""Recurring jobs as measured: Zeus's public traces, read and joined into one ``Truth`` for each GPU and workload.

A ``Truth`` is what a simulated run obeys: the epochs that real trainings took at each batch size, and what an epoch
took at each power limit. Its expectations, its oracle and Default's cost are exact sums over those tables. It is not
what any tuner believes, and it is no simulator; ``bench.recurring_play`` is.

The job table holds what the traces do not say: which target, which default size, when a run has failed (Zeus §6.1).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from joulewise.core.series import EpochCost, Platform, Recurring


@dataclass(frozen=True, slots=True)
class Listed:
    """A workload of the paper: what it trains, to what, and how a user would run it."""

    network: str
    optimizer: str
    default: int
    """On a GPU that was not traced at so large a size it is the largest that was."""
    target: float
    max_epochs: int


JOBS: Mapping[str, Listed] = {
    "cifar100": Listed("shufflenetv2", "adadelta", 1024, 0.60, 100),
    "imagenet": Listed("resnet50", "adadelta", 256, 0.65, 100),
    "librispeech": Listed("deepspeech2", "adamw", 256, 40.0, 16),
    "movielens-1m": Listed("ncf", "adam", 1024, 0.41, 100),
    "sentiment140": Listed("bert_base_uncased", "adamw", 128, 0.84, 10),
    "squad": Listed("bert_base_uncased", "adamw", 32, 84.0, 6),
}
TRAIN = ("dataset", "network", "batch_size", "optimizer", "target_metric", "target_epoch")
POWER = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")


@dataclass(frozen=True)
class Truth:
    """One recurring job on one GPU model, as it really is. Costs are Zeus's, in joules, at weight ``eta``."""

    gpu: str
    workload: str
    default: int
    max_epochs: int
    max_power_w: float
    epochs: Mapping[int, tuple[int | None, ...]]
    """Batch size → the epochs that each training took until the target; None where it never got there."""
    profiles: Mapping[int, tuple[EpochCost, ...]]
    """Batch size → an epoch at every power limit, highest first: the first is what happens with nothing set."""
    eta: float = 0.5
    profile_error: float = 0.0
    """Relative standard error of one limit's profile; time and energy each."""

    @property
    def name(self) -> str:
        """As figures are keyed."""
        return f"{self.gpu}/{self.workload}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted(self.epochs))

    @property
    def recurrences(self) -> int:
        """How many the paper plays: twice the number of batch sizes times the number of limits."""
        return 2 * len(self.epochs) * len({point.setting for points in self.profiles.values() for point in points})

    @property
    def platform(self) -> Platform:
        """As a tuner is told of it."""
        return Platform(self.gpu, 1, self.max_power_w)

    @property
    def job(self) -> Recurring:
        """As a tuner is told of it."""
        objective = {"what": "zeus", "eta": self.eta}
        return Recurring(self.workload, self.sizes, self.default, self.max_epochs, "target", objective)

    def only(self, sizes: Iterable[int]) -> Truth:
        """The same with fewer batch sizes, of which there must be one. Where the default is not among them, the largest
        size that is not above it serves, or else the smallest."""
        kept = set(sizes)
        left = [size for size in self.sizes if size in kept]
        return replace(
            self,
            default=max((size for size in left if size <= self.default), default=left[0]),
            epochs={size: self.epochs[size] for size in self.sizes if size in kept},
            profiles={size: self.profiles[size] for size in self.sizes if size in kept},
        )

    def cost(self, duration_s: float, energy_j: float) -> float:
        """Zeus's cost of having spent that much."""
        return self.eta * energy_j + (1.0 - self.eta) * self.max_power_w * duration_s

    def epoch_cost(self, point: EpochCost) -> float:
        """Zeus's cost of an epoch."""
        return self.cost(point.duration_s, point.energy_j)

    def point(self, size: int, setting: Setting) -> EpochCost:
        """An epoch under a setting that was traced; the empty one is the highest limit."""
        points = self.profiles[size]
        return next(point for point in points if point.setting == setting) if setting else points[0]

    def cheapest(self, size: int) -> EpochCost:
        """An epoch at the limit of least cost: the highest of several that cost the same."""
        return min(self.profiles[size], key=self.epoch_cost)

    def probing(self, size: int) -> tuple[float, float]:
        """Seconds and joules of the epoch in which the limits are tried: the means over them."""
        points = self.profiles[size]
        count = len(points)
        return sum(point.duration_s for point in points) / count, sum(point.energy_j for point in points) / count

    def expected_epochs(self, size: int) -> float:
        """Epochs until a recurrence that repeats this size has reached its target; infinite where none ever does."""
        paths = self.epochs[size]
        reached = sum(self.reaches(epochs) for epochs in paths)
        spent = sum(min(epochs, self.max_epochs) if epochs is not None else self.max_epochs for epochs in paths)
        return spent / reached if reached else math.inf

    def reaches(self, epochs: int | None) -> bool:
        """Whether a training of so many epochs counts as one that got there."""
        return epochs is not None and epochs <= self.max_epochs

    def expected_cost(self, size: int, setting: Setting | None = None) -> float:
        """Of a recurrence at a setting, or at the cheapest; profiling not counted."""
        point = self.cheapest(size) if setting is None else self.point(size, setting)
        return self.expected_epochs(size) * self.epoch_cost(point)

    @cached_property
    def oracle(self) -> tuple[int, EpochCost]:
        """The one batch size and setting of least expected cost."""
        size = min(self.sizes, key=self.expected_cost)
        return size, self.cheapest(size)

    @cached_property
    def oracle_cost(self) -> float:
        """What a recurrence costs for somebody who knew."""
        return self.expected_cost(self.oracle[0])

    @cached_property
    def default_spent(self) -> tuple[float, float, float]:
        """Expected seconds, joules and cost of a recurrence for somebody who does nothing."""
        epochs, point = self.expected_epochs(self.default), self.profiles[self.default][0]
        return epochs * point.duration_s, epochs * point.energy_j, epochs * self.epoch_cost(point)

    @property
    def floor(self) -> float:
        """Regret if recurrence 1 runs the default size with its profile and all later ones are the oracle."""
        first = self.epoch_cost(self.cheapest(self.default)) * (self.expected_epochs(self.default) - 1.0)
        return (first + self.cost(*self.probing(self.default))) / self.oracle_cost - 1.0

    def frontier(self) -> list[tuple[float, float]]:
        """Expected (seconds, joules) of every choice that no other beats in both, fastest first."""
        points = sorted(
            (epochs * point.duration_s, epochs * point.energy_j)
            for size in self.sizes
            if math.isfinite(epochs := self.expected_epochs(size))
            for point in self.profiles[size]
        )
        kept: list[tuple[float, float]] = []
        for point in points:
            if not kept or point[1] < kept[-1][1]:
                kept.append(point)
        return kept


def truths(train: Path, power: Sequence[Path], eta: float = 0.5) -> list[Truth]:
    """Every workload of the job table on every GPU, where both files speak of it; BadSpec for a file that is none."""
    trained = _rows(train, TRAIN)
    found = []
    for path in power:
        powered = _rows(path, POWER)
        gpu = path.stem.removeprefix("summary_power_")
        max_power_w = max(_number(path, row, "power_limit") for row in powered)
        for workload, listed in JOBS.items():
            profiles = _profiles(path, _of(powered, workload, listed))
            epochs = _epochs(train, _of(trained, workload, listed), listed.target)
            joined = sorted(profiles.keys() & epochs.keys())
            largest = min(listed.default, max(profiles, default=0))
            default = max((size for size in joined if size <= largest), default=None)
            if default is None:
                continue
            truth = Truth(
                *(gpu, workload, default, listed.max_epochs, max_power_w),
                epochs={size: epochs[size] for size in joined},
                profiles={size: profiles[size] for size in joined},
                eta=eta,
            )
            if not math.isfinite(truth.expected_epochs(default)):
                raise BadSpec(f"{truth.name}: the default size {default} never reaches {listed.target} in {train}")
            found.append(truth)
    if not found:
        raise BadSpec(f"no workload of {', '.join(JOBS)} is in both {train} and {', '.join(map(str, power))}")
    return found


def _of(rows: Iterable[Mapping[str, str]], workload: str, listed: Listed) -> list[Mapping[str, str]]:
    wanted = (workload, listed.network, listed.optimizer)
    return [row for row in rows if (row["dataset"], row["network"], row["optimizer"]) == wanted]


def _profiles(path: Path, rows: Iterable[Mapping[str, str]]) -> dict[int, tuple[EpochCost, ...]]:
    points: dict[int, list[EpochCost]] = {}
    for row in rows:
        limit_w, epoch_s = _number(path, row, "power_limit"), _number(path, row, "time_per_epoch")
        energy_j = epoch_s * _number(path, row, "average_power")
        point = EpochCost(epoch_s, energy_j, Setting(power_limit_w=limit_w))
        points.setdefault(int(_number(path, row, "batch_size")), []).append(point)
    return {
        size: tuple(sorted(seen, key=lambda point: -point.setting["power_limit_w"])) for size, seen in points.items()
    }


def _epochs(path: Path, rows: Iterable[Mapping[str, str]], target: float) -> dict[int, tuple[int | None, ...]]:
    paths: dict[int, list[int | None]] = {}
    for row in rows:
        if math.isclose(_number(path, row, "target_metric"), target, rel_tol=1e-9):
            size = int(_number(path, row, "batch_size"))
            said = row["target_epoch"].strip()
            never = said.lower() in ("", "nan", "none", "inf")
            paths.setdefault(size, []).append(None if never else int(_number(path, row, "target_epoch")))
    return {size: tuple(seen) for size, seen in paths.items()}


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise BadSpec(f"{path} cannot be read: {fault}") from fault
    missing = [column for column in columns if not rows or rows[0].get(column) is None]
    if missing:
        raise BadSpec(f"{path} has no column {', '.join(missing)}; it needs {', '.join(columns)}")
    return rows


def _number(path: Path, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise BadSpec(f"{path}: {column} is {row[column]!r} where a number is needed, in {dict(row)}")
    return value
