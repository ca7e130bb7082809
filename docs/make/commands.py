"""The reference of the command line, a page written from the verbs themselves, so that it cannot be out of date.

Nothing is run: each verb is imported and asked for its help, its arguments and its flags.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from joulewise.cli import VERBS

_INTRODUCTION = (
    "Written from the program itself. What the verbs are for, GPU specs, exit codes and JSON: [Command line](cli.md). "
    "Before the verb: `-q` says only errors and what was asked for, `-v` where things come from."
)
_MARKUP = re.compile(r"\[/?(?:bold|dim|italic)\]")


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb with its command, ``plan solve`` too, in the order in which help names them."""
    for name, verb in VERBS.items():
        yield from _tree(name, verb.load(name))


def flags(command: Any) -> set[str]:
    """The flags that a command takes, ``--help`` among them."""
    named = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("-")}
    return {*named, "--help"}


def page() -> str:
    """The page, as Markdown."""
    parts = ["# Every verb and flag", _INTRODUCTION]
    for name, command in verbs():
        parts += [f"{'#' * (2 + name.count(' '))} {name}", *_about(command), *_table(command)]
    return "\n\n".join(parts) + "\n"


def _tree(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for below, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from _tree(f"{name} {below}", each)


def _about(command: Any) -> Iterator[str]:
    """What help says: paragraphs as they are, examples as code."""
    for paragraph in re.split(r"\n\s*\n", _MARKUP.sub("", inspect.cleandoc(command.help or "")).replace("\b", "")):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if lines and lines[0].startswith("joulewise "):
            yield "\n".join(("```", *lines, "```"))
        elif lines:
            yield _escaped(" ".join(lines))


def _table(command: Any) -> Iterator[str]:
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False)]
    if rows:
        yield "\n".join(("| | |", "|---|---|", *rows))


def _row(each: Any) -> str:
    kind = "" if getattr(each, "is_flag", False) else each.metavar or "VALUE"
    if each.param_type_name == "argument":
        named = f"`{each.metavar or each.name.upper()}`"
    else:
        named = ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts))
        named += f" {_escaped(kind)}" if kind else ""
    says = _escaped(_MARKUP.sub("", getattr(each, "help", None) or "")).replace("\n", " ")
    shown = each.default
    if each.required:
        says += " (must be given)"
    elif isinstance(shown, (int, float, str)) and not isinstance(shown, bool) and shown != "" and kind:
        says += f" ({_escaped(str(shown))})"
    return f"| {named} | {says} |"


def _escaped(text: str) -> str:
    return re.sub(r"([|<>*_{}\[\]])", r"\\\1", text)
