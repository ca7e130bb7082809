"""Any policy + Zeus (You et al., NSDI'23): each job at its own best power setting, blind to the cluster.

What it is: a policy around another. It leaves, for each kind and number of GPUs, the one way with the lowest cost
η·energy + (1 − η)·max power·time (Zeus §3.1), and hands the jobs on with these; the number is the other's choice.
What it is not: Zeus' search for that setting; a job's ways are what is known of it by now (``tune.series`` searches).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.ladder import narrowed
from joulewise.cluster.state import Allocation, Allocator, Budget, Kind, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.objective import Weighted


def zeus(allocate: Allocator, *, eta: float = 0.5, max_gpu_w: Mapping[str, float] | None = None) -> Allocator:
    """``allocate`` with every job at its setting of least cost. ``eta``: 1 counts energy alone, 0 time alone.
    ``max_gpu_w``: the highest power limit of a GPU, by kind; without it the most that the job's own ways draw."""
    if not 0 <= eta <= 1:
        raise BadSpec(f"Zeus' eta of {eta:g} makes no sense; give a weight from 0 (time alone) to 1 (energy alone)")

    def best(ways: tuple[Way, ...], kinds: tuple[Kind, ...]) -> tuple[Way, ...]:  # noqa: ARG001 - the same for any
        most_w = {way.kind: max(o.power_w / o.gpus for o in ways if o.kind == way.kind) for way in ways}
        most_w |= max_gpu_w or {}

        def pick(same: Sequence[Way]) -> Way:
            objective = Weighted(eta, same[0].gpus * most_w[same[0].kind])
            return min(same, key=lambda way: (objective.cost(way.point, same[0].point), way.unit_s))

        return narrowed(ways, pick)

    settled = ByWays(best)

    def with_zeus(snapshot: Snapshot, budget: Budget) -> Allocation:
        jobs = tuple(replace(job, ways=settled.of(job.ways, snapshot.kinds)) for job in snapshot.jobs)
        return allocate(replace(snapshot, jobs=jobs), budget)

    return with_zeus
