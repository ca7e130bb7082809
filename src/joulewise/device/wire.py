"""What the daemon and its clients say to each other: one JSON object a line. Pure functions, no I/O.

A request is ``{"id": 7, "op": "take", …}``; its answer ``{"id": 7, "ok": {…}}`` or ``{"id": 7, "error": "LeaseTaken",
"message": "…"}``, where the error is a class of ``core/errors``. A line without an id is an event that nobody asked
for. The parser runs with root's rights on lines that anybody may write, so it is strict: known fields only, each once,
finite numbers, printable text, bounded length and depth. It knows nothing of who sent a line: identity is the
kernel's to tell, so no field here carries one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from joulewise.core import errors
from joulewise.core.errors import BadMessage, JoulewiseError, NotNow, OutOfRange, Unsupported
from joulewise.core.knob import KNOBS, Setting
from joulewise.device.wire_requests import (
    Apply,
    Beat,
    End,
    Energy,
    Gpus,
    Hello,
    Leases,
    May,
    Quiet,
    Read,
    Release,
    Request,
    Stand,
    Status,
    Take,
    Together,
)

SOCKET: Final = Path("/run/joulewise/daemon.sock")
ENVIRONMENT: Final = "JOULEWISE_SOCKET"

MOST_BYTES: Final = 65536
"""Of one line, newline and all."""
MOST_DEPTH: Final = 8
MOST_VALUES: Final = 1024
"""In one request: 256 GPUs, and commas in the texts besides. To parse a line of as many as fit would take 10 ms."""
MOST_GPUS: Final = 256
"""That one request may name; no node has more."""
MOST_TEXT: Final = 256
"""Characters of a reason or a name."""
LEAST_TTL_S: Final = 0.1
MOST_QUIET_S: Final = 600.0
"""A graph capture takes seconds, a large checkpoint minutes; who needs longer says it again."""
MOST_TOGETHER: Final = 1024

_MOST_INTEGER: Final = 2**53  # beyond it JSON numbers are not exact in every language
_KNOBS: Final = frozenset(knob.name for knob in KNOBS)
# Covers "GPU-" and "MIG-" UUIDs and the names of virtual GPUs; nothing that could be a path.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


def socket_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where clients look for the daemon."""
    return Path(environ.get(ENVIRONMENT) or SOCKET)


# ---- the strict reader ---------------------------------------------------------------------------------------------


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    obj = dict(pairs)
    if len(obj) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadMessage(f"the key {_shown(twice)} occurs twice in one object; name each once")
    return obj


def _integer(text: str) -> int:
    if len(text) > 17 or abs(value := int(text)) > _MOST_INTEGER:
        raise BadMessage(f"the integer {_shown(text)} is beyond ±2^53; use a smaller one")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadMessage(f"the number {_shown(text)} is too large to hold; use a smaller one")
    return value


def _constant(text: str) -> float:
    raise BadMessage(f"{text} is no number in JSON; leave out what is not known")


