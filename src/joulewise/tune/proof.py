"""The proof of a saving: what was held, against nothing set, at times and in an order that were drawn beforehand.

What it is: ``prove`` (energy and time against the counterfactual of nothing set, from blocks alone) and what it gives,
``Proof``; ``Schedule``, when a window falls due, is from tune/schedule. Why it exists: "saved 8 %" against a baseline
measured once, an hour ago, by whoever wants the saving to be large, is worth nothing. What it is not: the guard that
decides (tune/guard). ``tune/verify`` recomputes a proof from a journal.

**The estimate.** y = ln(held / baseline), of joules and of seconds a unit of work, is seen in two kinds of comparisons
(tune/comparisons): a *window* at a drawn time against the HOLD blocks before and after it, interpolated to its middle
(a steady drift cancels; a block on the other side of a shift is no neighbour), and a *pair* of the guard, two blocks
side by side whose order a coin drew. Every *cell* (one setting, in one phase, under one ruler, between two large
changes of the job) has an effect of its own: the mean of its comparisons, each weighted with its length. How much a
comparison of one second scatters about its cell's mean is pooled over the cells of a phase (over all where a phase has
too few), and Student's t on that scatter gives the interval: nothing is assumed of noise inside windows or between
them. What was held in each cell is then divided by e^y of that cell, and cells are added up, degrees of freedom by
Welch and Satterthwaite.

**Why that is right.** Within a cell both kinds compare the same two settings on the same work, and the side on which
noise falls is drawn in both, by the window's place or by the pair's coin: each y is right in the mean however the job
wanders. *When* a pair is run may depend on what pairs before it showed (the time account has pairs run more often when
it is short, and a setting that looks bad is left), but not on the noise of the pair itself. So it does not matter how
pairs and long holds alternate, nor that settings change: a HOLD block is only ever judged by comparisons of its own
setting. Two things remain. Pairs stop when they look good, so an interval known from pairs alone is a quarter wider,
one from windows alone is not. And the effect is taken to be the same throughout a cell: windows, which fall anywhere in
it, speak for a slow change of it, pairs at its beginning do not.

**The whole run.** What the run would have used is: in cells that were held, candidates included, their energy / e^y;
for blocks at default, their own; for probes, other candidates, and cells in which nothing was compared, their work ×
the baseline's joules a unit at the nearest blocks at default of the same phase. Only clean work is judged: evaluation,
checkpoints, compilation and switches are in nobody's favour and are stated in ``unjudged``, as is work of a phase that
was never seen at default. A comparison of seconds cannot show slow heat: a chip that the held setting keeps cooler runs
its baseline windows with less leakage, and, where the power limit holds it back, a little faster than it would for
long: both, by a few thousandths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from joulewise.core.block import Block, Role
from joulewise.core.event import Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT
from joulewise.core.units import format_energy
from joulewise.tune.comparisons import RULER, SHIFTS, Cell, Cells, Comparison, pairs, windows
from joulewise.tune.counterfactual import Account, Change, Effect, add_rest
from joulewise.tune.schedule import PROOF_REASON, Schedule

__all__ = ["LEAST_WINDOWS", "PROOF_REASON", "RULER", "SHIFTS", "Change", "Proof", "Schedule", "prove"]

LEAST_WINDOWS = 4
"""Windows without which nothing is claimed: Student's t at three degrees of freedom is 3.2 standard errors wide."""
LEAST_FREEDOM = LEAST_WINDOWS - 1
"""Comparisons beyond one a cell from which a scatter is known."""

# Pairs were stopped by how they looked, which makes them look a little too good; with an effect known from them alone
# wider by this, nineteen of twenty cover the truth again even where the guard hesitated long (tests/tune/test_proof).
_STOPPED = 1.25
# No ruler is finer than this; comparisons that agree to the last digit are not perfect.
_LEAST_ERROR = 1e-5

