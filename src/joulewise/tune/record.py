"""The record of one run: what the journal holds, kept in memory as well, and the proof that follows from it.

Writing is never allowed to fail the job: a journal that refuses costs the proof's permanence, and is noted once.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable

from joulewise.core.block import Role, Rung
from joulewise.core.event import Began, Decided, Event, Seen, Shifted
from joulewise.core.parsing import json_value
from joulewise.core.timeline import TimeSource
from joulewise.model.learnt import LoadPrior
from joulewise.store.journal import Journal, MemoryJournal
from joulewise.tune.coins import VOID
from joulewise.tune.proof import SHIFTS, Proof, prove
from joulewise.tune.seal import Seal

COUNTERS = "counters"
"""``Shifted.what`` of what activity counters told of a phase's load; ``says`` is JSON."""


class Record:
    """Everything that was seen and happened, this run's and that of the runs it goes on from."""

    def __init__(self, journal: Journal, time: TimeSource) -> None:
        self._journal, self._time = journal, time
        self.notes: list[str] = []
        """What a user should know, once each."""
        self.past: tuple[Event, ...] = self._read()
        """What the journal held before: a run that was interrupted."""
        self.seal = Seal()
        """Of what the journal holds."""
        for event in self.past:
            self.seal.add(event)
        self._seen = [event for event in self.past if isinstance(event, Seen)]
        self._shifts = [event for event in self.past if isinstance(event, Shifted)]
        self.decided = {event.decision.setting for event in self.past if isinstance(event, Decided)}
        """Settings that were decided on; a tuner may have thought of others."""
        self.proof: Proof | None = None
        """The saving so far; renewed with every baseline window."""
        self.latest_s = -math.inf
        """When the last event was written."""
        self.latest = ""
        """What changed, if the last event is of a change."""

    def _read(self) -> tuple[Event, ...]:
        """What the journal holds. One that cannot be read is not written to either: the run is kept in memory."""
        try:
            return tuple(event for _, event in self._journal.read())
        except Exception as error:
            self._journal = MemoryJournal()
            self.note(f"the journal cannot be read, so this run is kept in memory only: {error}")
            return ()

    @property
    def began(self) -> Began | None:
        """How the run that this one goes on from began."""
        return next((event for event in self.past if isinstance(event, Began)), None)

    def lessons(self, rung: Rung) -> Iterable[Event]:
        """What tuners were told in the past, by one ruler; the loop's own news (idle, lost) are not their business."""
        return (e for e in self.past if (e.block.rung is rung if isinstance(e, Seen) else _retunes(e)))

    def prior(self, phase: str) -> LoadPrior | None:
        """What the interrupted run expected of a phase's load before its first block: without it, what that run went on
        to do cannot be understood. None where it expected nothing."""
        for event in self.past:
            if isinstance(event, Shifted) and (event.what, event.phase) == (COUNTERS, phase):
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    told = json_value(event.says)
                    return LoadPrior(dict(told["mean"]), dict(told["spread"]), str(told["says"]))
        return None

    def expected(self, prior: LoadPrior, phase: str) -> None:
        """Keep what is expected of a phase's load."""
        told = {"mean": dict(prior.mean), "spread": dict(prior.spread), "says": prior.says}
        self.change(COUNTERS, json.dumps(told), phase)

    def write(self, event: Event) -> None:
        """Append an event; never raises."""
        self.latest_s, self.latest = event.time_s, event.what if isinstance(event, Shifted) else ""
        if isinstance(event, Decided):
            self.decided.add(event.decision.setting)
        try:
            self._journal.append(event)
            self.seal.add(event)
        except Exception as error:
            self.note(f"the journal fails: {error}")

    def change(self, what: str, says: str, phase: str = "") -> None:
        """The job, or what we may do to it, changed."""
        event = Shifted(self._time.now_s(), what, says, phase)
        self._shifts.append(event)
        self.write(event)

    def saw(self, seen: Seen) -> None:
        """A block was seen."""
        self._seen.append(seen)
        self.write(seen)
        if seen.role is Role.PROOF:
            try:
                self.prove()
            except Exception as error:
                self.note(f"the proof so far cannot be told: {error}")

    def prove(self) -> Proof | None:
        """The proof of all that was seen; None before anything was."""
        self.proof = prove(self._seen, self._shifts, ended_s=self._time.now_s()) if self._seen else None
        return self.proof

    def note(self, says: str) -> None:
        """Say something once."""
        if says not in self.notes:
            self.notes.append(says)


def _retunes(event: Event) -> bool:
    return isinstance(event, Shifted) and event.what in (*SHIFTS, VOID)


def plain(value: float) -> float | None:
    """A number as JSON can hold it: None for infinity."""
    return value if math.isfinite(value) else None
