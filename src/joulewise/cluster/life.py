"""One simulated job: what is submitted, what really happens to it, what is believed of it, and how far it is.

What it is: the two seams at which a bench plugs in (``Truth`` and ``Belief``, never one object) and the book of one
job between submission and end. What it is not: the course of events (``simulator``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from joulewise.cluster.state import Job, Kind, Way


class Truth(Protocol):
    """What really happens to a job."""

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        """Seconds and joules (of all its GPUs, hosts apart) of one unit of work, placed on so many nodes."""
        ...


class Belief(Protocol):
    """What the scheduler knows of a job."""

    def ways(self) -> tuple[Way, ...]:
        """How it can run; the same object while nothing has changed."""
        ...

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """What was seen while it ran so."""
        ...

    def work_left(self, done: float) -> float:
        """Prediction of the units of work to come after ``done`` units."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it comes. ``work`` is the true amount; with 0 it ends as it comes, and nothing else notices."""

    name: str
    submitted_s: float
    work: float
    gpus_asked: int
    truth: Truth
    belief: Belief
    deadline_s: float | None = None
    tenant: str = ""
    elastic: bool = True
    weight: float = 1.0


class Life:
    """One job from submission to end. Progress and energy are kept as of the start of the present span."""

    __slots__ = (
        "done",
        "energy_j",
        "fits",
        "gpu_s",
        "job",
        "kind",
        "nodes",
        "ready_s",
        "restarts",
        "since_s",
        "span",
        "started_s",
        "submission",
        "unit_s",
        "watts",
        "way",
        "ways",
        "works",
    )

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.done = 0.0
        self.energy_j = 0.0
        self.gpu_s = 0.0
        self.restarts = 0
        self.started_s: float | None = None
        self.span = 0
        """Counts up whenever the way or the place changes: what was planned for an earlier one is void."""
        self.way: Way | None = None
        self.kind: Kind | None = None
        self.nodes = 0
        self.since_s = self.ready_s = 0.0
        self.unit_s = self.watts = 0.0
        self.works = False
        self.ways: tuple[Way, ...] | None = None
        self.fits: tuple[Way, ...] = ()
        self.job: Job | None = None
        """As last shown; None when it has to be made anew."""

    def done_at(self, time_s: float) -> float:
        """Units of work done."""
        if self.way is None or time_s <= self.ready_s:
            return self.done
        return self.done + (time_s - max(self.since_s, self.ready_s)) / self.unit_s

    def gpu_s_at(self, time_s: float) -> float:
        """GPU-seconds held."""
        return self.gpu_s if self.way is None else self.gpu_s + self.way.gpus * (time_s - self.since_s)

    @property
    def start_w(self) -> float:
        """What its GPUs draw while it starts."""
        assert self.way is not None
        assert self.kind is not None
        return self.way.gpus * self.kind.idle_gpu_w

    def close(self, time_s: float) -> None:
        """Count the present span in; it holds its GPUs no more, or in another way."""
        assert self.way is not None
        assert self.kind is not None
        held_s = time_s - self.since_s
        worked_s = max(0.0, time_s - max(self.since_s, self.ready_s))
        self.done = self.done_at(time_s)
        self.gpu_s += self.way.gpus * held_s
        self.energy_j += worked_s * self.watts + (held_s - worked_s) * self.start_w
        self.energy_j += held_s * self.way.gpus * self.kind.slot_w
        self.since_s = time_s
        self.span += 1
