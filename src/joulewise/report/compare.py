"""Two runs side by side: by how much the second differs from the first, with errors propagated, and whether that means
anything.

Pure. Differences are B − A and B / A − 1, ± half of a 95 % interval. On the same cards the sensors' own errors cancel
in a ratio; on others they do not, and count. One run each says nothing of how much runs differ by themselves, so that
is said, too; a run's time is known to the millisecond, so that whether it differs by more than chance cannot be told at
all. Not the proof of a saving: that is made within one run (``report.claim``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from joulewise.core.block import Rung
from joulewise.report.beside import number
from joulewise.report.claim import STANDARD_ERRORS
from joulewise.report.run_summary import RunSummary, State
from joulewise.report.story import Story
from joulewise.report.worth import Amount, Carbon, carbon_lines
from joulewise.tune.counterfactual import student_t

_ENERGY = "energy of the run"
_SAME_WORK = 0.02  # runs of the same number of steps differ by what no block holds: warming up, pauses
_ONE_EACH = "one run each: how much two runs of the same command differ by themselves is not in ±"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with one standard error of its own, and the sensor's relative one apart (0 for times).

    ``error`` is None where it is not known; of few blocks it is as much larger as Student's t is than the normal's.
    """

    value: float
    error: float | None
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    summary: RunSummary
    uuids: tuple[str, ...]
    wanted: str
    """What was asked for in words: objective and bound, or the setting that the user had chosen."""
    energy_j: Quantity | None
    duration_s: Quantity | None
    steps: float | None = None
    """Steps of clean work that were measured; None where nobody told steps."""
    step_j: Quantity | None = None
    step_s: Quantity | None = None

    @classmethod
    def of(cls, summary: RunSummary, story: Story, measured: Mapping[str, Any] | None) -> Side:
        """From a run that has ended."""
        energy_j, error_j = number(measured, "energy_j"), number(measured, "energy_error_j")
        duration_s, gain = number(measured, "duration_s"), number(measured, "gain_error") or 0.0
        chosen = story.facts.get("set")
        wanted = str(story.facts.get("wanted") or "") or (f"set {_settings(chosen)}" if chosen else "")
        return cls(
            summary,
            _uuids(story.facts, measured),
            wanted,
            None if energy_j is None else Quantity(energy_j, error_j or 0.0, gain),
            None if duration_s is None else Quantity(duration_s, 0.0),
            *_steps(story, gain),
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity of both, and B against A; halves are those of 95 % intervals, None: not known."""

    name: str
    unit: str
    a: float
    a_half: float | None
    b: float
    b_half: float | None
    change: float
    change_half: float | None
    ratio: float | None
    """B / A − 1; None where A is 0."""
    ratio_half: float | None

    @property
    def told(self) -> bool | None:
        """Whether it can be told from nothing, as far as ± goes; None where there is no ± to go by."""
        return abs(self.change) > self.change_half if self.change_half else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs, their differences, and why one should not compare them so."""

    a: Side
    b: Side
    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]
    """Why they are not alike, a sentence each."""
    remarks: tuple[str, ...]
    carbon: Carbon | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "a": self.a.summary.name,
            "b": self.b.summary.name,
            "comparable": not self.warnings,
            "warnings": list(self.warnings),
            "remarks": list(self.remarks),
            "differences": [{**asdict(each), "told": each.told} for each in self.differences],
            "carbon": None if self.carbon is None else self.carbon.to_json(),
        }


def compare(a: Side, b: Side, *, carbon: Carbon | None = None) -> Comparison:
    """B against A; also in CO2e where ``carbon`` says what a kilowatt hour emits."""
    same_cards = bool(a.uuids) and a.uuids == b.uuids
    pairs = (
        (_ENERGY, "J", a.energy_j, b.energy_j),
        ("time of the run", "s", a.duration_s, b.duration_s),
        ("energy a step", "J", a.step_j, b.step_j),
        ("time a step", "s", a.step_s, b.step_s),
    )
    found = [
        _difference(name, unit, one, other, same_cards=same_cards)
        for name, unit, one, other in pairs
        if one is not None and other is not None
    ]
    remarks = list(_remarks(a, b, same_cards=same_cards))
    if carbon is not None:
        found += [_emitted(each, carbon) for each in found if each.name == _ENERGY]
        remarks += carbon_lines(carbon, None, None)
    return Comparison(a, b, tuple(found), tuple(_warnings(a, b)), tuple(remarks), carbon)


def _emitted(energy: Difference, carbon: Carbon) -> Difference:
    """The same in grams of CO2e: one factor for both, so that the ratio stays."""
    amounts = ((energy.a, energy.a_half), (energy.b, energy.b_half), (energy.change, energy.change_half))
    a, b, change = (carbon.of(Amount(value, half or 0.0)) for value, half in amounts)
    grams = (a.value, a.half, b.value, b.half, change.value, change.half)
    return Difference("CO2e of the run", "g", *grams, energy.ratio, energy.ratio_half)


def _half(*errors: float | None) -> float | None:
    """Half of a 95 % interval by independent standard errors; None where one of them is not known."""
    known = [error for error in errors if error is not None]
    return STANDARD_ERRORS * math.hypot(*known) if len(known) == len(errors) else None


