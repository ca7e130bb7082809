"""What is believed of a positive quantity at each batch size: epochs to a target, or the cost of an epoch.

The logarithm of the quantity is a Gaussian over the sizes, around shapes that theory knows and with room for what it
does not: a slope of either sign, and bumps that neighbours share. Epochs follow the critical-batch-size law
``1 + b / b_crit`` (McCandlish et al., arXiv 1812.06162) where it holds, and do not below the knee; an epoch costs a
fixed part per step and a part per sample, ``1 + b_half / b``. Which ``b_crit`` and ``b_half`` nobody knows, so shapes
are mixed over a wide grid of them and weighed by what was seen. Nothing is believed to be monotone.

A run that was stopped says only that it would have needed more (``above``): a factor of the likelihood that expectation
propagation turns into a Gaussian one, never "it cost what was spent". It is pure arithmetic on a handful of sizes: no
draws, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LEVEL_SD = 2.0
"""Of the logarithm of the quantity at large: a factor of seven either way, so that the first value seen decides."""
_GRID = 21
_SWEEPS = 3
"""Of expectation propagation; the few factors there are have settled by then."""
_LEAST_SITE = 1e-3
"""A factor that made a belief wider would be no Gaussian: it keeps its mean, and this little weight."""


@dataclass(frozen=True, slots=True)
class Belief:
    """A Gaussian of logarithms, one entry a size."""

    mean: Array
    cov: Array

    def sd(self, place: int) -> float:
        """One standard deviation at a size."""
        return math.sqrt(max(float(self.cov[place, place]), 0.0))

    def wider(self, cov: Array) -> Belief:
        """The same, with doubt added."""
        return Belief(self.mean, self.cov + cov)

    def seen(self, place: int, variance: float) -> Belief:
        """As it will be once a value with this error has been seen at ``place``, if that is as expected."""
        column = self.cov[:, place]
        return Belief(self.mean, self.cov - np.outer(column, column) / (self.cov[place, place] + variance))


@dataclass(frozen=True, slots=True)
class Family:
    """Shapes that the logarithm may have over the sizes, one a row, and how far it may be from them."""

    shapes: Array
    doubt: Array

    def given(self, places: Sequence[int], values: Sequence[float], variances: Sequence[float]) -> Belief:
        """The belief after values (logarithms) were seen at some sizes, each with a variance."""
        doubt, shapes = self.doubt, self.shapes
        if not places:
            mean = shapes.mean(axis=0)
            off = shapes - mean
            return Belief(mean, doubt + off.T @ off / len(shapes))
        at = list(places)
        size = doubt.shape[0]
        within = doubt[np.ix_(at, at)] + np.diag(np.asarray(variances, dtype=float))
        left = np.asarray(values, dtype=float)[None, :] - shapes[:, at]
        solved = np.linalg.solve(within, np.concatenate([doubt[at, :], left.T], axis=1))
        gain, explained = solved[:, :size].T, solved[:, size:]
        # The shapes' doubts are alike, so their likelihoods differ by what they leave unexplained alone.
        unlikely = 0.5 * np.sum(left.T * explained, axis=0)
        weights = np.exp(unlikely.min() - unlikely)
        weights /= weights.sum()
        means = shapes + (doubt[:, at] @ explained).T
        mean = weights @ means
        off = means - mean
        return Belief(mean, doubt - gain @ doubt[at, :] + (off * weights[:, None]).T @ off)


@dataclass(frozen=True, slots=True)
class Stop:
    """``count`` runs at ``place`` had not arrived when ``log_bound`` was passed.

    ``lost`` is how likely a run there never arrives at all, whatever the curve says: then a stop teaches nothing.
    """

    place: int
    log_bound: float
    lost: float = 0.0
    count: int = 1


def above(belief: Belief, stops: Sequence[Stop], noise: Array) -> Belief:
    """The belief after some runs were stopped; ``noise`` is the variance of one run around its size's value."""
    mean, cov = belief.mean.copy(), belief.cov.copy()
    sites = [(0.0, 0.0)] * len(stops)
    for _ in range(_SWEEPS if stops else 0):
        for number, stop in enumerate(stops):
            shift, weight = sites[number]
            variance, place = float(cov[stop.place, stop.place]), stop.place
            cavity = 1.0 / variance - weight
            if cavity <= 1e-9:
                continue
            rest_mean, rest_var = (float(mean[place]) / variance - shift) / cavity, 1.0 / cavity
            new_mean, new_var = _tilted(rest_mean, rest_var, stop, float(noise[stop.place]))
            new_weight = max(1.0 / new_var - cavity, _LEAST_SITE * cavity)
            new_shift = new_mean * (cavity + new_weight) - rest_mean * cavity
            sites[number] = (new_shift * stop.count, new_weight * stop.count)
            more, push = sites[number][1] - weight, sites[number][0] - shift
            scale = 1.0 + more * variance
            if scale <= 1e-9:
                continue
            column = cov[:, place].copy()
            mean += column * (push - more * float(mean[place])) / scale
            cov -= np.outer(column, column) * (more / scale)
    return Belief(mean, cov)


