"""Do the baselines give the figures that their authors' own simulators give?

    python -m bench.cluster fidelity [--json] [--data DIR] [--only pollux|elasticflow]

Tiresias and Optimus in Pollux' simulator (16 nodes of 4 T4), average completion time on workloads 1, 2, 3 and 6;
Tiresias and Gandiva in ElasticFlow's (nodes of 8 A100) on the Microsoft traces. Both simulators are re-told here
(``cluster_fidelity_pollux``, ``cluster_fidelity_elasticflow``, ``cluster_fidelity_gandiva``) around the product's own
policies; Gandiva's sets are the artefact's alone. ``JOULEWISE_DATA`` names the folder of public data.
Errors are relative. Tables go to stderr under ``--json``, which ends with one object ``{"figures": {…}}``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.cluster_fidelity_apps import applications
from bench.cluster_fidelity_elasticflow import replay_tiresias
from bench.cluster_fidelity_gandiva import replay_gandiva
from bench.cluster_fidelity_pollux import replay
from joulewise.cluster.traces import read_trace
from joulewise.core.errors import BadSpec, JoulewiseError

POLLUX = {
    "tiresias": {1: 2473.65, 2: 5144.96, 3: 3876.26, 6: 3469.69},
    "optimus": {1: 4087.06, 2: 6913.88, 3: 3944.01, 6: 5301.875},
}
"""Policy → workload → average completion time in seconds, published by Pollux' authors (OSDI'21 artefact)."""
ELASTICFLOW = {
    ("195job", 128): (27497.2, 39867.4),
    ("cluster10", 256): (32780.9, 55777.6),
    ("cluster06", 512): (24502.7, 28482.0),
    ("cluster10", 32): (36669.1, 60257.2),
    ("cluster06", 128): (36734.7, 125843.5),
    ("cluster03", 256): (41940.6, 74990.7),
}
"""Trace and GPUs → seconds under Tiresias and Gandiva, measured with the authors' code (pkusys/ElasticFlow)."""
SLOT_S = {"195job": 240}
"""The slot that each trace was run with, where it is not a minute."""


@dataclass(frozen=True, slots=True)
class Row:
    """One replay beside its reference."""

    simulator: str
    trace: str
    policy: str
    taken_s: Mapping[str, float]
    """By job, from submission to end."""
    given_s: float
    """The average to be met."""
    cpu_s: float

    @property
    def ours_s(self) -> float:
        """The average that was met."""
        return sum(self.taken_s.values()) / len(self.taken_s)

    @property
    def error(self) -> float:
        """Relative, without sign."""
        return abs(self.ours_s / self.given_s - 1)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="bench.cluster fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, metavar="DIR", help="the folder of public data (default: JOULEWISE_DATA)")
    options.add_argument("--only", choices=("pollux", "elasticflow"), help="one of the two simulators")
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument(
        "--decisions", type=Path, metavar="FILE", help="every replay with each job's time, a JSON object a line"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what was asked for; 2 where the data cannot be used."""
    options = parser().parse_args(arguments)
    out: Callable[[str], None] = partial(print, file=sys.stderr) if options.json else print
    rows: list[Row] = []
    try:
        for row in _rows(_folder(options.data), options.only):
            out(
                f"{row.simulator:11} {row.trace:14} {row.policy:8} {row.ours_s:10.1f} s, given {row.given_s:10.1f} s: "
                f"{row.error:7.3%} off ({row.cpu_s:.1f} s CPU)"
            )
            rows.append(row)
        if options.decisions:
            lines = [json.dumps(asdict(row)) + "\n" for row in rows]
            options.decisions.write_text("".join(lines), encoding="utf-8")
    except (JoulewiseError, OSError) as error:
        print(f"bench.cluster fidelity: {error}", file=sys.stderr)
        return 2
    figures = summed_up(rows)
    print(json.dumps({"figures": figures}) if options.json else "\n".join(f"{k} {v:.3g}" for k, v in figures.items()))
    return 0


def summed_up(rows: Sequence[Row]) -> dict[str, float]:
    """The figures: workload 6 by policy, the worst of each simulator, and how many replays there were."""
    figures: dict[str, float] = {"replays": len(rows)}
    for row in rows:
        if row.trace == "workload-6":
            figures[f"{row.policy}_w6_error"] = row.error
    for simulator in sorted({row.simulator for row in rows}):
        figures[f"{simulator}_worst_error"] = max(row.error for row in rows if row.simulator == simulator)
    return figures


def _folder(data: Path | None) -> Path:
    named = data or Path(os.environ.get("JOULEWISE_DATA", ""))
    folder = named / "cluster"
    if not folder.is_dir():
        raise BadSpec(f"{folder} is not there; set JOULEWISE_DATA to the folder of public data, or give --data")
    return folder


def _rows(folder: Path, only: str | None) -> Iterator[Row]:
    if only != "elasticflow":
        apps = applications(folder / "pollux" / "traces")
        for policy, given in POLLUX.items():
            for workload, given_s in given.items():
                trace = read_trace(folder / "pollux" / "workloads" / f"workload-{workload}.csv")
                began_s = time.process_time()
                taken_s = replay(trace, apps, policy)
                yield Row("pollux", f"workload-{workload}", policy, taken_s, given_s, time.process_time() - began_s)
    if only != "pollux":
        for (name, gpus), both in ELASTICFLOW.items():
            trace = read_trace(folder / "elasticflow" / "elastic" / f"{name}.csv")
            for policy, again, given_s in zip(
                ("tiresias", "gandiva"), (replay_tiresias, replay_gandiva), both, strict=True
            ):
                began_s = time.process_time()
                taken_s = again(trace, gpus, SLOT_S.get(name, 60))
                yield Row("elasticflow", f"{name}@{gpus}", policy, taken_s, given_s, time.process_time() - began_s)


if __name__ == "__main__":
    sys.exit(main())
