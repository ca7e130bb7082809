"""Frozen dataclasses of plain values as JSON and back, by their own type hints: how they travel and are kept.

``plain`` and ``built`` are inverses for dataclasses whose fields are numbers, text, enums, Settings, other such
dataclasses, tuples and mappings of them, and None. JSON has no infinite number: such a one travels as None, and comes
back as infinite where its field cannot be None. Fields that the sender does not have take their defaults, and fields
that we do not know are left out, so that server and client need not be of the same day.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.knob import Setting

T = TypeVar("T")


def plain(value: Any) -> Any:
    """``value`` as JSON has it."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def showable(value: Any) -> Any:
    """``plain(value)`` for people: bytes of a file name that are no text, which Python keeps as halves of surrogate
    pairs, are question marks. Not to be built again: what must come back as it was is sent as it is."""
    return _showable(plain(value))


def _showable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_showable(key): _showable(item) for key, item in value.items()}
    return [_showable(item) for item in value] if isinstance(value, list) else value


def built(kind: type[T], value: Any) -> T:
    """The ``kind`` that ``plain`` made ``value`` of. BadSpec where it is none."""
    try:
        return cast(T, _built(kind, value))
    except (TypeError, ValueError, KeyError, AttributeError, Unsupported) as fault:
        raise BadSpec(f"not a {kind.__name__} as it is known here ({type(fault).__name__}: {fault})") from fault


def _built(kind: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in inner if each is not type(None)]
        return None if value is None and len(rest) < len(inner) else _built(rest[0], value)
    if origin is tuple:
        each = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return tuple(_built(one, item) for one, item in zip(each, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [_built(inner[0], item) for item in value]
    if kind is Setting:
        return Setting(**value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name in value}
        return cast(Any, kind)(**{name: _built(hint, value[name]) for name, hint in fields.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return math.inf if value is None else float(value)
    return value
