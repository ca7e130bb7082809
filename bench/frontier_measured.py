"""How well do two measured iterations and the stage law foretell the time and energy of other plans?

For each workload of ``measured_frontiers.csv``: the times of operations, the iteration's time and energy and the mean
clocks are taken from the first warm-up, with nothing set, and from the fastest plan, and a law is fitted to them
(``bench.frontier_measured_fit``). All other plans are then predicted from their clocks alone; nothing of their times or
energies is used, and nothing is fitted to more than one workload. Warm-ups are not counted: they repeat one that was
used. EnvPipe's plan is predicted from Perseus' two iterations too.

- ``measured_time_mape``, ``measured_energy_mape``: mean absolute error over all predicted plans, percent; the same for
  each workload behind its name.
- ``as_fastest_*_mape``: the baseline, which says of every plan what the fastest one took.
- ``*_within_2_errors``: share of plans whose measurement lies within two of the predicted standard errors.
- ``repeat_*_percent``: how far the warm-ups of one workload are apart, root mean square about their mean: no prediction
  can be sure of less.

The method was made on the A100 workloads, ``--gpu A100``, all three of them: their figures are those of development.
The A40 workload was looked at once, at the end, and nothing was changed after; only the stage profile of another model
on an A40, which gives a prior, had been seen before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.frontier_measured_fit import Fitted, Iteration, Pipeline, Predicted
from bench.frontier_stragglers import BLOCKING_W
from bench.public_sweeps import data_folder, rows_of
from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.model import catalog
from joulewise.plan.dag import BACKWARD, FORWARD
from joulewise.plan.schedules_named import named

Array = NDArray[Any]
Row = dict[str, str]

KINDS = (FORWARD, BACKWARD)
PROFILES = {"A100": "gpt3-175b+a100_sxm_bf16.csv", "A40": "gpt3-175b+a40_bf16.csv"}
"""Stages of another model, on such a GPU: how far operations follow the clock."""
CALIBRATED = "perseus"


@dataclass(frozen=True)
class Workload:
    """One measured workload: what may be used, and what is to be predicted."""

    gpu: str
    model: str
    pipeline: Pipeline
    plans: tuple[Row, ...]
    warmups: tuple[Row, ...]

    @property
    def name(self) -> str:
        """In figures."""
        return f"{self.gpu.lower()}_{self.model.split('-')[0]}"


@dataclass(frozen=True)
class Scored:
    """A plan, predicted and measured."""

    workload: Workload
    row: Row
    said: Predicted

    @property
    def miss(self) -> Array:
        """Predicted time and energy over measured ones, less 1."""
        return np.array([self.said.time_s, self.said.energy_j]) / _seen(self.row) - 1.0

    @property
    def fastest_miss(self) -> Array:
        """The same of the baseline."""
        fastest = self.workload.pipeline.fastest
        return np.array([fastest.time_s, fastest.energy_j]) / _seen(self.row) - 1.0

    @property
    def covered(self) -> Array:
        """Whether time and energy lie within two standard errors."""
        errors = np.array([self.said.time_error_s, self.said.energy_error_j])
        return np.asarray(np.abs([self.said.time_s, self.said.energy_j] - _seen(self.row)) <= 2.0 * errors)


def read(data: Path, gpus: Sequence[str]) -> list[Workload]:
    """The workloads measured on these GPUs. BadSpec where a file is not what it should be."""
    folder = data / "perseus"
    columns = ("system", "gpu", "model", "num_microbatches", "plan", "mean_freq_per_rank_MHz")
    frontiers, instructions = folder / "measured_frontiers.csv", folder / "instruction_times.csv"
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows_of(frontiers, *columns, "kind", "iter_time_s", "iter_energy_J"):
        if row["gpu"] in gpus:
            found[row["gpu"], row["model"]].append(row)
    times: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows_of(instructions, *columns[:5], "rank", "instruction", "median_s", "mean_s"):
        if row["system"] == CALIBRATED:
            times[row["gpu"], row["model"]].append(row)
    if not found:
        raise BadSpec(f"{frontiers} has no workload on {' or '.join(gpus)}")
    return [
        _workload(*key, rows, times[key], folder / "stage_profile" / PROFILES[key[0]]) for key, rows in found.items()
    ]


def _workload(gpu: str, model: str, rows: Sequence[Row], times: Sequence[Row], profile: Path) -> Workload:
    ours = {row["plan"]: row for row in rows if row["system"] == CALIBRATED}
    first, *_, last = sorted({row["plan"] for row in times}, key=int)
    plans = [row for row in rows if row["kind"] == "plan"]
    stages, microbatches = len(_mhz(ours[first])), int(ours[first]["num_microbatches"])
    pipeline = Pipeline(
        # Not torch's answer, though it is the same: a bench should not depend on whether torch is there.
        dag=named("1f1b", stages=stages, microbatches=microbatches, ask=False).dag,
        microbatches=microbatches,
        gpu=catalog.load(gpu.lower()),
        wait_w=BLOCKING_W[gpu],
        sm_share=sm_share(profile),
        unset=_iteration(ours[first], times),
        fastest=_iteration(ours[last], times),
        slow_mhz=np.min([_mhz(row) for row in plans if row["system"] == CALIBRATED], axis=0),
    )
    asked = tuple(row for row in plans if row is not ours[last])
    return Workload(gpu, model, pipeline, asked, tuple(row for row in rows if row["kind"] == "warmup"))


def _iteration(row: Row, times: Sequence[Row]) -> Iteration:
    mhz = _mhz(row)
    cells = {(int(t["rank"]), t["instruction"]): t for t in times if t["plan"] == row["plan"]}
    mean_s, median_s = (
        np.array([[float(cells[rank, kind][column]) for kind in KINDS] for rank in range(len(mhz))])
        for column in ("mean_s", "median_s")
    )
    time_s, energy_j = _seen(row).tolist()
    return Iteration(time_s, energy_j, mhz, mean_s, median_s)


def sm_share(profile: Path) -> Array:
    """How much of a forward's and a backward's time at the highest clock follows the clock, mean of all stages.

    From the lower half of the clocks, which no power limit touches. Medians, of the slopes between neighbouring clocks
    first: at some clocks libraries change to other kernels, and times jump.
    """
    rows = rows_of(profile, "stage", "instruction", "frequency", "time")
    clocks = sorted({float(row["frequency"]) for row in rows})
    highest, middle = clocks[-1], clocks[len(clocks) // 2]
    shares = []
    for kind in KINDS:
        lower = [row for row in rows if row["instruction"] == kind and float(row["frequency"]) <= middle]
        by_stage = []
        for stage in sorted({row["stage"] for row in lower}):
            points = sorted(
                (highest / float(row["frequency"]), float(row["time"])) for row in lower if row["stage"] == stage
            )
            slower, time_s = np.array(points).T
            follows_s = np.median(np.diff(time_s) / np.diff(slower))
            stays_s = np.median(time_s - follows_s * slower)
            by_stage.append(np.clip(follows_s / (follows_s + stays_s), 0.05, 0.95))
        shares.append(float(np.mean(by_stage)))
    return np.array(shares)


def scored(workload: Workload) -> tuple[Fitted, list[Scored]]:
    """The fit to two iterations, and all other plans predicted."""
    fitted = Fitted(workload.pipeline)
    return fitted, [Scored(workload, row, fitted.predict(_mhz(row))) for row in workload.plans]


def figures(data: Path, gpus: Sequence[str] = tuple(PROFILES)) -> dict[str, float]:
    """All figures; a table is printed besides."""
    result: dict[str, float] = {}
    everything: list[Scored] = []
    print(
        f"\n{'predicted from two iterations':30} plans   time % (worst)  energy % (worst)   as fastest: time, energy %"
    )
    for workload in read(data, gpus):
        fitted, plans = scored(workload)
        everything += plans
        print(_line(f"{workload.gpu} {workload.model}", plans))
        print("    " + ", ".join(f"{name} {value:.3g}" for name, value in fitted.values().items()))
        time, energy = _mape([each.miss for each in plans])
        result |= {f"measured_{workload.name}_time_mape": time, f"measured_{workload.name}_energy_mape": energy}
    time, energy = _mape([each.miss for each in everything])
    plain_time, plain_energy = _mape([each.fastest_miss for each in everything])
    covered = np.mean([each.covered for each in everything], axis=0)
    repeat = _repeats({each.workload.name: each.workload for each in everything}.values())
    result |= {
        "measured_time_mape": time,
        "measured_energy_mape": energy,
        "as_fastest_time_mape": plain_time,
        "as_fastest_energy_mape": plain_energy,
        "time_within_2_errors": float(covered[0]),
        "energy_within_2_errors": float(covered[1]),
        "repeat_time_percent": float(repeat[0]),
        "repeat_energy_percent": float(repeat[1]),
    }
    print(_line("all", everything))
    return result


def _repeats(workloads: Iterable[Workload]) -> Array:
    away = []
    for workload in workloads:
        seen = np.log([_seen(row) for row in workload.warmups])
        away.append(((seen - seen.mean(axis=0)) ** 2).sum(axis=0) / (len(seen) - 1))
    return np.asarray(100.0 * np.sqrt(np.mean(away, axis=0)))


def _line(name: str, plans: Sequence[Scored]) -> str:
    miss = 100.0 * np.abs([each.miss for each in plans])
    plain = 100.0 * np.abs([each.fastest_miss for each in plans]).mean(axis=0)
    (time, energy), (worst_time, worst_energy) = miss.mean(axis=0), miss.max(axis=0)
    cells = (
        f"{time:8.2f} ({worst_time:4.1f})   {energy:8.2f} ({worst_energy:4.1f})      {plain[0]:16.2f} {plain[1]:7.2f}"
    )
    return f"{name:30} {len(plans):5} {cells}"


def _mape(misses: Sequence[Array]) -> tuple[float, float]:
    time, energy = 100.0 * np.abs(misses).mean(axis=0)
    return float(time), float(energy)


def _seen(row: Row) -> Array:
    return np.array([float(row["iter_time_s"]), float(row["iter_energy_J"])])


def _mhz(row: Row) -> Array:
    return np.array([float(each) for each in row["mean_freq_per_rank_MHz"].split(";")])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line for files that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.frontier_measured", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--gpu", action="append", choices=sorted(PROFILES), help="only workloads on it; may be repeated"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="instead of JOULEWISE_DATA")
    parser.add_argument("--json", action="store_true", help="end with one object of figures")
    given = parser.parse_args(arguments)
    try:
        found = figures(given.data or data_folder(), given.gpu or tuple(PROFILES))
    except JoulewiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"figures": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
