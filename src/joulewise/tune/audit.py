"""Check the blocks of a journal against the readings that were kept of the same run.

What it is: ``audit(events, readings)``, which compares every block's joules with the power that was kept for its
interval, its clean seconds and its work with the steps that were kept, its setting with the clocks and power limits
that were read, the readings with the measured total of the run, and the saving that follows from the blocks' joules
with the saving that follows from the readings. Why it exists: ``tune/verify`` recomputes a claim
from the blocks; whoever multiplies the joules in the blocks and computes claim and seal again passes it. What it is
not: proof against somebody who rewrites the readings as well. Only a countersignature (``store.countersignature``) pins
a journal to a time.

**Tolerance of a block.** The store keeps one mean of power a second. A block's joules are therefore known within: the
seconds cut by its edges (0.3 of the range of power within 2 s, and 0.01 of the power, each in joules), the scatter of
the means in it (times the square root of their number), how far the readings of the run strayed from its counter, four
standard errors in all (``SIGMAS``); ``SYSTEMATIC`` of the
energy, since a board's power readings sample a part of the time and its counter sees all of it; and what a pause within
the block may have used. Blocks of one phase, role and setting are also compared by their sum, where the errors of
single blocks average out.

**Tolerance of the saving.** Many blocks, each changed by less than its tolerance, would add up to a larger saving. So
the proof is computed once more, from the same blocks with the joules that the seconds wholly inside each say (in a
block too short for one: what the others of its phase and setting drew). Both savings may differ by ``SIGMAS`` standard
errors, found by computing it again ``_DRAWS`` times with every block's joules drawn within its own error, and by
``SYSTEMATIC``, which is about the difference of two settings. Nothing in the journal but the blocks' edges bears on
that, and neither does the speed of the clock: it comes from what was kept beside the journal.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, pstdev, stdev
from typing import Final

from joulewise.core.block import Block, Role, Rung
from joulewise.core.event import Began, Event, Finished, Seen, Shifted
from joulewise.core.knob import POWER_LIMIT_W, SM_MHZ, Setting
from joulewise.core.units import format_percent
from joulewise.store.evidence import Evidence
from joulewise.store.pace import Pace
from joulewise.store.readings import Sample
from joulewise.tune.proof import prove

SIGMAS: Final = 4.0
"""Standard errors: one honest block of 16,000 is beyond them."""
SYSTEMATIC: Final = 0.02
"""Share of energy by which power readings and counter of one board may differ from one setting to another."""
MOST_GAIN: Final = 0.05
"""Share by which the power readings of a whole run may differ from its counter: both are specified to 5 %."""
MOST_TOLERANCE: Final = 0.1
"""Readings that tell the saving no closer than this, as a share of the joules without it, check nothing."""
_DRAWS: Final = 32  # of the saving: its standard error is then known to an eighth
_LEAST_SCATTER: Final = 0.002  # of power from second to second: less is the rounding of a sensor
_EDGE_RANGE, _EDGE_SHARE, _EDGE_S = 0.3, 0.01, 2.0
_HOLE: Final = 3.0  # times the usual distance of two samples: beyond it nothing was read
_LEAST_READ: Final = 0.9  # share of a block in which there must be readings
_CLOCK_MHZ, _LIMIT_W = 16.0, 2.0  # a clock is set in steps of 15 MHz; a limit is read as it was written
_SURE: Final = (
    0.1  # share of a block's seconds that may lie in other steps than those believed: its power is then doubtful
)
_STEP_S: Final = 2e-3  # step ends are kept to 0.1 ms; block edges are step ends
_WALL_S: Final = 1e-3
_INSIDE_S: Final = 1e-3  # by which a second may stick out of the steps that it lies in

_NAMES: Final = {Role.CANDIDATE: "compared", Role.REFERENCE: "default"}  # as people know the halves of a pair

_Row = tuple[float, float, float]
"""A step as it was kept: start, end, work."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What the readings say of the blocks."""

    blocks: int
    """Blocks whose joules and seconds could be compared."""
    works: int
    """Blocks whose work could be counted again."""
    of: int
    """Blocks of the run."""
    saving: float | None
    """Change of energy by the readings alone, relative to nothing set; None where no saving is claimed, or too little
    was kept."""
    tolerance: float
    """By how much the saving may differ from that without being noticed: ±, in the same unit; infinite where nothing
    tells, 0 where nothing is claimed."""
    problems: tuple[str, ...]
    why_not: str = ""
    """Why not all blocks could be compared; empty where they could."""

    @property
    def complete(self) -> bool:
        """Whether joules, seconds and work of every block were compared, as closely as makes sense."""
        return self.of > 0 and self.blocks == self.works == self.of and self.tolerance <= MOST_TOLERANCE


