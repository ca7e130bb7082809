"""How much of what an oracle saves does the tuner save, on measured applications, probing paid for by the job itself?

Truth: tables of measured applications over clocks (`bench/online_table`), each run as a job of 2,000 s. Methods, all
with the same windows, noise and cost: ours (the `JobTuner` of ``joulewise run --tune``, which sees blocks and what may
be set, and nothing of the table); the oracle (the table's best row from the first second on, nothing measured); plain
bisection, an ODPP-style search and GPOEO's full loop (`bench/online_baselines`). What is known of the GPU: nothing (a
stranger to the catalogue), or, with ``--train``, a law fitted to the micro-benchmarks of that file; and, where a table
has activity counters, what the shipped predictor (fitted to micro-benchmarks) makes of those at the default.

Figures, at a bound of 5 % and, with suffix ``_2pct``, of 2 %; means over applications and seeds:

``oracle_share``: mean net saving / mean saving of the oracle. ``over_bound``: share of jobs whose whole time, probing
included, exceeds the default's by more than the bound. ``worst_slowdown``: the largest slowdown of a whole job.
``worst_held``: the largest slowdown of a setting held at the end. ``candidates_mean``: settings visited besides the
default. ``probe_j_ratio_bisection``: joules in windows away from the setting held in the end, ours / bisection's; our
baseline windows after verification serve the proof and are counted as ``proof_share`` (of the job's time), not here.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bench import online_baselines, public_sweeps
from bench.online_baselines import Predictor
from bench.online_table import DEFAULT, Job, JobEnded, Table, mean, tables
from joulewise.core.block import Block, Move, Role
from joulewise.core.knob import Choices, Setting
from joulewise.core.measurement import SensorTiming
from joulewise.core.objective import MinEnergy
from joulewise.model import boosted
from joulewise.model.catalog import FitRecord, GpuModel, Switching
from joulewise.model.dvfs import Belief
from joulewise.model.fit import fit_chip, generic_chip
from joulewise.tune.job import JobTuner

Method = Callable[[Job, float], None]

BOUNDS = {"": 0.05, "_2pct": 0.02}
_WHAT = {Role.HOLD: "hold", Role.PROOF: "proof"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job under one method."""

    table: str
    method: str
    bound: float
    seed: int
    saving: float
    slowdown: float
    held_slowdown: float
    candidates: int
    probe_j: float
    proof_share: float
    oracle: float


def ours(job: Job, bound: float, *, model: GpuModel | None = None, seed: int = 0) -> JobTuner:
    """Run a job under the tuner."""
    table = job.table
    limit_w = model.default_limit_w if model is not None else None
    share = table.at(DEFAULT)[1] / limit_w if limit_w else None
    prior = boosted.prior(table.activity, share) if table.activity else None
    belief = Belief(table.space, model=model, default_limit_w=None, prior=prior, seed=seed)
    tuner = JobTuner(belief, MinEnergy(bound), seed=seed)
    try:
        while True:
            tuner.tell(observe(job, tuner.ask()))
    except JobEnded:
        return tuner


def observe(job: Job, move: Move) -> Block:
    """The block that a move comes to: whole steps, as many as it wants at least."""
    step_s = job.step_s * (1.0 + job.table.slowdown(move.setting))
    steps = math.ceil(max(move.least_work, move.least_s / step_s))
    start_s = job.elapsed_s
    seen = job.window(move.setting, steps * step_s, _WHAT.get(move.role, "probe"))
    energy_j = steps * seen.unit_j
    return Block(
        setting=move.setting,
        start_s=start_s,
        end_s=job.elapsed_s,
        work=steps,
        duration_s=steps * seen.unit_s,
        energy_j=energy_j,
        energy_error_j=energy_j * job.noise.power_error(seen.length_s),
        time_error=job.noise.time_error(seen.length_s),
        phase=move.phase,
        sm_mhz=job.table.row(move.setting).get("sm_mhz"),
    )


def fitted(path: Path) -> GpuModel:
    """What micro-benchmarks tell of a GPU of which nothing else is known."""
    series = public_sweeps.sweep([path])
    fit = fit_chip(series, start=generic_chip(series))
    points = [point for one in series for point in one.points]
    clocks = Choices.of([point.lock_mhz for point in points if point.lock_mhz is not None])
    memory = Choices.of([point.memory_mhz for point in points if point.memory_mhz is not None] or [1000.0])
    highest_w = max(point.power_w for point in points)
    record = FitRecord(path.name, fit.points, len(series), fit.time_mape, fit.power_mape)
    return GpuModel(
        key="fitted",
        name="fitted",
        architecture=0,
        compute_capability=(0, 0),
        memory_gib=0.0,
        sm_mhz=clocks,
        memory_mhz=memory,
        power_limit_w=Choices.of([highest_w]),
        default_limit_w=highest_w,
        chip=fit.chip,
        sensors=SensorTiming(),
        switching=Switching(),
        fit=record,
    )


def score(table: Table, name: str, method: Method, bound: float, seed: int, decisions: TextIO | None = None) -> Outcome:
    """One job from its first second to its last under one method."""
    job = Job(table, seed=seed)
    method(job, bound)
    proof_s = sum(stretch.seconds for stretch in job.life if stretch.what == "proof")
    outcome = Outcome(
        table=table.name,
        method=name,
        bound=bound,
        seed=seed,
        saving=job.saving,
        slowdown=job.slowdown,
        held_slowdown=table.slowdown(job.held),
        candidates=job.candidates,
        probe_j=job.probe_j,
        proof_share=proof_s / job.elapsed_s,
        oracle=table.saving(table.best(bound)),
    )
    if decisions is not None:
        json.dump(_record(outcome, job), decisions)
        decisions.write("\n")
    return outcome


