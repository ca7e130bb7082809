"""Tables of measured schedules of one partition: what a search is played on, and how its progress is scored.

A table holds every candidate schedule with several repeats of time and energy. A search sees one random repeat per
evaluation; it is scored on the means, which it never sees: the hypervolume of what it has evaluated, relative to that
of the whole table, below a reference point of 1.1 × the nadir of the table's own frontier.

The measured one is Kareus' (OSDI'26) grid of an attention partition on two A100: columns overlap_start, overlap_end
(operation index, −1 = sequential), comm_sm_number, comm_block_size, three repeats of seconds and of joules of both
GPUs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.tune.pareto_gain import hypervolume, non_dominated

Array = NDArray[Any]

KAREUS_FILE = Path("kareus/attn_fwd_tp2_bs4_seq4096_defaultMHz.csv")
KAREUS_BLOCKING_W = 85.0
"""Kareus' power of an A100 that waits; its search models energy beyond it."""
REACHED = 0.99
"""Share of the table's hypervolume at which a search has arrived."""


@dataclass(frozen=True)
class Table:
    """Candidates (rows of ``values``, columns named by ``columns``) with repeats of time and joules of one GPU."""

    name: str
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    slot: tuple[int, ...]
    """Which of the named ``columns`` say where communication is launched: one semantic slot to Kareus' encoding."""
    time_s: Array  # candidates × repeats
    energy_j: Array

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def means(self) -> Array:
        """Mean seconds and joules, one row a candidate: the truth that scores."""
        return np.column_stack([self.time_s.mean(axis=1), self.energy_j.mean(axis=1)])

    @cached_property
    def frontier(self) -> list[int]:
        """Candidates that nothing beats in both means, fastest first."""
        return non_dominated(self.means)

    @cached_property
    def reference(self) -> Array:
        """1.1 × the nadir (the worst of each objective) of the full frontier."""
        return np.asarray(1.1 * self.means[self.frontier].max(axis=0))

    @cached_property
    def hypervolume(self) -> float:
        """Of the whole table."""
        return hypervolume(self.means, self.reference)

    def share(self, candidates: Sequence[int]) -> float:
        """Hypervolume of these candidates' means, relative to the whole table's."""
        return hypervolume(self.means[list(candidates)], self.reference) / self.hypervolume

    def evaluations(self, order: Sequence[int], share: float = REACHED) -> int:
        """How many evaluations of ``order`` it takes to reach ``share``; the whole table where it is never reached."""
        front: list[tuple[float, float]] = []
        for count, candidate in enumerate(order, start=1):
            time, energy = self.means[candidate]
            if any(t <= time and e <= energy for t, e in front):
                continue
            front = [(t, e) for t, e in front if t < time or e < energy] + [(float(time), float(energy))]
            if hypervolume(np.array(front), self.reference) >= share * self.hypervolume:
                return count
        return len(self)

    def look(self, candidate: int, random: np.random.Generator) -> tuple[float, float]:
        """Seconds and joules of one random repeat."""
        repeat = int(random.integers(self.time_s.shape[1]))
        return float(self.time_s[candidate, repeat]), float(self.energy_j[candidate, repeat])


def read_kareus(path: Path) -> Table:
    """The A100 table from Kareus' CSV. Raises BadSpec where the file is something else."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadSpec(f"{path} cannot be read as a partition table: {error}") from error
    try:
        repeats = range(sum(name.endswith(":time (s)") for name in lines[0]))
        columns = ("overlap_start", "overlap_end", "comm_sm_number", "comm_block_size")
        values = tuple(tuple(float(line[column]) for column in columns) for line in lines)
        time = np.array([[float(line[f"{r}:time (s)"]) for r in repeats] for line in lines])
        energy = np.array([[float(line[f"{r}:total energy (J)"]) / 2.0 for r in repeats] for line in lines])
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise BadSpec(f"{path} is no partition table: {error!r}; it needs the columns of Kareus' file") from error
    if not (repeats and all(np.isfinite(part).all() and (part > 0).all() for part in (time, energy))):
        raise BadSpec(f"{path} needs repeats of finite times and energies above 0; look for empty or negative cells")
    return Table(path.stem, columns, values, (0, 1), time, energy)


def codes(column: Iterable[float]) -> Array:
    """Values as indexes into their sorted set."""
    return np.unique(np.fromiter(column, float), return_inverse=True)[1]
