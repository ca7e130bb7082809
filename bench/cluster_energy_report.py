"""The sweeps of all cases, scored: curves, ratios at equal energy, figures, a table, a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster_energy_compare import Curve, Spot, energies_of, geometric_mean, interval, ratio
from bench.cluster_energy_policies import OURS, POWERFLOW
from bench.cluster_energy_run import CaseKey, Run
from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_KWH


@dataclass(frozen=True)
class Scored:
    """One case: the runs of every policy, over one horizon."""

    key: CaseKey
    gpus: int
    name: str
    runs: Mapping[str, tuple[Run, ...]]
    horizon_s: float

    @classmethod
    def of(cls, key: CaseKey, runs: Mapping[str, list[Run]]) -> Scored:
        """The horizon is the end of the run that ends last, of those that end all jobs."""
        case = key.case()
        ended = {policy: tuple(run for run in each if not run.unfinished) for policy, each in runs.items()}
        lost = [policy for policy, each in ended.items() if not each]
        if lost:
            raise BadSpec(f"{case.name}: no run of {lost[0]} ended all jobs; its cluster is too small for them")
        horizon_s = max(run.ended_s for each in ended.values() for run in each)
        return cls(key, case.kind.gpus, case.name, ended, horizon_s)

    def spots(self, policy: str, chosen: Callable[[Run], bool] | None = None) -> list[Spot]:
        """A policy's runs as points."""
        return [
            Spot(run.until_j(self.horizon_s), run.jct_s, run.knob)
            for run in self.runs[policy]
            if chosen is None or chosen(run)
        ]

    def curve(self, policy: str) -> Curve:
        """What a policy reaches; PowerFlow-style with its own knob, the budget."""
        return Curve.of(self.spots(policy, _own_knob if policy == POWERFLOW else None))

    def ratio(self, policy: str) -> float:
        """A policy's time ÷ ours at equal energy."""
        return ratio(self.curve(policy), self.curve(OURS))

    @property
    def strongest(self) -> str:
        """The baseline, PowerFlow-style apart, that comes nearest to ours."""
        return min(self.others, key=self.ratio)

    @property
    def others(self) -> list[str]:
        """Baselines without PowerFlow-style."""
        return [policy for policy in self.runs if policy not in (OURS, POWERFLOW)]

    @property
    def trace(self) -> str:
        """The block that it belongs to."""
        return self.key.trace


Found = Mapping[CaseKey, Scored]


def _own_knob(run: Run) -> bool:
    return "share" in run.knob


def _threshold(run: Run) -> bool:
    return "stop" in run.knob


def _by_arrival(run: Run) -> bool:
    return _own_knob(run) and run.knob.startswith("arrival")


def answer(found: Found) -> dict[str, Any]:
    """The figures and what they come from."""
    figures: dict[str, Any] = {}
    against: dict[str, dict[str, list[float]]] = {}
    strongest: list[float] = []
    for case in found.values():
        for policy in case.runs:
            if policy != OURS:
                against.setdefault(policy, {}).setdefault(case.trace, []).append(case.ratio(policy))
        if case.others:
            strongest.append(case.ratio(case.strongest))
    if POWERFLOW in against:
        blocks = against[POWERFLOW]
        every = [value for values in blocks.values() for value in values]
        low, high = interval(blocks)
        figures |= {
            "jct_ratio_powerflow": geometric_mean(every),
            "jct_ratio_powerflow_low": low,
            "jct_ratio_powerflow_high": high,
            "jct_ratio_powerflow_min": min(every),
        }
        for name, chosen in (("threshold", _threshold), ("best", None), ("arrival", _by_arrival)):
            each = [ratio(Curve.of(case.spots(POWERFLOW, chosen)), case.curve(OURS)) for case in found.values()]
            figures[f"jct_ratio_powerflow_{name}"] = geometric_mean(each)
            figures[f"jct_ratio_powerflow_{name}_min"] = min(each)
    if strongest:
        figures |= {
            "jct_ratio_strongest_max": max(strongest),
            "jct_ratio_strongest_mean": geometric_mean(strongest),
            "jct_ratio_strongest_min": min(strongest),
        }
    means = {policy: geometric_mean([v for vs in blocks.values() for v in vs]) for policy, blocks in against.items()}
    return {"figures": figures, "against": means, "by": _by(found), "cases": [_case(case) for case in found.values()]}