def audit(events: Sequence[Event], kept: Evidence) -> Audit:
    """Compare the blocks of one run with what was kept of it."""
    seen = [event for event in events if isinstance(event, Seen)]
    began = next((event for event in events if isinstance(event, Began)), None)
    gpus = began.facts.get("gpus") if began is not None else None
    uuids = list(map(str, gpus)) if isinstance(gpus, list | tuple) else []
    missing = [uuid for uuid in uuids if not kept.power.get(uuid)]
    problems = list(kept.contradictions)
    if not seen or not uuids or missing:
        why = f"no readings of {missing[0]}" if missing else "no readings"
        return Audit(0, 0, len(seen), None, math.inf, tuple(problems), why)
    rows = [_Power(kept.power[uuid], kept.speed) for uuid in uuids]
    gain = _gain(rows, kept, problems)
    rest = _Covered(kept.pace.values())
    steps = {phase: _Steps(pace, rest) for phase, pace in kept.pace.items()}
    groups: dict[tuple[Role, str, Setting, bool], _Sum] = {}
    parts: list[_Part] = []
    works = holed = 0
    for event in seen:
        block, where = event.block, f"the {_NAMES.get(event.role, event.role)} block at {event.block.start_s:.1f} s"
        if abs(block.end_s - block.start_s - block.duration_s - block.left_out_s) > _WALL_S + 1e-6 * block.end_s:
            problems.append(
                f"{where} says {block.duration_s:.2f} s of work and {block.left_out_s:.2f} s left out, and lasted "
                f"{block.end_s - block.start_s:.2f} s"
            )
        counted = steps.get(block.phase) if block.rung is Rung.STEPS else None
        clean = None
        if counted is not None:
            clean, problem, whole = counted.check(block)
            works += whole
            holed += not whole
            problems += [f"{where} {problem}"] if problem else []
        problems += _clocks(block, where, rows, clean)
        found = _energy(block, rows, clean, kept.readings_error)
        if found is not None:
            if not found.allows(block.energy_j, gain):
                problems.append(f"{where} says {block.energy_j:.0f} J, its readings {found.says(gain)}")
            parts.append(_Part(event, found, _inside(block, rows, clean)))
            # Blocks whose clean time is not known would make the sum of the others worthless.
            sure = found.high_j - found.low_j <= SYSTEMATIC * found.high_j
            groups.setdefault((event.role, block.phase, block.setting, sure), _Sum()).add(block, found)
    for (role, phase, setting, _), group in groups.items():
        if group.count > 1 and not group.range.allows(group.energy_j, gain):
            of = f" of phase {phase}" if phase else ""
            problems.append(
                f"all {group.count} {_NAMES.get(role, role)} blocks{of} at {setting!r} say {group.energy_j:.0f} J "
                f"together, their readings {group.range.says(gain)}"
            )
    problems += _after(events, kept.pace)
    saving, tolerance = _saving(
        parts, [event for event in events if isinstance(event, Shifted)], kept.readings_error, problems
    )
    why_not = _why_not(len(parts), works, holed, seen, steps, tolerance)
    return Audit(len(parts), works, len(seen), saving, tolerance, tuple(problems), why_not)


def _why_not(
    blocks: int, works: int, holed: int, seen: Sequence[Seen], steps: Mapping[str, _Steps], tolerance: float
) -> str:
    if blocks < len(seen):
        return f"readings are missing in {len(seen) - blocks} of {len(seen)} blocks"
    if works < len(seen):
        by_steps = sum(each.block.rung is Rung.STEPS for each in seen)
        if by_steps < len(seen):
            return f"nothing kept tells the work of {len(seen) - by_steps} of {len(seen)} blocks: it was not in steps"
        if holed:
            return f"steps are missing in {holed} of {len(seen)} blocks"
        return "when steps ended was not kept" if not steps else "when steps ended was not kept in all phases"
    if tolerance > MOST_TOLERANCE:
        return f"the readings tell the saving to ± {format_percent(tolerance)} only"
    return ""


