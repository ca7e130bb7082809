"""What would have been used with nothing set, and how well that is known: the arithmetic of the proof.

What it is: neighbours in time (``Row``), a known effect (``Effect``), and an account of what was used against what
would have been (``Account``), whose result is a ``Change`` with its 95 % interval. What it is not: the choice of what
is compared with what (tune/proof).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from joulewise.core.block import Block
from joulewise.core.knob import DEFAULT

# Student's t, 97.5 %, by degrees of freedom: any table.
# Windows and pairs scatter less than the work that they stand for differs from them (heat, drift between two windows):
# over the virtual jobs of ``bench.online --virtual`` intervals by their scatter alone held the truth in 90 of 100, 95
# being meant; this much wider they do in 94.
_WIDER = 1.15
_T = (
    (1.0, 12.706),
    (2.0, 4.303),
    (3.0, 3.182),
    (4.0, 2.776),
    (5.0, 2.571),
    (6.0, 2.447),
    (8.0, 2.306),
    (10.0, 2.228),
    (15.0, 2.131),
    (30.0, 2.042),
    (60.0, 2.000),
    (math.inf, 1.960),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A relative change, −0.08 is 8 % less, with one standard error and its 95 % interval."""

    value: float
    error: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width: what stands after ±."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.value:+.1%} ± {self.half:.1%}"


@dataclass(frozen=True, slots=True)
class Effect:
    """ln(held / baseline) with its variance, and the degrees of freedom of the scatter that it was reckoned from."""

    log: float
    variance: float
    freedom: float
    scatter: Hashable
    """Effects reckoned from one scatter err together if that is wrong: it has no more degrees of freedom for them."""


@dataclass(slots=True)
class Account:
    """What was used, what would have been used, and how well the latter is known."""

    used: float = 0.0
    without: float = 0.0
    parts: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    """Variances of ``without`` with their degrees of freedom, by what scatter they were reckoned from."""

    def add(self, used: float, effect: Effect) -> None:
        """Something used under a setting whose effect is known."""
        default = used * math.exp(-effect.log)
        self.used, self.without = self.used + used, self.without + default
        before, _ = self.parts.get(effect.scatter, (0.0, 0.0))
        self.parts[effect.scatter] = before + default**2 * effect.variance, effect.freedom

    @property
    def error(self) -> float:
        """One standard error of ``without``."""
        return math.sqrt(sum(part for part, _ in self.parts.values()))

    @property
    def half(self) -> float:
        """Half the 95 % interval of ``without``; degrees of freedom by Welch and Satterthwaite."""
        shared = sum(part**2 / freedom for part, freedom in self.parts.values())
        return _WIDER * student_t(self.error**4 / shared if shared > 0 else math.inf) * self.error

    def change(self) -> Change:
        """Relative change with its interval on the logarithmic scale, where it is symmetric."""
        ratio, half = self.used / self.without, self.half / self.without
        error = ratio * self.error / self.without
        return Change(ratio - 1, error, ratio * math.exp(-half) - 1, ratio * math.exp(half) - 1)


def add_rest(
    whole: Account,
    blocks: Sequence[Block],
    which: str,
    amount: Callable[[Block], float],
    line: Callable[[Block], Hashable],
) -> float:
    """Blocks that no effect stands for; the seconds of those that nothing at default can be put beside.

    ``line`` says which blocks count in one unit of work: only those are put beside each other. At default a block is
    its own counterfactual; at other settings the nearest blocks at default say. One of these may serve several probes,
    so their errors are added up over all that they serve before they are squared.
    """
    at_default: dict[Hashable, list[Block]] = {}
    for block in blocks:
        if block.setting == DEFAULT:
            at_default.setdefault(line(block), []).append(block)
    rows = {each: Row(beside) for each, beside in at_default.items()}
    served: dict[int, float] = {}
    lost_s = own2 = 0.0
    for block in blocks:
        if block.setting == DEFAULT:
            whole.used, whole.without = whole.used + amount(block), whole.without + amount(block)
            continue
        row = rows.get(line(block))
        near = row.beside(block) if row is not None else []
        if not near:
            lost_s += block.duration_s
            continue
        for other, weight in near:
            part = block.work * weight * amount(other) / other.work
            whole.without += part
            served[id(other)] = served.get(id(other), 0.0) + part * _error(other, which)
        whole.used += amount(block)
        own2 += (amount(block) * _error(block, which)) ** 2
    whole.parts["rest"] = own2 + sum(error**2 for error in served.values()), math.inf
    return lost_s


class Row:
    """Blocks of one line in the order of time, to find neighbours in."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = sorted(blocks, key=_middle_s)
        self._middles_s = [_middle_s(block) for block in self._blocks]

    def beside(self, block: Block, from_s: float = -math.inf, to_s: float = math.inf) -> list[tuple[Block, float]]:
        """The blocks before and after, between two moments, weighed so that they stand for the middle of ``block``.

        One where one is missing. Two blocks of different settings, or of which one had slack, are not mixed: the one
        before is what was held when the window fell due.
        """
        middle_s = _middle_s(block)
        place = bisect_right(self._middles_s, middle_s)
        before = self._blocks[place - 1] if place else None
        after = self._blocks[place] if place < len(self._blocks) else None
        if before is not None and before.start_s < from_s:
            before = None
        if after is not None and after.end_s > to_s:
            after = None
        if before is None or after is None or (before.setting, before.slack) != (after.setting, after.slack):
            only = before or after
            return [(only, 1.0)] if only is not None else []
        share = (middle_s - _middle_s(before)) / (_middle_s(after) - _middle_s(before))
        return [(before, 1.0 - share), (after, share)]


def _middle_s(block: Block) -> float:
    return (block.start_s + block.end_s) / 2


def _error(block: Block, which: str) -> float:
    return math.hypot(block.time_error, block.power_error) if which == "energy" else block.time_error


def student_t(freedom: float) -> float:
    """97.5 % quantile of Student's t, linear in 1/freedom between a table's rows (within 0.5 %)."""
    inverse = 1 / max(freedom, 1.0)
    for (few, wide), (more, narrow) in itertools.pairwise(_T):
        if inverse >= 1 / more:
            share = (inverse - 1 / more) / (1 / few - 1 / more)
            return narrow + share * (wide - narrow)
    return _T[-1][1]
