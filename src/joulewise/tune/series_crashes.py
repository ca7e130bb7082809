"""What crashes say of a recurring job's batch sizes: often nothing.

A command that is mistyped, or a script with a bug, crashes at every size. So a crash counts against its size only as
long as no other size has crashed since a run last ended otherwise. One after an epoch or more then counts at once; one
before its first epoch, which says more of the command than of the size, only when a run of another size ends otherwise.
After two a size is not offered again; but the default always is, since the user chose it and there must be an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_MOST = 2
"""Crashes of one size: the first may have been somebody else's fault."""


class Crashes:
    """Of one job; sizes by their places."""

    def __init__(self, default: int) -> None:
        self._default = default
        self._counts: Counter[int] = Counter()
        self._at_once: Counter[int] = Counter()
        """Before the first epoch; both of these since a run last ended otherwise."""
        self._later: Counter[int] = Counter()

    @property
    def barred(self) -> dict[int, int]:
        """The sizes that are not to be offered, and how often each has crashed."""
        counts = self._counts + self._later if len(self.suspect) == 1 else self._counts
        return {place: count for place, count in counts.items() if count >= _MOST and place != self._default}

    @property
    def suspect(self) -> set[int]:
        """Sizes that crashed, while no run has ended otherwise: better left alone before it is known whose fault it
        was."""
        return {*self._at_once, *self._later}

    def crashed(self, place: int, epochs: int) -> None:
        """A run of this size crashed after so many epochs."""
        (self._later if epochs else self._at_once)[place] += 1

    def ran(self, place: int) -> None:
        """A run of this size came through its first epoch and ended otherwise: the job itself works."""
        if len(self.suspect) == 1:
            self._counts += self._later
            if place not in self._at_once:
                self._counts += self._at_once
        self._at_once.clear()
        self._later.clear()

    def to_json(self) -> dict[str, Any]:
        """In plain values."""
        kept = {"counts": self._counts, "at_once": self._at_once, "later": self._later}
        return {name: sorted(counts.items()) for name, counts in kept.items()}

    def load(self, kept: Mapping[str, Any]) -> None:
        """What ``to_json`` gave, of the same job."""
        self._counts, self._at_once, self._later = (
            Counter({int(place): int(count) for place, count in kept[name]}) for name in ("counts", "at_once", "later")
        )
