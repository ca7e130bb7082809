"""Columns of numbers as few bytes: how a block of readings is kept in one row.

Each column is whole numbers of its own small unit (``UNITS``), so that what the sensor cannot tell is not kept. The
bytes of equal weight of all numbers of a column lie side by side, since the high ones hardly change, and zlib does the
rest: some 3 bytes a reading of seven values. A column that nobody knows costs next to nothing. Damage is noticed
(zlib carries a checksum), never read as numbers. Pure; no database.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

from joulewise.core.errors import BadSpec

Column = Sequence[float | None]

UNITS: Final[Mapping[str, float]] = {
    "time_s": 0.001,
    "power_w": 0.01,
    "low_w": 0.01,
    "high_w": 0.01,
    "limit_w": 0.01,
    "sm_mhz": 0.1,
    "memory_mhz": 0.1,
    "temperature_c": 0.1,
    "utilization": 0.0001,
}
"""The smallest difference that is kept, by the name of the column."""
LONGEST_S: Final = 1e6
"""A block spans no more: its times are kept as four bytes."""

_FORMAT: Final = 1
_HEAD: Final = struct.Struct("<BI")  # format, rows
_UNKNOWN: Final = -(2**31)
_MOST: Final = 2**31 - 1
_BYTES: Final = 4


def packed(columns: Mapping[str, Column]) -> bytes:
    """All columns, which are equally long, in the order of their names in ``columns``. None and NaN are unknown."""
    rows = len(next(iter(columns.values()), ()))
    parts = []
    for name, column in columns.items():
        unit = UNITS[name]
        numbers = array("i", [_number(value, unit) for value in column])
        if sys.byteorder != "little":
            numbers.byteswap()
        raw = numbers.tobytes()
        parts += [raw[place::_BYTES] for place in range(_BYTES)]
    return _HEAD.pack(_FORMAT, rows) + zlib.compress(b"".join(parts), 6)


def unpacked(data: bytes, names: Sequence[str]) -> dict[str, list[float | None]]:
    """What ``packed`` was given, to within half a unit. BadSpec for anything else, damaged bytes among it."""
    try:
        form, rows = _HEAD.unpack_from(data)
        if form != _FORMAT:
            raise BadSpec(f"a block of readings is of format {form}, known here is {_FORMAT}; update joulewise")
        size = rows * _BYTES
        wanted = size * len(names)
        # Never more than is expected: a few damaged bytes may claim to be gigabytes.
        stream = zlib.decompressobj()
        raw = stream.decompress(data[_HEAD.size :], wanted + 1)
    except (struct.error, zlib.error) as error:
        raise BadSpec(f"a block of readings is damaged ({error}); what is before and after it can be read") from error
    if len(raw) != wanted or not stream.eof:  # without its end the checksum was not looked at
        raise BadSpec(f"a block of readings is damaged ({len(raw)} bytes, not {wanted}); the others can be read")
    columns = {}
    for place, name in enumerate(names):
        woven = bytearray(size)
        for byte in range(_BYTES):
            start = place * size + byte * rows
            woven[byte::_BYTES] = raw[start : start + rows]
        numbers = array("i", bytes(woven))
        if sys.byteorder != "little":
            numbers.byteswap()
        unit = UNITS[name]
        columns[name] = [None if number == _UNKNOWN else number * unit for number in numbers]
    return columns


def _number(value: float | None, unit: float) -> int:
    if value is None or value != value:
        return _UNKNOWN
    return max(1 - _MOST, min(_MOST, round(value / unit))) if abs(value) < _MOST else _MOST
