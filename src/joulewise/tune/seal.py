"""The seal of a journal: a hash of all that was written, in its last event.

What it is: a way to see that something was changed. What it is not: a secret; whoever changes a journal can seal it
again, and is then left with what the seed draws (tune/verify).
"""

from __future__ import annotations

import hashlib
from typing import Any

from joulewise.core.event import Event, to_json


class Seal:
    """A running hash of a journal: what is taken out of it, put in or changed later no longer fits."""

    def __init__(self) -> None:
        self._events = 0
        self._hash = hashlib.sha256()

    def add(self, event: Event) -> None:
        """One event, in the order of the journal. One that JSON cannot hold is in no journal, and not counted."""
        try:
            line = to_json(event)
        except ValueError:
            return
        self._events += 1
        self._hash.update(line.encode() + b"\n")

    @property
    def facts(self) -> dict[str, Any]:
        """As the journal's last event holds it."""
        return {"events": self._events, "sha256": self._hash.hexdigest()}


def seal_words(seal: object) -> str | None:
    """A seal, ``Seal.facts``, as people note it down; None where there is none."""
    if not isinstance(seal, dict) or not isinstance(seal.get("sha256"), str):
        return None
    return f"sha256:{seal['sha256']} of {seal.get('events')} events"
