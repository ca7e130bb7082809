"""Runs' journals, read and told, a few of them remembered.

A finished run is folded once, one that goes on is read from where it was left. What is remembered is bounded by how
many events it has in all; anything may be forgotten at any moment and is then read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from joulewise.core.event import Event
from joulewise.report.claim import Claim
from joulewise.report.story import Story
from joulewise.store import Store

_MOST_EVENTS = 60_000
"""Remembered of all runs together; an event takes about a kilobyte."""


@dataclass(frozen=True, slots=True)
class Told:
    """A run's story as of event ``last``, and what it claims."""

    last: int
    story: Story
    claim: Claim


class Stories:
    """Safe with several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, float], Told] = OrderedDict()

    def of(self, run: str, began_s: float) -> Told:
        """The story of a run that began at ``began_s``: another one of its name is another run. NotKept when it cannot
        be read, BadSpec when it is damaged."""
        key = (run, began_s)
        with self._lock:
            known = self._told.get(key)
        last = 0 if known is None else known.last
        more: list[Event] = []
        for number, event in self._store.journal(run).read(last):
            last = number
            more.append(event)
        if known is None or more:
            story = Story.of((*(() if known is None else known.story.events), *more))
            known = Told(last, story, Claim.of(story))
        self._remember(key, known)
        return known

    def _remember(self, key: tuple[str, float], told: Told) -> None:
        with self._lock:
            self._told.pop(key, None)
            self._told[key] = told
            while self._told and sum(len(each.story.events) for each in self._told.values()) > _MOST_EVENTS:
                self._told.popitem(last=False)
