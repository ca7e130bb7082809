"""What the journals say, folded for people: which runs there were, and what became of each.

Reads only, and only the few events that begin, prove and end a run; whoever wants all of a run reads its journal. Works
on whatever keeps a store (``Store.tables``).

A tuned run's journal ends with the tuner's seal, and nothing may follow it. What the whole command used is measured
after that, so it stands in a stream beside it (``measured_stream``); a run that was not tuned has it in its own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Event, Finished, Proven, from_json
from joulewise.store.pace import pace_stream
from joulewise.store.tables import Tables

_MEASURED = "measured/"
_ALL = 2**62  # as a limit: no store has more
_LATEST = "SELECT stream FROM events WHERE kind = 'Began' ORDER BY at DESC LIMIT :most"
_RUNS = f"""
SELECT stream, at, event FROM events WHERE kind IN ('Began', 'Proven', 'Finished') AND stream IN ({_LATEST})
ORDER BY at, id
"""
_MEASUREMENTS = f"""
SELECT stream, at, event FROM events WHERE id = 1 AND stream IN
(SELECT '{_MEASURED}' || stream FROM ({_LATEST}) AS latest)
"""
# A stream at a time, by its key, for few of many.
_RUN = """
SELECT stream, at, event FROM events WHERE stream = :stream AND kind IN ('Began', 'Proven', 'Finished') ORDER BY id
"""
_MEASUREMENT = "SELECT stream, at, event FROM events WHERE id = 1 AND stream = :stream"
# Compared as it is: % and _ of a pattern are letters here.
_NAMED = "SELECT DISTINCT stream FROM events WHERE kind = 'Began' AND substr(stream, 1, :length) = :name"


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
    measured: Mapping[str, Any] | None = None
    """What the whole command used, as ``joulewise run`` keeps it: ``energy_j``, ``energy_error_j``, ``duration_s``,
    ``gpus`` and so on; None where nobody measured it, or not yet."""
    unix_s: float | None = None
    """Unix time when the clock of the run's events showed 0; None where that is not known."""


def measured_stream(run: str) -> str:
    """The stream in which stands what a tuned run used as a whole: one ``Finished`` whose facts are ``measured``."""
    return f"{_MEASURED}{run}"


def countersigned_stream(run: str) -> str:
    """The stream of what others have signed of a run (``store.countersignature``)."""
    return f"countersigned/{run}"


def runs(tables: Tables, *, most: int | None = None) -> list[Run]:
    """Every run that has begun, the latest first, at most ``most``. NotKept when the database cannot be read."""
    limit = {"most": _ALL if most is None else most}
    found = _folded(tables.select(_RUNS, limit))
    for stream, _, line in tables.select(_MEASUREMENTS, limit):
        _measure(found, stream.removeprefix(_MEASURED), line)
    return sorted(found.values(), key=lambda run: run.began_at_s, reverse=True)


def one(tables: Tables, name: str) -> Run | None:
    """The run of exactly this name; None if there is none. NotKept when the database cannot be read."""
    if name.startswith(_MEASURED):
        return None
    found = _folded(tables.select(_RUN, {"stream": name}))
    for _, _, line in tables.select(_MEASUREMENT, {"stream": measured_stream(name)}) if found else ():
        _measure(found, name, line)
    return found.get(name)


def named(tables: Tables, beginning: str) -> str:
    """The one run whose name begins so. BadSpec, with the way out, where there is none or more than one."""
    rows = tables.select(_NAMED, {"length": len(beginning), "name": beginning})
    names = sorted(name for (name,) in rows)
    if beginning in names:
        return beginning
    if len(names) != 1:
        what = "no run is" if not names else f"{len(names)} runs are"
        raise BadSpec(f"{what} called {beginning!r} in {tables.name}; see 'joulewise history'")
    return str(names[0])


def forget(tables: Tables, run: str) -> int:
    """Delete a run's journal and all that was kept beside it; how many events it had. NotKept when that cannot be
    done."""
    # The journal last: whatever stops us before, the run is still there to be forgotten.
    for table in ("snapshots", "readings", "summaries"):
        tables.change(f"DELETE FROM {table} WHERE stream = :stream", {"stream": run})
    for stream in (measured_stream(run), pace_stream(run), countersigned_stream(run)):
        tables.change("DELETE FROM events WHERE stream = :stream", {"stream": stream})
    return tables.change("DELETE FROM events WHERE stream = :stream", {"stream": run})


def _folded(rows: Iterable[tuple[Any, ...]]) -> dict[str, Run]:
    found: dict[str, Run] = {}
    for stream, at_s, line in rows:
        try:
            event = from_json(line)
        except BadSpec:  # one damaged line shall not hide the others
            continue
        found[stream] = _with(found.get(stream) or Run(stream, at_s, at_s), event, at_s)
    return found


def _with(run: Run, event: Event, at_s: float) -> Run:
    match event:
        case Began():
            unix_s = event.facts.get("unix_s")
            later = replace(run, facts=event.facts, last_at_s=at_s)
            if not isinstance(unix_s, (int, float)):
                return later
            return replace(later, unix_s=unix_s, began_at_s=run.began_at_s if run.facts else unix_s + event.time_s)
        case Proven():
            return replace(run, proven=event, last_at_s=at_s)
        case Finished():
            measured = event.facts.get("measured")
            used = measured if isinstance(measured, Mapping) else run.measured
            return replace(run, finished=event, last_at_s=at_s, measured=used)
        case _:
            return run


def _measure(found: dict[str, Run], name: str, line: str) -> None:
    try:
        event = from_json(line)
    except BadSpec:
        return
    if name in found and isinstance(event, Finished) and isinstance(event.facts.get("measured"), Mapping):
        found[name] = replace(found[name], measured=event.facts["measured"])