_Known = dict[Cell, list[Comparison]]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was saved. ``None`` where it cannot be judged."""

    energy: Change | None
    """Joules of the whole run's clean work against nothing set, probing and windows included."""
    time: Change | None
    """Seconds likewise."""
    held_energy: Change | None
    """The same while a setting was held, windows and probing left out."""
    held_time: Change | None
    saved_j: float | None
    saved_low_j: float | None
    saved_high_j: float | None
    windows: int
    """Baseline windows that could be compared."""
    pairs: int
    """Pairs of the guard that compared what was held."""
    baseline_share: float
    """Share of the held time that went into windows."""
    unjudged: tuple[str, ...]
    """What could not be judged, in words."""

    @property
    def says(self) -> str:
        """One line for a user."""
        if self.energy is None or self.time is None or self.saved_j is None:
            return "the saving cannot be judged" + (f": {self.unjudged[0]}" if self.unjudged else "")
        word = "saved" if self.energy.value <= 0 else "lost"
        return (
            f"{word} {abs(self.energy.value):.1%} ± {self.energy.half:.1%} energy, {self.time} time, "
            f"{format_energy(abs(self.saved_j))}"
        )

    def event(self, time_s: float) -> Proven | None:
        """As the journal holds it; None where nothing could be judged."""
        if self.energy is None or self.time is None:
            return None
        return Proven(time_s, self.energy.value, self.energy.error, self.time.value, self.time.error)


def prove(seen: Sequence[Seen], shifts: Iterable[Shifted] = (), *, ended_s: float | None = None) -> Proof:
    """The proof from what was seen, in order; ``shifts`` keep apart what the job's own changes made different.

    ``ended_s`` is when the run ended, or now: what came after the last block is then stated as not judged.
    """
    every, seen = seen, [each for each in seen if 0 < each.block.energy_j < math.inf]
    shifts = list(shifts)
    cells = Cells(shifts)
    held = [each.block for each in seen if each.role is Role.HOLD and each.block.setting != DEFAULT]
    drawn = [each.block for each in seen if each.role is Role.PROOF]
    unjudged = [f"{len(every) - len(seen)} blocks whose energy could not be read"] * (len(every) > len(seen))
    known: _Known = {cells.of(block): [] for block in held}
    for found in (*windows(seen, cells), *pairs(seen, shifts, cells)):
        if found.cell in known:
            known[found.cell].append(found)
    count = sum(found.drawn for comparisons in known.values() for found in comparisons)
    served = sum(map(len, known.values())) - count
    if len(drawn) > count:
        unjudged.append(f"{len(drawn) - count} of {len(drawn)} baseline windows: nothing was held beside them")
    spent_s, held_s = (sum(block.duration_s for block in blocks) for blocks in (drawn, held))
    share = spent_s / (spent_s + held_s) if drawn else 0.0
    left_out = _left_out(seen, ended_s)
    if held and count + served < LEAST_WINDOWS:
        there = f"{count} baseline window{'s' * (count != 1)} could be compared"
        unjudged = [f"the saving: {there}, {LEAST_WINDOWS} are needed", *unjudged, *left_out]
        return Proof(None, None, None, None, None, None, None, count, 0, share, tuple(unjudged))
    if served and count < LEAST_WINDOWS:
        unjudged.append(
            f"the saving by drawn windows alone: they are few, {served} verification pairs serve beside them"
        )
    unjudged += _uncompared(known, held, cells)
    known = {cell: comparisons for cell, comparisons in known.items() if comparisons}
    energy, held_energy, saved = _whole(seen, cells, known, "energy", _energy, unjudged)
    time, held_time, _ = _whole(seen, cells, known, "time", _seconds, [])
    return Proof(energy, time, held_energy, held_time, *saved, count, served, share, (*unjudged, *left_out))


def _energy(block: Block) -> float:
    return block.energy_j


def _seconds(block: Block) -> float:
    return block.duration_s


def _uncompared(known: _Known, held: Iterable[Block], cells: Cells) -> list[str]:
    """What was held in phases where nothing was compared, in words."""
    lines = {cell.line for cell in known}
    compared = {cell.line for cell, comparisons in known.items() if comparisons}
    return [
        f"{line.says(lines)} by what was held there: nothing was compared, its baseline alone says what it saved"
        for line in sorted({cells.line(block) for block in held} - compared)
    ]


