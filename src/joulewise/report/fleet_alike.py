"""A fleet's work in few enough kinds to estimate: the largest as they are, the many small ones with their like.

What it is: jobs that take little, grouped by GPU model and by how they look (power, activity). The mean of jobs that
differ would be a job that never ran, and its saving nobody's. What it is not: an estimate (``report/fleet``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from joulewise.model.fleet import Sight
from joulewise.model.fleet_kin import Kin
from joulewise.monitor.fleet import Work
from joulewise.monitor.fleet_sums import looks

MOST_WORKS = 120
"""Kinds of work that are estimated one by one; what is left, in groups."""
MOST_LOOKS = 24
"""That are told apart in what is left on one GPU model; what is rarer goes with what it looks most like."""
MOST_GROUPS = 48
"""That these are divided into, by their energy. Several of one look: what the estimate gets wrong of one job it gets
wrong of others in part only (``model/fleet_sum``), but wholly of those that it takes for one."""
SMALLER = "(smaller jobs)"


def condensed(works: Sequence[Work], laws: Mapping[str, Kin]) -> list[Work]:
    """``works``, most energy first, with what is beyond the first `MOST_WORKS` in groups. No energy is lost."""
    rest: dict[tuple[str, str], list[Work]] = {}
    for work in works[MOST_WORKS:]:
        rest.setdefault((work.gpu_name, SMALLER if work.job else ""), []).append(work)
    found = list(works[:MOST_WORKS])
    for (gpu_name, job), some in rest.items():
        found += [_merged(job, group) for group in _groups(some, laws[gpu_name].limit_w)]
    return found


def _groups(works: Sequence[Work], limit_w: float) -> Iterator[list[Work]]:
    """Of works that look alike."""
    seen = [(work.sight.power_w / limit_w, work.sight.busy, work.sight.dram_active) for work in works]
    bins = looks(*np.array(seen, dtype=float).T)  # None becomes NaN
    kinds, where = np.unique(bins, axis=0, return_inverse=True)
    energy_j = np.bincount(where.reshape(-1), [work.energy_j for work in works])
    kept = kinds[np.argsort(-energy_j, kind="stable")[:MOST_LOOKS]]
    nearest = ((bins[:, None, :] - kept[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    for place in range(len(kept)):
        alike = [work for work, near in zip(works, nearest, strict=True) if near == place]
        share = sum(work.energy_j for work in alike) / energy_j.sum()
        count = min(len(alike), max(1, round(MOST_GROUPS * share)))
        yield from (alike[first::count] for first in range(count))


def _merged(job: str, works: Sequence[Work]) -> Work:
    """Several kinds of work as their mean, each by its busy time."""
    busy_s = sum(work.busy_s for work in works)

    def mean(name: str) -> float | None:
        known = [(work.busy_s, value) for work in works if (value := getattr(work.sight, name)) is not None]
        return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known) if known else None

    names = ("power_w", "power_error", "sm_mhz", "memory_mhz", "busy", "busy_error", "sm_active", "dram_active")
    values: dict[str, Any] = {name: mean(name) for name in (*names, "limit_w")}
    return Work(
        works[0].gpu_name,
        job,
        max(work.gpus for work in works),
        busy_s,
        sum(work.energy_j for work in works),
        Sight(**values),
    )
