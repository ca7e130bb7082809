"""The proof of a saving: baseline windows at times drawn beforehand, against the held setting around them.

What it is: ``prove`` (energy and time against the counterfactual of nothing set, from blocks alone) and what it gives,
``Proof``; ``Schedule``, when a window falls due, is from tune/schedule. Why it exists: "saved 8 %" against a baseline
measured once, an hour ago, by whoever wants the saving to be large, is worth nothing. What it is not: the guard that
decides (tune/guard). ``tune/verify`` recomputes a proof from a journal.

**The estimate.** A window is compared with the HOLD blocks of its phase before and after it, interpolated to its middle
(a steady drift cancels; a block on the other side of a shift is no neighbour): y = ln(held / baseline) for joules and
for seconds a unit of work. Because the times are random, the mean of y over a phase's windows estimates the mean
effect over all that was held there, however the job wanders. Its interval is Student's t on the windows' own scatter:
nothing is assumed of noise inside windows or between them. Phases are added up weighted with what was held in each,
degrees of freedom by Welch and Satterthwaite. Where windows are few (``LEAST_WINDOWS`` in all, three in a phase), the
pairs in which the guard compared the held setting serve beside them; the proof says so, and its intervals are a quarter
wider. Phases that still have too few are judged together; fewer in all cannot be judged.

**One unit.** Steps, periods and counts of activity are different units of work, and a ruler found anew may count in
another one: blocks are compared only within a *line*, which is a phase, under one ruler, between two changes of the
ruler (``Shifted`` with ``what`` = ``RULER``). Logarithms of ratios have no unit: they may be judged together.

**The whole run.** What the run would have used is: for HOLD blocks, and candidates that came to be held, their energy
/ e^y; for blocks at default, their own; for probes and other candidates, their work × the baseline's joules a unit at
the nearest blocks at default of the same phase. Only clean work is judged: evaluation, checkpoints, compilation and
switches are in nobody's favour and are stated in ``unjudged``, as is work of a phase that was never seen at default. A
window of seconds cannot show slow heat: a chip kept cooler by the held setting lets its baseline windows look slightly
too good, which understates the saving.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import NamedTuple

from joulewise.core.block import Block, Role, Rung
from joulewise.core.event import Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.units import format_energy
from joulewise.tune.coins import VOID
from joulewise.tune.counterfactual import Account, Change, Effect, Row, add_rest
from joulewise.tune.schedule import PROOF_REASON, Schedule

__all__ = ["LEAST_WINDOWS", "PROOF_REASON", "RULER", "SHIFTS", "Change", "Proof", "Schedule", "prove"]

LEAST_WINDOWS = 4
"""Windows without which nothing is claimed: Student's t at three degrees of freedom is 3.2 standard errors wide."""
SHIFTS = ("small", "large")
"""``Shifted.what`` after which blocks of that phase are not compared with earlier ones."""
RULER = "ruler"
"""``Shifted.what`` after which work is counted in another unit, in all phases."""

# Windows that a phase needs to be judged by itself.
_LEAST_APART = 3
# Pairs were stopped by how they looked, which makes them look a little too good; with intervals wider by this, nineteen
# of twenty cover the truth again even where the guard hesitated long (tests/tune/test_proof.py).
_STOPPED = 1.25
# No ruler is finer than this; windows that agree to the last digit are not perfect.
_LEAST_ERROR = 1e-5


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
    """Pairs of the guard that had to serve as windows; 0 where there were enough windows."""
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


class _Line(NamedTuple):
    """What counts in one unit of work: a phase, a ruler, and how often that was changed before."""

    phase: str
    rung: Rung
    rulers: int

    def says(self, others: Iterable[_Line]) -> str:
        """Its name among others: the ruler is told where the phase has several."""
        ruler = f" by {self.rung}" if sum(each.phase == self.phase for each in others) > 1 else ""
        return f"phase {self.phase or 'unnamed'}{ruler}"


@dataclass(frozen=True, slots=True)
class _Windows:
    """The comparisons of one line: log ratios of joules and of seconds a unit."""

    energy: tuple[float, ...] = ()
    time: tuple[float, ...] = ()

    def __add__(self, other: _Windows) -> _Windows:
        return _Windows(self.energy + other.energy, self.time + other.time)

    def __len__(self) -> int:
        return len(self.time)


