"""Which trial a recurrence of a recurring job gets next: its batch size, what it is for, and why.

A new recurrence gets what is most worth a try, or the best known (``series_choice`` weighs). One whose trial came to
nothing is finished by a size that works; a size that has failed in it is not tried in it again, but for the default
where nothing else is left. Runs that crash one after the other are the job's fault: that is said, and the recurrence is
over. The next one is answered as if nothing had happened: by then it may be mended.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from joulewise.core.errors import BadSpec
from joulewise.core.event import Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import Platform, Purpose
from joulewise.core.units import format_percent
from joulewise.tune.series_choice import CHANCES, Outlook, Weighed
from joulewise.tune.series_learnt import CRASHED, Learnt
from joulewise.tune.series_trials import TrialRecord

_FINISH_TRIES = 2
"""After so many vain runs that should have finished a recurrence the default has its turn."""
_MOST_CRASHES = 3
"""In a row, in one recurrence: a size, the one that should finish for it, and one more."""
_FAILED = (Outcome.FAILED, Outcome.OUT_OF_MEMORY)
_IN_VAIN = (Outcome.STOPPED_EARLY, *_FAILED)


@dataclass(frozen=True, slots=True)
class Next:
    """What to hand out."""

    place: int
    purpose: Purpose
    reason: str


def choose(
    learnt: Learnt, platform: Platform, outlook: Outlook | None, before: Sequence[TrialRecord], trial: int
) -> Next:
    """The next trial, number ``trial``, of a recurrence that has had those ``before``. BadSpec where none can run."""
    ended = [(record, record.told) for record in before if record.told is not None]
    _refuse_broken(learnt, ended)
    barred = learnt.barred(platform)
    vain = [(record, told) for record, told in ended if told.outcome in _IN_VAIN]
    if outlook is None:
        return _first(learnt, barred, _places(learnt, vain))
    if vain:
        return _finish(learnt, outlook, barred, vain)
    cut = [record.asked for record, told in ended if told.outcome is Outcome.PREEMPTED]
    if cut and (place := learnt.place(cut[-1])) is not None and place not in barred:
        return Next(place, cut[-1].purpose, f"again: {cut[-1].reason}")
    safe, suspect = outlook.safe, learnt.crashes.suspect
    if safe in suspect and (others := {*learnt.epochs.proven} - barred - suspect):
        place = min(others, key=lambda place: float(outlook.log_cost[place]))
        return Next(place, Purpose.BEST, f"{learnt.job.batch_sizes[safe]} crashed last time; this one works, too")
    best, worth = _worthiest(outlook, barred | suspect)
    if best != safe and _coin(learnt.job.name, trial) >= worth.chance:
        best = safe
    safe_cost = math.exp(float(outlook.log_cost[safe]))
    if best == safe:
        less = 1.0 - safe_cost / outlook.default_cost
        how = f"{format_percent(abs(less))} {'below' if less > 0 else 'above'} the default's cost untuned"
        return Next(safe, Purpose.BEST, "the best known: " + ("at the default's cost" if abs(less) < 5e-3 else how))
    gain, paid = format_percent(worth.saving / safe_cost), format_percent(max(worth.price, 0.0) / safe_cost)
    return Next(
        best,
        Purpose.EXPLORE,
        f"may save {gain} of a run from now on, costs {paid} to find out; at a first guess it is stopped after "
        f"{_epochs(worth.most_epochs)}, once it is seen what one costs perhaps sooner or later",
    )


def _worthiest(outlook: Outlook, barred: set[int]) -> tuple[int, Weighed]:
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


def _finish(learnt: Learnt, outlook: Outlook, barred: set[int], vain: Sequence[tuple[TrialRecord, Told]]) -> Next:
    """A size that works, after trials in vain."""
    epochs, default = learnt.epochs, learnt.default
    failed = _places(learnt, [(record, told) for record, told in vain if told.outcome in _FAILED])
    working = [place for place in epochs.proven if place not in barred]
    fresh = [place for place in working if place not in failed]
    if default in working and (not fresh or (default in fresh and len(vain) > _FINISH_TRIES)):
        tries = f"{len(vain)} run{'s' * (len(vain) != 1)}"
        return Next(default, Purpose.FINISH, f"after {tries} in vain, the default finishes")
    if not fresh:
        return _another(learnt, barred, _places(learnt, vain))
    place = min(fresh, key=lambda place: float(outlook.log_cost[place]))
    last, told = vain[-1]
    how = "crashed" if CRASHED in told.notes else _HOW[told.outcome]
    what = f"batch size {last.asked.batch_size} {how} after {_epochs(told.epochs)}"
    return Next(place, Purpose.FINISH, f"{what}; {learnt.job.batch_sizes[place]}, which works, finishes")


def _first(learnt: Learnt, barred: set[int], vain: set[int]) -> Next:
    """While nothing is known to work: the default, then the others, then the default as the last resort."""
    if learnt.default not in barred and learnt.default not in vain:
        why = "the default comes first: what it costs is what all others are measured by"
        return Next(learnt.default, Purpose.DEFAULT, why)
    return _another(learnt, barred, vain)


def _another(learnt: Learnt, barred: set[int], vain: set[int]) -> Next:
    """Where no size that works is left: one that was not tried in this recurrence, else the default once more."""
    job, epochs, default = learnt.job, learnt.epochs, learnt.default
    left = [place for place in range(len(job.batch_sizes)) if place not in barred and place not in vain]
    if left:
        suspect = learnt.crashes.suspect
        place = min(
            left, key=lambda place: (place in suspect, epochs.runs(place), epochs.lost(place), abs(place - default))
        )
        why = "no other batch size that works is left" if epochs.proven else "no batch size has reached the target yet"
        return Next(place, Purpose.DEFAULT, f"{why}; this one has been tried least")
    if default not in barred:
        return Next(default, Purpose.DEFAULT, "every batch size was tried in this recurrence; the default once more")
    if default not in vain:  # what took the memory may have gone
        return Next(default, Purpose.DEFAULT, "no batch size could be run before; the default once more")
    raise BadSpec(f"no batch size of {job.name!r} can be run: they crash or run out of memory; see 'recur history'")


def _refuse_broken(learnt: Learnt, ended: Sequence[tuple[TrialRecord, Told]]) -> None:
    """BadSpec after too many crashes in a row, whatever the batch size."""
    crashed = list(takewhile(lambda each: _crashed(each[1]), reversed(ended)))
    if len(crashed) >= _MOST_CRASHES:
        sizes = list(dict.fromkeys(str(record.asked.batch_size) for record, _ in reversed(crashed)))
        what = f"batch size{'s' * (len(sizes) > 1)} {', '.join(sizes)}"
        raise BadSpec(
            f"the last {len(crashed)} runs of {learnt.job.name!r} crashed, at {what}: the job itself seems broken, not "
            "a batch size; mend it and run it again, nothing is lost"
        )


def _crashed(told: Told) -> bool:
    return told.outcome is Outcome.FAILED and CRASHED in told.notes


def _places(learnt: Learnt, ended: Sequence[tuple[TrialRecord, Told]]) -> set[int]:
    return {place for record, _ in ended if (place := learnt.place(record.asked)) is not None}


def _coin(job: str, trial: int) -> float:
    """Between 0 and 1, always the same for a trial of a job."""
    return int.from_bytes(hashlib.sha256(f"{job}/{trial}".encode()).digest()[:7]) / 2.0**56


_HOW = {
    Outcome.STOPPED_EARLY: "was not there",
    Outcome.FAILED: "was not there",
    Outcome.OUT_OF_MEMORY: "ran out of memory",
}


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"
