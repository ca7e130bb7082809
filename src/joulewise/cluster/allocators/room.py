"""What is left of a cluster while a policy gives it away: GPUs of each kind, and watts under a cap.

What it is: the two limits that no allocation may pass, counted as jobs are put in, and ``walk``, which puts jobs in in
an order. What it is not: an order (that is the policy), nor where the GPUs are (``placement``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from joulewise.cluster.allocators.ladder import Wanted
from joulewise.cluster.state import Allocation, Budget, Job, Snapshot, Way, cluster_power_w


class Room:
    """Counts GPUs and, where the budget caps them, watts: those of ``cluster_power_w``, as few nodes on as will do."""

    def __init__(self, snapshot: Snapshot, budget: Budget) -> None:
        self.free = dict(snapshot.gpus)
        self._kinds = {kind.name: kind for kind in snapshot.kinds}
        self._cap_w = budget.power_w
        self.power_w = 0.0 if self._cap_w is None else cluster_power_w(snapshot, Allocation({}))
        """Counted only under a cap."""

    def fits(self, way: Way, instead_of: Way | None = None) -> bool:
        """Whether a way could be taken as well, or instead of one that was."""
        free = self.free.get(way.kind, 0)
        if instead_of is not None and instead_of.kind == way.kind:
            free += instead_of.gpus
        if way.gpus > free:
            return False
        return self._cap_w is None or self.power_w + self._more_w(way, instead_of) <= self._cap_w

    def take(self, way: Way, instead_of: Way | None = None) -> None:
        """Count a way in, and one that it replaces out."""
        if self._cap_w is not None:
            self.power_w += self._more_w(way, instead_of)
        if instead_of is not None:
            self.free[instead_of.kind] += instead_of.gpus
        self.free[way.kind] -= way.gpus

    def _more_w(self, way: Way, instead_of: Way | None) -> float:
        change = {way.kind: way.gpus}
        more_w = way.power_w
        if instead_of is not None:
            change[instead_of.kind] = change.get(instead_of.kind, 0) - instead_of.gpus
            more_w -= instead_of.power_w
        for name, gpus in change.items():
            used = self._kinds[name].gpus - self.free[name]
            more_w += self._around_w(name, used + gpus) - self._around_w(name, used)
        return more_w

    def _around_w(self, name: str, used: int) -> float:
        """What a kind draws apart from the GPUs in use."""
        kind = self._kinds[name]
        on = -(-used // kind.gpus_per_node)
        idle = on * kind.gpus_per_node - used
        return on * kind.host_w + idle * kind.idle_gpu_w + (kind.nodes - on) * kind.off_w


def walk(jobs: Iterable[Job], wanted: Wanted, room: Room) -> dict[str, Way]:
    """Go through jobs in order: one runs if what it wants fits into what is left, else it waits, and the next is
    tried."""
    ways: dict[str, Way] = {}
    left = sum(room.free.values())
    for job in jobs:
        if left <= 0:
            break
        way = first_fit(wanted(job), room)
        if way is not None:
            room.take(way)
            left -= way.gpus
            ways[job.name] = way
    return ways


def first_fit(ways: Sequence[Way], room: Room) -> Way | None:
    """The first of some ways that fits."""
    for way in ways:
        if room.fits(way):
            return way
    return None
