"""Gandiva-style time slicing (Xiao et al., OSDI'18): every job gets its turn, sizes and service unseen.

While all jobs fit they run. Where they ask for more GPUs than there are, each is due the same share of the time since
it came; who is furthest behind goes first, in turns that last about a slice. What does not fit is passed
over. Gandiva's packing of two jobs on one GPU and its migration by trial are not here: a way says nothing about sharing
a GPU, and packing nodes is every policy's (``placement``).
"""

from __future__ import annotations

from joulewise.cluster.allocators.ladder import asked, ladders
from joulewise.cluster.allocators.room import Room, walk
from joulewise.cluster.state import Allocation, Allocator, Budget, Snapshot, Way
from joulewise.core.errors import BadSpec

SLICE_S = 1800.0
"""Gandiva slices by the minute because it suspends in a tenth of a second; where a restart takes half a minute, half an
hour keeps what turns cost near a fiftieth."""


def gandiva(*, slice_s: float = SLICE_S, clock: float | None = None) -> Allocator:
    """Make the policy. ``slice_s``: a turn; ``clock``: as in ``fifo``."""
    if not slice_s > 0:
        raise BadSpec(f"a slice of {slice_s:g} s makes no sense; give more than 0")
    ladder = ladders(clock)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        wanted = asked(snapshot, ladder)
        wants = {job.name: found[0].gpus for job in snapshot.jobs if (found := wanted(job))}
        jobs = [job for job in snapshot.jobs if job.name in wants]
        share = min(1.0, sum(kind.gpus for kind in snapshot.kinds) / max(1, sum(wants.values())))
        behind_s = {
            job.name: share * (snapshot.now_s - job.submitted_s) - job.attained_gpu_s / wants[job.name] for job in jobs
        }

        # Two jobs that take turns drift apart by a second a second; half a slice of grace makes each turn a slice.
        def turn(name: str, running: bool) -> float:
            return behind_s[name] + (slice_s / 2 if running else 0.0)

        ways = walk(sorted(jobs, key=lambda job: -turn(job.name, job.way is not None)), wanted, Room(snapshot, budget))
        return Allocation(ways, again_s=_next_turn_s(snapshot, ways, behind_s, slice_s))

    return allocate


def _next_turn_s(snapshot: Snapshot, ways: dict[str, Way], behind_s: dict[str, float], slice_s: float) -> float | None:
    """When one that waits will be half a slice further behind than one that runs; None where nobody waits."""
    waiting = [behind for name, behind in behind_s.items() if name not in ways]
    running = [behind for name, behind in behind_s.items() if name in ways]
    if not waiting or not running:
        return None
    # A large job may stay behind however often we look; a quarter of a slice bounds how often that is.
    return snapshot.now_s + max(min(running) + slice_s / 2 - max(waiting), slice_s / 4)