_decode: Final = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_int=_integer, parse_float=_float, parse_constant=_constant
).decode
_encode: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def parse_object(line: bytes) -> dict[str, Any]:
    """One line as an object, or BadMessage. Accepts the line with or without its newline."""
    if len(line) > MOST_BYTES:
        raise BadMessage(f"a line of {len(line)} bytes is longer than {MOST_BYTES}; send less at a time")
    if line.count(b"{") + line.count(b"[") > MOST_DEPTH:
        _check_depth(line)
    try:
        obj = _decode(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadMessage("a line is not UTF-8; write JSON in UTF-8") from None
    except ValueError as error:  # of which JSONDecodeError is one
        raise BadMessage(f"a line is not JSON ({_shown(str(error), quote=False)}); write one object a line") from None
    except RecursionError:  # cannot happen below MOST_DEPTH; kept because the parser must never be what falls over
        raise BadMessage(f"a line nests deeper than {MOST_DEPTH}; no request does") from None
    if not isinstance(obj, dict):
        raise BadMessage(f"a line holds a {type(obj).__name__} where an object belongs; write {{…}}")
    return obj


def _check_depth(line: bytes) -> None:
    """BadMessage if brackets outside of strings nest too deep."""
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(line):
        first = match.group()[0]
        if first in b"{[":
            depth += 1
            if depth > MOST_DEPTH:
                raise BadMessage(f"a line nests deeper than {MOST_DEPTH}; no request does")
        elif first in b"}]":
            depth -= 1


# Possessive: a quote that is never closed must not be tried again from every place inside it.
_STRING_OR_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def parse_request(line: bytes) -> Request:
    """One line as a request. Raises as ``parse_asked`` and ``to_request`` do."""
    return to_request(parse_asked(line))


def parse_asked(line: bytes) -> dict[str, Any]:
    """As ``parse_object``, for what may be a request: one that holds more than any does is not even read."""
    if line.count(b",") >= MOST_VALUES:
        raise BadMessage(f"a line holds {line.count(b',')} commas, {MOST_VALUES} are too many; no request is so long")
    return parse_object(line)


def to_request(obj: dict[str, Any]) -> Request:
    """The request that ``obj`` is, which it takes apart. BadMessage for what breaks the protocol, Unsupported for a
    knob that does not exist, OutOfRange for a number that can never be right."""
    number = request_id(obj)
    if number is None:
        raise BadMessage("a request has no 'id' that is a whole number from 0 on; give each its own")
    del obj["id"]
    op = obj.pop("op", None)
    reader = _REQUESTS.get(op) if isinstance(op, str) else None
    if reader is None:
        raise BadMessage(f"no op is called {_shown(op)}; ops are {', '.join(_REQUESTS)}")
    kind, names, required = reader
    values: dict[str, Any] = {}
    for name, value in obj.items():
        read = names.get(name)
        if read is None:
            raise BadMessage(f"{op} has no field {_shown(name)}; it has {', '.join(names) or 'none'}")
        values[name] = read(name, value)
    missing = required - values.keys()
    if missing:
        raise BadMessage(f"{op} lacks {', '.join(sorted(missing))}; see the protocol in docs/control.md")
    request: Request = kind(number, **values)
    return request


def request_id(obj: Mapping[str, Any]) -> int | None:
    """The id of what may be no good request, where it can be told, so that its error finds its asker."""
    number = obj.get("id")
    return number if type(number) is int and number >= 0 else None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise BadMessage(f"{name} is no text of at most {MOST_TEXT} characters; shorten it")
    if not value.isprintable():  # it is shown to other users in their terminals; lone surrogates are not printable
        raise BadMessage(f"{name} holds characters that do not print; leave them out")
    return value


def _name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise BadMessage(f"{name} {_shown(value)} is no name; names are letters, digits and _.:- only")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float):
        raise BadMessage(f"{name} {_shown(value)} is no number; write it plainly")
    return float(value)


