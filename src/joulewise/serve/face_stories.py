"""Runs' journals, read and told, a few of them remembered.

A finished run is folded once, one that goes on is read from where it was left. Folding grows with the run, and a page
that shows it asks every few seconds: so it is folded anew only when twenty times as long has passed as that took, and
whoever watches a run of weeks costs its machine a twentieth of a core. What is remembered is bounded by how many events
it has in all; anything may be forgotten at any moment and is then read again.
"""

from __future__ import annotations

import threading
import time as clock
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Event, Finished
from joulewise.report import run_facts
from joulewise.report.claim import Claim
from joulewise.report.run_facts import Chapter, Proof
from joulewise.report.story import Story
from joulewise.store import Store

_MOST_EVENTS = 60_000
"""Remembered of all runs together; an event takes about a kilobyte."""
_REST = 20.0
"""How many times as long as folding took passes before it is done again."""


@dataclass(frozen=True, slots=True)
class Told:
    """A run's story as of event ``last``, what it claims, and what of it is dear to put together."""

    last: int
    story: Story
    claim: Claim
    chapters: tuple[Chapter, ...]
    proof: Proof | None
    fresh_until_s: float
    """Until then, by the clock of ``Stories``, it is good enough for a run that goes on."""


class Stories:
    """Safe with several threads. ``now``: a monotonic clock."""

    def __init__(self, store: Store, *, now: Callable[[], float] = clock.monotonic) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._told: OrderedDict[tuple[str, float], Told] = OrderedDict()

    def of(self, run: str, began_s: float) -> Told:
        """The story of a run that began at ``began_s``: another one of its name is another run. Once it has ended, all
        of it; before, it may lack the latest. NotKept when it cannot be read, or is damaged."""
        key = (run, began_s)
        with self._lock:
            known = self._told.get(key)
        last = 0 if known is None else known.last
        more: list[Event] = []
        try:
            for number, event in self._store.journal(run).read(last):
                last = number
                more.append(event)
        except BadSpec as error:  # nothing is wrong with what was asked
            raise NotKept(str(error)) from error
        if known is None or (more and (self._now() >= known.fresh_until_s or isinstance(more[-1], Finished))):
            known = self._folded((*(() if known is None else known.story.events), *more), last, began_s)
        self._remember(key, known)
        return known

    def _folded(self, events: tuple[Event, ...], last: int, began_s: float) -> Told:
        start_s = self._now()
        story = Story.of(events)
        claim = Claim.of(story)
        chapters = tuple(run_facts.chapters(story, began_s))
        proof = run_facts.proof(story, claim)
        end_s = self._now()
        return Told(last, story, claim, chapters, proof, end_s + _REST * (end_s - start_s))

    def _remember(self, key: tuple[str, float], told: Told) -> None:
        with self._lock:
            self._told.pop(key, None)
            self._told[key] = told
            # Never the one that was just asked for: it will be asked for again.
            while len(self._told) > 1 and sum(len(each.story.events) for each in self._told.values()) > _MOST_EVENTS:
                self._told.popitem(last=False)
