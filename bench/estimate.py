"""Does the estimate's 95 % interval hold what tuning truly saves, and is it narrow enough to be of use?

    python -m bench.estimate [--jobs 120] [--reached 24] [--fleets 12] [--json] [--seed N]

Jobs of known truth (``bench/estimate_truths``) are watched as dcgm-exporter watches them, read window by window as from
a Prometheus (``monitor/fleet``), and estimated (``report/fleet``). Groups: rich virtual cards with all metrics
(``library``), without DRAM activity, with power and clock alone, under the name of a neighbouring GPU and of an unknown
one; public measured series where JOULEWISE_DATA names them: ``sweep`` with DCGM's own counters, the others with none.

``coverage`` is the share of jobs whose true saving at the best setting is within the interval of ``possible``, ``half``
the median of half its width, ``said`` and ``true`` are means, ``correlation`` is between the two. ``reached``: the
online tuner runs such jobs for half an hour each, and its true net saving is asked of the interval that the command
line states. ``fleet``: totals of random fleets of twenty jobs on one to eight GPUs each. Shares are of busy energy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.estimate_history import Kept, Place, history, neighbour_name, span_of, stranger_name
from bench.estimate_truths import Watched, renamed, watched
from bench.online_jobs import JOB_S, Job, tuned, untuned
from joulewise.model.fleet import Interval
from joulewise.monitor.fleet import read
from joulewise.report.fleet import Findings, estimate

BOUNDS = (0.01, 0.02, 0.05)
STATED = 0.02
ACTIVITY = ("engine", "util", "sm_active", "dram_active")
_FLEET = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """One job under one bound: what is said, and what is true."""

    name: str
    group: str
    bound: float
    possible: Interval
    true: float

    @property
    def covered(self) -> bool:
        """Whether the interval holds the truth; what saves less than a thousandth saves nothing."""
        return self.possible.low - 1e-3 <= self.true <= self.possible.high + 1e-3


def findings(places: Sequence[Place], bound: float, *, without: Sequence[str] = (), seed: int = 0) -> Findings:
    """What the estimate says of these places, from the history that a Prometheus would hold."""
    lines = history(places, without=without)
    return estimate(read(Kept(lines), span_of(lines)), bound, seed=seed)  # type: ignore[arg-type]  # asks alike


def asked(job: Watched, group: str, without: Sequence[str], bounds: Sequence[float]) -> list[Asked]:
    """One job under several bounds."""
    found = []
    for bound in bounds:
        said = findings([Place(job, "job", hours=1.0)], bound, without=without).saving.possible_share
        found.append(Asked(job.case.name, group, bound, said, job.possible(bound)))
    return found


Variant = tuple[str, Watched, tuple[str, ...]]
"""A group, a job, and what is not exported."""


def groups(data: Path | None, count: int, seed: int) -> Iterator[Sequence[Variant]]:
    """Jobs to ask about, each in its variants."""
    for number, job in enumerate(watched(None, count=count, seed=seed)):
        variants: list[Variant] = [("library", job, ())]
        if number % 2 == 0:
            variants += [("no DRAM", job, ("dram_active",)), ("power, clock", job, ACTIVITY)]
            variants += [("neighbour", each, ()) for each in renamed([job], neighbour_name, "neighbour")]
            variants += [("stranger", each, ()) for each in renamed([job], stranger_name, "stranger")]
        yield variants
    if data is not None:
        yield from ([(job.group, job, ())] for job in watched(data, count=0, seed=seed))


_work: list[Sequence[Variant]] = []


def _one(place: int) -> list[Asked]:
    return [each for group, job, without in _work[place] for each in asked(job, group, without, BOUNDS)]


def _tuned(job: Watched) -> tuple[str, Interval, float]:
    """What the command line states of a job, and what the online tuner truly saves of it in half an hour."""
    said = findings([Place(job, "job", hours=1.0)], STATED).saving.share
    run, plain = tuned(Job(job.case), STATED), untuned(Job(job.case), JOB_S)
    steps = len(run.job.ends_s)
    return job.case.name, said, 1.0 - run.job.joules(steps) / plain.joules(steps)


def _reached(place: int) -> tuple[str, Interval, float]:
    return _tuned(_work[place][0][1])


def fleets(jobs: Sequence[Watched], count: int, seed: int) -> Iterator[tuple[Interval, float]]:
    """Totals of random fleets: what is said to be possible, and what is."""
    draw = random.Random(f"fleets {seed}")
    for number in range(count):
        places = [
            Place(job, f"job-{place}", gpus=draw.choice((1, 1, 2, 4, 8)), hours=1.0)
            for place, job in enumerate(draw.sample(list(jobs), min(_FLEET, len(jobs))))
        ]
        found = findings(places, STATED, seed=number)
        truth = {f"job-{place}": job.watched.possible(STATED) for place, job in enumerate(places)}
        true_kwh = sum(truth[job.job] * job.saving.kwh for job in found.jobs)
        yield found.saving.possible_share, true_kwh / found.saving.kwh


def figures(found: Sequence[Asked]) -> dict[str, float]:
    """By group and bound."""
    told: dict[str, float] = {}
    for group in dict.fromkeys(each.group for each in found):
        for bound in BOUNDS:
            some = [each for each in found if each.group == group and each.bound == bound]
            key = f"{group.replace(', ', '_').replace(' ', '_')}_{100 * bound:g}pct"
            told[f"{key}_jobs"] = len(some)
            told[f"{key}_coverage"] = fmean(each.covered for each in some)
            told[f"{key}_half"] = median(each.possible.half for each in some)
            told[f"{key}_said"] = fmean(each.possible.mean for each in some)
            told[f"{key}_true"] = fmean(each.true for each in some)
            pairs = np.array([(each.possible.mean, each.true) for each in some])
            if len(some) > 2 and pairs.std(axis=0).min() > 0:
                told[f"{key}_correlation"] = float(np.corrcoef(pairs.T)[0, 1])
    return told


def report(told: dict[str, float], out: Callable[[str], object]) -> None:
    """A line a group and bound, for people."""
    out(f"{'group':24} {'jobs':>4} {'coverage':>8} {'half':>6} {'said':>6} {'true':>6} {'corr':>5}")
    for key in [name.removesuffix("_coverage") for name in told if name.endswith("pct_coverage")]:
        share = "".join(f" {told[f'{key}_{name}']:6.1%}" for name in ("half", "said", "true"))
        correlation = told.get(f"{key}_correlation", float("nan"))
        out(f"{key:24} {told[f'{key}_jobs']:4.0f} {told[f'{key}_coverage']:8.2f}{share} {correlation:5.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it."""
    global _work
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=120, help="virtual jobs")
    options.add_argument("--reached", type=int, default=24, help="of them, how many are tuned for half an hour")
    options.add_argument("--fleets", type=int, default=12, help="random fleets")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--workers", type=int, default=os.cpu_count())
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--each", action="store_true", help="a line a job, too")
    chosen = options.parse_args(arguments)
    out: Any = partial(print, file=sys.stderr) if chosen.json else print
    folder = os.environ.get("JOULEWISE_DATA")
    _work = list(groups(Path(folder) if folder else None, chosen.jobs, chosen.seed))
    # Forked, since a case holds functions, which do not travel.
    with multiprocessing.get_context("fork").Pool(chosen.workers) as pool:
        found = [each for some in pool.imap_unordered(_one, range(len(_work))) for each in some]
        reached = list(pool.imap_unordered(_reached, range(min(chosen.reached, chosen.jobs))))
    order = {group: place for place, group in enumerate(dict.fromkeys(v[0] for work in _work for v in work))}
    found.sort(key=lambda each: (order[each.group], each.bound, each.name))
    told = figures(found)
    totals = list(fleets([work[0][1] for work in _work if work[0][0] == "library"], chosen.fleets, chosen.seed))
    if totals:
        told["fleet_coverage"] = fmean(said.low <= true <= said.high for said, true in totals)
        told["fleet_half"] = median(said.half for said, _ in totals)
        told["fleet_said"] = fmean(said.mean for said, _ in totals)
        told["fleet_true"] = fmean(true for _, true in totals)
    if reached:
        told["reached_jobs"] = len(reached)
        told["reached_coverage"] = fmean(said.low - 1e-3 <= true <= said.high + 1e-3 for _, said, true in reached)
        told["reached_half"] = median(said.half for _, said, _ in reached)
        told["reached_said"] = fmean(said.mean for _, said, _ in reached)
        told["reached_true"] = fmean(true for _, _, true in reached)
    report(told, out)
    if chosen.each:
        for one in found:
            mark = "" if one.covered else "  outside"
            out(
                f"{one.group:14} {one.bound:4.0%} {one.name[:44]:44} said {one.possible.mean:6.1%} "
                f"[{one.possible.low:6.1%} {one.possible.high:6.1%}] true {one.true:6.1%}{mark}"
            )
        for name, said, true in reached:
            out(f"reached {name[:44]:44} said {said.mean:6.1%} [{said.low:6.1%} {said.high:6.1%}] true {true:6.1%}")
    if chosen.json:
        print(json.dumps({"figures": told}))
    else:
        rest = {name: value for name, value in told.items() if "pct_" not in name}
        print("\n".join(f"{name} {value:g}" for name, value in rest.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
