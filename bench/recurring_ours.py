"""The series tuner as one more policy of the simulator: the same object as in the CLI and the server, fed by events.

Nothing is remembered here that the tuner could remember: what it answers is folded into it as the journal would, one
event at a time. Time is a count of calls, so that no trial ever expires.
"""

from __future__ import annotations

from collections.abc import Sequence

from joulewise.core.event import Asked
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.tune.series import SeriesTuner
from joulewise.tune.series_baselines import Allowed, Job, Run

LEASE_S = 1e12
"""For ever: nobody dies here."""


class Ours:
    """A ``SeriesPolicy`` on a ``SeriesTuner``; give it the tuner of an earlier one to go on with what that learnt."""

    def __init__(self, job: Recurring, platform: Platform, *, tuner: SeriesTuner | None = None, begin: int = 0) -> None:
        """``begin``: how many recurrences the tuner has seen before."""
        self.tuner = SeriesTuner() if tuner is None else tuner
        self._platform = platform
        self._begin = begin
        self._job = Job(job.batch_sizes, job.default, job.max_epochs, platform.max_power_w, float(job.objective["eta"]))
        self._now_s = 0.0
        self._profiled: set[int] = set()
        self._profiles: dict[int, tuple[EpochCost, ...]] = {}
        for event in self.tuner.register(job, self._tick()):
            self.tuner.fold(event)

    def ask(self, recurrence: int) -> Run:
        """The tuner's trial; its limits are tried within the run."""
        name = f"r{self._begin + recurrence}"
        events = self.tuner.ask(now_s=self._tick(), recurrence=name, platform=self._platform, lease_s=LEASE_S)
        for event in events:
            self.tuner.fold(event)
        trial = events[-1]
        assert isinstance(trial, Asked), f"an ask ends with the trial, not with {trial}"
        return Run(trial.trial, recurrence, trial.batch_size, reason=f"{trial.purpose}: {trial.reason}")

    def allow(self, run: Run, profile: Sequence[EpochCost]) -> Allowed:
        """The tuner's limit at the cheapest setting. What a size costs is not known before an epoch has been run."""
        if run.batch_size not in self._profiled:
            if self.tuner.limit(run.number, ()) == 0:
                return Allowed(self._job.cheapest(profile).setting, 0)
            least = 1
        else:
            least = 0
        self._profiles[run.number] = tuple(profile)
        events = self.tuner.progress(
            run.number, now_s=self._tick(), epochs=least, profile=tuple(profile), lease_s=LEASE_S
        )
        for event in events:
            self.tuner.fold(event)
        epochs = min(max(least, self.tuner.limit(run.number, tuple(profile))), self._job.max_epochs)
        return Allowed(self._job.cheapest(profile).setting, epochs)

    def tell(self, run: Run, outcome: Outcome, *, epochs: int, duration_s: float, energy_j: float) -> None:
        """Told as the CLI does, with the profile."""
        if epochs:
            self._profiled.add(run.batch_size)
        events = self.tuner.tell(
            run.number,
            now_s=self._tick(),
            outcome=outcome,
            epochs=epochs,
            duration_s=duration_s,
            energy_j=energy_j,
            profile=self._profiles.pop(run.number, ()),
        )
        for event in events:
            self.tuner.fold(event)

    def _tick(self) -> float:
        self._now_s += 1.0
        return self._now_s
