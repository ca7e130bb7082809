"""A journal in SQLite: what outlives its process.

Every append is committed before it returns, so that a crash leaves a trace. A disk that is full, read-only or slow
never stops the job: events that could not be written wait in memory and go out, in order, with the next append that
can write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from joulewise.core.errors import NotKept
from joulewise.core.event import Event, from_json, to_json
from joulewise.store.database import Database
from joulewise.store.journal import refuse_late

_RETRY_S = 5.0
"""After a write that failed, the next attempts keep this far apart: each may wait for a lock or a slow disk."""
_INSERT = "INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)"


class SqliteJournal:
    """The stream ``stream`` (a run's name) in a database or its file. See ``Journal`` for what its methods promise."""

    def __init__(self, database: Database | Path, stream: str) -> None:
        self.database = database if isinstance(database, Database) else Database(database)
        self.stream = stream
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Event]] = []
        self._failed_at = float("-inf")
        self._trouble: str | None = None

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
                return self._write([*self._waiting, (time.time(), event)], after)
            self._waiting.append((time.time(), event))
            return self._flush()

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """As ``Journal.read``. NotKept when the file cannot be read, BadSpec when an event in it is none.

        Where it could not be written either, what waits in memory is given, and ``trouble`` says that this is so.
        """
        with self._lock:
            waiting = [event for _, event in self._waiting]
            try:
                written, last = self._written(since), self._last()
            except NotKept:
                if not waiting:
                    raise
                written, last = [], 0
        for number, line in written:
            yield number, from_json(line)
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
        try:
            if time.monotonic() - self._failed_at >= _RETRY_S:
                return self._write(self._waiting, None)
        except NotKept as error:
            self._trouble, self._failed_at = str(error), time.monotonic()
        return self._forecast()

    def _write(self, events: list[tuple[float, Event]], after: int | None) -> int:
        lines = [(type(event).__name__, at, to_json(event)) for at, event in events]
        with self.database.writing() as connection:
            last = _last(connection, self.stream)
            if after is not None:  # what waits here has been given its ids already
                refuse_late(after, last + len(events) - 1, self.stream)
            rows = [(self.stream, last + place, *line) for place, line in enumerate(lines, start=1)]
            connection.executemany(_INSERT, rows)
        self._waiting.clear()
        return last + len(rows)

    def _forecast(self) -> int:
        try:
            return self._last() + len(self._waiting)
        except NotKept:
            return len(self._waiting)

    def _last(self) -> int:
        with self.database.reading() as connection:
            return _last(connection, self.stream) if connection is not None else 0

    def _written(self, since: int) -> list[tuple[int, str]]:
        with self.database.reading() as connection:
            if connection is None:
                return []
            query = "SELECT id, event FROM events WHERE stream = ? AND id > ? ORDER BY id"
            return connection.execute(query, (self.stream, since)).fetchall()


def _last(connection: Connection, stream: str) -> int:
    (last,) = connection.execute("SELECT MAX(id) FROM events WHERE stream = ?", (stream,)).fetchone()
    return last or 0
