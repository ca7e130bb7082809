"""What a simulated policy came to: completion times, energy over one common horizon, budgets kept or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from joulewise.cli.cluster_scene import Limits, Result
from joulewise.cluster.outcome import Moment, Outcome, Parts
from joulewise.cluster.tariff import Tariff

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one policy. None where there is nothing to say: a policy that left jobs undone has no completion times, since
    those of the others alone would flatter it."""

    policy: str
    family: str
    mean_s: float | None
    median_s: float | None
    p99_s: float | None
    energy_j: float
    """Of the whole cluster until the horizon: when the slowest policy that did all its jobs is at its end, and all that
    sleeps is asleep."""
    parts: Parts | None
    """The same until the policy's own end; what is missing is what it draws afterwards. None where that end is beyond
    the horizon: jobs were left undone, and it waited for them in vain."""
    after_j: float | None
    restarts: int
    deadlines: int
    deadlines_met: int
    over_budget: float | None
    """How far the worst period went beyond the energy budget, a share of it; 0 if it was kept, None without one."""
    over_cap: float | None
    """How far the highest draw went beyond the power cap, a share of it …"""
    over_cap_s: float
    """… and for how long it was beyond it at all."""
    makespan_s: float
    jobs: int
    unfinished: int
    rounds: int
    boots: int
    cpu_s: float
    cost: float | None = None
    """Grams or money until the horizon, by the tariff; None without one."""
    cost_unit: str = ""


def figures(results: Sequence[Result], limits: Limits, tariff: Tariff | None = None) -> list[Figures]:
    """Of each policy, in order."""
    done = [result for result in results if not result.outcome.unfinished]
    horizon_s = max((result.outcome.ended_s for result in done or results), default=0.0)
    return [_of(result, limits, horizon_s, tariff) for result in results]


def _of(result: Result, limits: Limits, horizon_s: float, tariff: Tariff | None) -> Figures:
    outcome = result.outcome
    times_s = [] if outcome.unfinished else [job.jct_s for job in outcome.jobs if job.jct_s is not None]
    series, end_s = _with_tail(outcome, horizon_s)
    beyond = outcome.ended_s > horizon_s
    whole_j = outcome.energy_until_j(horizon_s)
    due = [job for job in outcome.jobs if job.deadline_s is not None]
    met = [
        job for job in due if job.ended_s is not None and job.deadline_s is not None and job.ended_s <= job.deadline_s
    ]
    return Figures(
        result.policy.name,
        result.policy.family,
        float(np.mean(times_s)) if times_s else None,
        float(np.percentile(times_s, 50)) if times_s else None,
        float(np.percentile(times_s, 99)) if times_s else None,
        whole_j,
        None if beyond else outcome.energy_j,
        None if beyond else whole_j - outcome.energy_j.whole,
        sum(job.restarts for job in outcome.jobs),
        len(due),
        len(met),
        _over_budget(series, end_s, limits, result.decided_s, tariff),
        None if limits.power_w is None else _over(max(moment.watts for moment in series), limits.power_w),
        0.0 if limits.power_w is None else _beyond_s(series, end_s, limits.power_w),
        outcome.makespan_s,
        len(outcome.jobs),
        len(outcome.unfinished),
        outcome.rounds,
        outcome.boots,
        result.cpu_s,
        None if tariff is None else tariff.of(_powers(series), horizon_s),
        "" if tariff is None else tariff.counts,
    )


def shown_until_s(results: Sequence[Result]) -> float:
    """Where pictures end: when all but a hundredth of the jobs have ended under every policy. One that runs on for
    days would leave no room for the rest."""
    last = [
        float(np.percentile([job.ended_s for job in result.outcome.jobs if job.ended_s is not None], 99))
        for result in results
        if len(result.outcome.unfinished) < len(result.outcome.jobs)
    ]
    end_s = max(result.outcome.ended_s for result in results)
    begun_s = results[0].outcome.begun_s
    return min(end_s, begun_s + 1.05 * (max(last) - begun_s)) if last else end_s


def _with_tail(outcome: Outcome, horizon_s: float) -> tuple[Sequence[Moment], float]:
    """The draw until its own end or the horizon, whichever is later, and which that is."""
    if horizon_s <= outcome.ended_s:
        return outcome.series, outcome.ended_s
    return [*outcome.series, Moment(outcome.ended_s, 0, outcome.series[-1].nodes, outcome.tail_w)], horizon_s


def _powers(series: Sequence[Moment]) -> list[tuple[float, float]]:
    return [(moment.time_s, moment.watts) for moment in series]


def _over_budget(
    series: Sequence[Moment], end_s: float, limits: Limits, from_s: float, tariff: Tariff | None
) -> float | None:
    """Of the worst period from the first round on; the last one may be short of its end."""
    if limits.energy_j is None:
        return None
    periods = max(1, ceil((end_s - from_s) / limits.period_s))
    edges = np.array([from_s + limits.period_s * number for number in range(periods + 1)])
    if tariff is not None:
        costs = [tariff.of(_powers(series), min(edge, end_s)) for edge in edges]
        return _over(float(np.diff(costs).max()), tariff.amount(limits.energy_j))
    drawn_j = np.diff(drawn_until(series, end_s, edges))
    return _over(float(drawn_j.max()), limits.energy_j)


def _over(value: float, limit: float) -> float:
    # A millionth of rounding is no breach.
    return max(0.0, value / limit - 1.0) if value > limit * (1 + 1e-6) else 0.0


def _beyond_s(series: Sequence[Moment], end_s: float, power_w: float) -> float:
    times = [*(moment.time_s for moment in series), end_s]
    return sum(
        max(0.0, until_s - moment.time_s)
        for moment, until_s in zip(series, times[1:], strict=True)
        if _over(moment.watts, power_w)
    )


def drawn_until(series: Sequence[Moment], end_s: float, at_s: Floats) -> Floats:
    """Joules from the first moment until each of ``at_s``, none after ``end_s``."""
    return _summed([moment.watts for moment in series], series, end_s, at_s)


def curves(outcome: Outcome, end_s: float, bins: int) -> tuple[Floats, Floats, Floats]:
    """Means over ``bins`` equal pieces from the beginning to ``end_s``: hours since the beginning, GPUs, watts.

    After the policy's own end the draw is what it is for ever after, and no GPU is in use.
    """
    edges = np.linspace(outcome.begun_s, max(end_s, outcome.begun_s + 1.0), bins + 1)
    width_s = float(edges[1] - edges[0])
    gpus = (
        np.diff(_summed([moment.gpus for moment in outcome.series], outcome.series, outcome.ended_s, edges)) / width_s
    )
    watts = np.diff(drawn_until(outcome.series, outcome.ended_s, edges)) / width_s
    over = np.clip((edges[1:] - outcome.ended_s) / width_s, 0.0, 1.0)
    middles = 0.5 * (edges[1:] + edges[:-1])
    return (middles - outcome.begun_s) / 3600.0, gpus, watts + over * outcome.tail_w


def _summed(values: Sequence[float], series: Sequence[Moment], end_s: float, at_s: Floats) -> Floats:
    """The integral of a step function, until each of ``at_s``."""
    times = np.array([*(moment.time_s for moment in series), max(end_s, series[-1].time_s)])
    steps = np.diff(times) * np.asarray(values, dtype=float)
    summed: Floats = np.interp(at_s, times, np.concatenate([[0.0], np.cumsum(steps)]))
    return summed
