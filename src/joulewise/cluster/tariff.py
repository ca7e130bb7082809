"""What a kilowatt-hour costs by the hour, in grams or in money, as the weight of a budget.

What it is: a series of hours, from a file of times and values:

    time,g_per_kwh                        or   [{"time": "2026-01-05T00:00Z", "value": 212}, …]
    2026-01-05T00:00Z,212

The unit is in the header (``g_per_kwh``, ``eur_per_mwh``) or, in JSON, in ``"unit"`` beside ``"values"``; a bare list
is taken as g/kWh. With 24 values whose times are hours of a day (0 … 23) it is the same every day. ``weight`` is the
hour's value over the mean of the series, so that a budget in joules of the mean hour is one of grams or money.
Hours that are missing count as the dearer of their neighbours, hours after the last one as the same hour of the last
day; values below a twentieth of the mean (prices can be negative) count as that much. All three are said.
Why it exists: a budget of joules knows no night; one of grams does.
What it is not: a forecast, or a connection to whoever sells power.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.parsing import json_value
from joulewise.core.units import J_PER_KWH

_HOUR_S = 3600.0
_DAY_S = 86_400.0
_HOURS = 24
# A weight must stay above 0: what may be drawn in an hour is divided by it.
_LEAST = 0.05
_UNITS = {"g_per_kwh": ("g", 1.0, "g/kWh"), "eur_per_mwh": ("EUR", 1e-3, "EUR/MWh")}
"""By name in a file: what is counted, how much of it a value of 1 is for a kWh, and the unit for people."""
_MOST_HOURS = 10 * 366 * _HOURS
_NAMED = 3


class Tariff:
    """``values`` by the hour from ``first_s`` (seconds since 1970), or of every day where ``first_s`` is None."""

    def __init__(
        self,
        values: Sequence[float],
        *,
        first_s: float | None = None,
        unit: str = "g_per_kwh",
        says: Iterable[str] = (),
    ) -> None:
        if unit not in _UNITS:
            raise BadSpec(f"a tariff in {unit!r} is not known; there are {', '.join(_UNITS)}")
        if not values or not all(math.isfinite(value) for value in values):
            raise BadSpec("a tariff needs numbers, one an hour")
        if first_s is None and len(values) != _HOURS:
            raise BadSpec(f"a tariff of every day needs {_HOURS} values, not {len(values)}")
        mean = sum(values) / len(values)
        if not mean > 0:
            raise BadSpec(f"the mean of a tariff must be above 0, not {mean:g}")
        self.mean = mean
        self.unit = unit
        self.counts, self._per_kwh, self.words = _UNITS[unit]
        low = sum(value < _LEAST * mean for value in values)
        more = [f"{low} hours below {_LEAST:.0%} of the mean count as that much"] if low else []
        self.says: tuple[str, ...] = (*says, *more)
        self._first_s = first_s
        self._weights = [max(value / mean, _LEAST) for value in values]
        self._sums: dict[float, list[float]] = {}

    @property
    def end_s(self) -> float:
        """From when on there are no values of their own; infinite for one of every day."""
        return math.inf if self._first_s is None else self._first_s + _HOUR_S * len(self._weights)

    def weight(self, now_s: float) -> float:
        """What a joule counts now; 1 on average over the series."""
        return self._weights[self._at(math.floor((now_s - self._origin_s) / _HOUR_S))]

    def next_s(self, now_s: float) -> float:
        """The next full hour of the series."""
        return self._origin_s + _HOUR_S * (math.floor((now_s - self._origin_s) / _HOUR_S) + 1)

    def integral(self, from_s: float, to_s: float, power: float = 1.0) -> float:
        """∫ weight^power dt from one time to a later one."""
        return self._until(to_s, power) - self._until(from_s, power)

    def amount(self, energy_j: float) -> float:
        """Grams or money of so many joules of the mean weight (``counts`` says which)."""
        return energy_j / J_PER_KWH * self.mean * self._per_kwh

    def of(self, moments: Sequence[tuple[float, float]], until_s: float) -> float:
        """Grams or money of a draw that is a step function of time: (from when, watts) in order, until ``until_s``."""
        whole_j = 0.0
        for at, (from_s, watts) in enumerate(moments):
            to_s = min(until_s, moments[at + 1][0] if at + 1 < len(moments) else until_s)
            if to_s > from_s:
                whole_j += watts * self.integral(from_s, to_s)
        return self.amount(whole_j)

    @property
    def _origin_s(self) -> float:
        return self._first_s or 0.0

    def _at(self, hour: int) -> int:
        """Which value an hour has: before the first, the first day's, after the last, the last day's, over and over."""
        there = len(self._weights)
        if 0 <= hour < there:
            return hour
        if there < _HOURS:
            return 0 if hour < 0 else there - 1
        return hour % _HOURS if hour < 0 else there - _HOURS + (hour - there) % _HOURS

    def _until(self, time_s: float, power: float) -> float:
        """∫ from the series' first hour to a time (negative before it)."""
        hours = (time_s - self._origin_s) / _HOUR_S
        whole = math.floor(hours)
        now = float(self._weights[self._at(whole)] ** power)
        return _HOUR_S * (self._hours(whole, power) + (hours - whole) * now)

    def _hours(self, count: int, power: float) -> float:
        """Σ weight^power of the first ``count`` hours."""
        sums = self._sums.get(power)
        if sums is None:
            sums = self._sums[power] = [0.0]
            for weight in self._weights:
                sums.append(sums[-1] + weight**power)
        there = len(self._weights)
        if 0 <= count <= there:
            return sums[count]
        if there < _HOURS:
            edge = float(self._weights[0 if count < 0 else -1] ** power)
            return count * edge if count < 0 else sums[-1] + (count - there) * edge
        if count < 0:
            days, rest = divmod(count, _HOURS)
            return days * sums[_HOURS] + sums[rest]
        days, rest = divmod(count - there, _HOURS)
        base = sums[there - _HOURS]
        return sums[-1] + days * (sums[-1] - base) + sums[there - _HOURS + rest] - base


