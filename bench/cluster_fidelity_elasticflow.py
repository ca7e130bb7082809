"""ElasticFlow's simulator, re-told: decisions at arrivals, ends and demotions on nodes of 8 A100, seconds only.

What it is: the artefact's way with time (arrivals merged to a slot, a price for every start, every slot-th decision
restarts all) and Tiresias in it, which is the product's own. Gandiva is in ``cluster_fidelity_gandiva``. What it is
not: the product's simulator; nor does it count energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.state import Budget, Costs, Job, Kind, Snapshot, Way
from joulewise.cluster.traces import TraceJob

PER_NODE = 8
LIMITS_GPU_S = (3_250.0, 7_200.0)
"""Where Tiresias' second and third queues begin."""


def costs(gpus: int) -> Costs:
    """Of a cluster of so many GPUs: large ones are slower."""
    return Costs(7.0, 2.0, 47.0) if gpus >= 256 else Costs()


class Arrivals:
    """Jobs that are still to come, as events: those of the next slot come together at its end."""

    def __init__(self, trace: Sequence[TraceJob]) -> None:
        self._events: list[tuple[float, list[TraceJob]]] = []
        for job in sorted(trace, key=lambda job: job.submitted_s):
            if not self._events or self._events[-1][0] != job.submitted_s:
                self._events.append((job.submitted_s, []))
            self._events[-1][1].append(job)

    @property
    def next_s(self) -> float | None:
        """When the next event is."""
        return self._events[0][0] if self._events else None

    def pop(self, now_s: float) -> list[TraceJob]:
        """The jobs that come now."""
        return self._events.pop(0)[1] if self._events and self._events[0][0] == now_s else []

    def merge(self, until_s: float) -> None:
        """Put all that come before ``until_s`` into one event then; the last event of all is left where it is."""
        if len(self._events) < 2:
            return
        soon = [event for event in self._events if event[0] <= until_s]
        if soon:
            self._events[: len(soon)] = [(until_s, [job for _, jobs in soon for job in jobs])]


class Decisions:
    """Counts decisions: every slot-th one restarts all jobs."""

    def __init__(self, slot_s: int) -> None:
        self._slot_s = slot_s
        self._count = -1

    def restarts(self) -> bool:
        """Whether the decision that begins now does."""
        self._count += 1
        return self._count > 0 and self._count % self._slot_s == 0


@dataclass(slots=True)
class _Queued:
    """A job in Tiresias' queues."""

    traced: TraceJob
    ways: tuple[Way, ...]
    queue: int = 0
    ran_s: int = 0
    running: bool = False
    cost_s: float = 0.0

    @property
    def gpus(self) -> int:
        return self.traced.gpus

    def seen(self) -> Job:
        """As the allocator sees it: in the queue that it has got to, which is one a decision at most."""
        service = (0.0, *LIMITS_GPU_S)[self.queue]
        way = self.ways[0] if self.running else None
        return Job(self.traced.name, 0.0, 1.0, self.ways, self.gpus, attained_gpu_s=service, way=way)


_Ends = list[tuple[int, _Queued]]


def replay_tiresias(trace: Sequence[TraceJob], gpus: int, slot_s: int) -> dict[str, float]:
    """Completion times in seconds, by job."""
    kinds = (Kind("gpu", gpus // PER_NODE, PER_NODE, idle_gpu_w=0.0, host_w=0.0),)
    allocate, price = tiresias(limits_gpu_s=LIMITS_GPU_S, keep_running=False), costs(gpus)
    arrivals, decisions = Arrivals(trace), Decisions(slot_s)
    jobs: list[_Queued] = []
    ending: tuple[float, _Ends] | None = None
    falls_s: float | None = None
    taken_s: dict[str, float] = {}
    before_s = 0.0
    while (now_s := _soonest(arrivals.next_s, ending[0] if ending else None, falls_s)) is not None:
        if ending and ending[0] == now_s:
            taken_s |= {job.traced.name: int(end_s - job.traced.submitted_s) for end_s, job in ending[1]}
            jobs = [job for job in jobs if job.traced.name not in taken_s]
        jobs += [_Queued(job, (Way(job.gpus, 1.0, 1.0),)) for job in arrivals.pop(now_s)]
        _credit(jobs, now_s - before_s)
        jobs = _fallen(jobs)
        ways = allocate(Snapshot(now_s, kinds, tuple(job.seen() for job in jobs)), Budget()).ways
        restarts = decisions.restarts()
        for job in jobs:
            runs = job.traced.name in ways
            if runs and (restarts or not job.running):
                job.cost_s = price.of(job.gpus, again=restarts)
            job.running = runs
        jobs.sort(key=lambda job: (job.queue, not job.running))
        ending, falls_s = _ending(jobs, now_s, slot_s, restarts), _falls_s(jobs, now_s, slot_s)
        arrivals.merge(now_s + slot_s)
        before_s = now_s
    return taken_s


def _soonest(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


def _credit(jobs: Sequence[_Queued], gap_s: float) -> None:
    for job in jobs:
        if job.running:
            job.ran_s += int(max(gap_s - job.cost_s, 0.0))
            job.cost_s = 0.0


def _fallen(jobs: Sequence[_Queued]) -> list[_Queued]:
    """Who has had a queue's service goes to the tail of the next, large jobs first; one queue at a time."""
    queues: list[list[_Queued]] = [[], [], []]
    fallen: list[_Queued] = []
    for job in jobs:
        falls = job.queue < len(LIMITS_GPU_S) and job.ran_s * job.gpus >= LIMITS_GPU_S[job.queue]
        (fallen if falls else queues[job.queue]).append(job)
    for job in sorted(fallen, key=lambda job: -job.gpus):
        job.queue += 1
        queues[job.queue].append(job)
    return [job for queue in queues for job in queue]


def _ending(jobs: Sequence[_Queued], now_s: float, slot_s: int, restarts: bool) -> tuple[float, _Ends] | None:
    """The event of the next ends, a slot away at least, with all that end by then, each at its own second."""
    ends = [
        (int(now_s + (job.traced.duration_s or 0.0) - job.ran_s + (job.cost_s if restarts else 0.0)), job)
        for job in jobs
        if job.running
    ]
    if not ends:
        return None
    event_s = max(min(end_s for end_s, _ in ends), now_s + slot_s)
    return event_s, [(end_s, job) for end_s, job in ends if end_s <= event_s]


def _falls_s(jobs: Sequence[_Queued], now_s: float, slot_s: int) -> float | None:
    """The event of the earliest demotion. That what was run is not times the GPUs is the artefact's own."""
    waits = [
        math.ceil((LIMITS_GPU_S[job.queue] - job.ran_s) / job.gpus)
        for job in jobs
        if job.running and job.queue < len(LIMITS_GPU_S)
    ]
    return now_s + max(min(waits), slot_s) if waits else None
