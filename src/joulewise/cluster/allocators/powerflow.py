"""PowerFlow-style greedy: the step with the largest relative cut in time for its relative rise in energy comes first.

What it is: our reconstruction of PowerFlow's allocator (arXiv 2304.06381; the loop as a public port has it, the clock
step ours). Every job starts with its fewest GPUs at its most frugal setting. Then, again and again, of all steps (twice
the GPUs at the same setting, or one notch faster) the one with the highest dJ/dE is taken, where dJ is the share of its
time that the job saves and dE the share of energy that it adds; a step that costs no energy comes before all others. It
ends when the GPUs, the energy budget or the worthwhile steps do. Why it exists: it is what ``priced`` is compared with.
What it is not: size-aware (the work left cancels in dJ/dE), or the paper's code, which was not released.

What the paper's abstract leaves open was decided in its favour: a queue rule for more jobs than GPUs, counts that stay
where a change would not pay for its restart, and three ways to hold energy down (``Budget.energy_j``, ``share``,
``threshold``); a comparison takes whichever serves it best.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.room import Room
from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Kind, Snapshot, Way

Queue = Literal["arrival", "shortest", "attained"]


@dataclass(frozen=True, slots=True)
class _Rung:
    """One number of GPUs of one kind: its ways from the most frugal to the fastest, and the joules of a unit of work
    of each with the host's share."""

    gpus: int
    kind: str
    ways: tuple[Way, ...]
    unit_j: tuple[float, ...]

    def like(self, way: Way) -> int | None:
        """The notch with this way's setting and batch; else the first that is faster than it; None: there is none."""
        for notch, own in enumerate(self.ways):
            if own.setting == way.setting and own.batch == way.batch:
                return notch
        return next((notch for notch, own in enumerate(self.ways) if own.unit_s < way.unit_s), None)


def powerflow(
    *,
    threshold: float = 0.0,
    share: float | None = None,
    queue: Queue = "arrival",
    sticky: bool = True,
) -> Allocator:
    """The allocator. ``threshold``: it stops at steps of lower dJ/dE. ``share``: of the energy between the least that
    the jobs need and what the greedy spends unbounded, this part is its budget (0 to 1; None: no such bound).
    ``queue``: who gets the first GPUs; by submission, by predicted time left, or by least service attained.
    ``sticky``: a running job keeps its GPU count where a change would not pay for the restart."""
    ladders: ByWays[tuple[_Rung, ...]] = ByWays(_ladder)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        climb = _Climb(snapshot, budget, ladders)
        limit_j = math.inf if budget.energy_j is None else budget.energy_j
        jobs = sorted(snapshot.jobs, key=_ORDERS[queue])
        climb.begin(jobs, limit_j)
        if share is not None:
            least_j = climb.energy_j
            climb.rise(math.inf, threshold)
            limit_j = min(limit_j, least_j + share * (climb.energy_j - least_j))
            climb = _Climb(snapshot, budget, ladders)
            climb.begin(jobs, max(limit_j, least_j))
        climb.rise(limit_j, threshold)
        if sticky:
            climb.stay(limit_j)
        return Allocation(climb.ways())

    return allocate


def _left_s(job: Job) -> float:
    return job.work_left * min(way.unit_s for way in job.ways)


_ORDERS: dict[Queue, Callable[[Job], tuple[float, float]]] = {
    "arrival": lambda job: (job.submitted_s, 0.0),
    "shortest": lambda job: (_left_s(job), job.submitted_s),
    "attained": lambda job: (job.attained_gpu_s, job.submitted_s),
}


def _ladder(ways: tuple[Way, ...], kinds: tuple[Kind, ...]) -> tuple[_Rung, ...]:
    """The rungs of a job that fit, by kind and then by number of GPUs."""
    rungs = []
    for kind in kinds:
        counts = sorted({way.gpus for way in ways if way.kind == kind.name and way.gpus <= kind.gpus})
        for gpus in counts:
            slots_w = gpus * kind.slot_w
            same = [way for way in ways if way.kind == kind.name and way.gpus == gpus]
            kept: list[Way] = []
            for way in sorted(same, key=lambda way: (way.unit_j + way.unit_s * slots_w, way.unit_s)):
                if not kept or way.unit_s < kept[-1].unit_s:
                    kept.append(way)
            joules = tuple(way.unit_j + way.unit_s * slots_w for way in kept)
            rungs.append(_Rung(gpus, kind.name, tuple(kept), joules))
    return tuple(rungs)


