"""The tuner of a recurring job: learns the best batch size while the job runs, from run to run (Zeus, and faster).

A deterministic fold of events: Registered, Asked, Progressed, Told and Expired go in, and what is to be done next comes
out, as events that the caller appends and folds in turn. It reads no clock, and its coins are the trial's own, so that
any number of processes that read one journal decide alike, and a crash costs nothing. Trials may be told in any order,
late, twice or never: what is known counts once, and what is not heard of for long enough is given up.

How it chooses is in ``series_choice``; what it believes in ``series_epochs`` and ``series_price``; what it shows people
in ``series_views``. The setting of a run's clocks and power limit is the job tuner's business: here an epoch costs what
it was seen to cost, setting by setting.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Event, Expired, Progressed, Registered, Told
from joulewise.core.frontier import Frontier
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.core.units import format_percent
from joulewise.tune import series_views
from joulewise.tune.series_choice import CHANCES, Outlook, Weighed
from joulewise.tune.series_epochs import Epochs
from joulewise.tune.series_price import Costs, Price
from joulewise.tune.series_trials import TrialRecord, Trials
from joulewise.tune.series_views import SeriesSummary, SizeBelief

__all__ = ["SeriesSummary", "SeriesTuner", "SizeBelief", "TrialRecord"]

CRASHED = "crashed"
"""The note of a run that failed before it could teach anything."""
_MOST_CRASHES = 2
_FINISH_TRIES = 2
"""After so many vain runs that should have finished a recurrence the default has its turn."""
_LATE = 8.0
"""A run that is late by a tenth counts as if it cost twice as much: one that is in time is worth looking for."""


class SeriesTuner:
    """Of one recurring job; see the module. ``fold`` is the only way to change it."""

    VERSION: ClassVar[int] = 1
    """Of what ``to_json`` gives."""

    def __init__(self) -> None:
        self.job: Recurring | None = None
        self._price: Price | None = None
        self._epochs: Epochs | None = None
        self._costs: dict[str, Costs] = {}
        self._crashes: dict[int, int] = {}
        self._trials = Trials()

    # What has happened.

    def fold(self, event: Event) -> None:
        """Take in the next event of the job's journal. What does not concern it, or was known, changes nothing."""
        match event:
            case Registered():
                if self.job is None:
                    self._begin(event.job)
            case Asked():
                self._trials.asked(event)
            case Progressed():
                if self._trials.progressed(event):
                    self._learn_costs(event.trial, event.profile)
            case Expired():
                self._trials.expired(event)
            case Told():
                if self._trials.told(event):
                    self._learn(event)

    @property
    def resets(self) -> int:
        """How often the job was found to have drifted."""
        return self._epochs.resets if self._epochs is not None else 0

    def asked(self, key: str) -> Asked | None:
        """The trial that was handed out under this key."""
        return self._trials.keyed(key)

    # What is to be done.

    def register(self, job: Recurring, now_s: float) -> list[Event]:
        """Make the job known. BadSpec if one of that name is known that differs."""
        if self.job is None:
            Price(job)
            return [Registered(now_s, job)]
        known = self.job
        for name, flag in _FLAGS.items():
            before, now = getattr(known, name), getattr(job, name)
            if before != now:
                raise BadSpec(
                    f"job {known.name!r} is known with {flag} {_said(before)}, not {_said(now)}; "
                    "what was learnt holds for that: keep it, or give this job another name"
                )
        return []

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
        """What to append so that a trial is handed out: the last event is the Asked. [] if ``key`` has one already."""
        job, _ = self._known()
        if key and self._trials.keyed(key) is not None:
            return []
        assert self._price is not None
        self._price.of(EpochCost(1.0, 0.0), platform)  # BadSpec now, not at every ask after this one has cost some
        overdue = self.expired(now_s)
        gone = {event.trial for event in overdue if isinstance(event, Expired)}
        place, purpose, reason = self._choose(recurrence, platform, gone)
        asked = Asked(
            now_s,
            len(self._trials),
            recurrence,
            job.batch_sizes[place],
            platform,
            purpose,
            reason,
            now_s + lease_s,
            owner,
            key,
        )
        return [*overdue, asked]

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        """Epochs after which the trial is to be stopped if it has not reached the target; 0: it is not worth one.

        ``profile`` is what an epoch of it costs, where that has been seen by now.
        """
        job, _ = self._known()
        asked = self._trials.of(trial).asked
        place = job.batch_sizes.index(asked.batch_size)
        outlook = self._outlook(asked.platform, without={trial})
        if outlook is None or asked.purpose is Purpose.DEFAULT:
            return job.max_epochs
        if asked.purpose is not Purpose.EXPLORE or place == outlook.safe:
            # Bad luck once is best begun anew; more than once, the job may have changed, and the recurrence must end.
            return min(job.max_epochs, outlook.patience(place) << max(0, self._given_up(asked) - 1))
        log_epoch = None
        if profile:
            costs = self._platform(asked.platform)
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
        job, _ = self._known()
        if not 0 <= epochs <= job.max_epochs or (epochs == 0 and outcome is Outcome.REACHED):
            raise BadSpec(f"trial {trial} cannot have run {epochs} epochs; the job has 1 to {job.max_epochs}")
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
        job, epochs = self._known()
        return series_views.beliefs(job, epochs, self._platform(platform), self._outlook(platform), self._crashes)

    def summary(self, platform: Platform) -> SeriesSummary:
        """What there was, what learning has cost, and what was saved against the default, on this platform."""
        job, epochs = self._known()
        return series_views.summary(job, epochs, self._platform(platform), self._outlook(platform), self._trials)

    def history(self) -> list[TrialRecord]:
        """Every trial in the order in which they were handed out."""
        return self._trials.records()

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        """Time and energy of whole runs at every size and setting that was measured here. BadSpec where none was."""
        job, epochs = self._known()
        return series_views.frontier(job, epochs, self._platform(platform))

    # Snapshots.

    def to_json(self) -> dict[str, Any]:
        """All of it, in plain values."""
        job = self.job
        return {
            "job": None
            if job is None
            else [job.name, list(job.batch_sizes), job.default, job.max_epochs, job.target, dict(job.objective)],
            "epochs": self._epochs.to_json() if self._epochs is not None else None,
            "costs": {key: costs.to_json() for key, costs in self._costs.items()},
            "crashes": sorted(self._crashes.items()),
            "trials": self._trials.to_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> SeriesTuner:
        """The tuner that ``to_json`` was called on."""
        tuner = cls()
        if kept["job"] is not None:
            name, sizes, default, max_epochs, target, objective = kept["job"]
            tuner._begin(Recurring(name, tuple(sizes), default, max_epochs, target, objective))
            assert tuner._epochs is not None
            tuner._epochs.load(kept["epochs"])
            for key, each in kept["costs"].items():
                tuner._costs[key] = tuner._new_costs(Platform(*each["platform"]))
                tuner._costs[key].load(each)
        tuner._crashes = {int(place): int(count) for place, count in kept["crashes"]}
        tuner._trials = Trials.from_json(kept["trials"])
        return tuner

    # How.

    def _begin(self, job: Recurring) -> None:
        self.job, self._price = job, Price(job)
        self._epochs = Epochs(job.batch_sizes, job.default, job.max_epochs)

    def _known(self) -> tuple[Recurring, Epochs]:
        if self.job is None or self._epochs is None:
            raise BadSpec("this job is not registered yet; register it first")
        return self.job, self._epochs

    def _new_costs(self, platform: Platform) -> Costs:
        job, _ = self._known()
        assert self._price is not None
        return Costs(job.batch_sizes, job.default, self._price, platform)

    def _platform(self, platform: Platform) -> Costs:
        return self._costs.get(platform.key) or self._new_costs(platform)

    def _learn_costs(self, trial: int, profile: Sequence[EpochCost]) -> None:
        if not profile or self.job is None:
            return
        asked = self._trials.of(trial).asked
        if asked.batch_size not in self.job.batch_sizes:
            return
        costs = self._costs.setdefault(asked.platform.key, self._platform(asked.platform))
        costs.learn(self.job.batch_sizes.index(asked.batch_size), profile)

    def _learn(self, told: Told) -> None:
        if self.job is None or self._epochs is None:
            return
        asked = self._trials.of(told.trial).asked
        if asked.batch_size not in self.job.batch_sizes:
            return
        place = self.job.batch_sizes.index(asked.batch_size)
        if self._trials.of(told.trial).profiled is None or told.outcome is Outcome.REACHED:
            self._learn_costs(told.trial, told.profile)
        match told.outcome:
            case Outcome.REACHED if told.epochs > 0:
                self._epochs.reached(place, told.epochs)
            case Outcome.FAILED if CRASHED in told.notes:
                self._crashes[place] = self._crashes.get(place, 0) + 1
            case Outcome.STOPPED_EARLY | Outcome.FAILED if told.epochs > 0:
                self._epochs.stopped(place, told.epochs)
            case Outcome.OUT_OF_MEMORY:
                costs = self._costs.setdefault(asked.platform.key, self._platform(asked.platform))
                if any(known >= place for known in costs.known):  # as large a one has run here: it was something else
                    self._crashes[place] = self._crashes.get(place, 0) + 1
                else:
                    costs.too_large = place if costs.too_large is None else min(place, costs.too_large)
            case _:
                pass

    def _barred(self, platform: Platform) -> set[int]:
        """Places that may not be offered: they crash, or do not fit."""
        job, _ = self._known()
        too_large = self._platform(platform).too_large
        barred = {place for place, count in self._crashes.items() if count >= _MOST_CRASHES}
        return barred | (set(range(too_large, len(job.batch_sizes))) if too_large is not None else set())

    def _outlook(self, platform: Platform, without: Collection[int] = ()) -> Outlook | None:
        """What is believed now; None while no size is known to work. ``without``: trials that are not under way."""
        job, epochs = self._known()
        barred = self._barred(platform)
        proven = [place for place in epochs.proven if place not in barred]
        if not proven:
            return None
        costs, belief, noise = self._platform(platform), epochs.belief(), epochs.noise
        default = job.batch_sizes.index(job.default)
        expected = epochs.expected(belief, noise)
        untuned = costs.untuned(default)
        most_s = costs.price.most_s(untuned.duration_s * float(expected[default]) if untuned is not None else math.inf)
        cheapest = {
            place: found
            for place in costs.known
            if (found := costs.cheapest(place, float(expected[place]), most_s)) is not None
        }
        late = [place for place in costs.known if place not in cheapest]
        hurry = all(place in late for place in proven)
        if hurry:  # nothing that works is in time: the quickest will have to do, until one that may be is found to be
            quickest = {place: min(costs.profiles[place].values(), key=lambda each: each.duration_s) for place in late}
            cheapest |= quickest
        price = costs.belief(cheapest, self._elsewhere(platform))
        known_var = np.where([place in cheapest for place in range(len(job.batch_sizes))], 0.0, np.diag(price.cov))
        log_cost = price.mean + np.log(expected)
        for place in barred if hurry else {*barred, *late}:
            log_cost[place] = math.inf
        if hurry:
            for place, each in quickest.items():
                log_cost[place] += _LATE * math.log(each.duration_s * float(expected[place]) / max(most_s, 1e-9))
        safe = min(proven, key=lambda place: float(log_cost[place]))
        base = (
            costs.price.of(untuned, platform) if untuned is not None else math.exp(float(price.mean[default]))
        ) * float(expected[default])
        base = max(base, math.exp(float(log_cost[safe]))) if hurry else base
        under_way = belief
        for record in self._trials.open(without):
            size = record.asked.batch_size
            if size in job.batch_sizes:
                place = job.batch_sizes.index(size)
                under_way = under_way.seen(place, noise)
                known_var[place] = 0.0
        return Outlook(
            under_way,
            noise,
            np.array([epochs.lost(place) for place in range(len(job.batch_sizes))]),
            np.array([epochs.vain(place) for place in range(len(job.batch_sizes))]),
            log_cost,
            price.mean,
            np.maximum(known_var, 0.0),
            price.cov,
            safe,
            base,
            costs.surcharge(),
            self._trials.recurrences,
            job.max_epochs,
        )

    def _elsewhere(self, platform: Platform) -> Any:
        """How sizes compare on the platform that is known best besides this one; None where there is none."""
        others = [costs for key, costs in self._costs.items() if key != platform.key and costs.known]
        if not others:
            return None
        best = max(others, key=lambda costs: len(costs.known))
        cheapest = {place: best.cheapest(place, 1.0, math.inf) for place in best.known}
        return best.belief({place: epoch for place, epoch in cheapest.items() if epoch is not None}, None).mean

    def _given_up(self, asked: Asked) -> int:
        """How many runs of this recurrence that should have arrived were stopped before this one."""
        return sum(
            record.asked.trial < asked.trial
            and record.asked.purpose is not Purpose.EXPLORE
            and record.told is not None
            and record.told.outcome in (Outcome.STOPPED_EARLY, Outcome.FAILED)
            for record in self._trials.of_recurrence(asked.recurrence)
        )

    def _choose(self, recurrence: str, platform: Platform, gone: set[int]) -> tuple[int, Purpose, str]:
        """Place, purpose and reason of the next trial of a recurrence."""
        job, epochs = self._known()
        default = job.batch_sizes.index(job.default)
        barred = self._barred(platform)
        before = self._trials.of_recurrence(recurrence)
        vain = [record for record in before if record.told is not None and record.told.outcome in _IN_VAIN]
        outlook = self._outlook(platform, without=gone)
        if outlook is None:
            return self._first(default, barred, [job.batch_sizes.index(record.asked.batch_size) for record in vain])
        safe = outlook.safe
        if vain:
            if len(vain) > _FINISH_TRIES and default not in barred and epochs.successes[default]:
                return default, Purpose.FINISH, f"after {len(vain)} runs in vain, the default finishes"
            last = vain[-1]
            return (
                safe,
                Purpose.FINISH,
                (
                    f"batch size {last.asked.batch_size} was not there after {_epochs(last.told)}; "
                    f"{job.batch_sizes[safe]}, which works, finishes"
                ),
            )
        cut = [record for record in before if record.told is not None and record.told.outcome is Outcome.PREEMPTED]
        if cut and (place := job.batch_sizes.index(cut[-1].asked.batch_size)) not in barred:
            return place, cut[-1].asked.purpose, f"again: {cut[-1].asked.reason}"
        best, worth = self._worthiest(outlook, barred)
        if best != safe and _coin(job.name, len(self._trials)) >= worth.chance:
            best = safe
        if best == safe:
            less = 1.0 - math.exp(float(outlook.log_cost[safe])) / outlook.default_cost
            how = f"{format_percent(abs(less))} {'below' if less > 0 else 'above'} the default's cost untuned"
            return safe, Purpose.BEST, "the best known: " + ("at the default's cost" if abs(less) < 5e-3 else how)
        safe_cost = math.exp(float(outlook.log_cost[safe]))
        gain, paid = format_percent(worth.saving / safe_cost), format_percent(max(worth.price, 0.0) / safe_cost)
        return (
            best,
            Purpose.EXPLORE,
            f"may save {gain} of a run from now on, costs {paid} to find out; stops after {worth.most_epochs} epochs",
        )

    def _worthiest(self, outlook: Outlook, barred: set[int]) -> tuple[int, Weighed]:
        """The size that is most worth a try now; the safe one where none is."""
        at_least = max(outlook.weigh(outlook.safe).net, 0.0)  # a run of the safe one teaches, too
        for least in CHANCES:
            best, worth = outlook.safe, Weighed(at_least, 0)
            for place in range(len(outlook.log_cost)):
                if place == outlook.safe or place in barred or math.isinf(outlook.log_cost[place]):
                    continue
                weighed = outlook.weigh(place, least_chance=least)
                if weighed.net > worth.net:
                    best, worth = place, weighed
            if best != outlook.safe:
                break
        return best, worth

    def _first(self, default: int, barred: set[int], vain: list[int]) -> tuple[int, Purpose, str]:
        """While nothing is known to work: the default, and after it those nearest to it."""
        job, epochs = self._known()
        if default not in barred and (not epochs.runs(default) or default not in vain):
            return default, Purpose.DEFAULT, "the default comes first: what it costs is what all others are measured by"
        tried = {*vain, *barred}
        left = [place for place in range(len(job.batch_sizes)) if place not in tried] or [
            place for place in range(len(job.batch_sizes)) if place not in barred
        ]
        if not left:
            raise BadSpec(
                f"no batch size of {job.name!r} can be run: they crash or run out of memory; see 'recur history'"
            )
        place = min(left, key=lambda place: (epochs.runs(place), epochs.lost(place), abs(place - default)))
        return place, Purpose.DEFAULT, "no batch size has reached the target yet; this one has been tried least"


_IN_VAIN = (Outcome.STOPPED_EARLY, Outcome.FAILED, Outcome.OUT_OF_MEMORY)
_FLAGS = {
    "batch_sizes": "the batch sizes",
    "default": "the default",
    "max_epochs": "max. epochs of",
    "target": "the target",
    "objective": "the objective",
}


def _coin(job: str, trial: int) -> float:
    """Between 0 and 1, always the same for a trial of a job."""
    return int.from_bytes(hashlib.sha256(f"{job}/{trial}".encode()).digest()[:7]) / 2.0**56


def _said(value: object) -> str:
    return (
        ", ".join(map(str, value))
        if isinstance(value, tuple)
        else repr(value)
        if isinstance(value, str)
        else str(value)
    )


def _epochs(told: Told | None) -> str:
    count = told.epochs if told is not None else 0
    return f"{count} epoch{'s' * (count != 1)}"
