"""Somebody's JSON, read field by field: what is missing, of another kind or unknown is refused by its name and place.

Plans and profiles travel between machines and people. They are data: nothing in them is ever evaluated, and nothing is
believed before it has been looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.knob import KNOBS, Setting
from joulewise.core.parsing import json_value
from joulewise.plan.execution import Launch


class Fields:
    """One JSON object, at ``place`` of its file. Every way to read a field raises BadSpec where it is not that."""

    def __init__(self, value: Any, place: str) -> None:
        self.place = place
        if not isinstance(value, dict):
            raise BadSpec(f"{place} is {_kind(value)}, not an object")
        self.values = value

    def only(self, *names: str) -> Fields:
        """This object, if it has no other fields than these."""
        if unknown := sorted(set(self.values) - set(names)):
            raise BadSpec(f"{self.place} has an unknown field {unknown[0][:40]!r}; it may have {', '.join(names)}")
        return self

    def has(self, name: str) -> bool:
        """Whether it is there, and not null."""
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        """A text of at most 500 characters."""
        value = self._get(name)
        if not isinstance(value, str) or len(value) > 500:
            raise BadSpec(f"{self.place}: {name} is {_kind(value)}, not a short text")
        return value

    def number(self, name: str, *, least: float | None = None, otherwise: float | None = None) -> float:
        """A finite number: above 0, or ``least`` or more."""
        if otherwise is not None and name not in self.values:
            return otherwise
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise BadSpec(f"{self.place}: {name} is {_kind(value)}, not a number")
        if not (value > 0 if least is None else value >= least):
            raise BadSpec(
                f"{self.place}: {name} is {value:g}; it must be {'above 0' if least is None else 'at least'}"
                f"{'' if least is None else f' {least:g}'}"
            )
        return float(value)

    def whole(self, name: str, *, least: int = 0) -> int:
        """A whole number, ``least`` or more."""
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
            raise BadSpec(f"{self.place}: {name} is {_kind(value)}, not a whole number of {least} or more")
        return value

    def one(self, name: str) -> Fields:
        """An object within."""
        return Fields(self._get(name), f"{self.place}, {name}")

    def several(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(value, f"{self.place}, {name}[{at}]") for at, value in enumerate(self.items(name))]

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self._get(name)
        if not isinstance(value, list):
            raise BadSpec(f"{self.place}: {name} is {_kind(value)}, not a list")
        return value

    def setting(self, name: str) -> Setting:
        """A setting: knob → number above 0."""
        knobs = self.one(name).only(*(knob.name for knob in KNOBS))
        return Setting(**{knob.name: knobs.number(knob.name) for knob in KNOBS if knobs.has(knob.name)})

    def launches(self, name: str) -> tuple[Launch, ...]:
        """Launches: part, slot and SMs of each."""
        rows = [row.only("part", "slot", "sms") for row in self.several(name)]
        return tuple(Launch(row.text("part"), row.text("slot"), row.whole("sms", least=1)) for row in rows)

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise BadSpec(f"{self.place} has no {name}; is it cut short, or something else?")
        return self.values[name]


def read(path: Path, *, format: str, versions: Sequence[int]) -> Fields:
    """The fields of a file that says of itself to be of this format, in one of these versions.

    BadSpec, with the file's name.
    """
    try:
        value = json_value(input_files.read_text(path))
    except ValueError as problem:
        raise BadSpec(f"{path} is no {_word(format)}: it is not JSON, or cut short ({_short(problem)})") from None
    return known(value, f"{path}", format=format, versions=versions)


def known(value: Any, place: str, *, format: str, versions: Sequence[int]) -> Fields:
    """The same for what has been read already."""
    if not isinstance(value, dict) or value.get("format") != format:
        raise BadSpec(f"{place} is no {_word(format)}: its format is not {format!r}")
    if type(value.get("version")) is not int or value["version"] not in versions:
        raise BadSpec(
            f"{place} is a {_word(format)} of version {str(value.get('version'))[:20]}, and this joulewise reads "
            f"{' and '.join(map(str, versions))}; make it anew, or use the joulewise that wrote it"
        )
    return Fields(value, place)


def _word(format: str) -> str:
    return format.removeprefix("joulewise-")


def _kind(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:40]
    return "a list" if isinstance(value, list) else "an object"


def _short(problem: Exception) -> str:
    return str(problem)[:100]
