"""Beside the sweep: what each mechanism of ours is worth, whether a budget is kept, what packing saves.

*Ablations*, on every trace at the load nearest to 0.9: ours without its clocks, without size predictions, without
power-off, with first-fit placement and nobody moved; and without prices, which is the greedy with the same queue by
size (of the sweep's PowerFlow-style runs). *Budget*: periods of a fifth of the span of submissions (four hours at
least), with 70 % of what ours draws in them when joules cost nothing; believed times and energies wrong by 20 % in all
four corners, for good. *Fragmentation*: Pollux' workloads on T4 nodes, whose placements were measured: buddy blocks
that are packed again when it pays, against spreading and against first fit where nobody is moved; the same policies
and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.cluster_energy_beliefs import Wrong
from bench.cluster_energy_compare import Curve, energy_ratio, geometric_mean, ratio
from bench.cluster_energy_loads import gpu_of, read_window
from bench.cluster_energy_policies import OURS, POWERFLOW, Knob, clock_knob, knobs_of
from bench.cluster_energy_report import Found, Scored
from bench.cluster_energy_run import CaseKey, Conditions, Piece, Run
from joulewise.cluster.placement import Placer
from joulewise.core.units import J_PER_KWH

Each = Callable[[str, Iterable[Piece]], Iterator[list[Run]]]

MECHANISMS: Mapping[str, Conditions] = {
    "clock": Conditions(clocks=False),
    "sizes": Conditions(sizes=False),
    "power_off": Conditions(power_off=False),
    "buddy": Conditions(placer="first fit", migrate=False),
}
_PRICES = frozenset(("0", "0.025", "0.1", "0.4", "1.2"))  # of the sweep: enough for a curve
BUDGET_SHARE = 0.7
"""Of what is drawn where joules cost nothing: enough to bind, not so little that jobs starve."""
PERIODS = 5
SHORTEST_S = 4 * 3600.0
"""A period lasts at least this long: nothing can be kept within minutes by nodes that need five to boot."""
CORNERS = tuple(Wrong(time, energy) for time in (0.8, 1.2) for energy in (0.8, 1.2))


def run(found: Found, each: Each, out: Callable[..., None]) -> dict[str, Any]:
    """All three; figures, and what they come from."""
    usual = _usual(found)
    gains = _ablations(usual, each, out)
    overruns = _budgets(usual, each, out)
    saved = _fragmentation(usual, each, out)
    figures = {
        "budget_overrun": max(0.0, *overruns.values()),
        "fragmentation_kwh_saved": min(against["kwh_saved"] for against in saved.values()),
        **{f"gain_{name}": geometric_mean(values["jct"]) for name, values in gains.items() if values["jct"]},
        **{f"saving_{name}": geometric_mean(values["energy"]) for name, values in gains.items() if values["energy"]},
    }
    return {"figures": figures, "ablations": gains, "budgets": overruns, "fragmentation": saved}


def _usual(found: Found) -> list[Scored]:
    """One case a trace: the load nearest to 0.9."""
    best: dict[str, Scored] = {}
    for case in found.values():
        known = best.get(case.trace)
        if known is None or abs(case.key.load - 0.9) < abs(known.key.load - 0.9):
            best[case.trace] = case
    return list(best.values())


def _ablations(cases: Sequence[Scored], each: Each, out: Callable[..., None]) -> dict[str, dict[str, list[float]]]:
    """By mechanism, without it ÷ ours, a value a trace: time at equal energy, and energy at equal time."""
    wanted = [(case, name) for case in cases for name in MECHANISMS]
    knobs = tuple(knob for knob in knobs_of(OURS) if knob.name in _PRICES)
    pieces = [Piece(case.key, OURS, knobs, MECHANISMS[name]) for case, name in wanted]
    found: dict[str, dict[str, list[float]]] = {name: {"jct": [], "energy": []} for name in (*MECHANISMS, "prices")}
    for (case, name), runs in zip(wanted, each("ablation", pieces), strict=True):
        horizon_s = max(case.horizon_s, *(run.ended_s for run in runs))
        both = replace(case, horizon_s=horizon_s, runs={OURS: case.runs[OURS], "without": tuple(runs)})
        ours = Curve.of(both.spots(OURS, lambda run: run.knob in _PRICES))
        _note(found[name], both.curve("without"), ours)
    for case in cases:
        if POWERFLOW in case.runs:
            greedy = case.spots(POWERFLOW, lambda run: run.knob.startswith("shortest stop"))
            _note(found["prices"], Curve.of(greedy), case.curve(OURS))
    out("\nwithout one mechanism: time ÷ ours at equal energy, energy ÷ ours at equal time")
    for name, values in found.items():
        if values["jct"]:
            means = {part: geometric_mean(each_trace) for part, each_trace in values.items()}
            by_trace = ", ".join(f"{value:.3f}" for value in values["jct"])
            out(f"  {name:10s} {means['jct']:6.3f}×  {means['energy']:6.3f}×   (time by trace: {by_trace})")
    return found


def _note(values: dict[str, list[float]], without: Curve, ours: Curve) -> None:
    values["jct"].append(ratio(without, ours))
    values["energy"].append(energy_ratio(without, ours))


def _budgets(cases: Sequence[Scored], each: Each, out: Callable[..., None]) -> dict[str, float]:
    """By case and corner, how far the worst period was above its budget (below 0: it was not)."""
    pieces, names = [], []
    for case in cases:
        free = next(run for run in case.runs[OURS] if run.knob == "0")
        jobs = case.key.case().jobs
        period_s = max(SHORTEST_S, (jobs[-1].submitted_s - jobs[0].submitted_s) / PERIODS)
        budget_j = BUDGET_SHARE * free.energy_j / free.ended_s * period_s
        for wrong in CORNERS:
            given = Conditions(wrong=wrong, budget_j=budget_j, budget_s=period_s)
            pieces.append(Piece(case.key, OURS, (Knob("0"),), given))
            names.append(f"{case.name}, times × {wrong.time:g}, joules × {wrong.energy:g}")
    played = dict(zip(names, (runs[0] for runs in each("budget", pieces)), strict=True))
    found = {name: run.overrun or 0.0 for name, run in played.items()}
    undone = sum(run.unfinished for run in played.values())
    if undone:  # a budget that is kept by starving jobs is not kept well
        out(f"\nbudget: {undone} jobs were never done")
    worst = max(found, key=found.__getitem__)
    out(f"\nbudget: worst period {found[worst]:+.2%} ({worst})")
    return found


def _fragmentation(cases: Sequence[Scored], each: Each, out: Callable[..., None]) -> dict[str, Any]:
    """kWh that buddy blocks save, summed over the T4 workloads given, or on one of the public ones."""
    keys = [case.key for case in cases if gpu_of(read_window(case.key.trace, case.key.count)[1]) == "t4"]
    if not keys:
        path = cases[0].key.data / "cluster" / "pollux" / "workloads" / "workload-6.csv"
        keys = [CaseKey(str(path), cases[0].key.data, 0.9, 0.5, "note", seed=cases[0].key.seed)]
    placers: tuple[Placer, ...] = ("buddy", "first fit", "spread")
    policies = (("tiresias", clock_knob(0)), (OURS, Knob("0.1", price=0.1)))
    wanted = [(key, policy, placer) for key in keys for policy in policies for placer in placers]
    pieces = [
        Piece(key, policy, (knob,), Conditions(placer=placer, migrate=placer == "buddy"))
        for key, (policy, knob), placer in wanted
    ]
    runs = {asked: found[0] for asked, found in zip(wanted, each("fragmentation", pieces), strict=True)}
    said: dict[str, Any] = {}
    for placer in placers[1:]:
        packed_j = spread_j = packed_s = spread_s = 0.0
        for key in keys:
            for policy in policies:
                one, two = runs[key, policy, "buddy"], runs[key, policy, placer]
                horizon_s = max(one.ended_s, two.ended_s)
                packed_j += one.until_j(horizon_s)
                spread_j += two.until_j(horizon_s)
                packed_s += one.jct_s
                spread_s += two.jct_s
        said[placer] = {
            "kwh_saved": (spread_j - packed_j) / J_PER_KWH,
            "share_saved": 1.0 - packed_j / spread_j,
            "jct_ratio": spread_s / packed_s,
        }
        saved_kwh, share, longer = said[placer].values()
        out(f"fragmentation: buddies save {saved_kwh:,.1f} kWh ({share:.1%}) against {placer}, {longer:.3f}× as long")
    return said
