"""Seconds, joules and watts as people write them on a command line: ``850ms``, ``1.2MJ``, ``20kW``, a bare number.

Pure. Times of one iteration are short, so there are no hours here.
"""

from __future__ import annotations

import re

from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_KWH, J_PER_WH

_NUMBER = re.compile(r"([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-zA-Z]*)", re.IGNORECASE)
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_ENERGIES = {"": 1.0, **{f"{prefix}J": factor for prefix, factor in _PREFIXES.items()}}
_ENERGIES |= {"Wh": J_PER_WH, "kWh": J_PER_KWH}
_POWERS = {"": 1.0, **{f"{prefix}W": factor for prefix, factor in _PREFIXES.items()}}


def seconds(flag: str, text: str) -> float:
    """``"9.5"``, ``"9.5s"`` or ``"850ms"`` in seconds. BadSpec for anything else, and for 0."""
    return _amount(flag, text, _TIMES, "time; write 9.5s or 850ms")


def joules(flag: str, text: str) -> float:
    """``"1200"``, ``"1.2kJ"`` or ``"0.5kWh"`` in joules. BadSpec for anything else, and for 0."""
    return _amount(flag, text, _ENERGIES, "energy; write 1200, 1.2kJ, 3MJ or 0.5kWh")


def watts(flag: str, text: str) -> float:
    """``"20000"`` or ``"20kW"`` in watts. BadSpec for anything else, and for 0."""
    return _amount(flag, text, _POWERS, "power; write 700 or 20kW")


def _amount(flag: str, text: str, units: dict[str, float], otherwise: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    value = float(found[1]) * units[found[2]] if found and found[2] in units else 0.0
    if not 0 < value < float("inf"):
        raise BadSpec(f"{flag} {text[:40]!r} is no {otherwise}")
    return value
