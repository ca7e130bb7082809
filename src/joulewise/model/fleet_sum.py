"""Savings of many jobs added up, with an interval that does not take their errors for independent.

What it is: draws of single jobs joined into draws of their sum. What the estimate gets wrong of one job it gets partly
wrong of all (the law, how counters are read), and more so on GPUs of one model (its parameters); a Gaussian copula
with two common parts says how much. Were the errors independent, a thousand jobs would make any total certain.
What it is not: an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ALL, MODEL = 0.15, 0.15
"""Share of the variance of an error that all jobs have in common, and more of it those on one GPU model: what
``bench.estimate`` sees between jobs, rounded up."""
_DRAWS = 2000


def added(jobs: Sequence[Array], models: Sequence[str], *, seed: int = 0) -> Array:
    """Draws of the sum of ``jobs``, each given by draws of equal weight; ``models`` name the GPU model of each."""
    random = np.random.default_rng([seed, 2])
    common = random.normal(size=_DRAWS)
    of_model = {name: random.normal(size=_DRAWS) for name in sorted(set(models))}
    total = np.zeros(_DRAWS)
    for draws, name in zip(jobs, models, strict=True):
        own = random.normal(size=_DRAWS)
        z = math.sqrt(ALL) * common + math.sqrt(MODEL) * of_model[name] + math.sqrt(1.0 - ALL - MODEL) * own
        # The place of each z among the others is the place of a draw among the draws: each draw as often as any other.
        place = np.empty(_DRAWS, dtype=int)
        place[np.argsort(z)] = np.arange(_DRAWS) * len(draws) // _DRAWS
        total += np.sort(draws)[place]
    return total
