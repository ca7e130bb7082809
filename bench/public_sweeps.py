"""Readers of the public sweeps that the law is fitted to, each file format to the same `Series`.

The files are not part of the project: they are found through the environment variable JOULEWISE_DATA, or given on
the command line. A file of the same columns from another GPU or workload reads the same.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_WH
from joulewise.model.fit import Point, Series


def data_folder() -> Path:
    """The folder named by JOULEWISE_DATA; BadSpec if it is not set or not there."""
    folder = os.environ.get("JOULEWISE_DATA")
    if not folder:
        raise BadSpec("JOULEWISE_DATA is not set; point it at the data folder, or give the files as options")
    if not Path(folder).is_dir():
        raise BadSpec(f"JOULEWISE_DATA={folder} is not a folder; point it at the data folder")
    return Path(folder)


def rows_of(path: Path, *needed: str) -> list[dict[str, str]]:
    """The rows of a CSV file, which must have the `needed` columns."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadSpec(f"cannot read {path}: {error}") from error
    missing = [name for name in needed if name not in columns]
    if missing:
        raise BadSpec(f"{path} has no column {missing[0]!r}; it needs {', '.join(needed)}")
    if not rows:
        raise BadSpec(f"{path} has no rows; it needs at least one")
    return rows


def zeus(path: Path) -> list[Series]:
    """Power-limit series of whole training runs; a series is named dataset/network/batch size/optimiser."""
    columns = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")
    found: dict[str, list[Point]] = defaultdict(list)
    for row in rows_of(path, *columns):
        name = "/".join(row[part] for part in columns[:4])
        time_s, power_w, limit_w = (
            _number(path, row, part) for part in ("time_per_epoch", "average_power", "power_limit")
        )
        found[name].append(Point(time_s, power_w, limit_w=limit_w))
    return _series(found)


def grid(path: Path) -> list[Series]:
    """SM clock × power limit; energy in Wh and time in s, in one row or in two rows of the same setting.

    A benchmark of which some setting has no time, or no energy, is left out there.
    """
    energy: dict[tuple[str, float, float], float] = {}
    time: dict[tuple[str, float, float], float] = {}
    for row in rows_of(path, "bench", "sm_clock", "power_limit", "energy", "time"):
        key = (row["bench"], _number(path, row, "sm_clock"), _number(path, row, "power_limit"))
        if row["energy"]:
            energy[key] = _number(path, row, "energy") * J_PER_WH
        for column in ("time", "total_time_seconds"):
            if row.get(column):
                time[key] = _number(path, row, column)
    found: dict[str, list[Point]] = defaultdict(list)
    for key in sorted(energy.keys() & time.keys()):
        bench, lock_mhz, limit_w = key
        found[bench].append(Point(time[key], energy[key] / time[key], lock_mhz=lock_mhz, limit_w=limit_w))
    if not found:
        raise BadSpec(f"{path} has no setting with both energy and time")
    return _series(found)


def sweep(paths: Iterable[Path]) -> list[Series]:
    """Applications over SM clocks: time s, average_power W; a series is named benchmark/kernel/argument."""
    found: dict[str, list[Point]] = defaultdict(list)
    for path in paths:
        for row in rows_of(path, "benchmark", "core_frequency", "time", "average_power"):
            name = "/".join(row.get(part) or "" for part in ("benchmark", "kernel", "argNo"))
            memory = row.get("memory_frequency")
            found[name].append(
                Point(
                    _number(path, row, "time"),
                    _number(path, row, "average_power"),
                    lock_mhz=_number(path, row, "core_frequency"),
                    memory_mhz=_number(path, row, "memory_frequency") if memory else None,
                )
            )
    return _series(found)


def caffe(path: Path, *, base_sm_mhz: float, base_memory_mhz: float) -> list[Series]:
    """Caffe training over core × memory clock. Values below 1000 MHz are offsets from the base clocks."""
    points = []
    rows = rows_of(path, "coreF", "memF", "time/s", "power/W")
    offsets = any(_number(path, row, "coreF") <= 0 for row in rows)
    for row in rows:
        core, memory = _number(path, row, "coreF"), _number(path, row, "memF")
        points.append(
            Point(
                _number(path, row, "time/s"),
                _number(path, row, "power/W"),
                sm_mhz=core + base_sm_mhz if offsets else core,
                memory_mhz=memory + base_memory_mhz if offsets else memory,
            )
        )
    return [Series(path.stem, tuple(points))]


def stages(path: Path) -> list[Series]:
    """Forward and backward of pipeline stages over SM clocks: time s and energy J."""
    found: dict[str, list[Point]] = defaultdict(list)
    for row in rows_of(path, "stage", "instruction", "frequency", "time", "energy"):
        time_s = _number(path, row, "time")
        point = Point(time_s, _number(path, row, "energy") / time_s, lock_mhz=_number(path, row, "frequency"))
        found[f"{row['stage']}/{row['instruction']}"].append(point)
    return _series(found)


def rungs(path: Path, gpu: str, names: Iterable[str]) -> list[Series]:
    """Rungs of one GPU that all do the same work, under other power limits; clock observed."""
    needed = ("file", "gpu", "power_limit_w", "efficiency.delay_per_work_s", "efficiency.energy_per_work_j")
    points = []
    for row in rows_of(path, *needed, "clocks.sm_avg_mhz"):
        if gpu in row["gpu"] and row["file"].removesuffix(".json") in names:
            time_s = _number(path, row, "efficiency.delay_per_work_s")
            power_w = _number(path, row, "efficiency.energy_per_work_j") / time_s
            limit_w, sm_mhz = (_number(path, row, part) for part in ("power_limit_w", "clocks.sm_avg_mhz"))
            points.append(Point(time_s, power_w, limit_w=limit_w, sm_mhz=sm_mhz))
    return [Series(gpu, tuple(points))]


def _series(found: dict[str, list[Point]]) -> list[Series]:
    return [Series(name, tuple(points)) for name, points in found.items()]


def _number(path: Path, row: dict[str, str], column: str) -> float:
    try:
        return float(row[column])
    except (TypeError, ValueError) as error:
        raise BadSpec(f"{path}: {column}={row[column]!r} is not a number") from error