@dataclass(frozen=True, slots=True)
class _Part:
    """A block, what its readings allow, and GPU by GPU the power of the seconds that lie wholly inside its work."""

    seen: Seen
    range: _Range
    inside_w: Sequence[Sequence[float]]

    @property
    def alike(self) -> tuple[str, Setting]:
        """Blocks that should draw the same power."""
        return self.seen.block.phase, self.seen.block.setting


def _inside(
    block: Block, rows: Sequence[_Power], clean: Sequence[tuple[float, float]] | None
) -> tuple[tuple[float, ...], ...]:
    if clean is None:  # where its work lies is known well enough only where nearly all of it is work
        clean = [(block.start_s, block.end_s)] if block.left_out_s <= _SURE * block.duration_s else []
    return tuple(tuple(power_w for span in clean for power_w in row.whole(*span)) for row in rows)


def _saving(
    parts: Sequence[_Part], shifts: Sequence[Shifted], error: float, problems: list[str]
) -> tuple[float | None, float]:
    """The change of energy by the readings alone, and its tolerance; adds to ``problems`` where the journal's differs
    by more."""

    def change(joules: Iterable[float]) -> float | None:
        made = [
            replace(part.seen, block=replace(part.seen.block, energy_j=max(each, 1e-9)))
            for part, each in zip(parts, joules, strict=True)
        ]
        energy = prove(made, shifts).energy
        return None if energy is None else energy.value

    if not parts:
        return None, math.inf
    said = change(part.seen.block.energy_j for part in parts)
    if said is None:
        return None, 0.0
    expected = _expected(parts, error)
    read = change(mean_j for mean_j, _ in expected)
    dice = random.Random(0)  # the same readings have the same tolerance
    drawn = [change(dice.gauss(mean_j, error_j) for mean_j, error_j in expected) for _ in range(_DRAWS)]
    draws = [each for each in drawn if each is not None]
    if read is None or len(draws) < _DRAWS:
        return None, math.inf
    tolerance = SIGMAS * stdev(draws) + SYSTEMATIC
    if not abs(said - read) <= tolerance:
        problems.append(
            f"the blocks say {100 * said:+.1f} % energy, their readings "
            f"{100 * read:+.1f} % (tolerance {format_percent(tolerance)})"
        )
    return read, tolerance


def _expected(parts: Sequence[_Part], error: float) -> list[tuple[float, float]]:
    """Each block's joules by its readings, and one standard error."""
    together: dict[tuple[str, Setting], list[list[float]]] = {}
    for part in parts:
        for powers, more in zip(
            together.setdefault(part.alike, [[] for _ in part.inside_w]), part.inside_w, strict=True
        ):
            powers += more
    usual = {alike: list(map(_level, gpus)) for alike, gpus in together.items()}
    expected = []
    for part in parts:
        levels, seconds = usual[part.alike], part.seen.block.duration_s
        known = [level for level in levels if level is not None]
        if len(known) < len(levels):
            middle_j = (part.range.low_j + part.range.high_j) / 2
            expected.append((middle_j, math.sqrt(part.range.variance) + (part.range.high_j - part.range.low_j) / 2))
            continue
        mean_w = sum(fmean(own) if own else level_w for own, (level_w, _) in zip(part.inside_w, known, strict=True))
        variance = sum(each_w**2 / max(1, len(own)) for own, (_, each_w) in zip(part.inside_w, known, strict=True))
        variance += (error * mean_w) ** 2
        expected.append((mean_w * seconds, math.sqrt(variance) * seconds))
    return expected


def _level(powers: Sequence[float]) -> tuple[float, float] | None:
    """Mean and scatter of the power of a second; None where too few are known."""
    if len(powers) < 3:
        return None
    mean_w = fmean(powers)
    return mean_w, max(pstdev(powers), _LEAST_SCATTER * mean_w)


def _after(events: Sequence[Event], pace: Mapping[str, Pace]) -> list[str]:
    """The tuner reads steps until it ends: none is kept of later."""
    finished = next((event for event in reversed(events) if isinstance(event, Finished)), None)
    if finished is None:
        return []
    later = sum(end_s > finished.time_s + 1.0 for each in pace.values() for end_s in each.end_s)
    return [f"{later} steps of the job were kept after the journal's end at {finished.time_s:.1f} s"] if later else []


