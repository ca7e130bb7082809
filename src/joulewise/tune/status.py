"""What an online tuner says of itself: now (``Status``), at the end (``Summary``), without rights (``Advice``).

Plain values, made by ``tune/online``, shown by the command line and kept by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulewise.core.block import Role, Rung
from joulewise.core.frontier import Frontier
from joulewise.core.knob import DEFAULT, Setting
from joulewise.monitor.ruler import WATCHING
from joulewise.tune.proof import Proof


@dataclass(frozen=True, slots=True)
class Advice:
    """What would be set, and what that is expected to bring; errors are one standard error."""

    setting: Setting
    says: str
    time_change: float
    time_error: float
    energy_change: float
    energy_error: float
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """One look at the tuner. Cheap, and safe from any thread."""

    time_s: float
    rung: Rung = Rung.UNKNOWN
    ruler: str = WATCHING
    """How the job's pace is measured, in words."""
    unit_s: float | None = None
    """Seconds of a step or period, as last seen."""
    phase: str = ""
    setting: Setting = DEFAULT
    """What is in force."""
    role: Role | None = None
    """What the present block is for; None while nothing is tried."""
    why: str = ""
    """The tuner's own reason."""
    verified: bool = False
    """Whether what is held has passed the guard."""
    proof: Proof | None = None
    """The saving so far; None until it was computed once."""
    debt_s: float = 0.0
    """Seconds lost so far against the default, by the tuner's own account."""
    slowdown: float = 0.0
    """The same as a share of the job so far."""
    switches: int = 0
    note: str = ""
    """What was lost or cannot be done, in one line; empty while all is well."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How it ended."""

    why: str
    """Why the loop ended: "stopped", or what failed."""
    rung: Rung
    ruler: str
    chosen: Mapping[str, Setting] = field(default_factory=dict)
    """Phase → what was held at the end."""
    verified: Mapping[str, bool] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    proof: Proof | None = None
    frontiers: Mapping[str, Frontier[Setting]] = field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    """Of a dry run: phase by phase."""
    notes: tuple[str, ...] = ()
    """What a user should know: what was lost, what could not be judged."""
    slowdown: float = 0.0
    """The whole job's, by the tuner's own account, probes included."""
    switches: int = 0
