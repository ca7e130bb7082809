"""The cap and the energy budget that hold at a time, whoever has set them.

What it is: the one place where an operator's words, a schedule of such words and a feed (``cap_feed``) meet. A word is
a cap from a time on, for good or for a while; of the operator's words in force the one that began last holds, so that a
demand-response word ends by itself and what was before comes back. The feed's cap holds besides: the lower of the two
counts. A *ramp* limits how fast the cap moves, on the way into a word and out of it:

    |d cap / dt| ≤ ramp_w_per_s

Nothing is done here before it is written down: ``cap``, ``budget``, ``forget`` and ``poll`` check and return events
(``Limited``); ``hear`` makes them count. So the same events heard again give the same limits, to the last bit, and a
word never changes what was in force before it was said.
What it is not: how a cap is kept (``purse``, ``within``, the agents' ceilings), nor a clock. Times are seconds since
1970, or of any one clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from joulewise.cluster.cap_feed import CapFeed, CapWord, FeedSays, in_force
from joulewise.core.caller import named
from joulewise.core.errors import BadSpec
from joulewise.core.event import Limited
from joulewise.core.units import format_power

# A cap that moves along a ramp is looked at so often; in between, the lowest value counts (``lowest``).
_RAMP_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds at one moment. ``cap_w`` is never below the idle power; ``aim_w`` is where a ramp leads. None: no
    limit. ``until_s``: when the word in force ends by itself; ``next_s``: when the cap changes next, as far as is
    known. ``source``: operator, feed or empty. ``says``: what an operator should know, in words."""

    cap_w: float | None
    aim_w: float | None
    until_s: float | None
    next_s: float | None
    source: str
    energy_j: float | None
    period_s: float
    says: tuple[str, ...] = ()
    cap_by: str = ""
    """Whose word the operators' cap in force is, in words; empty for a feed's, and where nobody knows."""
    budget_by: str = ""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """What was in force at a time that no later word can change: the cap, and the ramp of the last word that changed
    it. The cap is inf where there is none."""

    time_s: float = -math.inf
    cap_w: float = math.inf
    ramp_w_per_s: float | None = None


