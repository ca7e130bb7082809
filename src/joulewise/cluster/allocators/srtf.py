"""Shortest remaining time first, with preemption, at the number of GPUs that each job asked for.

Sizes are predictions (``Job.work_left``), as wrong as they may be. With ``service`` it is Tiresias' SRSF instead:
remaining time × GPUs, which is kinder to many small jobs beside few large ones.
"""

from __future__ import annotations

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.allocators.room import Room, walk
from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Snapshot


def srtf(*, service: bool = False, clock: float | None = None) -> Allocator:
    """Make the policy. ``service``: order by remaining GPU time; ``clock``: as in ``fifo``."""
    ladder = ladders(clock)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        wanted = asked(snapshot, ladder)

        def remaining_s(job: Job) -> float:
            return min(
                (job.work_left * way.unit_s * (way.gpus if service else 1) for way in wanted(job)), default=float("inf")
            )

        return Allocation(walk(sorted(snapshot.jobs, key=remaining_s), wanted, Room(snapshot, budget)))

    return allocate
