"""One policy on one case, at every value of its knob: a piece of work for one process.

All policies get the same: jobs, probes, predictions, power-off of empty nodes with one warm node, buddy placement,
restart costs, rounds of a minute. What differs is the allocator. A piece is plain data; a process makes its case again
(the same by seed) and keeps the last one, since pieces of a case follow each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.cluster_energy_beliefs import Known, Wrong
from bench.cluster_energy_loads import Case, cases
from bench.cluster_energy_policies import Knob, made
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.placement import Placer
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Round
from joulewise.cluster.simulator import simulate

FULL_W = {"a100": 383.0, "t4": 70.0}
"""A busy GPU at full clock by the note's law: only the scale of a price."""


@dataclass(frozen=True)
class CaseKey:
    """What makes a case again."""

    trace: str
    data: Path
    load: float
    sigma: float
    power: str
    gpus: int | None = None
    count: int | None = None
    seed: int = 0

    def case(self) -> Case:
        """Read and drawn, the same every time."""
        (found,) = cases(
            self.trace,
            self.data,
            gpus=self.gpus,
            count=self.count,
            loads=(self.load,),
            sigmas=(self.sigma,),
            powers=(self.power,),
            seed=self.seed,
        )
        return found


@dataclass(frozen=True)
class Conditions:
    """What an ablation or a check changes for a policy; the default is what all get."""

    power_off: bool = True
    placer: Placer = "buddy"
    migrate: bool = True
    clocks: bool = True
    sizes: bool = True
    elastic: bool = True
    wrong: Wrong | None = None
    budget_j: float | None = None
    """For the whole horizon of ``budget_s``."""
    budget_s: float | None = None


@dataclass(frozen=True)
class Piece:
    """What one process does."""

    key: CaseKey
    policy: str
    knobs: tuple[Knob, ...]
    conditions: Conditions = field(default_factory=Conditions)
    keep_spans: bool = False


@dataclass(frozen=True)
class Run:
    """What came of one simulation. ``energy_j`` is until ``ended_s``; then the cluster draws ``tail_w`` for ever."""

    policy: str
    knob: str
    jct_s: float
    p99_s: float
    energy_j: float
    ended_s: float
    tail_w: float
    parts_j: dict[str, float]
    boots: int
    restarts: int
    rounds: int
    cpu_s: float
    unfinished: int
    overrun: float | None = None
    """By how much the worst period was above its budget, relative; None: no budget."""
    spans: tuple[tuple[Any, ...], ...] = ()

    def until_j(self, horizon_s: float) -> float:
        """Energy over a horizon that all policies share, no shorter than the run."""
        return self.energy_j + max(0.0, horizon_s - self.ended_s) * self.tail_w


@lru_cache(maxsize=2)
def known(key: CaseKey, conditions: Conditions) -> Known:
    """A case with its jobs probed."""
    case = key.case()
    if not conditions.clocks:
        case = replace(case, clocks_mhz=case.clocks_mhz[-1:])
    return Known(case, elastic=conditions.elastic, sizes=conditions.sizes)


def play(piece: Piece) -> list[Run]:
    """Every value of the knob."""
    given = piece.conditions
    there = known(piece.key, Conditions(clocks=given.clocks, sizes=given.sizes, elastic=given.elastic))
    return [_one(piece, knob, there) for knob in piece.knobs]


def _one(piece: Piece, knob: Knob, there: Known) -> Run:
    began_s = time.process_time()
    given, kind = piece.conditions, there.case.kind
    allocate, budget = made(piece.policy, knob, kind, FULL_W[there.case.gpu], there.case.clocks_mhz)
    purse = None
    if given.budget_j is not None and given.budget_s is not None:
        purse = Purse(energy_j=given.budget_j, period_s=given.budget_s)
    round_ = Round(
        allocate,
        nodes=NodePower() if given.power_off else None,
        purse=purse,
        budget=budget,
        placer=given.placer,
        migrate=given.migrate,
    )
    outcome = simulate(there.submissions(given.wrong), (kind,), round_)
    overrun = None
    if purse is not None and given.budget_j is not None and given.budget_s is not None:
        overrun = _overrun(outcome, given.budget_j, given.budget_s)
    times = [job.jct_s for job in outcome.jobs if job.jct_s is not None]
    return Run(
        piece.policy,
        knob.name,
        outcome.jct_s,
        float(np.quantile(times, 0.99)),
        outcome.energy_j.whole,
        outcome.ended_s,
        outcome.tail_w,
        outcome.energy_j.as_dict(),
        outcome.boots,
        sum(job.restarts for job in outcome.jobs),
        outcome.rounds,
        time.process_time() - began_s,
        len(outcome.unfinished),
        overrun,
        tuple(_spans(outcome)) if piece.keep_spans else (),
    )


def _overrun(outcome: Outcome, budget_j: float, period_s: float) -> float:
    """Periods begin with the first round: that of the first submission, at a multiple of the minute."""
    begun_s = outcome.begun_s
    used, whole = [], begun_s
    while whole < outcome.ended_s:
        used.append(outcome.energy_between_j(whole, whole + period_s))
        whole += period_s
    return max(used, default=0.0) / budget_j - 1.0


def _spans(outcome: Outcome) -> Iterator[tuple[Any, ...]]:
    for span in outcome.spans:
        mhz = span.setting.get("sm_mhz")
        yield span.job, round(span.from_s, 3), round(span.to_s, 3), span.gpus, span.nodes, mhz, round(span.start_s, 3)


def lines(piece: Piece, runs: Sequence[Run]) -> Iterator[str]:
    """Every allocation of a piece as JSON: who had how many GPUs on how many nodes at which clock, and when."""
    key = piece.key
    about = {"trace": key.trace, "load": key.load, "sigma": key.sigma, "power": key.power, "policy": piece.policy}
    for run in runs:
        about["knob"] = run.knob
        for job, from_s, to_s, gpus, nodes, mhz, start_s in run.spans:
            said = {"job": job, "from_s": from_s, "to_s": to_s, "gpus": gpus, "nodes": nodes, "sm_mhz": mhz}
            yield json.dumps(about | said | {"start_s": start_s}) + "\n"


def jobs_lines(key: CaseKey) -> Iterator[str]:
    """The inputs of a case as JSON, so that its allocations can be scored from the raw tables."""
    case = key.case()
    about = {"trace": key.trace, "load": key.load, "sigma": key.sigma, "power": key.power, "gpus": case.kind.gpus}
    for job in case.jobs:
        truth = job.truth
        said = {
            "name": job.name,
            "submitted_s": round(job.submitted_s, 3),
            "gpus_asked": job.gpus,
            "work": job.work,
            "guess": job.guess,
            "model": truth.model,
            "batch": truth.batch,
            "speed_factor": truth.speed_factor,
            "communication_factor": truth.communication_factor,
        }
        yield json.dumps(about | {"submission": said}) + "\n"
