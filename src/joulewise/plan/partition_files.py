"""Measured schedules of partitions from a CSV file: what communication launched where, on how many SMs, came to.

One row a measurement: ``part, slot, sms, time_s, energy_j`` and, where several were tried, ``sm_mhz``: a kind of
partition, the operation beside which its communication starts (or ``sequential``: beside none), seconds and joules of
one execution on one GPU. Rows that repeat a schedule are repeats of a measurement.
"""

from __future__ import annotations

from pathlib import Path

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.execution import Execution, Launch
from joulewise.plan.profile import Options, mean
from joulewise.plan.profile_files import number, table

_COLUMNS = ("part", "slot", "sms", "time_s", "energy_j")


def read(path: Path) -> dict[str, Options]:
    """Part → its measured schedules, in the order of the file. BadSpec says where it is wrong."""
    columns, rows = table(path)
    for name in _COLUMNS:
        if name not in columns:
            raise BadSpec(f"{path} has no column {name!r}; partitions have the columns {', '.join(_COLUMNS)}")
    found: dict[str, dict[Setting, list[Point[Setting]]]] = {}
    for line, cells in rows:
        sms, time_s, energy_j = (number(path, line, name, cells[name]) for name in _COLUMNS[2:])
        clock = {"sm_mhz": number(path, line, "sm_mhz", cells["sm_mhz"])} if cells.get("sm_mhz") else {}
        if sms != int(sms):
            raise BadSpec(f"{path} line {line}: sms {cells['sms']} is not a whole number")
        if not (cells["part"] and cells["slot"]):
            raise BadSpec(f"{path} line {line}: a schedule needs a part and a slot; the slot may be 'sequential'")
        setting = Execution([Launch(cells["part"], cells["slot"], int(sms))], **clock)
        found.setdefault(cells["part"], {}).setdefault(setting, []).append(Point(time_s, energy_j, setting))
    if not found:
        raise BadSpec(f"{path} has no row; each is one measurement of one schedule")
    return {part: tuple(mean(repeats) for repeats in schedules.values()) for part, schedules in found.items()}
