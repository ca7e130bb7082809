"""The store in SQLite: the default, with nothing to set up. The lock of its one writer puts ids in order of commit."""

from __future__ import annotations

from pathlib import Path

from joulewise.core.event import to_json
from joulewise.store.database import Database
from joulewise.store.journal import refuse_late
from joulewise.store.kept import LAST, Appended, KeptJournal, KeptStore, last_of

_INSERT = "INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)"


class SqliteJournal(KeptJournal):
    """The stream ``stream`` (a run's name) in a database or its file. See ``Journal`` for what its methods promise."""

    def __init__(self, database: Database | Path, stream: str) -> None:
        self.database = database if isinstance(database, Database) else Database(database)
        super().__init__(self.database, stream)

    def _write(self, further: list[Appended], after: int | None) -> int:
        events = [*self._waiting, *further]
        lines = [(type(event).__name__, at, to_json(event)) for at, event in events]
        with self.database.writing() as connection:
            last = last_of(connection.execute(LAST, {"stream": self.stream}).fetchall())
            # What waits here has been given its ids already.
            refuse_late(after, last + len(events) - 1, self.stream)
            rows = [(self.stream, last + place, *line) for place, line in enumerate(lines, start=1)]
            connection.executemany(_INSERT, rows)
        self._waiting.clear()
        return last + len(rows)


class SqliteStore(KeptStore[Database]):
    """A database file as a ``Store``."""

    def journal(self, stream: str) -> SqliteJournal:
        """As ``Store.journal``."""
        return SqliteJournal(self.database, stream)
