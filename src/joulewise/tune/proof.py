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

**The whole run.** What the run would have used is: for HOLD blocks, and candidates that came to be held, their energy
/ e^y; for blocks at default, their own; for probes and other candidates, their work × the baseline's joules a unit at
the nearest blocks at default of the same phase. Only clean work is judged: evaluation, checkpoints, compilation and
switches are in nobody's favour and are stated in ``unjudged``, as is work of a phase that was never seen at default. A
window of seconds cannot show slow heat: a chip kept cooler by the held setting lets its baseline windows look slightly
too good, which understates the saving.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from joulewise.core.block import Block, Role
from joulewise.core.event import Proven, Seen, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.units import format_energy
from joulewise.tune.counterfactual import Account, Change, Effect, Row, add_rest
from joulewise.tune.schedule import PROOF_REASON, Schedule

__all__ = ["LEAST_WINDOWS", "PROOF_REASON", "SHIFTS", "Change", "Proof", "Schedule", "prove"]

LEAST_WINDOWS = 4
"""Windows without which nothing is claimed: Student's t at three degrees of freedom is 3.2 standard errors wide."""
SHIFTS = ("small", "large")
"""``Shifted.what`` after which blocks of that phase are not compared with earlier ones."""

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


@dataclass(frozen=True, slots=True)
class _Windows:
    """The comparisons of one phase: log ratios of joules and of seconds a unit."""

    energy: tuple[float, ...] = ()
    time: tuple[float, ...] = ()

    def __add__(self, other: _Windows) -> _Windows:
        return _Windows(self.energy + other.energy, self.time + other.time)

    def __len__(self) -> int:
        return len(self.time)


def prove(seen: Sequence[Seen], shifts: Iterable[Shifted] = ()) -> Proof:
    """The proof from what was seen, in order; ``shifts`` keep apart what the job's own changes made different."""
    every, seen = seen, [each for each in seen if 0 < each.block.energy_j < math.inf]
    breaks = [(shift.phase, shift.time_s) for shift in shifts if shift.what in SHIFTS]
    held = [each.block for each in seen if each.role is Role.HOLD and each.block.setting != DEFAULT]
    drawn = [each.block for each in seen if each.role is Role.PROOF]
    unjudged = [f"{len(every) - len(seen)} blocks whose energy could not be read"] * (len(every) > len(seen))
    windows = {phase: _compared(phase, drawn, held, breaks) for phase in sorted({block.phase for block in held})}
    count = sum(map(len, windows.values()))
    if len(drawn) > count:
        unjudged.append(f"{len(drawn) - count} of {len(drawn)} baseline windows: nothing was held beside them")
    # Where windows are few, in all or in one of several phases, the guard's pairs serve too.
    needed = LEAST_WINDOWS if count < LEAST_WINDOWS else _LEAST_APART
    short = [phase for phase, each in windows.items() if len(each) < needed and (len(windows) > 1 or needed > count)]
    served = {phase: _pairs(seen, phase, held) for phase in short}
    pairs = sum(map(len, served.values()))
    windows = {phase: each + served.get(phase, _Windows()) for phase, each in windows.items()}
    if held and count + pairs < LEAST_WINDOWS:
        there = f"{count} baseline window{'s' * (count != 1)} could be compared"
        unjudged.insert(0, f"the saving: {there}, {LEAST_WINDOWS} are needed")
        windows, pairs = {}, 0
    if pairs:
        unjudged.append(
            f"the saving by drawn windows alone: they are few, {pairs} verification pairs serve beside them"
        )
    if len(windows) > 1:
        few = [phase or "unnamed" for phase, each in windows.items() if len(each) < _LEAST_APART]
        unjudged += [f"phase {phase} by itself: too few windows, it is judged together with others" for phase in few]
    unjudged += _left_out(seen)
    spent_s = sum(block.duration_s for block in drawn)
    held_s = sum(block.duration_s for block in held)
    share = spent_s / (spent_s + held_s) if drawn else 0.0
    if held and not windows:
        return Proof(None, None, None, None, None, None, None, count, pairs, share, tuple(unjudged))
    wider = _STOPPED if pairs else 1.0
    energy, held_energy, saved = _whole(seen, held, windows, "energy", _energy, wider, unjudged)
    time, held_time, _ = _whole(seen, held, windows, "time", _seconds, wider, [])
    return Proof(energy, time, held_energy, held_time, *saved, count, pairs, share, tuple(unjudged))


def _energy(block: Block) -> float:
    return block.energy_j


def _seconds(block: Block) -> float:
    return block.duration_s


