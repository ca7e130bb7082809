"""Random recurring jobs, so that nothing rests on a few traces: is ours at most half as long in learning as Zeus?

Epochs to the target follow straight lines with bends over the logarithm of the batch size (a knee, a U, a rise, level),
with each size's own deviation, sizes that never get there at either end, and noise that is normal or heavy-tailed. An
epoch takes an overhead a step, work a sample, and more than that at large sizes; the limits slow only what a kernel's
clock decides. Profiles are read with an error. No tuner of this project believes in these laws; each job is a
``Truth`` like those of the traces, played by the same rules, and its expectations are exact sums over its table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TextIO

import numpy as np

from bench.recurring_score import Score
from bench.recurring_series import Series, Spread, Told, play_series, scored
from bench.recurring_traces import Truth
from joulewise.core.knob import Setting
from joulewise.core.series import EpochCost

KINDS = ("knee", "u-shape", "rising", "level", "fails low", "fails high", "fails at both ends")
PATHS = 200
"""Trainings in a size's table: enough for its tail, few enough to make quickly."""
SEEDS = 5
"""Series of each job: jobs differ more than seeds do."""


def random_job(number: int) -> Truth:
    """The job of that number, the same every time. Its default is a size that a user might well have chosen."""
    rng = np.random.default_rng((number, 20))
    kind = KINDS[number % len(KINDS)]
    # A job that nobody would run as it stands (no size reaches its target reliably) is drawn again.
    while True:
        sizes = _sizes(rng)
        epochs, max_epochs = _epochs(kind, sizes, rng)
        max_power_w, profiles = epoch_costs(sizes, rng)
        error = float(rng.choice((0.0, 0.01, 0.03)))
        truth = Truth("law", f"{kind}-{number}", sizes[0], max_epochs, max_power_w, epochs, profiles, 0.5, error)
        reliable = [size for size in sizes if all(truth.reaches(path) for path in epochs[size])]
        # The traces' defaults cost 1.02 to 2.8 times the oracle.
        sane = [size for size in reliable if truth.expected_cost(size) <= 4.0 * truth.oracle_cost]
        if sane:
            default = int(rng.choice(sane))
            return Truth(
                *("law", f"{kind}-{number}".replace(" ", "-"), default, max_epochs, max_power_w, epochs, profiles),
                eta=0.5,
                profile_error=error,
            )


