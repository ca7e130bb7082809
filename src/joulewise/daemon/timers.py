"""What is to be done later: callbacks on a clock, kept until somebody asks which are due."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

_FEW: Final = 64
"""Cancelled ones that may lie in the heap before it is worth clearing."""


class Timer:
    """One callback to come. Ordered by its time, then by when it was asked for."""

    __slots__ = ("act", "at_s", "order")

    def __init__(self, at_s: float, order: int, act: Callable[[], None]) -> None:
        self.at_s = at_s
        self.order = order
        self.act: Callable[[], None] | None = act
        """None once it is done or cancelled, so that nothing it needed is kept."""

    def __lt__(self, other: Timer) -> bool:
        return (self.at_s, self.order) < (other.at_s, other.order)


class Timers:
    """Callbacks by time. Single-threaded; nothing runs unless ``run`` is called."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._order = itertools.count()
        self._heap: list[Timer] = []
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, delay_s: float, act: Callable[[], None]) -> Timer:
        """Do ``act`` once, ``delay_s`` from now, unless it is cancelled before."""
        timer = Timer(self._now() + delay_s, next(self._order), act)
        heapq.heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Do not do it, and keep nothing of it. Nothing happens if it has been done."""
        if timer.act is None:
            return
        timer.act = None
        self._cancelled += 1
        if self._cancelled > max(_FEW, len(self._heap) // 2):
            self._heap = [each for each in self._heap if each.act is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def due_in_s(self) -> float | None:
        """How long until the next one; None if there is none."""
        return max(0.0, self._heap[0].at_s - self._now()) if self._heap else None

    def run(self) -> None:
        """Do what is due. What that adds waits for the next time, and so does the rest where one raises."""
        now_s, newest = self._now(), next(self._order)
        while self._heap and self._heap[0].at_s <= now_s and self._heap[0].order < newest:
            timer = heapq.heappop(self._heap)
            act, timer.act = timer.act, None
            if act is None:
                self._cancelled -= 1
            else:
                act()