class Limits:
    """``idle_w``: what the cluster draws with nothing to do, below which no cap can be kept; may be set anew at any
    time. ``most_w``: the most that it can draw, from which a ramp sets out where there was no cap before (None: such a
    step is made at once). ``feed``: a file that is looked at by ``poll``."""

    def __init__(
        self,
        events: Iterable[Limited] = (),
        *,
        idle_w: float = 0.0,
        most_w: float | None = None,
        feed: CapFeed | None = None,
        energy_j: float | None = None,
        period_s: float = 86_400.0,
    ) -> None:
        self.idle_w = idle_w
        self.most_w = most_w
        self.feed = feed
        self.energy_j = energy_j
        self.period_s = period_s
        self._budget_by = ""
        self._words: tuple[CapWord, ...] = ()
        self._fed: FeedSays | None = None
        self._anchor = _Anchor()
        for event in events:
            self.hear(event)

    # Words, as events that are to be journalled and then heard.

    def cap(
        self,
        now_s: float,
        cap_w: float | None,
        *,
        at_s: float | None = None,
        for_s: float | None = None,
        ramp_w_per_s: float | None = None,
    ) -> Limited:
        """An operator's word: at most ``cap_w`` (None: no limit) from ``at_s`` (now) on, for ``for_s`` (for good).

        BadSpec for numbers that make no sense and for a cap below idle power; the old cap then stays.
        """
        if cap_w is not None and not (cap_w > 0 and math.isfinite(cap_w)):
            raise BadSpec(f"a power cap of {cap_w:g} W makes no sense; it must be above 0")
        if cap_w is not None and cap_w < self.idle_w:
            held = self.at(now_s).cap_w
            stays = "there is still no cap" if held is None else f"the cap stays at {format_power(held)}"
            raise BadSpec(
                f"the power cap of {format_power(cap_w)} is below the {format_power(self.idle_w)} that the cluster "
                f"draws with nothing to do; raise it, or let nodes be switched off ({stays})"
            )
        if for_s is not None and not for_s > 0:
            raise BadSpec(f"a cap for {for_s:g} s makes no sense; it must be above 0")
        if ramp_w_per_s is not None and not ramp_w_per_s > 0:
            raise BadSpec(f"a ramp of {ramp_w_per_s:g} W/s makes no sense; it must be above 0")
        from_s = now_s if at_s is None else at_s
        until_s = None if for_s is None else from_s + for_s
        if until_s is not None and until_s <= now_s:
            raise BadSpec(f"a cap that ended {now_s - until_s:.0f} s ago makes no sense; give a later time")
        facts = {
            "source": "operator",
            "cap_w": cap_w,
            "from_s": max(from_s, now_s),
            "until_s": until_s,
            "ramp_w_per_s": ramp_w_per_s,
        }
        return Limited(now_s, "cap", facts)

    def forget(self, now_s: float) -> Limited:
        """All the operator's words are taken back, those ahead too; the feed's stays."""
        return Limited(now_s, "cap", {"source": "operator", "forget": True})

    def budget(self, now_s: float, energy_j: float | None, period_s: float = 86_400.0) -> Limited:
        """An energy budget for every ``period_s``; None: none. BadSpec where it is less than idle power draws."""
        if energy_j is not None and not (energy_j > 0 and period_s > 0):
            raise BadSpec(f"an energy budget of {energy_j:g} J for {period_s:g} s makes no sense; both must be above 0")
        if energy_j is not None and energy_j < self.idle_w * period_s:
            raise BadSpec(
                f"the energy budget of {format_power(energy_j / period_s)} on average is below the "
                f"{format_power(self.idle_w)} that the cluster draws with nothing to do; raise it, or let nodes be "
                "switched off"
            )
        return Limited(now_s, "budget", {"energy_j": energy_j, "period_s": period_s})

    def poll(self, now_s: float) -> tuple[Limited, ...]:
        """Look at the feed; an event where what it says has changed. BadSpec where it is silent from the start and no
        safe cap is declared."""
        if self.feed is None:
            return ()
        before = self._fed
        says = self.feed.look(now_s, None if before is None else before.known_w)
        if says == before:
            return ()
        facts = {
            "source": "feed",
            "cap_w": says.cap_w,
            "until_s": says.until_s,
            "trouble": says.trouble,
            "known_w": says.known_w,
        }
        return (Limited(now_s, "cap", facts),)

    def hear(self, event: Limited) -> None:
        """From ``event.time_s`` on it counts. What is not known here is passed over."""
        facts = event.facts
        if event.what == "budget":
            self.energy_j = facts.get("energy_j")
            self.period_s = facts.get("period_s") or 86_400.0
            self._budget_by = named(facts.get("by"))
            return
        if event.what != "cap":
            return
        self._drop_anchor(event.time_s)
        if facts.get("source") == "feed":
            self._fed = FeedSays(
                facts.get("cap_w"), facts.get("until_s"), facts.get("trouble", ""), facts.get("known_w")
            )
            # A feed has no ramp of its own: whoever signals moves the signal.
            self._turn(None)
        elif facts.get("forget"):
            self._words = ()
            self._turn(self._anchor.ramp_w_per_s)
        else:
            from_s = facts.get("from_s")
            word = CapWord(
                facts.get("cap_w"),
                event.time_s if from_s is None else from_s,
                facts.get("until_s"),
                facts.get("ramp_w_per_s"),
                named(facts.get("by")),
            )
            self._words = (*_live(self._words, self._anchor.time_s), word)
            if word.holds(self._anchor.time_s):
                self._turn(word.ramp_w_per_s)

    # What holds.

    def at(self, now_s: float) -> Limit:
        """What holds at ``now_s``, as far as has been heard."""
        now_s, clock_s = max(now_s, self._anchor.time_s), now_s  # a clock that was set back undoes nothing
        value_w = self._folded(now_s).cap_w
        aim_w = self._aim(now_s)
        says = [] if self._fed is None or not self._fed.trouble else [self._fed.trouble]
        if min(value_w, aim_w) < self.idle_w:
            low_w = min(value_w, aim_w)
            says.append(
                f"the cap of {format_power(low_w)} is below the {format_power(self.idle_w)} that the cluster draws "
                f"with nothing to do; held at {format_power(self.idle_w)}"
            )
        word = in_force(self._words, now_s)
        fed_w = _watts(None if self._fed is None else self._fed.cap_w)
        word_w = _watts(None if word is None else word.cap_w)
        source = "" if aim_w == math.inf else "feed" if fed_w < word_w else "operator"
        ends = None if self._fed is None else self._fed.until_s
        until_s = ends if source == "feed" else None if word is None else word.until_s
        next_s = clock_s + _RAMP_LOOK_S if value_w != aim_w else min(self._turns(now_s), default=None)
        return Limit(
            _limit(value_w, self.idle_w),
            _limit(aim_w, self.idle_w),
            until_s,
            next_s,
            source,
            self.energy_j,
            self.period_s,
            tuple(says),
            word.by if source == "operator" and word is not None else "",
            self._budget_by if self.energy_j is not None else "",
        )

    def lowest_w(self, from_s: float, to_s: float) -> float | None:
        """The lowest cap between two times, as far as is known: what must be kept by one who looks again at ``to_s``.
        Not below the idle power; None: no limit."""
        state = self._folded(from_s)
        lowest_w = state.cap_w
        for turn_s in (*(time_s for time_s in self._turns(from_s) if time_s < to_s), max(from_s, to_s)):
            before_w = self._moved(state, turn_s)  # a ramp may turn back up at its lowest point
            state = self._folded(turn_s)
            lowest_w = min(lowest_w, before_w, state.cap_w)
        return _limit(lowest_w, self.idle_w)

    def _aim(self, now_s: float) -> float:
        """Where the cap is heading, inf for none."""
        word = in_force(self._words, now_s)
        fed_w = _watts(None if self._fed is None else self._fed.cap_w)
        return min(fed_w, _watts(None if word is None else word.cap_w))

    def _turns(self, after_s: float) -> list[float]:
        """When words begin or end, after a time, in order."""
        times = {word.from_s for word in self._words} | {word.until_s for word in self._words if word.until_s}
        return sorted(time_s for time_s in times if time_s > after_s)

    def _folded(self, now_s: float) -> _Anchor:
        """From the anchor to ``now_s``, one change of aim after the other."""
        state = self._anchor
        if now_s <= state.time_s:
            return state
        for turn_s in (*(turn for turn in self._turns(state.time_s) if turn <= now_s), now_s):
            cap_w, ramp = self._moved(state, turn_s), state.ramp_w_per_s
            if self._aim(turn_s) != self._aim(state.time_s):
                ramp = self._ramp_at(turn_s, ramp)
                cap_w = self._set_out(cap_w, turn_s, ramp)
            state = _Anchor(turn_s, cap_w, ramp)
        return state

    def _set_out(self, cap_w: float, time_s: float, ramp_w_per_s: float | None) -> float:
        """The cap at the moment in which its aim has changed: a ramp begins where it was, or at the most there is."""
        aim_w = self._aim(time_s)
        if ramp_w_per_s is None:
            return aim_w
        return max(aim_w, self.most_w or 0.0) if cap_w == math.inf else cap_w

    def _moved(self, state: _Anchor, to_s: float) -> float:
        """Where the cap is at ``to_s`` if nothing turns before."""
        aim_w = self._aim(state.time_s)
        ramp = state.ramp_w_per_s
        if ramp is None or state.cap_w == aim_w or state.time_s == -math.inf:
            return aim_w
        from_w, goal_w = state.cap_w, aim_w
        if math.inf in (from_w, goal_w):
            if self.most_w is None or self.most_w <= min(from_w, goal_w):
                return aim_w
            from_w, goal_w = min(from_w, self.most_w), min(goal_w, self.most_w)
        way_w = ramp * (to_s - state.time_s)
        if way_w >= abs(goal_w - from_w):
            return aim_w
        return from_w - way_w if goal_w < from_w else from_w + way_w

    def _ramp_at(self, time_s: float, before: float | None) -> float | None:
        """The ramp from ``time_s`` on: that of the word that begins or ends there, else as before."""
        for word in reversed(self._words):
            if time_s in (word.from_s, word.until_s):
                return word.ramp_w_per_s
        return before

    def _drop_anchor(self, time_s: float) -> None:
        if time_s < self._anchor.time_s:
            self._set_back(time_s)
        self._anchor = self._folded(time_s)

    def _set_back(self, time_s: float) -> None:
        """The clock was set back behind the anchor. What was in force stays in force, and what has ended stays so; a
        word that is said now comes after all that have begun, whatever the clock said then. Ends are the clock's."""
        here = self._anchor
        live = _live(self._words, here.time_s)
        # In the order in which they began: beginning at one time, the last of them holds.
        begun = sorted((word for word in live if word.from_s <= here.time_s), key=lambda word: word.from_s)
        ahead = (word for word in live if word.from_s > here.time_s)
        self._words = (*(replace(word, from_s=min(word.from_s, time_s)) for word in begun), *ahead)
        self._anchor = replace(here, time_s=time_s)

    def _turn(self, ramp_w_per_s: float | None) -> None:
        """The aim has changed at the anchor: on from there with this ramp."""
        here = self._anchor
        self._anchor = _Anchor(here.time_s, self._set_out(here.cap_w, here.time_s, ramp_w_per_s), ramp_w_per_s)


def _watts(cap_w: float | None) -> float:
    return math.inf if cap_w is None else cap_w


def _limit(cap_w: float, idle_w: float) -> float | None:
    return None if cap_w == math.inf else max(cap_w, idle_w)


def _live(words: Iterable[CapWord], now_s: float) -> tuple[CapWord, ...]:
    """Without those that can never hold again: ended, or begun before a word that is in force for good."""
    there = tuple(word for word in words if word.until_s is None or word.until_s > now_s)
    standing = max((word.from_s for word in there if word.until_s is None and word.from_s <= now_s), default=-math.inf)
    return tuple(word for word in there if word.from_s >= standing)
