"""Time as a dependency: the wall's, the wall's times k, or virtual.

Everything that waits or stamps takes a TimeSource, so that a test or a simulation runs hours in
milliseconds with the code that runs in life. A *loop* is a generator that yields how many seconds it wants
to wait; several loops share one time by being run together.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Loop = Generator[float, None, T]
"""A generator that yields waits in seconds and returns its result."""


class TimeSource(Protocol):
    """Where ``now`` comes from and how waiting is done. Seconds, monotonic, origin arbitrary."""

    def now_s(self) -> float:
        """The present time in seconds; never goes back."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Return when ``duration_s`` seconds of this time have passed; at once if it is not positive."""
        ...

    def run(self, loop: Loop[T]) -> T:
        """Drive a loop to its end, doing its waits, and return its result."""
        ...


class WallTime:
    """The machine's monotonic clock, the one that NVML clients and recordings share (CLOCK_MONOTONIC)."""

    def now_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Sleep in this thread."""
        if duration_s > 0:
            time.sleep(duration_s)

    def run(self, loop: Loop[T]) -> T:
        """Drive a loop in this thread."""
        return drive(self, loop)


class ScaledTime:
    """Wall time that runs ``speed`` times faster, starting at ``origin_s`` when the wall says ``wall_origin_s``."""

    def __init__(self, speed: float, *, origin_s: float = 0.0, wall_origin_s: float | None = None) -> None:
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self.speed = speed
        self._origin_s = origin_s
        self._wall_origin_s = time.monotonic() if wall_origin_s is None else wall_origin_s

    def now_s(self) -> float:
        """The scaled time in seconds."""
        return self.at_wall_s(time.monotonic())

    def at_wall_s(self, wall_s: float) -> float:
        """The scaled time at a moment of the wall's monotonic clock."""
        return self._origin_s + self.speed * (wall_s - self._wall_origin_s)

    def wall_at_s(self, scaled_s: float) -> float:
        """The moment of the wall's monotonic clock at which this clock shows ``scaled_s``."""
        return self._wall_origin_s + (scaled_s - self._origin_s) / self.speed

    def sleep(self, duration_s: float) -> None:
        """Sleep for ``duration_s`` scaled seconds in this thread."""
        if duration_s > 0:
            time.sleep(duration_s / self.speed)

    def run(self, loop: Loop[T]) -> T:
        """Drive a loop in this thread."""
        return drive(self, loop)


class VirtualTime:
    """Time that moves only when somebody waits: an event heap in one process, no threads.

    ``spawn`` adds a loop that runs whenever time passes it by; ``sleep``, ``run`` and ``run_until`` let time
    pass. Loops due at the same moment run in the order in which they asked.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._order = itertools.count()
        self._due: list[tuple[float, int, Loop[Any]]] = []
        self._running = False

    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self._now_s

    def spawn(self, loop: Loop[Any], *, after_s: float = 0.0) -> None:
        """Let ``loop`` take part from ``after_s`` seconds on."""
        heapq.heappush(self._due, (self._now_s + after_s, next(self._order), loop))

    def run_until(self, time_s: float) -> None:
        """Let time pass up to ``time_s``, running every loop that falls due on the way."""
        self._advance(lambda: not self._due or self._due[0][0] > time_s)
        self._now_s = max(self._now_s, time_s)

    def sleep(self, duration_s: float) -> None:
        """Let ``duration_s`` seconds pass. From inside a loop, yield the wait instead."""
        if duration_s > 0:
            self.run_until(self._now_s + duration_s)

    def run(self, loop: Loop[T]) -> T:
        """Run ``loop`` (and all that was spawned) until it ends; return its result."""
        result: list[T] = []

        def main() -> Loop[None]:
            result.append((yield from loop))

        self.spawn(main())
        self._advance(lambda: bool(result) or not self._due)
        return result[0]

    def _advance(self, done: Any) -> None:
        if self._running:
            raise RuntimeError("VirtualTime cannot pass inside one of its own loops: yield the wait instead")
        self._running = True
        try:
            while not done():
                time_s, _, loop = heapq.heappop(self._due)
                self._now_s = max(self._now_s, time_s)
                try:
                    wait_s = next(loop)
                except StopIteration:
                    continue
                heapq.heappush(self._due, (self._now_s + max(0.0, wait_s), next(self._order), loop))
        finally:
            self._running = False


def drive(time_source: TimeSource, loop: Loop[T]) -> T:
    """Do a loop's waits one after another on ``time_source``; return its result."""
    while True:
        try:
            wait_s = next(loop)
        except StopIteration as end:
            value: T = end.value
            return value
        time_source.sleep(wait_s)
