"""What the runs of a recurring job have taught since it was registered as it is: epochs, costs, and what does not run.

A job may be registered anew as long as none of its runs has counted. It then begins from nothing, and what comes back
of trials that were handed out before (``since``) is history, not knowledge. ``series`` says when; here is what a
result means: which outcome teaches what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joulewise.core.event import Asked, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.model.curves import Array
from joulewise.tune.series_crashes import Crashes
from joulewise.tune.series_epochs import Epochs
from joulewise.tune.series_price import Costs, Price

CRASHED = "crashed"
"""The note of a run that failed before it could teach anything."""


class Learnt:
    """Of one job. BadSpec for an objective that is none."""

    def __init__(self, job: Recurring, since: int = 0) -> None:
        self.job, self.since = job, since
        self.price = Price(job)
        self.default = job.batch_sizes.index(job.default)
        """Its place."""
        self.epochs = Epochs(job.batch_sizes, job.default, job.max_epochs)
        self.crashes = Crashes(self.default)
        self._costs: dict[str, Costs] = {}

    @property
    def counts(self) -> bool:
        """Whether any run has said something about epochs: what it said holds for this job alone."""
        return any(self.epochs.runs(place) for place in range(len(self.job.batch_sizes)))

    def place(self, asked: Asked) -> int | None:
        """Of a trial's batch size; None where it is not for this job."""
        if asked.trial < self.since or asked.batch_size not in self.job.batch_sizes:
            return None
        return self.job.batch_sizes.index(asked.batch_size)

    def costs(self, platform: Platform) -> Costs:
        """What epochs cost there, as far as that is known."""
        return self._costs.get(platform.key) or Costs(self.job.batch_sizes, self.job.default, self.price, platform)

    def elsewhere(self, platform: Platform) -> Array | None:
        """How sizes compare on the platform that is known best besides this one; None where there is none."""
        others = [costs for key, costs in self._costs.items() if key != platform.key and costs.known]
        if not others:
            return None
        best = max(others, key=lambda costs: len(costs.known))
        cheapest = {place: best.cheapest(place, 1.0, math.inf) for place in best.known}
        return best.belief({place: epoch for place, epoch in cheapest.items() if epoch is not None}, None).mean

    def barred(self, platform: Platform) -> set[int]:
        """Places that may not be offered: they crash, or do not fit."""
        too_large = self.costs(platform).too_large
        too_large = len(self.job.batch_sizes) if too_large is None else too_large
        return {*self.crashes.barred, *range(too_large, len(self.job.batch_sizes))}

    def profiled(self, asked: Asked, profile: Sequence[EpochCost]) -> None:
        """A trial has said what its epochs cost."""
        place = self.place(asked)
        if profile and place is not None:
            self._kept(asked.platform).learn(place, profile)

    def told(self, asked: Asked, told: Told) -> None:
        """A trial has ended."""
        place = self.place(asked)
        if place is None:
            return
        if told.epochs > 0 and CRASHED not in told.notes:
            self.crashes.ran(place)
        match told.outcome:
            case Outcome.REACHED if told.epochs > 0:
                self.epochs.reached(place, told.epochs)
            case Outcome.FAILED if CRASHED in told.notes:
                self.crashes.crashed(place, told.epochs)
            case Outcome.STOPPED_EARLY | Outcome.FAILED if told.epochs > 0:
                self.epochs.stopped(place, told.epochs)
            case Outcome.OUT_OF_MEMORY:
                self._out_of_memory(place, asked.platform, told.epochs)
                return
            case _:
                pass
        costs = self.costs(asked.platform)
        if told.epochs > 0 and costs.too_large is not None and place >= costs.too_large:
            costs.too_large = None  # it fits: somebody else had the memory then

    def to_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        job = self.job
        return {
            "job": [job.name, list(job.batch_sizes), job.default, job.max_epochs, job.target, dict(job.objective)],
            "since": self.since,
            "epochs": self.epochs.to_json(),
            "costs": {key: costs.to_json() for key, costs in self._costs.items()},
            "crashes": self.crashes.to_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Learnt:
        """What ``to_json`` was called on."""
        name, sizes, default, max_epochs, target, objective = kept["job"]
        learnt = cls(Recurring(name, tuple(sizes), default, max_epochs, target, objective), int(kept["since"]))
        learnt.epochs.load(kept["epochs"])
        learnt.crashes.load(kept["crashes"])
        for each in kept["costs"].values():
            learnt._kept(Platform(*each["platform"])).load(each)
        return learnt

    def _kept(self, platform: Platform) -> Costs:
        return self._costs.setdefault(platform.key, self.costs(platform))

    def _out_of_memory(self, place: int, platform: Platform, epochs: int) -> None:
        costs = self._kept(platform)
        if any(known >= place for known in costs.known):  # as large a one has run here: it was something else
            self.crashes.crashed(place, epochs)
        else:
            costs.too_large = place if costs.too_large is None else min(place, costs.too_large)
