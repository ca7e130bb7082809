"""What a scheduler asks of the engine below it: nodes, jobs, and a few things that can be done about them.

What it is: the protocol behind which Slurm (``engines/slurm``) and the simulator (``engines/simulated``) stand, and the
plain facts that cross it. It is small on purpose, and fit for an engine without a queue of its own (Ray).

Everything that is done is *aimed at*, not waited for: ``start``, ``resize``, ``preempt`` and ``power`` return at once
and come true in ``jobs`` and ``nodes`` later (a job may have to write a checkpoint first). All of them may be said
again at any time, by another process, half-way through: an engine compares what is with what is wanted and does what is
left. So a scheduler that was killed says its last words again, and nothing happens twice.

What it is not: a policy, a clock of GPUs (the node agents set those, ``declared``) or a book of its own; the
scheduler's book is in the store (``queue``).

Times are seconds since 1970. GPUs of a job on a node are counted, not numbered: which ones they are the engine decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from joulewise.core.caller import Caller

Place = Mapping[str, int]
"""Node → how many of its GPUs."""

JobState = Literal["waiting", "starting", "running", "leaving", "ended", "failed", "cancelled"]
"""``waiting``: held, or queued; ``leaving``: told to go, still holds its GPUs. The last three are for good."""

NodeState = Literal["up", "off", "booting", "down"]

NOBODY = Caller()
"""Whose a job is where nobody knows."""
DONE: frozenset[JobState] = frozenset({"ended", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Order:
    """A job as its user hands it in.

    ``gpus`` is what it asks for. One with a ``checkpoint`` folder is elastic: between ``least_gpus`` and ``most_gpus``
    (None: as far as is believed to help) it may be stopped and started with another number. One without is rigid: it
    gets clocks, and is preempted only as a last resort, losing what it has done. ``work`` is how many units (steps) it
    takes, if known; ``brought`` are its time–energy points (``brought.py``), as plain values.
    """

    name: str
    command: tuple[str, ...]
    gpus: int
    submitted_s: float = 0.0
    checkpoint: str | None = None
    least_gpus: int = 1
    most_gpus: int | None = None
    work: float | None = None
    brought: Mapping[str, Any] | None = None
    workload: str = ""
    """What kind of training it is: jobs with the same one learn from each other."""
    batch: int | None = None
    deadline_s: float | None = None
    weight: float = 1.0
    tenant: str = ""
    directory: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None
    """The longest it may run in all; None: no limit."""
    user: str = ""
    """Who handed it in, and for which account and QOS: see ``GIVEN``. ``tenant`` is only a label of the user's own."""
    account: str = ""
    qos: str = ""
    mark: str = ""
    """Tells this submission from any other, also when it is handed in again under another id."""

    @property
    def elastic(self) -> bool:
        """Whether it can be stopped and go on with another number of GPUs."""
        return self.checkpoint is not None


GIVEN = frozenset({"submitted_s", "user", "account", "qos", "mark"})
"""Fields of an ``Order`` that the engine or the server fills in from its own records. What a user writes there, in a
comment or a request, is not read: others' GPUs depend on them."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job as the engine sees it. ``id`` is the engine's own name, the same for all its starts; ``starts`` counts
    them. ``place`` is empty unless it holds GPUs. ``since_s``: when it came to this state, None if not known."""

    name: str
    id: str
    state: JobState
    order: Order
    place: Place = field(default_factory=dict)
    starts: int = 0
    since_s: float | None = None
    exit_code: int | None = None
    why: str = ""
    by: Caller = NOBODY
    """Who handed it in, as the engine has recorded: never as the order says."""

    @property
    def uid(self) -> int | None:
        """Whose it is; None where the engine does not know."""
        return self.by.uid


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node as the engine sees it. ``foreign_gpus`` are held by jobs that are none of ours. ``why``: in words, for one
    that is down."""

    name: str
    gpus: int
    state: NodeState
    kind: str = "gpu"
    foreign_gpus: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something changed: ``what`` is a word (submitted, started, ended, failed, cancelled, lost, up, off, down)."""

    time_s: float
    what: str
    about: str
    """The job's or the node's name."""
    says: str = ""


class Engine(Protocol):
    """Where jobs run. Methods raise ``EngineLost`` where the engine does not answer, ``BadSpec`` for what it can never
    do, ``Fenced`` where a later scheduler has taken over."""

    def take(self, epoch: int) -> None:
        """Only the scheduler with the highest ``epoch`` acts from now on; any other's acts raise ``Fenced``."""
        ...

    def nodes(self) -> tuple[NodeSeen, ...]:
        """All nodes, in a fixed order."""
        ...

    def jobs(self) -> tuple[JobSeen, ...]:
        """All our jobs that it still knows, in order of submission. Those that are done stay for some minutes at
        least."""
        ...

    def submit(self, order: Order, by: Caller | None = None) -> str:
        """Hand a job in, held until ``start``; its id. ``by``: on whose behalf, where jobs do not run as whoever hands
        them in. The same order twice is one job; another order under the name
        of one that is not done raises ``BadSpec``."""
        ...

    def start(self, name: str, place: Place) -> None:
        """A job that waits shall run there."""
        ...

    def resize(self, name: str, place: Place) -> None:
        """A job that runs shall save, stop, and run there instead, under the same id."""
        ...

    def preempt(self, name: str) -> None:
        """A job that runs shall save, stop and wait, under the same id."""
        ...

    def stop(self, name: str, why: str) -> None:
        """A job shall end now, for good; ``why`` is for its user."""
        ...

    def power(self, node: str, *, on: bool) -> None:
        """Switch a node. One with a job on it is not switched off: ``BadSpec``."""
        ...

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        """What happened since the last call; returns as soon as something did, else after ``longest_s``. Whatever is
        under way (a resize) is carried on here, so it must be called again and again."""
        ...

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        """Write a job's energy so far into the engine's accounting, where its users look. ``id``: which job of that
        name, where one that is over has left it to another; empty: the one that has it now."""
        ...