def _tilted(mean: float, variance: float, stop: Stop, noise: float) -> tuple[float, float]:
    """Mean and variance of a Gaussian weighed by the probability of the stop."""
    spread = math.sqrt(variance + noise)
    z = (mean - stop.log_bound) / spread
    beyond = 0.5 * math.erfc(-z / math.sqrt(2.0))
    ratio = -z if z < -6.0 else math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / beyond  # of density and tail
    moved = mean + variance * ratio / spread
    narrowed = variance - variance**2 * ratio * (z + ratio) / spread**2
    arrives = (1.0 - stop.lost) * beyond / max(stop.lost + (1.0 - stop.lost) * beyond, 1e-300)
    new_mean = arrives * moved + (1.0 - arrives) * mean
    new_var = arrives * (narrowed + moved**2) + (1.0 - arrives) * (variance + mean**2) - new_mean**2
    return new_mean, max(new_var, 1e-6)


def octaves(sizes: Sequence[int], origin: int) -> Array:
    """Where sizes lie, in doublings from ``origin``."""
    return np.log2(np.asarray(sizes, dtype=float) / origin)


def doubt(x: Array, *, level_sd: float, slope_sd: float, bump_sd: float, reach: float) -> Array:
    """How far a curve may be from a shape: in level, by a slope per octave, and in bumps that ``reach`` so far."""
    apart = math.sqrt(3.0) * np.abs(x[:, None] - x[None, :]) / reach
    bumps: Array = (1.0 + apart) * np.exp(-apart)
    return level_sd**2 + slope_sd**2 * np.outer(x, x) + bump_sd**2 * bumps


def epochs_family(x: Array, typical: float, *, slope_sd: float, bump_sd: float, reach: float) -> Family:
    """Of epochs to a target: ``1 + b / b_crit`` with the critical size anywhere from far below to far above."""
    ratios = np.geomspace(0.02, 20.0, _GRID)[:, None]
    shapes = np.log1p(ratios * 2.0 ** x[None, :]) - np.log1p(ratios) + math.log(typical)
    return Family(shapes, doubt(x, level_sd=_LEVEL_SD, slope_sd=slope_sd, bump_sd=bump_sd, reach=reach))


def cost_family(x: Array, *, bump_sd: float, reach: float) -> Family:
    """Of the cost of an epoch: ``1 + b_half / b``, from all work to nearly all overhead."""
    ratios = np.geomspace(0.003, 50.0, _GRID)[:, None]
    shapes = np.log1p(ratios * 2.0 ** -x[None, :]) - np.log1p(ratios)
    return Family(shapes, doubt(x, level_sd=_LEVEL_SD, slope_sd=0.0, bump_sd=bump_sd, reach=reach))


def normal_cdf(z: Array) -> Array:
    """Φ, to 1e-7 (Abramowitz and Stegun 7.1.26); numpy has none."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(z) / math.sqrt(2.0))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    cdf: Array = 0.5 * (1.0 + np.sign(z) * (1.0 - series * np.exp(-0.5 * z * z)))
    return cdf
