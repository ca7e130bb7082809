"""What happens in which iteration: a list of stretches, the same on all ranks, so that nobody has to ask.

A stretch is some iterations at one setting, or with the plan. The first iteration of a stretch holds the change and is
left out of what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.knob import DEFAULT, Setting

LEAST_S = 2.0
"""Of GPU time in a stretch that is measured: twenty updates of a power sensor, and of a counter."""
FEWEST = 2
"""Iterations of a stretch: one to change in, one to be whole."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations ``first`` to ``last``, at one setting (None: as the plan says)."""

    first: int
    last: int
    setting: Setting | None

    @property
    def planned(self) -> bool:
        """Whether the plan is played."""
        return self.setting is None


def enough(iteration_s: float, *, least_s: float = LEAST_S, fewest: int = FEWEST) -> int:
    """Iterations of a stretch such that, the first left out, there is something to measure."""
    return max(fewest, 1 + math.ceil(least_s / max(iteration_s, 1e-3)))


def in_turn(start: int, count: int, settings: Sequence[Setting | None]) -> list[Stretch]:
    """Stretches of ``count`` iterations, one after another from ``start`` on, and one iteration more in the last."""
    found = [Stretch(start + at * count, start + (at + 1) * count - 1, each) for at, each in enumerate(settings)]
    last = found[-1]
    return [*found[:-1], Stretch(last.first, last.last + 1, last.setting)]


def at(stretches: Sequence[Stretch], iteration: int) -> Stretch:
    """The stretch of an iteration; before and after all of them, nothing is set."""
    for stretch in stretches:
        if stretch.first <= iteration <= stretch.last:
            return stretch
    return Stretch(iteration, iteration, DEFAULT)
