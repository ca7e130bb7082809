"""The trials of a recurring job: who has which, what became of it, and which have not been heard of.

Events come in the order of the journal and are facts; nothing here refuses one. A trial is told once: what comes after
that is kept out. One that expired and is told after all was late, and counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Event, Expired, Progressed, Told, from_json, to_json


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial."""

    asked: Asked
    expires_s: float
    told: Told | None = None
    expired: Expired | None = None
    profiled: Progressed | None = None
    """The last report that said what an epoch costs."""

    @property
    def is_open(self) -> bool:
        """Whether it is under way, for all that is known."""
        return self.told is None and self.expired is None


class Trials:
    """In the order in which they were handed out."""

    def __init__(self) -> None:
        self._records: list[TrialRecord] = []
        self._by_key: dict[str, int] = {}
        self._by_recurrence: dict[str, list[int]] = {}
        self._open: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def recurrences(self) -> int:
        """How many submissions there were."""
        return len(self._by_recurrence)

    def of(self, trial: int) -> TrialRecord:
        """BadSpec for a trial that was never handed out."""
        if not 0 <= trial < len(self._records):
            raise BadSpec(f"trial {trial} was never handed out; there are {len(self._records)}, from 0")
        return self._records[trial]

    def keyed(self, key: str) -> Asked | None:
        """What was handed out under a key."""
        return self._records[self._by_key[key]].asked if key in self._by_key else None

    def of_recurrence(self, recurrence: str) -> list[TrialRecord]:
        """The trials of one submission."""
        return [self._records[trial] for trial in self._by_recurrence.get(recurrence, ())]

    def open(self, without: Collection[int] = ()) -> Iterator[TrialRecord]:
        """Those under way."""
        return (self._records[trial] for trial in self._open if trial not in without)

    def overdue(self, now_s: float) -> list[tuple[int, float]]:
        """Trials of which nothing was heard in time, and when something was."""
        return [
            (trial, max(self._records[trial].asked.time_s, _heard_s(self._records[trial])))
            for trial in self._open
            if self._records[trial].expires_s < now_s
        ]

    def records(self) -> list[TrialRecord]:
        """All."""
        return list(self._records)

    def asked(self, event: Asked) -> None:
        """A trial was handed out; a number that is taken, or leaves a gap, is nobody's."""
        if event.trial == len(self._records):
            self._keep(TrialRecord(event, event.expires_s))

    def progressed(self, event: Progressed) -> bool:
        """Whether that is news: of a trial that was not told."""
        if not 0 <= event.trial < len(self._records) or self._records[event.trial].told is not None:
            return False
        before = self._records[event.trial]
        news = bool(event.profile) and (before.profiled is None or before.profiled.profile != event.profile)
        profiled = event if event.profile else before.profiled
        self._records[event.trial] = TrialRecord(before.asked, event.expires_s, None, None, profiled)
        self._open[event.trial] = None  # heard of again, if it had been given up
        return news

    def told(self, event: Told) -> bool:
        """Whether that is news."""
        if not 0 <= event.trial < len(self._records) or self._records[event.trial].told is not None:
            return False
        before = self._records[event.trial]
        self._records[event.trial] = TrialRecord(before.asked, before.expires_s, event, before.expired, before.profiled)
        self._open.pop(event.trial, None)
        return True

    def expired(self, event: Expired) -> None:
        """A trial was given up."""
        if 0 <= event.trial < len(self._records) and self._records[event.trial].is_open:
            before = self._records[event.trial]
            self._records[event.trial] = TrialRecord(before.asked, before.expires_s, None, event, before.profiled)
            self._open.pop(event.trial, None)

    def to_json(self) -> list[list[str | float | None]]:
        """In plain values."""
        return [
            [to_json(record.asked), record.expires_s, *map(_line, (record.told, record.expired, record.profiled))]
            for record in self._records
        ]

    @classmethod
    def from_json(cls, kept: Sequence[Sequence[Any]]) -> Trials:
        """What ``to_json`` gave."""
        trials = cls()
        for asked, expires_s, *rest in kept:
            told, expired, profiled = (None if line is None else from_json(line) for line in rest)
            trials._keep(TrialRecord(from_json(asked), expires_s, told, expired, profiled))  # type: ignore[arg-type]
        return trials

    def _keep(self, record: TrialRecord) -> None:
        trial = len(self._records)
        self._records.append(record)
        if record.asked.key:
            self._by_key.setdefault(record.asked.key, trial)
        self._by_recurrence.setdefault(record.asked.recurrence, []).append(trial)
        if record.is_open:
            self._open[trial] = None


def _line(event: Event | None) -> str | None:
    return None if event is None else to_json(event)


def _heard_s(record: TrialRecord) -> float:
    return record.profiled.time_s if record.profiled is not None else record.asked.time_s