def _whole(
    seen: Sequence[Seen],
    cells: Cells,
    known: _Known,
    which: str,
    amount: Callable[[Block], float],
    unjudged: list[str],
) -> tuple[Change | None, Change | None, tuple[float | None, float | None, float | None]]:
    """Change of the whole run, change while held, and (saved, low, high) in the unit of ``amount``."""
    stands_for = {cell: cell for cell in known}
    if known and sum(len(some) - 1 for some in known.values()) < LEAST_FREEDOM:
        # Single comparisons of many settings: how they scatter can only be told of all as one.
        one, *_ = known
        stands_for = dict.fromkeys(known, one)
        known = {one: [each for some in known.values() for each in some]}
    held: dict[Cell, float] = {}
    alike: dict[Cell, float] = {}
    rest = []
    for each in seen:
        block, cell = each.block, stands_for.get(cells.of(each.block))
        # A candidate that came to be held counts as held: its own pairs are part of what the effect is known from.
        if cell is None:
            rest.append(block)
            continue
        alike[cell] = alike.get(cell, 0.0) + amount(block)
        if each.role is Role.HOLD:
            held[cell] = held.get(cell, 0.0) + amount(block)
    while_held, whole = Account(), Account()
    for cell, effect in _effects(known, which).items():
        while_held.add(held[cell], effect)
        whole.add(alike[cell], effect)
    lost_s = add_rest(whole, rest, which, amount, lambda block: (cells.line(block), cells.epoch(block)))
    if lost_s > 0:
        unjudged.append(f"{lost_s:.1f} s of probing in phases that were never seen at default")
    held_change = while_held.change() if held else None
    if not whole.without > 0:
        return None, held_change, (None, None, None)
    saved, half = whole.without - whole.used, whole.half
    return whole.change(), held_change, (saved, saved - half, saved + half)


def _effects(known: _Known, which: str) -> dict[Cell, Effect]:
    """The effect in every cell: its own mean, and the scatter of its line, or of all where that line has too little."""
    fits = {cell: _Fit.of([(getattr(each, which), each.weight_s) for each in some]) for cell, some in known.items()}
    pooled = _scatter(fits.values())
    effects = {}
    for cell, fit in fits.items():
        own = _scatter(other for at, other in fits.items() if at.line == cell.line)
        (scatter, freedom), name = (own, cell.line) if own[1] >= LEAST_FREEDOM else (pooled, "all")
        stopped = sum(each.weight_s for each in known[cell] if not each.drawn) / fit.weight_s
        wider2 = 1.0 + (_STOPPED**2 - 1.0) * stopped
        effects[cell] = Effect(fit.mean, max(scatter / fit.weight_s, _LEAST_ERROR**2) * wider2, freedom, name)
    return effects


@dataclass(frozen=True, slots=True)
class _Fit:
    """A weighted mean, and how its parts scatter."""

    mean: float
    weight_s: float
    squares_s: float
    freedom: float

    @classmethod
    def of(cls, parts: Sequence[tuple[float, float]]) -> _Fit:
        """Of values and their weights."""
        weight_s = sum(weight for _, weight in parts)
        mean = sum(weight * value for value, weight in parts) / weight_s
        squares_s = sum(weight * (value - mean) ** 2 for value, weight in parts)
        return cls(mean, weight_s, squares_s, len(parts) - 1.0)


def _scatter(fits: Iterable[_Fit]) -> tuple[float, float]:
    """Variance of a comparison of weight one about the mean of its cell, and its degrees of freedom."""
    fits = list(fits)
    freedom = sum(fit.freedom for fit in fits)
    return sum(fit.squares_s for fit in fits) / max(freedom, 1.0), freedom


def _left_out(seen: Sequence[Seen], ended_s: float | None) -> list[str]:
    """What of the run's life lies in no block: blocks of two phases may interleave, so only the sum can be told."""
    if not seen:
        return []
    last_s = max(each.block.end_s for each in seen)
    life_s = max(last_s, ended_s or last_s) - min(each.block.start_s for each in seen)
    left_s = life_s - sum(each.block.duration_s for each in seen)
    if not left_s > 0.01 * life_s:  # one per cent is not worth a line
        return []
    return [f"{left_s:.0f} s of {life_s:.0f} s: start-up, evaluation, checkpoints, stalls, idle and switches"]
