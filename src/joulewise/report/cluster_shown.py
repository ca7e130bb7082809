"""A cluster as it is shown to whoever watches from elsewhere: plain data, which ``cluster_log`` folds from a journal.

Times are seconds since 1970 of the cluster's own clock, powers in watts, energies in joules; None is what nobody knows.
Not a scheduler's own ``Status``, which knows more and only of now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a job ran in one way. ``to_s`` None: it still does."""

    from_s: float
    to_s: float | None
    gpus: int
    words: str


@dataclass(frozen=True, slots=True)
class JobShown:
    """One job. ``aim``: what is being done about it; empty where it is as it shall be."""

    name: str
    state: str
    aim: str
    gpus: int
    gpus_asked: int
    place: Mapping[str, Any]
    words: str
    """Its setting."""
    energy_j: float
    done: float
    work: float | None
    starts: int
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    deadline_s: float | None
    exit_code: int | None
    why: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class NodeShown:
    """One node, as its meter was last written down. ``used_gpus``: held by jobs."""

    name: str
    power_w: float | None
    energy_j: float | None
    idle_j: float | None
    used_gpus: int


@dataclass(frozen=True, slots=True)
class PowerShown:
    """The whole cluster over time. Each power is the mean since the time before it; None where nothing is known."""

    time_s: tuple[float, ...]
    power_w: tuple[float | None, ...]
    cap_w: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class BudgetShown:
    """What may be spent in each period; ``spent_j`` of the present one, as last written down."""

    energy_j: float
    period_s: float
    spent_j: float | None
    by: str = ""
    """Whose word it is; empty where nobody knows."""


@dataclass(frozen=True, slots=True)
class ClusterBrief:
    """A cluster in a list."""

    name: str
    time_s: float | None
    power_w: float | None
    cap_w: float | None
    energy_j: float | None
    running: int
    waiting: int
    ended: int


@dataclass(frozen=True, slots=True)
class ClusterShown:
    """A whole cluster, as of the last that was written down (``time_s``)."""

    name: str
    time_s: float | None
    power_w: float | None
    cap_w: float | None
    energy_j: float | None
    power: PowerShown
    budget: BudgetShown | None
    nodes: tuple[NodeShown, ...]
    jobs: tuple[JobShown, ...]
    more_jobs: int
    """Jobs that are over and not listed."""
    troubles: tuple[str, ...]
    cap_by: str = ""
    """Whose word the cap is; empty where nobody knows."""
