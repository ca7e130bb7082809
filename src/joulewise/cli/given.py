"""What was given on a command line, looked at before it is believed: an option that stands there twice, or whose value
is ``--``.

The command-line library keeps the last of two values in silence, and takes ``--`` for a value like any other: then
``run --gpu A --gpu B`` would measure half, and ``run --json -- sleep 1`` write a file called ``--``.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from copy import copy
from typing import Any, Final

from joulewise.core.errors import BadSpec
from joulewise.core.secrecy import masked
from joulewise.core.words import short

_END: Final = "--"
_LISTS: Final = ("nvml", "amd", "sim")
"""Kinds of GPUs of which one specification names several."""


def given_once(command: Any, ctx: Any, args: Sequence[str]) -> Set[str]:
    """The library's names of what ``args`` give. BadSpec, with the way out, where they give a single-valued option of
    ``command`` twice, or ``--`` as a value.

    Flags without a value may be repeated: they say the same again. Raises the library's own faults as it would itself.
    """
    given = _every_value(command, ctx, args)
    if "help" in given:
        return given.keys()
    for option in command.get_params(ctx):
        if option.param_type_name != "option" or option.is_flag or option.name not in given:
            continue
        values = given[option.name]
        flag = next((name for name in option.opts if name.startswith("--")), option.opts[0])
        if any(_END in ((value,) if isinstance(value, str) else value) for value in values):
            what = option.metavar or option.name.upper()
            raise BadSpec(f"{flag} takes {what}, and what follows it is '--'; write '{flag} {what} -- …'")
        if len(values) > 1 and not option.multiple:
            times = "twice" if len(values) == 2 else f"{len(values)} times"
            shown = ", ".join(_shown(flag, value) for value in values)
            raise BadSpec(f"{flag} was given {times} ({shown}); {_way_out(flag, values)}")
    return given.keys()


def _every_value(command: Any, ctx: Any, args: Sequence[str]) -> dict[str, Any]:
    """All values of every option, by its name: the library's own parser, told that each may be given many times."""
    parser = type(command.make_parser(ctx))(ctx)
    for each in command.get_params(ctx):
        repeatable = copy(each)
        repeatable.multiple = True
        repeatable.add_to_parser(parser, ctx)
    found: dict[str, Any] = parser.parse_args(list(args))[0]
    return found


def _shown(flag: str, value: str | Sequence[str]) -> str:
    """A value as an error may show it: short, and without the password of an address."""
    return short(" ".join(masked(["", flag, *((value,) if isinstance(value, str) else value)])[2:]))


def _way_out(flag: str, values: Sequence[Any]) -> str:
    kinds, colons, picks = zip(*(str(value).partition(":") for value in values), strict=True)
    if flag == "--gpu" and len(set(kinds)) == 1 and kinds[0] in _LISTS and all(colons):
        return f"write them together: --gpu {kinds[0]}:{','.join(picks)}"
    return "give it once"
