"""The store in PostgreSQL, for several servers or machines that share it: SQLAlchemy 2 (Core) on psycopg 3.

*Order.* Whoever appends first takes a lock that is the stream's own (an advisory one, which PostgreSQL lets go of at
the end of the transaction, whatever becomes of us), then looks for the last id, then inserts the next. So the next
writer of that stream sees all that the one before has committed: ids are in order of commit and have no holes, readers
never see a later event without the earlier ones, and streams do not wait for each other. READ COMMITTED is asked for
because under a stricter isolation the look would be as of before the lock. Two keys that hash alike only wait for each
other, and the primary key would refuse a second event of one id even if all this were wrong.

*Doubt.* A connection may break after COMMIT was sent and before its answer came. What was written then is looked for
under the same lock, which the lost transaction holds until it has ended one way or the other: an event is neither lost
nor doubled.

*Time.* ``at`` is the server's clock, since machines that share it disagree about theirs.

Everything lies in the schema ``joulewise``; ``DROP SCHEMA joulewise CASCADE`` removes it. Settings are made for one
transaction each, so that a connection pooler in between does no harm. Failures are told in ``postgres_faults``.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from joulewise.core.errors import NotKept
from joulewise.core.event import to_json
from joulewise.store.journal import refuse_late
from joulewise.store.kept import LAST, Appended, KeptJournal, KeptStore, last_of
from joulewise.store.postgres_faults import ConnectionLost, TablesGone, parsed, told
from joulewise.store.schema import VERSION, Engine, steps

_CONNECTION = {
    "application_name": "joulewise",
    "connect_timeout": "5",  # seconds: a job may be waiting
    # A server that is gone without a word is given up after some twenty seconds instead of two hours.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "20000",
}
"""Of libpq; what the URL says goes before."""
# A writer whose machine vanished in the middle of a transaction is put out after 10 s (ours are idle for less than a
# millisecond), so whoever waits 20 s for its lock gets it.
_BEGIN = text("""
SELECT set_config('search_path', 'joulewise', true),
       set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('lock_timeout', '20s', true)
""")
_LOCK = text("SELECT pg_advisory_xact_lock(:key)")
_INSERT = text("""
INSERT INTO events (stream, id, kind, at, event)
SELECT :stream, :last + place, kind, extract(epoch FROM clock_timestamp()), event
FROM unnest(CAST(:kinds AS text[]), CAST(:events AS text[])) WITH ORDINALITY AS line (kind, event, place)
RETURNING id, at, event
""")
_LOOK = text("SELECT id, at, event FROM events WHERE stream = :stream AND id BETWEEN :first AND :last")
_IS_SCHEMA = text("SELECT to_regnamespace('joulewise') IS NOT NULL")
_IS_VERSION = text("SELECT to_regclass('joulewise.version') IS NOT NULL")

Row = tuple[int, float, str]
"""id, at, event."""


class PostgresDatabase:
    """The database at ``url``, with our tables in it, made on first use. Threads share its connections, forks do not.

    BadSpec for a URL that cannot be understood.
    """

    def __init__(self, url: str) -> None:
        self._url, self.name = parsed(url)
        options = {key: value for key, value in _CONNECTION.items() if key not in self._url.query}
        self._engine = create_engine(
            self._url, pool_pre_ping=True, isolation_level="READ COMMITTED", hide_parameters=True, connect_args=options
        )
        self._lock = threading.Lock()
        self._ready = False
        self._pid = os.getpid()

    @contextmanager
    def writing(self, stream: str) -> Iterator[Connection]:
        """One transaction, all of it or nothing, in which nobody else writes to ``stream``. NotKept if it fails."""
        with self._transaction() as connection:
            connection.execute(_LOCK, {"key": _key(f"stream {stream}")})
            yield connection

    def select(self, query: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """As ``Tables.select``."""
        with self._transaction() as connection:
            return [tuple(row) for row in connection.execute(text(query), values)]

    def change(self, statement: str, values: Mapping[str, object]) -> int:
        """As ``Tables.change``."""
        with self._transaction() as connection:
            return connection.execute(text(statement), values).rowcount

    def close(self) -> None:
        """Close its connections; others are made on use."""
        self._engine.dispose(close=self._pid == os.getpid())

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._prepare()
        try:
            with self._begun() as connection:
                yield connection
        except TablesGone:
            self._ready = False  # another database stands there now: its tables are made with the next try
            raise

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        """A transaction whose faults are told as NotKept."""
        try:
            with self._engine.begin() as connection:
                connection.execute(_BEGIN)
                yield connection
        except (SQLAlchemyError, psycopg.Error) as error:
            lost = isinstance(error, DBAPIError) and error.connection_invalidated
            raise told(error, self.name, self._url, lost=lost) from error

    def _prepare(self) -> None:
        with self._lock:
            if self._pid != os.getpid():  # the parent's connections are the parent's
                self._engine.dispose(close=False)
                self._pid = os.getpid()
            if not self._ready:
                self._migrate()
                self._ready = True

    def _migrate(self) -> None:
        """Take the steps of ``schema`` that are still to be taken. Of servers that start at once one does it."""
        with self._begun() as connection:
            if self._version(connection) == VERSION:
                return  # somebody who may only read comes this far
            connection.execute(_LOCK, {"key": _key("tables")})
            if not connection.execute(_IS_SCHEMA).scalar_one():
                connection.execute(text("CREATE SCHEMA joulewise"))
            version = self._version(connection)
            if version == 0:
                connection.execute(text("CREATE TABLE version (number BIGINT NOT NULL)"))
                connection.execute(text("INSERT INTO version VALUES (0)"))
            for statement in steps(Engine.POSTGRESQL, version):
                connection.execute(text(statement))
            connection.execute(text("UPDATE version SET number = :number"), {"number": VERSION})

    def _version(self, connection: Connection) -> int:
        if not connection.execute(_IS_VERSION).scalar_one():
            return 0
        version = int(connection.execute(text("SELECT number FROM version")).scalar_one())
        if version > VERSION:
            raise NotKept(
                f"{self.name} was written by a newer joulewise (tables {version}, known here {VERSION}); "
                "update, or name another database"
            )
        return version


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Rows whose COMMIT was not answered."""

    rows: list[Row]
    waited: int
    """How many of them, the first, still wait in memory in case they are not there."""


