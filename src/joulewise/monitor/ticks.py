"""When a sensor says something new: the phase and period of its updates, learned from changes seen in its readings.

An energy counter moves only at its ticks, every 20 to 100 ms, so a window that does not know the ticks is wrong
by up to one of them at each edge. Catalogues give a nominal period; real sensors differ by about one percent (an
A100 with a nominal 100 ms was seen to update every 101 ms), and nobody tells the phase. Both follow from pairs of
moments between which a reading changed. This is not a sampler: it is told what was seen, or asks a callable.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from joulewise.core.timeline import Loop

PERIOD_ERROR = 0.02
"""How far a real period may be from its nominal value before it was observed: twice the 1 % seen on an A100."""

_JITTER = 0.002
"""Share of a period by which single updates are taken to wander off a straight line."""

_ALIKE = 0.0001
"""How far the periods of two cards of one model may differ, relative: as far as quartz clocks do. Where that does
not hold it will be noticed."""

_SMOOTH_S = 0.002
"""Updates closer than this are as good as continuous (AMD counters move every millisecond)."""


@dataclass(frozen=True, slots=True)
class Ticks:
    """What is known of a sensor's updates: ``at_s + k·period_s``, one standard error ``error_s`` near ``at_s``."""

    at_s: float
    period_s: float
    error_s: float
    drift: float = 0.0
    """One standard error of the period, relative: the phase is that much less certain far from ``at_s``."""

    @classmethod
    def unknown(cls, period_s: float) -> Ticks:
        """Ticks of which only the nominal period is known."""
        return cls(0.0, period_s, period_s / math.sqrt(12.0))

    def known_at(self, time_s: float) -> bool:
        """Whether an update near ``time_s`` can be told from its neighbours."""
        return self.period_s <= _SMOOTH_S or self.error_at_s(time_s) < 0.15 * self.period_s

    def last_s(self, time_s: float) -> float:
        """The last update at or before ``time_s``."""
        return self.at_s + math.floor((time_s - self.at_s) / self.period_s) * self.period_s

    def next_s(self, time_s: float) -> float:
        """The first update after ``time_s``."""
        return self.last_s(time_s) + self.period_s

    def error_at_s(self, time_s: float) -> float:
        """One standard error of where the updates near ``time_s`` are; at most that of an even guess."""
        grown_s = math.hypot(self.error_s, self.drift * (time_s - self.at_s))
        return min(grown_s, self.period_s / math.sqrt(12.0))


class TickTracker:
    """Learns ticks from brackets: pairs of moments with one update between them."""

    def __init__(self, period_s: float) -> None:
        self._nominal_s = self._period_s = period_s
        self._doubt = self._drift = PERIOD_ERROR  # bounds, relative: at first, and now
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    @property
    def period_s(self) -> float:
        """The period as far as it is known."""
        return self._period_s

    @property
    def smooth(self) -> bool:
        """Whether updates come too fast to be told apart."""
        return self._period_s <= _SMOOTH_S

    def changed(self, from_s: float, to_s: float) -> None:
        """The reading at ``to_s`` differs from the one at ``from_s``: an update fell in between.

        Ignored where the two are so far apart that it is not plain which update that was.
        """
        if not 0.0 < to_s - from_s < 0.6 * self._period_s:
            return
        if self._last is None:
            self._restart(from_s, to_s)
            return
        steps = round((0.5 * (from_s + to_s) - _middle(self._last)) / self._period_s)
        moved_s = steps * self._period_s
        slack_s = abs(moved_s) * self._drift + 2.0 * _JITTER * self._period_s
        low_s = max(from_s, self._last[0] + moved_s - slack_s)
        high_s = min(to_s, self._last[1] + moved_s + slack_s)
        if slack_s > 0.4 * self._period_s or low_s >= high_s:
            # Too long ago to count the updates since, or a beat was skipped: what was seen last stands.
            self._period_s = self._nominal_s
            self._restart(from_s, to_s)
            return
        self._last = (low_s, high_s)
        self._learn_period()

    def unchanged(self, from_s: float, to_s: float) -> None:
        """The counter did not move between these: if it should have, the phase was wrong and is forgotten."""
        if self._last is None or self.smooth:
            return
        half_s = 0.5 * self.width_s(to_s) + 2.0 * _JITTER * self._period_s
        if self.ticks().next_s(from_s + half_s) < to_s - half_s:
            self._first = self._last = None

    def suppose(self, period_s: float, doubt: float) -> None:
        """The period is not the nominal one but ``period_s``, within ``doubt`` (relative). Forgets the phase."""
        self._nominal_s = self._period_s = period_s
        self._first = self._last = None
        self._doubt = self._drift = doubt

    def adopt(self, other: TickTracker) -> None:
        """Take over the period of a sensor of the same kind that has been watched for longer."""
        if self._nominal_s == other._nominal_s and max(other._drift, _ALIKE) < self._drift:
            self._period_s, self._drift = other._period_s, max(other._drift, _ALIKE)

    def follow(self, other: TickTracker, slack_s: float) -> None:
        """Take over phase and period of ``other``, which was seen to tick together with this within ``slack_s``."""
        if other._last is not None:
            self._first = self._last = (other._last[0] - slack_s, other._last[1] + slack_s)
            self._period_s, self._drift = other._period_s, other._drift

    def width_s(self, time_s: float) -> float:
        """How wide a bracket around an update near ``time_s`` must be; infinite if nothing is known."""
        if self._last is None:
            return math.inf
        if self.smooth:
            return self._period_s
        return _width(self._last) + 2.0 * self._drift * abs(time_s - _middle(self._last))

    def good_for_s(self) -> float:
        """How long until the phase should be looked at again, lest updates be miscounted; 0 if it is not known."""
        if self._last is None:
            return 0.0
        return math.inf if self.smooth else 0.15 * self._period_s / self._drift

    def ticks(self) -> Ticks:
        """What is known now."""
        last = self._last
        if last is None:
            return Ticks.unknown(self._nominal_s)
        error_s = math.hypot(_width(last) / math.sqrt(12.0), _JITTER * self._period_s)
        return Ticks(_middle(last), self._period_s, error_s, self._drift / math.sqrt(3.0))

    def _restart(self, from_s: float, to_s: float) -> None:
        self._first = self._last = (from_s, to_s)
        self._drift = self._doubt

    def _learn_period(self) -> None:
        if self._first is None or self._last is None:
            return
        span_s = _middle(self._last) - _middle(self._first)
        steps = round(span_s / self._period_s)
        if steps < 1:
            return
        doubt = (0.5 * (_width(self._first) + _width(self._last)) + 2.0 * _JITTER * self._period_s) / span_s
        if doubt < self._drift:
            self._period_s, self._drift = span_s / steps, doubt
        if _width(self._last) < 0.5 * _width(self._first) and steps < 30:
            self._first = self._last  # a sharper one to count from


