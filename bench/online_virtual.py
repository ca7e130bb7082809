"""How much of the oracle's saving does the online tuner get, within the bound? On virtual GPUs with mismatched truth.

Every job of ``bench/online_truths`` runs for 30 minutes of virtual time under bounds of 1, 2 and 5 %, tuned by the
objects that ``joulewise run --tune`` builds (``tune.online.build``), with hooks' step marks as the ruler. The same work
also runs untuned on the same card: whole-job slowdown and saving are the truth of both runs, probes, baseline windows
and all. The oracle is the best setting of the whole space by the truth itself, held from the first step.

What the figures mean: ``oracle_share_*`` mean net saving over mean oracle saving; ``over_bound_share`` the worst of the
three bounds' shares of jobs whose whole-job slowdown is above the bound; ``saving_mean_5_1`` mean saving where the mean
slowdown is at most 5.1 %, as GPOEO reports its 16.2 % (the bound of 7.3 % if its mean keeps that, else that of 5 %);
``converge_s_p90`` seconds from the first step to the first setting whose true energy is within 2 % of the final one's;
``ci_coverage`` how often the proof's interval holds the true change of the steps that it is about;
``phase_oracle_share`` of an RL job, generation and training in turn, from the fourth cycle on; ``end_to_end_apart`` the
largest difference of savings between the command line through the virtual NVML and this process.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench import guarantee, guarantee_change
from bench.online_jobs import JOB_S, Job, held, tuned, untuned
from bench.online_truths import Case, cases, rl
from bench.pool import processes
from bench.public_sweeps import data_folder
from bench.recorded_steps import FOLDER
from joulewise.core.block import Role
from joulewise.core.event import Decided, Event, Seen
from joulewise.core.knob import DEFAULT, Setting

BOUNDS = (0.01, 0.02, 0.05)
GPOEO_BOUND = 0.073
"""A bound under which the mean slowdown comes near GPOEO's."""
GPOEO_SLOWDOWN = 0.051
"""Mean time increase that GPOEO reports with its mean saving of 16.2 % (71 workloads, RTX 3080 Ti)."""
PATIENCE_S, PATIENCE_STEPS = 30.0, 40.0
"""By the later of the two the first good setting should be in use."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One job under one bound. Shares of the untuned run."""

    name: str
    kind: str
    bound: float
    saving: float
    """Joules of the whole job, probing and all."""
    slowdown: float
    oracle_saving: float
    oracle_slowdown: float
    chosen: Setting
    chosen_saving: float
    """What the setting held at the end saves by the truth."""
    chosen_slowdown: float
    verified: bool
    proven: tuple[float, float, float] | None
    """Change of energy by the tuner's own proof, with its interval."""
    converge_s: float | None
    """From the first step until the first setting within 2 % (of default energy) of the final one."""
    converge_steps: float | None
    verify_steps: float | None
    candidates: int
    steps: int
    says: str
    truth_energy: float = 0.0
    """Change of energy of clean work by the truth: what the proof is about."""
    notes: tuple[str, ...] = ()


def outcome(case: Case, bound: float, plain: Job, *, seed: int = 0, job_s: float = JOB_S) -> Outcome:
    """Run a case tuned and compare it with the same work untuned, up to the end of its last step."""
    run = tuned(Job(case), bound, seed=seed, job_s=job_s)
    job, summary, events = run.job, run.summary, run.events
    steps = len(job.ends_s)
    seen = [event for event in events if isinstance(event, Seen)]
    chosen = summary.chosen.get("", DEFAULT)
    chosen_slowdown, chosen_saving = case.change(chosen)
    oracle_slowdown, oracle_saving = held(case, case.oracle(bound)[0], plain)
    proof = summary.proof
    converge_s, converge_steps = _converged(case, job, seen, chosen)
    return Outcome(
        name=case.name,
        kind=case.kind,
        bound=bound,
        saving=1.0 - job.joules(steps) / plain.joules(steps),
        slowdown=job.ends_s[-1] / plain.ends_s[steps - 1] - 1.0,
        oracle_saving=oracle_saving,
        oracle_slowdown=oracle_slowdown,
        chosen=chosen,
        chosen_saving=chosen_saving,
        chosen_slowdown=chosen_slowdown,
        verified=bool(summary.verified.get("")),
        proven=None
        if proof is None or proof.energy is None
        else (proof.energy.value, proof.energy.low, proof.energy.high),
        converge_s=converge_s,
        converge_steps=converge_steps,
        verify_steps=_verified(job, events),
        candidates=len({event.decision.setting for event in events if isinstance(event, Decided)} - {DEFAULT}),
        steps=steps,
        says=summary.reasons.get("", summary.ruler),
        truth_energy=_true_change(job, plain, seen),
        notes=summary.notes,
    )


