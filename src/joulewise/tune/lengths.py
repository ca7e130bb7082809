"""How long blocks are: long enough to tell something, short enough that a job is not made to wait for it."""

from __future__ import annotations

from dataclasses import dataclass

Length = tuple[float, float]
"""Units of work and seconds, both at least."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long blocks are at least: units of work, and seconds. A switch costs 25 ms and the step it falls in."""

    baseline: Length = (10.0, 3.0)
    probe: Length = (6.0, 2.0)
    pair: Length = (5.0, 1.0)
    hold: Length = (10.0, 10.0)

    def pair_for(self, error: float, wanted: float) -> Length:
        """The length of a pair's blocks, where one of the least length errs by ``error``: long enough that it errs by
        what is ``wanted``, up to four times the least."""
        times = min(4.0, max(1.0, (error / wanted) ** 2))
        return self.pair[0] * times, self.pair[1] * times


LENGTHS = Lengths()


def usual_s(length: Length, unit_s: float) -> float:
    """How long a block of this length takes, where a unit of work takes ``unit_s``."""
    work, least_s = length
    return max(least_s, work * unit_s)
