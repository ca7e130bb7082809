"""A recurring job that is played: a tuner, the events it has folded, and what its batch sizes truly need and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from joulewise.core.event import Asked, Event, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.tune.series import SeriesTuner

V100 = Platform("V100", 1, 250.0)
A40 = Platform("A40", 1, 300.0)
SIZES = (8, 16, 32, 64, 128, 256)
LEASE_S = 600.0

Epochs = Callable[[int], float]


def job(**more: Any) -> Recurring:
    return Recurring(
        **{"name": "nightly", "batch_sizes": SIZES, "default": 32, "max_epochs": 50, "target": "val_acc>=0.84", **more}
    )


def epoch(size: int, platform: Platform = V100) -> EpochCost:
    """A fixed part per step and a part per sample, at four fifths of the highest power."""
    duration_s = 100.0 * (1.0 + 64.0 / size)
    return EpochCost(duration_s, 0.8 * platform.max_power_w * duration_s)


def level(size: int) -> float:
    """Every size needs ten epochs, so that the largest is the cheapest."""
    return 10.0


class Series:
    """One job. What it decides is folded at once, as its journal would have it; time stands until it is moved."""

    def __init__(self, about: Recurring | None = None, *, seed: int = 0, noise: float = 0.0) -> None:
        self.tuner = SeriesTuner()
        self.events: list[Event] = []
        self.now_s = 1000.0
        self.recurrences = 0
        self._rng, self._noise = np.random.default_rng(seed), noise
        self.fold(*self.tuner.register(about if about is not None else job(), self.now_s))

    @property
    def job(self) -> Recurring:
        assert self.tuner.job is not None
        return self.tuner.job

    def fold(self, *events: Event) -> None:
        for event in events:
            self.tuner.fold(event)
            self.events.append(event)

    def ask(self, recurrence: str | None = None, platform: Platform = V100, **more: Any) -> Asked:
        if recurrence is None:
            recurrence, self.recurrences = f"r{self.recurrences}", self.recurrences + 1
        events = self.tuner.ask(now_s=self.now_s, recurrence=recurrence, platform=platform, **more)
        self.fold(*events)
        asked = events[-1]
        assert isinstance(asked, Asked)
        return asked

    def progress(self, trial: int, epochs: int = 1, profile: Sequence[EpochCost] = ()) -> None:
        self.fold(*self.tuner.progress(trial, now_s=self.now_s, epochs=epochs, profile=profile))

    def tell(
        self,
        asked: Asked,
        outcome: Outcome = Outcome.REACHED,
        epochs: int = 10,
        *,
        profile: Sequence[EpochCost] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        costs = [epoch(asked.batch_size, asked.platform)] if profile is None else profile
        each = costs[0] if costs else EpochCost(1.0, 0.0)
        self.fold(
            *self.tuner.tell(
                asked.trial,
                now_s=self.now_s,
                outcome=outcome,
                epochs=epochs,
                duration_s=each.duration_s * epochs,
                energy_j=each.energy_j * epochs,
                profile=costs,
                notes=notes,
            )
        )

    def ran(self, size: int, outcome: Outcome = Outcome.REACHED, epochs: int = 10, **more: Any) -> Asked:
        """A trial of this very size, whatever the tuner would have chosen."""
        asked = Asked(
            self.now_s,
            len(self.tuner.history()),
            more.pop("recurrence", f"of {size} at {len(self.events)}"),
            size,
            more.pop("platform", V100),
            more.pop("purpose", Purpose.BEST),
            "because",
            self.now_s + LEASE_S,
        )
        self.fold(asked)
        self.tell(asked, outcome, epochs, **more)
        return asked

    def recur(
        self,
        needs: Epochs = level,
        platform: Platform = V100,
        costs: Callable[[int, Platform], EpochCost | Sequence[EpochCost]] = epoch,
    ) -> list[Told]:
        """One submission, to its target; runs are stopped where the tuner says so."""
        recurrence, self.recurrences = f"r{self.recurrences}", self.recurrences + 1
        told: list[Told] = []
        while True:
            self.now_s += 1.0
            asked = self.ask(recurrence, platform)
            seen = costs(asked.batch_size, platform)
            profile = [seen] if isinstance(seen, EpochCost) else list(seen)
            luck = math.exp(self._noise * self._rng.standard_normal())
            needed = max(1, round(min(needs(asked.batch_size) * luck, 10.0**6)))
            most = self.tuner.limit(asked.trial, profile)
            reached = needed <= min(most, self.job.max_epochs)
            outcome = (
                Outcome.REACHED if reached else Outcome.FAILED if most >= self.job.max_epochs else Outcome.STOPPED_EARLY
            )
            self.tell(asked, outcome, needed if reached else min(most, self.job.max_epochs), profile=profile)
            last = self.events[-1]
            assert isinstance(last, Told)
            told.append(last)
            if reached:
                return told
            assert len(told) < 20, "a recurrence that never ends"

    def sizes(self, first: int = 0) -> list[int]:
        """Of the trials handed out, in order."""
        return [record.asked.batch_size for record in self.tuner.history()[first:]]


def expected(series: Series, platform: Platform = V100) -> Mapping[int, float]:
    """Believed epochs by size."""
    return {belief.batch_size: belief.epochs for belief in series.tuner.beliefs(platform)}
