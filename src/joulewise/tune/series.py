"""The tuner of a recurring job: learns the best batch size while the job runs, from run to run (Zeus, and faster).

A deterministic fold of events: Registered, Asked, Progressed, Told and Expired go in, and what is to be done next comes
out, as events that the caller appends and folds in turn. It reads no clock, and its coins are the trial's own, so that
any number of processes that read one journal decide alike, and a crash costs nothing. Trials may be told in any order,
late, twice or never: what is known counts once, and what is not heard of for long enough is given up.

What it has learnt is in ``series_learnt``, what it believes of that in ``series_outlook``; how it chooses in
``series_next`` and ``series_choice``; what it shows people in ``series_views``. The setting of a run's clocks and power
limit is the job tuner's business: here an epoch costs what it was seen to cost, setting by setting.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Event, Expired, Progressed, Registered, Told
from joulewise.core.frontier import Frontier
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.core.units import format_duration
from joulewise.tune import series_views
from joulewise.tune.series_choice import Outlook
from joulewise.tune.series_learnt import CRASHED, Learnt
from joulewise.tune.series_next import choose
from joulewise.tune.series_outlook import outlook
from joulewise.tune.series_price import Price
from joulewise.tune.series_terms import differences
from joulewise.tune.series_trials import TrialRecord, Trials
from joulewise.tune.series_views import SeriesSummary, SizeBelief

__all__ = ["CRASHED", "SeriesSummary", "SeriesTuner", "SizeBelief", "TrialRecord"]


class SeriesTuner:
    """Of one recurring job; see the module. ``fold`` is the only way to change it."""

    VERSION: ClassVar[int] = 2
    """Of what ``to_json`` gives."""

    def __init__(self) -> None:
        self._learnt: Learnt | None = None
        self._trials = Trials()

    @property
    def job(self) -> Recurring | None:
        """As it is registered; None where it is not."""
        return self._learnt.job if self._learnt is not None else None

    @property
    def settled(self) -> bool:
        """Whether the job can no longer be registered otherwise: a run of it has counted."""
        return self._learnt is not None and self._learnt.counts

    # What has happened.

    def fold(self, event: Event) -> None:
        """Take in the next event of the job's journal. What does not concern it, or was known, changes nothing."""
        match event:
            case Registered():
                if self._learnt is None:
                    self._learnt = Learnt(event.job)
                elif not self.settled and differences(self._learnt.job, event.job):
                    self._learnt = Learnt(event.job, since=len(self._trials))
            case Asked():
                self._trials.asked(event)
            case Progressed():
                if self._trials.progressed(event) and self._learnt is not None:
                    self._learnt.profiled(self._trials.of(event.trial).asked, event.profile)
            case Expired():
                self._trials.expired(event)
            case Told():
                if self._trials.told(event) and self._learnt is not None:
                    record = self._trials.of(event.trial)
                    if record.profiled is None or event.outcome is Outcome.REACHED:
                        self._learnt.profiled(record.asked, event.profile)
                    self._learnt.told(record.asked, event)

    @property
    def resets(self) -> int:
        """How often the job was found to have drifted."""
        return self._learnt.epochs.resets if self._learnt is not None else 0

    def asked(self, key: str) -> Asked | None:
        """The trial that was handed out under this key."""
        return self._trials.keyed(key)

    # What is to be done.

    def register(self, job: Recurring, now_s: float) -> list[Event]:
        """Make the job known. One that is known otherwise is replaced as long as none of its runs has counted or is
        under way: a slip of the pen costs no name. After that BadSpec, with what differs."""
        if self._learnt is None:
            Price(job)
            return [Registered(now_s, job)]
        known = self._learnt.job
        unlike = differences(known, job)
        if not unlike:
            return []
        otherwise = f"job {known.name!r} is known with {' and with '.join(unlike)}"
        if self.settled:
            raise BadSpec(f"{otherwise}; what was learnt holds for that: keep it, or give this job another name")
        overdue = self.expired(now_s)
        for record in self._trials.open({event.trial for event in overdue if isinstance(event, Expired)}):
            left = format_duration(max(record.expires_s - now_s, 0.0))
            raise BadSpec(
                f"{otherwise}, and a run of that is under way: wait for it ({left}, should it be dead), "
                "or give this job another name"
            )
        Price(job)
        return [*overdue, Registered(now_s, job)]

    def ask(
        self,
        *,
        now_s: float,
        recurrence: str,
        platform: Platform,
        owner: str = "",
        key: str = "",
        lease_s: float = 600.0,
    ) -> list[Event]:
        """What to append so that a trial is handed out: the last event is the Asked. [] if ``key`` has one already.

        BadSpec where none can be: nothing fits, or the runs of this recurrence crash one after the other.
        """
        learnt = self._known()
        if key and self._trials.keyed(key) is not None:
            return []
        learnt.price.of(EpochCost(1.0, 0.0), platform)  # BadSpec now, not at every ask after this one has cost some
        overdue = self.expired(now_s)
        gone = {event.trial for event in overdue if isinstance(event, Expired)}
        trial = len(self._trials)
        found = choose(learnt, platform, self._outlook(platform, gone), self._before(recurrence, trial), trial)
        size = learnt.job.batch_sizes[found.place]
        expires_s = now_s + lease_s
        asked = Asked(now_s, trial, recurrence, size, platform, found.purpose, found.reason, expires_s, owner, key)
        return [*overdue, asked]

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        """Epochs after which the trial is to be stopped if it has not reached the target; 0: it is not worth one.

        ``profile`` is what an epoch of it costs, where that has been seen by now.
        """
        learnt = self._known()
        asked = self._trials.of(trial).asked
        most, place = learnt.job.max_epochs, learnt.place(asked)
        outlook = self._outlook(asked.platform, without={trial})
        if place is None or outlook is None or asked.purpose is Purpose.DEFAULT:
            return most
        if asked.purpose is not Purpose.EXPLORE or place == outlook.safe:
            # Bad luck once is best begun anew; more than once, the job may have changed, and the recurrence must end.
            return min(most, outlook.patience(place) << max(0, self._given_up(asked) - 1))
        log_epoch = None
        if profile:
            costs = learnt.costs(asked.platform)
            epoch = costs.cheapest(place, 1.0, math.inf, profile)
            assert epoch is not None
            log_epoch = math.log(max(costs.price.of(epoch, asked.platform), 1e-300))
        return outlook.stop(place, log_epoch)

    def progress(
        self, trial: int, *, now_s: float, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = 600.0
    ) -> list[Event]:
        """The trial lives. [] where it has been told already."""
        if self._trials.of(trial).told is not None:
            return []
        return [Progressed(now_s, trial, epochs, now_s + lease_s, tuple(profile))]

    def tell(
        self,
        trial: int,
        *,
        now_s: float,
        outcome: Outcome,
        epochs: int,
        duration_s: float,
        energy_j: float,
        profile: Sequence[EpochCost] = (),
        notes: Sequence[str] = (),
    ) -> list[Event]:
        """The trial has ended. [] where that is known."""
        if self._trials.of(trial).told is not None:
            return []
        learnt = self._known()
        most = learnt.job.max_epochs
        too_many = epochs > most and trial >= learnt.since  # as the job was before, it may have had more
        if epochs < 0 or too_many or (epochs == 0 and outcome is Outcome.REACHED):
            raise BadSpec(f"trial {trial} cannot have run {epochs} epochs; the job has 1 to {most}")
        return [Told(now_s, trial, outcome, epochs, duration_s, energy_j, tuple(profile), tuple(notes))]

    def expired(self, now_s: float) -> list[Event]:
        """Of every trial that should have been heard of by now."""
        return [
            Expired(now_s, trial, f"nothing was heard of it since {heard_s:.0f}")
            for trial, heard_s in self._trials.overdue(now_s)
        ]

    # What is believed.

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        """About every batch size on this platform."""
        return series_views.beliefs(self._known(), platform, self._outlook(platform))

    def summary(self, platform: Platform) -> SeriesSummary:
        """What there was, what learning has cost, and what was saved against the default, on this platform, since the
        job was registered as it is."""
        learnt = self._known()
        records = self._trials.records()[learnt.since :]
        return series_views.summary(learnt, platform, self._outlook(platform), records)

    def history(self) -> list[TrialRecord]:
        """Every trial in the order in which they were handed out."""
        return self._trials.records()

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        """Time and energy of whole runs at every size and setting that was measured here. BadSpec where none was."""
        return series_views.frontier(self._known(), platform)

    # Snapshots.

    def to_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        learnt = self._learnt
        return {"learnt": learnt.to_json() if learnt is not None else None, "trials": self._trials.to_json()}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> SeriesTuner:
        """The tuner that ``to_json`` was called on."""
        tuner = cls()
        tuner._learnt = Learnt.from_json(kept["learnt"]) if kept["learnt"] is not None else None
        tuner._trials = Trials.from_json(kept["trials"])
        return tuner

    # How.

    def _known(self) -> Learnt:
        if self._learnt is None:
            raise BadSpec("this job is not registered yet; register it first")
        return self._learnt

    def _outlook(self, platform: Platform, without: Collection[int] = ()) -> Outlook | None:
        """What is believed now; None while no size is known to work. ``without``: trials that are not under way."""
        learnt = self._known()
        places = (learnt.place(record.asked) for record in self._trials.open(without))
        under_way = [place for place in places if place is not None]
        return outlook(learnt, platform, under_way, self._trials.recurrences)

    def _before(self, recurrence: str, trial: int) -> list[TrialRecord]:
        """The trials of a recurrence that were handed out before this one, as the job is registered now."""
        learnt = self._known()
        return [
            record
            for record in self._trials.of_recurrence(recurrence)
            if record.asked.trial < trial and learnt.place(record.asked) is not None
        ]

    def _given_up(self, asked: Asked) -> int:
        """How many runs of this recurrence that should have arrived were stopped before this one."""
        return sum(
            record.asked.purpose is not Purpose.EXPLORE
            and record.told is not None
            and record.told.outcome in (Outcome.STOPPED_EARLY, Outcome.FAILED)
            for record in self._before(asked.recurrence, asked.trial)
        )