def _compared(
    phase: str, drawn: Sequence[Block], held: Sequence[Block], breaks: Sequence[tuple[str, float]]
) -> _Windows:
    """Every window of a phase against what was held beside it."""
    row = Row([block for block in held if block.phase == phase])
    times_s = sorted(time_s for where, time_s in breaks if where in ("", phase))
    energy, time = [], []
    for window in drawn:
        if window.phase != phase:
            continue
        place = bisect_right(times_s, window.start_s)
        from_s = times_s[place - 1] if place else -math.inf
        to_s = times_s[place] if place < len(times_s) else math.inf
        weighed = row.beside(window, from_s, to_s)
        if weighed:
            energy.append(sum(weight * math.log(block.unit_j / window.unit_j) for block, weight in weighed))
            time.append(sum(weight * math.log(block.unit_s / window.unit_s) for block, weight in weighed))
    return _Windows(tuple(energy), tuple(time))


def _pairs(seen: Sequence[Seen], phase: str, held: Sequence[Block]) -> _Windows:
    """The guard's pairs of the setting that was held longest in a phase."""
    setting = _longest(held)[phase]
    halves = [each for each in seen if each.role in (Role.CANDIDATE, Role.REFERENCE) and each.block.phase == phase]
    energy, time = [], []
    while len(halves) > 1:
        one, other = halves[0], halves[1]
        if one.role is other.role:  # its partner came to nothing
            halves = halves[1:]
            continue
        candidate, reference = (one, other) if one.role is Role.CANDIDATE else (other, one)
        if candidate.block.setting == setting:
            energy.append(math.log(candidate.block.unit_j / reference.block.unit_j))
            time.append(math.log(candidate.block.unit_s / reference.block.unit_s))
        halves = halves[2:]
    return _Windows(tuple(energy), tuple(time))


def _longest(held: Iterable[Block]) -> dict[str, Setting]:
    """The setting that was held longest, for each phase."""
    spent: dict[str, dict[Setting, float]] = {}
    for block in held:
        of_phase = spent.setdefault(block.phase, {})
        of_phase[block.setting] = of_phase.get(block.setting, 0.0) + block.duration_s
    return {phase: max(each, key=lambda setting: each[setting]) for phase, each in spent.items()}


def _whole(
    seen: Sequence[Seen],
    held: Sequence[Block],
    windows: dict[str, _Windows],
    which: str,
    amount: Callable[[Block], float],
    wider: float,
    unjudged: list[str],
) -> tuple[Change | None, Change | None, tuple[float | None, float | None, float | None]]:
    """Change of the whole run, change while held, and (saved, low, high) in the unit of ``amount``."""
    longest = _longest(held)

    def known(block: Block, role: Role) -> bool:
        # A candidate that came to be held counts as held: its own pairs may be what the effect is known from.
        return block.setting != DEFAULT and (role is Role.HOLD or block.setting == longest.get(block.phase))

    while_held, whole = Account(), Account()
    for phases, effect in _effects({phase: getattr(each, which) for phase, each in windows.items()}, wider):
        while_held.add(sum(amount(block) for block in held if block.phase in phases), effect)
        alike = [e.block for e in seen if known(e.block, e.role) and e.block.phase in phases]
        whole.add(sum(map(amount, alike)), effect)
    lost_s = add_rest(whole, [e.block for e in seen if not known(e.block, e.role)], which, amount)
    if lost_s > 0:
        unjudged.append(f"{lost_s:.1f} s of probing in phases that were never seen at default")
    held_change = while_held.change() if held else None
    if not whole.without > 0:
        return None, held_change, (None, None, None)
    saved, half = whole.without - whole.used, whole.half
    return whole.change(), held_change, (saved, saved - half, saved + half)


def _effects(windows: dict[str, tuple[float, ...]], wider: float) -> list[tuple[set[str], Effect]]:
    """Groups of phases that have enough windows to be judged together, and each group's effect.

    ``wider`` is a factor on the standard errors.
    """
    rich = {phase for phase, logs in windows.items() if len(logs) >= _LEAST_APART}
    poor = set(windows) - rich
    if poor and sum(len(windows[phase]) for phase in poor) < _LEAST_APART and rich:
        # Too little is known of the rest: the richest phase lends it its windows, and all are judged together.
        richest = max(rich, key=lambda phase: len(windows[phase]))
        rich, poor = rich - {richest}, poor | {richest}
    groups = [{phase} for phase in sorted(rich)] + ([poor] if poor else [])
    found = []
    for group in groups:
        logs = [log for phase in sorted(group) for log in windows[phase]]
        spread = variance(logs) if len(logs) > 1 else 0.0
        error2 = max(spread / len(logs), _LEAST_ERROR**2) * wider**2
        found.append((group, Effect(fmean(logs), error2, max(1.0, len(logs) - 1.0))))
    return found


def _left_out(seen: Sequence[Seen]) -> list[str]:
    """What of the run's life lies in no block: blocks of two phases may interleave, so only the sum can be told."""
    if not seen:
        return []
    life_s = max(each.block.end_s for each in seen) - min(each.block.start_s for each in seen)
    left_s = life_s - sum(each.block.duration_s for each in seen)
    if not left_s > 0.01 * life_s:  # one per cent is not worth a line
        return []
    return [f"{left_s:.0f} s of {life_s:.0f} s: start-up, evaluation, checkpoints, stalls, idle and switches"]
