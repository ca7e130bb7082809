"""What twenty recurrences on a real GPU were worth, beside the grid that was measured with them. Pure arithmetic.

A size's expected cost is what all its runs took over how many of them reached the target, as for the traces. The oracle
is the size of least expected cost, known only by having run them all: with few seeds it is flattered by luck, and the
tuner is measured against that luck. Regret states the error that the oracle's own seeds leave; the tuner's runs are
what they are, once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost

LAST = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """One training from nothing to its end. Seconds and joules are the whole run's, validation included."""

    batch_size: int
    seed: int
    outcome: Outcome
    epochs: int
    duration_s: float
    energy_j: float
    error_j: float
    """One standard error of measuring; the sensor's own gain cancels in every ratio here."""
    source: str
    """Where the joules come from: "counter", "integrated"."""
    losses: tuple[float, ...]
    """Validation loss after each epoch."""
    profile: tuple[EpochCost, ...]
    """What an epoch took on average; empty where none could be measured."""
    thinking_s: float = 0.0
    """Of the duration: what measuring epochs and asking the tuner whether to go on took."""


@dataclass(frozen=True, slots=True)
class Price:
    """Zeus's cost, in joules: η·energy + (1−η)·highest power limit·time."""

    eta: float
    max_power_w: float

    def of(self, ran: Ran) -> float:
        """Of one run."""
        return self.eta * ran.energy_j + (1.0 - self.eta) * self.max_power_w * ran.duration_s


@dataclass(frozen=True, slots=True)
class Expected:
    """What one run of a batch size that reaches its target takes, by its runs in the grid."""

    batch_size: int
    runs: int
    reached: int
    epochs: float
    duration_s: float
    energy_j: float
    cost: float
    cost_error: float | None
    """One standard error of ``cost``, by the spread of its seeds; None of a single one."""

    @classmethod
    def of(cls, runs: Sequence[Ran], price: Price) -> Expected:
        """Of runs of one size. All infinite where none got there."""
        reached = sum(ran.outcome is Outcome.REACHED for ran in runs)

        def each(values: Sequence[float]) -> float:
            return sum(values) / reached if reached else math.inf

        costs = [price.of(ran) for ran in runs]
        error = statistics.stdev(costs) * math.sqrt(len(costs)) / reached if reached and len(costs) > 1 else None
        return cls(
            runs[0].batch_size,
            len(runs),
            reached,
            each([ran.epochs for ran in runs]),
            each([ran.duration_s for ran in runs]),
            each([ran.energy_j for ran in runs]),
            each(costs),
            error,
        )


def table(grid: Sequence[Ran], price: Price) -> list[Expected]:
    """One row a batch size, ascending."""
    sizes = sorted({ran.batch_size for ran in grid})
    return [Expected.of([ran for ran in grid if ran.batch_size == size], price) for size in sizes]


def figures(
    grid: Sequence[Ran], recurrences: Sequence[Sequence[Ran]], default: int, price: Price
) -> dict[str, float | int | None]:
    """Every figure that what was measured allows. ``recurrences`` holds the runs of each; ratios are to the default's
    expectation in the grid."""
    rows = {row.batch_size: row for row in table(grid, price)}
    found: dict[str, float | int | None] = {"grid_runs": len(grid), "recurrences": len(recurrences)}
    base = rows.get(default)
    if base is None or not base.reached:
        return found
    oracle = min(rows.values(), key=lambda row: row.cost)
    one_round = sum(price.of(ran) for ran in grid) / len(grid) * len(rows)
    found |= {
        "grid_seeds": min(row.runs for row in rows.values()),
        "oracle_batch_size": oracle.batch_size,
        "oracle_cost": oracle.cost / base.cost,
        "oracle_energy": oracle.energy_j / base.energy_j,
        "oracle_time": oracle.duration_s / base.duration_s,
        "default_regret_a_run": base.cost / oracle.cost - 1.0,
        "grid_round_optimal_runs": one_round / oracle.cost,
    }
    if not recurrences:
        return found
    costs = [sum(map(price.of, runs)) for runs in recurrences]
    joules = [sum(ran.energy_j for ran in runs) for runs in recurrences]
    seconds = [sum(ran.duration_s for ran in runs) for runs in recurrences]
    in_all = sum(costs)
    for name, first in (("cumulative", 0), (f"last{LAST}", max(0, len(costs) - LAST))):
        found |= {
            f"{name}_cost": statistics.fmean(costs[first:]) / base.cost,
            f"{name}_energy": statistics.fmean(joules[first:]) / base.energy_j,
            f"{name}_time": statistics.fmean(seconds[first:]) / base.duration_s,
        }
    return found | {
        f"first{LAST}_cost": statistics.fmean(costs[:LAST]) / base.cost,
        f"last{LAST}_over_oracle": statistics.fmean(costs[-LAST:]) / oracle.cost,
        f"last{LAST}_at_oracle": statistics.fmean(
            runs[-1].batch_size == oracle.batch_size for runs in recurrences[-LAST:]
        ),
        "regret_optimal_runs": in_all / oracle.cost - len(costs),
        "regret_error": None if oracle.cost_error is None else in_all * oracle.cost_error / oracle.cost**2,
        "worst_recurrence": max(costs) / base.cost,
        "energy_saved_j": len(costs) * base.energy_j - sum(joules),
        "time_saved_s": len(costs) * base.duration_s - sum(seconds),
        "thinking_share": sum(ran.thinking_s for runs in recurrences for ran in runs) / sum(seconds),
        "trials": sum(map(len, recurrences)),
    }
