"""What was compared with nothing set: drawn windows with what was held beside them, and the guard's pairs.

What it is: a fold of blocks into ``Comparison``, the log ratios of joules and seconds a unit of work under a setting
against default, each in the ``Cell`` that it speaks for. What it is not: an estimate of the saving (tune/proof).

A cell is where a setting has one effect: a *line* (a phase, under one ruler, between two changes of the ruler: only
there are two units of work the same), between two large changes of the job, one setting, with or without the slack of
GPUs that wait for others (tune/slack).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from joulewise.core.block import Block, Role, Rung
from joulewise.core.event import Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.coins import VOID
from joulewise.tune.counterfactual import Row

SHIFTS = ("small", "large")
"""``Shifted.what`` after which blocks of that phase are not compared with earlier ones."""
LARGE = "large"
"""The one of them after which a setting has another effect."""
RULER = "ruler"
"""``Shifted.what`` after which work is counted in another unit, in all phases."""


class Line(NamedTuple):
    """What counts in one unit of work: a phase, a ruler, and how often that was changed before."""

    phase: str
    rung: Rung
    rulers: int

    def says(self, others: Iterable[Line]) -> str:
        """Its name among others: the ruler is told where the phase has several."""
        ruler = f" by {self.rung}" if len({each for each in others if each.phase == self.phase}) > 1 else ""
        return f"phase {self.phase or 'unnamed'}{ruler}"


class Cell(NamedTuple):
    """Where a setting has one effect."""

    line: Line
    epoch: int
    """Large changes of the job before it."""
    setting: Setting
    slack: bool


class Cells:
    """Which blocks belong together, by what changed when."""

    def __init__(self, shifts: Iterable[Shifted]) -> None:
        shifts = list(shifts)
        self._rulers_s = sorted(shift.time_s for shift in shifts if shift.what == RULER)
        self._breaks = [(shift.phase, shift.time_s) for shift in shifts if shift.what in SHIFTS]
        self._large = [(shift.phase, shift.time_s) for shift in shifts if shift.what == LARGE]

    def line(self, block: Block) -> Line:
        """What the block's work is counted in."""
        return Line(block.phase, block.rung, bisect_right(self._rulers_s, _middle_s(block)))

    def epoch(self, block: Block) -> int:
        """Large changes of the block's phase before it."""
        return sum(time_s <= _middle_s(block) for phase, time_s in self._large if phase in ("", block.phase))

    def of(self, block: Block) -> Cell:
        """The block's cell."""
        return Cell(self.line(block), self.epoch(block), block.setting, block.slack)

    def between(self, block: Block) -> tuple[float, float]:
        """The changes of its phase before and after a block: its neighbours lie between them."""
        times_s = sorted(time_s for phase, time_s in self._breaks if phase in ("", block.phase))
        place = bisect_right(times_s, block.start_s)
        return (
            times_s[place - 1] if place else -math.inf,
            times_s[place] if place < len(times_s) else math.inf,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A setting against default, once."""

    cell: Cell
    energy: float
    """ln(joules a unit under the setting / at default)."""
    time: float
    """ln(seconds a unit under the setting / at default)."""
    weight_s: float
    """How much it says: the error of a block's mean falls with its length, so 1 / (1/length + 1/length), in seconds."""
    drawn: bool
    """Whether its time was drawn by the schedule; else it is a pair of the guard, whose order was."""


def windows(seen: Sequence[Seen], cells: Cells) -> list[Comparison]:
    """Every drawn window against what was held beside it; those with no neighbour are left out."""
    rows: dict[Line, list[Block]] = {}
    for each in seen:
        if each.role is Role.HOLD and each.block.setting != DEFAULT:
            rows.setdefault(cells.line(each.block), []).append(each.block)
    held = {line: Row(blocks) for line, blocks in rows.items()}
    found = []
    for each in seen:
        window = each.block
        if each.role is not Role.PROOF or (row := held.get(cells.line(window))) is None:
            continue
        near = row.beside(window, *cells.between(window))
        if near:
            length_s = 1 / sum(weight**2 / block.duration_s for block, weight in near)
            found.append(
                Comparison(
                    cells.of(near[0][0]),
                    sum(weight * math.log(block.unit_j / window.unit_j) for block, weight in near),
                    sum(weight * math.log(block.unit_s / window.unit_s) for block, weight in near),
                    1 / (1 / window.duration_s + 1 / length_s),
                    drawn=True,
                )
            )
    return found


def pairs(seen: Sequence[Seen], shifts: Iterable[Shifted], cells: Cells) -> list[Comparison]:
    """The guard's pairs; ``shifts`` tell of halves that came to nothing, and of changes between two halves."""
    found: list[Comparison] = []
    voids: dict[str, list[float]] = {}
    for shift in shifts:
        if shift.what == VOID or shift.what in SHIFTS:
            voids.setdefault(shift.phase, []).append(shift.time_s)
    lines: dict[Line, list[Seen]] = {}
    for each in seen:
        if each.role in (Role.CANDIDATE, Role.REFERENCE):
            lines.setdefault(cells.line(each.block), []).append(each)
    for line, halves in lines.items():
        times_s = voids.get(line.phase, [])
        first: Seen | None = None
        for half in halves:
            if first is None or first.role is half.role or _between(times_s, first.time_s, half.time_s):
                first = half  # the partner of the one before, if there was one, came to nothing
                continue
            one, other = (half.block, first.block) if half.role is Role.CANDIDATE else (first.block, half.block)
            found.append(
                Comparison(
                    cells.of(one),
                    math.log(one.unit_j / other.unit_j),
                    math.log(one.unit_s / other.unit_s),
                    1 / (1 / one.duration_s + 1 / other.duration_s),
                    drawn=False,
                )
            )
            first = None
    return found


def _between(times_s: Sequence[float], from_s: float, to_s: float) -> bool:
    return bisect_right(times_s, from_s) < bisect_left(times_s, to_s)


def _middle_s(block: Block) -> float:
    return (block.start_s + block.end_s) / 2
