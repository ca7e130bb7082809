"""How the length of a step wanders: heavy-tailed and autocorrelated, for workloads and for the truth of benches.

What it is: endless series of factors around 1, deterministic by seed. Real step times have rare long steps and
slow drifts; a detector or a guard that is only tried on independent normal noise learns nothing about them.
What it is not: a sensor's noise (see ``device/sensors``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

# No step is more than e^(20·spread) from its usual length: beyond that it is an event, not jitter.
_MOST_DEVIATIONS = 20.0


@dataclass(frozen=True, slots=True)
class Jitter:
    """Noise on the logarithm of a duration: first-order autoregressive with Student-t shocks."""

    spread: float = 0.01  # standard deviation of ln(duration); 0 = none
    correlation: float = 0.0  # between one step and the next, 0 ≤ … < 1
    tail: float = 4.0  # degrees of freedom of the shocks, > 2; infinity = normal

    def factors(self, seed: str) -> Iterator[float]:
        """Factors on successive durations, mean near 1, endless; the same for the same seed."""
        draw = random.Random(f"jitter {seed}")
        fresh = math.sqrt(1.0 - self.correlation**2)
        state = self._shock(draw)
        while True:
            bounded = max(-_MOST_DEVIATIONS, min(_MOST_DEVIATIONS, state))
            yield math.exp(self.spread * bounded - 0.5 * self.spread**2)
            state = self.correlation * state + fresh * self._shock(draw)

    def _shock(self, draw: random.Random) -> float:
        """One draw of variance 1."""
        normal = draw.gauss(0.0, 1.0)
        if math.isinf(self.tail):
            return normal
        # Student's t is a normal over √(χ²/ν); its variance ν/(ν − 2) is divided out.
        return normal * math.sqrt((self.tail - 2.0) / (2.0 * draw.gammavariate(self.tail / 2.0, 1.0)))
