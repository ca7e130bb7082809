"""The ways of a job as a policy without an eye for energy sees them: one for each kind and number of GPUs.

What it is: the choice of a setting that such a policy never makes. Of all ways with one kind and one number of GPUs it
gets the fastest, or the one at a uniform clock. A ladder has one rung for each number of GPUs, lowest first. What it is
not: the choice of the number (``fifo``, ``optimus``, …), nor that of a setting for its energy (``zeus``, ``priced``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.state import Job, Kind, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.knob import SM_MHZ

Pick = Callable[[Sequence[Way]], Way]
"""Which of the ways with one kind and one number of GPUs."""


def narrowed(ways: Iterable[Way], pick: Pick) -> tuple[Way, ...]:
    """One way for each kind and number of GPUs, sorted by them."""
    ordered = sorted(ways, key=_rung)
    return tuple(pick(list(same)) for _, same in groupby(ordered, key=_rung))


def _rung(way: Way) -> tuple[str, int]:
    return way.kind, way.gpus


def fastest(ways: Sequence[Way]) -> Way:
    """The way with the shortest unit of work; of equals the one with least energy."""
    return min(ways, key=lambda way: (way.unit_s, way.unit_j))


def at_clock(share: float, ways: Sequence[Way], kinds: Sequence[Kind]) -> Pick:
    """The way nearest to a share of each kind's top clock. A way that names no clock is at the top.

    The top is the kind's own (``Kind.top_mhz``), as the way at the top may name no clock; where that is not known, the
    highest that ``ways`` name stands for it.
    """
    if not 0 < share <= 1:
        raise BadSpec(f"a uniform clock of {share:g} times the top clock makes no sense; give a share above 0, up to 1")
    top: dict[str, float] = {}
    for way in ways:
        top[way.kind] = max(top.get(way.kind, 0.0), way.setting.get(SM_MHZ.name, 0.0))
    top |= {kind.name: kind.top_mhz for kind in kinds if kind.top_mhz is not None}

    def pick(same: Sequence[Way]) -> Way:
        def far(way: Way) -> float:
            mhz = way.setting.get(SM_MHZ.name)
            return abs((1.0 if mhz is None else mhz / top[way.kind]) - share)

        return min(same, key=lambda way: (far(way), way.unit_s, way.unit_j))

    return pick


Ladder = Mapping[str, tuple[Way, ...]]
"""By kind: one way for each number of GPUs that there is, fewest first."""


def ladders(clock: float | None = None) -> ByWays[Ladder]:
    """Ways → ladder, with the fastest setting or that of a uniform ``clock`` (a share of the top one)."""
    if clock is not None:
        at_clock(clock, (), ())  # a share that makes no sense is refused now, not in some round

    def make(ways: tuple[Way, ...], kinds: tuple[Kind, ...]) -> Ladder:
        there = {kind.name: kind.gpus for kind in kinds}
        rungs = narrowed(ways, fastest if clock is None else at_clock(clock, ways, kinds))
        within = (way for way in rungs if way.gpus <= there.get(way.kind, 0))
        return {kind: tuple(same) for kind, same in groupby(within, key=lambda way: way.kind)}

    return ByWays(make)


Wanted = Callable[[Job], tuple[Way, ...]]
"""What a job asks for, one way for each kind that it can run on."""


def asked(snapshot: Snapshot, ladder: ByWays[Ladder]) -> Wanted:
    """The number of GPUs that each job asked for, on every kind, fastest kind first; a running job's own kind first.

    Where a job has no way with just that number the nearest below stands for it, else the nearest above. A job that
    fits on no kind wants nothing.
    """

    def wanted(job: Job) -> tuple[Way, ...]:
        found = [nearest(rungs, job.gpus_asked) for rungs in ladder.of(job.ways, snapshot.kinds).values()]
        if len(found) > 1:
            own = job.way.kind if job.way else None
            found.sort(key=lambda way: (way.kind != own, way.unit_s))
        return tuple(found)

    return wanted


def nearest(rungs: tuple[Way, ...], gpus: int) -> Way:
    """The rung with the most GPUs up to ``gpus``; the lowest where all have more."""
    best = rungs[0]
    for way in rungs:
        if way.gpus > gpus:
            break
        best = way
    return best
