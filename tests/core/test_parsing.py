import json
import zlib

import pytest

from joulewise.core.parsing import MOST_DEPTH, decompressed, json_value, json_value_at, toml_tables

DEPTHS = (MOST_DEPTH + 1, 500, 900, 990, 100_000)
"""Also those that the interpreter's own reader takes, and whoever walks or prints the value later does not."""


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("before", "inner", "after"), [("[", "", "]"), ('{"a":', "1", "}"), ('[{"a":', "1", "}]")])
@pytest.mark.parametrize("kind", [str, bytes])
def test_json_that_nests_too_deeply_is_a_value_error(before, inner, after, depth, kind):
    text = before * depth + inner + after * depth
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        json_value(text if kind is str else text.encode())
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        json_value_at(" " + text, 1)


@pytest.mark.parametrize("before", ["[", '{"a":'])
def test_depth_without_an_end_is_a_value_error_too(before):
    for depth in DEPTHS:
        with pytest.raises(ValueError):  # noqa: PT011 - that it is one is the point
            json_value(before * depth)


def test_what_is_as_deep_as_it_may_be_is_read_and_brackets_in_text_are_no_depth():
    deep = "[" * MOST_DEPTH + "1" + "]" * MOST_DEPTH
    assert json_value(deep) == json.loads(deep)
    assert json_value(json.dumps(["[" * 1000])) == ["[" * 1000]
    assert json_value(json.dumps([[n] for n in range(1000)])) == [[n] for n in range(1000)]


TOML = {
    "lists": "a = " + "[" * 100_000,
    "tables": "a = " + "{b = " * 100_000,
    "a dotted key": ".".join("a" * 100_000) + " = 1",
    "quoted keys": " . ".join(['"a"'] * 100_000) + " = 1",
    "a table's name": "[" + ".".join("a" * 900) + "]",
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_toml_that_nests_too_deeply_is_a_value_error(text):
    with pytest.raises(ValueError, match="nested deeper than 64 levels"):
        toml_tables(text)


def test_toml_with_many_points_that_are_no_depth_is_read():
    numbers = ", ".join(f"{n}.5" for n in range(1000))
    assert toml_tables(f"a.b = [{numbers}]")["a"]["b"][999] == 999.5


def test_compressed_data_are_read_up_to_a_limit():
    packed = zlib.compress(bytes(1 << 26))
    assert decompressed(zlib.compress(b"abc"), 3) == b"abc"
    for data, why in ((packed, "more than 1000 bytes"), (packed[:50], "truncated|more"), (b"no", "damaged")):
        with pytest.raises(ValueError, match=why):
            decompressed(data, 1000)
