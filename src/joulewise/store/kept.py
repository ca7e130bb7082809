"""What every journal and store that outlives its process does, whatever engine keeps it (``sql``, ``postgres``).

Every append is committed before it returns, so that a crash leaves a trace. A disk that is full or read-only, or a
server that is away, never stops the job: events that could not be written wait in memory and go out, in order, with
the next append that can write.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, TypeVar

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Event, from_json, to_json
from joulewise.store.readings import Readings
from joulewise.store.snapshots import Snapshots
from joulewise.store.tables import Tables, streams

_RETRY_S = 5.0
"""After a write that failed, the next attempts keep this far apart: each may wait for a lock or a slow disk."""
_READ = "SELECT id, event FROM events WHERE stream = :stream AND id > :since ORDER BY id"
LAST = "SELECT MAX(id) FROM events WHERE stream = :stream"

T = TypeVar("T", bound=Tables)

Appended = tuple[float, Event]
"""An event, and when it was appended (seconds since 1970)."""


class KeptJournal(ABC):
    """A stream in a database. See ``Journal`` for what its methods promise; an engine adds ``_write``."""

    def __init__(self, tables: Tables, stream: str) -> None:
        self.stream = stream
        self._tables = tables
        self._lock = threading.Lock()
        self._waiting: list[Appended] = []
        self._known = 0
        """The last id that we have written or seen: what is appended while nothing can be written counts on from it."""
        self._failed_at = float("-inf")
        self._trouble: str | None = None

    @abstractmethod
    def _write(self, further: list[Appended], after: int | None) -> int:
        """Write what waits and then ``further``, all or nothing; the last id. Clears what waited.

        Ids follow the stream's last without a hole and in the order of commit, whoever else writes. With ``after``:
        Conflict unless the last of ``further`` would follow that id.
        """

    def _settle(self) -> int | None:
        """Find out whether a write whose answer was lost was done; the last id of it if so, None if not or if there is
        no such doubt. For engines behind a wire."""
        return None

    @property
    def trouble(self) -> str | None:
        """Why some events exist only in memory, in one line; None while all are written."""
        with self._lock:
            return f"{self._trouble} ({len(self._waiting)} events kept in memory)" if self._waiting else None

    def append(self, event: Event, after: int | None = None) -> int:
        """As ``Journal.append``. With ``after``, NotKept when it cannot be written: nobody could be refused then."""
        to_json(event)  # before it waits: what has no JSON would stand in the way of all that follow
        with self._lock:
            if after is not None:
                self._known = self._write([(time.time(), event)], after)
                return self._known
            self._waiting.append((time.time(), event))
            return self._flush()

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """As ``Journal.read``. NotKept when the database cannot be read, BadSpec when an event in it is none.

        Where it could not be written either, what waits in memory is given, and ``trouble`` says that this is so.
        """
        with self._lock:
            waiting = [event for _, event in self._waiting]
            try:
                self._settle()
                waiting = [event for _, event in self._waiting]
                written = self._tables.select(_READ, {"stream": self.stream, "since": since})
                if written:
                    self._known = written[-1][0]
                elif waiting:
                    self._known = self._last()
            except NotKept:
                if not waiting:
                    raise
                written = []
            last = self._known
        for number, line in written:
            try:
                event = from_json(line)
            except BadSpec as error:
                raise BadSpec(f"event {number} of {self.stream} in {self._tables.name} is damaged: {error}") from error
            yield number, event
        for number, event in enumerate(waiting, start=last + 1):
            if number > since:
                yield number, event

    def flush(self) -> bool:
        """Try once more to write what waits, as at the end of a run; whether nothing waits any longer."""
        with self._lock:
            self._failed_at = float("-inf")
            if self._waiting:
                self._flush()
            return not self._waiting

    def _flush(self) -> int:
        """Write what waits, if it is time; the id of the last event, which is a forecast while it waits."""
        if time.monotonic() - self._failed_at >= _RETRY_S:
            try:
                self._known = self._write([], None)
                return self._known
            except NotKept as error:
                self._trouble, self._failed_at = str(error), time.monotonic()
        # Not looked up: where nothing can be written, looking may take as long as the job would have to wait.
        return self._known + len(self._waiting)

    def _last(self) -> int:
        return last_of(self._tables.select(LAST, {"stream": self.stream}))


class KeptStore(ABC, Generic[T]):
    """A database as a ``Store``; an engine adds ``journal``."""

    def __init__(self, database: T) -> None:
        self.database = database

    @abstractmethod
    def journal(self, stream: str) -> KeptJournal:
        """As ``Store.journal``."""

    @property
    def name(self) -> str:
        """As ``Store.name``."""
        return self.database.name

    def streams(self, prefix: str = "") -> list[str]:
        """As ``Store.streams``."""
        return streams(self.database, prefix)

    def snapshots(self) -> Snapshots:
        """As ``Store.snapshots``."""
        return Snapshots(self.database)

    def readings(self) -> Readings:
        """As ``Store.readings``."""
        return Readings(self.database)

    @property
    def tables(self) -> Tables:
        """As ``Store.tables``."""
        return self.database

    def close(self) -> None:
        """As ``Store.close``."""
        self.database.close()


def last_of(rows: list[tuple[int | None, ...]]) -> int:
    """The last id, out of what ``SELECT MAX(id)`` gave: no rows, or None, where the stream is empty."""
    return (rows[0][0] or 0) if rows else 0