@dataclass(slots=True)
class _Range:
    """Between which joules the readings of an interval lie, and what they err by."""

    low_j: float = 0.0
    high_j: float = 0.0
    variance: float = 0.0

    @property
    def slack_j(self) -> float:
        return SIGMAS * math.sqrt(self.variance) + SYSTEMATIC * self.high_j

    @property
    def tolerance(self) -> float:
        """As a share of the energy."""
        middle_j = (self.low_j + self.high_j) / 2
        return ((self.high_j - self.low_j) / 2 + self.slack_j) / middle_j if middle_j > 0 else math.inf

    def allows(self, energy_j: float, gain: float) -> bool:
        return gain * self.low_j - self.slack_j <= energy_j <= gain * self.high_j + self.slack_j

    def says(self, gain: float) -> str:
        low_j, high_j = gain * self.low_j, gain * self.high_j
        both = f"{low_j:.0f} to {high_j:.0f}" if high_j - low_j > 1.0 else f"{high_j:.0f}"
        return f"{both} J (tolerance {format_percent(self.slack_j / high_j if high_j > 0 else math.inf)})"


@dataclass(slots=True)
class _Sum:
    """The blocks of one phase, role and setting."""

    count: int = 0
    energy_j: float = 0.0
    range: _Range = field(default_factory=_Range)

    def add(self, block: Block, found: _Range) -> None:
        self.count += 1
        self.energy_j += block.energy_j
        self.range.low_j += found.low_j
        self.range.high_j += found.high_j
        self.range.variance += found.variance