def read_tariff(path: Path) -> Tariff:
    """The tariff in a file, CSV or JSON by its ending. BadSpec, with file and line, where it makes no sense."""
    text = input_files.read_text(path)
    try:
        unit, rows = _json_rows(text) if path.suffix.lower() == ".json" else _csv_rows(text)
        return _made(unit, rows)
    except BadSpec as error:
        raise BadSpec(f"the tariff {path} makes no sense: {error}") from None


def _made(unit: str, rows: Sequence[tuple[float, float]]) -> Tariff:
    if not rows:
        raise BadSpec("it holds no value")
    times = [time_s for time_s, _ in rows]
    if sorted(times) == [float(hour) for hour in range(_HOURS)]:  # hours of a day
        return Tariff([value for _, value in sorted(rows)], unit=unit)
    if max(times) < _HOURS:
        gone = sorted(set(range(_HOURS)) - {int(time) for time in times})
        raise BadSpec(f"a day has hours 0 to 23, and {', '.join(map(str, gone)) or 'some'} are missing or twice there")
    rows = sorted(rows)
    first_s, last_s = math.floor(rows[0][0] / _HOUR_S) * _HOUR_S, rows[-1][0]
    count = math.floor((last_s - first_s) / _HOUR_S) + 1
    if count > _MOST_HOURS:
        raise BadSpec(f"it spans {count} hours; at most {_MOST_HOURS} are taken")
    by_hour: list[list[float]] = [[] for _ in range(count)]
    for time_s, value in rows:
        by_hour[math.floor((time_s - first_s) / _HOUR_S)].append(value)
    known = [at for at, values in enumerate(by_hour) if values]
    values = [sum(each) / len(each) if each else math.nan for each in by_hour]
    missing = [at for at, each in enumerate(by_hour) if not each]
    for at in missing:
        after = bisect_right(known, at)
        values[at] = max(values[known[after - 1]], values[known[after]])
    says = [_gaps(first_s, missing)] if missing else []
    return Tariff(values, first_s=first_s, unit=unit, says=says)


def _gaps(first_s: float, missing: Sequence[int]) -> str:
    names = [f"{datetime.fromtimestamp(first_s + _HOUR_S * at, UTC):%Y-%m-%d %H:%M}" for at in missing[:_NAMED]]
    more = " …" if len(missing) > _NAMED else ""
    return f"{len(missing)} hours are missing ({', '.join(names)}{more}); each counts as the dearer of its neighbours"


def _csv_rows(text: str) -> tuple[str, list[tuple[float, float]]]:
    try:
        lines = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise BadSpec(f"it is no CSV ({error})") from None
    if not lines or len(lines[0]) != 2 or lines[0][1].strip() not in _UNITS:
        raise BadSpec(f"its first line must be 'time,UNIT' with one of {', '.join(_UNITS)}")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        if len(line) != 2:
            raise BadSpec(f"line {number} has {len(line)} columns, not 2")
        rows.append((_time(line[0], f"line {number}"), _value(line[1], f"line {number}")))
    return lines[0][1].strip(), rows


def _json_rows(text: str) -> tuple[str, list[tuple[float, float]]]:
    try:
        read = json_value(text)
    except ValueError as error:
        raise BadSpec(f"it is not JSON ({error})") from None
    unit = "g_per_kwh"
    if isinstance(read, Mapping):
        unit, read = read.get("unit", unit), read.get("values")
    if unit not in _UNITS or not isinstance(read, list):
        raise BadSpec(f'it must be a list of values, or {{"unit": one of {", ".join(_UNITS)}, "values": […]}}')
    if all(isinstance(item, int | float) for item in read):
        return unit, [(float(hour), _value(item, f"value {hour}")) for hour, item in enumerate(read)]
    rows = []
    for number, item in enumerate(read):
        if not isinstance(item, Mapping) or not {"time", "value"} <= set(item):
            raise BadSpec(f'value {number} must be an object with "time" and "value"')
        rows.append((_time(item["time"], f"value {number}"), _value(item["value"], f"value {number}")))
    return unit, rows


def _time(said: Any, where: str) -> float:
    """Seconds since 1970, an hour of the day, or an ISO date (UTC if it does not say)."""
    try:
        time_s = float(said)
    except (TypeError, ValueError):
        try:
            read = datetime.fromisoformat(str(said).strip())
        except ValueError:
            raise BadSpec(f"{where}: {said!r} is neither a time nor a date") from None
        time_s = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(time_s):
        raise BadSpec(f"{where}: {said!r} is no time")
    return time_s


def _value(said: Any, where: str) -> float:
    try:
        value = float(said)
    except (TypeError, ValueError):
        raise BadSpec(f"{where}: {said!r} is not a number") from None
    if not math.isfinite(value):
        raise BadSpec(f"{where}: {said!r} is not a number that can be used")
    return value
