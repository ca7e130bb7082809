"""Columns of numbers in few bytes: they come back to within what a sensor can tell, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.store.packed import UNITS, packed, unpacked

NAMES = ("time_s", "power_w", "utilization")
values = st.none() | st.floats(-1000, 1e5, allow_nan=False)
tables = st.lists(st.tuples(values, values, values), max_size=50)


def columns(rows):
    return {name: [row[place] for row in rows] for place, name in enumerate(NAMES)}


@given(tables)
def test_what_was_packed_comes_back_to_within_half_a_unit(rows):
    back = unpacked(packed(columns(rows)), NAMES)
    for name, column in columns(rows).items():
        assert len(back[name]) == len(column)
        for was, now in zip(column, back[name], strict=True):
            assert (now is None) == (was is None)
            if was is not None:
                assert now == pytest.approx(was, abs=0.5001 * UNITS[name])


@given(tables.filter(bool), st.data())
def test_damaged_bytes_are_never_taken_for_numbers(rows, data):
    good = packed(columns(rows))
    place = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[place] ^= data.draw(st.integers(1, 255))
    try:
        back = unpacked(bytes(bad), NAMES)
    except BadSpec:
        return
    assert back == unpacked(good, NAMES)  # a byte that says how hard zlib tried says nothing of what it packed


@pytest.mark.parametrize("bad", [b"", b"\x01", b"\x02" + bytes(20), b"\x01\xff\xff\xff\xff" + b"x" * 50])
def test_anything_else_is_refused(bad):
    with pytest.raises(BadSpec, match="block of readings"):
        unpacked(bad, NAMES)


def test_a_cut_block_is_refused_wherever_it_is_cut():
    good = packed(columns([(float(n), 300.0 + n % 7, None) for n in range(100)]))
    for length in range(len(good)):
        with pytest.raises(BadSpec):
            unpacked(good[:length], NAMES)


def test_what_is_not_a_number_is_unknown_and_what_is_too_large_is_as_large_as_can_be():
    packing = packed({"power_w": [float("nan"), float("inf"), -float("inf"), 1e30]})
    nan, *large = unpacked(packing, ["power_w"])["power_w"]
    assert nan is None
    assert all(value is not None and abs(value) > 1e7 for value in large)
