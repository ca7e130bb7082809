"""What a series tuner is measured against: Zeus's own policy, Default, just-in-time limits alone, and a grid search.

One small protocol, so that whoever plays recurrences (``bench.recurring_play``) treats all alike: ``ask`` for the next
run, ``allow`` it epochs once it is known what one costs, ``tell`` how it ended. They are built as their authors say,
faults included, and are never what a user's job runs under: ``tune.series`` is.

Costs are Zeus's (§3.1): η·energy + (1−η)·max power·time, in joules. Draws come from the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost


class Aborted(JoulewiseError):
    """A policy has run out of batch sizes, or a recurrence of tries, and has nothing to fall back on."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of the job inside a recurrence; ``recurrence`` and ``number`` count from 0."""

    number: int
    recurrence: int
    batch_size: int
    setting: Setting | None = None
    """What to apply; None tries the limits within the run's first epoch at a size and takes the cheapest."""
    reason: str = ""
    """In words, for whoever reads the record."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """How a run may go on: under which setting, and after how many epochs it is stopped. 0 epochs: it never runs."""

    setting: Setting
    epochs: int


@dataclass(frozen=True, slots=True)
class Job:
    """What every policy knows beforehand."""

    batch_sizes: tuple[int, ...]
    default: int
    max_epochs: int
    max_power_w: float
    eta: float = 0.5

    def cost(self, duration_s: float, energy_j: float) -> float:
        """Zeus's cost of having spent that much, in joules."""
        return self.eta * energy_j + (1.0 - self.eta) * self.max_power_w * duration_s

    def epoch_cost(self, point: EpochCost) -> float:
        """Zeus's cost of an epoch (κ)."""
        return self.cost(point.duration_s, point.energy_j)

    def cheapest(self, profile: Sequence[EpochCost]) -> EpochCost:
        """What just-in-time profiling picks; the first of several that cost the same."""
        return min(profile, key=self.epoch_cost)


class SeriesPolicy(Protocol):
    """Who chooses the batch size of every run of a recurring job."""

    def ask(self, recurrence: int) -> Run:
        """The next run of this recurrence; several may be asked for before the first is told. May raise Aborted."""
        ...

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:
        """How it may go on, given what an epoch costs at every limit, highest first. Never more than max_epochs."""
        ...

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:
        """How it ended and what it took, profiling included; a run of 0 epochs was refused. May raise Aborted."""
        ...


@dataclass
class Default:
    """The user's size with nothing set, or (``just_in_time``) at the limit of least cost, every time."""

    job: Job
    just_in_time: bool = False
    _asked: int = 0

    def ask(self, recurrence: int) -> Run:
        """The default size."""
        self._asked += 1
        return Run(self._asked - 1, recurrence, self.job.default, None if self.just_in_time else DEFAULT)

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:  # noqa: ARG002 - all runs alike
        """To the end."""
        return Allowed(self.job.cheapest(profile).setting if self.just_in_time else DEFAULT, self.job.max_epochs)

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:
        """Nothing is learnt."""


@dataclass
class Bound:
    """Zeus's early stop (§4.4): no run may cost more than β times the cheapest recurrence so far."""

    job: Job
    beta: float = 2.0
    least: float = math.inf
    """Cost of the cheapest recurrence, all its runs together."""
    _spent: dict[int, float] = field(default_factory=dict)

    @property
    def most(self) -> float:
        """What a run may cost."""
        return self.beta * self.least

    def epochs(self, epoch_cost: float) -> int:
        """How many epochs that buys."""
        bought = self.most / epoch_cost
        return self.job.max_epochs if bought >= self.job.max_epochs else int(bought)

    def spend(self, run: Run, cost: float, *, reached: bool) -> None:
        """A run has ended; if it reached the target its recurrence is over."""
        total = self._spent.pop(run.recurrence, 0.0) + cost
        if reached:
            self.least = min(self.least, total)
        else:
            self._spent[run.recurrence] = total


REFUSED = 100.0
"""Zeus tells itself that a size whose first epoch is beyond the bound failed at this many bounds."""


