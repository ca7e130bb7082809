"""What a run could not write to its store, saved in a file until the next run takes it in.

A file is named after its run and lies in ``unsent`` beside the user's own database (whichever store was meant: beside
a PostgreSQL server there is no place). It holds one JSON object a line: a header with the store's name, then events,
readings and what was learnt. Taking it in may be repeated at any point: events that are there already are passed over,
so that neither a writer that was given up and finished late nor a crash in between doubles anything. A run of which a
file is left has ended, whatever the store says of it: nobody goes on with it (``waits``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import BadSpec, Conflict, NotKept
from joulewise.core.event import Event, Told, from_json, to_json
from joulewise.store.database import Database, default_path
from joulewise.store.memory import Memory
from joulewise.store.readings import Readings, Sample
from joulewise.store.store import Store

MOST_FILES: Final = 100
"""A store that is never reached again must not fill the disk; a file is some hundred kB."""
_FORMAT: Final = 1
_SUFFIX: Final = ".jsonl"
_DAMAGED: Final = ".damaged"
_PART: Final = ".part"
_PART_S: Final = 3600.0
"""A file takes a second to write: one that is still a part after an hour is nobody's."""
_SAME_S: Final = 0.002
"""Times are kept to the millisecond (``store.packed``), and samples are a second apart."""

_log = logging.getLogger("joulewise")


Learnt = tuple[str, str, str, Mapping[str, Any]]
"""The arguments of ``Memory.keep``."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """What one run could not write."""

    run: str
    events: Mapping[str, tuple[int, Sequence[Event]]] = field(default_factory=dict)
    """Stream → the id after which its events follow, and these."""
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    """GPU → its readings, in order of time."""
    learnt: Sequence[Learnt] = ()
    told: Mapping[str, Sequence[Told]] = field(default_factory=dict)
    """Recurring job → results of its trials."""
    at_s: float = field(default_factory=time.time)
    """When the run ended, in seconds since 1970."""


def directory() -> Path:
    """Where the files lie. NotKept where the user has no directory."""
    return default_path().parent / "unsent"


def save(store: Store, unsent: Unsent) -> Path:
    """Write a file; its path. NotKept, with the reason, when that cannot be done."""
    folder = directory()
    path = folder / f"{unsent.run}-{secrets.token_hex(2)}{_SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len(_files(folder, _SUFFIX, _PART)) >= MOST_FILES:
            raise NotKept(f"{folder} holds {MOST_FILES} runs already; make the store work, or delete them")
        part = path.with_suffix(_PART)
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.writelines(
                json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in _lines(store, unsent)
            )
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except (OSError, ValueError) as error:
        raise NotKept(f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}") from error
    return path


def waits(run: str) -> bool:
    """Whether a file of ``run`` is there: not taken in yet, set aside as damaged, or being written."""
    return any(path.name.rpartition("-")[0] == run for path in _files(directory(), _SUFFIX, _DAMAGED, _PART))


def take_in(store: Store, tell: Callable[[str, Told], None], enough: Callable[[], bool] = lambda: False) -> list[str]:
    """Write what earlier runs could not write to ``store``; the names of the runs whose journals are complete now.
    ``tell`` hands in the result of a trial of a recurring job. Ends early, between two files, once it is ``enough``.

    NotKept when the store cannot be written; what was not taken in stays. A file that cannot be understood, or that
    contradicts what the store holds, is renamed, and a warning says so. What was left half written is deleted.
    """
    taken: list[str] = []
    folder = directory()
    _delete_parts(folder)
    for path in _files(folder):
        if enough():
            return taken
        with _locked(path) as lines:
            if not lines:
                continue
            try:
                unsent = _unsent(store, lines)
                if unsent is None:
                    continue
                early = _take(store, unsent, tell)
                if unsent.events:
                    taken.append(unsent.run)
                if early:
                    raise Conflict(
                        f"{store.name} holds later readings of {unsent.run}, so {early} are only in the file"
                    )
            except (BadSpec, Conflict) as error:
                aside = path.with_suffix(_DAMAGED)
                try:
                    path.rename(aside)
                except OSError as failed:
                    aside = path
                    _log.debug("%s cannot be renamed: %s", path, failed)
                _log.warning("%s cannot be taken in: %s", aside, error)
                continue
            with contextlib.suppress(OSError):  # it is taken in again, which doubles nothing
                path.unlink()
    return taken


def _delete_parts(folder: Path) -> None:
    """Delete what writers that were killed have left half written."""
    for path in _files(folder, _PART):
        with contextlib.suppress(OSError):
            if time.time() - path.stat(follow_symlinks=False).st_mtime > _PART_S:
                path.unlink()


def _files(folder: Path, *suffixes: str) -> list[Path]:
    """The files with one of ``suffixes`` (else the finished ones), the oldest first: a run that was gone on with has
    several."""
    try:
        found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in os.scandir(folder)]
    except OSError:  # there is none, or somebody takes them in just now
        return []
    return [Path(path) for _, path in sorted(found) if path.endswith(suffixes or _SUFFIX)]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[list[str]]:
    """The lines of a file, for one process at a time; none where another has it, or it is gone."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8", errors="replace")
    except OSError:
        yield []
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines = file.read().splitlines() if path.exists() else []
        except OSError:
            lines = []
        yield lines


