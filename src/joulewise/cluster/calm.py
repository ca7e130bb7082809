"""Under a cap nobody is stopped whom lower clocks can keep running.

What it is: a second look at what a policy says under a hard cap. With fewer watts the best for completion times is
often fewer jobs at good clocks, which costs those who are stopped their place, a checkpoint and a restart, for a cap
that may be gone in an hour. So where the policy would stop somebody for the sake of watts alone, it is asked what it
would do without the cap, and that is done at lower clocks, if that is enough.
What it is not: for budgets of energy. Those hold for days, and are kept by the policy's own choice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from joulewise.cluster.state import Allocation, Allocator, Budget, Snapshot
from joulewise.cluster.within import keep_within


def calm(snapshot: Snapshot, budget: Budget, allocate: Allocator, wanted: Allocation) -> Allocation:
    """``wanted`` itself, unless it stops somebody whom the policy would let run without ``budget.power_w`` and for
    whom lower clocks of all are enough: then that, with ``wanted``'s prices."""
    if budget.power_w is None:
        return wanted
    stopped = _stopped(snapshot, wanted)
    if not stopped:
        return wanted
    free = allocate(snapshot, replace(budget, power_w=None))
    for_watts = stopped - _stopped(snapshot, free)
    if not for_watts:
        return wanted
    slow = keep_within(snapshot, free, budget.power_w)
    if _stopped(snapshot, slow) - _stopped(snapshot, free):
        return wanted
    return replace(wanted, ways=slow.ways, gap=None, reasons={**wanted.reasons, **_reasons(for_watts)})


def _stopped(snapshot: Snapshot, allocation: Allocation) -> set[str]:
    return {job.name for job in snapshot.jobs if job.way is not None and job.name not in allocation.ways}


def _reasons(names: Collection[str]) -> dict[str, str]:
    return dict.fromkeys(names, "it runs on at a lower clock: the cap can be kept without stopping it")
