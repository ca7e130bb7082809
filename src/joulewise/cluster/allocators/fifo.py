"""First in, first out: a job runs from when its GPUs are free until its end, in order of submission.

What most clusters do without a policy. Nothing is preempted and no number of GPUs is changed.
"""

from __future__ import annotations

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.allocators.room import Room, first_fit, walk
from joulewise.cluster.state import Allocation, Allocator, Budget, Snapshot


def fifo(*, backfill: bool = False, clock: float | None = None) -> Allocator:
    """Make the policy. ``backfill``: jobs behind one that does not fit may pass it; ``clock``: for all jobs, as a share
    of the top one (None: the fastest setting)."""
    ladder = ladders(clock)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        wanted = asked(snapshot, ladder)
        room = Room(snapshot, budget)
        ways = walk((job for job in snapshot.jobs if job.way is not None), wanted, room)
        waiting = [job for job in snapshot.jobs if job.way is None]
        if backfill:
            return Allocation(ways | walk(waiting, wanted, room))
        alone = Room(snapshot, budget)
        for job in waiting:
            way = first_fit(wanted(job), room)
            if way is not None:
                room.take(way)
                ways[job.name] = way
            elif first_fit(wanted(job), alone) is not None:
                break  # it will fit some day; one that never can holds nobody up
        return Allocation(ways)

    return allocate