def _identity(store: Store) -> str:
    """A store's name that means the same from any folder."""
    tables = store.tables
    return str(tables.path.absolute()) if isinstance(tables, Database) else store.name


def _lines(store: Store, unsent: Unsent) -> Iterator[dict[str, Any]]:
    yield {"unsent": _FORMAT, "store": _identity(store), "run": unsent.run, "at": unsent.at_s}
    for stream, (after, events) in unsent.events.items():
        for number, event in enumerate(events, start=after + 1):
            yield {"stream": stream, "id": number, "event": to_json(event)}
    for uuid, samples in unsent.samples.items():
        if samples:
            yield {"gpu": uuid, "samples": [astuple(sample) for sample in samples]}
    for job, results in unsent.told.items():
        for told in results:
            yield {"series": job, "told": to_json(told)}
    for fingerprint, uuid, name, payload in unsent.learnt:
        yield {"learnt": fingerprint, "gpu": uuid, "gpu_name": name, "payload": dict(payload)}


def _unsent(store: Store, lines: Sequence[str]) -> Unsent | None:
    """What a file holds; None if it is for another store. BadSpec for what cannot be understood."""
    events: dict[str, tuple[int, list[Event]]] = {}
    samples: dict[str, list[Sample]] = {}
    results: dict[str, list[Told]] = {}
    learnt = []
    try:
        header, *records = (json.loads(line) for line in lines)
        if header["unsent"] != _FORMAT:
            raise BadSpec(f"format {header['unsent']!r}, known here is {_FORMAT}")
        if header["store"] != _identity(store):
            return None
        for record in records:
            if "event" in record:
                _, its = events.setdefault(record["stream"], (record["id"] - 1, []))
                its.append(from_json(record["event"]))
            elif "samples" in record:
                samples[record["gpu"]] = [Sample(*values) for values in record["samples"]]
            elif "told" in record:
                told = from_json(record["told"])
                if not isinstance(told, Told):
                    raise BadSpec(f"a {type(told).__name__} where a result is expected")
                results.setdefault(record["series"], []).append(told)
            else:
                learnt.append((record["learnt"], record["gpu"], record["gpu_name"], dict(record["payload"])))
        return Unsent(str(header["run"]), events, samples, learnt, results, float(header["at"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadSpec(f"not a file of ours ({type(error).__name__}: {error})") from error


def _take(store: Store, unsent: Unsent, tell: Callable[[str, Told], None]) -> int:
    """Write what a file holds. How many of its readings could not be written, since the store holds later ones and not
    these: nothing is put between readings. Conflict where a journal has gone on otherwise."""
    for stream, (after, events) in unsent.events.items():
        journal = store.journal(stream)
        there = [to_json(event) for _, event in journal.read(after)]
        if there != [to_json(event) for event in events[: len(there)]]:
            raise Conflict(f"{stream} has gone on otherwise in {store.name}")
        for number, event in enumerate(events[len(there) :], start=after + len(there)):
            journal.append(event, after=number)
    readings = store.readings()
    early = 0
    for uuid, samples in unsent.samples.items():
        readings.write(unsent.run, uuid, samples)
        early += _missing(readings, unsent.run, uuid, samples)
    for fingerprint, uuid, name, payload in unsent.learnt:
        memory = Memory(Database())
        known = memory.recall(fingerprint, uuid, name)
        later = known is not None and known.same_card and known.at_s > unsent.at_s
        if memory.trouble is None and not later:
            memory.keep(fingerprint, uuid, name, payload)
        if memory.trouble is not None:
            raise NotKept(memory.trouble)
    for job, results in unsent.told.items():
        for told in results:
            tell(job, told)
    return early


def _missing(readings: Readings, run: str, uuid: str, samples: Sequence[Sample]) -> int:
    """How many of ``samples`` are not in the store. BadSpec where what is there is damaged."""
    if not samples:
        return 0
    from_s = samples[0].at_s - _SAME_S
    there = [sample.at_s for sample in readings.samples(run, uuid) if sample.at_s >= from_s]
    near = ((bisect_left(there, each.at_s - _SAME_S), bisect_right(there, each.at_s + _SAME_S)) for each in samples)
    return sum(first == last for first, last in near)
