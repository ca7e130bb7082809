"""The exact allocation, by mixed-integer programming (HiGHS, extra ``plan``): the yardstick, and the polish, of prices.

What it is: each job takes one of its options or none; the sum of values shall be highest within some limits. ``best``
solves that for given values; ``shortest`` states the frozen problem of a snapshot, in which every job runs one way
until its end. What it is not: a policy of its own. It may take long, so it has a time limit and says how near it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.priced_menu import Floats, Ints, card, menu
from joulewise.cluster.state import Allocation, Budget, Snapshot
from joulewise.core.errors import BadSpec
from joulewise.plan.highs import highs as solver


@dataclass(frozen=True, slots=True)
class Limit:
    """What each option takes of something (jobs × options, nothing below 0), and how much of it there is."""

    use: NDArray[Any]
    there: float


@dataclass(frozen=True, slots=True)
class Best:
    """``choice``: the option of each job, -1 for none; ``worth``: the sum of values; ``bound``: no choice is worth more
    (to within the solver's tolerance); ``ended``: the solver got as near as it was asked to."""

    choice: Ints
    worth: float
    bound: float
    ended: bool


def best(
    value: Floats,
    limits: Sequence[Limit],
    *,
    gap: float = 1e-4,
    limit_s: float = 60.0,
    off: float = 0.0,
    everyone: bool = False,
) -> Best:
    """The choice of highest value within the limits, or what was found in ``limit_s``.

    Values are jobs × options. Options worth no more than 0 are never taken: to take none is worth 0. ``gap``: the
    solver may end so near to the best, relative to |``off`` − worth|. ``everyone``: no job may go without; BadSpec
    where that is not possible.
    """
    highs = solver("the exact allocation")
    inf = float(highs.getInfinity())
    rows, options = np.nonzero(value > (-np.inf if everyone else 0.0))
    worth = value[rows, options]
    choice = np.full(len(value), -1, dtype=np.int64)
    if not len(rows):
        return Best(choice, 0.0, 0.0, True)
    # Values of one size, so that the solver's absolute tolerances mean the same for milliseconds and for months.
    scale = float(np.abs(worth).max())
    count = len(rows)
    columns = np.arange(count, dtype=np.int32)
    highs.addVars(count, np.zeros(count), np.ones(count))
    highs.changeColsCost(count, columns, -worth / scale)
    highs.changeObjectiveOffset(off / scale)
    highs.changeColsIntegrality(count, columns, np.ones(count, dtype=np.uint8))
    starts = np.searchsorted(rows, np.arange(len(value) + 1))
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if last > first:
            highs.addRow(1.0 if everyone else -inf, 1.0, last - first, columns[first:last], np.ones(last - first))
    for limit in limits:
        use = np.asarray(limit.use, dtype=float)[rows, options]
        taking = np.flatnonzero(use)
        if len(taking):
            unit = float(use.max())
            there = max(0.0, limit.there) / unit  # less than nothing of it: whoever takes any goes without
            highs.addRow(-inf, there, len(taking), columns[taking], use[taking] / unit)
    highs.setOptionValue("mip_rel_gap", gap)
    highs.setOptionValue("time_limit", limit_s)
    highs.setOptionValue("threads", 1)
    highs.run()
    info = highs.getInfo()
    status = highs.modelStatusToString(highs.getModelStatus())
    if status == "Infeasible":
        raise BadSpec(f"{len(value)} jobs cannot all run within the limits; let some wait, or raise the budget")
    taken = np.flatnonzero(np.asarray(highs.getSolution().col_value) > 0.5)
    choice[rows[taken]] = options[taken]
    for limit in limits:  # what the solver's tolerance let through is taken back
        if not everyone:
            _within(choice, value, limit)
    picked = np.flatnonzero(choice >= 0)
    found = float(value[picked, choice[picked]].sum())
    return Best(choice, found, max(found, off - float(info.mip_dual_bound) * scale), status == "Optimal")


def _within(choice: Ints, value: Floats, limit: Limit) -> None:
    """Jobs go without, the least valuable first, until a limit is kept to the last digit."""
    rows = np.flatnonzero(choice >= 0)
    for row in rows[np.argsort(value[rows, choice[rows]], kind="stable")]:
        running = np.flatnonzero(choice >= 0)
        if float(np.asarray(limit.use, dtype=float)[running, choice[running]].sum()) <= limit.there:
            return
        choice[row] = -1


def shortest(
    snapshot: Snapshot, budget: Budget, *, gap: float = 1e-4, limit_s: float = 60.0, everyone: bool = False
) -> tuple[Allocation, float]:
    """The frozen problem, solved: every job runs one way from now to its end, so that Σ weight·seconds is least within
    GPUs, ``energy_j`` (with the hosts' share) and watts; the allocation and that sum.

    A job that goes without counts as if it took twice its slowest way (somebody has to end first); with ``everyone``
    none does, and BadSpec says where that cannot be. Watts are those of the jobs and their slots; partly filled nodes
    are not in them. Raises MissingPart without HiGHS.
    """
    there = menu(snapshot.jobs, snapshot.kinds, ByWays(card))
    if there is None:
        return Allocation({}, gap=0.0), 0.0
    jobs = len(there.jobs)
    weight = np.array([job.weight for job in there.jobs])
    time_s = (1.0 / there.speed).reshape(jobs, -1) * weight[:, None]
    waiting_s = 2.0 * time_s.max(axis=1)
    settings = there.speed.shape[2]
    gpus, kind = np.repeat(there.gpus, settings, axis=1), np.repeat(there.kind, settings, axis=1)
    limits = [Limit(np.where(kind == number, gpus, 0), float(count)) for number, count in enumerate(there.there)]
    if budget.energy_j is not None:
        limits.append(Limit(there.energy_j.reshape(jobs, -1), budget.energy_j))
    if budget.power_w is not None:
        off_w = sum(floor.nodes * floor.off_w for floor in snapshot.kinds)
        limits.append(Limit(there.power_w.reshape(jobs, -1), budget.power_w - off_w))
    whole_s = float(waiting_s.sum())
    found = best(waiting_s[:, None] - time_s, limits, gap=gap, limit_s=limit_s, off=whole_s, everyone=everyone)
    rows = np.flatnonzero(found.choice >= 0)
    ways = {there.jobs[row].name: there.way(row, *divmod(int(found.choice[row]), settings)) for row in rows.tolist()}
    left = (found.bound - found.worth) / max(whole_s - found.worth, 1e-300)
    return Allocation(ways, gap=max(0.0, left)), whole_s - found.worth
