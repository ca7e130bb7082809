"""Pollux' simulator, re-told: rounds of a minute on 16 nodes of 4 T4, with the product's own Tiresias and Optimus.

What it is: the peculiar round of the artefact (all advance a minute, then the policy decides; a changed node list costs
30 s; an epoch ends on a whole second) around ``cluster.allocators``, so that the policies that others are compared with
are seen to give the published figures. What it is not: the product's simulator; nor does it count energy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.cluster_fidelity_apps import Application, Local, Placement, packed
from joulewise.cluster.allocators.optimus import optimus
from joulewise.cluster.allocators.tiresias import tiresias
from joulewise.cluster.state import Allocator, Budget, Job, Kind, Snapshot, Way
from joulewise.cluster.traces import TraceJob

NODES, PER_NODE = 16, 4
ROUND_S = 60
RESTART_S = 30
LIMIT_GPU_S = 57_600.0
"""Where Tiresias' second queue begins: 16 GPU hours."""
KIND = Kind("gpu", NODES, PER_NODE, idle_gpu_w=0.0, host_w=0.0)


@dataclass
class Running:
    """A job of the replay."""

    traced: TraceJob
    app: Application
    nodes: tuple[int, ...] = ()
    placement: Placement = ()
    local: Local | None = None
    delay_s: float = 0.0
    epoch: int = 0
    progress: float = 0.0
    attained_gpu_s: float = 0.0
    ended_s: float | None = None
    ways: tuple[Way, ...] = field(default=())

    @property
    def batch(self) -> int:
        """Global."""
        assert self.traced.batch is not None
        return self.traced.batch

    def move(self, nodes: tuple[int, ...]) -> None:
        """Give it these GPUs, named by their nodes; none: it waits."""
        if nodes == self.nodes:
            return
        self.nodes = nodes
        self.placement = tuple(Counter(nodes).values())
        if nodes:
            self.delay_s = RESTART_S
            self.local = self.app.local(self.batch, len(nodes))

    def advance(self, now_s: float, seconds: float) -> None:
        """Let so much time pass."""
        if self.local is None or not self.nodes or self.ended_s is not None:
            return
        delay_s = min(self.delay_s, seconds)
        self.delay_s -= delay_s
        self.attained_gpu_s += delay_s * len(self.nodes)
        now_s, seconds = now_s + delay_s, seconds - delay_s
        while seconds > 0 and self.ended_s is None:
            goodput = self.app.goodput(self.placement, self.local, self.epoch)
            end = self.app.ends[self.epoch]
            if self.progress + goodput * seconds < end:
                self.progress += goodput * seconds
                self.attained_gpu_s += seconds * len(self.nodes)
                return
            passed_s = round((end - self.progress) / goodput)
            self.progress = end
            self.epoch += 1
            self.attained_gpu_s += passed_s * len(self.nodes)
            now_s, seconds = now_s + passed_s, seconds - passed_s
            if self.epoch == self.app.epochs:
                self.ended_s = now_s


def replay(
    trace: Sequence[TraceJob],
    apps: Mapping[str, Application],
    policy: str,
) -> dict[str, float]:
    """Completion times in seconds, by job, under ``policy``: "tiresias" or "optimus"."""
    jobs = [Running(job, apps[job.model or ""]) for job in trace]
    allocate, seen, order = _POLICIES[policy]()
    now_s = 0
    while any(job.ended_s is None for job in jobs):
        for job in jobs:
            job.advance(now_s, ROUND_S)
        now_s += ROUND_S
        active = [job for job in jobs if job.traced.submitted_s <= now_s and job.ended_s is None]
        if active:
            _decide(now_s, active, [job for job in jobs if job.ended_s is not None], allocate, seen, order)
    return {job.traced.name: (job.ended_s or 0.0) - job.traced.submitted_s for job in jobs}


def _decide(
    now_s: float,
    active: Sequence[Running],
    ended: Sequence[Running],
    allocate: Allocator,
    seen: Callable[[Running], Job],
    order: Callable[[Running, int], float],
) -> None:
    """One decision, and its nodes: who keeps a number of GPUs keeps them; the others take from the emptiest node."""
    ways = allocate(Snapshot(now_s, (KIND,), tuple(seen(job) for job in active)), Budget()).ways
    counts = {job.traced.name: ways[job.traced.name].gpus if job.traced.name in ways else 0 for job in active}
    kept = [job for job in active if len(job.nodes) == counts[job.traced.name]]
    free = Counter(dict.fromkeys(range(NODES), PER_NODE))
    for job in kept:
        free.subtract(job.nodes)
    for job in ended:
        job.move(())
    moved = [job for job in active if len(job.nodes) != counts[job.traced.name]]
    for job in sorted(moved, key=lambda job: order(job, counts[job.traced.name])):
        job.move(_taken(free, counts[job.traced.name]))


def _taken(free: Counter[int], gpus: int) -> tuple[int, ...]:
    nodes: list[int] = []
    while len(nodes) < gpus:
        node = min(free, key=lambda node: (-free[node], node))
        take = min(free[node], gpus - len(nodes))
        nodes += [node] * take
        free[node] -= take
    return tuple(nodes)


def _tiresias() -> tuple[Allocator, Callable[[Running], Job], Callable[[Running, int], float]]:
    def seen(job: Running) -> Job:
        if not job.ways:
            job.ways = (Way(job.traced.gpus, 1.0, 1.0),)
        return _job(job, 1.0)

    return (
        tiresias(limits_gpu_s=(LIMIT_GPU_S,), keep_running=False),
        seen,
        lambda job, _: float(job.attained_gpu_s >= LIMIT_GPU_S),
    )


def _optimus() -> tuple[Allocator, Callable[[Running], Job], Callable[[Running, int], float]]:
    def seen(job: Running) -> Job:
        if not job.ways:
            most = 1 if job.app.name == "ncf" else min(job.batch // job.app.min_local, KIND.gpus)
            job.ways = tuple(Way(gpus, _expected_s(job, gpus), 1.0) for gpus in range(1, most + 1))
        return _job(job, job.app.iterations_left(job.batch, job.epoch))

    return optimus(), seen, lambda _, gpus: gpus


def _expected_s(job: Running, gpus: int) -> float:
    """Seconds of an iteration as Optimus knows them: packed, the true step times."""
    return job.app.iteration_s(packed(gpus, PER_NODE), job.app.local(job.batch, gpus, always_accumulate=True))


def _job(job: Running, work_left: float) -> Job:
    return Job(
        job.traced.name,
        job.traced.submitted_s,
        work_left,
        job.ways,
        job.traced.gpus,
        attained_gpu_s=job.attained_gpu_s,
        way=job.ways[0] if job.nodes else None,
    )


_POLICIES = {"tiresias": _tiresias, "optimus": _optimus}
