"""What was written lately, in any stream: for whoever watches a store that other processes write.

Asked again and again with the time of the last look, it costs one query on an index, however much is kept. Writers'
clocks differ, and an event that waited for its disk bears the time when it was made: so a look reaches some seconds
back, and what was seen is told apart by stream and number. Not a journal: an event may be missed by a watcher whose
clock is far off; the journal has them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.errors import BadSpec
from joulewise.core.event import Event, from_json
from joulewise.store.tables import Tables

_MOST = 200
"""Of one look, the latest: a watcher needs no more to know that it should look for itself."""


@dataclass(frozen=True, slots=True)
class Item:
    """One event: whose, which number, when it was written (seconds since 1970)."""

    stream: str
    number: int
    at_s: float
    event: Event


def since(tables: Tables, at_s: float, kinds: Sequence[str], *, most: int = _MOST) -> list[Item]:
    """Events of these kinds written after ``at_s``, in that order, the latest ``most`` of them; damaged ones are left
    out. NotKept when it cannot be read."""
    named = ", ".join(f":kind{place}" for place in range(len(kinds)))
    query = (
        f"SELECT stream, id, at, event FROM events WHERE kind IN ({named}) AND at > :at ORDER BY at DESC, id DESC "
        "LIMIT :most"
    )
    values = {"at": at_s, "most": most, **{f"kind{place}": kind for place, kind in enumerate(kinds)}}
    found = []
    for stream, number, written_s, line in tables.select(query, values):
        try:
            found.append(Item(str(stream), int(number), float(written_s), from_json(line)))
        except BadSpec:  # one damaged line shall not hide the others
            continue
    return found[::-1]
