"""One name for all that is kept: a file, or a PostgreSQL server by its URL.

``open_store`` takes what a user wrote (a flag, ``JOULEWISE_DATABASE``, nothing) and gives a ``Store``; whoever uses it
need not know which engine it is. Nothing is opened or connected to before it is used, so that a server may be away
when we start.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.store.database import Database
from joulewise.store.journal import Journal
from joulewise.store.readings import Readings
from joulewise.store.snapshots import Snapshots
from joulewise.store.sql import SqliteStore
from joulewise.store.tables import Tables

DATABASE_VARIABLE = "JOULEWISE_DATABASE"
_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")
_FORMS = "give a file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class Store(Protocol):
    """Journals by the name of their stream, what was read of GPUs meanwhile, and snapshots of what was folded from the
    journals. Safe with several threads."""

    @property
    def name(self) -> str:
        """Where it lies, for people; without a password."""
        ...

    def journal(self, stream: str) -> Journal:
        """The journal of this stream; made when it is first written."""
        ...

    def streams(self, prefix: str = "") -> list[str]:
        """The streams whose names begin so, sorted. NotKept when that cannot be read."""
        ...

    def snapshots(self) -> Snapshots:
        """Of all its streams."""
        ...

    def readings(self) -> Readings:
        """Power and clocks over time, of all its streams."""
        ...

    @property
    def tables(self) -> Tables:
        """What it is kept in, for ``views`` and others that ask questions of several streams at once."""
        ...

    def close(self) -> None:
        """Let go of the file or the server; both are taken up again on use."""
        ...


def open_store(url: str | os.PathLike[str] | None = None) -> Store:
    """The store that ``url`` names; without it what ``JOULEWISE_DATABASE`` names, else the user's own file.

    BadSpec, with the way out, for what names none; MissingPart where PostgreSQL's packages are not installed.
    """
    text = os.fspath(url) if url is not None else os.environ.get(DATABASE_VARIABLE, "")
    if not text:
        return SqliteStore(Database())
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", text)
    if scheme is None:
        if re.search(r"(^|\s)(host|dbname|user)=", text):
            raise BadSpec(f"a database is named by its URL, not by 'host=… dbname=…'; {_FORMS}")
        return SqliteStore(Database(Path(text).expanduser()))
    if scheme[1] == "sqlite":
        return SqliteStore(Database(_file(text)))
    if scheme[1] in _POSTGRESQL:
        return _postgres(text)
    raise BadSpec(f"{masked(text)!r} names no database that is known here; {_FORMS}")


def masked(url: str) -> str:
    """``url`` as it may be shown: without the password, wherever in it somebody wrote one."""
    hidden = re.sub(r"//([^:@/]*):.*@", r"//\1:***@", url)  # up to the last @: a password may hold one
    return re.sub(r"(?i)(password=)[^&\s]*", r"\1***", hidden)


def _file(url: str) -> Path:
    found = re.fullmatch(r"sqlite:///([^?#]+)", url)
    if found is None:
        raise BadSpec(f"{url!r} names no file; give sqlite:///FILE (sqlite:////FILE with its path from the root)")
    return Path(found[1]).expanduser()


def _postgres(url: str) -> Store:
    try:
        from joulewise.store.postgres import PostgresStore
    except ImportError as error:
        raise MissingPart(
            f"a PostgreSQL database needs SQLAlchemy and psycopg ({error}): pip install 'joulewise[server]'"
        ) from None
    return PostgresStore(url)
