"""The trials of a recurring job: who has which, what became of it, and which have not been heard of.

Events come in the order of the journal and are facts; nothing here refuses one. A trial is told once: what comes after
that is kept out. One that expired and is told after all was late, and counts.

A job may have tens of thousands of trials, of which a decision looks at the few that are under way. A trial that was
told never changes again, so a snapshot keeps such trials in sealed blocks, written once and opened only for whoever
looks at one of theirs: an ask in a new process costs about what it costs in an old one.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Event, Expired, Progressed, Told, from_json, to_json
from joulewise.core.parsing import decompressed, json_value

_BLOCK = 100
"""Trials in a sealed block: opened in some milliseconds, and few blocks of many trials."""
_MOST_BYTES = 1 << 26
"""Of a sealed block's text: a record has some hundred characters, and notes of some thousand."""


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
        self._count = 0
        self._records: dict[int, TrialRecord] = {}
        """All but those in a sealed block that nobody has looked at."""
        self._by_key: dict[str, int] = {}
        self._by_recurrence: dict[str, list[int]] = {}
        self._open: dict[int, float] = {}
        """Those under way, and when something was heard of each."""
        self._told: list[int] = []
        """In the order in which they were told: every ``_BLOCK`` of them make a block."""
        self._blocks: list[str] = []
        self._block_of: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def recurrences(self) -> int:
        """How many submissions there were."""
        return len(self._by_recurrence)

    def of(self, trial: int) -> TrialRecord:
        """BadSpec for a trial that was never handed out."""
        if not 0 <= trial < self._count:
            raise BadSpec(f"trial {trial} was never handed out; there are {self._count}, from 0")
        if trial not in self._records:
            self._records |= _opened(self._blocks[self._block_of[trial]])
        return self._records[trial]

    def keyed(self, key: str) -> Asked | None:
        """What was handed out under a key."""
        return self.of(self._by_key[key]).asked if key in self._by_key else None

    def of_recurrence(self, recurrence: str) -> list[TrialRecord]:
        """The trials of one submission."""
        return [self.of(trial) for trial in self._by_recurrence.get(recurrence, ())]

    def open(self, without: Collection[int] = ()) -> Iterator[TrialRecord]:
        """Those under way."""
        return (self._records[trial] for trial in self._open if trial not in without)

    def overdue(self, now_s: float) -> list[tuple[int, float]]:
        """Trials of which nothing was heard in time, and when something was."""
        return [(trial, heard_s) for trial, heard_s in self._open.items() if self._records[trial].expires_s < now_s]

    def records(self) -> list[TrialRecord]:
        """All."""
        return [self.of(trial) for trial in range(self._count)]

    def asked(self, event: Asked) -> None:
        """A trial was handed out; a number that is taken, or leaves a gap, is nobody's."""
        if event.trial != self._count:
            return
        self._count += 1
        self._records[event.trial] = TrialRecord(event, event.expires_s)
        self._open[event.trial] = event.time_s
        if event.key:
            self._by_key.setdefault(event.key, event.trial)
        self._by_recurrence.setdefault(event.recurrence, []).append(event.trial)

    def progressed(self, event: Progressed) -> bool:
        """Whether that is news: of a trial that was not told."""
        before = self._untold(event.trial)
        if before is None:
            return False
        news = bool(event.profile) and (before.profiled is None or before.profiled.profile != event.profile)
        profiled = event if event.profile else before.profiled
        self._records[event.trial] = TrialRecord(before.asked, event.expires_s, profiled=profiled)
        self._open[event.trial] = event.time_s  # heard of again, if it had been given up
        return news

    def told(self, event: Told) -> bool:
        """Whether that is news."""
        before = self._untold(event.trial)
        if before is None:
            return False
        self._records[event.trial] = replace(before, told=event)
        self._open.pop(event.trial, None)
        self._told.append(event.trial)
        return True

    def expired(self, event: Expired) -> None:
        """A trial was given up."""
        before = self._untold(event.trial)
        if before is not None and before.expired is None:
            self._records[event.trial] = replace(before, expired=event)
            self._open.pop(event.trial, None)

    def to_json(self) -> dict[str, Any]:
        """In plain values."""
        for first in range(len(self._blocks) * _BLOCK, len(self._told) - _BLOCK + 1, _BLOCK):
            block = self._told[first : first + _BLOCK]
            self._block_of |= dict.fromkeys(block, len(self._blocks))
            self._blocks.append(_sealed([self._records[trial] for trial in block]))
        return {
            "count": self._count,
            "keys": dict(self._by_key),
            "recurrences": {recurrence: list(trials) for recurrence, trials in self._by_recurrence.items()},
            "open": list(self._open.items()),
            "told": list(self._told),
            "blocks": list(self._blocks),
            "check": _check(self._blocks),
            "rest": [_row(self._records[trial]) for trial in range(self._count) if trial not in self._block_of],
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Trials:
        """What ``to_json`` gave; ValueError where it is plainly not that any more."""
        trials = cls()
        trials._count, trials._by_key = kept["count"], dict(kept["keys"])
        trials._by_recurrence = {recurrence: list(each) for recurrence, each in kept["recurrences"].items()}
        trials._open, trials._told, trials._blocks = dict(kept["open"]), list(kept["told"]), list(kept["blocks"])
        if _check(trials._blocks) != kept["check"]:
            raise ValueError("a block is damaged")  # now: it may be opened only after it was kept many times again
        sealed = trials._told[: len(trials._blocks) * _BLOCK]
        trials._block_of = {trial: place // _BLOCK for place, trial in enumerate(sealed)}
        trials._records = _records(kept["rest"])
        return trials

    def _untold(self, trial: int) -> TrialRecord | None:
        """The record of a trial that is still to be told; None for any other number."""
        record = self._records.get(trial)  # one in a block that is still sealed was told
        return record if record is not None and record.told is None else None


def _sealed(records: Sequence[TrialRecord]) -> str:
    """Text without a quote in it: JSON within JSON would be read character by character."""
    rows = json.dumps([_row(record) for record in records], separators=(",", ":"))
    return base64.b64encode(zlib.compress(rows.encode(), 1)).decode()


def _check(blocks: Sequence[str]) -> int:
    return zlib.crc32("".join(blocks).encode())


def _opened(block: str) -> dict[int, TrialRecord]:
    return _records(json_value(decompressed(base64.b64decode(block), _MOST_BYTES)))


def _row(record: TrialRecord) -> list[str | float | None]:
    return [to_json(record.asked), record.expires_s, *map(_line, (record.told, record.expired, record.profiled))]


def _line(event: Event | None) -> str | None:
    return None if event is None else to_json(event)


def _records(rows: Sequence[Sequence[Any]]) -> dict[int, TrialRecord]:
    records = (
        TrialRecord(from_json(asked), expires_s, *(None if line is None else from_json(line) for line in rest))  # type: ignore[arg-type]
        for asked, expires_s, *rest in rows
    )
    return {record.asked.trial: record for record in records}
