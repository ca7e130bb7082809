"""Pollux-style goodput (Qiao et al., OSDI'21): GPUs to where they raise everybody's speed-up over a fair share most.

A way's speed counts progress, not samples, where its unit of work is progress: then it is Pollux' goodput, and its
batch size the best there is. The fitness is Pollux' power mean with p = −1 (§4.2): the sum of 1/speed-up is made small,
where the speed-up is over an equal share of the GPUs; a job that would be moved counts for less, by the time that its
restarts take of its life. Pollux searches with a genetic algorithm because its placements interact; here they do not,
so that steps of steepest descent come to the same or better.
"""

from __future__ import annotations

from joulewise.cluster.allocators.climb import Step, climb
from joulewise.cluster.allocators.ladder import Ladder, ladders, nearest
from joulewise.cluster.allocators.room import Room
from joulewise.cluster.state import Allocation, Allocator, Budget, Costs, Job, Snapshot, Way

_WAITS = 1e3
"""What a job without GPUs counts: as if it had a thousandth of its fair share's speed. Any that runs counts less."""


def pollux(*, clock: float | None = None) -> Allocator:
    """Make the policy. ``clock``: for all jobs, as a share of the top one (None: the fastest setting)."""
    ladder = ladders(clock)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        room = Room(snapshot, budget)
        # Those that run come first: of equal gains theirs counts.
        jobs = sorted(snapshot.jobs, key=lambda job: job.way is None)
        fair = max(1, sum(kind.gpus for kind in snapshot.kinds) // max(1, len(jobs)))
        menus = [_menu(job, ladder.of(job.ways, snapshot.kinds), fair, snapshot) for job in jobs]

        def next_step(place: int, held: Way | None) -> Step | None:
            gpus, misery = 0, _WAITS
            if held is not None:
                gpus, misery = held.gpus, next(misery for way, misery in menus[place] if way is held)
            steps = (
                ((misery - less) / (way.gpus - gpus), way)
                for way, less in menus[place]
                if way.gpus > gpus and less < misery and room.fits(way, held)
            )
            return max(steps, key=lambda step: step[0], default=None)

        held = climb([None] * len(jobs), next_step, room)
        return Allocation({job.name: way for job, way in zip(jobs, held, strict=True) if way is not None})

    return allocate


def _menu(job: Job, ladder: Ladder, fair_gpus: int, snapshot: Snapshot) -> list[tuple[Way, float]]:
    """Each rung of each kind with 1 / (its speed-up over a fair share, less what a move costs)."""
    fair_s = min((nearest(rungs, fair_gpus).unit_s for rungs in ladder.values()), default=0.0)
    age_s = max(0.0, snapshot.now_s - job.submitted_s)
    return [
        (way, min(_WAITS, way.unit_s / fair_s / max(_kept(job, way, age_s, snapshot.costs), 1 / _WAITS)))
        for rungs in ladder.values()
        for way in rungs
    ]


def _kept(job: Job, way: Way, age_s: float, costs: Costs) -> float:
    """The share of a job's life that is left after its restarts, if it were moved to ``way`` now: Pollux' factor."""
    if job.way is None or (job.way.kind, job.way.gpus) == (way.kind, way.gpus):
        return 1.0
    restart_s = costs.of(way.gpus, again=True)
    return max(0.0, age_s - job.restarts * restart_s) / (age_s + restart_s)
