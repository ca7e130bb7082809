"""The one SQLite file: where it lies, what it holds, and how several processes share it.

A connection is opened on first use and for one transaction at a time held by one thread. Write-ahead logging lets
readers and writers pass each other; over a network file system, where its shared memory does not work, the plain
rollback journal is used instead. Everything the standard library raises becomes NotKept, with the way out.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulewise.core.errors import NotKept
from joulewise.store.schema import VERSION, Engine, steps

HOME_VARIABLE = "JOULEWISE_HOME"
FILE = "joulewise.db"

_BUSY_S = 2.0
"""How long to wait for another process's write. Theirs take milliseconds; whoever waits longer keeps its events in
memory and goes on."""
_CLOSE_S = 0.1
"""How long to wait for another thread's call before closing: a good one takes milliseconds."""
_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs", "fuse.sshfs")


def default_path() -> Path:
    """``$JOULEWISE_HOME/joulewise.db``, else under ``$XDG_DATA_HOME/joulewise`` (``~/.local/share/joulewise``)."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home).expanduser() / FILE
    data = os.environ.get("XDG_DATA_HOME")
    # The specification says: a relative path is to be ignored.
    base = Path(data) if data and Path(data).is_absolute() else _own_home() / ".local" / "share"
    return base / "joulewise" / FILE


def _own_home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and no such user in the password file: a container
        raise NotKept(f"nothing can be kept: this user has no home directory; set {HOME_VARIABLE}") from None


class Database:
    """The file at ``path``, made with its directory when it is first written. Threads share it, forks do not."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.path)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that writes: all of it or nothing. NotKept when it cannot be done."""
        with self._lock, self._told():
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                _undo(connection)
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection to read from; None where there is no file yet. NotKept when it cannot be read."""
        with self._lock, self._told():
            yield self._opened() if self._connection is not None or self.path.exists() else None

    def select(self, query: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """As ``Tables.select``."""
        with self.reading() as connection:
            return connection.execute(query, values).fetchall() if connection is not None else []

    def change(self, statement: str, values: Mapping[str, object]) -> int:
        """As ``Tables.change``."""
        with self.writing() as connection:
            return connection.execute(statement, values).rowcount

    def close(self) -> None:
        """Close the file; it is opened again on use. Not waited for where another thread is in the middle of a call."""
        if not self._lock.acquire(timeout=_CLOSE_S):
            return  # a thread waits for a lock or a hung disk; the end of the process closes what it holds
        try:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
        finally:
            self._lock.release()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        # Commands and paths of somebody's work are in it: for nobody else to read.
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600))
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._pid = connection, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = self._version(connection)
        if not os.access(self.path, os.W_OK):
            if version == 0:
                raise NotKept(f"{self.path} cannot be written; make it writable, or set {HOME_VARIABLE}")
            return  # somebody's file to look at
        connection.execute(f"PRAGMA journal_mode={'DELETE' if on_network(self.path) else 'WAL'}")
        # What was committed survives our death at once, and a power cut up to the last second or so.
        connection.execute("PRAGMA synchronous=NORMAL")
        if version < VERSION:
            self._migrate(connection)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._version(connection)  # another process may have been faster
            for statement in steps(Engine.SQLITE, version):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            _undo(connection)
            raise

    def _version(self, connection: sqlite3.Connection) -> int:
        """How many steps of ``schema`` the file has taken. NotKept where that is not for us to go on from."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise NotKept(
                f"{self.path} was written by a newer joulewise (tables {version}, known here {VERSION}); "
                f"update, or set {HOME_VARIABLE} to another directory"
            )
        if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            # Between the two looks another process of ours may have made the tables, with their version.
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                raise NotKept(f"{self.path} is another program's database; name another file")
        return int(version)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The faults of files and of SQLite as NotKept, each with what to do about it."""
        try:
            yield
        except sqlite3.Error as error:
            raise NotKept(f"{self.path}: {error}; {_way_out(error)}") from error
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise NotKept(f"{self.path}: {why}; make room or rights there, or set {HOME_VARIABLE}") from error


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error:  # the disk that failed the write fails this too; closing undoes it
            return


def _way_out(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "it is damaged or no database; move it away, a new one will be made"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process writes without end; see who has it open"
    if code == sqlite3.SQLITE_FULL:
        return f"make room there, or set {HOME_VARIABLE}"
    return f"make it readable and writable, or set {HOME_VARIABLE}"


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether ``path`` lies on a file system that other machines may write too; no if nobody can say."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
        where = path.resolve()
    except OSError:
        return False
    kind, depth = "", -1
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = Path(fields[1].replace("\\040", " "))
        if where.is_relative_to(point) and len(point.parts) >= depth:
            kind, depth = fields[2], len(point.parts)
    return kind.startswith(_NETWORK)
