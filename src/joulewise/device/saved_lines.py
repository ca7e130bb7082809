"""The form of what is saved: an entry of a leased knob, lines of JSON with checksums, and what a whole file says.

A file of version 2 is a snapshot, one line for each act since, and an end. Each line's checksum goes on from that of
the line before it, and the end is written anew with each line, so that a line that is damaged, missing, moved or there
twice is noticed, at the end of the file too. ``contents`` believes what precedes the first fault and says what follows
from it. In version 1 each line had a checksum of its own and there was no end: a file that was cut between two lines
looks whole, so nothing about such a file is sure.

Pure functions; ``saved`` has the file.
"""

from __future__ import annotations

import json
import math
import re
import time
import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from joulewise.device.lease import Owner

PERSISTENCE: Final = "persistence"
"""Kept like a knob where the site lets us turn persistence mode on: 0 off, 1 on."""
_KNOBS: Final = frozenset({"sm_mhz", "memory_mhz", "power_limit_w", PERSISTENCE})
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")  # it becomes a file name
VERSION: Final = 2
_END: Final = b'"end"'


@cache
def boot_id() -> str:
    """The kernel's name for this boot; empty where it tells none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Entry:
    """One knob that somebody has leased: what was there, and what we may have put there since."""

    knob: str
    before: float | None
    """What comes back; None for clocks, which cannot be read."""
    wrote: tuple[float, ...]
    """What the knob may show by our doing: the value in force and the one that was about to be written."""
    owner: Owner
    boot: str
    counter_j: float | None
    """The energy counter when this was saved: one that shows less has been started anew since, with the driver."""
    saved_unix_s: float
    base: float | None = None
    """Clocks: the site's baseline when this was saved, for a rescuer that knows no site; None: none was declared."""
    unsure: bool = False
    """Whether lines after this were lost, so that the knob may show by our doing what is not in ``wrote``."""

    @classmethod
    def new(
        cls, knob: str, before: float | None, owner: Owner, counter_j: float | None, base: float | None = None
    ) -> Entry:
        """An entry of this moment, nothing written yet."""
        return cls(knob, before, (), owner, boot_id(), counter_j, time.time(), base)


def wrote_after(wrote: tuple[float, ...], value: float, over: float | None) -> tuple[float, ...]:
    """What the knob may show by our doing, once ``value`` is about to be written over ``over``."""
    kept = wrote if over is None else (over,) if over in wrote else ()
    return (*(each for each in kept if each != value), value)


@dataclass(slots=True)
class Contents:
    """What a file says, as far as it can be believed."""

    entries: dict[str, Entry] = field(default_factory=dict)
    standing: dict[str, float] = field(default_factory=dict)
    damage: str = ""
    """What is wrong with the file; empty if it is whole."""
    unknown: str = ""
    """Why what was there before our leases cannot be known; empty if it is known. There are no entries then."""
    ours: bool = True
    """Whether the file may be replaced: False for one that a newer joulewise wrote, or that is not believed at all."""
    version: int = VERSION
    lines: int = 0
    length: int = 0
    """Bytes of the lines before the end."""
    checksum: int = 0
    """Of the last of them."""


def to_line(body: str, after: int = 0) -> tuple[bytes, int]:
    """A record as a line that follows one with the checksum ``after`` (0: the first line), and its own checksum."""
    raw = body.encode("utf-8")
    checksum = zlib.crc32(raw, after)
    return b'["%08x",%b]\n' % (checksum, raw), checksum


def end_line(after: int) -> bytes:
    """What a whole file ends with, after a line with that checksum."""
    return to_line(_END.decode(), after)[0]


def from_line(line: bytes, after: int = 0) -> tuple[dict[str, Any], int]:
    """The inverse of ``to_line``, for a line without its newline; ValueError if it is not what that made."""
    body = line[12:-1]
    checksum = zlib.crc32(body, after)
    if b'["%08x",%b]' % (checksum, body) != line:
        raise ValueError("its checksum is wrong")
    record = json.loads(body.decode("utf-8"))
    if not isinstance(record, dict):
        raise ValueError("it is no record")
    return record, checksum