class _Power:
    """The power of one GPU over time: every sample stands for the time up to the middles between it and the next."""

    def __init__(self, samples: Sequence[Sample], speed: float) -> None:
        self.samples = [each for each in samples if each.power_w is not None and math.isfinite(each.power_w)]
        self.times = [each.at_s for each in self.samples]
        gaps = sorted(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))
        usual_s = gaps[len(gaps) // 2] if gaps else 1.0
        self.usual_s = max(1.0, usual_s)
        # In time that runs faster than the wall a stamp errs by so much more: 10 ms on a loaded machine, 100 at most.
        self._stamp_s = 0.01 * speed if speed > 1.0 else 0.0
        self.late_s = self.usual_s + (0.1 * speed if speed > 1.0 else 0.0)
        self._from: list[float] = []
        self._to: list[float] = []
        for place, time_s in enumerate(self.times):
            before = time_s - self.times[place - 1] if place else math.inf
            after = self.times[place + 1] - time_s if place + 1 < len(self.times) else math.inf
            most = _HOLE * self.usual_s
            self._from.append(time_s - (before / 2 if before <= most else self.usual_s / 2))
            self._to.append(time_s + (after / 2 if after <= most else self.usual_s / 2))

    def total(self, last_s: float | None) -> tuple[float, float, float]:
        """Joules and seconds of the samples in the last so many seconds (None: of all), and how many of these seconds
        nothing was read in."""
        if not self.times:
            return 0.0, 0.0, 0.0
        end_s = self._to[-1]
        from_s = self._from[0] if last_s is None else max(self._from[0], end_s - last_s)
        pieces = self.within(from_s, end_s)
        read_s = sum(seconds for _, seconds in pieces)
        return sum((each.power_w or 0.0) * seconds for each, seconds in pieces), read_s, end_s - from_s - read_s

    def within(self, from_s: float, to_s: float) -> list[tuple[Sample, float]]:
        """The samples that stand for a part of an interval, and for how many seconds of it."""
        first, found = bisect_left(self._to, from_s), []
        for place in range(first, len(self.times)):
            if self._from[place] >= to_s:
                break
            seconds = min(to_s, self._to[place]) - max(from_s, self._from[place])
            if seconds > 0:
                found.append((self.samples[place], seconds))
        return found

    def whole(self, from_s: float, to_s: float) -> list[float]:
        """The power of the samples all of whose second lies within an interval: they are means of whole seconds."""
        first, last = math.ceil(from_s + self._stamp_s - _INSIDE_S), math.floor(to_s - self._stamp_s + _INSIDE_S)
        found = self.samples[bisect_left(self.times, first) : bisect_left(self.times, last)]
        return [each.power_w or 0.0 for each in found]

    def inside(self, from_s: float, to_s: float) -> Sequence[Sample]:
        """The samples that lie wholly within an interval, however late they were read."""
        first = bisect_left(self.times, from_s + self.late_s)
        return self.samples[first : bisect_right(self.times, to_s - self.late_s)]

    def edge_j(self, at_s: float) -> float:
        """Standard error of the joules at one side of a moment."""
        near = self.samples[bisect_left(self.times, at_s - _EDGE_S) : bisect_right(self.times, at_s + _EDGE_S)]
        powers = [each.power_w or 0.0 for each in near]
        if not powers:
            return 0.0
        range_w = max(powers) - min(powers)
        return (_EDGE_RANGE * range_w + _EDGE_SHARE * fmean(powers)) * self.usual_s + self._stamp_s * range_w


def _energy(
    block: Block, rows: Sequence[_Power], clean: Sequence[tuple[float, float]] | None, error: float
) -> _Range | None:
    """What the readings say that the clean work of a block used; None where too few were kept. ``clean`` is when that
    work was done, where its steps tell; else it is somewhere between the block's edges. ``error`` is one standard error
    of the power of some seconds beyond their scatter, as a share."""
    spans = [(block.start_s, block.end_s)] if clean is None else clean
    span_s, total = sum(to_s - from_s for from_s, to_s in spans), _Range()
    out_s = abs(span_s - block.duration_s)
    for row in rows:
        within = [piece for from_s, to_s in spans for piece in row.within(from_s, to_s)]
        read_s = sum(seconds for _, seconds in within)
        if not span_s > 0 or read_s < _LEAST_READ * span_s:
            return None
        powers = [each.power_w or 0.0 for each, _ in within]
        mean_w = sum((each.power_w or 0.0) * seconds for each, seconds in within) / read_s
        holes_s = max(0.0, span_s - read_s)
        # What was not work, or was not read, may have used anything between the least and the most that was read.
        least_w, most_w = min(powers), max(powers)
        apart_s = min(block.duration_s, out_s + holes_s)
        total.low_j += max(mean_w * block.duration_s - apart_s * (most_w - mean_w), least_w * block.duration_s)
        total.high_j += min(mean_w * block.duration_s + apart_s * (mean_w - least_w), most_w * block.duration_s)
        scatter_w = pstdev(powers) if len(powers) > 2 else 0.0
        total.variance += scatter_w**2 * len(powers) + (error * mean_w * block.duration_s) ** 2
        total.variance += sum(row.edge_j(at_s) ** 2 for span in spans for at_s in span)
    return total


def _gain(rows: Sequence[_Power], kept: Evidence, problems: list[str]) -> float:
    """How the counters of the run's GPUs stand to their power readings: 1 where nothing tells. A run that was gone on
    with was measured in its last process only."""
    totals = [row.total(kept.measured_s) for row in rows]
    read_j, read_s, holes_s = (sum(column) for column in zip(*totals, strict=True))
    measured_j = kept.measured_j
    if measured_j is None or not read_j > 0 or not measured_j > 0:
        return 1.0
    span_s = read_s + holes_s
    # The first and the last second are read in part only.
    edges = 2.0 * sum(row.usual_s for row in rows) / max(span_s, 1.0)
    if holes_s > 0.01 * span_s:
        return 1.0
    gain = measured_j / read_j
    if abs(gain - 1.0) > MOST_GAIN + edges:
        problems.append(f"the whole run measured {measured_j:.0f} J, its readings say {read_j:.0f} J")
        return 1.0
    return 1.0 if edges > MOST_GAIN else gain


def _clocks(block: Block, where: str, rows: Sequence[_Power], clean: Sequence[tuple[float, float]] | None) -> list[str]:
    """Whether what was read while the block's work was done fits its setting. Within its pauses other clocks may be
    set, so blocks with pauses that no steps tell are passed over."""
    limit_w, most_mhz = block.setting.get(POWER_LIMIT_W.name), block.setting.get(SM_MHZ.name)
    if (limit_w is None and most_mhz is None) or (clean is None and block.left_out_s > _EDGE_S):
        return []
    spans = [(block.start_s, block.end_s)] if clean is None else clean
    for row in rows:
        inside = [each for span in spans for each in row.inside(*span)]
        clocks = [each.sm_mhz for each in inside if each.sm_mhz is not None]
        limits = [each.limit_w for each in inside if each.limit_w is not None]
        if most_mhz is not None and len(clocks) > 1 and median(clocks) > most_mhz + _CLOCK_MHZ:
            return [f"{where} says at most {most_mhz:g} MHz, its readings {median(clocks):.0f} MHz"]
        if limit_w is not None and not block.slack and len(limits) > 1 and abs(median(limits) - limit_w) > _LIMIT_W:
            return [f"{where} says a limit of {limit_w:g} W, its readings {median(limits):.0f} W"]
    return []


class _Covered:
    """When anything was kept of the job's steps, whichever their phase."""

    def __init__(self, paces: Iterable[Pace]) -> None:
        rows = sorted(row for pace in paces for row in zip(pace.end_s, pace.start_s, strict=True))
        self._ends, self._starts = [end_s for end_s, _ in rows], [start_s for _, start_s in rows]

    def missing_s(self, block: Block) -> float:
        """Seconds of a block in which no step was kept: in a pause, or where the record has a hole."""
        place, seconds = bisect_right(self._ends, block.start_s), 0.0
        while place < len(self._ends) and self._starts[place] < block.end_s:
            seconds += max(0.0, min(self._ends[place], block.end_s) - max(self._starts[place], block.start_s))
            place += 1
        return max(0.0, block.end_s - block.start_s - seconds)


class _Steps:
    """The steps of one phase as they were kept, to count a block's work again."""

    def __init__(self, pace: Pace, covered: _Covered) -> None:
        rows = sorted(zip(pace.end_s, pace.start_s, pace.work, strict=True))
        self._rows: list[_Row] = [(start_s, end_s, work) for end_s, start_s, work in rows if work > 0]
        self._ends = [end_s for _, end_s, _ in self._rows]
        self._covered = covered
        self._quick_s = min(((end_s - start_s) / work for start_s, end_s, work in self._rows), default=0.0)

    def check(self, block: Block) -> tuple[list[tuple[float, float]] | None, str, bool]:
        """When the block's clean work was done, None where that cannot be told; what does not fit, or nothing; and
        whether its steps were kept. Where some may be missing (a process that is killed leaves ten seconds unwritten)
        and would explain what does not fit, nothing is wrong, and nothing was counted."""
        first = bisect_right(self._ends, block.start_s + _STEP_S)
        inside = self._rows[first : bisect_right(self._ends, block.end_s + _STEP_S)]
        cut = [row for row in inside if row[0] < block.start_s - _STEP_S]
        whole = [row for row in inside if row[0] >= block.start_s - _STEP_S]
        # A record of several short steps that the block's edges cut may belong to it in part.
        loose = sum(work for *_, work in cut if work > 1.0) + max((work for *_, work in whole if work > 1.0), default=0)
        done = sum(work for *_, work in whole)
        if block.work > done + loose + 1e-6:
            if (block.work - done - loose) * self._quick_s <= self._covered.missing_s(block):
                return None, "", False
            return None, f"says {block.work:g} units of work, and {done:g} were kept of it", True
        # Clean work is some of the steps: its seconds lie between those of the shortest and of the longest of them.
        quick_first = sorted(whole, key=lambda row: (row[1] - row[0]) / row[2])
        least_s, clean = _taken(quick_first, block.work)
        most_s, _ = _taken(quick_first[::-1], block.work)
        loose_s = 2.0 * _STEP_S + 2e-4 * len(whole) + (0.25 if loose else 0.0)
        if not least_s - loose_s <= block.duration_s <= most_s + loose_s:
            if 0.0 < self._quick_s <= self._covered.missing_s(block):  # its clean work may be others of its steps
                return None, "", False
            both = f"{least_s:.2f}" if most_s - least_s < 0.01 else f"{least_s:.2f} to {most_s:.2f}"
            return (
                None,
                f"says {block.duration_s:.2f} s for {block.work:g} units of work, its steps took {both} s",
                True,
            )
        # What is left out are the longest steps as a rule; where it is not, its seconds say so.
        sure = abs(least_s - block.duration_s) <= loose_s + _SURE * block.duration_s
        return (_joined(clean) if sure else None), "", True


def _taken(rows: Sequence[_Row], work: float) -> tuple[float, list[_Row]]:
    """Seconds of the first ``work`` units of these steps, and the steps."""
    seconds, taken = 0.0, []
    for row in rows:
        if work <= 1e-6:
            break
        start_s, end_s, each = row
        part = min(each, work)
        seconds, work = seconds + part / each * (end_s - start_s), work - part
        taken.append(row)
    return seconds, taken


def _joined(rows: Sequence[_Row]) -> list[tuple[float, float]]:
    """The time of these steps, those that follow on each other as one."""
    spans: list[tuple[float, float]] = []
    for start_s, end_s, _ in sorted(rows):
        if spans and start_s - spans[-1][1] <= _STEP_S:
            spans[-1] = spans[-1][0], end_s
        else:
            spans.append((start_s, end_s))
    return spans
