"""What is to be done later: callbacks on a clock, kept until somebody asks which are due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timers:
    """Callbacks by time. Single-threaded; nothing runs unless ``run`` is called."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do ``act`` once, ``delay_s`` from now. It cannot be taken back: an act looks whether it is still wanted."""
        heapq.heappush(self._heap, (self._now() + delay_s, next(self._order), act))

    def due_in_s(self) -> float | None:
        """How long until the next one; None if there is none."""
        return max(0.0, self._heap[0][0] - self._now()) if self._heap else None

    def run(self) -> None:
        """Do what is due. What that adds waits for the next time."""
        now_s, newest = self._now(), next(self._order)
        while self._heap and self._heap[0][0] <= now_s and self._heap[0][1] < newest:
            heapq.heappop(self._heap)[2]()
