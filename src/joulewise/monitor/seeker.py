"""Finding the ticks of all GPUs of a node, for little: who searches when, and within which budget.

How the ticks of one sensor are found is in ``ticks``; here eight GPUs are spared eight full searches. The first of
the cards of one model learns their common pace. A counter whose calls are dear is tried where power ticks, for
both are often one instrument. A load that holds power still makes its ticks unfindable, and unimportant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from joulewise.core.timeline import Loop, TimeSource
from joulewise.monitor.allowance import Allowance
from joulewise.monitor.ticks import Look, TickTracker, locate
from joulewise.monitor.track import Track

_PATIENCE_S = 10.0  # how long a search waits for one that would make it cheaper
_AGREED = 3  # how often a counter must be seen to tick with power before that is believed: by chance 1 time in 25
_FREE_S = 0.05  # CPU time that the first searches for slow ticks may cost, once, besides the budget
_SEARCH_SHARE = 0.001  # CPU share of one core that searching for ticks may cost, all GPUs together
_SEARCH_S = 0.004  # what a search may cost: sixteen looks of up to 250 µs, most of it for waking up


class Seeker:
    """Keeps the ticks of ``tracks`` known.

    ``counter_allowance`` pays for slow counters; ``align`` lengthens a wait so that it ends with a poll.
    """

    def __init__(
        self,
        tracks: Sequence[Track],
        time: TimeSource,
        *,
        counter_allowance: Allowance,
        align: Callable[[float], float],
    ) -> None:
        self._tracks = tracks
        self._now_s = time.now_s
        self._begun_s = time.now_s()
        self._align = align
        self._counter_allowance = counter_allowance
        most_s = _SEARCH_S * max(4, len(tracks))
        self._allowance = Allowance(_SEARCH_SHARE, most_s, left_s=most_s, now_s=self._begun_s)
        self._retry_s: dict[TickTracker, float] = {}
        self._free = Allowance(0.0, _FREE_S, left_s=_FREE_S, now_s=self._begun_s)
        self._with_power: dict[Track, int] = {}
        """How often a slow counter was seen to tick where power does; −1 once it did not."""

    def loops(self) -> list[Loop[None]]:
        """One loop a GPU, without end while the GPU is there."""
        return [self._follow(track) for track in self._tracks]

    def _follow(self, track: Track) -> Loop[None]:
        """Find a GPU's ticks, and look again before they have drifted out of sight."""
        # Cards of one model tick at one pace: the first learns it for all, which spares the others two searches.
        kin = [each for each in self._tracks if each.gpu.info.name == track.gpu.info.name]
        first = kin[0]
        while track is not first and self._now_s() < self._begun_s + _PATIENCE_S and not _steady(first):
            yield self._align(0.5)
        while track.lost is None:
            wait_s = yield from self._refresh(track, free=track is first and not _steady(track))
            for each in kin:
                each.power_ticks.adopt(track.power_ticks)
                if each.counter_ticks is not None and track.counter_ticks is not None:
                    each.counter_ticks.adopt(track.counter_ticks)
            yield self._align(wait_s)

    def _refresh(self, track: Track, *, free: bool) -> Loop[float]:
        """Look for the ticks of one GPU where they are not known well; returns how long that will do."""
        counter, power, wait_s = track.counter_ticks, track.power_ticks, 60.0
        if counter is not None and not track.slow_counter:
            # It moves at every tick, and power often ticks with it.
            wait_s = yield from self._search(counter, track.look_at_both, free=free)
            if _as_good(power, self._now_s()):
                return wait_s
        if track.lively():
            wait_s = min(wait_s, (yield from self._search(power, track.look_at_power, free=free)))
        else:
            wait_s = min(wait_s, 1.0)
        if counter is not None and track.slow_counter:
            yield from self._find_slow_ticks(track, counter, free=free)
            if not _as_good(counter, self._now_s()):
                wait_s = min(wait_s, 0.2 if free else 2.0)  # more when the budget has filled up again
        return wait_s

    def _search(self, tracker: TickTracker, look: Callable[[], Look], *, free: bool) -> Loop[float]:
        """One search if it is needed and, unless ``free``, allowed; returns when to come back."""
        if tracker.width_s(self._now_s()) > _width_s(tracker):
            if not free and not self._allowance.take(_SEARCH_S, self._now_s()):
                return 0.2
            found = yield from locate(tracker, look, self._now_s, width_s=_width_s(tracker))
            if not found:
                self._retry_s[tracker] = min(60.0, 2.0 * self._retry_s.get(tracker, 1.0))
                return self._retry_s[tracker]
            self._retry_s.pop(tracker, None)
        return min(60.0, max(0.1, tracker.good_for_s()))

    def _find_slow_ticks(self, track: Track, counter: TickTracker, *, free: bool) -> Loop[None]:
        """Ticks of a counter whose calls are dear: a few calls at a time, within the budget, those of power first.

        ``free`` of the budget is the first card of its model, until its pace is known or ``_FREE_S`` is spent.
        """
        call_s, now_s, period_s = track.counter_call_s, self._now_s, counter.period_s
        power = track.power_ticks.ticks()
        agreed, name = self._with_power.get(track, 0), track.gpu.info.name
        alike = any(n >= _AGREED and other.gpu.info.name == name for other, n in self._with_power.items())
        enough = 1 if alike else _AGREED  # what holds for one card of a model holds for the others
        if agreed >= enough and counter.width_s(now_s()) < math.inf:
            counter.follow(track.power_ticks, call_s)
            return
        counter.adopt(track.power_ticks)
        width_s = max(2.5 * call_s, _width_s(counter))
        wait = track not in self._with_power and not power.known_at(now_s())
        if wait and not free and now_s() < self._begun_s + _PATIENCE_S:
            return
        if counter.width_s(now_s()) <= width_s:
            return
        free = free and self._free.take(4.0 * call_s, now_s())
        if not free and not self._counter_allowance.take(2.0 * call_s, now_s()):
            return
        around_s = 2.0 * call_s + 2.0 * power.error_at_s(now_s())
        if 0 <= agreed < enough and power.known_at(now_s()) and around_s < 0.2 * period_s:
            # Both are often one instrument: does the counter move where power does? Once may be chance.
            from_s = power.next_s(now_s() + around_s) - around_s
            yield from_s - now_s()
            first = track.look_at_counter()
            yield from_s + 2.0 * around_s - call_s - now_s()
            moved = first.value != track.look_at_counter().value
            self._with_power[track] = agreed + 1 if moved else -1
            return
        if counter.width_s(now_s()) < 0.6 * period_s:
            yield from locate(counter, track.look_at_counter, now_s, width_s=width_s, most_looks=4 if free else 2)
            return
        first = track.look_at_counter()
        yield 0.5 * period_s - call_s
        second = track.look_at_counter()
        if first.value is not None and first.value == second.value:  # then in the other half of the period
            counter.changed(second.from_s, first.to_s + period_s)


def _width_s(tracker: TickTracker) -> float:
    """How narrowly ticks are located: to 3 % of a period, which no longer matters beside what power does in it."""
    return max(0.03 * tracker.period_s, 5e-4)


def _as_good(tracker: TickTracker, now_s: float) -> bool:
    return tracker.width_s(now_s) < 0.1 * tracker.period_s


def _steady(track: Track) -> bool:
    """Whether the pace of a GPU's sensors is known well enough to lend it to others."""
    trackers = (track.power_ticks, track.counter_ticks)
    return track.lost is not None or any(each is not None and each.good_for_s() > 5.0 for each in trackers)