def _record(outcome: Outcome, job: Job) -> dict[str, Any]:
    """One line of the decisions file: with the raw table it is all that is needed to score the job again."""
    life: list[list[Any]] = []
    for stretch in job.life:
        if life and life[-1][:2] == [dict(stretch.row), stretch.what]:
            life[-1][2] += stretch.seconds
        else:
            life.append([dict(stretch.row), stretch.what, stretch.seconds])
    return {
        "application": outcome.table,
        "method": outcome.method,
        "bound": outcome.bound,
        "seed": outcome.seed,
        "held": dict(job.held),
        "saving": outcome.saving,
        "slowdown": outcome.slowdown,
        "life": [[row, what, round(seconds, 3)] for row, what, seconds in life],
    }


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The bench's figures; see the module."""
    found: dict[str, float] = {}
    for suffix, bound in BOUNDS.items():
        by = {name: [o for o in outcomes if o.bound == bound and o.method == name] for name in _methods(outcomes)}
        mine = by["ours"]
        found[f"oracle_share{suffix}"] = share(mine)
        found[f"over_bound{suffix}"] = over(mine)
        found[f"worst_slowdown{suffix}"] = max(o.slowdown for o in mine)
        found[f"worst_held{suffix}"] = max(o.held_slowdown for o in mine)
        found[f"candidates_mean{suffix}"] = mean(o.candidates for o in mine)
        found[f"proof_share{suffix}"] = mean(o.proof_share for o in mine)
        for rival in ("bisection", "gpoeo", "odpp"):
            if theirs := by.get(rival):
                found[f"{rival}_oracle_share{suffix}"] = share(theirs)
                found[f"{rival}_over_bound{suffix}"] = over(theirs)
                spent = mean(o.probe_j for o in theirs)
                found[f"probe_j_ratio_{rival}{suffix}"] = mean(o.probe_j for o in mine) / spent if spent else math.nan
    return {name: round(value, 4) for name, value in found.items()}


def share(outcomes: Sequence[Outcome]) -> float:
    """Mean net saving / mean saving of the oracle; 1 where the oracle saves nothing and nothing was lost."""
    best = mean(o.oracle for o in outcomes)
    net = mean(o.saving for o in outcomes)
    return net / best if best > 0 else 1.0 + net


def over(outcomes: Sequence[Outcome]) -> float:
    """Share of jobs whose whole time is over the bound."""
    return mean(float(o.slowdown > o.bound) for o in outcomes)


def table_text(title: str, outcomes: Sequence[Outcome]) -> str:
    """A table of methods, one line each, for people."""
    lines = [f"{title}: {len({o.table for o in outcomes})} applications, {len({o.seed for o in outcomes})} seeds"]
    head = f"{'bound':>6} {'method':<10} {'saving':>7} {'oracle':>7} {'share':>7} {'over':>6} {'worst':>7} {'held':>7}"
    lines.append(f"{head} {'tried':>6} {'probing J':>10}")
    for bound in BOUNDS.values():
        for name in _methods(outcomes):
            some = [o for o in outcomes if o.bound == bound and o.method == name]
            lines.append(
                f"{bound:6.0%} {name:<10} {mean(o.saving for o in some):7.2%} {mean(o.oracle for o in some):7.2%} "
                f"{share(some):7.1%} {over(some):6.1%} {max(o.slowdown for o in some):+7.2%} "
                f"{max(o.held_slowdown for o in some):+7.2%} {mean(o.candidates for o in some):6.1f} "
                f"{mean(o.probe_j for o in some):10.0f}"
            )
    return "\n".join(lines)


def methods(model: GpuModel | None, predictor: Predictor | None, seed: int) -> dict[str, Method]:
    """Every method by name, for one seed of its own draws."""

    def tuned(job: Job, bound: float) -> None:
        ours(job, bound, model=model, seed=seed + job.table.number)  # coins of its own for each application

    def held(choose: Callable[[Job, float], Setting]) -> Method:
        return lambda job, bound: job.hold(choose(job, bound))

    return {"ours": tuned, **{name: held(each) for name, each in online_baselines.methods(predictor).items()}}


def run(
    sweeps: Sequence[Path], train: Path | None, *, seeds: Sequence[int], decisions: TextIO | None = None
) -> dict[str, list[Outcome]]:
    """Every method on every application of every file, by file; progress to stderr."""
    began_s = time.process_time()

    def say(text: str) -> None:
        print(f"[{time.process_time() - began_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    model = predictor = None
    if train is not None:
        model, predictor = fitted(train), Predictor(tables(train))
        say(f"law of {model.fit.source}: time {model.fit.time_mape:.1f} %, power {model.fit.power_mape:.1f} %")
    found: dict[str, list[Outcome]] = defaultdict(list)
    for path in sweeps:
        if predictor is not None and all(table.activity for table in tables(path)):
            alone = online_baselines.reproduction(predictor, tables(path))
            say("GPOEO's predictor alone, nothing tried: " + ", ".join(f"{k} {v:.3g}" for k, v in alone.items()))
        for table in tables(path):
            for seed in seeds:
                for name, method in methods(model, predictor, seed).items():
                    for bound in BOUNDS.values():
                        found[path.name].append(score(table, name, method, bound, seed, decisions))
        say(f"{path.name} done")
    return dict(found)


def report(found: Mapping[str, Sequence[Outcome]], out: Callable[[str], None] = print) -> dict[str, float]:
    """Tables for people, and the figures of the first file."""
    for name, outcomes in found.items():
        out(table_text(name, outcomes))
        out("")
    return figures(next(iter(found.values())))


def _methods(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(outcome.method for outcome in outcomes))
