"""Which orders make sense: one strict check for all who take one in, be it typed, sent, or read from a Slurm comment.

The bounds are far outside of what happens and far inside of what arithmetic can stand. An order is its user's to write,
so each field's type is looked at too: what passes here can be scheduled, kept and shown without a second look.
What it is not: whether a cluster has such GPUs (the engine says that), or whether brought points are any (``brought``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from joulewise.cluster.engine import Order
from joulewise.core.errors import BadSpec

LONGEST_NAME = 64
NAME = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}"
"""What a job may be called, as a regular expression."""
MOST_GPUS = 100_000
MOST_WORK = 1e15
MOST_BATCH = 1_000_000_000
MOST_WEIGHT = 1e6
LATEST_S = 1e11
"""Seconds since 1970."""
LONGEST_S = 1e9
LONGEST_TEXT = 200
LONGEST_PATH = 4096
LONGEST_WORD = 10_000
MOST_WORDS = 1000
_DEEPEST = 8  # of brought values: they are four deep
_MOST_BROUGHT = 200_000  # values in all
_LEAST = 1e-9


def check(order: Order) -> None:
    """BadSpec, naming field, value and limit, for an order that no cluster can have. An empty command passes: it may
    be where only the job's user can read it."""
    if not isinstance(order.name, str) or not re.fullmatch(NAME, order.name):
        raise BadSpec(
            f"job name {_short(order.name)} is not of letters, digits, '.', '_', '-' ({LONGEST_NAME} at most, a letter "
            "or digit first); rename it"
        )
    whole = {
        "gpus": (order.gpus, MOST_GPUS, False),
        "least_gpus": (order.least_gpus, MOST_GPUS, False),
        "most_gpus": (order.most_gpus, MOST_GPUS, True),
        "batch": (order.batch, MOST_BATCH, True),
    }
    for field, (count, most, may_lack) in whole.items():
        # JSON's true is an int to Python, hence type() and not isinstance().
        if not (count is None and may_lack) and not (type(count) is int and 1 <= count <= most):
            raise _wrong(order, field, count, f"a whole number from 1 to {most}")
    numbers = {
        "submitted_s": (order.submitted_s, 0.0, LATEST_S, False),
        "deadline_s": (order.deadline_s, 0.0, LATEST_S, True),
        "work": (order.work, _LEAST, MOST_WORK, True),
        "weight": (order.weight, _LEAST, MOST_WEIGHT, False),
        "limit_s": (order.limit_s, _LEAST, LONGEST_S, True),
    }
    for field, (number, least, highest, may_lack) in numbers.items():
        if not (number is None and may_lack) and not (type(number) in (int, float) and least <= number <= highest):  # type: ignore[operator]
            raise _wrong(order, field, number, f"a number from {least:g} to {highest:g}")
    for field, text, longest in (
        ("workload", order.workload, LONGEST_TEXT),
        ("tenant", order.tenant, LONGEST_TEXT),
        ("user", order.user, LONGEST_TEXT),
        ("account", order.account, LONGEST_TEXT),
        ("qos", order.qos, LONGEST_TEXT),
        ("mark", order.mark, LONGEST_TEXT),
        ("directory", order.directory, LONGEST_PATH),
    ):
        if not _is_text(text, longest):
            raise _wrong(order, field, text, f"a text without NUL of at most {longest} characters")
    if order.checkpoint is not None and not (order.checkpoint and _is_text(order.checkpoint, LONGEST_PATH)):
        raise _wrong(order, "checkpoint", order.checkpoint, f"a folder's path of at most {LONGEST_PATH} characters")
    _check_command(order)
    if order.brought is not None and not (isinstance(order.brought, Mapping) and _is_plain(order.brought)):
        raise _wrong(order, "brought", order.brought, "an object with gpu, unit and gpus, a few levels deep")


def _check_command(order: Order) -> None:
    command, environ = order.command, order.environ
    if not isinstance(command, tuple) or len(command) > MOST_WORDS:
        raise _wrong(order, "command", command, f"a list of at most {MOST_WORDS} words")
    for word in command:
        if not _is_text(word, LONGEST_WORD):
            raise _wrong(order, "command", word, f"words without NUL of at most {LONGEST_WORD} characters")
    if not isinstance(environ, Mapping) or len(environ) > MOST_WORDS:
        raise _wrong(order, "environ", environ, f"at most {MOST_WORDS} variables with their values")
    for name, value in environ.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(name)) or not _is_text(value, LONGEST_WORD):
            raise BadSpec(
                f"job {order.name}: {_short(name)} cannot be a variable of the environment, or its value is no text of "
                f"{LONGEST_WORD} characters without NUL; rename or shorten it"
            )


def _is_text(value: Any, longest: int) -> bool:
    """Text that can be a word of a command, a path, a line of JSON: half of a surrogate pair can be none of them."""
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        return False
    return not any(0xD800 <= ord(letter) <= 0xDFFF for letter in value)


def _is_plain(brought: Any) -> bool:
    """Whether it is plain values, neither deep nor many. Without recursion: depth is what is in doubt."""
    level, seen = [brought], 0
    for _ in range(_DEEPEST):
        seen += len(level)
        if seen > _MOST_BROUGHT:
            return False
        below: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                if not all(_is_text(str(key), LONGEST_WORD) for key in value):
                    return False
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, str):
                if not _is_text(value, LONGEST_WORD):
                    return False
            elif value is not None and not isinstance(value, int | float):
                return False
        if not below:
            return True
        level = below
    return False


def _wrong(order: Order, field: str, value: Any, wanted: str) -> BadSpec:
    return BadSpec(f"job {order.name}: {field} is {_short(value)}; it must be {wanted}")


def _short(value: Any) -> str:
    """As a message shows it; what is long, deep or vast is only named."""
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return "a number of more than 18 digits"
    if not isinstance(value, str | int | float | None):
        return f"a {type(value).__name__}"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
