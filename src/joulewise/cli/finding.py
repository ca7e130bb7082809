"""One thing that ``joulewise doctor`` has found out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works (True), does not (False), or works with a catch (None)."""

    what: str
    ok: bool | None
    says: str
    do: str | None = None
    """The way out of a "no"; None where there is none, or no need."""
