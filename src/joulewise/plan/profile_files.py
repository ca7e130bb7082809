"""Profiles as files: the CSV of stage profilers, and our own JSON, which keeps errors.

The CSV has one row for each stage, kind of operation and clock (columns ``stage, instruction, frequency, time,
energy``: MHz, seconds, joules of one GPU); our own names for the columns (``stage, kind, sm_mhz, time_s, energy_j``) do
as well. Rows that repeat a setting are repeats of a measurement.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan import plan_fields
from joulewise.plan.dag import KINDS
from joulewise.plan.execution import Execution, launches
from joulewise.plan.plan_fields import Fields
from joulewise.plan.profile import Options, Profile, averaged

FORMAT, VERSIONS = "joulewise-profile", (1, 2)
_COLUMNS = {"kind": "instruction", "sm_mhz": "frequency", "time_s": "time", "energy_j": "energy"}
_OPTION = ("stage", "kind", "setting", "time_s", "energy_j", "time_error_s", "energy_error_j")
_PARTITIONED = 2  # from this version on, options of plans and profiles may have launches


def read(path: Path) -> Profile:
    """A profile from a file: JSON if its name ends so, else CSV. BadSpec says where it is wrong."""
    if path.suffix.lower() == ".json":
        fields = plan_fields.read(path, format=FORMAT, versions=VERSIONS).only("format", "version", "options")
        rows = options_from(fields.several("options"), fields.whole("version"))
    else:
        rows = _rows(path)
    try:
        return averaged(rows)
    except BadSpec as problem:
        raise BadSpec(str(problem) if str(problem).startswith(f"{path}") else f"{path}: {problem}") from None


def write(profile: Profile, path: Path) -> None:
    """Write it as JSON. OSError as writing goes."""
    value = {"format": FORMAT, "version": version_of(profile), "options": options_json(profile.options)}
    path.write_text(json.dumps(value, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def version_of(profile: Profile) -> int:
    """The lowest version that can hold these options, so that whoever need not know of launches can read the rest."""
    return 2 if any(launches(point.setting) for points in profile.options.values() for point in points) else 1


def options_json(options: Mapping[tuple[int, str], Options]) -> list[dict[str, Any]]:
    """Options as plain data; errors that are 0 are left out."""
    found: list[dict[str, Any]] = []
    for (stage, kind), points in options.items():
        for point in points:
            row = {
                "stage": stage,
                "kind": kind,
                "setting": dict(point.setting),
                "time_s": point.time_s,
                "energy_j": point.energy_j,
            }
            if found_launches := launches(point.setting):
                row["launches"] = [asdict(launch) for launch in found_launches]
            errors = {"time_error_s": point.time_error_s, "energy_error_j": point.energy_error_j}
            found.append(row | {name: value for name, value in errors.items() if value})
    return found


def options_from(rows: Iterable[Fields], version: int = 1) -> Iterator[tuple[int, str, Point[Setting]]]:
    """The reverse. BadSpec where a row is not an option of this version."""
    for row in rows:
        row.only(*_OPTION, *(("launches",) if version >= _PARTITIONED else ()))
        setting = row.setting("setting")
        if row.has("launches"):
            setting = Execution(row.launches("launches"), **setting)
        yield (
            row.whole("stage"),
            row.text("kind"),
            Point(
                row.number("time_s"),
                row.number("energy_j"),
                setting,
                row.number("time_error_s", least=0.0, otherwise=0.0),
                row.number("energy_error_j", least=0.0, otherwise=0.0),
            ),
        )


def table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Columns and rows (line, column → text) of a CSV file. BadSpec where it is none."""
    try:
        with input_files.opened_text(path) as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            rows = [
                (reader.line_num, {(name or "").strip(): (cell or "").strip() for name, cell in row.items() if name})
                for row in reader
            ]
    except csv.Error as problem:
        raise BadSpec(f"{path} cannot be read: it is no CSV file ({problem})") from None
    return columns, rows


def _rows(path: Path) -> Iterator[tuple[int, str, Point[Setting]]]:
    columns, rows = table(path)
    named = {ours: ours if ours in columns else theirs for ours, theirs in _COLUMNS.items()}
    missing = [name for name in ("stage", *named.values()) if name not in columns]
    if not columns:
        raise BadSpec(f"{path} is empty; a profile has the columns {', '.join(('stage', *_COLUMNS.values()))}")
    if missing:
        wanted = ", ".join(("stage", *_COLUMNS.values()))
        raise BadSpec(f"{path} has no column {missing[0]!r}; a profile has the columns {wanted}")
    for line, cells in rows:
        stage = number(path, line, "stage", cells["stage"], least=0.0)
        if stage != int(stage):
            raise BadSpec(f"{path} line {line}: stage {cells['stage']} is not a whole number")
        kind = cells[named["kind"]]
        if kind not in KINDS:
            raise BadSpec(f"{path} line {line}: {kind[:40]!r} is no operation; operations are {', '.join(KINDS)}")
        sm_mhz, time_s, energy_j = (
            number(path, line, named[name], cells[named[name]]) for name in ("sm_mhz", "time_s", "energy_j")
        )
        yield int(stage), kind, Point(time_s, energy_j, Setting(sm_mhz=sm_mhz))


def number(path: Path, line: int, column: str, text: str, *, least: float | None = None) -> float:
    """A finite number above 0, or of ``least`` or more. BadSpec with the line else."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (value > 0 if least is None else value >= least) or value == float("inf"):
        needs = "above 0" if least is None else f"of {least:g} or more"
        raise BadSpec(f"{path} line {line}: {column} {text[:40]!r} is not a number {needs}")
    return value