def _true_change(job: Job, plain: Job, seen: Sequence[Seen]) -> float:
    """Change of energy of the steps that lie in blocks, against the same steps untuned: what the proof estimates."""
    used = without = 0.0
    for each in seen:
        if each.block.duration_s < 0.5 * (each.block.end_s - each.block.start_s):
            continue  # another phase, or a pause, lies within it
        first = int(np.searchsorted(job.ends_s, each.block.start_s, side="right"))
        last = int(np.searchsorted(job.ends_s, each.block.end_s + 1e-9)) - 1
        if last > first:
            used += job.ends_j[last] - job.ends_j[first]
            without += plain.ends_j[last] - plain.ends_j[first]
    return used / without - 1.0 if without > 0 else 0.0


def _converged(case: Case, job: Job, seen: Sequence[Seen], chosen: Setting) -> tuple[float | None, float | None]:
    """When the first setting within 2 % of the final one's energy came into use, in seconds and steps from the first
    step; None where nothing is held in the end."""
    if chosen == DEFAULT:
        return None, None
    final = case.change(chosen)[1]
    for each in seen:
        if each.block.setting != DEFAULT and abs(case.change(each.block.setting)[1] - final) <= 0.02:
            start_s = each.block.start_s
            return start_s - job.ends_s[0], float(np.searchsorted(job.ends_s, start_s))
    return None, None


def _verified(job: Job, events: Sequence[Event]) -> float | None:
    for event in events:
        if isinstance(event, Seen) and event.says.startswith("verified"):
            return float(np.searchsorted(job.ends_s, event.time_s))
    return None


@dataclass(frozen=True, slots=True)
class RlOutcome:
    """An RL job, generation and training in turn, each with its own setting."""

    saving: float
    """Over the whole job, learning included."""
    later_saving: float
    """From the fourth cycle on."""
    slowdown: float
    oracle_saving: float
    chosen: dict[str, Setting]
    retuned: int
    """Baseline and probe blocks begun after the third cycle."""
    switches: int


def rl_outcome(bound: float = 0.05, *, seed: int = 0, job_s: float = JOB_S) -> RlOutcome:
    """Run the RL job tuned, untuned, and with the best setting of each phase."""
    both = rl(seed)
    run = tuned(Job(both.training, source=both.play), bound, seed=seed, job_s=job_s)
    job, summary, events = run.job, run.summary, run.events
    plain = untuned(Job(both.training, source=both.play), job_s)
    steps = len(job.ends_s)
    cycles_s = [at_s for at_s, name in job.entered if name == "generation"]
    late = [
        each
        for each in events
        if isinstance(each, Seen) and each.role in (Role.BASELINE, Role.PROBE) and each.block.start_s > cycles_s[3]
    ]
    early = int(np.searchsorted(job.ends_s, cycles_s[3]))
    used = without = 0.0
    for case, count in ((both.generation, both.generation_steps), (both.training, both.training_steps)):
        setting = case.oracle(bound)[0]
        without += count * case.lived(DEFAULT)[1]
        used += count * case.lived(setting)[1]
    return RlOutcome(
        saving=1.0 - job.joules(steps) / plain.joules(steps),
        later_saving=1.0 - (job.joules(steps) - job.joules(early)) / (plain.joules(steps) - plain.joules(early)),
        slowdown=job.ends_s[-1] / plain.ends_s[steps - 1] - 1.0,
        oracle_saving=1.0 - used / without,
        chosen=dict(summary.chosen),
        retuned=len(late),
        switches=summary.switches,
    )


def run(
    data: Path, *, seed: int = 0, only: str = "", job_s: float = JOB_S, workers: int | None = None
) -> list[Outcome]:
    """Every job under every bound, several jobs at a time."""
    _draw(data, seed, only)
    found: list[Outcome] = []
    # A case holds functions, which do not travel: each process draws them itself.
    with processes(workers, _draw, data, seed, only) as pool:
        work = partial(_case, seed=seed, job_s=job_s)
        for number, outcomes in enumerate(pool.map(work, range(len(_drawn))), 1):
            told = "  ".join(f"{o.saving:5.1%} of {o.oracle_saving:5.1%} {o.slowdown:+5.1%}" for o in outcomes)
            print(f"{number:3}/{len(_drawn)} {outcomes[0].name[:40]:40} {told}", file=sys.stderr, flush=True)
            found += outcomes
    return sorted(found, key=lambda each: (each.name, each.bound))


_drawn: list[Case] = []


def _draw(data: Path, seed: int, only: str) -> None:
    global _drawn
    _drawn = [case for case in cases(data, seed) if only in case.name]


def _case(index: int, *, seed: int, job_s: float) -> list[Outcome]:
    case = _drawn[index]
    plain = untuned(Job(case), job_s)
    return [outcome(case, bound, plain, seed=seed, job_s=job_s) for bound in (*BOUNDS, GPOEO_BOUND)]


def figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """What jobs under bounds tell."""
    told: dict[str, float] = {"workloads": len({each.name for each in outcomes})}
    for bound in BOUNDS:
        key, some = f"{100 * bound:g}pct", [each for each in outcomes if each.bound == bound]
        told[f"oracle_share_{key}"] = fmean(o.saving for o in some) / fmean(o.oracle_saving for o in some)
        told[f"oracle_saving_{key}"] = fmean(o.oracle_saving for o in some)
        told[f"saving_{key}"] = fmean(o.saving for o in some)
        told[f"slowdown_{key}"] = fmean(o.slowdown for o in some)
        told[f"over_bound_{key}"] = fmean(o.slowdown > o.bound for o in some)
        told[f"worst_slowdown_{key}"] = max(o.slowdown for o in some)
        told[f"verified_{key}"] = fmean(o.verified for o in some)
    told["over_bound_share"] = max(told[f"over_bound_{100 * bound:g}pct"] for bound in BOUNDS)
    wide = [each for each in outcomes if each.bound == GPOEO_BOUND]
    kept = fmean(o.slowdown for o in wide) <= GPOEO_SLOWDOWN
    told["saving_mean_5_1"] = fmean(o.saving for o in wide) if kept else told["saving_5pct"]
    told["slowdown_mean_5_1"] = fmean(o.slowdown for o in wide) if kept else told["slowdown_5pct"]
    bounded = [each for each in outcomes if each.bound in BOUNDS]
    told |= _speed(bounded)
    judged = [o.proven[1] <= o.truth_energy <= o.proven[2] for o in bounded if o.proven is not None and o.chosen]
    told["ci_coverage"] = fmean(judged) if judged else 0.0
    return told


def _speed(outcomes: Sequence[Outcome]) -> dict[str, float]:
    helped = [o for o in outcomes if o.converge_s is not None and o.converge_steps is not None]
    verified = [o.verify_steps for o in outcomes if o.verify_steps is not None]
    soon = [(o.converge_s or 0.0) <= PATIENCE_S or (o.converge_steps or 0.0) <= PATIENCE_STEPS for o in helped]
    return {
        "converge_s_p90": float(np.quantile([o.converge_s or 0.0 for o in helped], 0.9)) if helped else 0.0,
        "converge_soon_share": fmean(soon) if soon else 0.0,
        "verify_steps_median": median(verified) if verified else 0.0,
        "candidates_mean": fmean(o.candidates for o in outcomes),
    }


def _guarantees() -> dict[str, float]:
    """False acceptance on recorded steps, and delays of change detection, from the guard's own bench."""
    accept = guarantee.false_acceptance()["false_accept"]
    change = guarantee_change.figures(FOLDER, replays=40)
    delays = {
        size: max(v for k, v in change.items() if k.startswith(f"delay_{size}sd") and "p90" not in k) for size in (1, 2)
    }
    return {"false_accept": accept, "shift_1sd_steps": delays[1], "shift_2sd_steps": delays[2]}


def report(outcomes: Iterable[Outcome], out: Callable[[str], object]) -> None:
    """A line a job and bound, for people."""
    out(f"{'job':44} {'bound':>5} {'net':>6} {'oracle':>6} {'slower':>6}  held at the end (saves, slower)")
    for o in outcomes:
        setting = ", ".join(f"{name} {value:g}" for name, value in o.chosen.items()) or "nothing"
        out(
            f"{o.name[:44]:44} {o.bound:5.1%} {o.saving:6.1%} {o.oracle_saving:6.1%} {o.slowdown:+6.2%}  "
            f"{setting} ({o.chosen_saving:.1%}, {o.chosen_slowdown:+.2%}){'' if o.verified else ' unverified'}"
        )


def main(options: Namespace) -> int:
    """``python -m bench.online --virtual``."""
    from bench import online_end_to_end

    out = partial(print, file=sys.stderr) if options.json else print
    outcomes = run(data_folder(), seed=options.seed, only=options.only)
    told: dict[str, Any] = figures(outcomes)
    rollouts = rl_outcome(seed=options.seed)
    told["phase_oracle_share"] = rollouts.later_saving / rollouts.oracle_saving
    told["phase_oracle_share_whole"] = rollouts.saving / rollouts.oracle_saving
    told["phase_retuned"] = rollouts.retuned
    told |= _guarantees()
    both = [online_end_to_end.agreement(*job) for job in online_end_to_end.JOBS]
    told["end_to_end_apart"] = max(each.apart for each in both)
    report(outcomes, out)
    for each in (rollouts, *both):
        out(str(each))
    if options.decisions is not None:
        with options.decisions.open("w", encoding="utf-8") as file:
            for each in outcomes:
                file.write(json.dumps({**asdict(each), "chosen": dict(each.chosen)}) + "\n")
    if options.json:
        print(json.dumps({"figures": told}))
    else:
        print("\n".join(f"{name} {value:g}" for name, value in told.items()))
    return 0