@dataclass(slots=True)
class _Climber:
    """One job on its ladder."""

    job: Job
    rungs: tuple[_Rung, ...]
    rung: int = 0
    notch: int = 0
    moves: int = 0

    @property
    def way(self) -> Way:
        return self.rungs[self.rung].ways[self.notch]

    @property
    def energy_j(self) -> float:
        return self.job.work_left * self.rungs[self.rung].unit_j[self.notch]

    def steps(self) -> list[tuple[int, int]]:
        """Where it can go next: (rung, notch)."""
        here = self.rungs[self.rung]
        steps = [(self.rung, self.notch + 1)] if self.notch + 1 < len(here.ways) else []
        for other in range(self.rung + 1, len(self.rungs)):
            rung = self.rungs[other]
            if rung.kind != here.kind:
                break
            if rung.gpus >= 2 * here.gpus:
                notch = rung.like(self.way)
                if notch is not None:
                    steps.append((other, notch))
                break
        return steps


class _Climb:
    """The jobs that run, and what is left of GPUs and watts while they climb."""

    def __init__(self, snapshot: Snapshot, budget: Budget, ladders: ByWays[tuple[_Rung, ...]]) -> None:
        self._snapshot = snapshot
        self._ladders = ladders
        self._room = Room(snapshot, budget)
        self._climbers: list[_Climber] = []
        self.energy_j = 0.0

    def ways(self) -> dict[str, Way]:
        """Who runs, and how."""
        return {climber.job.name: climber.way for climber in self._climbers}

    def begin(self, jobs: list[Job], limit_j: float) -> None:
        """The fewest GPUs at the most frugal setting to each job in order, where GPUs, joules and watts allow it."""
        for job in jobs:
            climber = _Climber(job, self._ladders.of(job.ways, self._snapshot.kinds))
            free = self._room.free
            firsts = [
                number
                for number, rung in enumerate(climber.rungs)
                if rung.gpus <= free[rung.kind] and (number == 0 or climber.rungs[number - 1].kind != rung.kind)
            ]
            if not firsts:
                continue
            climber.rung = min(firsts, key=lambda number: climber.rungs[number].ways[0].unit_s)
            if job.way is not None and job.way.kind != climber.way.kind:
                here = [number for number in firsts if climber.rungs[number].kind == job.way.kind]
                climber.rung = here[0] if here else climber.rung
            if self.energy_j + climber.energy_j > limit_j or not self._room.fits(climber.way):
                continue
            self._room.take(climber.way)
            self.energy_j += climber.energy_j
            self._climbers.append(climber)

    def rise(self, limit_j: float, threshold: float) -> None:
        """The greedy loop."""
        heap: list[tuple[float, int, int, int, int]] = []
        for number in range(len(self._climbers)):
            self._offer(heap, number, threshold)
        refused: list[tuple[float, int, int, int, int]] = []
        while heap:
            entry = heapq.heappop(heap)
            _, number, moves, rung, notch = entry
            climber = self._climbers[number]
            if moves != climber.moves:
                continue
            way = climber.rungs[rung].ways[notch]
            rise_j = climber.job.work_left * climber.rungs[rung].unit_j[notch] - climber.energy_j
            if not self._room.fits(way, climber.way):
                continue
            if rise_j > 0 and self.energy_j + rise_j > limit_j:
                refused.append(entry)
                continue
            self._room.take(way, climber.way)
            self.energy_j += rise_j
            climber.rung, climber.notch, climber.moves = rung, notch, moves + 1
            self._offer(heap, number, threshold)
            if rise_j < 0:  # joules have come free: what was too dear may fit now
                for again in refused:
                    heapq.heappush(heap, again)
                refused.clear()

    def stay(self, limit_j: float) -> None:
        """Give running jobs their GPU count back where the change would not pay for the restart."""
        for climber in self._climbers:
            held = climber.job.way
            if held is None or (climber.way.gpus, climber.way.kind) == (held.gpus, held.kind):
                continue
            rung = next((n for n, at in enumerate(climber.rungs) if (at.gpus, at.kind) == (held.gpus, held.kind)), None)
            notch = None if rung is None else climber.rungs[rung].like(climber.way)
            if rung is None or notch is None:
                continue
            way = climber.rungs[rung].ways[notch]
            saved_s = climber.job.work_left * (way.unit_s - climber.way.unit_s)
            rise_j = climber.job.work_left * climber.rungs[rung].unit_j[notch] - climber.energy_j
            if saved_s > self._snapshot.costs.of(climber.way.gpus, again=True):
                continue
            if self.energy_j + rise_j <= limit_j and self._room.fits(way, climber.way):
                self._room.take(way, climber.way)
                self.energy_j += rise_j
                climber.rung, climber.notch = rung, notch

    def _offer(self, heap: list[tuple[float, int, int, int, int]], number: int, threshold: float) -> None:
        climber = self._climbers[number]
        here = climber.rungs[climber.rung]
        now_s, now_j = here.ways[climber.notch].unit_s, here.unit_j[climber.notch]
        for rung, notch in climber.steps():
            cut = (now_s - climber.rungs[rung].ways[notch].unit_s) / now_s
            if cut <= 0:
                continue
            rise = (climber.rungs[rung].unit_j[notch] - now_j) / now_j
            priority = cut / rise if rise > 0 else math.inf
            if priority >= threshold:
                heapq.heappush(heap, (-priority, number, climber.moves, rung, notch))
