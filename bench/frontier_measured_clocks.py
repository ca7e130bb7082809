"""Which clocks the operations of a plan had, as far as the mean clock of each rank tells.

Measured plans come with one number a rank: the mean of the clocks asked for. Plans of this kind have a pattern, though.
A rank that fits into the cycle of the slowest one even at its thriftiest clock stays there, except for a few operations
while the pipeline fills and drains, which run at full clock. A rank that does not fit has all its operations sped up,
those of the kind that draws less power first, because a second saved costs less there. How far that kind is ahead of
the other is not known: all leads from none to the largest possible count alike. A kind may be asked for more than the
power limit gives it, in which case the time no longer tells its clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.frontier_measured_law import StageLaw

Array = NDArray[Any]

LEADS = 9
"""Possible leads of one kind over the other that are looked at, evenly spread."""
_SAME = 5e-4  # of the cycle: a rank that is this much too slow still fits


@dataclass(frozen=True)
class Ends:
    """The clocks of the slowest and of the fastest plan, one a rank, and the rank that holds the fastest plan up."""

    slow_mhz: Array
    fast_mhz: Array
    slowest_rank: int

    def progress(self, mean_mhz: Array) -> float:
        """From 0 for the slowest plan to 1 for the fastest, by the clocks of all ranks."""
        span = np.maximum(self.fast_mhz - self.slow_mhz, 1.0)
        return float(np.clip(np.mean((mean_mhz - self.slow_mhz) / span), 0.0, 1.0))


@dataclass(frozen=True)
class Clocks:
    """Clocks (leads + 1, ranks, kinds) and their weights (leads + 1, ranks); the last of both is of full clock."""

    mhz: Array
    weight: Array

    def mean(self, values: Array) -> Array:
        """Of values at ``mhz``: the mean over all operations of a rank and kind."""
        return np.asarray((self.weight[:, :, None] * values).sum(axis=0))

    def usual(self, values: Array) -> Array:
        """The same without the operations that fill and drain the pipeline."""
        return np.asarray(values[:-1].mean(axis=0))


def fitting(law: StageLaw, ends: Ends, mean_mhz: Array) -> Array:
    """Which ranks fit into the cycle at their thriftiest clock."""
    cycle_s = law.time_s(mean_mhz[:, None]).sum(axis=1).max()
    return np.asarray(law.time_s(np.minimum(ends.slow_mhz, mean_mhz)[:, None]).sum(axis=1) <= cycle_s * (1.0 + _SAME))


def clocks(law: StageLaw, ends: Ends, mean_mhz: Array, fits: Array, lead: Array | None = None) -> Clocks:
    """The clocks behind the mean clock of each rank; ``lead``: where it is known, against the largest, one a rank."""
    top_mhz = law.chip.sm_max_mhz
    slow_mhz = np.minimum(ends.slow_mhz, mean_mhz)
    first = int(np.argmin(np.asarray(law.load.dynamic_w)))
    # The fastest plan did not slow the slowest rank down: the kind that comes second had all that the limit gives.
    most_mhz = np.full_like(mean_mhz, top_mhz)
    at = ends.slowest_rank
    most_mhz[at] = min(top_mhz, 2.0 * ends.fast_mhz[at] - law.full_x[at, 1 - first] * top_mhz)
    room_mhz = np.clip(np.minimum(mean_mhz - slow_mhz, most_mhz - mean_mhz), 0.0, None)
    shares = (np.arange(LEADS)[:, None] + 0.5) / LEADS if lead is None else np.tile(lead, (LEADS, 1))
    away_mhz = np.where(fits, 0.0, room_mhz * shares)
    middle_mhz = np.where(fits, slow_mhz, mean_mhz)
    mhz = np.full((LEADS + 1, len(mean_mhz), 2), top_mhz)
    mhz[:-1, :, first], mhz[:-1, :, 1 - first] = middle_mhz + away_mhz, middle_mhz - away_mhz
    at_full = np.where(fits, (mean_mhz - slow_mhz) / np.maximum(top_mhz - slow_mhz, 1.0), 0.0)
    weight = np.concatenate([np.tile((1.0 - at_full) / LEADS, (LEADS, 1)), at_full[None, :]])
    return Clocks(mhz, weight)