def _by(found: Found) -> dict[str, dict[str, float]]:
    """The ratio to PowerFlow-style by load, prediction error and power law."""
    groups: dict[str, dict[str, list[float]]] = {"load": {}, "sigma": {}, "power": {}}
    for case in found.values():
        if POWERFLOW in case.runs:
            for part, values in groups.items():
                values.setdefault(str(getattr(case.key, part)), []).append(case.ratio(POWERFLOW))
    return {part: {name: geometric_mean(each) for name, each in values.items()} for part, values in groups.items()}


def _case(case: Scored) -> dict[str, Any]:
    return {
        "name": case.name,
        "trace": case.trace,
        "gpus": case.gpus,
        "horizon_s": case.horizon_s,
        "ratios": {policy: case.ratio(policy) for policy in case.runs if policy != OURS},
        "runs": {
            policy: [
                {
                    "knob": run.knob,
                    "energy_kwh": run.until_j(case.horizon_s) / J_PER_KWH,
                    "jct_s": run.jct_s,
                    "p99_s": run.p99_s,
                    "boots": run.boots,
                    "restarts": run.restarts,
                    "rounds": run.rounds,
                    "cpu_s": run.cpu_s,
                    "parts_kwh": {part: joules / J_PER_KWH for part, joules in run.parts_j.items()},
                }
                for run in runs
            ]
            for policy, runs in case.runs.items()
        },
    }


def show(found: Found, out: Callable[..., None]) -> None:
    """One line a case: what ours does, and everybody's time ÷ ours at equal energy."""
    for case in found.values():
        ours = case.curve(OURS)
        times = f"{ours.spots[-1].jct_s:,.0f}–{ours.spots[0].jct_s:,.0f} s"
        out(f"\n{case.name}: {case.gpus} GPUs; ours {_range(ours)}, completion {times}")
        for policy in sorted((p for p in case.runs if p != OURS), key=case.ratio):
            curve = case.curve(policy)
            at = median(energies_of(curve, ours))
            out(
                f"  {policy:14s} {case.ratio(policy):6.3f}×   {_range(curve):>20s}; at {at / J_PER_KWH:,.0f} kWh "
                f"{curve.jct_s(at):,.0f} s, ours {ours.jct_s(at):,.0f} s"
            )


def _range(curve: Curve) -> str:
    return f"{curve.least_j / J_PER_KWH:,.0f}–{curve.most_j / J_PER_KWH:,.0f} kWh"


def show_figures(figures: Mapping[str, Any], out: Callable[..., None]) -> None:
    """The last lines."""
    out("")
    for name, value in figures.items():
        out(f"{name} {value:.4g}" if value is not None else f"{name} –")


def plot(found: Found, path: Path) -> None:
    """Completion time against energy for each policy, a panel a case."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = max(1, min(3, len(found)))
    rows = -(-len(found) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(6 * columns, 4.2 * rows), squeeze=False)
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    for panel, case in zip(axes.flat, found.values(), strict=False):
        for number, policy in enumerate(case.runs):
            spots = case.curve(policy).spots
            panel.plot(
                [spot.energy_j / J_PER_KWH for spot in spots],
                [spot.jct_s / 3600 for spot in spots],
                marker="o" if policy == OURS else ".",
                linewidth=2.5 if policy == OURS else 1.0,
                color="black" if policy == OURS else colours[number % len(colours)],
                label="ours" if policy == OURS else policy,
            )
        panel.set_title(f"{case.name}, {case.gpus} GPUs", fontsize=9)
        panel.set_xlabel("energy of the whole cluster, kWh")
        panel.set_ylabel("mean completion time, h")
        panel.set_yscale("log")
    axes.flat[0].legend(fontsize=7, ncols=2)
    said = "Synthesised truth: measured throughput tables × measured clock curves × assumed power laws"
    figure.suptitle(said, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
