"""Sweeps with activity counters, as examples to learn from: counters at the default beside what the law says of them.

What it is: the reader of ``joulewise model train DIR``. Every ``.csv`` of a folder in one of two layouts:

* the profiles of the NV-DVFS benchmarks: benchmark, kernel, argNo, core_frequency and memory_frequency (MHz), time
  (s), average_power (W), and DCGM's counters DRAMA, FP16A, FP32A, FP64A, SMACT, SMOCC, TENSO (0 to 1);
* ours: series, time_s, power_w (or energy_j), one or more of lock_mhz, memory_mhz, limit_w, sm_mhz, and any of sm,
  occupancy, tensor, dram, fp64, fp32, fp16 (0 to 1), filled at least in the row of the default; optionally gpu (a
  name of the catalogue) and benchmark (rows of one benchmark are never both trained on and judged by).

The default of a series is the row with the highest clocks and limit. A belief that is told all rows of a series says
what its load is: the same unknowns, in the same sense, that a tuner's belief begins with. What it is not: a fit.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulewise.core import input_files
from joulewise.core.block import Block
from joulewise.core.errors import BadSpec, ModelError
from joulewise.core.knob import Choices, Setting, Space
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief
from joulewise.model.hypotheses import LOAD

_DCGM = {
    "SMACT": "sm",
    "SMOCC": "occupancy",
    "TENSO": "tensor",
    "DRAMA": "dram",
    "FP64A": "fp64",
    "FP32A": "fp32",
    "FP16A": "fp16",
}
_THEIRS = {
    **_DCGM,
    "core_frequency": "lock_mhz",
    "memory_frequency": "memory_mhz",
    "time": "time_s",
    "average_power": "power_w",
}
_COUNTERS = tuple(_DCGM.values())
_KNOBS = {"lock_mhz": "sm_mhz", "memory_mhz": "memory_mhz", "limit_w": "power_limit_w"}
_LEAST_POINTS = 3  # of a series: fewer do not tell a load
_ERROR = 0.01  # relative, of one row: what a careful sweep repeats to


@dataclass(frozen=True, slots=True)
class Example:
    """One program: its counters at the default, and the unknowns of its load as (unknown, spread), in logits or
    logarithms."""

    name: str
    group: str
    gpu: str
    activity: Mapping[str, float]
    power_share: float | None
    load: Mapping[str, tuple[float, float]]
    points: int


@dataclass(frozen=True, slots=True)
class _Row:
    values: Mapping[str, float]
    group: str
    gpu: str


def examples(folder: Path, *, gpu: str | None = None) -> tuple[list[Path], list[Example]]:
    """The files that were used and what there is to learn from; BadSpec where a file is not what it says.

    Files without counters are passed over; series without counters at their default, or with too few rows, too.
    """
    if not folder.is_dir():
        raise BadSpec(f"{folder} is not a folder; give the folder that holds the sweeps (.csv)")
    model = catalog.load(gpu) if gpu else None
    used, found = [], []
    for path in sorted(folder.glob("*.csv")):
        series = _series(path)
        taken = [example for name, rows in series.items() if (example := _example(name, rows, model)) is not None]
        if taken:
            used.append(path)
            found += taken
    return used, found


_HELP = "see 'joulewise model train --help'"


def _series(path: Path) -> dict[str, list[_Row]]:
    """The rows of one file by series; nothing where it has no counters."""
    try:
        with input_files.opened_text(path, way_out=_HELP) as file:
            reader = csv.DictReader(file)
            columns = [(column or "").strip() for column in reader.fieldnames or ()]
            ours = {_THEIRS.get(column, column) for column in columns}
            if not set(_COUNTERS) & ours or "time_s" not in ours or not {"power_w", "energy_j"} & ours:
                return {}
            series: dict[str, list[_Row]] = defaultdict(list)
            for cells in reader:
                name, row = _row(path, reader.line_num, cells)
                series[name].append(row)
    except csv.Error as error:
        raise BadSpec(f"{path} cannot be read: it is no CSV file ({error}); {_HELP}") from error
    return series


def _row(path: Path, line: int, cells: Mapping[str | None, str]) -> tuple[str, _Row]:
    named = {(key or "").strip(): (value or "").strip() for key, value in cells.items() if isinstance(value, str)}
    values = {}
    for column, text in named.items():
        name = _THEIRS.get(column, column)
        if name in (*_COUNTERS, *_KNOBS, "sm_mhz", "time_s", "power_w", "energy_j") and text:
            values[name] = _number(path, line, column, text)
    if "power_w" not in values and {"energy_j", "time_s"} <= values.keys() and values["time_s"] > 0:
        values["power_w"] = values["energy_j"] / values["time_s"]
    if not (values.get("time_s", 0.0) > 0 and values.get("power_w", 0.0) > 0):
        raise BadSpec(f"{path} line {line}: time and power (or energy) must be given, above 0")
    parts = [named[part] for part in ("benchmark", "kernel", "argNo") if named.get(part)]
    series = named.get("series") or "/".join(parts) or path.stem
    return series, _Row(values, named.get("benchmark") or series, named.get("gpu", ""))


def _example(name: str, rows: Sequence[_Row], model: GpuModel | None) -> Example | None:
    gpu = next((row.gpu for row in rows if row.gpu), "")
    if model is None and gpu:
        model = catalog.load(gpu)
    top = max(rows, key=lambda row: [row.values.get(knob, 0.0) for knob in _KNOBS])
    activity = {counter: top.values[counter] for counter in _COUNTERS if counter in top.values}
    if len(rows) < _LEAST_POINTS or not activity:
        return None
    space, limit_w = _space(rows), model.default_limit_w if model is not None else None
    belief = Belief(space, model=model, default_limit_w=limit_w)
    for row in rows:
        belief.tell(_block(row, top))
    try:
        load = belief.learnt().load
    except np.linalg.LinAlgError as error:
        raise ModelError(f"{name}: the law cannot be fitted ({error}); check its rows") from error
    return Example(
        name,
        top.group,
        model.name if model is not None else gpu or "unknown",
        activity,
        top.values["power_w"] / limit_w if limit_w else None,
        {dial.name: (float(dial.z(load[dial.name][0])), load[dial.name][1]) for dial in LOAD},
        len(rows),
    )


def _space(rows: Sequence[_Row]) -> Space:
    found = {ours: {row.values[theirs] for row in rows if theirs in row.values} for theirs, ours in _KNOBS.items()}
    return Space({name: Choices.of(sorted(values)) for name, values in found.items() if len(values) > 1})


def _block(row: _Row, top: _Row) -> Block:
    """A row as a block; what is as high as in the default's row is not set."""
    setting = {
        ours: row.values[theirs]
        for theirs, ours in _KNOBS.items()
        if theirs in row.values and row.values[theirs] < top.values.get(theirs, math.inf)
    }
    time_s, power_w = row.values["time_s"], row.values["power_w"]
    energy_j = time_s * power_w
    clock = row.values.get("sm_mhz", row.values.get("lock_mhz") if "limit_w" not in row.values else None)
    return Block(Setting(**setting), 0.0, time_s, 1.0, time_s, energy_j, _ERROR * energy_j, _ERROR, sm_mhz=clock)


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise BadSpec(f"{path} line {line}: {column}={text!r} is not a number of 0 or more")
    return value
