"""A run's decisions, frontier and proof as plain data, for whoever draws them elsewhere than in our own page.

Pure: made of a ``Story`` and its ``Claim``, so that a dashboard can say nothing else than report, history and
``verify`` do. Times are seconds since 1970: those of the run's own clock, counted from when it began, so that they fit
its readings where a simulated GPU's time runs faster than ours. Not JSON yet (``core.plain`` makes that), and no
drawing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulewise.core.knob import Setting
from joulewise.report.claim import STANDARD_ERRORS, Claim
from joulewise.report.story import Story, Stretch, stretches, tried
from joulewise.report.words import named, plainly, verdict

PRIVATE = frozenset({"host", "boot", "pid", "pid_start"})
"""Facts of a journal that nobody needs who only looks at a run."""
KINDS = {
    "baseline": "measured",
    "probe": "tried",
    "verify": "compared",
    "hold": "held",
    "small": "the job changed",
    "large": "the job changed",
    "pace": "the job changed",
    "lost": "stopped",
    "ruler": "another ruler",
    "slack": "waiting GPUs",
    "unmarked": "other work",
    "refused": "given up",
}
"""What a chapter's kind is called; the word itself where it is not here."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One thing that was done, or that happened, and why."""

    at_s: float
    until_s: float
    """The same as ``at_s`` for what happened at one moment."""
    kind: str
    """"baseline", "probe", "verify", "hold"; or the word of a change: "large", "lost", …"""
    kind_words: str
    setting: Setting
    words: str
    """The setting in words; empty where none is meant."""
    reason: str
    phase: str
    blocks: int


@dataclass(frozen=True, slots=True)
class TriedPoint:
    """What one setting did against default: 0.92 is 8 % less. Errors are half of a 95 % interval, None: unknown."""

    setting: Setting
    words: str
    phase: str
    time_ratio: float
    energy_ratio: float
    time_error: float | None
    energy_error: float | None
    duration_s: float
    """For how long it ran, clean work only."""
    held: bool
    chosen: bool
    """Whether it is the one that was held last."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What is claimed, and what it rests on. Changes are relative to default, halves those of 95 % intervals."""

    energy_change: float
    energy_half: float | None
    time_change: float | None
    time_half: float | None
    saved_j: float | None
    saved_half_j: float | None
    windows: int
    """Baseline windows at drawn times that count."""
    pairs: int
    """Pairs, compared with default in a drawn order, that count beside them."""
    baseline_share: float | None
    """The share of the held time that was spent on the windows."""
    judged_s: float
    watched_s: float
    unjudged: tuple[str, ...]
    digest: str
    """SHA-256 of the journal's events."""


def chapters(story: Story, began_s: float) -> list[Chapter]:
    """What was done when and why, in order. ``began_s``: when the run began, seconds since 1970."""
    return [_chapter(each, began_s) for each in stretches(story)]


def points(story: Story) -> list[TriedPoint]:
    """Every setting that ran, default first; none where nothing was compared."""
    chosen = story.held()
    return [
        TriedPoint(
            each.setting,
            named(each.setting),
            each.phase,
            1.0 + each.time_change,
            1.0 + each.energy_change,
            _half(each.time_error),
            _half(each.energy_error),
            each.seconds,
            each.held,
            chosen is not None and each.setting == chosen,
        )
        for each in tried(story.seen)
    ]


def proof(story: Story, claim: Claim) -> Proof | None:
    """The claim of a run; None where nothing can be claimed."""
    if claim.energy_change is None:
        return None
    return Proof(
        claim.energy_change,
        claim.energy_half,
        claim.time_change,
        claim.time_half,
        claim.saved_j,
        claim.saved_half_j,
        claim.windows,
        claim.pairs,
        claim.baseline_share,
        claim.judged_s,
        claim.watched_s,
        claim.unjudged,
        story.digest(),
    )


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a run without those that are nobody's business."""
    return {key: value for key, value in facts.items() if key not in PRIVATE}


def bound(story: Story) -> float | None:
    """The slowdown that was allowed, as a share; None where none was named."""
    found = story.facts.get("bound")
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1:
        return None
    return float(found)


def _chapter(stretch: Stretch, began_s: float) -> Chapter:
    words = named(stretch.setting) if stretch.blocks else ""
    reason = plainly(stretch.reason).removeprefix(f"{words}: ")
    judged = verdict(stretch.says) if stretch.kind == "verify" else ""
    return Chapter(
        began_s + stretch.start_s,
        began_s + stretch.end_s,
        stretch.kind,
        KINDS.get(stretch.kind, stretch.kind),
        stretch.setting,
        words,
        "; ".join(dict.fromkeys(filter(None, (reason, judged)))),
        stretch.phase,
        stretch.blocks,
    )


def _half(error: float) -> float | None:
    return STANDARD_ERRORS * error if math.isfinite(error) else None
