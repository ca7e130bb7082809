"""Power and clocks of runs over time, kept in blocks, so that a plot of any run costs the same.

A block is one row of many samples, packed (``packed``). Beside them it has its own sums, and in between a coarse form
of some 32 points, so that a plot reads samples of a short stretch, coarse points of a longer one, and sums of months.
The last block of a GPU is written again as it grows; a writer that is killed loses what it had not written, nothing
else. A block that is damaged is left out, and counted.

Not a measurement: joules come from the monitor, never from here.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from joulewise.core.errors import BadSpec, NotKept
from joulewise.store.packed import LONGEST_S, packed, unpacked
from joulewise.store.tables import Tables

BLOCK: Final = 1024
"""Samples in a block: 17 minutes at one a second."""
COARSE: Final = 32
"""Points of its coarse form."""
_FEW_BLOCKS: Final = 24
"""So many are unpacked for one plot; beyond them their coarse points are."""
_GAP_S: Final = 30.0
"""Samples are a second apart, or ten at most: beyond this nothing was read, and a line must not be drawn across."""
_OPEN: Final = 256  # last blocks that a writer has in mind
_TRIES: Final = 5

_QUANTITIES: Final = ("sm_mhz", "memory_mhz", "temperature_c", "utilization", "limit_w")
_DETAIL: Final = ("time_s", "power_w", *_QUANTITIES)
_COARSE: Final = ("time_s", "power_w", "low_w", "high_w", *_QUANTITIES)

_OF: Final = "stream = :stream AND gpu_uuid = :gpu_uuid"
_BETWEEN: Final = f"{_OF} AND last_s >= :from_s AND first_s <= :to_s"
_LAST: Final = f"SELECT number, first_s, samples, detail FROM readings WHERE {_OF} ORDER BY number DESC LIMIT 1"
_SAVED: Final = (
    "at",
    "first_s",
    "last_s",
    "samples",
    "powered",
    "power_w",
    "low_w",
    "high_w",
    *_QUANTITIES,
    "coarse",
    "detail",
)
_SAVE: Final = (
    f"INSERT INTO readings (stream, gpu_uuid, number, {', '.join(_SAVED)}) "
    f"VALUES (:stream, :gpu_uuid, :number, {', '.join(':' + name for name in _SAVED)}) "
    "ON CONFLICT (stream, gpu_uuid, number) DO UPDATE "
    f"SET {', '.join(f'{name} = excluded.{name}' for name in _SAVED)} "
    # Only if nobody has written to it since we read it.
    "WHERE readings.samples = :known"
)
_SPAN: Final = f"SELECT COUNT(*), MIN(first_s), MAX(last_s), MIN(number) FROM readings WHERE {_BETWEEN}"
_BLOCKS: Final = f"""
SELECT number, first_s, {{form}} FROM readings WHERE {_BETWEEN} AND number >= :number ORDER BY number LIMIT :most
"""
_AT_ONCE: Final = {"detail": 8, "coarse": 128}
"""Blocks fetched together, some 30 kB: a plot's worth of them at once would be megabytes."""
_MEANS: Final = ", ".join(
    f"SUM({name} * samples) / NULLIF(SUM(CASE WHEN {name} IS NULL THEN 0 ELSE samples END), 0)"
    for name in ("sm_mhz", "memory_mhz", "temperature_c", "utilization")
)
_SUMS: Final = f"""
SELECT MIN(first_s), MAX(last_s), SUM(power_w * powered) / NULLIF(SUM(powered), 0), MIN(low_w), MAX(high_w),
    {_MEANS}, MAX(limit_w)
FROM readings WHERE {_BETWEEN} GROUP BY (number - :least) / :step ORDER BY MIN(first_s)
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU over about a second. What is not known is None."""

    at_s: float
    """In seconds since 1970."""
    power_w: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    utilization: float | None = None
    """0 to 1."""
    limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One GPU over time, as a plot needs it: equally long lists. A point of None alone: nothing was read there."""

    time_s: list[float] = field(default_factory=list)
    """In seconds since 1970, the middle of what a point is the mean of."""
    power_w: list[float | None] = field(default_factory=list)
    low_w: list[float | None] = field(default_factory=list)
    high_w: list[float | None] = field(default_factory=list)
    sm_mhz: list[float | None] = field(default_factory=list)
    memory_mhz: list[float | None] = field(default_factory=list)
    temperature_c: list[float | None] = field(default_factory=list)
    utilization: list[float | None] = field(default_factory=list)
    limit_w: list[float | None] = field(default_factory=list)
    damaged: int = 0
    """Blocks that could not be read and are left out."""


_SHOWN: Final = tuple(each.name for each in fields(Curve))[1:-1]


class Readings:
    """The readings of a database. Safe with several threads and processes."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._last: OrderedDict[tuple[str, str], _Block] = OrderedDict()

    def write(self, stream: str, gpu_uuid: str, rows: Sequence[Sample]) -> None:
        """Keep ``rows``, in order of time. What is not later than all that is kept of this GPU is left out, so that
        writing again what may have been written does no harm. NotKept when it cannot be done: try again later."""
        key = (stream, gpu_uuid)
        waiting = list(rows)
        for _ in range(_TRIES):
            last = self._last.pop(key, None) or self._load(stream, gpu_uuid)
            blocks = list(_filled(last, waiting))
            if not blocks:
                return
            if all(self._save(stream, gpu_uuid, block) for block in blocks):
                self._last[key] = blocks[-1]
                while len(self._last) > _OPEN:
                    self._last.popitem(last=False)
                return
        raise NotKept(f"{self._tables.name}: another process writes readings of {stream}, too; stop one of them")

    def read(
        self,
        stream: str,
        gpu_uuid: str,
        from_s: float | None = None,
        to_s: float | None = None,
        most_points: int = 600,
    ) -> Curve:
        """The stretch from ``from_s`` to ``to_s`` (seconds since 1970; None: all of it) in at most ``most_points``
        points; cost and memory do not grow with the run's length. NotKept when the database cannot be read."""
        least, most = -math.inf if from_s is None else from_s, math.inf if to_s is None else to_s
        # No infinity in SQL: engines write it differently.
        span = {"stream": stream, "gpu_uuid": gpu_uuid, "from_s": max(least, -1e300), "to_s": min(most, 1e300)}
        rows = self._tables.select(_SPAN, span)
        blocks, first_s, last_s, number = rows[0] if rows else (0, None, None, None)
        if not blocks or most_points < 1:
            return Curve()
        if blocks > most_points:
            return self._sums({**span, "least": number, "step": math.ceil(blocks / most_points)})
        bins = _Bins(max(first_s, least), min(last_s, most), most_points)
        form = "detail" if blocks <= _FEW_BLOCKS else "coarse"
        damaged = 0
        for begun_s, data in self._blocks(form, {**span, "number": number}):
            try:
                columns = unpacked(data, _DETAIL if form == "detail" else _COARSE)
            except BadSpec:
                damaged += 1
                continue
            bins.add(begun_s, columns, least, most)
        return bins.curve(damaged)

    def samples(self, stream: str, gpu_uuid: str) -> Iterator[Sample]:
        """All that is kept of a GPU as it was written, in order of time. BadSpec for a block that is damaged: whoever
        checks a claim against readings must not pass over some. NotKept when the database cannot be read."""
        span = {"stream": stream, "gpu_uuid": gpu_uuid, "from_s": -1e300, "to_s": 1e300, "number": 0}
        for begun_s, data in self._blocks("detail", span):
            yield from _samples(begun_s, data)

    def gpus(self, stream: str) -> list[str]:
        """The UUIDs of the GPUs of which there are readings, in order."""
        query = "SELECT DISTINCT gpu_uuid FROM readings WHERE stream = :stream"
        return sorted(uuid for (uuid,) in self._tables.select(query, {"stream": stream}))

    def written_s(self, stream: str) -> float | None:
        """When something was last written of this stream, in seconds since 1970: a sign of life. None if never."""
        rows = self._tables.select("SELECT MAX(at) FROM readings WHERE stream = :stream", {"stream": stream})
        return rows[0][0] if rows else None

    def forget(self, stream: str) -> int:
        """Delete all of a stream; how many blocks there were."""
        for key in [key for key in self._last if key[0] == stream]:
            self._last.pop(key, None)
        return self._tables.change("DELETE FROM readings WHERE stream = :stream", {"stream": stream})

    def _blocks(self, form: str, span: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        """When each block begins, and its bytes; a few at a time."""
        most = _AT_ONCE[form]
        while rows := self._tables.select(_BLOCKS.format(form=form), {**span, "most": most}):
            for number, first_s, data in rows:
                span["number"] = number + 1
                yield first_s, bytes(data)
            if len(rows) < most:
                return

    def _load(self, stream: str, gpu_uuid: str) -> _Block | None:
        """The last block, to be gone on with; one that is damaged is left as it is, and the next is begun."""
        rows = self._tables.select(_LAST, {"stream": stream, "gpu_uuid": gpu_uuid})
        for number, first_s, samples, data in rows:
            try:
                kept = _samples(first_s, bytes(data))
            except BadSpec:
                return _Block(number + 1, 0, [])
            return _Block(number, samples, kept)
        return None

    def _save(self, stream: str, gpu_uuid: str, block: _Block) -> bool:
        """Whether it was written; not if somebody else has written there."""
        values = {"stream": stream, "gpu_uuid": gpu_uuid, "number": block.number, "at": time.time()}
        saved = self._tables.change(_SAVE, {**values, **_row(block.rows), "known": block.known}) == 1
        block.known = len(block.rows)
        return saved

    def _sums(self, span: dict[str, Any]) -> Curve:
        curve = Curve()
        before_s = math.inf
        for first_s, last_s, *values in self._tables.select(_SUMS, span):
            if first_s - before_s > max(_GAP_S, 3 * (last_s - first_s)):
                _put(curve, (before_s + first_s) / 2, [None] * len(_SHOWN))
            _put(curve, (first_s + last_s) / 2, values)
            before_s = last_s
        return curve


@dataclass(slots=True)
class _Block:
    """One block in its writer's mind."""

    number: int
    known: int
    """How many samples its row has in the database; 0: there is no row."""
    rows: list[Sample]


def _samples(first_s: float, detail: bytes) -> list[Sample]:
    """The samples of a block that begins at ``first_s``."""
    columns = unpacked(detail, _DETAIL)
    times = [first_s + (offset or 0.0) for offset in columns.pop("time_s")]
    return [Sample(at_s, *values) for at_s, *values in zip(times, *columns.values(), strict=True)]


def _filled(last: _Block | None, rows: Iterable[Sample]) -> Iterator[_Block]:
    """The blocks to be written once ``rows`` follow on ``last``."""
    block = last or _Block(0, 0, [])
    latest_s = block.rows[-1].at_s if block.rows else -math.inf
    changed = False
    for row in rows:
        if not latest_s + 0.001 <= row.at_s < math.inf:
            continue
        if len(block.rows) >= BLOCK or (block.rows and row.at_s - block.rows[0].at_s > LONGEST_S):
            if changed:
                yield block
            block = _Block(block.number + 1, 0, [])
        block.rows.append(row)
        latest_s, changed = row.at_s, True
    if changed:
        yield block


def _row(rows: Sequence[Sample]) -> dict[str, Any]:
    """A block's sums and its two forms, by column."""
    first_s = rows[0].at_s
    known_w = _known(row.power_w for row in rows)
    detail: dict[str, list[float | None]] = {"time_s": [row.at_s - first_s for row in rows]}
    detail |= {name: [getattr(row, name) for row in rows] for name in _DETAIL[1:]}
    bins = _Bins(first_s, rows[-1].at_s, COARSE)
    bins.add(first_s, detail, -math.inf, math.inf)
    coarse = bins.curve(0, gaps=False)
    return {
        "first_s": first_s,
        "last_s": rows[-1].at_s,
        "samples": len(rows),
        "powered": len(known_w),
        "power_w": _mean(known_w),
        "low_w": min(known_w, default=None),
        "high_w": max(known_w, default=None),
        **{name: _mean(_known(detail[name])) for name in _QUANTITIES[:-1]},
        "limit_w": next(iter(reversed(_known(detail["limit_w"]))), None),
        "coarse": packed(
            {"time_s": [at_s - first_s for at_s in coarse.time_s]} | {name: getattr(coarse, name) for name in _SHOWN}
        ),
        "detail": packed(detail),
    }


class _Bins:
    """Means, lows and highs over equal stretches of time; what was fewer than the bins stays as it was."""

    def __init__(self, from_s: float, to_s: float, most: int) -> None:
        self._from_s, self._most = from_s, most
        self._width_s = max((to_s - from_s) / most, 1e-9)
        self._sums: dict[int, list[list[float]]] = {}

    def add(self, begun_s: float, columns: dict[str, list[float | None]], least_s: float, most_s: float) -> None:
        """Take in columns whose times count from ``begun_s``, as far as they are within."""
        power = columns["power_w"]
        low, high = columns.get("low_w", power), columns.get("high_w", power)
        others = [columns[name] for name in _QUANTITIES]
        for offset_s, *values in zip(columns["time_s"], power, low, high, *others, strict=True):
            at_s = begun_s + (offset_s or 0.0)
            if not least_s <= at_s <= most_s:
                continue
            place = min(self._most - 1, max(0, int((at_s - self._from_s) / self._width_s)))
            sums = self._sums.get(place)
            if sums is None:
                sums = self._sums[place] = [[0.0, 0], *([0.0, 0] for _ in values)]
            _count(sums[0], at_s - self._from_s)
            for place, value in enumerate(values, start=1):
                if value is None:
                    continue
                if place == 2:
                    sums[2] = [min(value, sums[2][0]) if sums[2][1] else value, 1]
                elif place == 3:
                    sums[3] = [max(value, sums[3][0]) if sums[3][1] else value, 1]
                else:
                    _count(sums[place], value)

    def curve(self, damaged: int, *, gaps: bool = True) -> Curve:
        """What was taken in, with a point of None in every gap if ``gaps``."""
        curve = Curve(damaged=damaged)
        before_s = math.inf
        for place in sorted(self._sums):
            (time_s, times), *values = self._sums[place]
            at_s = self._from_s + time_s / times
            if gaps and at_s - before_s > max(_GAP_S, 3 * self._width_s):
                _put(curve, (before_s + at_s) / 2, [None] * len(_SHOWN))
            _put(curve, at_s, [total / count if count else None for total, count in values])
            before_s = at_s
        return curve


def _count(sums: list[float], value: float) -> None:
    sums[0] += value
    sums[1] += 1


def _put(curve: Curve, at_s: float, values: Sequence[float | None]) -> None:
    curve.time_s.append(at_s)
    for name, value in zip(_SHOWN, values, strict=True):
        getattr(curve, name).append(value)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
