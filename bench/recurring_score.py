"""What a policy's play of a recurring job is worth: the numbers of one policy on one pair of GPU and workload.

Ratios are to the exact expectation of Default (the default size, nothing set); regret is in optimal runs; means of
regret are arithmetic, means of ratios geometric. Nothing here decides or plays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.recurring_play import Played
from bench.recurring_traces import Truth
from joulewise.core.knob import Setting

FIRST = (5, 10, 20, 50)
LAST = 5


@dataclass(frozen=True, slots=True)
class Score:
    """One policy on one truth, over its seeds."""

    truth: Truth
    spent: NDArray[np.float64]
    """Seed × (seconds, joules, cost) × recurrence, as shares of Default's expectation."""
    runs: float
    """Mean number of runs in a series."""
    last: Counter[tuple[int, Setting]]
    """What the last five recurrences of every seed reached their target with."""
    aborted: int = 0

    @classmethod
    def of(cls, truth: Truth, series: Sequence[Played], aborted: int = 0) -> Score:
        """From the series that were played to their end."""
        default = np.array(truth.default_spent)[:, None]
        last = Counter((each.batch_size, each.setting) for played in series for each in played.finals()[-LAST:])
        spent = np.array([played.spent() / default for played in series])
        return cls(truth, spent, float(np.mean([len(played.tries) for played in series])), last, aborted)

    @property
    def mean(self) -> NDArray[np.float64]:
        """(Seconds, joules, cost) × recurrence: means over seeds."""
        return np.asarray(self.spent.mean(axis=0))

    @property
    def regrets(self) -> NDArray[np.float64]:
        """Of every seed: what all recurrences cost beyond the oracle's expectation, in optimal runs."""
        optimal = self.truth.oracle_cost / self.truth.default_spent[2]
        return np.asarray((self.spent[:, 2].sum(axis=1) - self.spent.shape[2] * optimal) / optimal)

    @property
    def regret(self) -> float:
        """Mean over seeds."""
        return float(self.regrets.mean())

    @property
    def cumulative(self) -> tuple[float, float, float]:
        """Energy, time and cost of all recurrences."""
        time, energy, cost = self.mean.mean(axis=1)
        return float(energy), float(time), float(cost)

    @property
    def last5(self) -> tuple[float, float, float]:
        """Energy, time and cost of the last five."""
        time, energy, cost = self.mean[:, -LAST:].mean(axis=1)
        return float(energy), float(time), float(cost)

    @property
    def last5_over_oracle(self) -> float:
        """Cost of the last five over the oracle's."""
        return self.last5[2] * self.truth.default_spent[2] / self.truth.oracle_cost

    def first(self, count: int) -> float:
        """Cost of the first so many recurrences, or of all if there are fewer."""
        return float(self.mean[2, :count].mean())

    @property
    def worst(self) -> tuple[float, int]:
        """The dearest recurrence number (from 1) and what it costs, mean over seeds."""
        costs = self.mean[2]
        return float(costs.max()), int(costs.argmax()) + 1

    @property
    def worst_single(self) -> float:
        """The dearest recurrence of any seed."""
        return float(self.spent[:, 2].max())

    @property
    def break_even(self) -> int | None:
        """The recurrence (from 1) from which the mean cumulative cost stays below Default; None: never."""
        ratio = np.cumsum(self.mean[2]) / np.arange(1, self.spent.shape[2] + 1)
        above = np.flatnonzero(ratio >= 1.0)
        begun = int(above[-1]) + 2 if len(above) else 1
        return begun if begun <= self.spent.shape[2] else None

    @property
    def at_oracle(self) -> float:
        """The share of last recurrences at the oracle's size and setting."""
        size, point = self.truth.oracle
        total = sum(self.last.values())
        return self.last[(size, point.setting)] / total if total else math.nan

    def record(self) -> dict[str, float | int | None]:
        """As JSON: every number of the table."""
        worst, number = self.worst
        deviation = float(self.regrets.std(ddof=1)) if len(self.regrets) > 1 else 0.0
        return {
            "regret_optimal_runs": self.regret,
            "regret_error": deviation / math.sqrt(len(self.regrets)),
            **{f"first{count}_cost": self.first(count) for count in FIRST},
            **dict(zip(("cumulative_energy", "cumulative_time", "cumulative_cost"), self.cumulative, strict=True)),
            **dict(zip(("last5_energy", "last5_time", "last5_cost"), self.last5, strict=True)),
            "last5_over_oracle": self.last5_over_oracle,
            "last5_at_oracle": self.at_oracle,
            "worst_recurrence": worst,
            "worst_recurrence_number": number,
            "worst_single": self.worst_single,
            "break_even": self.break_even,
            "runs": self.runs,
            "aborted": self.aborted,
        }


def frontier_excess(truth: Truth, size: int, setting: Setting) -> float:
    """How far a choice lies behind the true frontier: the least share by which some point of it is better in both."""
    epochs, point = truth.expected_epochs(size), truth.point(size, setting)
    if math.isinf(epochs):
        return math.inf
    time_s, energy_j = epochs * point.duration_s, epochs * point.energy_j
    return min(max(time_s / fast_s, energy_j / thrifty_j) for fast_s, thrifty_j in truth.frontier()) - 1.0


def first_floor(truth: Truth, count: int) -> float:
    """Cost of the first so many recurrences if only the first is not the oracle's: what cannot be beaten on average."""
    count = min(count, truth.recurrences)
    optimal = truth.oracle_cost / truth.default_spent[2]
    return optimal * (count + truth.floor) / count


def geometric(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(float(np.mean([math.log(value) for value in values])))
