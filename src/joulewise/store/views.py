"""What the journals say, folded for people: which runs there were, and what became of each.

Reads only, and only the few events that begin, prove and end a run; whoever wants all of a run reads its journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Event, Finished, Proven, from_json
from joulewise.store.database import Database

_ENDS = ("Began", "Proven", "Finished")


@dataclass(frozen=True, slots=True)
class Run:
    """One run as its journal tells it."""

    name: str
    """The journal's stream."""
    began_at_s: float
    """In seconds since 1970."""
    last_at_s: float
    """When the last of the events that are looked at was written."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What ran, on what, under which bound: ``Began.facts``."""
    proven: Proven | None = None
    """The last proof; None where there is none."""
    finished: Finished | None = None
    """How it ended; None while it runs, or when it was killed."""


def runs(database: Database, *, most: int | None = None) -> list[Run]:
    """Every run that has begun, the latest first, at most ``most``. NotKept when the file cannot be read."""
    query = (
        f"SELECT stream, at, event FROM events WHERE kind IN ({', '.join('?' * len(_ENDS))}) "
        "AND stream IN (SELECT stream FROM events WHERE kind = 'Began' ORDER BY at DESC LIMIT ?) ORDER BY at, id"
    )
    with database.reading() as connection:
        rows = connection.execute(query, (*_ENDS, -1 if most is None else most)).fetchall() if connection else []
    found: dict[str, Run] = {}
    for stream, at_s, line in rows:
        try:
            event = from_json(line)
        except BadSpec:  # one damaged line shall not hide the others
            continue
        found[stream] = _with(found.get(stream) or Run(stream, at_s, at_s), event, at_s)
    return sorted(found.values(), key=lambda run: run.began_at_s, reverse=True)


def named(database: Database, beginning: str) -> str:
    """The one run whose name begins so. BadSpec, with the way out, where there is none or more than one."""
    # Compared as it is: % and _ of a pattern are letters here.
    query = (
        "SELECT DISTINCT stream FROM events WHERE kind = 'Began' AND substr(stream, 1, :length) = :name ORDER BY stream"
    )
    rows = database.select(query, {"length": len(beginning), "name": beginning})
    names = [name for (name,) in rows]
    if beginning in names:
        return beginning
    if len(names) != 1:
        what = "no run is" if not names else f"{len(names)} runs are"
        raise BadSpec(f"{what} called {beginning!r} in {database.path}; see 'joulewise history'")
    return str(names[0])


def forget(database: Database, run: str) -> int:
    """Delete a run's journal; how many events it had. NotKept when that cannot be done."""
    with database.writing() as connection:
        connection.execute("DELETE FROM snapshots WHERE stream = ?", (run,))  # of a past that is no more
        return connection.execute("DELETE FROM events WHERE stream = ?", (run,)).rowcount


def _with(run: Run, event: Event, at_s: float) -> Run:
    match event:
        case Began():
            return replace(run, facts=event.facts, last_at_s=at_s)
        case Proven():
            return replace(run, proven=event, last_at_s=at_s)
        case Finished():
            return replace(run, finished=event, last_at_s=at_s)
        case _:
            return run
