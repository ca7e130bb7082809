"""What the server answers beyond the words of the core: views put together, and lists in pages.

On the standard library alone, since the client builds them too (``plain``).
"""

from __future__ import annotations

from dataclasses import dataclass

from joulewise.core.knob import Setting
from joulewise.core.series import Platform, Recurring
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord

LONGEST_TEXT = 200
"""Characters of a name or a note."""
MOST_NOTES = 20


@dataclass(frozen=True, slots=True)
class Names:
    """The jobs that there are."""

    series: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limit:
    """The epochs after which a trial should be stopped without its target."""

    most_epochs: int


@dataclass(frozen=True, slots=True)
class Series:
    """A job, what is believed about its batch sizes on a platform, and what learning has cost and saved there."""

    job: Recurring | None
    platform: Platform | None
    """None while nobody has asked, and no platform was named."""
    summary: SeriesSummary | None
    beliefs: tuple[SizeBelief, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Some trials, in the order in which they were handed out."""

    trials: tuple[TrialRecord, ...]
    next: int | None
    """Ask again from this trial on; None when these were the last."""


@dataclass(frozen=True, slots=True)
class RunPoint:
    """A whole run that nothing beats in both time and energy; errors are one standard error."""

    batch_size: int
    setting: Setting
    time_s: float
    energy_j: float
    time_error_s: float
    energy_error_j: float


@dataclass(frozen=True, slots=True)
class Points:
    """A frontier, fastest first; empty while nothing is known."""

    platform: Platform | None
    points: tuple[RunPoint, ...]