class Zeus:
    """Two rounds of pruning, then Gaussian Thompson sampling (Zeus §4.3, §4.4), as its simulator does it.

    ``window`` is how many of an arm's last costs count, 0 for all. While a pruning run is out, others get the cheapest
    size known, and what they find does not advance the pruning (§4.4, concurrent jobs).
    """

    def __init__(self, job: Job, seed: int, *, beta: float = 2.0, window: int = 0) -> None:
        self.job = job
        self.bound = Bound(job, beta)
        self.arms: list[int] = []
        """Sizes that reached the target in both rounds; empty until then."""
        self._window = window
        self._rng = np.random.default_rng(seed)
        self._costs: dict[int, list[float]] = {size: [] for size in job.batch_sizes}
        self._cheapest: dict[int, float] = {}
        self._allowed: dict[int, float] = {}
        self._runs = 0
        self.begin_again()

    def begin_again(self) -> None:
        """Prune from all sizes once more; costs and bound are kept."""
        self.arms = []
        self._pruning = _pruning(self.job.batch_sizes, self.job.default)
        self._next = next(self._pruning)
        self._exploring: int | None = None

    def ask(self, recurrence: int) -> Run:
        """The pruning's next size, or the arm of the best draw."""
        number = self._runs
        self._runs += 1
        if self.arms:
            return Run(number, recurrence, self._drawn(), reason="sampling")
        if self._exploring is None:
            self._exploring = number
            return Run(number, recurrence, self._next, reason="pruning")
        known = min(self._cheapest, key=lambda size: self._cheapest[size], default=self.job.default)
        return Run(number, recurrence, known, reason="a pruning run is out")

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:
        """As many epochs as the bound buys at the cheapest limit; the profile's surcharge is not counted."""
        best = self.job.cheapest(profile)
        self._allowed[run.number] = self.bound.most
        return Allowed(best.setting, self.bound.epochs(self.job.epoch_cost(best)))

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:
        """Remember its cost, even a truncated one as if it were whole; a refused one as a hundred bounds."""
        reached = outcome is Outcome.REACHED
        bound = self._allowed.pop(run.number)
        spent = self.job.cost(duration_s, energy_j)
        cost = spent if epochs else REFUSED * bound
        if math.isinf(bound) and run.recurrence == 0 and not reached:
            raise Aborted(f"the default size {run.batch_size} did not reach the target in the first recurrence")
        self.bound.spend(run, spent, reached=reached)
        self._costs[run.batch_size].append(cost)
        if reached:
            self._cheapest[run.batch_size] = min(cost, self._cheapest.get(run.batch_size, math.inf))
        if run.number == self._exploring:
            self._exploring = None
            try:
                self._next = self._pruning.send((cost, reached))
            except StopIteration as done:
                self.arms = done.value
                if not self.arms:
                    raise Aborted("every batch size has been pruned") from None

    def _drawn(self) -> int:
        """An arm with fewer than two costs, at random; else the arm of the cheapest draw."""
        unseen = [size for size in self.arms if len(self._costs[size]) < 2]
        if unseen:
            return int(self._rng.choice(unseen))
        draws = {size: self._draw(size) for size in self.arms}
        return min(draws, key=lambda size: draws[size])

    def _draw(self, size: int) -> float:
        """One draw of an arm's mean cost under a flat prior, its variance taken as that of its own few costs."""
        costs = np.array(self._costs[size][-self._window :])
        return float(self._rng.normal(costs.mean(), costs.std() / math.sqrt(len(costs))))


def _pruning(sizes: Sequence[int], first: int) -> Generator[int, tuple[float, bool], list[int]]:
    """Yields the size to run next and is sent (cost, reached); returns what reached the target in both rounds.

    Each round walks down from a first size and then up, leaves a direction at its first failure, and the second begins
    at the first's cheapest.
    """
    for _ in range(2):
        good: dict[int, float] = {}
        ways = ([size for size in sorted(sizes, reverse=True) if size <= first], [s for s in sizes if s > first])
        for way in ways:
            for size in way:
                cost, reached = yield size
                if not reached:
                    break
                good[size] = cost
        if not good:
            return []
        sizes, first = sorted(good), min(good, key=lambda size: good[size])
    return list(sizes)


class Grid:
    """One batch size and limit a recurrence, the default size first, then down, then up, limits from high to low.

    A size that fails once is dropped with the limits still to come; then the cheapest single observation for ever.
    Runs are stopped as Zeus's are.
    """

    def __init__(self, job: Job, limits: Sequence[Setting], *, beta: float = 2.0) -> None:
        """``limits``: highest first."""
        self.job = job
        self.bound = Bound(job, beta)
        down = sorted((size for size in job.batch_sizes if size <= job.default), reverse=True)
        up = [size for size in job.batch_sizes if size > job.default]
        self._left = [(size, setting) for size in (*down, *up) for setting in limits]
        self._seen: dict[tuple[int, Setting], float] = {}
        self._runs = 0

    def ask(self, recurrence: int) -> Run:
        """The next point of the grid, or the best."""
        self._runs += 1
        if self._left:
            return Run(self._runs - 1, recurrence, *self._left.pop(0), reason="grid")
        best = min(self._seen, key=lambda point: self._seen[point], default=(self.job.default, DEFAULT))
        return Run(self._runs - 1, recurrence, *best, reason="best seen")

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:
        """As many epochs as the bound buys at its own limit; none at a limit that this size was not traced at."""
        point = next((point for point in profile if point.setting == run.setting), None)
        setting = run.setting or DEFAULT
        if not setting:
            return Allowed(setting, self.job.max_epochs)
        return Allowed(setting, self.bound.epochs(self.job.epoch_cost(point)) if point else 0)

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:  # noqa: ARG002 - SeriesPolicy
        """Remember its cost, or drop its size."""
        reached = outcome is Outcome.REACHED
        cost = self.job.cost(duration_s, energy_j)
        self.bound.spend(run, cost, reached=reached)
        point = (run.batch_size, run.setting or DEFAULT)
        if reached:
            self._seen[point] = min(cost, self._seen.get(point, math.inf))
        elif self._left:
            self._left = [each for each in self._left if each[0] != run.batch_size]
