"""An endless workload as a list that can be read again from a few moments ago.

A board plays phases one by one; when it takes its last moments back (``device/news``) it must get the same phases
again, although their source is an iterator that gives each one once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from joulewise.model.physics import Load


class Phase(Protocol):
    """One piece of a workload."""

    @property
    def load(self) -> Load:
        """What there is to do."""
        ...

    @property
    def ends_step(self) -> bool:
        """Whether a training step is complete with it."""
        ...


class Playlist:
    """Phases of ``source`` by number, from 0; remembered until ``forget_before`` says otherwise."""

    def __init__(self, source: Iterable[Phase], pid: int) -> None:
        self.pid = pid
        self._source = iter(source)
        self._first = 0
        self._phases: list[Phase] = []

    def get(self, number: int) -> Phase | None:
        """Phase ``number``, or None if the source has ended before it."""
        while number - self._first >= len(self._phases):
            phase = next(self._source, None)
            if phase is None:
                return None
            self._phases.append(phase)
        return self._phases[number - self._first]

    def forget_before(self, number: int) -> None:
        """Phases before ``number`` will not be asked for again."""
        drop = min(max(0, number - self._first), len(self._phases))
        del self._phases[:drop]
        self._first += drop
