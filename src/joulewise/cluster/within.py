"""Under a cap of watts whatever a policy said: lower clocks first, then fewer jobs, then none.

What it is: the last check of an allocation before it is carried out. A policy should keep the cap itself, and then
nothing changes here; one that does not, or cannot, fails closed. And what can be done at once when a cap is cut: clocks
alone (``clocks_only``), which need no policy and no restart.
What it is not: a good way to share watts among jobs (``allocators`` know what a job is worth; this knows only how much
each would slow down).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from joulewise.cluster.state import Allocation, Job, Snapshot, Way, cluster_power_w

# Halvings of the price of a watt: from one that nobody feels to one that everybody pays, to a millionth of the range.
_HALVINGS = 40


def keep_within(snapshot: Snapshot, allocation: Allocation, power_w: float) -> Allocation:
    """The allocation itself if the cluster then draws at most ``power_w``, else one that does.

    First jobs keep their GPUs and take slower settings, all by one price of a watt. If that is not enough, those who
    would have to start are left out, then those who run, the last in the policy's order first. The cluster's draw is
    that of ``cluster_power_w``; with nobody left it is as low as it can be, which may still be above ``power_w``.
    """
    if cluster_power_w(snapshot, allocation) <= power_w:
        return allocation
    jobs = {job.name: job for job in snapshot.jobs}
    menus = {name: _slower(jobs[name], way) for name, way in allocation.ways.items()}
    frugal = {name: min(menu, key=lambda way: way.power_w) for name, menu in menus.items()}
    leaving = sorted(frugal, key=lambda name: jobs[name].way is None)
    while frugal and cluster_power_w(snapshot, Allocation(frugal)) > power_w:
        del frugal[leaving.pop()]
    order = [name for name in allocation.ways if name in frugal]

    def fits(ways: dict[str, Way]) -> bool:
        return cluster_power_w(snapshot, Allocation(ways)) <= power_w

    return replace(allocation, ways=_fastest(order, menus, frugal, fits))


def clocks_only(snapshot: Snapshot, power_w: float, others_w: float) -> Allocation | None:
    """What runs, on the GPUs that it has, at settings with which all together draw at most ``power_w``; None where
    even the slowest draw more. ``others_w``: what is drawn that is no job's (hosts, idle GPUs, boots). Nobody gets
    faster, and nothing changes where enough is left."""
    running = {job.name: job.way for job in snapshot.jobs if job.way is not None}
    jobs = {job.name: job for job in snapshot.jobs}

    def fits(ways: dict[str, Way]) -> bool:
        return others_w + sum(way.power_w for way in ways.values()) <= power_w

    if fits(running):
        return Allocation(running)
    menus = {name: _slower(jobs[name], way) for name, way in running.items()}
    frugal = {name: min(menu, key=lambda way: way.power_w) for name, menu in menus.items()}
    return Allocation(_fastest(list(running), menus, frugal, fits)) if fits(frugal) else None


def _slower(job: Job, way: Way) -> list[Way]:
    """A way and those with the same GPUs that draw less."""
    return [way] + [
        other
        for other in job.ways
        if other.gpus == way.gpus
        and other.kind == way.kind
        and other.batch == way.batch
        and other.power_w < way.power_w
    ]


def _fastest(
    order: list[str], menus: dict[str, list[Way]], frugal: dict[str, Way], fits: Callable[[dict[str, Way]], bool]
) -> dict[str, Way]:
    """The lowest price of a watt, in slowdown, at which all in ``order`` fit in together."""

    def at(price: float) -> dict[str, Way]:
        return {
            name: min(menus[name], key=lambda way: way.unit_s / menus[name][0].unit_s + price * way.power_w)
            for name in order
        }

    best = {name: frugal[name] for name in order}
    low, high = 1e-9, 1.0  # per watt: a millionth of a per cent, and twice the time for one watt less
    for _ in range(_HALVINGS):
        price = (low * high) ** 0.5
        chosen = at(price)
        if fits(chosen):
            best, high = chosen, price
        else:
            low = price
    return best
