"""What the scheduler and a node's agent say to each other, as plain data.

What it is: one exchange, again and again. The agent reports what it sees and what it has done; the answer is what the
scheduler *declares* for that node. Nothing is commanded: a declaration is the whole of what shall be so, and the agent
brings it about, holds it, and looks again (reconciles). It keeps the last one when the scheduler is gone, since the
ceilings of all nodes together keep the cap. An older ``epoch`` than one already heard is ignored: a scheduler that was
replaced must not act.

One decision on all nodes or on none: a share that is not ``firm`` is prepared (lease taken, range checked) and
answered for, not applied; the scheduler makes it firm once every node of the job is ``ready``, and takes it back when
one has refused. A ceiling is never prepared: lowering power is safe anywhere at once.

Times are seconds since 1970, powers in watts, energies in joules. ``core.plain`` makes JSON of it and back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from joulewise.core.knob import DEFAULT, Setting


@dataclass(frozen=True, slots=True)
class Share:
    """One job on one node: how its GPUs there shall be set. ``version`` counts a job's decisions."""

    job: str
    id: str
    """The engine's id, by which a prolog tells the agent which GPUs these are."""
    setting: Setting = DEFAULT
    version: int = 0
    firm: bool = True


@dataclass(frozen=True, slots=True)
class Declared:
    """What shall be so on one node. ``number`` counts declarations of one epoch; a later one replaces it all."""

    node: str
    epoch: int
    number: int
    shares: tuple[Share, ...] = ()
    ceiling_w: float | None = None
    """What the whole node may draw, host and idle GPUs included; None: no limit."""
    ended: tuple[str, ...] = ()
    """Ids whose final energy the scheduler has written down: the agent may forget them."""
    period_s: float = 1.0
    """How often to report when nothing happens."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU: ``power_w`` and ``energy_j`` (a counter that only grows while the agent lives) as its sensor says."""

    uuid: str
    power_w: float | None
    energy_j: float
    setting: Setting = DEFAULT
    job: str | None = None
    """The engine's id of the job that holds it."""


@dataclass(frozen=True, slots=True)
class ShareReport:
    """How far a share is: ``ready`` (prepared), ``applied``, ``waiting`` (its GPUs are not claimed yet), ``refused``.

    ``version`` is the one that this is about; ``why`` is in words, for a refusal."""

    id: str
    version: int
    state: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """What a job has drawn on this node so far: its GPUs, and its share of host and idle GPUs."""

    id: str
    gpu_j: float
    host_j: float
    gpu_s: float
    """GPU-seconds held."""
    final: bool = False
    """It has left this node; nothing more will be added for this claim."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent says. ``epoch`` and ``number`` are of the declaration that it holds now (0: none yet).

    ``node_j`` = Σ of all jobs' energies and ``idle_j``, since the agent first ran on this node: it lasts over restarts
    of the agent. ``ceiling_w`` is the one in force."""

    node: str
    time_s: float
    """When its energies were counted, seconds since 1970."""
    epoch: int
    number: int
    power_w: float | None
    node_j: float
    idle_j: float
    gpus: tuple[GpuReport, ...] = ()
    shares: tuple[ShareReport, ...] = ()
    jobs: tuple[JobEnergy, ...] = ()
    ceiling_w: float | None = None
    trouble: tuple[str, ...] = field(default=())
    """What an operator should know: clocks refused, a GPU lost, a ceiling that cannot be kept."""
