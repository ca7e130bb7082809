"""Draws from a posterior: a cloud that is led from the prior to what was measured, in steps that it can follow.

What it is: sequential Monte Carlo with tempering (Del Moral, Doucet and Jasra 2006). The likelihood is let in by
degrees, so that at each degree about half of the draws still count; then draws are picked by their weight and each is
moved by Metropolis steps as wide as the cloud itself. Unlike an optimum with a covariance it needs no derivatives,
which the law's kinks (voltage knee, power limiter) would spoil, and it keeps several explanations alive at once.
What it is not: a model; it knows only a normal prior and a function for the log-likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_KEEP = 0.5  # share of the draws that must still count after letting in more of the likelihood
_MOST_STAGES = 40
_MOVES = 4  # Metropolis sweeps a stage
_WIDTH = 2.38  # best random-walk step in units of the cloud's deviation, over √dimensions (Gelman, Roberts, Gilks 1996)


def posterior(
    log_likelihood: Callable[[Array], Array], mean: Array, spread: Array, *, count: int, seed: int, moves: int = _MOVES
) -> Array:
    """``count`` equally weighted draws (rows) of the unknowns, normal beforehand with `mean` and `spread`.

    `log_likelihood` takes draws as rows and returns one number each. The same arguments give the same draws.
    """
    random = np.random.default_rng(seed)
    unit = random.normal(size=(count, len(mean)))  # in units of the prior: spread 1 around 0

    def told(u: Array) -> Array:
        return np.nan_to_num(log_likelihood(mean + spread * u), nan=-1e300, neginf=-1e300)

    level = told(unit)
    degree = 0.0
    width = _WIDTH / math.sqrt(len(mean))
    for _ in range(_MOST_STAGES):
        step = _step(level, 1.0 - degree)
        degree += step
        picked = _pick(np.exp(step * (level - level.max())), random)
        unit, level = unit[picked], level[picked]
        for _ in range(moves):
            unit, level, taken = _move(told, unit, level, degree, width, random)
            width *= 1.3 if taken > 0.3 else 0.7 if taken < 0.15 else 1.0
        if degree >= 1.0:
            break
    return np.asarray(mean + spread * unit)


def _step(level: Array, most: float) -> float:
    """How much more of the likelihood may be let in: all that is left, or until `_KEEP` of the draws count."""

    def counting(step: float) -> float:
        weight = np.exp(step * (level - level.max()))
        return float(weight.sum() ** 2 / (weight**2).sum() / len(weight))

    if counting(most) >= _KEEP:
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if counting(middle) > _KEEP else (low, middle)
    return max(low, 1e-9 * most)


def _pick(weight: Array, random: np.random.Generator) -> Array:
    """Row numbers, each as often as its weight asks (systematic resampling)."""
    edges = np.cumsum(weight) / weight.sum()
    marks = (np.arange(len(weight)) + random.random()) / len(weight)
    return np.minimum(np.searchsorted(edges, marks), len(weight) - 1)


def _move(
    told: Callable[[Array], Array], unit: Array, level: Array, degree: float, width: float, random: np.random.Generator
) -> tuple[Array, Array, float]:
    """One Metropolis sweep over all draws; how many of the steps were taken, as a share."""
    count, dimensions = unit.shape
    # The cloud's own shape; a little of the prior's keeps it regular when draws are alike after picking.
    shape = np.cov(unit, rowvar=False) + 1e-4 * np.eye(dimensions)
    trial = unit + width * random.normal(size=unit.shape) @ np.linalg.cholesky(shape).T
    trial_level = told(trial)
    prior = 0.5 * ((unit**2).sum(axis=1) - (trial**2).sum(axis=1))
    taken = np.log(random.random(count)) < degree * (trial_level - level) + prior
    unit = np.where(taken[:, None], trial, unit)
    return unit, np.where(taken, trial_level, level), float(taken.mean())
