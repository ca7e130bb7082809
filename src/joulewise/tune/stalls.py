"""What blocks leave out, watched for every setting: does a setting lose its time in stalls?

A block holds clean work, so a setting that makes the rare long steps longer (an evaluation nobody marked, an optimiser
step in a hundred) looks better than it is. Here every step counts: the seconds that stalls take beyond the work done
in them, a second of clean work, under a setting against the default. Two things may show it: more is lost a second,
which takes long to tell where the default is seen for a fiftieth of the time; or the stalls, which come by the job's
own count, are longer. A fold of steps. What it is not: a test at any error promised beforehand; it is a net below the
guard, for what the guard is not shown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulewise.core.knob import DEFAULT, Setting
from joulewise.monitor.steplog import Step

FEWEST = 3
"""Stalls under a setting before anything is said of it."""
SURE = 3.0
"""Standard errors that stalls must take more than at default: looked at again and again, chance must not reach it."""


@dataclass(slots=True)
class _Tally:
    """Steps under one setting."""

    work: float = 0.0
    clean_s: float = 0.0
    stalls: int = 0
    lost_s: float = 0.0
    squares_s2: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.lost_s / self.stalls

    @property
    def variance_s2(self) -> float:
        """Of the mean; from few stalls it is not known well."""
        spread_s2 = max(0.0, self.squares_s2 - self.stalls * self.mean_s**2) / (self.stalls - 1)
        return spread_s2 / self.stalls * (1.0 + 3.0 / self.stalls) ** 2


class Stalls:
    """The stalls of one phase. Tell it every step in order; ``excess`` says what a setting loses by them."""

    def __init__(self) -> None:
        self._tallies: dict[Setting, _Tally] = {}
        self._last: tuple[float, Setting, float, float] | None = None  # of short steps: start, setting, seconds, work

    def tell(self, setting: Setting, step: Step) -> None:
        """A step that counts in the job's pace (``Step.whole``) ended; short ones that grew may come again."""
        tally = self._tallies.setdefault(setting, _Tally())
        if not step.dirt:
            if self._last is not None and self._last[:2] == (step.start_s, setting):
                tally.clean_s -= self._last[2]
                tally.work -= self._last[3]
            self._last = (step.start_s, setting, step.duration_s, step.work)
            tally.clean_s += step.duration_s
            tally.work += step.work
        elif tally.work > 0:
            lost_s = max(0.0, step.duration_s - step.work * tally.clean_s / tally.work)
            tally.stalls += 1
            tally.lost_s += lost_s
            tally.squares_s2 += lost_s**2

    def excess(self, setting: Setting) -> tuple[float, float] | None:
        """Seconds lost in stalls a second of clean work, more than at default, and how many standard errors that is;
        None while too little is known."""
        own, base = self._tallies.get(setting), self._tallies.get(DEFAULT)
        if own is None or base is None or own.stalls < FEWEST or not (own.clean_s > 0 and base.clean_s > 0):
            return None
        return max(_lost(own, base), _longer(own, base), key=lambda found: found[1])

    def breaks(self, setting: Setting, slowdown: float, bound: float) -> float | None:
        """The slowdown of a setting with its stalls, where that is above ``bound`` and clean work's is not, beyond
        doubt; None otherwise."""
        found = self.excess(setting)
        if found is None or slowdown > bound:
            return None
        more, sure = found
        whole = (1.0 + slowdown) * (1.0 + more) - 1.0
        return whole if whole > bound and sure > SURE else None

    def lost_s(self, setting: Setting) -> float:
        """Seconds that stalls have taken under a setting beyond what they take at default; 0 while unknown."""
        found, own = self.excess(setting), self._tallies.get(setting)
        return max(0.0, found[0] * own.clean_s) if found is not None and own is not None else 0.0

    def forget(self, setting: Setting) -> None:
        """A setting is accounted for: if it is tried again, it begins anew."""
        self._tallies.pop(setting, None)

    def restart(self) -> None:
        """The job changed."""
        self._tallies.clear()
        self._last = None


def _lost(own: _Tally, base: _Tally) -> tuple[float, float]:
    """By the seconds lost a second of clean work."""
    more = own.lost_s / own.clean_s - base.lost_s / base.clean_s
    # Rare events: each is its own variance. One more is granted to the default, which is seen for so little time.
    usual_s2 = (own.squares_s2 + base.squares_s2) / (own.stalls + base.stalls)
    error = math.hypot(math.sqrt(own.squares_s2) / own.clean_s, math.sqrt(base.squares_s2 + usual_s2) / base.clean_s)
    return more, more / error if error > 0 else 0.0


def _longer(own: _Tally, base: _Tally) -> tuple[float, float]:
    """By the length of a stall, where they are as many a unit of work as at default."""
    if min(own.stalls, base.stalls) < FEWEST:
        return 0.0, 0.0
    longer_s = own.mean_s - base.mean_s
    error_s = max(math.sqrt(own.variance_s2 + base.variance_s2), 0.01 * base.mean_s)
    rate = (own.stalls + base.stalls) / (own.work + base.work)
    return longer_s * rate * own.work / own.clean_s, longer_s / error_s if error_s > 0 else 0.0
