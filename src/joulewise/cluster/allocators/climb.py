"""Giving GPUs away step by step, always where the next step gains most for each GPU: what Optimus and Pollux share.

What it is: the greedy loop. What a step gains, and which steps there are, is the policy's.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from joulewise.cluster.allocators.room import Room
from joulewise.cluster.state import Way

Step = tuple[float, Way]
"""What a step gains for each GPU more, above 0, and the way that it leads to."""
NextStep = Callable[[int, Way | None], Step | None]
"""The best step of a job (by its place) from what it holds, among those that fit; None where there is none."""


def climb(held: list[Way | None], next_step: NextStep, room: Room) -> list[Way | None]:
    """Let jobs climb from what they hold until no step is left. Of equal gains the first job's counts."""
    held = list(held)
    steps: list[tuple[float, int, Way]] = []

    def look(place: int) -> list[tuple[float, int, Way]]:
        step = next_step(place, held[place])
        return [(-step[0], place, step[1])] if step is not None else []

    for place in range(len(held)):
        steps += look(place)
    heapify(steps)
    while steps:
        _, place, way = heappop(steps)
        if room.fits(way, held[place]):
            room.take(way, held[place])
            held[place] = way
        # Else others were quicker; perhaps a smaller step still fits. Room only shrinks, so this ends.
        for step in look(place):
            heappush(steps, step)
    return held
