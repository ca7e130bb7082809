"""How a cluster stands, as its scheduler sees it: plain data for the server, the command line and people.

What it is: what ``Scheduler.status`` returns. What it is not: the scheduler's own book (``queue``). Times are seconds
since 1970, powers in watts, energies in joules; ``core.plain`` makes JSON of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from joulewise.cluster.state import Prices
from joulewise.core.knob import DEFAULT, Setting


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node. ``used_gpus`` are held by our jobs, ``foreign_gpus`` by others. ``power_w``: as its agent says, None
    where none does. ``counted_w``: what the cap is kept with. ``ceiling_w``: declared; ``in_force_w``: the highest that
    may hold there now. ``silent_s``: since its agent was last heard; None without agents. ``says``: its troubles."""

    name: str
    state: str
    kind: str
    gpus: int
    used_gpus: int
    foreign_gpus: int
    power_w: float | None
    counted_w: float
    believed_w: float
    ceiling_w: float | None
    in_force_w: float | None
    silent_s: float | None
    says: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job. ``state`` is the engine's; ``aim`` what is being done about it (start, resize, preempt, stop; empty:
    it is as it shall be). ``place`` and ``setting`` are what it has, or is to have, ``gpus`` how many in all.
    ``done`` of ``work`` units (None: not known how many). ``eta_s``: when it is believed to end; None while it waits.
    """

    name: str
    id: str
    state: str
    aim: str
    gpus: int
    place: Mapping[str, int]
    setting: Setting = DEFAULT
    power_w: float = 0.0
    """Of all its GPUs, as believed."""
    done: float = 0.0
    work: float | None = None
    work_left: float | None = None
    energy_j: float = 0.0
    submitted_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    eta_s: float | None = None
    starts: int = 0
    deadline_s: float | None = None
    elastic: bool = False
    gpus_asked: int = 0
    tenant: str = ""
    weight: float = 1.0
    exit_code: int | None = None
    why: str = ""
    gpu_j: float = 0.0
    """Of ``energy_j``, what its GPUs have drawn, as far as nodes still tell: 0 once its account is closed."""
    user: str = ""
    """Who handed it in, by the engine's word; ``weight`` above is what this user's word counts."""


@dataclass(frozen=True, slots=True)
class Status:
    """The whole cluster. ``power_w``: drawn now, as far as nodes tell, silent ones at their most; ``believed_w``: as
    decided. ``compliant``: drawn is within the cap (None: there is no cap). ``energy_j``: what the cluster's meters
    have counted; ``idle_j``: what of it was no job's. ``joule_price``: at 1 the energy of a typical GPU weighs as much
    as its time. ``troubles``: what an operator should know, in words. ``engine``: empty, or why it does not answer."""

    time_s: float
    epoch: int
    power_w: float
    believed_w: float
    cap_w: float | None
    cap_aim_w: float | None
    cap_until_s: float | None
    cap_source: str
    compliant: bool | None
    energy_j: float
    idle_j: float
    budget_j: float | None
    budget_period_s: float
    joule_price: float
    prices: Prices
    gap: float | None
    rounds: int
    last_round_s: float | None
    nodes: tuple[NodeStatus, ...] = ()
    jobs: tuple[JobStatus, ...] = ()
    engine: str = ""
    troubles: tuple[str, ...] = field(default=())
    cap_by: str = ""
    """Whose word the cap is, in words: ``alice (uid 1000)``, ``token ci``; empty where nobody knows."""
    budget_by: str = ""
