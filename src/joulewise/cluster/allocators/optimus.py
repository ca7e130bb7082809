"""Optimus' marginal gain (Peng et al., EuroSys'18): the next GPU goes where it shortens a job most.

Every job gets its fewest GPUs in order of submission; then, while any gain is above 0, the job with the largest cut of
remaining time for each GPU more takes its next step. Sizes are predictions. A step that does not fit is passed over.
"""

from __future__ import annotations

from joulewise.cluster.allocators.climb import Step, climb
from joulewise.cluster.allocators.ladder import Ladder, ladders
from joulewise.cluster.allocators.room import Room, first_fit
from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Snapshot, Way


def optimus(*, clock: float | None = None) -> Allocator:
    """Make the policy. ``clock``: for all jobs, as a share of the top one (None: the fastest setting)."""
    ladder = ladders(clock)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        room = Room(snapshot, budget)
        rungs = [ladder.of(job.ways, snapshot.kinds) for job in snapshot.jobs]
        lowest = [_lowest(job, steps, room) for job, steps in zip(snapshot.jobs, rungs, strict=True)]

        def next_step(place: int, held: Way | None) -> Step | None:
            if held is None:
                return None
            way = next((way for way in rungs[place][held.kind] if way.gpus > held.gpus), None)
            if way is None or not room.fits(way, held):
                return None
            gain_s = (held.unit_s - way.unit_s) * snapshot.jobs[place].work_left / (way.gpus - held.gpus)
            return (gain_s, way) if gain_s > 0 else None

        held = climb(lowest, next_step, room)
        return Allocation({job.name: way for job, way in zip(snapshot.jobs, held, strict=True) if way is not None})

    return allocate


def _lowest(job: Job, ladder: Ladder, room: Room) -> Way | None:
    """Take the fewest GPUs of a kind: the job's own, else the fastest; None where none fits."""
    own = job.way.kind if job.way else None
    fewest = sorted((rungs[0] for rungs in ladder.values()), key=lambda way: (way.kind != own, way.unit_s))
    way = first_fit(fewest, room)
    if way is not None:
        room.take(way)
    return way
