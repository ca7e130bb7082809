"""Recurring jobs played on a ``Truth``, by the rules of Zeus's trace-driven simulator (Zeus §6.1), for any policy.

A recurrence runs until its target is reached, at most 20 runs. A run draws one real training of its batch size at
random. Where the limits are tried (a size's first run under a policy that tries them) its first epoch takes the mean
over all limits instead; every policy pays this alike, and nobody is shown a profile without paying. Runs may overlap:
then a policy is asked again before it was told. All is a function of the seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.recurring_traces import Truth
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.tune.series_baselines import Aborted, Run, SeriesPolicy

MOST_TRIES = 20


@dataclass(frozen=True, slots=True)
class Try:
    """One run, as it went."""

    recurrence: int
    attempt: int
    batch_size: int
    setting: Setting
    outcome: Outcome
    epochs: int
    profiled: bool
    begun_s: float
    duration_s: float
    energy_j: float
    cost: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Played:
    """A series that was played to its end: every run, in the order in which they were told."""

    tries: tuple[Try, ...]
    recurrences: int

    def spent(self) -> NDArray[np.float64]:
        """Seconds, joules and cost (rows) of every recurrence (columns), all its runs together."""
        total = np.zeros((3, self.recurrences))
        for each in self.tries:
            total[:, each.recurrence] += (each.duration_s, each.energy_j, each.cost)
        return total

    def finals(self) -> list[Try]:
        """The run of each recurrence that reached the target."""
        reached = (each for each in self.tries if each.outcome is Outcome.REACHED)
        return sorted(reached, key=lambda each: each.recurrence)


def play(
    truth: Truth | Callable[[int], Truth],
    policy: SeriesPolicy,
    seed: int,
    *,
    recurrences: int,
    overlap: int = 1,
) -> Played:
    """Play so many recurrences, ``overlap`` of them at a time; a job that drifts is a truth for each recurrence.

    Raises Aborted as the policy does, and where 20 runs of a recurrence did not reach its target.
    """
    # Another stream than the policy's own, which has the same seed.
    stage = _Stage(truth, policy, np.random.default_rng((seed, 1)))
    running: list[tuple[float, int, Run, Try]] = []
    begun = 0
    for begun in range(min(overlap, recurrences)):
        heapq.heappush(running, stage.begin(begun, 0, 0.0))
    begun = min(overlap, recurrences)
    while running:
        now_s, _, run, done = heapq.heappop(running)
        stage.end(run, done)
        if done.outcome is not Outcome.REACHED:
            if done.attempt + 1 >= MOST_TRIES:
                raise Aborted(f"recurrence {done.recurrence} did not reach its target in {MOST_TRIES} runs")
            heapq.heappush(running, stage.begin(done.recurrence, done.attempt + 1, now_s))
        elif begun < recurrences:
            heapq.heappush(running, stage.begin(begun, 0, now_s))
            begun += 1
    return Played(tuple(stage.tries), recurrences)


class _Stage:
    """What a series needs while it is played: who knows what about a size, and the runs so far."""

    def __init__(self, truth: Truth | Callable[[int], Truth], policy: SeriesPolicy, rng: np.random.Generator) -> None:
        self.tries: list[Try] = []
        self._truth = (lambda _: truth) if isinstance(truth, Truth) else truth
        self._policy = policy
        self._rng = rng
        self._profiles: dict[int, tuple[float, tuple[EpochCost, ...]]] = {}
        """Batch size → when its profile was complete, and what it said."""
        self._order = 0

    def begin(self, recurrence: int, attempt: int, now_s: float) -> tuple[float, int, Run, Try]:
        """Ask for a run and let it go; (its end, a tie-breaker, the run, how it will have gone)."""
        truth = self._truth(recurrence)
        run = self._policy.ask(recurrence)
        known_s, profile = self._profiles.get(run.batch_size, (np.inf, ()))
        profiled = run.setting is None and now_s < known_s
        if not profile or profiled:
            profile = _measured(truth.profiles[run.batch_size], truth.profile_error, self._rng)
        allowed = self._policy.allow(run, profile)
        paths = truth.epochs[run.batch_size]
        path = paths[int(self._rng.integers(len(paths)))]
        reached = path is not None and path <= allowed.epochs
        epochs = path if path is not None and reached else allowed.epochs
        point = truth.point(run.batch_size, allowed.setting)
        duration_s, energy_j = epochs * point.duration_s, epochs * point.energy_j
        profiled = profiled and epochs > 0
        if profiled:
            probing_s, probing_j = truth.probing(run.batch_size)
            duration_s += probing_s - point.duration_s
            energy_j += probing_j - point.energy_j
            self._profiles[run.batch_size] = (min(known_s, now_s + probing_s), profile)
        outcome = Outcome.REACHED if reached else Outcome.STOPPED_EARLY
        if not reached and epochs >= truth.max_epochs:
            outcome = Outcome.FAILED
        done = Try(
            *(recurrence, attempt, run.batch_size, allowed.setting, outcome, epochs, profiled, now_s),
            *(duration_s, energy_j, truth.cost(duration_s, energy_j), run.reason),
        )
        self._order += 1
        return now_s + duration_s, self._order, run, done

    def end(self, run: Run, done: Try) -> None:
        """Tell how it went."""
        self.tries.append(done)
        self._policy.tell(run, done.outcome, epochs=done.epochs, duration_s=done.duration_s, energy_j=done.energy_j)


def _measured(profile: Sequence[EpochCost], error: float, rng: np.random.Generator) -> tuple[EpochCost, ...]:
    """A profile as sensors of that relative error show it."""
    if not error:
        return tuple(profile)
    shown = []
    for point in profile:
        duration_s, energy_j = np.array([point.duration_s, point.energy_j]) * np.exp(rng.normal(0.0, error, 2))
        shown.append(
            replace(
                point,
                duration_s=float(duration_s),
                energy_j=float(energy_j),
                error_s=float(error * duration_s),
                error_j=float(error * energy_j),
            )
        )
    return tuple(shown)
