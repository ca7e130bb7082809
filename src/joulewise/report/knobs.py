"""Knobs in a user's words: what ``--set`` says made into a Setting, and what became of a knob made into a line.

Pure. The lines serve the summary of ``run``, and ``restore``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from joulewise.core.errors import BadSpec
from joulewise.core.knob import KNOBS, MEMORY_MHZ, POWER_LIMIT_W, SM_MHZ, Setting
from joulewise.device.lease import Ending, Restored
from joulewise.device.saved import PERSISTENCE

_NAMES = {POWER_LIMIT_W.name: "power limit", SM_MHZ.name: "SM clock", MEMORY_MHZ.name: "memory clock"}
_CLOCKS = frozenset({SM_MHZ.name, MEMORY_MHZ.name})
_UNITS = {POWER_LIMIT_W.name: "W", SM_MHZ.name: "MHz", MEMORY_MHZ.name: "MHz"}
_EXPLAINED = (Ending.RESTORED, Ending.RESET, Ending.BASELINE, Ending.FAILED, Ending.STALE)
TROUBLE = (Ending.FOREIGN, Ending.FAILED)
"""What a reader must not overlook."""
ROUNDING = 0.5
"""Drivers round limits to less than this many watts."""


def setting(words: Sequence[str], *, flag: str = "--set") -> Setting:
    """``["power_limit_w=300", "sm_mhz=1200,memory_mhz=2619"]`` as a Setting. BadSpec with the way out."""
    values: dict[str, float] = {}
    names = ", ".join(knob.name for knob in KNOBS)
    for word in (part.strip() for each in words for part in each.split(",")):
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise BadSpec(f"{flag} {word!r} is no KNOB=VALUE; write '{flag} power_limit_w=300'")
        if name not in _NAMES:
            raise BadSpec(f"{flag} {word}: no knob is called {name!r}; knobs are {names}")
        if name in values:
            raise BadSpec(f"{flag} names {name} twice; say it once")
        try:
            value = float(text)
        except ValueError:
            raise BadSpec(f"{flag} {word}: {text!r} is no number; {name} is in {_UNITS[name]}") from None
        if not (math.isfinite(value) and value > 0):
            raise BadSpec(f"{flag} {word}: {name} must be more than 0 {_UNITS[name]}; see 'joulewise doctor'")
        values[name] = value
    return Setting(**values)


def shown(knob: str, value: float | None) -> str:
    """One value of a knob: ``"300 W"``; ``"no lock"`` for a clock without one. Persistence mode is on or off."""
    if knob == PERSISTENCE:
        return "unknown" if value is None else "on" if value else "off"
    if value is None:
        return "no lock" if knob in _CLOCKS else "unknown"
    return f"{value:g} {_UNITS.get(knob, '')}".rstrip()


def name(knob: str) -> str:
    """What people call it."""
    return {PERSISTENCE: "persistence mode", "*": "every knob"}.get(knob) or _NAMES.get(knob, knob)


def chosen(values: Setting) -> str:
    """A whole setting: ``"power limit 300 W, SM clock at most 1200 MHz"``."""
    return ", ".join(ceiling(knob, value) for knob, value in values.items())


def brief(values: Setting) -> str:
    """A whole setting where there is little room: ``"300 W, 1200 MHz"``; of the clocks, the memory's says so."""
    return ", ".join(
        shown(knob, value) + (" memory" if knob == MEMORY_MHZ.name else "") for knob, value in values.items()
    )


def ceiling(knob: str, value: float) -> str:
    """One knob as it is set: ``"SM clock at most 1200 MHz"``."""
    return f"{name(knob)} {'at most ' if knob in _CLOCKS else ''}{shown(knob, value)}"


def came_back(each: Restored) -> str:
    """How one knob came back, after a comma: ``"restored to 700 W"``."""
    after = shown(each.knob, each.after)
    said = {
        Ending.RESTORED: f"restored to {after}",
        Ending.UNCHANGED: f"unchanged at {after}" if each.after is not None else "unchanged",
        Ending.FOREIGN: _left(each, after),
        Ending.STANDING: f"back to the standing lock of {after}",
        Ending.BASELINE: f"back to the site's baseline of {after}",
        Ending.RESET: "unlocked again",
        Ending.STALE: "undone by a new start of the driver or the machine",
        Ending.FAILED: "NOT restored yet",
    }[each.ending]
    return f"{said}: {each.why}" if each.why and each.ending in _EXPLAINED else said


def _left(each: Restored, after: str) -> str:
    """A value that is not ours; where it cannot be read any more, why it was left."""
    if each.before is None or each.after is None:
        return f"left at {after}: {each.why}"
    return f"left at {after}, which someone else had set meanwhile"


def restored_lines(
    restored: Iterable[Restored], *, gpus: int, effective: Mapping[str, Setting] | None = None
) -> list[tuple[str, bool]]:
    """A line for each knob, alike GPUs in one, and whether it is trouble. ``gpus``: how many the lines are about.

    ``effective`` is what was in force on each GPU, where that is known: less than we wrote, if a BMC held it lower.
    """
    alike: dict[tuple[str, bool], list[str]] = {}
    for each in restored:
        wrote = "" if each.wrote is None else " " + ceiling(each.knob, each.wrote).removeprefix(name(each.knob)).strip()
        there = (effective or {}).get(each.gpu, Setting()).get(each.knob)
        if each.wrote is not None and there is not None and there < each.wrote - ROUNDING:
            wrote += f" ({shown(each.knob, there)} in force)"
        line = f"{name(each.knob)}{wrote}, {came_back(each)}"
        alike.setdefault((line, each.ending in TROUBLE), []).append(each.gpu)
    lines = []
    for (line, trouble), uuids in alike.items():
        which = "" if len(uuids) == gpus == 1 else f"{len(uuids)} GPUs: " if len(uuids) > 1 else f"{uuids[0][:12]}: "
        lines.append((which + line, trouble))
    return lines
