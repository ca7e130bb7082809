"""What it is worth to be able to try again: a choice, time after time, between what is known and what is not.

One run of the unknown tells something of it, with noise; who knows how many times he will choose can work out, from the
last choice backwards, when it pays to go on trying and when to leave it. A rule that counts one run's lesson only gives
up after the first bad luck, for ever; this one comes back as long as luck may have been it (the one-armed bandit;
Bradt, Johnson and Karlin 1956).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from joulewise.model.curves import Array

_SPAN, _POINTS = 6.0, 97
_GRID: Array = np.linspace(-_SPAN, _SPAN, _POINTS)
_NODES: Array = np.linspace(-3.0, 3.0, 13)
_WEIGHTS: Array = np.exp(-0.5 * _NODES**2) / np.sum(np.exp(-0.5 * _NODES**2))
_STEP = 1.15
"""Doubts and horizons that differ by less are worked out once."""


def option(gap: Array, variance: float, noise: float, choices: float) -> Array:
    """What the chance to learn more is worth, beyond choosing what looks better now every time.

    The unknown is believed to cost ``gap`` more than the known, each time, give or take ``variance``; one run of it
    shows it with the variance ``noise``; ``choices`` are still to be made.
    """
    if variance <= 0.0 or choices < 2.0:
        return np.zeros_like(gap)
    doubt, horizon = round(math.log(max(variance / noise, 1e-4), _STEP)), round(math.log(choices, _STEP))
    sd = math.sqrt(variance)
    worth: Array = sd * np.interp(gap / sd, _GRID, _option(doubt, horizon), left=0.0, right=0.0)
    return worth


@cache
def _option(doubt: int, horizon: int) -> Array:
    """In units of the doubt, over gaps in that unit."""
    ratio, left = _STEP**doubt, _STEP**horizon
    stages: list[tuple[float, float, float]] = []
    seen, runs = 0.0, 1.0
    while left - runs > 1.0 and len(stages) < 24:
        # What the gap is believed to be will move by this much, in units of the doubt there was at first.
        moved = math.sqrt(max(1.0 / (1.0 + seen * ratio) - 1.0 / (1.0 + (seen + runs) * ratio), 0.0))
        stages.append((left, runs, moved))
        left, seen = left - runs, seen + runs
        runs = max(1.0, math.floor(seen / 4.0))
    value: Array = left * np.maximum(-_GRID, 0.0)
    for left, runs, moved in reversed(stages):
        after = np.interp(_GRID[:, None] + moved * _NODES[None, :], _GRID, value)
        value = np.maximum(left * np.maximum(-_GRID, 0.0), -runs * _GRID + after @ _WEIGHTS)
    result: Array = value - left * np.maximum(-_GRID, 0.0)
    return np.maximum(result, 0.0)
