"""The figures and tables of ``bench.recurring``: what was played on the traces, set beside what it must reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.recurring_score import FIRST, Score, first_floor, frontier_excess, geometric
from bench.recurring_series import Series
from bench.recurring_traces import Truth

ALONE = ("default", "jit", "grid", "zeus", "zeus4", "ours", "ours4")
"""Every kind of series that needs one GPU only."""
PAPER_SAVING = (0.153, 0.758)
"""Least and most energy that Zeus saves over workloads on a V100, by its paper's abstract."""


@dataclass(frozen=True)
class Found:
    """All scores of a run."""

    eta: float
    truths: tuple[Truth, ...]
    scores: dict[Series, Score]

    def score(self, kind: str, truth: Truth) -> Score | None:
        """Of a kind on one GPU, at the weight that was asked for; None where every seed gave up."""
        return self.scores.get(Series(kind, truth))

    def all(self, kind: str) -> list[Score]:
        """Of a kind, in the order of the pairs."""
        return [score for truth in self.truths if (score := self.score(kind, truth))]

    def transfers(self) -> list[tuple[Series, Score]]:
        """Every GPU after every other."""
        return [(series, score) for series, score in self.scores.items() if series.kind == "transfer"]

    def sweep(self) -> list[tuple[Series, float]]:
        """How far behind the true frontier ours ends, at every weight: the commonest of the last five's choices."""
        ours = [(series, score) for series, score in self.scores.items() if series.kind == "ours"]
        return [
            (series, frontier_excess(series.truth, *max(score.last, key=lambda choice: score.last[choice])))
            for series, score in ours
        ]


def figures(found: Found) -> dict[str, float | int | None]:
    """Means over pairs: arithmetic for regret, geometric for ratios; a policy that always gave up has none."""
    ours, zeus = found.all("ours"), found.all("zeus")
    savings = [1.0 - score.last5[0] for score in ours]
    by_gpu = [
        _regret(score for score in ours if score.truth.gpu == gpu)
        / _regret(score for score in zeus if score.truth.gpu == gpu)
        for gpu in dict.fromkeys(truth.gpu for truth in found.truths)
    ]
    transfers = [score for _, score in found.transfers()]
    return {
        "regret_optimal_runs": _regret(ours),
        **{f"first{count}_cost": geometric(score.first(count) for score in ours) for count in FIRST},
        "cumulative_cost": geometric(score.cumulative[2] for score in ours),
        "last5_over_oracle": geometric(score.last5_over_oracle for score in ours),
        "last5_over_oracle_worst": max(score.last5_over_oracle for score in ours),
        "worst_recurrence": max(score.worst[0] for score in ours),
        "worst_single_recurrence": max(score.worst_single for score in ours),
        "losing_pairs": sum(score.cumulative[2] > 1.0 for score in ours),
        "aborted": sum(score.aborted for score in ours),
        "energy_saving_min": min(savings),
        "energy_saving_max": max(savings),
        "regret_over_zeus_worst_gpu": max(by_gpu),
        "zeus_regret_optimal_runs": _regret(zeus),
        **{f"zeus_first{count}_cost": geometric(score.first(count) for score in zeus) for count in FIRST},
        "zeus_cumulative_cost": geometric(score.cumulative[2] for score in zeus),
        "zeus_last5_over_oracle": geometric(score.last5_over_oracle for score in zeus),
        "zeus_worst_recurrence": max(score.worst[0] for score in zeus),
        "zeus_losing_pairs": sum(score.cumulative[2] > 1.0 for score in zeus),
        "grid_cumulative_cost": geometric(score.cumulative[2] for score in found.all("grid")),
        "grid_regret_optimal_runs": _regret(found.all("grid")),
        "jit_cumulative_cost": geometric(score.cumulative[2] for score in found.all("jit")),
        "oracle_cost": geometric(truth.oracle_cost / truth.default_spent[2] for truth in found.truths),
        "floor_regret_optimal_runs": float(np.mean([truth.floor for truth in found.truths])),
        "floor_first20_cost": geometric(first_floor(truth, 20) for truth in found.truths),
        "overlap4_regret": _regret(found.all("ours4")),
        "zeus_overlap4_regret": _regret(found.all("zeus4")),
        "transfer_regret": _regret(transfers) if transfers else None,
        "transfer_regret_worst": max((score.regret for score in transfers), default=None),
        "frontier_excess_worst": max(excess for _, excess in found.sweep()),
    }


def _regret(scores: Iterable[Score]) -> float:
    return float(np.mean([score.regret for score in scores]))


