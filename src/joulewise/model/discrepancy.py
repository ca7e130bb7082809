"""How far, and how smoothly, real work departs from the law: a Gaussian process that is zero at the default.

What it is: covariances between settings of what the law cannot say (mixtures of kernels, a bent voltage curve, the
limiter's habits), for logarithms of time and power relative to the default. Settings near each other depart alike, so
one measured setting corrects its neighbours; settings near the default cannot depart far. What it is not: measurement
noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Departure:
    """Size (in logarithms, of a far setting) and the scales over which the departure changes."""

    size: float
    clock_scale: float = 0.3  # of ln(SM clock)
    memory_scale: float = 0.4  # of ln(memory clock)
    limit_scale: float = 0.3  # of ln(clock asked for / clock that the power limit leaves)

    def covariance(self, a: Array, b: Array) -> Array:
        """Between settings with features `a` and `b` (rows; columns: ln clock, ln memory clock, ln of what the limit
        takes, each relative to the default, which is the origin)."""
        scale = np.array([self.clock_scale, self.memory_scale, self.limit_scale])
        a, b = a / scale, b / scale

        def alike(one: Array, other: Array) -> Array:
            # Matérn 3/2: smooth once, so that near the default it falls with the distance, and yet what lies between
            # two measured settings stays open.
            apart = math.sqrt(3.0) * np.sqrt(((one[:, None, :] - other[None, :, :]) ** 2).sum(axis=-1))
            return np.asarray((1.0 + apart) * np.exp(-apart))

        origin = np.zeros((1, a.shape[1]))
        # cov(d(a) − d(0), d(b) − d(0)) of a stationary process d; far from 0 its variance is size².
        return np.asarray(0.5 * self.size**2 * (alike(a, b) - alike(a, origin) - alike(origin, b) + 1.0))
