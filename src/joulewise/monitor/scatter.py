"""How far the mean of some steps is from what a setting really does: the scatter of unit times, learnt as they come.

A fold of stretches of steps. It claims an error for the mean of a stretch that holds for jobs whose steps hang
together and for jobs whose steps change their own length; what it is not: a test of anything.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

_NEAR = 3.0  # lengths of a stretch within which another one is its neighbour


class Scatter:
    """How unit times scatter around their mean, learnt from one stretch after another of the same phase.

    Neighbours hang together: the scatter that they share averages out slower, by (1 + ρ)/(1 − ρ) for a first-order
    process. A few steps cannot tell ρ, so stretches are pooled, the older ones fading.
    """

    # What stands in until there is something to go by: one stretch of ten steps that scatter by 3 % and hang
    # together a little. Recorded H200 programs: 0.1–10 %, ρ 0–0.8.
    _PRIOR_STEPS, _PRIOR, _PRIOR_LIKENESS = 10.0, 0.03, 0.3
    _FADE = 0.98  # a stretch; fifty of them are remembered

    def __init__(self) -> None:
        self._weight = self._PRIOR_STEPS
        self._squares = self._PRIOR_STEPS * self._PRIOR**2
        self._likeness = self._PRIOR_STEPS * self._PRIOR_LIKENESS
        self._likeness_weight = self._PRIOR_STEPS
        self._unrest = 1.0
        self._before: dict[Hashable, tuple[float, float, float]] = {}

    def add(self, values: Sequence[float]) -> None:
        """Learn from a stretch of unit times, in order."""
        count = len(values)
        if count < 3:
            return
        array = np.asarray(values, dtype=np.float64)
        deviations = array / float(array.mean()) - 1.0
        squares = float(deviations @ deviations)
        self._weight = self._FADE * self._weight + count - 1
        self._squares = self._FADE * self._squares + squares
        if count >= 6 and squares > 0:
            found = float(deviations[1:] @ deviations[:-1]) / squares
            # A stretch's own mean hides part of what neighbours share: E[ρ̂] ≈ ρ − (1 + 3ρ)/n (Kendall).
            likeness = min(0.95, max(-0.2, (count * found + 1.0) / (count - 3.0)))
            self._likeness = self._FADE * self._likeness + count * likeness
            self._likeness_weight = self._FADE * self._likeness_weight + count

    def beside(self, setting: Hashable, from_s: float, to_s: float, unit_s: float, error: float) -> float:
        """The error of a stretch's mean, widened by how far neighbours of the same setting disagree beyond theirs.

        A job whose steps change their own length (iterations that shrink, sequences sorted by length) is even within a
        stretch and not between two of them; only those that lie close to each other tell it from slow drift.
        """
        before = self._before.get(setting)
        self._before[setting] = (to_s, unit_s, error)
        if before is not None and from_s - before[0] <= _NEAR * (to_s - from_s):
            expected = error**2 + before[2] ** 2
            apart = math.log(unit_s / before[1]) ** 2 / max(expected, 1e-12)
            # One pair may disagree by nine times the expected square by chance; a job that shrinks does so every time.
            self._unrest = 0.9 * self._unrest + 0.1 * min(apart, 400.0)
        return error * math.sqrt(max(1.0, self._unrest))

    def error(self, count: float) -> float:
        """One relative standard error of the mean of ``count`` unit times."""
        likeness = min(0.9, max(0.0, self._likeness / self._likeness_weight))
        return math.sqrt(self._squares / self._weight / count * (1.0 + likeness) / (1.0 - likeness))