class _Lines:
    """Which blocks count in one unit of work."""

    def __init__(self, shifts: Sequence[Shifted]) -> None:
        self._rulers_s = sorted(shift.time_s for shift in shifts if shift.what == RULER)

    def __call__(self, block: Block) -> _Line:
        rulers = bisect_right(self._rulers_s, (block.start_s + block.end_s) / 2)
        return _Line(block.phase, block.rung, rulers)


def prove(seen: Sequence[Seen], shifts: Iterable[Shifted] = (), *, ended_s: float | None = None) -> Proof:
    """The proof from what was seen, in order; ``shifts`` keep apart what the job's own changes made different.

    ``ended_s`` is when the run ended, or now: what came after the last block is then stated as not judged.
    """
    every, seen = seen, [each for each in seen if 0 < each.block.energy_j < math.inf]
    shifts = list(shifts)
    line = _Lines(shifts)
    breaks = [(shift.phase, shift.time_s) for shift in shifts if shift.what in SHIFTS]
    held = [each.block for each in seen if each.role is Role.HOLD and each.block.setting != DEFAULT]
    drawn = [each.block for each in seen if each.role is Role.PROOF]
    unjudged = [f"{len(every) - len(seen)} blocks whose energy could not be read"] * (len(every) > len(seen))
    windows = {each: _compared(each, line, drawn, held, breaks) for each in sorted({line(block) for block in held})}
    count = sum(map(len, windows.values()))
    if len(drawn) > count:
        unjudged.append(f"{len(drawn) - count} of {len(drawn)} baseline windows: nothing was held beside them")
    # Where windows are few, in all or in one of several lines, the guard's pairs serve too.
    needed = LEAST_WINDOWS if count < LEAST_WINDOWS else _LEAST_APART
    short = [each for each, found in windows.items() if len(found) < needed and (len(windows) > 1 or needed > count)]
    longest = _longest(held, line)
    voids = [shift for shift in shifts if shift.what == VOID]
    served = {each: _pairs(each, [e for e in seen if line(e.block) == each], longest[each], voids) for each in short}
    pairs = sum(map(len, served.values()))
    windows = {each: found + served.get(each, _Windows()) for each, found in windows.items()}
    if held and count + pairs < LEAST_WINDOWS:
        there = f"{count} baseline window{'s' * (count != 1)} could be compared"
        unjudged.insert(0, f"the saving: {there}, {LEAST_WINDOWS} are needed")
        windows, pairs = {}, 0
    if pairs:
        unjudged.append(
            f"the saving by drawn windows alone: they are few, {pairs} verification pairs serve beside them"
        )
    if len(windows) > 1:
        few = [each for each, found in windows.items() if len(found) < _LEAST_APART]
        unjudged += [
            f"{each.says(windows)} by itself: too few windows, it is judged together with others" for each in few
        ]
    unjudged += _left_out(seen, ended_s)
    spent_s = sum(block.duration_s for block in drawn)
    held_s = sum(block.duration_s for block in held)
    share = spent_s / (spent_s + held_s) if drawn else 0.0
    if held and not windows:
        return Proof(None, None, None, None, None, None, None, count, pairs, share, tuple(unjudged))
    wider = _STOPPED if pairs else 1.0
    energy, held_energy, saved = _whole(seen, line, longest, windows, "energy", _energy, wider, unjudged)
    time, held_time, _ = _whole(seen, line, longest, windows, "time", _seconds, wider, [])
    return Proof(energy, time, held_energy, held_time, *saved, count, pairs, share, tuple(unjudged))


def _energy(block: Block) -> float:
    return block.energy_j


def _seconds(block: Block) -> float:
    return block.duration_s


def _compared(
    own: _Line,
    line: _Lines,
    drawn: Sequence[Block],
    held: Sequence[Block],
    breaks: Sequence[tuple[str, float]],
) -> _Windows:
    """Every window of a line against what was held beside it."""
    row = Row([block for block in held if line(block) == own])
    times_s = sorted(time_s for where, time_s in breaks if where in ("", own.phase))
    energy, time = [], []
    for window in drawn:
        if line(window) != own:
            continue
        place = bisect_right(times_s, window.start_s)
        from_s = times_s[place - 1] if place else -math.inf
        to_s = times_s[place] if place < len(times_s) else math.inf
        weighed = row.beside(window, from_s, to_s)
        if weighed:
            energy.append(sum(weight * math.log(block.unit_j / window.unit_j) for block, weight in weighed))
            time.append(sum(weight * math.log(block.unit_s / window.unit_s) for block, weight in weighed))
    return _Windows(tuple(energy), tuple(time))


