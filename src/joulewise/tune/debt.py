"""The job's time account: is the whole job, probes and all, still within its slowdown bound?

What it is: a fold of blocks that adds up seconds lost against default, with their uncertainty, and says what may still
be lost. Why it exists: each setting may keep its bound while the way to it does not. What it is not: a test of a
setting (tune/guard).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulewise.core.block import Block, Rung
from joulewise.core.knob import DEFAULT, Setting

_Line = tuple[str, Rung]
"""A phase under one ruler: only within it are two units of work the same."""


@dataclass(slots=True)
class _Pace:
    """What is known of one phase's unit time at default, and how many default seconds were reckoned with it."""

    unit_s: float
    error: float
    reckoned_s: float = 0.0


@dataclass(slots=True)
class _Known:
    """Time spent at a setting whose slowdown is known, and the latest word on that."""

    spent_s: float
    slowdown: float
    upper: float

    @property
    def default_s(self) -> float:
        return self.spent_s / (1 + self.slowdown)

    @property
    def doubt_s(self) -> float:
        """What more may have been lost than was estimated."""
        return self.default_s - self.spent_s / (1 + max(self.upper, self.slowdown))


class Debt:
    """The job's time account: seconds spent on its work − seconds that the same work takes at default.

    Every block is told, probes and pairs included. At default a block adds no debt and renews its phase's pace; at any
    other setting its default time is work × the last pace of its phase, or, where the caller knows the setting's
    slowdown from pairs (which drift does not hurt), ``duration / (1 + slowdown)``; the latest word on a setting counts
    for all that was told so of it since the last ``settle``. Whoever learns that the job changed settles first: what
    was owed under the old pace stays as it was estimated then. Blocks of two rulers are never reckoned together.
    ``room_s`` is what may still be lost: bound × default time − debt − one-sided uncertainty. A job just begun has no
    time to its credit, so ``horizon_s`` of default time is lent to it: a job at least so long stays within its bound.
    """

    # One-sided 95 % of a normal: how much of the uncertainty counts against us.
    _CAUTION = 1.645

    def __init__(self, bound: float, *, horizon_s: float = 60.0) -> None:
        if not bound >= 0:
            raise ValueError(f"a slowdown bound must be 0 or more, not {bound}")
        self.bound = bound
        self.horizon_s = horizon_s
        self._lost_s = 0.0
        self._plain_default_s = 0.0
        self._variance_s2 = 0.0
        self._doubt_s = 0.0
        self._paces: dict[_Line, _Pace] = {}
        self._known: dict[tuple[_Line, Setting], _Known] = {}
        self._early: dict[_Line, list[Block]] = {}
        """Blocks before their line was seen at default: reckoned when it is."""

    def tell(self, block: Block, *, slowdown: float | None = None, upper: float | None = None) -> None:
        """One block of the job's life. ``slowdown`` is what its setting is known to cost, ``upper`` what it costs at
        most, if known."""
        line = (block.phase, block.rung)
        if block.setting == DEFAULT:
            self._renew(line, block)
            self._plain_default_s += block.duration_s
        elif slowdown is not None:
            key = (line, block.setting)
            before_s = self._known[key].spent_s if key in self._known else 0.0
            self._known[key] = _Known(before_s + block.duration_s, slowdown, slowdown if upper is None else upper)
        elif (pace := self._paces.get(line)) is not None:
            self._reckon(block, pace)
        else:  # nothing is known of this line at default: neither debt nor credit, until there is
            self._early.setdefault(line, []).append(block)

    def settle(self, phase: str | None = None) -> None:
        """The job changed, in one phase or (None) all over, or is measured by another ruler: close the account so far.

        What was lost until now, and how well that is known, no longer depends on what is told from here on.
        """
        for line in [line for line in self._paces if phase in (None, line[0])]:
            pace = self._paces.pop(line)
            self._variance_s2 += (pace.reckoned_s * pace.error) ** 2
        for key in [key for key in self._known if phase in (None, key[0][0])]:
            known = self._known.pop(key)
            self._plain_default_s += known.default_s
            self._lost_s += known.spent_s - known.default_s
            self._doubt_s += known.doubt_s
        for line in [line for line in self._early if phase in (None, line[0])]:
            del self._early[line]  # nothing will ever tell what they took at default

    def charge(self, lost_s: float) -> None:
        """Seconds lost that no block shows: a switch, a wait."""
        self._lost_s += lost_s

    def _reckon(self, block: Block, pace: _Pace) -> None:
        default_s = block.work * pace.unit_s
        self._plain_default_s += default_s
        self._lost_s += block.duration_s - default_s
        pace.reckoned_s += default_s

    def _renew(self, line: _Line, block: Block) -> None:
        old = self._paces.get(line)
        if old is None:
            pace = self._paces[line] = _Pace(block.unit_s, block.time_error)
            for early in self._early.pop(line, []):
                self._reckon(early, pace)
            return
        self._variance_s2 += (old.reckoned_s * old.error) ** 2
        # Half the new block, half what was known: recent enough to follow drift, and less noisy than one block.
        self._paces[line] = _Pace((old.unit_s + block.unit_s) / 2, math.hypot(old.error, block.time_error) / 2)

    @property
    def default_s(self) -> float:
        """Seconds that all the work told of takes at default."""
        return self._plain_default_s + sum(known.default_s for known in self._known.values())

    @property
    def seconds(self) -> float:
        """Seconds lost so far against default; negative is time won."""
        return self._lost_s + sum(known.spent_s - known.default_s for known in self._known.values())

    @property
    def error_s(self) -> float:
        """One standard error of what was reckoned by the pace; one estimate serves many blocks, so its error adds up
        straight."""
        paces_s2 = sum((pace.reckoned_s * pace.error) ** 2 for pace in self._paces.values())
        return math.sqrt(self._variance_s2 + paces_s2)

    @property
    def doubt_s(self) -> float:
        """Seconds that may have been lost beyond ``seconds``: up to the most that settings are known to cost, and one
        sided 95 % of what was reckoned by the pace."""
        known_s = sum(known.doubt_s for known in self._known.values())
        return self._doubt_s + known_s + self._CAUTION * self.error_s

    @property
    def room_s(self) -> float:
        """Seconds that may still be lost; negative means over the bound, or too close to say that it is not."""
        return self.bound * max(self.default_s, self.horizon_s) - self.seconds - self.doubt_s

    @property
    def over(self) -> bool:
        """Whether more was lost than may be, doubts aside."""
        return self.seconds > self.bound * max(self.default_s, self.horizon_s)

    @property
    def slowdown(self) -> float:
        """The whole job's slowdown so far; 0 before anything was told."""
        return self.seconds / self.default_s if self.default_s > 0 else 0.0

    def allows(self, slowdown: float, duration_s: float) -> bool:
        """Whether ``duration_s`` more seconds at a setting of this slowdown keep the job within its bound."""
        default_s = duration_s / (1 + slowdown)
        earned_s = self.bound * max(0.0, self.default_s + default_s - max(self.default_s, self.horizon_s))
        return duration_s - default_s <= self.room_s + earned_s

    def lasts_s(self, slowdown: float) -> float:
        """How long a setting of this slowdown may be held from now; infinite when it earns what it costs."""
        if self.room_s < 0:
            return math.inf if slowdown <= 0 else 0.0
        lent_s = max(0.0, self.horizon_s - self.default_s)  # as long as the horizon lasts nothing is earned
        if slowdown * lent_s > self.room_s:
            return self.room_s / slowdown * (1 + slowdown)
        if slowdown <= self.bound:
            return math.inf
        return (self.room_s - self.bound * lent_s) / (slowdown - self.bound) * (1 + slowdown)