def _gpus(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_GPUS:
        raise BadMessage(f"{name} is no list of 1 to {MOST_GPUS} GPU names; write their UUIDs")
    gpus = tuple(_name("gpu", each) for each in value)
    if len(set(gpus)) < len(gpus):
        raise BadMessage(f"{name} names a GPU twice; name each once")
    return gpus


def _knob(value: Any) -> str:
    if not isinstance(value, str) or value not in _KNOBS:
        raise Unsupported(f"no knob is called {_shown(value)}; knobs are {', '.join(sorted(_KNOBS))}")
    return value


def _knobs(name: str, value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not value:
        raise BadMessage(f"{name} is no list of knobs; knobs are {', '.join(sorted(_KNOBS))}")
    knobs = frozenset(_knob(each) for each in value)
    if len(knobs) < len(value):
        raise BadMessage(f"{name} names a knob twice; name each once")
    return knobs


def _value(knob: str, value: Any) -> float:
    number = _number(knob, value)
    if number <= 0:
        raise OutOfRange(f"{knob}={number:g} is not above 0; see 'joulewise doctor' for what this GPU allows")
    return number


def _setting(name: str, value: Any) -> Setting:
    if not isinstance(value, dict):
        raise BadMessage(f"{name} is no object of knobs and values; write {{}} for none")
    return Setting(**{_knob(knob): _value(knob, each) for knob, each in value.items()})


def _standing(name: str, value: Any) -> dict[str, float | None]:
    if not isinstance(value, dict) or not value:
        raise BadMessage(f"{name} is no object of knobs and values; null ends one")
    return {_knob(knob): None if each is None else _value(knob, each) for knob, each in value.items()}


def _ttl(name: str, value: Any) -> float:
    ttl_s = _number(name, value)
    if ttl_s < LEAST_TTL_S:
        raise OutOfRange(f"{name}={ttl_s:g} is below {LEAST_TTL_S:g} s; nobody can say so often that they live")
    return ttl_s


def _quiet(name: str, value: Any) -> float:
    for_s = _number(name, value)
    if not 0 <= for_s <= MOST_QUIET_S:
        raise OutOfRange(f"{name}={for_s:g} is outside 0–{MOST_QUIET_S:g} s; say it again before it ends")
    return for_s


def _together(name: str, value: Any) -> Together:
    if not isinstance(value, dict) or value.keys() != {"name", "size"}:
        raise BadMessage(f'{name} is not of the form {{"name": …, "size": …}}')
    size = value["size"]
    if type(size) is not int or not 1 <= size <= MOST_TOGETHER:
        raise OutOfRange(f"{name} has no size from 1 to {MOST_TOGETHER}: {_shown(size)}")
    return Together(_name("name", value["name"]), size)


_Reader: TypeAlias = Callable[[str, Any], Any]
_FIELDS: Final[Mapping[str, _Reader]] = {
    "after": _name,
    "gpu": _name,
    "gpus": _gpus,
    "knobs": _knobs,
    "ttl_s": _ttl,
    "reason": _text,
    "together": _together,
    "lease": _name,
    "setting": _setting,
    "for_s": _quiet,
}


def _reader(kind: type[Any]) -> tuple[type[Any], Mapping[str, _Reader], frozenset[str]]:
    """An op's class, how to read each of its fields, and those it cannot do without."""
    own = fields(kind)[1:]
    readers = {**_FIELDS, "setting": _standing} if kind is Stand else _FIELDS
    return kind, {each.name: readers[each.name] for each in own}, frozenset(e.name for e in own if e.default is MISSING)


_REQUESTS: Final = {
    kind.__name__.lower(): _reader(kind)
    for kind in (Hello, Gpus, Read, Energy, Take, Apply, Beat, Release, Quiet, Leases, May, End, Stand, Status)
}


# ---- answers -------------------------------------------------------------------------------------------------------


def line(obj: Mapping[str, Any]) -> bytes:
    """Any message as the bytes that travel."""
    return _encode(obj).encode("ascii") + b"\n"


def encoded(obj: Mapping[str, Any]) -> bytes:
    """An object as part of a message, for what goes into many: it is then encoded once."""
    return _encode(obj).encode("ascii")


def answer(number: int, ok: Mapping[str, Any] | bytes) -> bytes:
    """The answer to request ``number``, where ``ok`` may be ``encoded`` already. One that would be too long is
    answered as an error instead."""
    said = b'{"id":%d,"ok":%b}\n' % (number, ok if isinstance(ok, bytes) else encoded(ok))
    if len(said) <= MOST_BYTES:
        return said
    return error_line(number, BadMessage(f"the answer has {len(said)} bytes, {MOST_BYTES} are allowed; ask for less"))


def error_line(number: int | None, error: Exception) -> bytes:
    """``error`` as the answer to request ``number``; what is not ours to raise travels as JoulewiseError."""
    kind = type(error).__name__ if isinstance(error, JoulewiseError) else JoulewiseError.__name__
    said: dict[str, Any] = {"id": number, "error": kind, "message": str(error)[:1024]}
    if isinstance(error, NotNow):
        said["retry_s"] = round(error.retry_s, 3)
    return line(said)


def raise_error(obj: Mapping[str, Any]) -> None:
    """Raise what an answer says went wrong, as the class that it was; nothing if it is no error."""
    if "error" not in obj:
        return
    kind = getattr(errors, str(obj["error"]), JoulewiseError)
    if not (isinstance(kind, type) and issubclass(kind, JoulewiseError)):
        kind = JoulewiseError
    message = str(obj.get("message", ""))
    if issubclass(kind, NotNow):
        raise kind(message, float(obj.get("retry_s", 1.0)))
    raise kind(message)


def _shown(value: Any, *, quote: bool = True) -> str:
    """What somebody sent, short and printable enough for an error message."""
    text = repr(value) if quote else value
    return text if len(text) <= 60 else text[:57] + "…"
