"""What a site allows, as values: rules with their ranges, the pace, the baseline. Pure; ``site`` reads it from a file.

The defaults are those of a site that has no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from joulewise.core.knob import MEMORY_MHZ, POWER_LIMIT_W, SM_MHZ, Choices, Setting

EVERYTHING = "*"

Persistence = Literal["warn", "refuse", "set"]
Needs = Literal["process", "nothing"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: a value, a share of the board's default limit, or the hardware's own end (neither)."""

    value: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """What one knob may be set to; the hardware's own range always stands around it."""

    low: Bound = Bound()
    high: Bound = Bound()

    def within(self, choices: Choices, default_limit_w: float | None) -> tuple[float, float] | None:
        """The range on a GPU that has ``choices``; None if nothing is left of it.

        Where the board does not say its default limit, a share is of the highest one, which is the stricter.
        """
        base = default_limit_w if default_limit_w is not None else choices.high

        def at(bound: Bound, end: float) -> float:
            if bound.value is not None:
                return bound.value
            return bound.share * base if bound.share is not None else end

        low, high = max(at(self.low, choices.low), choices.low), min(at(self.high, choices.high), choices.high)
        return (low, high) if low <= high else None


ANY = Range()
HALF = Range(low=Bound(share=0.5))
"""Down to half of the default limit: below it boards lose far more time than they save energy, and nobody who shares a
machine would expect less."""
USUAL: Mapping[str, Range] = {POWER_LIMIT_W.name: HALF, SM_MHZ.name: ANY, MEMORY_MHZ.name: ANY}


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may set which knobs of which GPUs, how far, and what it takes."""

    users: frozenset[int] | None = None
    """None means everyone."""
    groups: frozenset[int] = frozenset()
    gpus: frozenset[str] | None = None
    """None means every GPU."""
    knobs: Mapping[str, Range | None] = field(default_factory=lambda: dict(USUAL))
    """Knob → its range; None forbids it."""
    needs: Needs = "process"

    def names(self, uid: int, gids: frozenset[int], gpu: str) -> bool:
        """Whether this rule is about that user and that GPU."""
        user = self.users is None or uid in self.users or bool(gids & self.groups)
        return user and (self.gpus is None or gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """How fast one user may write to one GPU."""

    writes_per_s: float = 20.0
    burst: float = 40.0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the site allows. The defaults are those of a site without a file."""

    rules: tuple[Rule, ...] = (Rule(),)
    ttl_most_s: float = 300.0
    poll_s: float = 1.0
    persistence: Persistence = "warn"
    pace: PaceLimits = PaceLimits()
    grant_for_s: float = 86400.0
    """How long a grant lasts whose writer does not say: a day, the usual longest job of a shared queue."""
    granted: Mapping[str, Range | None] = field(default_factory=lambda: dict(USUAL))
    """What a grant gives that names no knobs."""
    baselines: Mapping[str, Setting] = field(default_factory=dict)

    def baseline(self, uuid: str) -> Setting:
        """What the site declares for this GPU: its own table, over that of "*"."""
        return Setting(**{**self.baselines.get(EVERYTHING, {}), **self.baselines.get(uuid, {})})
