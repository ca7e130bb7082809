"""How soon, and at what cost, does a cluster keep a cap that is cut, and is its budget of a day kept and used?

    python -m bench.cluster cap [--json] [--quick] [--only days|nodes]

Two halves. *Days* (``bench.cluster_cap_day``), in virtual time: made-up jobs and two public traces (JOULEWISE_DATA;
left out, and said, where it is not set), beliefs right and wrong by a fifth. *Nodes* (``bench.cluster_cap_nodes``), in
real time: node agents and daemons, each a process of its own, on virtual nodes with load; the scheduler's cap is cut,
and the truth is read from the simulators ten times a second and more.

Figures. Of the nodes: ``compliance_s_20``, ``compliance_s_40``, seconds from the operator's word until the nodes' true
power, as a mean over a second, is below the cap and stays there (the slowest of all cuts), ``overshoot_kj``, the joules
above it until then (the most of all). Of the days: ``jct_cost``, by how much the mean completion time of all jobs grows
by three hours of −25 % (mean over cases; ``jct_cost_20`` and ``_40`` likewise); ``preemptions_20``, the most that any
cut of 20 % led to in the two minutes after it, and ``preemptions_20_more``, how many more there were in its three hours
than without it (mean over cases: with fewer watts a policy that lets short jobs pass does so more often);
``budget_overrun``, the worst day, relative; ``budget_used``, the least of any day under load.
Progress goes to stderr; ``--json`` ends with one object ``{"figures": {…}, …}``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.cluster_cap_day import CORNERS, RIGHT, STEP_WRONGS, Load, Task, run
from bench.pool import processes
from bench.public_sweeps import data_folder
from joulewise.core.errors import BadSpec, JoulewiseError

Out = Callable[[str], None]
Rows = list[dict[str, Any]]
_TRACES = ("cluster03.csv", "cluster06.csv")
BUDGET_LOAD = 1.6
"""With less, elastic jobs leave hours in which nobody wants the watts that are left."""


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="bench.cluster cap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--quick", action="store_true", help="a few jobs and one cut, to see that it runs")
    options.add_argument("--only", choices=("days", "nodes"), help="one half alone")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 where a part is missing."""
    options = parser().parse_args(arguments)
    out: Out = partial(print, file=sys.stderr, flush=True) if options.json else print
    try:
        said = _all(options, out)
    except JoulewiseError as error:
        print(f"bench.cluster cap: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(said))
    else:
        print("\n".join(f"{name} {value:.4g}" for name, value in said["figures"].items()))
    return 0


def _all(options: argparse.Namespace, out: Out) -> dict[str, Any]:
    said: dict[str, Any] = {"figures": {}}
    if options.only != "nodes":
        steps, budgets = days(_tasks(options.quick, out), out)
        said["steps"], said["budgets"] = steps, budgets
        said["figures"] |= day_figures(steps, budgets)
    if options.only != "days":
        from bench.cluster_cap_nodes import cuts, node_figures

        said["cuts"] = cuts(out, quick=options.quick)
        said["figures"] |= node_figures(said["cuts"])
    return said


def _tasks(quick: bool, out: Out) -> list[Task]:
    """All of them, the longest first, so that two processes end together."""
    if quick:
        return [
            Task(Load(50, seed=1, gpus=16), RIGHT),
            Task(Load(130, seed=1, gpus=16, offers=BUDGET_LOAD), RIGHT, budget=True),
        ]
    steps = [Load(350, seed=1)]
    budgets = [Load(900, seed=3, offers=BUDGET_LOAD)]
    try:
        folder = data_folder()
    except BadSpec as error:
        out(f"no public traces: {error}")
    else:
        traces = [Load(150, trace=str(_trace(folder, name)), data=folder) for name in _TRACES]
        steps += traces
        budgets.append(replace(traces[1], offers=BUDGET_LOAD))
    tasks = [Task(load, wrong, budget=True) for load in budgets for wrong in CORNERS]
    return tasks + [Task(load, wrong) for load in steps for wrong in STEP_WRONGS]


def _trace(folder: Path, name: str) -> Path:
    path = folder / "cluster" / "elasticflow" / "elastic" / name
    if not path.is_file():
        raise BadSpec(f"{path} is not there; JOULEWISE_DATA must hold ElasticFlow's traces, or be unset")
    return path


def days(tasks: Sequence[Task], out: Out) -> tuple[Rows, Rows]:
    """Rows of all steps and of all budgets, by as many processes as there are cores."""
    steps: Rows = []
    budgets: Rows = []
    began_s = time.monotonic()
    with processes(min(len(tasks), os.cpu_count() or 1)) as pool:
        for number, (task, rows) in enumerate(zip(tasks, pool.map(run, tasks), strict=True), start=1):
            (budgets if task.budget else steps).extend(rows)
            for row in rows:
                out(f"[{number}/{len(tasks)}, {time.monotonic() - began_s:.0f} s] {_line(row)}")
    return steps, budgets


def _line(row: dict[str, Any]) -> str:
    about = f"{row['load']}, joules believed × {row['believed_energy']:g}"
    if "step" not in row:
        return (
            f"{about}, seconds × {row['believed_time']:g}: budget {row['budget_kwh']:,.0f} kWh a day, worst day "
            f"{row['overrun']:+.2%}, least used under load {row['used_under_load']:.2%}, time {row['jct_cost']:+.0%}"
        )
    complied = "never kept" if row["complied_s"] is None else f"kept after {row['complied_s']:.0f} s"
    moved = f"{row['preemptions']} preempted and {row['resizes']} resized by it"
    in_3h = f"{row['preemptions_3h']} and {row['resizes_3h']}"
    without = f"{row['preemptions_3h_without']} and {row['resizes_3h_without']}"
    return (
        f"{about}, −{row['step']} % of {row['drawn_w'] / 1000.0:.1f} kW: {complied}, "
        f"{row['overshoot_kj']:.0f} kJ above, {moved} (in three hours {in_3h}, without it {without}), "
        f"time {row['jct_cost']:+.1%}"
    )


def day_figures(steps: Rows, budgets: Rows) -> dict[str, float]:
    """The figures of the virtual half."""
    cost = {step: [row["jct_cost"] for row in steps if row["step"] == step] for step in ("20", "25", "40")}
    by_20 = [row for row in steps if row["step"] == "20"]
    return {
        "jct_cost": fmean(cost["25"]),
        "jct_cost_20": fmean(cost["20"]),
        "jct_cost_40": fmean(cost["40"]),
        "preemptions_20": max(row["preemptions"] for row in by_20),
        "preemptions_20_more": fmean(row["preemptions_3h"] - row["preemptions_3h_without"] for row in by_20),
        "resizes_20": max(row["resizes"] for row in by_20),
        "day_overshoot_kj": max(row["overshoot_kj"] for row in steps),
        "budget_overrun": max(0.0, *(row["overrun"] for row in budgets)),
        "budget_used": min(row["used_under_load"] for row in budgets),
        "unfinished": sum(row["unfinished"] for row in (*steps, *budgets)),
    }


if __name__ == "__main__":
    sys.exit(main())