class PostgresJournal(KeptJournal):
    """The stream ``stream`` of a database. See ``Journal`` for what its methods promise.

    When the server goes away in the middle of ``append(after=…)`` and is not back at once, NotKept is raised although
    the event may have been written. Whoever tries again reads first, and finds it if it was.
    """

    def __init__(self, database: PostgresDatabase, stream: str) -> None:
        self.database = database
        self._doubt: _Doubt | None = None
        super().__init__(database, stream)

    def _write(self, further: list[Appended], after: int | None) -> int:
        self._settle()
        try:
            return self._write_once(further, after)
        except ConnectionLost:  # perhaps the server was only started anew
            written = self._settle()
            return written if written is not None else self._write_once(further, after)

    def _write_once(self, further: list[Appended], after: int | None) -> int:
        events = [event for _, event in (*self._waiting, *further)]
        lines = {"kinds": [type(event).__name__ for event in events], "events": [to_json(event) for event in events]}
        rows: list[Row] = []
        try:
            with self.database.writing(self.stream) as connection:
                last = last_of([tuple(row) for row in connection.execute(text(LAST), {"stream": self.stream})])
                # What waits here has been given its ids already.
                refuse_late(after, last + len(events) - 1, self.stream)
                inserted = connection.execute(_INSERT, {"stream": self.stream, "last": last, **lines})
                rows = _sorted(inserted)
        except BaseException:
            if rows:
                self._doubt = _Doubt(rows, len(self._waiting))
            raise
        self._waiting.clear()
        return last + len(rows)

    def _settle(self) -> int | None:
        if self._doubt is None:
            return None
        rows = self._doubt.rows
        span = {"stream": self.stream, "first": rows[0][0], "last": rows[-1][0]}
        with self.database.writing(self.stream) as connection:
            written = _sorted(connection.execute(_LOOK, span)) == rows
        if written:
            del self._waiting[: self._doubt.waited]
            self._known = rows[-1][0]
        self._doubt = None
        return rows[-1][0] if written else None


class PostgresStore(KeptStore[PostgresDatabase]):
    """A PostgreSQL database as a ``Store``. BadSpec for a URL that cannot be understood."""

    def __init__(self, url: str) -> None:
        super().__init__(PostgresDatabase(url))

    def journal(self, stream: str) -> PostgresJournal:
        """As ``Store.journal``."""
        return PostgresJournal(self.database, stream)


def _sorted(result: Any) -> list[Row]:
    return sorted((number, at, event) for number, at, event in result)


def _key(what: str) -> int:
    """The advisory lock of this name: 64 bits that other users of the database will hardly have chosen."""
    return int.from_bytes(hashlib.blake2b(f"joulewise {what}".encode(), digest_size=8).digest(), signed=True)
