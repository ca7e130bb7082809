"""Where recurring jobs are kept: ``--database URL``, or ``--server URL`` for those of a server; the same to all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from joulewise.core import input_files
from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Asked
from joulewise.core.series import Platform
from joulewise.report import keeping
from joulewise.store.bounded import BoundedCalls
from joulewise.store.store import Store
from joulewise.store.unsent import Unsent
from joulewise.tune.desk import LEASE_S, PREFIX, Desk, SeriesDesk
from joulewise.tune.steady import Steady

TOKEN_VARIABLE = "JOULEWISE_TOKEN"

DatabaseFlag = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="File or postgresql://…. Default: $JOULEWISE_DATABASE, else yours."),
]
ServerFlag = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="A 'joulewise serve' that keeps the job instead.")
]
TokenFlag = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help=f"Holds the server's token. Default: ${TOKEN_VARIABLE}."),
]


class StoreDesk(Steady):
    """The desk of a job that is kept in a store, which may be locked or hang: see ``Steady``."""

    def __init__(self, store: Store, job: str) -> None:
        super().__init__(Desk.of(store, job), BoundedCalls(store.name))
        self._store, self._name = store, job

    def ask(
        self, recurrence: str, platform: Platform, owner: str = "", key: str = "", lease_s: float = LEASE_S
    ) -> Asked:
        """As ``Steady.ask``. What earlier runs could not hand in is handed in before."""
        with suppress(NotKept):  # the ask says so
            self._called(lambda: keeping.take_in(self._store))
        return super().ask(recurrence, platform, owner, key, lease_s)

    def save_untold(self) -> str:
        """Save results that could not be handed in; how it goes on, in words, empty where there are none."""
        if not self.untold:
            return ""
        try:
            run = f"{keeping.new_name()}-trial"
            return f"; {keeping.save(self._store, Unsent(run, told={self._name: self.untold}))}"
        except NotKept as error:
            return f"; nor could it be saved: {error}"


@contextmanager
def opened_desk(
    job: str, database: str | None = None, server: str | None = None, token_file: Path | None = None
) -> Iterator[SeriesDesk]:
    """The desk of a job. BadSpec for flags that make no sense; nothing is read yet."""
    _refuse_unfit(database, server, token_file)
    if server is not None:
        from joulewise.serve.client import Client

        yield Client(server, job, token=read_token(token_file))
        return
    from joulewise.store import open_store

    with closing(open_store(database)) as store:
        yield StoreDesk(store, job)


def names(database: str | None = None, server: str | None = None, token_file: Path | None = None) -> list[str]:
    """The jobs that are kept there. BadSpec as ``opened_desk``, NotKept where they cannot be read."""
    _refuse_unfit(database, server, token_file)
    if server is not None:
        from joulewise.serve.client import jobs

        return jobs(server, token=read_token(token_file))
    from joulewise.store import open_store

    with closing(open_store(database)) as store:
        return [stream.removeprefix(PREFIX) for stream in store.streams(PREFIX)]


def _refuse_unfit(database: str | None, server: str | None, token_file: Path | None) -> None:
    if server is not None and database is not None:
        raise BadSpec("--server and --database both say where the job is kept; say one of them")
    if server is None and token_file is not None:
        raise BadSpec("--token-file is for a server; name it with --server")


def read_token(file: Path | None) -> str | None:
    """The token of the file that was named, else of the environment, if any. BadSpec for a file that is not there."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return input_files.read_text(file, input_files.MIB).strip()
    except BadSpec as error:
        raise BadSpec(f"--token-file {error}") from None
