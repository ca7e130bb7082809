"""Names out of somebody's file, as an error may show them: enough to see what is wrong, however long the file's are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_NAMES: Final = 8
_MOST_CHARACTERS: Final = 60


def short(text: str) -> str:
    """``text``, its first 60 characters if it is longer."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def first_of(names: Iterable[str]) -> str:
    """``"time, power, …"``: the first eight, each cut short, and how many more there are; ``"none"`` for none."""
    found = list(names)
    more = len(found) - _MOST_NAMES
    shown = ", ".join(map(short, found[:_MOST_NAMES])) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