def contents(raw: bytes, uuid: str) -> Contents:
    """What the file of the GPU ``uuid`` says. Never raises: what cannot be believed is said in the answer."""
    lines = raw.split(b"\n")
    tail = lines.pop()
    try:
        record, checksum = from_line(lines[0] if lines else tail)
        version = record["joulewise"]
        if type(version) is int and version > VERSION:
            why = f"it is of version {version}, by a newer joulewise: restore with that"
            return Contents(damage=why, unknown=why, ours=False)
        if version not in (1, VERSION):
            raise ValueError("it is of no version")
        if record["gpu"] != uuid:
            why = f"it is the file of {to_uuid(record['gpu'])}"
            return Contents(damage=why, unknown=why)
        entries = {entry.knob: entry for entry in map(to_entry, record["entries"])}
        standing = {to_knob(knob): to_number(value) for knob, value in record["standing"].items()}
        unknown = str(record.get("unknown", ""))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        why = "its first line is damaged" if raw else "it is empty"
        return Contents(damage=why, unknown=why)
    said = Contents(entries, standing, unknown=unknown, version=version, lines=1, checksum=checksum)
    said.length = len(lines[0]) + 1 if lines else len(raw)
    said.damage = _replay(said, lines[1:], tail) if lines else "its end is missing"
    if said.damage or version == 1:
        said.entries = {knob: replace(entry, unsure=True) for knob, entry in said.entries.items()}
    return said


def _replay(said: Contents, lines: list[bytes], tail: bytes) -> str:
    """Fold the lines after the first into ``said``, up to the first fault; what that is, or nothing."""
    chained = said.version > 1
    for number, line in enumerate(lines, 2):
        if chained and line + b"\n" == end_line(said.checksum):
            return "" if number == len(lines) + 1 and not tail else "something follows its end"
        try:
            record, checksum = from_line(line, said.checksum if chained else 0)
            _act(said.entries, record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return f"its line {number} is damaged"
        said.lines, said.length, said.checksum = number, said.length + len(line) + 1, checksum
    return "its end is missing" if chained or tail else ""


def _act(entries: dict[str, Entry], record: dict[str, Any]) -> None:
    ((act, what),) = record.items()
    if act == "intend":
        knob, value, over = what
        entry = entries[knob]
        wrote = wrote_after(entry.wrote, to_number(value), None if over is None else to_number(over))
        entries[knob] = replace(entry, wrote=wrote)
    elif act == "forget":
        for knob in what:
            entries.pop(knob, None)
    else:
        raise ValueError(f"no act is called {act!r}")


def to_entry(record: dict[str, Any]) -> Entry:
    """An entry from its record (``dataclasses.asdict``); ValueError, TypeError or KeyError if it is none."""
    owner = Owner(**record.pop("owner"))
    wrote = tuple(to_number(value) for value in record.pop("wrote"))
    entry = Entry(owner=owner, wrote=wrote, **record)
    if not isinstance(entry.unsure, bool):
        raise ValueError(f"{entry.unsure!r} is neither true nor false")
    for value in (entry.before, entry.counter_j, entry.base):
        if value is not None:
            to_number(value)
    to_knob(entry.knob)
    return entry


def to_knob(knob: object) -> str:
    """A knob's name; ValueError if it is none."""
    if knob not in _KNOBS:
        raise ValueError(f"no knob is called {knob!r}")
    return str(knob)


def to_uuid(uuid: object) -> str:
    """A GPU's name, fit to be a file's name too; ValueError if it is none."""
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise ValueError(f"{uuid!r} is no GPU's UUID; it would have to be letters, digits and dashes")
    return uuid


def to_number(value: object) -> float:
    """A finite number; ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
