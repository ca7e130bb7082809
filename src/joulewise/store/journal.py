"""The journal: events in the order in which they were written, appended and read, nothing else.

A stream is one run's events; its ids count from 1 in the order of commit. State is a fold of what ``read`` gives, so
whoever appends what follows from that state says which event was the last it knew (``after``): if somebody else was
faster, nothing is written and it decides anew. ``MemoryJournal`` serves tests and dry runs; ``sql`` has the one that
outlives its process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from joulewise.core.errors import Conflict
from joulewise.core.event import Event, to_json


@runtime_checkable
class Journal(Protocol):
    """One stream of events. Methods may be called from any thread."""

    @property
    def trouble(self) -> str | None:
        """Why what was appended is not (all) where it should outlive us, in one line; None while it is."""
        ...

    def append(self, event: Event, after: int | None = None) -> int:
        """Write ``event`` and return its id, the last of the stream.

        With ``after``: only if that id is the stream's last (0: the stream is empty), else Conflict. Without it this
        never raises because of the disk: what cannot be written now is kept here, tried again with every append, and
        ``trouble`` says so; the job that is being tuned goes on. ValueError for an event with a number that is not
        finite: that is a bug of its writer, and nothing of it is kept.
        """
        ...

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """Every event after id ``since``, as (id, event) in order."""
        ...


class MemoryJournal:
    """A journal that ends with its process."""

    trouble: str | None = None

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def append(self, event: Event, after: int | None = None) -> int:
        """As ``Journal.append``."""
        to_json(event)  # as strict as the journal that is kept
        with self._lock:
            refuse_late(after, len(self._events))
            self._events.append(event)
            return len(self._events)

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """As ``Journal.read``."""
        with self._lock:
            events = self._events[max(0, since) :]
        yield from enumerate(events, start=max(0, since) + 1)


def refuse_late(after: int | None, last: int, stream: str = "this run") -> None:
    """Conflict unless ``after`` is the stream's ``last`` id, or None."""
    if after is not None and after != last:
        raise Conflict(f"the journal of {stream} is at event {last}, not {after}; read it again and decide anew")
