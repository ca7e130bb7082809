"""Phases that nobody marked, recognised by how the GPU looks: generation and training, evaluation and steps.

Phases are told by ``joulewise.phase("rollout")`` where a job says so. Where it does not, a job that goes back and forth
between two clearly different kinds of work shows it in utilisation and in the share of memory traffic, which, unlike
power, hardly depend on the setting in force. A fold of readings: a second of them makes a signature; signatures that
come back make a phase. Work that never comes back is a shift (``tune/change``), not a phase.

Each phase has its own tuner, so recognising one too many is dear (two tuners learn less than one) and one too few is
cheap (one setting serves both): when in doubt there is one phase.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from joulewise.core.measurement import Reading

SIGNATURE_S = 1.0
"""Readings are averaged over this, or four steps if that is longer; utilisation itself moves every 0.2–1 s."""
APART = 0.18
"""Distance of two signatures, in shares of 0 to 1, that tells kinds of work apart."""
RETURNS = 2
"""How often both kinds must have come back before they are phases."""
MOST = 4
"""Kinds of work at most; more are noise."""
_LASTS = 4.0  # signatures that a visit must last to be one: what flickers within a step is no phase
_FOLLOW = 0.1  # how fast a kind's mean follows what it is shown


@dataclass(slots=True)
class _Kind:
    name: str
    place: tuple[float, ...]
    visits: int = 0


class PhaseFinder:
    """Names the phase that readings show; "" until there are two kinds of work that keep coming back."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, tuple[float, ...]]] = deque()
        self._kinds: list[_Kind] = []
        self._now: _Kind | None = None
        self._candidate: tuple[_Kind, float] | None = None
        self._since_s = -math.inf
        self._counted = False
        self._due_s = -math.inf

    @property
    def phase(self) -> str:
        """The present phase; empty while the job has only one."""
        known = [kind for kind in self._kinds if kind.visits > RETURNS]
        return self._now.name if self._now is not None and len(known) > 1 and self._now in known else ""

    def tell(self, reading: Reading, unit_s: float | None = None) -> str:
        """Take in a reading; the present phase. ``unit_s`` is how long a step of the job takes, where that is known."""
        if reading.utilization is None:
            return self.phase
        busy = reading.utilization
        memory = (reading.memory_utilization or 0.0) / busy if busy > 0 else 0.0
        now_s, length_s = reading.time_s, max(SIGNATURE_S, 4.0 * (unit_s or 0.0))
        if self._recent and now_s <= self._recent[-1][0]:
            return self.phase
        self._recent.append((now_s, (busy, memory)))
        while self._recent[0][0] < now_s - length_s:
            self._recent.popleft()
        if now_s < self._due_s or now_s - self._recent[0][0] < 0.6 * length_s:
            return self.phase
        self._due_s = now_s + 0.25 * length_s
        # Two halves that differ are a boundary, which belongs to no kind.
        values = [each[1] for each in self._recent]
        half = len(values) // 2
        if half >= 2 and _apart(_mean(values[:half]), _mean(values[half:])) <= 0.5 * APART:
            self._place(_mean(values), now_s, length_s)
        return self.phase

    def _place(self, shown: tuple[float, ...], now_s: float, length_s: float) -> None:
        nearest = min(self._kinds, key=lambda kind: _apart(kind.place, shown), default=None)
        if nearest is None or (_apart(nearest.place, shown) > APART and len(self._kinds) < MOST):
            nearest = _Kind("abcd"[len(self._kinds)], shown)
            self._kinds.append(nearest)
        nearest.place = tuple(mean + _FOLLOW * (new - mean) for mean, new in zip(nearest.place, shown, strict=True))
        if nearest is self._now:
            self._candidate = None
            if not self._counted and now_s - self._since_s >= _LASTS * length_s:
                nearest.visits, self._counted = nearest.visits + 1, True
            return
        if self._candidate is None or self._candidate[0] is not nearest:
            self._candidate = (nearest, now_s)
        if now_s - self._candidate[1] >= 0.5 * length_s or self._now is None:
            self._now, self._since_s, self._counted, self._candidate = nearest, now_s, False, None


def _mean(values: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(each[axis] for each in values) / len(values) for axis in range(len(values[0])))


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
