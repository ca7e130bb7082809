"""What the server answers, described: a model for each dataclass that ``plain`` sends, made out of it.

So the description cannot say otherwise than the code. Numbers that a dataclass may hold as infinite are None in JSON.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache, reduce
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from joulewise.core.event import Asked
from joulewise.core.knob import Setting
from joulewise.core.plain import plain
from joulewise.core.series import Platform, Purpose, Recurring
from joulewise.serve.messages import History, Limit, Names, Points, RunPoint, Series
from joulewise.tune.desk import Standing

_PLATFORM = Platform("NVIDIA H200", 1, 700.0)
_EXAMPLES = (
    Recurring("nightly", (8, 16, 32, 64), 32, 10, "val_acc>=0.84"),
    Asked(1.8e9, 7, "2026-11-15", 64, _PLATFORM, Purpose.EXPLORE, "perhaps better", 1.8e9 + 600, "node7:4242", "6f1c"),
    Standing(8, True),
    Limit(8),
    Names(("nightly", "weekly")),
    Points(_PLATFORM, (RunPoint(64, Setting(sm_mhz=1410), 840.0, 402_000.0, 21.0, 9_800.0),)),
)


@cache
def model_of(kind: type) -> type[BaseModel]:
    """The model of a dataclass: as ``plain`` makes it."""
    examples = [plain(each) for each in _EXAMPLES if type(each) is kind]
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {field.name: (_json_type(hints[field.name]), ...) for field in dataclasses.fields(kind)}
    made: type[BaseModel] = create_model(
        kind.__name__,
        __config__=ConfigDict(extra="forbid", json_schema_extra={"examples": examples} if examples else None),
        __doc__=_first_line(kind),
        **fields,
    )
    return made


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


def _json_type(hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return reduce(lambda one, other: one | other, [_json_type(each) for each in inner])
    if origin is tuple and inner[1:] != (...,):
        return list[Any]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return types.GenericAlias(list, (_json_type(inner[0]),))
    if hint is Setting:
        return dict[str, float]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, Any]
    if dataclasses.is_dataclass(hint):
        return model_of(typing.cast(type, hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return typing.Literal[tuple(each.value for each in hint)]
    return float | None if hint is float else hint


NamesAnswer, JobAnswer, AskAnswer = map(model_of, (Names, Recurring, Asked))
StandingAnswer, LimitAnswer = map(model_of, (Standing, Limit))
SeriesAnswer, HistoryAnswer, FrontierAnswer = map(model_of, (Series, History, Points))
