"""What became of ``run --tune``, as text and as JSON: the saving first, then what was done and why.

Pure: it is given the story of a run and says it; ``cli.tuning`` does the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulewise.core.units import format_duration
from joulewise.device.lease import Restored
from joulewise.report import knobs, outcome, worth
from joulewise.report.claim import INTERVAL, STANDARD_ERRORS, Claim
from joulewise.report.story import Story, Stretch, stretches
from joulewise.report.words import named, plainly, reason
from joulewise.tune.status import Advice

_MOST_PHASES = 4
_WORDS = {"hold": "held", "probe": "tried", "verify": "compared with default:", "baseline": "measured"}


@dataclass(frozen=True, slots=True)
class TuneResult:
    """How tuning went. ``untuned`` says why nothing was set; None where something could be."""

    run: str
    story: Story
    claim: Claim
    wanted: str
    """The objective in words."""
    gpus: int = 1
    untuned: str | None = None
    advice: Advice | None = None
    notes: tuple[str, ...] = ()
    restored: tuple[Restored, ...] = ()
    expected: tuple[tuple[float, float], ...] = ()
    """The job's frontier as the tuner believes it: (time change, energy change)."""
    report: str | None = None
    """Where the report was written."""
    kept: bool = True
    """Whether the run's journal is on disk, so that it can be verified later."""

    @property
    def headline(self) -> str:
        """The result in one line."""
        if self.advice is not None:
            return outcome.advised(self.advice)
        if self.untuned is not None:
            return f"not tuned: {self.untuned}"
        return outcome.headline(self.story, self.claim)

    @property
    def proves(self) -> bool:
        """Whether there is a journal of something that was tuned: what ``verify`` could check."""
        return self.kept and self.advice is None and self.untuned is None and bool(self.story.events)


def why(result: TuneResult) -> list[str]:
    """What was done and how it is known, a line each."""
    lines = []
    if result.advice is not None:
        lines.append(f"{result.wanted}; nothing was set; {INTERVAL} of what is expected, not measured")
        if result.untuned is not None:
            lines.append(f"not tuned: {result.untuned}")
    elif result.untuned is None:
        interval = f"; {INTERVAL}, against the same job with nothing set" if result.claim.held else ""
        if result.claim.energy_change is not None:
            interval += f", {result.claim.about}"
        lines.append(f"{result.wanted}{interval}")
        lines += in_short(result.story)
        if result.claim.held:
            found = worth.worth(result.claim, result.story.facts)
            lines += worth.lines(found) if found is not None else []
            # What the headline has said already is not said again.
            lines += [f"not judged: {each}" for each in result.claim.unjudged if each not in result.headline]
    if result.proves:
        check = f"verify {result.report or result.run}' recomputes it"
        tell = f"history {result.run}' tells it"  # nothing is claimed that could be verified
        if result.claim.held and (seal := result.story.seal):
            lines.append(f"seal {seal}: note it down where this user cannot write, or have it countersigned")
        lines.append(f"run {result.run}; 'joulewise {check if result.claim.held else tell}")
    return [line for line in lines if line]


def trouble(result: TuneResult) -> list[str]:
    """What a reader must not overlook."""
    lines = [line for line in result.notes if line not in result.headline]
    back = knobs.restored_lines(result.restored, gpus=result.gpus)
    return lines + [line for line, serious in back if serious]


def in_short(story: Story) -> list[str]:
    """The run in a few lines: how much was tried, what is held where and why, and whether the job changed."""
    told = stretches(story)
    tried = {each.setting for each in told if each.kind in ("probe", "verify") and each.setting}
    lines = [f"{len(tried)} setting{'s' if len(tried) != 1 else ''} tried"] if tried else []
    last = {each.phase: each for each in told if each.kind == "hold"}
    if not any(each.setting for each in last.values()):
        last = {}  # why everything was left alone, the headline says
    lines += [_line(each) for each in list(last.values())[:_MOST_PHASES]]
    if len(last) > _MOST_PHASES:
        lines.append(f"… and {len(last) - _MOST_PHASES} more phases")
    if story.changes:
        last_change = story.changes[-1]
        times = f"{len(story.changes)} times, last " if len(story.changes) > 1 else ""
        at = format_duration(story.since_s(last_change.time_s))
        lines.append(f"the job changed {times}at {at}: {plainly(last_change.says)}")
    idle = sum(change.what == "idle" for change in story.shifted)
    if idle:
        lines.append(f"clocked down while idle, {idle} time{'s' if idle != 1 else ''}")
    if story.lost is not None and (tried or last):
        at = format_duration(story.since_s(story.lost.time_s))
        lines.append(f"tuning stopped at {at}: {reason(story.lost.says)}")
    return lines


def chapters(story: Story) -> list[str]:
    """The whole run, a line for each thing that was done."""
    return [_line(each) for each in stretches(story)]


def _line(chapter: Stretch) -> str:
    phase = f" ({chapter.phase})" if chapter.phase else ""
    at = f"at {format_duration(chapter.start_s)}{phase}"
    if not chapter.blocks:
        return f"{at}: {plainly(chapter.reason)}"
    what = _WORDS.get(chapter.kind, chapter.kind)
    held = f"{what} {named(chapter.setting)} for {format_duration(chapter.end_s - chapter.start_s)}"
    why = plainly(chapter.reason).removeprefix(f"{named(chapter.setting)}: ").removeprefix("held: ")
    return f"{at}: {held}" + (f": {why}" if why else "")


def as_json(result: TuneResult) -> dict[str, Any]:
    """``run`` · ``headline`` · ``claim`` · ``held`` (knob → value, null if nothing) · ``untuned`` (null, or why) ·
    ``advice`` (null, or ``setting`` and what is expected) · ``worth`` (null without prices) · ``changes`` · ``notes`` ·
    ``kept`` (whether ``verify`` can find it) · ``report`` · ``seal`` (null, or the seal of its journal)."""
    advice, held = result.advice, result.story.held()
    found = worth.worth(result.claim, result.story.facts) if advice is None else None
    untuned = result.untuned
    if untuned is None and advice is None:
        untuned = outcome.untuned(result.story, result.claim)
    return {
        "run": result.run,
        "headline": result.headline,
        "wanted": result.wanted,
        "claim": result.claim.to_json() if advice is None and result.story.events else None,
        "held": None if held is None else dict(held),
        "untuned": untuned,
        "advice": None if advice is None else _advice_json(advice),
        "changes": [_change_json(each) for each in stretches(result.story)],
        "worth": None if found is None else found.to_json(),
        "notes": list(result.notes),
        "kept": result.kept,
        "report": result.report,
        "seal": result.story.seal,
    }


def _advice_json(advice: Advice) -> dict[str, Any]:
    return {
        "setting": dict(advice.setting),
        "energy_change": advice.energy_change,
        "energy_half": STANDARD_ERRORS * advice.energy_error,
        "time_change": advice.time_change,
        "time_half": STANDARD_ERRORS * advice.time_error,
        "says": outcome.advised(advice),
    }


def _change_json(chapter: Stretch) -> dict[str, Any]:
    return {
        "at_s": chapter.start_s,
        "until_s": chapter.end_s,
        "what": chapter.kind,
        "phase": chapter.phase,
        "setting": dict(chapter.setting),
        "why": plainly(chapter.reason),
        "blocks": chapter.blocks,
    }
