"""Gandiva as ElasticFlow's simulator has it, re-told: sets of nodes for jobs of one size, which take turns in them.

What it is: the artefact's sets with all their quirks, which the given figures need. What it is not: the product's
``allocators.gandiva``, which slices time without sets (where nodes are given away by demand, every job is due the same
share of time anyway) and has none of the quirks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.cluster_fidelity_elasticflow import PER_NODE, Arrivals, Decisions, costs
from joulewise.cluster.traces import TraceJob

TURN_S = 60


@dataclass(slots=True, eq=False)
class _Sliced:
    """A job in a set."""

    traced: TraceJob
    ran_s: float = 0.0
    cost_s: float = 0.0

    @property
    def duration_s(self) -> float:
        return self.traced.duration_s or 0.0


@dataclass(slots=True, eq=False)
class _Set:
    """Nodes whose jobs take turns. ``load`` counts jobs put in; one that ends stays counted (the artefact's own)."""

    gpus: int
    jobs: list[_Sliced] = field(default_factory=list)
    load: int = 0

    @property
    def nodes(self) -> int:
        return -(-self.gpus // PER_NODE)

    @property
    def fits(self) -> int:
        return self.nodes * PER_NODE // self.gpus

    def add(self, job: _Sliced) -> None:
        self.jobs.append(job)
        self.load += 1


class _Cluster:
    """All sets, by their jobs' number of GPUs, least load first."""

    def __init__(self, nodes: int) -> None:
        self.there = nodes * PER_NODE
        self.free = nodes
        self.sets: dict[int, list[_Set]] = {}
        self.waiting: list[_Sliced] = []
        self.taken_s: dict[str, float] = {}

    def open(self, gpus: int) -> _Set | None:
        """A new set; None where there are too few nodes."""
        new = _Set(gpus)
        if new.nodes > self.free:
            return None
        self.free -= new.nodes
        self.sets.setdefault(gpus, []).append(new)
        return new

    def close(self, old: _Set) -> None:
        self.free += old.nodes
        self.sets[old.gpus].remove(old)

    def deal(self, jobs: Sequence[_Sliced], gpus: int) -> None:
        """Each to the set with least load."""
        for job in jobs:
            self.sets[gpus][0].add(job)
            self._sort(gpus)

    def _sort(self, gpus: int) -> None:
        self.sets[gpus].sort(key=lambda one: one.load)

    def resize(self) -> None:
        """Step 1: give each size its part of the nodes."""
        demand = {gpus: gpus * sum(len(one.jobs) for one in sets) for gpus, sets in self.sets.items()}
        held = {gpus: PER_NODE * sum(one.nodes for one in sets) for gpus, sets in self.sets.items()}
        whole = sum(demand.values())
        for gpus in sorted(gpus for gpus, asked in demand.items() if asked):
            target = min(demand[gpus] * self.there // whole, demand[gpus])
            wanted = -(-abs(target - held[gpus]) // gpus)
            if target > held[gpus]:
                self._widen(gpus, wanted)
            elif target < held[gpus]:
                self._narrow(gpus, wanted)

    def _widen(self, gpus: int, wanted: int) -> None:
        opened = [self.open(gpus) for _ in range(wanted)]
        # Dealt anew only then: otherwise the new sets stay empty, and close again when time next passes.
        if _Set(gpus).nodes > 1 or opened[-1] is None:
            jobs = [job for one in self.sets[gpus] for job in one.jobs]
            for one in self.sets[gpus]:
                one.jobs, one.load = [], 0
            self.deal(jobs, gpus)

    def _narrow(self, gpus: int, wanted: int) -> None:
        closed = self.sets[gpus][: min(wanted, len(self.sets[gpus]) - 1)]
        for old in closed:
            self.close(old)
        self.deal([job for old in closed for job in old.jobs], gpus)

    def advance(self, now_s: float, gap_s: float) -> bool:
        """Step 2: time passes for the first jobs of each set. True where a set was emptied."""
        emptied = False
        for one in [one for sets in self.sets.values() for one in sets]:
            turn = one.jobs[: one.fits]
            crowded = len(one.jobs) > one.fits
            for job in turn:
                job.ran_s += max(gap_s - job.cost_s, 0.0)
                job.cost_s = 0.0
                if job.ran_s >= job.duration_s:
                    one.jobs.remove(job)
                    end_s = now_s - (job.ran_s - job.duration_s)
                    self.taken_s[job.traced.name] = int(end_s - job.traced.submitted_s)
            if now_s % TURN_S == 0 and crowded:
                gone = [job for job in turn if job in one.jobs]
                one.jobs = [job for job in one.jobs if job not in gone] + gone
            if not one.jobs:
                self.close(one)
                emptied = True
        return emptied

    def admit(self, job: _Sliced) -> bool:
        """Step 3, for one job: into a set with room, a new set, or a crowded one; False where there is none.

        The set that was looked at goes behind those with its load; a crowded one is thus the second, not the first.
        """
        sets = self.sets.setdefault(job.traced.gpus, [])
        chosen = None
        if sets:
            sets.append(sets.pop(0))
            chosen = sets[-1] if sets[-1].load + 1 < sets[-1].fits else None
        chosen = chosen or self.open(job.traced.gpus)
        if chosen is None and sets:
            sets.append(sets.pop(0))
            chosen = sets[-1]
        if chosen is None:
            return False
        chosen.add(job)
        self._sort(job.traced.gpus)
        return True

    def admit_waiting(self) -> None:
        """Step 4. One that gets in makes the next be passed over (the artefact's own)."""
        place = 0
        while place < len(self.waiting):
            if self.admit(self.waiting[place]):
                del self.waiting[place]
            place += 1

    def placed(self) -> list[_Sliced]:
        """All jobs in sets, whether it is their turn or not."""
        return [job for sets in self.sets.values() for one in sets for job in one.jobs]

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(self.sets.values())


def replay_gandiva(trace: Sequence[TraceJob], gpus: int, slot_s: int) -> dict[str, float]:
    """Completion times in seconds, by job."""
    cluster, arrivals, decisions = _Cluster(gpus // PER_NODE), Arrivals(trace), Decisions(slot_s)
    price = costs(gpus)
    now_s = before_s = arrivals.next_s or 0.0
    while arrivals.next_s is not None or cluster.busy:
        cluster.resize()
        emptied = cluster.advance(now_s, now_s - before_s)
        for job in arrivals.pop(now_s):
            sliced = _Sliced(job)
            if not cluster.admit(sliced):
                cluster.waiting.append(sliced)
        if emptied:
            cluster.admit_waiting()
        before_s = now_s
        arrivals.merge(now_s + slot_s)
        if arrivals.next_s is None:
            now_s += slot_s
            continue
        restarts = decisions.restarts()
        for placed in cluster.placed():
            placed.cost_s = price.of(placed.traced.gpus, again=restarts)
        now_s = arrivals.next_s
    return cluster.taken_s