def _sizes(rng: np.random.Generator) -> tuple[int, ...]:
    """3 to 16 sizes, doubling, or with one between."""
    count, first = int(rng.integers(3, 17)), int(2 ** rng.integers(1, 6))
    if rng.random() < 0.3:
        return tuple(first * 2 * 2 ** (i // 2) * (3 if i % 2 else 2) // 2 for i in range(count))
    return tuple(first * 2**i for i in range(count))


def _epochs(kind: str, sizes: Sequence[int], rng: np.random.Generator) -> tuple[dict[int, tuple[int | None, ...]], int]:
    """Every size's table of trainings, and when a run counts as failed."""
    x = np.log2(np.array(sizes, float))
    bend = rng.uniform(x[0], x[-1])
    below, above = {
        "knee": (0.0, rng.uniform(0.3, 1.2)),
        "u-shape": (-rng.uniform(0.2, 1.0), rng.uniform(0.3, 1.2)),
        "rising": (slope := rng.uniform(0.05, 0.9), slope),
        "level": (0.0, 0.0),
    }.get(kind, (-rng.uniform(0.0, 0.6), rng.uniform(0.1, 1.0)))
    bent = np.where(x < bend, below * (x - bend), above * (x - bend))
    jagged = rng.normal(0.0, rng.uniform(0.0, 0.1), len(x))
    usual = math.exp(rng.uniform(math.log(1.5), math.log(60.0))) * np.exp2(bent + jagged)
    cv, heavy = rng.uniform(0.0, 0.3), rng.random() < 0.3
    max_epochs = max(4, math.ceil(float(np.median(usual)) * rng.uniform(2.0, 6.0)))
    failing = _failing(kind, len(sizes), rng)
    table: dict[int, tuple[int | None, ...]] = {}
    for index, size in enumerate(sizes):
        # Student's t with 3 degrees of freedom has a variance of 3.
        luck = rng.standard_t(3, PATHS) / math.sqrt(3.0) if heavy else rng.standard_normal(PATHS)
        paths = np.ceil(usual[index] * np.exp(cv * np.clip(luck, -5.0, 5.0)))
        lost = rng.random(PATHS) < failing[index]
        table[size] = tuple(None if gone else max(1, int(path)) for path, gone in zip(paths, lost, strict=True))
    return table, max_epochs


def _failing(kind: str, count: int, rng: np.random.Generator) -> list[float]:
    """The share of trainings that never get there: all at a failing end, some at its edge."""
    share = [0.0] * count
    for end, ways in ((0, ("fails low", "fails at both ends")), (-1, ("fails high", "fails at both ends"))):
        if kind in ways:
            lost = int(rng.integers(1, max(2, count // 3 + 1)))
            order = range(count) if end == 0 else range(count - 1, -1, -1)
            for index in list(order)[:lost]:
                share[index] = 1.0
            edge = list(order)[lost]
            share[edge] = max(share[edge], float(rng.choice((0.0, 0.0, 0.3))))
    return share


def epoch_costs(sizes: Sequence[int], rng: np.random.Generator) -> tuple[float, dict[int, tuple[EpochCost, ...]]]:
    """The highest limit, and an epoch of every size at every limit.

    A step takes an overhead and work for each sample; the overhead is no busier than an idle GPU. Power follows how
    busy it is and the clock to a power between 2 and 3; a limit below the demand lowers the clock until it fits.
    """
    max_power_w, idle_w = float(rng.choice((250, 300, 400, 700))), rng.uniform(0.1, 0.25)
    limits_w = max_power_w * np.linspace(1.0, rng.uniform(0.35, 0.6), int(rng.integers(4, 10)))
    epoch_s, exponent = 10 ** rng.uniform(0.5, 4.0), rng.uniform(2.0, 3.0)
    # Where overhead and work are equal: anywhere in the range of sizes, or below it.
    even = 2 ** rng.uniform(math.log2(sizes[0]) - 2.0, math.log2(sizes[-1]))
    # Beyond some size an epoch takes longer again: less cache, more input at once.
    uptick, demand = rng.choice((0.0, 0.15, 0.4)), rng.uniform(0.7, 1.15)
    bound = rng.uniform(0.4, 1.0)
    profiles = {}
    for size in sizes:
        overhead_s = epoch_s * even / size
        work_s = epoch_s * (1.0 + uptick * (size / sizes[-1]) ** 2)
        points = []
        for limit_w in limits_w:
            clock = 1.0
            for clock in np.linspace(1.0, 0.3, 141):
                busy_s = work_s * (bound / clock + 1.0 - bound)
                duration_s = overhead_s + busy_s
                busy = busy_s / duration_s
                power_w = max_power_w * (idle_w + (demand - idle_w) * busy * clock**exponent)
                if power_w <= limit_w:
                    break
            limit = Setting(power_limit_w=round(float(limit_w), 1))
            points.append(EpochCost(float(duration_s), float(duration_s * power_w), limit))
        profiles[size] = tuple(points)
    return max_power_w, profiles


def _job(number: int) -> tuple[Series, list[Told], Series, list[Told]]:
    truth, seeds = random_job(number), range(1, SEEDS + 1)
    ours, zeus = Series("ours", truth), Series("zeus", truth)
    return ours, play_series((ours, seeds)), zeus, play_series((zeus, seeds))


def run(
    spread: Spread, jobs: int, out: Callable[..., None], decisions: TextIO | None = None
) -> dict[str, float | None]:
    """Play so many jobs; the table by kind, and the figures. A Zeus that gives up counts with the seeds it survived."""
    rows: list[tuple[Truth, Score | None, Score | None]] = []
    for ours, ours_told, zeus, zeus_told in spread(_job, range(jobs)):
        rows.append((ours.truth, scored(ours, ours_told), scored(zeus, zeus_told)))
        if decisions:
            for series, told in ((ours, ours_told), (zeus, zeus_told)):
                decisions.writelines(line for each in told for line in each.lines(series))
    both = [(truth, ours, zeus) for truth, ours, zeus in rows if ours and zeus]
    out(f"{len(rows)} random jobs of {SEEDS} series each; regret in optimal runs")
    heads = ("jobs", "ours", "Zeus", "floor", "most over", "first 20", "Zeus", "worst", "Zeus", "gave up", "Zeus")
    out(f"{'':<20}" + "".join(f"{head:>10}" for head in heads))
    for kind in (*KINDS, ""):
        some = [row for row in both if row[0].workload.startswith(kind.replace(" ", "-"))]
        if some:
            values = (
                *(_mean([ours.regret for _, ours, _ in some]), _mean([zeus.regret for _, _, zeus in some])),
                _mean([truth.floor for truth, _, _ in some]),
                max(ours.regret - zeus.regret for _, ours, zeus in some),
                *(_mean([s.first(20) for _, s, _ in some]), _mean([s.first(20) for _, _, s in some])),
                *(max(s.worst[0] for _, s, _ in some), max(s.worst[0] for _, _, s in some)),
                *(sum(s.aborted for _, s, _ in some), sum(s.aborted for _, _, s in some)),
            )
            out(f"{kind or 'all':<20}{len(some):>10}" + "".join(f"{value:>10.3g}" for value in values))
    worst = sorted(both, key=lambda row: row[2].regret - row[1].regret)[:5]
    for truth, ours, zeus in worst:
        out(f"  {truth.workload}: {ours.regret:.2f}, Zeus {zeus.regret:.2f}, floor {truth.floor:.2f}")
    ours_regret, zeus_regret = _mean([row[1].regret for row in both]), _mean([row[2].regret for row in both])
    return {
        "laws_regret_optimal_runs": ours_regret,
        "laws_zeus_regret_optimal_runs": zeus_regret,
        "laws_regret_over_zeus": ours_regret / zeus_regret,
        "laws_most_over_zeus": max(ours.regret - zeus.regret for _, ours, zeus in both),
        "laws_floor_regret_optimal_runs": _mean([truth.floor for truth, _, _ in both]),
        "laws_last5_over_oracle": _mean([ours.last5_over_oracle for _, ours, _ in both]),
        "laws_zeus_last5_over_oracle": _mean([zeus.last5_over_oracle for _, _, zeus in both]),
        "laws_worst_recurrence": max(ours.worst[0] for _, ours, _ in rows if ours),
        "laws_aborted": float(sum(ours.aborted if ours else SEEDS for _, ours, _ in rows)),
        "laws_zeus_aborted": float(sum(zeus.aborted if zeus else SEEDS for _, _, zeus in rows)),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
