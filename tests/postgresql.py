"""A real PostgreSQL server for tests: made in a temporary folder, reached by its own socket, gone afterwards.

``postgresql`` is the server, one a test process; ``database_url`` names a new, empty database of it. It listens on no
port, so that any number can run side by side. It refuses to run as root, so as root it runs as another user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

USER, PASSWORD = "joulewise", "s3cret-wörd"
_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")
# Whatever happens to the test process, its end closes this shell's input, and that stops the server.
_UNTIL_INPUT_ENDS = '"$@" & pid=$!; read -r _; kill -INT $pid; wait $pid'
_DEADLINE_S = 60.0
_LEFT = """
    SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace)
         + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
         + (SELECT count(*) FROM pg_namespace
             WHERE nspname !~ '^pg_' AND nspname NOT IN ('public', 'information_schema'))
         + (SELECT count(*) FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase
             WHERE datname = current_database())
         + (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())
"""
"""Whatever there is in a database beyond our schema: relations, functions, schemas, settings, and who is connected."""


class PostgresServer:
    """A server on a folder of its own. Use ``url`` to reach it, as its superuser."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs = programs
        self.folder = folder
        self._as = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
        self._shell: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._empty: list[str] = []
        self._by_files = ""

    def make(self) -> None:
        """Make the cluster and start it."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD + "\n", "utf-8")
        if self._as:
            for path in (self.folder, secret):
                shutil.chown(path, self._as["user"], self._as["group"])
        self._run("initdb", "-D", "data", "-U", USER, "--pwfile=password", "-A", "scram-sha-256", "-E", "UTF8", "-N")
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        # Nothing here need outlive the machine, only the processes: no fsync. And nothing lives long enough to be
        # vacuumed.
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off", "shared_buffers=16MB"]
        settings += ["autovacuum=off"]
        command = [
            str(self._programs / "postgres"),
            "-D",
            "data",
            *(part for each in settings for part in ("-c", each)),
        ]
        with (self.folder / "log").open("ab") as log:
            self._shell = subprocess.Popen(
                ["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as,
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """Stop it in order."""
        if self._shell is not None:
            self._shell.stdin.close()
            self._shell.wait(_DEADLINE_S)
            self._shell = None

    def crash(self) -> None:
        """Stop it at once, as a power cut would: what was not committed is lost, and connections break."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        self.stop()

    def url(self, database: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        """How it is reached."""
        return f"postgresql://{user}:{password}@/{database}?host={self.folder}"

    def run(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement, by itself."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            found = connection.execute(sql)
            return found.fetchall() if found.description else []

    def new_database(self) -> str:
        """The name of an empty database that nobody else has."""
        if self._empty:
            return self._empty.pop()
        self._databases += 1
        name = f"test_{self._databases}"
        self.run(f"CREATE DATABASE {name}{self._by_files}")
        return name

    def take_back(self, name: str) -> None:
        """For the next one: what was made in it goes. Where a test left more than our schema, nobody gets it again."""
        self.run("DROP SCHEMA IF EXISTS joulewise CASCADE", name)
        if self.run(_LEFT, name) == [(0,)]:
            self._empty.append(name)

    def _wait_until_it_answers(self) -> None:
        import psycopg

        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                with psycopg.connect(self.url()) as connection:
                    # Through the log, the default since 15, it takes twice as long.
                    self._by_files = " STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline or self._shell.poll() is not None:
                    raise RuntimeError(
                        f"{error}\n{(self.folder / 'log').read_text(errors='replace')[-2000:]}"
                    ) from error
                time.sleep(0.05)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, **self._as)
        if ended.returncode:
            raise RuntimeError(f"{program}: {ended.stderr}")


def _programs() -> Path | None:
    beside = shutil.which("postgres")
    found = [Path(beside).resolve().parent] if beside else []
    for place in _PLACES:
        found += sorted(Path("/").glob(place.removeprefix("/")), reverse=True)
    return next((each for each in found if (each / "initdb").exists() and (each / "postgres").exists()), None)


def _other_user() -> str | None:
    """Whom to be instead of root; None where we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A running server; skips where PostgreSQL, or our packages for it, are not installed."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("psycopg")
    user = _other_user()
    # Where the other user may go, which is not pytest's own folder; and short: a socket's path has about 100 bytes.
    folder = Path(tempfile.mkdtemp(prefix="jw-pg-", dir="/tmp"))
    server = PostgresServer(programs, folder, user)
    try:
        server.make()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture
def database_url(postgresql: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    import psycopg

    name = postgresql.new_database()
    yield postgresql.url(name)
    with contextlib.suppress(psycopg.Error):  # such as one that may only be read
        postgresql.take_back(name)