def _pairs(own: _Line, seen: Sequence[Seen], setting: Setting, voids: Sequence[Shifted]) -> _Windows:
    """The guard's pairs of one setting, of what was seen in one line; ``voids`` tell of halves that came to nothing."""
    halves = [each for each in seen if each.role in (Role.CANDIDATE, Role.REFERENCE)]
    times_s = [void.time_s for void in voids if void.phase == own.phase]
    energy, time = [], []
    while len(halves) > 1:
        one, other = halves[0], halves[1]
        void = bisect_right(times_s, one.time_s) < bisect_left(times_s, other.time_s)
        if void or one.role is other.role:  # its partner came to nothing
            halves = halves[1:]
            continue
        candidate, reference = (one, other) if one.role is Role.CANDIDATE else (other, one)
        if candidate.block.setting == setting:
            energy.append(math.log(candidate.block.unit_j / reference.block.unit_j))
            time.append(math.log(candidate.block.unit_s / reference.block.unit_s))
        halves = halves[2:]
    return _Windows(tuple(energy), tuple(time))


def _longest(held: Iterable[Block], line: _Lines) -> dict[_Line, Setting]:
    """The setting that was held longest, for each line."""
    spent: dict[_Line, dict[Setting, float]] = {}
    for block in held:
        of_line = spent.setdefault(line(block), {})
        of_line[block.setting] = of_line.get(block.setting, 0.0) + block.duration_s
    return {each: max(settings, key=lambda setting: settings[setting]) for each, settings in spent.items()}


def _whole(
    seen: Sequence[Seen],
    line: _Lines,
    longest: dict[_Line, Setting],
    windows: dict[_Line, _Windows],
    which: str,
    amount: Callable[[Block], float],
    wider: float,
    unjudged: list[str],
) -> tuple[Change | None, Change | None, tuple[float | None, float | None, float | None]]:
    """Change of the whole run, change while held, and (saved, low, high) in the unit of ``amount``."""
    held: dict[_Line, float] = {}
    alike: dict[_Line, float] = {}
    rest = []
    for each in seen:
        block, own = each.block, line(each.block)
        # A candidate that came to be held counts as held: its own pairs may be what the effect is known from.
        if block.setting == DEFAULT or not (each.role is Role.HOLD or block.setting == longest.get(own)):
            rest.append(block)
            continue
        alike[own] = alike.get(own, 0.0) + amount(block)
        if each.role is Role.HOLD:
            held[own] = held.get(own, 0.0) + amount(block)
    while_held, whole = Account(), Account()
    for group, effect in _effects({each: getattr(found, which) for each, found in windows.items()}, wider):
        while_held.add(sum(held[each] for each in group), effect)
        whole.add(sum(alike[each] for each in group), effect)
    lost_s = add_rest(whole, rest, which, amount, line)
    if lost_s > 0:
        unjudged.append(f"{lost_s:.1f} s of probing in phases that were never seen at default")
    held_change = while_held.change() if held else None
    if not whole.without > 0:
        return None, held_change, (None, None, None)
    saved, half = whole.without - whole.used, whole.half
    return whole.change(), held_change, (saved, saved - half, saved + half)


def _effects(windows: dict[_Line, tuple[float, ...]], wider: float) -> list[tuple[set[_Line], Effect]]:
    """Groups of lines that have enough windows to be judged together, and each group's effect.

    ``wider`` is a factor on the standard errors.
    """
    rich = {each for each, logs in windows.items() if len(logs) >= _LEAST_APART}
    poor = set(windows) - rich
    if poor and sum(len(windows[each]) for each in poor) < _LEAST_APART and rich:
        # Too little is known of the rest: the richest line lends it its windows, and all are judged together.
        richest = max(sorted(rich), key=lambda each: len(windows[each]))
        rich, poor = rich - {richest}, poor | {richest}
    groups = [{each} for each in sorted(rich)] + ([poor] if poor else [])
    found = []
    for group in groups:
        logs = [log for each in sorted(group) for log in windows[each]]
        spread = variance(logs) if len(logs) > 1 else 0.0
        error2 = max(spread / len(logs), _LEAST_ERROR**2) * wider**2
        found.append((group, Effect(fmean(logs), error2, max(1.0, len(logs) - 1.0))))
    return found


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
