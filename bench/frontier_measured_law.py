"""Time and power of a pipeline's operations by the clock asked for, on GPUs that a power limit holds back.

The law of ``joulewise.model.physics`` for forwards and backwards, and one thing besides. At the highest clock these
GPUs run at their power limit, so the clock that is asked for is not the clock that they have. A limiter acts on a mean:
a stage that waits for its slower neighbours may draw more while it works than the slowest stage, which never waits. How
far its waiting counts (``averaging``) depends on how long the limiter looks back, so it is fitted.

Arrays are (…, ranks, kinds), kinds being forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.model import physics
from joulewise.model.physics import Chip, Load

Array = NDArray[Any]

_HALVINGS = 50


@dataclass(frozen=True)
class StageLaw:
    """What the operations of one pipeline take at any clock. ``full_s``: as measured with nothing set."""

    chip: Chip
    load: Load
    """Of one second at the highest clock that is really there; ``sm_share`` and ``dynamic_w`` are one a kind."""
    full_s: Array
    cap_w: float
    """What the limiter holds."""
    averaging: float
    """0: it holds busy power; 1: the mean over busy and waiting."""
    agility: float
    """Work of twice the mean power pulls its clock down to 2^−agility, other work up."""
    wait_w: float
    rest_w: float
    """Of a GPU outside all operations and waits: transfers, the optimiser's step."""

    @cached_property
    def full_x(self) -> Array:
        """Clocks that are really there with nothing set, against the highest."""
        total_s = self.full_s.sum(axis=1, keepdims=True)
        busy = total_s / total_s.max()
        spread_w = (self.cap_w - (1.0 - busy) * self.wait_w) / busy
        allowed_w = self.cap_w + self.averaging * (spread_w - self.cap_w)
        power_w = np.asarray(self.load.dynamic_w)
        leaning = ((self.full_s * power_w).sum() / self.full_s.sum() / power_w) ** self.agility

        def clocks(common: Array) -> Array:
            return np.asarray(np.minimum(1.0, common * leaning))

        low, high = np.full_like(total_s, self.chip.sm_floor), np.full_like(total_s, 1.0 / leaning.min())
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            mean_w = (self.full_s * self._power_w(clocks(middle))).sum(axis=1, keepdims=True) / total_s
            low, high = np.where(mean_w <= allowed_w, middle, low), np.where(mean_w <= allowed_w, high, middle)
        return clocks(low)

    def time_s(self, lock_mhz: Array) -> Array:
        """Of one operation at a clock that is asked for."""
        slower = physics.busy_s(self.chip, self.load, self._x(lock_mhz))
        return np.asarray(self.full_s * slower / physics.busy_s(self.chip, self.load, self.full_x))

    def energy_j(self, lock_mhz: Array) -> Array:
        """Of one operation at a clock that is asked for."""
        return np.asarray(self.time_s(lock_mhz) * self._power_w(self._x(lock_mhz)))

    def _x(self, lock_mhz: Array) -> Array:
        return np.asarray(np.minimum(lock_mhz / self.chip.sm_max_mhz, self.full_x))

    def _power_w(self, x: Array) -> Array:
        return physics.busy_power_w(self.chip, self.load, x)
