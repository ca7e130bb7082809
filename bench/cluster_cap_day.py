"""Days of a simulated cluster under a cap that is cut and a budget that binds: ``bench.cluster cap`` in virtual time.

Jobs: made up by seed (``bench.cluster_made``), and public traces on measured tables (``bench.cluster_energy_loads``),
at a load of 1.1, under our policy, with nodes that sleep. Beliefs are right, or wrong for good: every believed joule a
fifth too low or too high, and for budgets every believed second too.

*Steps*: at a busy moment that nobody told of before, the cap goes to so much below what is drawn just then, for three
hours; once with a ramp of ten minutes. Against the same days without: mean completion time, who was preempted or
resized by the step (in the two minutes after it: the pass itself and the rounds that follow), how long until the
cluster kept the cap, joules above it. There are no node agents here, whose ceilings hold the cap in any case: what is
above it comes from wrong beliefs and lasts until the meter has shown them.
*Budgets*: 70 % of a day's joules as drawn without a budget; the worst day's overrun, and the least used of a day under
load: one in whose last six hours the jobs that were there asked for all GPUs at every round. Jobs come half as fast
again, so that there are such days.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from bench import cluster_made
from bench.cluster_energy_beliefs import Known, SkewedBelief, Wrong
from bench.cluster_energy_run import CaseKey
from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.limits import Limits
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.purse import Purse
from joulewise.cluster.response import response
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import Submission, simulate
from joulewise.cluster.state import Kind, Snapshot
from joulewise.core.errors import BadSpec

STEP_S = 3 * 3600.0
RAMP_S = 600.0
AFTER_S = 120.0
"""What happens within two rounds of a step is its doing."""
DAY_S = 86_400.0
BUDGET_SHARE = 0.7
LATE_S = 6 * 3600.0
LOAD, SIGMA = 1.1, 0.5
RIGHT = Wrong()
STEP_WRONGS = (RIGHT, Wrong(energy=0.8), Wrong(energy=1.2))
CORNERS = tuple(Wrong(time, energy) for time in (0.8, 1.2) for energy in (0.8, 1.2))


@dataclass(frozen=True)
class Step:
    """A cut of the cap by ``share`` of what is drawn."""

    share: float
    ramp: bool = False

    @property
    def name(self) -> str:
        """In per cent, as in the figures."""
        return f"{self.share * 100:.0f}"


STEPS = (Step(0.2), Step(0.25, ramp=True), Step(0.4))


@dataclass(frozen=True)
class Load:
    """Jobs: those of ``trace``, or made up where it is None."""

    count: int
    seed: int = 0
    gpus: int = 64
    """Of the cluster for made-up jobs; a trace says itself how many it needs."""
    offers: float = LOAD
    trace: str | None = None
    data: Path | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"made-up {self.seed}" if self.trace is None else Path(self.trace).name.split(".")[0]


@dataclass(frozen=True)
class Task:
    """What one process does: the steps, or the budget, on one load with one belief."""

    load: Load
    wrong: Wrong
    budget: bool = False


@dataclass(frozen=True)
class Came:
    """One run, and what was decided in it: (time, what) of every move; (time, share) of all GPUs that jobs asked for
    at every round."""

    outcome: Outcome
    moves: tuple[tuple[float, str], ...]
    asked: tuple[tuple[float, float], ...]

    def moved(self, from_s: float, to_s: float) -> Counter[str]:
        """How many moves of each kind between two times."""
        return Counter(what for time_s, what in self.moves if from_s <= time_s < to_s)


@lru_cache(maxsize=4)
def _known(load: Load) -> tuple[Kind, Known]:
    assert load.trace is not None
    assert load.data is not None
    case = CaseKey(load.trace, load.data, load.offers, SIGMA, "mixture", count=load.count, seed=load.seed).case()
    return case.kind, Known(case)


def jobs_of(load: Load, wrong: Wrong) -> tuple[Kind, list[Submission]]:
    """The cluster, and fresh submissions: no run learns from another."""
    if load.trace is not None:
        kind, known = _known(load)
        return kind, known.submissions(None if wrong == RIGHT else wrong)
    made = cluster_made.submissions(load.count, load.gpus, load.offers, load.seed, sigma=SIGMA)
    return cluster_made.kind(load.gpus), [replace(job, belief=SkewedBelief(job.belief, wrong)) for job in made]


def play(load: Load, wrong: Wrong, purse: Purse, limits: Limits | None = None, signals: tuple[Any, ...] = ()) -> Came:
    """One run."""
    kind, jobs = jobs_of(load, wrong)
    moves: list[tuple[float, str]] = []
    asked: list[tuple[float, float]] = []

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        moves.extend((snapshot.now_s, move.what) for move in decision.moves)
        asked.append((snapshot.now_s, sum(job.gpus_asked for job in snapshot.jobs) / kind.gpus))

    round_ = Round(priced(), nodes=NodePower(), purse=purse, calm=True)
    outcome = simulate(jobs, (kind,), round_, watch=watch, limits=limits, signals=signals)
    return Came(outcome, tuple(moves), tuple(asked))


def run(task: Task) -> list[dict[str, Any]]:
    """Rows of results, plain values."""
    return _budget(task) if task.budget else list(_steps(task))


def _steps(task: Task) -> Iterator[dict[str, Any]]:
    free = play(task.load, task.wrong, Purse(), Limits())
    at_s, drawn_w = busy_moment(free.outcome)
    for step in STEPS:
        limits = Limits(most_w=drawn_w)
        ramp = step.share * drawn_w / RAMP_S if step.ramp else None
        signal = limits.cap(at_s, (1.0 - step.share) * drawn_w, for_s=STEP_S, ramp_w_per_s=ramp)
        came = play(task.load, task.wrong, Purse(), limits, (signal,))
        seen = response(_watched(came.outcome, at_s), partial(_cap_w, limits), at_s, at_s + STEP_S)
        soon, late = came.moved(at_s, at_s + AFTER_S), came.moved(at_s, at_s + STEP_S)
        usual_soon, usual = free.moved(at_s, at_s + AFTER_S), free.moved(at_s, at_s + STEP_S)
        yield {
            "load": task.load.name,
            "believed_energy": task.wrong.energy,
            "step": step.name,
            "drawn_w": drawn_w,
            "jct_s": came.outcome.jct_s,
            "jct_cost": came.outcome.jct_s / free.outcome.jct_s - 1.0,
            "complied_s": seen.complied_s,
            "overshoot_kj": (seen.overshoot_j + seen.after_j) / 1000.0,
            "above_share": seen.above_w / ((1.0 - step.share) * drawn_w),
            "preemptions": max(0, soon["preempt"] - usual_soon["preempt"]),
            "resizes": max(0, soon["resize"] - usual_soon["resize"]),
            "preemptions_3h": late["preempt"],
            "preemptions_3h_without": usual["preempt"],
            "resizes_3h": late["resize"],
            "resizes_3h_without": usual["resize"],
            "unfinished": len(came.outcome.unfinished),
        }


def _cap_w(limits: Limits, time_s: float) -> float | None:
    return limits.at(time_s).cap_w


def busy_moment(outcome: Outcome) -> tuple[float, float]:
    """When in the middle of the submissions, between two rounds, the cluster draws most; and how much."""
    last_s = max(job.submitted_s for job in outcome.jobs)
    times = [outcome.begun_s + part / 100.0 * (last_s - outcome.begun_s) for part in range(30, 61)]
    at_s = max(times, key=lambda time_s: _watts_at(outcome, time_s))
    # Half a minute after a round, so that a step finds nothing about to be decided anyhow.
    at_s = math.floor(at_s / 60.0) * 60.0 + 30.0
    return at_s, _watts_at(outcome, at_s)


def _watts_at(outcome: Outcome, time_s: float) -> float:
    watts = outcome.series[0].watts
    for moment in outcome.series:
        if moment.time_s > time_s:
            break
        watts = moment.watts
    return watts


def _watched(outcome: Outcome, at_s: float) -> list[tuple[float, float]]:
    """The power series, also at every second of a ramp and its like after the step: the cap changes there too."""
    power = {moment.time_s: moment.watts for moment in outcome.series}
    for second in range(int(RAMP_S) + 2):
        power.setdefault(at_s + second, _watts_at(outcome, at_s + second))
    return sorted(power.items())


def _least_asked(played: Came, until_s: float) -> float:
    """At any round in the last six hours of a day; 0 where there was none."""
    late = [share for time_s, share in played.asked if until_s - LATE_S <= time_s < until_s]
    return min(late, default=0.0)


def _budget(task: Task) -> list[dict[str, Any]]:
    free = play(task.load, task.wrong, Purse()).outcome
    last_s = max(job.submitted_s for job in free.jobs)
    days = int((last_s - free.begun_s) // DAY_S)
    budget_j = BUDGET_SHARE * free.energy_between_j(free.begun_s, free.begun_s + days * DAY_S) / days
    played = play(task.load, task.wrong, Purse(energy_j=budget_j))
    came = played.outcome
    first_s = math.ceil(came.begun_s / 60.0) * 60.0  # of the first round, with which the first day begins
    used: list[float] = []
    while first_s + len(used) * DAY_S < came.ended_s:
        from_s = first_s + len(used) * DAY_S
        used.append(came.energy_between_j(from_s, from_s + DAY_S) / budget_j)
    asked = [_least_asked(played, first_s + (at + 1) * DAY_S) for at in range(len(used))]
    under_load = [share for share, wanted in zip(used, asked, strict=True) if wanted >= 1.0]
    if not under_load:
        raise BadSpec(f"no day of {task.load.name} was under load; give it more jobs, or a higher load")
    return [
        {
            "load": task.load.name,
            "believed_time": task.wrong.time,
            "believed_energy": task.wrong.energy,
            "budget_kwh": budget_j / 3.6e6,
            "used": used,
            "asked": asked,
            "overrun": max(used) - 1.0,
            "used_under_load": min(under_load),
            "jct_cost": came.jct_s / free.jct_s - 1.0,
            "unfinished": len(came.unfinished),
        }
    ]
