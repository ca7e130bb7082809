"""The tables, as numbered steps of plain SQL that SQLite and PostgreSQL both understand.

A database knows how many steps it has taken (SQLite in ``user_version``, PostgreSQL in a table); opening it takes the
rest, all in one transaction. A step that has been released is never edited: what changes is the next one. Not an
object mapper: a few tables and two dozen queries need none, and anyone with ``sqlite3`` or ``psql`` can read what is
here.
"""

from __future__ import annotations

from enum import StrEnum

_STEPS: tuple[tuple[str, ...], ...] = (
    (
        # at: seconds since 1970 when it was written; events themselves carry the GPU's time.
        """CREATE TABLE events (
            stream TEXT NOT NULL,
            id BIGINT NOT NULL,
            kind TEXT NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            event TEXT NOT NULL,
            PRIMARY KEY (stream, id)
        ){by_key}""",
        "CREATE INDEX events_by_kind ON events (kind, at)",
        """CREATE TABLE learnt (
            fingerprint TEXT NOT NULL,
            gpu_uuid TEXT NOT NULL,
            gpu_name TEXT NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            runs BIGINT NOT NULL,
            payload TEXT NOT NULL,
            PRIMARY KEY (fingerprint, gpu_uuid)
        ){by_key}""",
    ),
    (
        # One a stream: a later one, or one of another version, replaces it.
        """CREATE TABLE snapshots (
            stream TEXT NOT NULL,
            version BIGINT NOT NULL,
            last_id BIGINT NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            state TEXT NOT NULL,
            PRIMARY KEY (stream)
        ){by_key}""",
        # Every stream has one event 1: the names of all streams, without reading their events.
        "CREATE INDEX events_first ON events (stream) WHERE id = 1",
    ),
    (
        # One row a block of samples: first what a long plot needs of it, then the samples themselves, packed.
        # at: seconds since 1970 when it was last written, a sign of life of its writer.
        """CREATE TABLE readings (
            stream TEXT NOT NULL,
            gpu_uuid TEXT NOT NULL,
            number BIGINT NOT NULL,
            at DOUBLE PRECISION NOT NULL,
            first_s DOUBLE PRECISION NOT NULL,
            last_s DOUBLE PRECISION NOT NULL,
            samples BIGINT NOT NULL,
            powered BIGINT NOT NULL,
            power_w DOUBLE PRECISION,
            low_w DOUBLE PRECISION,
            high_w DOUBLE PRECISION,
            sm_mhz DOUBLE PRECISION,
            memory_mhz DOUBLE PRECISION,
            temperature_c DOUBLE PRECISION,
            utilization DOUBLE PRECISION,
            limit_w DOUBLE PRECISION,
            coarse {bytes} NOT NULL,
            detail {bytes} NOT NULL,
            PRIMARY KEY (stream, gpu_uuid, number)
        )""",
        # What a run came to, remembered: folding its journal again may be done at any time, and costs.
        """CREATE TABLE summaries (
            stream TEXT NOT NULL,
            version BIGINT NOT NULL,
            edge_id BIGINT NOT NULL,
            settled BIGINT NOT NULL,
            state TEXT NOT NULL,
            simulated BIGINT NOT NULL,
            began_s DOUBLE PRECISION NOT NULL,
            watched_s DOUBLE PRECISION,
            energy_j DOUBLE PRECISION,
            saved_j DOUBLE PRECISION,
            saved_half_j DOUBLE PRECISION,
            words TEXT NOT NULL,
            summary TEXT NOT NULL,
            PRIMARY KEY (stream)
        ){by_key}""",
        "CREATE INDEX summaries_by_time ON summaries (began_s, stream)",
        "CREATE INDEX summaries_unsettled ON summaries (began_s) WHERE settled = 0",
    ),
)

VERSION = len(_STEPS)
"""How many steps there are. A database that has taken more is refused rather than guessed at."""


class Engine(StrEnum):
    """Whose SQL it is to be."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


def steps(engine: Engine, since: int, until: int = VERSION) -> list[str]:
    """The statements that bring tables of version ``since`` (0: there are none) to version ``until``, in order."""
    # The rows of such a table lie in the order of its key: an index less, and a stream's events side by side.
    by_key = " WITHOUT ROWID" if engine is Engine.SQLITE else ""
    of_bytes = "BLOB" if engine is Engine.SQLITE else "BYTEA"
    return [statement.format(by_key=by_key, bytes=of_bytes) for step in _STEPS[since:until] for statement in step]
