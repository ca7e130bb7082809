"""Jobs that cannot be stopped without losing their work stay where they are, whatever a policy says.

What it is: a mending of an allocation before it is brought about: a running job that is not elastic and was left out is
put back as it runs, and first in order, so that the cap (``within``) takes it last. For its GPUs others are left as
they are: first those that would start wait, then those that would grow do not, then nobody changes size.
What it is not: a policy. Policies know what a job is worth, not what a stop would cost one without a checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from joulewise.cluster.state import Allocation, Snapshot, Way


def keep_rigid(snapshot: Snapshot, allocation: Allocation) -> Allocation:
    """The allocation with every rigid job that runs in it, with the GPUs that it has, first in order."""
    jobs = {job.name: job for job in snapshot.jobs}
    rigid: dict[str, Way] = {}
    for job in snapshot.jobs:
        if job.way is not None and not job.elastic:
            given = allocation.ways.get(job.name)
            same = given is not None and given.gpus == job.way.gpus and given.kind == job.way.kind
            rigid[job.name] = given if given is not None and same else job.way
    if not rigid:
        return allocation
    left = dict(snapshot.gpus)
    for way in rigid.values():
        left[way.kind] = left.get(way.kind, 0) - way.gpus
    others = {name: way for name, way in allocation.ways.items() if name not in rigid}
    if _fits(left, others):
        return replace(allocation, ways={**rigid, **others})
    # Those that run first, as they run where they would grow. All that runs fits, where all is asked about; of some
    # users' jobs, on what the others leave, the last ones may have to make room.
    kept: dict[str, Way] = {}
    for name, way in others.items():
        now = jobs[name].way
        if now is not None:
            kept[name] = way if way.kind == now.kind and way.gpus <= now.gpus else now
    if not _fits(left, kept):
        kept = {name: now for name in kept if (now := jobs[name].way) is not None}
        while kept and not _fits(left, kept):
            kept.popitem()
    for way in kept.values():
        left[way.kind] -= way.gpus
    for name, way in others.items():
        had = kept.get(name)
        more = way.gpus - (had.gpus if had is not None and had.kind == way.kind else 0)
        if more <= left.get(way.kind, 0) and (had is None or had.kind == way.kind):
            kept[name] = way
            left[way.kind] -= more
    return replace(allocation, ways={**rigid, **{name: kept[name] for name in others if name in kept}})


def _fits(left: dict[str, int], ways: dict[str, Way]) -> bool:
    used: dict[str, int] = {}
    for way in ways.values():
        used[way.kind] = used.get(way.kind, 0) + way.gpus
    return all(gpus <= left.get(kind, 0) for kind, gpus in used.items())
