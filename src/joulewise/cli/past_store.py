"""``--database FILE|URL`` of verbs that look at runs that were kept: which store, and where what was learnt stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.store import Database, Store

StoreFlag = Annotated[
    str | None,
    typer.Option(
        "--database",
        "--journal",  # as it was called when a store was always a file
        metavar="FILE|URL",
        help="Where runs are kept: a file, or postgresql://… Default: $JOULEWISE_DATABASE, else yours.",
    ),
]


def opened_store(database: str | None) -> Store:
    """The store that is named, else the usual one.

    BadSpec where it is a file that is not there: one who looks makes none. Nothing is read yet.
    """
    from joulewise.store import Database, open_store

    store = open_store(database)
    file = store.tables
    if database is not None and isinstance(file, Database) and not file.path.is_file():
        raise BadSpec(f"--database {database} is no file; name a joulewise.db, or a server: postgresql://HOST/NAME")
    return store


def learnt_in(database: str | None, store: Store) -> Database:
    """The file in which stands what was learnt: the one that is named, else the user's own, whatever keeps the runs."""
    from joulewise.store import Database

    return store.tables if database is not None and isinstance(store.tables, Database) else Database()
