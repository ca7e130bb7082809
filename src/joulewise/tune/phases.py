"""Phases that nobody marked, recognised by how the GPU looks: generation and training, evaluation and steps.

Phases are told by ``joulewise.phase("rollout")`` where a job says so. Where it does not, a job that goes back and forth
between two clearly different kinds of work shows it in utilisation and in the share of memory traffic, which, unlike
power, hardly depend on the setting in force. A fold of readings: a second of them makes a signature; signatures that
come back make a phase. Work that never comes back is a shift (``tune/change``), not a phase; a GPU that waits does no
work at all.

Each phase has its own tuner, so recognising one too many is dear (two tuners learn less than one) and one too few is
cheap (one setting serves both): when in doubt there is one phase. In doubt is whatever differs no more than the job's
signatures do from one half to the other, kinds that have come close to each other, a kind that is mostly left as
soon as it is entered, and one that comes when we change the setting: that may be our own doing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

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
_FEWEST = 4  # readings of a signature
_WAITS = 0.02  # a GPU less busy than this waits
_OURS = 3.0  # signatures after a change of the setting in which another kind counts as its doing
# Halves of a signature differ by chance with a median of about one standard deviation of what two signatures differ
# by; five of them are not reached in a day of signatures.
_CHANCE = 5.0
_HALVES = 64  # of the last signatures, by which that is judged


@dataclass(slots=True)
class _Kind:
    place: tuple[float, ...]
    name: str = ""
    """Given when it is first known."""
    visits: int = 0
    glimpses: int = 0
    """Visits that were over too soon."""

    @property
    def known(self) -> bool:
        return self.visits > max(RETURNS, self.glimpses)


class PhaseFinder:
    """Names the phase that readings show; "" until there are two kinds of work that keep coming back."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, tuple[float, ...]]] = deque()
        self._halves: deque[float] = deque(maxlen=_HALVES)
        self._kinds: list[_Kind] = []
        self._now: _Kind | None = None
        self._candidate: tuple[_Kind, float] | None = None
        self._since_s = -math.inf
        self._counted = False
        self._due_s = -math.inf
        self._switched_s = -math.inf

    def switched(self, time_s: float) -> None:
        """Another setting is in force since ``time_s``."""
        self._switched_s = time_s

    @property
    def told_s(self) -> float:
        """Up to when readings have been told."""
        return self._recent[-1][0] if self._recent else -math.inf

    @property
    def phase(self) -> str:
        """The present phase; empty while the job has only one."""
        known = [kind for kind in self._kinds if kind.known]
        return self._now.name if self._now is not None and len(known) > 1 and self._now in known else ""

    def tell(self, reading: Reading, unit_s: float | None = None) -> str:
        """Take in a reading; the present phase. ``unit_s`` is how long a step of the job takes, where that is known."""
        now_s, length_s = reading.time_s, max(SIGNATURE_S, 4.0 * (unit_s or 0.0))
        if reading.utilization is None or now_s <= self.told_s:
            return self.phase
        busy = reading.utilization
        memory = (reading.memory_utilization or 0.0) / busy if busy > 0 else 0.0
        self._recent.append((now_s, (busy, memory)))
        while self._recent[0][0] < now_s - length_s:
            self._recent.popleft()
        few = len(self._recent) < _FEWEST or now_s - self._recent[0][0] < 0.6 * length_s
        if few or now_s < self._due_s:
            return self.phase
        self._due_s = now_s + 0.25 * length_s
        values = [each[1] for each in self._recent]
        half = len(values) // 2
        changed = _apart(_mean(values[:half]), _mean(values[half:]))
        self._halves.append(changed)
        shown = _mean(values)
        # Two halves that differ are a boundary, which belongs to no kind.
        if changed <= 0.5 * self._distance and shown[0] > _WAITS:
            self._place(shown, now_s, length_s)
        return self.phase

    @property
    def _distance(self) -> float:
        """How far signatures are apart that are of two kinds."""
        return max(APART, _CHANCE * median(self._halves))

    def _place(self, shown: tuple[float, ...], now_s: float, length_s: float) -> None:
        kind = self._kind(shown)
        if kind is None:
            return
        kind.place = tuple(mean + _FOLLOW * (new - mean) for mean, new in zip(kind.place, shown, strict=True))
        self._merge(kind)
        if kind is self._now:
            self._candidate = None
            if not self._counted and now_s - self._since_s >= _LASTS * length_s:
                kind.visits, self._counted = kind.visits + 1, True
                self._name(kind)
            return
        if self._candidate is None or self._candidate[0] is not kind:
            self._candidate = (kind, now_s)
        if now_s - self._candidate[1] >= 0.5 * length_s or self._now is None:
            if self._now is not None and not self._counted:
                self._now.glimpses += 1
            ours = now_s - self._switched_s <= _OURS * length_s
            self._now, self._since_s, self._counted, self._candidate = kind, now_s, ours, None

    def _kind(self, shown: tuple[float, ...]) -> _Kind | None:
        """The kind that a signature is of, a new one where it is like none; None where there are too many already."""
        nearest = min(self._kinds, key=lambda kind: _apart(kind.place, shown), default=None)
        if nearest is not None and _apart(nearest.place, shown) <= self._distance:
            return nearest
        if len(self._kinds) == MOST:
            doubtful = [kind for kind in self._kinds if kind is not self._now and not kind.known]
            if not doubtful:
                return None
            self._forget(min(doubtful, key=lambda kind: kind.visits))
        fresh = _Kind(shown)
        self._kinds.append(fresh)
        return fresh

    def _name(self, kind: _Kind) -> None:
        if kind.known and not kind.name:
            taken = {each.name for each in self._kinds}
            kind.name = next(name for name in "abcd" if name not in taken)

    def _merge(self, kind: _Kind) -> None:
        """Kinds that are no longer apart from ``kind`` were never another one."""
        for other in [each for each in self._kinds if each is not kind]:
            if _apart(other.place, kind.place) < 0.75 * self._distance:
                self._forget(other)
                kind.visits, kind.name = max(kind.visits, other.visits), kind.name or other.name
                if other is self._now:
                    self._now = kind

    def _forget(self, kind: _Kind) -> None:
        self._kinds.remove(kind)
        if self._candidate is not None and self._candidate[0] is kind:
            self._candidate = None


def _mean(values: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(each[axis] for each in values) / len(values) for axis in range(len(values[0])))


def _apart(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
