"""Completion time at equal energy: two policies' sweeps against each other, and many such ratios in a few figures.

A sweep gives each policy some points (realised energy, average completion time). Its *curve* is what it reaches with at
most so much energy: the points that no other of its own beats in both, straight in logarithms between them. Two curves
are compared at energies spread evenly over the range that both cover; the figure is the median of time ÷ our time.
Where the ranges do not meet at all, the one that needs less is taken at its best throughout: it could spend no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from joulewise.core.errors import BadSpec

ENERGIES = 9
"""At how many energies two curves are compared."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One run of a policy: what it drew over the common horizon, and its jobs' average completion time."""

    energy_j: float
    jct_s: float
    knob: str = ""


@dataclass(frozen=True)
class Curve:
    """The best times of a policy by energy: energies rising, times falling."""

    spots: tuple[Spot, ...]

    @classmethod
    def of(cls, spots: Iterable[Spot]) -> Curve:
        """Without those that another beats in energy and time."""
        kept: list[Spot] = []
        for spot in sorted(spots, key=lambda spot: (spot.energy_j, spot.jct_s)):
            if not kept or spot.jct_s < kept[-1].jct_s:
                kept.append(spot)
        if not kept:
            raise BadSpec("a curve needs at least one run")
        return cls(tuple(kept))

    @property
    def least_j(self) -> float:
        """The least energy it was run with."""
        return self.spots[0].energy_j

    @property
    def most_j(self) -> float:
        """Beyond this, more energy bought no shorter time."""
        return self.spots[-1].energy_j

    def jct_s(self, energy_j: float) -> float:
        """The time with at most this energy; with less than ``least_j`` it is infinite."""
        if energy_j < self.least_j:
            return math.inf
        x = [math.log(spot.energy_j) for spot in self.spots]
        y = [math.log(spot.jct_s) for spot in self.spots]
        return math.exp(float(np.interp(math.log(energy_j), x, y)))


def energies_of(a: Curve, b: Curve) -> list[float]:
    """Where two curves are compared."""
    low, high = max(a.least_j, b.least_j), min(a.most_j, b.most_j)
    if high < low:
        high = max(a.most_j, b.most_j)
    # The ends themselves belong to the range: rounding in the middle must not push them out of it.
    return [min(high, max(low, float(e))) for e in np.linspace(low, high, ENERGIES)]


def ratios(other: Curve, ours: Curve) -> list[float]:
    """Their time ÷ ours, at each of the energies; above 1: ours is faster."""
    return [other.jct_s(energy) / ours.jct_s(energy) for energy in energies_of(other, ours)]


def energy_ratio(other: Curve, ours: Curve) -> float:
    """The other way round: their energy ÷ ours at equal time, the median over times that both reach."""
    return ratio(*(Curve.of(Spot(spot.jct_s, spot.energy_j) for spot in curve.spots) for curve in (other, ours)))


def ratio(other: Curve, ours: Curve) -> float:
    """The median of ``ratios``."""
    return median(ratios(other, ours))


def geometric_mean(values: Sequence[float]) -> float:
    """Of ratios."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def interval(
    blocks: Mapping[str, Sequence[float]], *, draws: int = 10_000, level: float = 0.90, seed: int = 0
) -> tuple[float, float]:
    """A bootstrap interval of the geometric mean over whole blocks: what one trace gives at several loads goes
    together, since it is not independent."""
    logs = [np.log(np.array(values, float)) for values in blocks.values()]
    sums, counts = np.array([log.sum() for log in logs]), np.array([len(log) for log in logs])
    drawn = np.random.default_rng(seed).integers(len(logs), size=(draws, len(logs)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return math.exp(float(low)), math.exp(float(high))
