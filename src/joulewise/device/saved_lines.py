"""One line of what is saved: an entry of a leased knob, and JSON with a checksum, to be written and read back.

Pure functions; ``saved`` has the file.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from joulewise.device.lease import Owner

PERSISTENCE: Final = "persistence"
"""Kept like a knob where the site lets us turn persistence mode on: 0 off, 1 on."""
_KNOBS: Final = frozenset({"sm_mhz", "memory_mhz", "power_limit_w", PERSISTENCE})


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


def to_line(body: str) -> bytes:
    """A record with its checksum, as one line of JSON: a flipped bit must not become a power limit."""
    raw = body.encode("utf-8")
    return b'["%08x",%b]\n' % (zlib.crc32(raw), raw)


def from_line(line: str) -> dict[str, Any]:
    """The inverse; ValueError if it is not what ``to_line`` made."""
    body = line[12:-1]
    if to_line(body) != f"{line}\n".encode():
        raise ValueError("the checksum is wrong")
    record = json.loads(body)
    if not isinstance(record, dict):
        raise ValueError("not a record")
    return record


def to_entry(record: dict[str, Any]) -> Entry:
    """An entry from its record (``dataclasses.asdict``); ValueError, TypeError or KeyError if it is none."""
    owner = Owner(**record.pop("owner"))
    wrote = tuple(to_number(value) for value in record.pop("wrote"))
    entry = Entry(owner=owner, wrote=wrote, **record)
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


def to_number(value: object) -> float:
    """A finite number; ValueError if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