def _middle(bracket_s: tuple[float, float]) -> float:
    return 0.5 * (bracket_s[0] + bracket_s[1])


def _width(bracket_s: tuple[float, float]) -> float:
    return bracket_s[1] - bracket_s[0]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a sensor: what it showed, at some moment between two; None if it could not be read."""

    from_s: float
    to_s: float
    value: float | None


def locate(
    tracker: TickTracker, look: Callable[[], Look], now_s: Callable[[], float], *, width_s: float, most_looks: int = 24
) -> Loop[bool]:
    """Narrow ``tracker`` down to brackets of ``width_s``: a sweep for changes, then bisection of later updates.

    Yields its waits, returns whether it got there. A reading that never changes (a constant load) ends it early,
    and so does a sensor that cannot be read.
    """
    if tracker.width_s(now_s()) > 0.6 * tracker.period_s and not tracker.smooth:
        yield from _find(tracker, look, now_s)
    looks = misses = 0
    last: Look | None = None  # a look known to lie between the last update and the next
    while not tracker.smooth and tracker.width_s(now_s()) > width_s:
        half_s = 0.5 * tracker.width_s(now_s() + tracker.period_s) + 0.1 * width_s
        if half_s > 0.4 * tracker.period_s or looks >= most_looks or misses > 4:
            return False
        tick_s = tracker.ticks().next_s(now_s() + half_s)
        before = last if last is not None and tick_s - last.from_s < 1.2 * tracker.period_s else None
        found = False
        for at_s in (tick_s, tick_s + half_s) if before else (tick_s - half_s, tick_s, tick_s + half_s):
            yield at_s - now_s()
            last = look()
            looks += 1
            if last.value is None:
                return False
            if before is not None and last.value != before.value:
                tracker.changed(max(before.from_s, tick_s - half_s), last.to_s)
                found = True
                break
            before = last
        if not found:
            misses, last = misses + 1, None
    return True


def _find(tracker: TickTracker, look: Callable[[], Look], now_s: Callable[[], float]) -> Loop[None]:
    """Sweep for a first update, five looks a period; finer if updates come faster than the nominal period."""
    step_s, length_s = tracker.period_s / 5.0, 2.3 * tracker.period_s
    while True:
        brackets = yield from _sweep(look, now_s, step_s, length_s)
        middles = [_middle(bracket) for bracket in brackets]
        spacing_s = min((b - a for a, b in itertools.pairwise(middles)), default=math.inf)
        if spacing_s < 0.7 * tracker.period_s:
            if spacing_s < 3.0 * step_s and step_s > 0.25 * _SMOOTH_S:
                step_s, length_s = 0.25 * step_s, 6.0 * step_s
                continue  # not resolved: look closer
            tracker.suppose(spacing_s, step_s / spacing_s)
        for bracket in brackets:
            tracker.changed(*bracket)
        return


def _sweep(
    look: Callable[[], Look], now_s: Callable[[], float], step_s: float, length_s: float
) -> Loop[list[tuple[float, float]]]:
    """Look every ``step_s`` for ``length_s``, or until two changes are seen; the brackets of the changes."""
    brackets: list[tuple[float, float]] = []
    last, begun_s = look(), now_s()
    while last.value is not None and len(brackets) < 2 and now_s() - begun_s < length_s:
        yield step_s
        seen = look()
        if seen.value is not None and seen.value != last.value:
            brackets.append((last.from_s, seen.to_s))
        last = seen
    return brackets
