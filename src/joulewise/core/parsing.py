"""JSON, TOML and compressed data of others, parsed so that whatever is wrong with them is a ValueError.

The standard library raises RecursionError for text that is nested too deeply, which is no ValueError, so that a file of
100,000 brackets would look like a fault of ours; and what is nested a little less deeply would overflow whoever walks
or prints it later. So there is one limit, far above anything that we write.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

MOST_DEPTH = 64
"""Lists and tables within each other. Slurm's answers have some ten, a profiler's events five."""
_DOTTED = re.compile(
    r"(?<![\w-])(?:(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*){%d}" % MOST_DEPTH  # noqa: UP031 - braces
)
"""The key ``a.b.c.…``: each name is a table within the last, and takes tomllib time by the square of their number."""
_TOO_DEEP = f"it is nested deeper than {MOST_DEPTH} levels"


def json_value(text: str | bytes, **how: Any) -> Any:
    """As ``json.loads``. ValueError for anything that is no JSON or nests deeper than ``MOST_DEPTH``."""
    try:
        value = json.loads(text, **how)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # Lines of a journal, of which there are many, have too few brackets to be deep.
    opening = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return _shallow(value) if opening > MOST_DEPTH else value


def json_value_at(text: str, at: int) -> tuple[Any, int]:
    """The value that begins at ``at``, and where it ends. ValueError as ``json_value``."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    deep = text.count("[", at, end) + text.count("{", at, end) > MOST_DEPTH
    return _shallow(value) if deep else value, end


def toml_tables(text: str) -> dict[str, Any]:
    """As ``tomllib.loads``. ValueError for anything that is no TOML or nests deeper than ``MOST_DEPTH``."""
    import tomllib

    if text.count(".") >= MOST_DEPTH and _DOTTED.search(text):
        raise ValueError(_TOO_DEEP)
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _shallow(tables)
    return tables


def decompressed(data: bytes, most_bytes: int) -> bytes:
    """What ``zlib.compress`` was given. ValueError where it is damaged or would be longer than ``most_bytes``."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"its compressed data are damaged ({error})") from error
    if len(content) > most_bytes:
        raise ValueError(f"its compressed data hold more than {most_bytes} bytes")
    if not stream.eof:
        raise ValueError("its compressed data are truncated")
    return content


def _shallow(value: Any) -> Any:
    """``value``, if it is. Level by level: a walk that calls itself is what this is to save others from."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    if any(isinstance(each, dict | list) for each in level):
        raise ValueError(_TOO_DEEP)
    return value


_DECODER = json.JSONDecoder()