def pairs(found: Found) -> dict[str, dict[str, Any]]:
    """The same for each pair, and every policy's own record."""
    told = {}
    for truth in found.truths:
        ours, zeus = found.score("ours", truth), found.score("zeus", truth)
        size, point = truth.oracle
        duration_s, energy_j, cost = truth.default_spent
        told[truth.name] = {
            **(ours.record() if ours else {}),
            "energy_saving": 1.0 - ours.last5[0] if ours else None,
            "losing": ours.cumulative[2] > 1.0 if ours else None,
            **({f"zeus_{name}": value for name, value in zeus.record().items()} if zeus else {}),
            "grid_cumulative_cost": score.cumulative[2] if (score := found.score("grid", truth)) else None,
            "overlap4_regret": score.regret if (score := found.score("ours4", truth)) else None,
            "zeus_overlap4_regret": score.regret if (score := found.score("zeus4", truth)) else None,
            "transfer_regret": {s.source.gpu: score.regret for s, score in _onto(found, truth) if s.source},
            "transfer_first5_cost": {s.source.gpu: score.first(5) for s, score in _onto(found, truth) if s.source},
            "frontier_excess": {
                f"{s.truth.eta:g}": excess for s, excess in found.sweep() if s.truth.name == truth.name
            },
            "recurrences": truth.recurrences,
            "default": {"batch_size": truth.default, "energy_j": energy_j, "time_s": duration_s, "cost_j": cost},
            "oracle": {"batch_size": size, **point.setting, "cost_j": truth.oracle_cost},
            "floor_regret_optimal_runs": truth.floor,
            "floor_first20_cost": first_floor(truth, 20),
            "policies": {kind: score.record() for kind in ALONE if (score := found.score(kind, truth))},
        }
    return told


def _onto(found: Found, truth: Truth) -> list[tuple[Series, Score]]:
    return [(series, score) for series, score in found.transfers() if series.truth.name == truth.name]


def show(found: Found, out: Callable[..., None]) -> None:
    """The tables."""
    heads = (
        "regret",
        "±",
        "first 5",
        "10",
        "20",
        "50",
        "all",
        "energy",
        "time",
        "last 5",
        "/oracle",
        "worst",
        "#",
        "runs",
    )
    out(f"cost over Default, η = {found.eta:g}; regret in optimal runs; worst: the dearest recurrence, mean over seeds")
    out(f"{'':<30}" + "".join(f"{head:>9}" for head in heads))
    for truth in found.truths:
        size, point = truth.oracle
        limit = " ".join(f"{value:g}" for value in point.setting.values())
        share = truth.oracle_cost / truth.default_spent[2]
        out(
            f"{truth.name:<22} T {truth.recurrences}, default {truth.default}; "
            f"oracle {size} at {limit} W: {share:.3f}; "
            f"floors: regret {truth.floor:.2f}, first 20 {first_floor(truth, 20):.3f}"
        )
        for kind in ALONE:
            score = found.score(kind, truth)
            if score is None:
                out(f"  {kind:<28} gave up in every series")
                continue
            _row(kind, score, out)
        for series, score in _onto(found, truth):
            _row(f"after {series.source.gpu if series.source else ''}", score, out)
    out("")
    least, most = PAPER_SAVING
    out(f"energy saved in the last five recurrences (Zeus's paper: {least:.1%} to {most:.1%} over workloads)")
    for truth in found.truths:
        ours, zeus = found.score("ours", truth), found.score("zeus", truth)
        if ours and zeus:
            out(f"  {truth.name:<28} {1 - ours.last5[0]:.1%}, Zeus {1 - zeus.last5[0]:.1%}")
    out("")
    out("behind the true energy-time frontier at the end, by η")
    for truth in found.truths:
        excess = {series.truth.eta: excess for series, excess in found.sweep() if series.truth.name == truth.name}
        out(f"  {truth.name:<28}" + "".join(f"  {eta:g}: {excess[eta]:.2%}" for eta in sorted(excess)))
    out("")


def _row(name: str, score: Score, out: Callable[..., None]) -> None:
    record = score.record()
    energy, time, cost = score.cumulative
    worst, number = score.worst
    values = (
        *(f"{score.regret:.2f}", f"{record['regret_error']:.2f}"),
        *(f"{value:.3f}" for value in (*(score.first(count) for count in FIRST), cost, energy, time)),
        *(f"{score.last5[2]:.3f}", f"{score.last5_over_oracle:.3f}", f"{worst:.2f}", str(number), f"{score.runs:.1f}"),
    )
    gave_up = f"  gave up {score.aborted} times" if score.aborted else ""
    out(f"  {name:<28}" + "".join(f"{value:>9}" for value in values) + gave_up)
