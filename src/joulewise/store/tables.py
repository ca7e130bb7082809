"""What the engines have in common: SQL with named values in, rows out. ``Database`` and ``PostgresDatabase`` do it.

The queries that both understand are written once, against this; what only one of them can do (its locks, its clock)
stays with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

_STREAMS = "SELECT stream FROM events WHERE id = 1 AND substr(stream, 1, :length) = :prefix"


class Tables(Protocol):
    """A database whose tables are those of ``schema``. Methods may be called from any thread."""

    @property
    def name(self) -> str:
        """Where it lies, for people; without a password."""
        ...

    def select(self, query: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows; none where nothing was ever written. NotKept when it cannot be read."""
        ...

    def change(self, statement: str, values: Mapping[str, object]) -> int:
        """Run one statement as one transaction; how many rows it changed. NotKept when it cannot be done."""
        ...

    def close(self) -> None:
        """Let go of the file or the server; both are taken up again on use."""
        ...


def streams(tables: Tables, prefix: str = "") -> list[str]:
    """The streams whose names begin so, in order."""
    # Compared as it is (% and _ of a pattern are letters here), and sorted here: engines differ in how they sort text.
    return sorted(name for (name,) in tables.select(_STREAMS, {"length": len(prefix), "prefix": prefix}))
