"""Tiresias' discretised two-dimensional least attained service (Gu et al., NSDI'19): who has had little goes first.

A job starts in the first queue and falls into the next when its service (GPUs × seconds) reaches that queue's limit.
The queues are walked in order; a job runs with the GPUs that it asked for if these fit into what is left, else it
waits, preempted if it ran. No size is known and no number of GPUs is changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.allocators.room import Room, walk
from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Snapshot, Way
from joulewise.core.errors import BadSpec

LIMITS_GPU_S = (57_600.0,)
"""Two queues, 16 GPU hours apart: as in Pollux' comparison with Tiresias."""


def tiresias(
    *, limits_gpu_s: Sequence[float] = LIMITS_GPU_S, keep_running: bool = True, clock: float | None = None
) -> Allocator:
    """Make the policy. ``limits_gpu_s``: the service at which a job leaves each queue but the last, ascending.
    ``keep_running``: inside a queue those that run go before those that wait (the paper orders by first start), else
    all go in order of submission. ``clock``: as in ``fifo``."""
    limits = tuple(limits_gpu_s)
    if list(limits) != sorted(set(limits)):
        raise BadSpec(f"the limits of Tiresias' queues must rise, but are {', '.join(f'{x:g}' for x in limits)} GPU-s")
    ladder = ladders(clock)

    def order(job: Job) -> tuple[int, bool]:
        return bisect_right(limits, job.attained_gpu_s), keep_running and job.way is None

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        jobs = sorted(snapshot.jobs, key=order)
        ways = walk(jobs, asked(snapshot, ladder), Room(snapshot, budget))
        # A fall changes something only while somebody waits.
        again_s = _next_fall_s(snapshot, ways, limits) if len(ways) < len(jobs) else None
        return Allocation(ways, again_s=again_s)

    return allocate


def _next_fall_s(snapshot: Snapshot, ways: dict[str, Way], limits: Sequence[float]) -> float | None:
    """When the next of the jobs that run reaches a limit; None if none will."""
    soonest_s = None
    for job in snapshot.jobs:
        way = ways.get(job.name)
        queue = bisect_right(limits, job.attained_gpu_s)
        if way is None or queue == len(limits):
            continue
        falls_s = (limits[queue] - job.attained_gpu_s) / way.gpus
        if soonest_s is None or falls_s < soonest_s:
            soonest_s = falls_s
    return None if soonest_s is None else snapshot.now_s + soonest_s