def _difference(name: str, unit: str, a: Quantity, b: Quantity, *, same_cards: bool) -> Difference:
    change = b.value - a.value
    # One card errs alike in both runs: its gain scales the difference, not each of the two.
    gain = max(a.gain, b.gain) * change if same_cards else math.hypot(a.gain * a.value, b.gain * b.value)
    ratio = ratio_half = None
    if a.value > 0:
        ratio = b.value / a.value
        own = [each.error / each.value if each.error is not None else None for each in (a, b) if each.value > 0]
        relative = _half(*own, *(() if same_cards else (a.gain, b.gain)))
        ratio_half = None if relative is None else ratio * relative
    return Difference(
        name,
        unit,
        a.value,
        _half(a.error, a.gain * a.value),
        b.value,
        _half(b.error, b.gain * b.value),
        change,
        _half(a.error, b.error, gain),
        None if ratio is None else ratio - 1,
        ratio_half,
    )


def _warnings(a: Side, b: Side) -> Iterable[str]:
    one, other = a.summary, b.summary
    if sorted(one.gpus) != sorted(other.gpus):
        yield f"other GPUs: {_names(one.gpus)} against {_names(other.gpus)}"
    if one.virtual != other.virtual:
        yield "one of them ran on simulated or replayed GPUs, the other on real ones"
    if one.command != other.command:
        yield f"other commands: {one.command} against {other.command}"
    if one.bound != other.bound and one.tuned and other.tuned:
        yield f"other bounds: {_bound(one.bound)} against {_bound(other.bound)}"
    elif a.wanted != b.wanted and one.tuned and other.tuned:
        yield f"other objectives: {a.wanted or 'none'} against {b.wanted or 'none'}"
    for side in (one, other):
        if side.state is State.KILLED:
            yield f"{side.name} was killed: it did not come to its end"
        elif side.exit_code:
            yield f"{side.name} ended with exit code {side.exit_code}: it may not have done the same work"
    if a.steps and b.steps and abs(a.steps / b.steps - 1) > _SAME_WORK:
        yield f"other work: {a.steps:g} steps were measured of one and {b.steps:g} of the other; compare by step"


def _remarks(a: Side, b: Side, *, same_cards: bool) -> Iterable[str]:
    yield _ONE_EACH
    if not same_cards and sorted(a.summary.gpus) == sorted(b.summary.gpus):
        yield "other cards of the same model, or not known which: cards differ by some percent, sensors too"
    for side in (a, b):
        if side.energy_j is None:
            yield f"no energy of all of {side.summary.name} was measured"
    if a.step_j is None or b.step_j is None:
        yield "steps of both are not known, so nothing is said of a step; 'joulewise run --tune' counts them"
    for side in (a, b):
        if side.step_j is not None and side.step_j.error is None:
            yield f"of {side.summary.name} one block of steps was measured: how much they scatter is not known"
    if a.summary.tuned != b.summary.tuned:
        yield "one was tuned and the other was not"


def _steps(story: Story, gain: float) -> tuple[float | None, Quantity | None, Quantity | None]:
    """Steps, joules and seconds a step over all blocks, whatever was set; Nones where no block knows steps.

    Errors are of the blocks' spread, which tried settings widen, and of each measurement; not known of a single block.
    """
    blocks = [each.block for each in story.seen]
    if not blocks or any(block.rung is not Rung.STEPS for block in blocks):
        return None, None, None
    work = sum(block.work for block in blocks)
    weights = [block.work / work for block in blocks]
    joules = _mean(
        [block.energy_j / block.work for block in blocks],
        weights,
        math.hypot(*(block.energy_error_j for block in blocks)) / work,
    )
    seconds = _mean(
        [block.duration_s / block.work for block in blocks],
        weights,
        math.hypot(*(block.time_error * block.duration_s for block in blocks)) / work,
    )
    return work, Quantity(*joules, gain), Quantity(*seconds)


def _mean(values: list[float], weights: list[float], measured: float) -> tuple[float, float | None]:
    """Weighted mean, and its error: by the values' spread, with Student's t for as many values of equal weight as would
    tell as much, 1 / Σw² (Kish), and by ``measured``, that of the measurements. None where one value is all there is.
    """
    mean = sum(value * weight for value, weight in zip(values, weights, strict=True))
    freedom = 1 / sum(weight**2 for weight in weights) - 1
    if freedom < 1e-6:
        return mean, None
    spread = sum(weight * (value - mean) ** 2 for value, weight in zip(values, weights, strict=True))
    few = student_t(freedom) / STANDARD_ERRORS
    return mean, math.hypot(few * math.sqrt(spread / freedom), measured)


def _uuids(facts: Mapping[str, Any], measured: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Which cards it ran on; empty where nobody says."""
    parts = (measured or {}).get("gpus")
    found = [part.get("uuid") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    if not found and isinstance(named := facts.get("gpus"), list | tuple):
        found = list(named)
    return tuple(sorted(map(str, filter(None, found))))


def _names(gpus: Iterable[str]) -> str:
    counted: dict[str, int] = {}
    for name in gpus:
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counted.items()) or "none"


def _bound(bound: float | None) -> str:
    return "none" if bound is None else f"{100 * bound:g} %"


def _settings(chosen: object) -> str:
    return (
        ", ".join(f"{knob}={value}" for knob, value in chosen.items()) if isinstance(chosen, Mapping) else str(chosen)
    )
