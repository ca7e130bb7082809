"""What ``--help`` says: one screen, the same for every verb, with examples that can be copied.

A verb's docstring is its help. Its first paragraph is the sentence that a list of verbs shows; a paragraph that is
indented, or begins with a command of ours, stays as it is, line by line; commands are headed "Examples". All other
paragraphs are filled to the width of the terminal. Then comes what must be given, then options by their panel.

The command-line library's own boxes give half of the width to the types of values and need two screens for ``run``.
Parsing, errors and completion stay the library's.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from joulewise.cli.config_files import defaults
from joulewise.cli.given import given_once
from joulewise.cli.plain import obeyed

_WIDEST: Final = 100
"""Columns: lines that are longer are hard to read, however wide the terminal is."""
_NAMES: Final = 30
"""Columns that names and values may take; a longer one has a line of its own."""
_REQUIRED, _OPTIONS, _VERBS = "Required", "Options", "Verbs"
_OURS: Final = "joulewise "
_HEAD, _NAME = "bold", "cyan"
_HELP: Final = {"-h", "--help"}

_F = TypeVar("_F", bound=Callable[..., Any])
_Line = list[tuple[str, str]]
"""Texts and their styles."""


class ReadableCommand(TyperCommand):
    """A verb whose help is as this module's docstring says, and that refuses an option given twice."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the library's signature
        """Print it."""
        _show(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the library does, once they are ones to be believed."""
        _prepare(self, ctx, args)
        return super().parse_args(ctx, args)


class ReadableGroup(TyperGroup):
    """A verb with verbs of its own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the library's signature
        """Print it."""
        _show(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the library does, once they are ones to be believed."""
        _prepare(self, ctx, args)
        return super().parse_args(ctx, args)


def _prepare(command: Any, ctx: Any, args: list[str]) -> None:
    """Refuse what cannot be meant, and take defaults from files. Not for completion; and help is shown whatever a file
    says, also that of a verb's own verb."""
    if ctx.resilient_parsing:
        return
    typed = given_once(command, ctx, args)
    if "help" in typed or (isinstance(command, TyperGroup) and _HELP & {*args}):
        return
    ctx.default_map, remarks = defaults(command, ctx, typed)
    for remark in remarks if not isinstance(command, TyperGroup) else ():
        print(f"joulewise: {remark}", file=sys.stderr)


class VerbFamily(typer.Typer):
    """Verbs under one name, as ``plan solve`` and ``plan show``; called without a verb it shows its help."""

    def __init__(self, help: str, **settings: Any) -> None:  # the library's name
        settings = {"no_args_is_help": True, "add_completion": False, "cls": ReadableGroup, **settings}
        super().__init__(help=help, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_F], _F]:
        """A decorator that makes a function one of them."""
        return super().command(name, **{"cls": ReadableCommand, **settings})


def usage(command: Any, ctx: Any) -> str:
    """How it is called, in one line: ``joulewise report [OPTIONS] [RUN]``."""
    words = [ctx.command_path, "[OPTIONS]"]
    for each in _shown(command, ctx, "argument"):
        if _is_command(each, command):
            words.append("--")
        words.append(_argument(each) if each.required else f"[{_argument(each)}]")
    if isinstance(command, TyperGroup):
        words.append("[VERB]" if command.invoke_without_command and command.name else "VERB")
    return " ".join(words)


def _page(command: Any, ctx: Any, width: int) -> Iterator[_Line]:
    yield [("Usage: ", _HEAD), (usage(command, ctx), "")]
    yield []
    yield from _prose(command.help or "", width)
    first = True
    for sections in (_verbs(command, ctx), _options(command, ctx)):
        names = [len(name) for rows in sections.values() for name, _ in rows]
        column = min(max(names, default=0), _NAMES) + 4
        for title, rows in sections.items():
            if not first:
                yield []
            first = False
            yield [(title, _HEAD)]
            for name, says in rows:
                yield from _row(name, says, column, width)
    if isinstance(command, TyperGroup):
        yield []
        yield [(f"'{ctx.command_path} VERB --help' tells more.", "")]


def _prose(text: str, width: int) -> Iterator[_Line]:
    before = ""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith((" ", _OURS)):
            # The margin is what is left of it once the docstring has lost its own.
            shown = textwrap.indent(textwrap.dedent(paragraph), "  ")
            if shown.startswith(f"  {_OURS}") and not before.endswith(":"):
                yield [("Examples" if f"\n  {_OURS}" in shown else "Example", _HEAD)]
            yield from ([(line, "")] for line in shown.splitlines())
        else:
            yield from ([(line, "")] for line in textwrap.wrap(paragraph, width, break_on_hyphens=False))
        yield []
        before = paragraph


def _row(name: str, says: str, column: int, width: int) -> Iterator[_Line]:
    first, *rest = textwrap.wrap(says, max(width - column, 20), break_on_hyphens=False) or [""]
    if len(name) > column - 4:
        yield [(f"  {name}", _NAME)]
        rest, first = [first, *rest], ""
    else:
        yield [(f"  {name}".ljust(column if first else 0), _NAME), (first, "")]
    yield from ([(" " * column + line, "")] for line in rest)


def _verbs(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """The verbs of a verb and their first sentences, by heading; of most there are none."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name in command.list_commands(ctx) if isinstance(command, TyperGroup) else ():
        verb: Any = command.get_command(ctx, name)
        says = " ".join(inspect.cleandoc(verb.help or "").partition("\n\n")[0].split())
        found.setdefault(verb.rich_help_panel or _VERBS, []).append((name, says))
    return found


def _options(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """What there is to give, by heading, in the order in which it is shown."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in _shown(command, ctx, "argument"):
        if each.required and _is_command(each, command):
            continue  # the first line has said it
        found.setdefault(_REQUIRED if each.required else _OPTIONS, []).append((_argument(each), each.help or ""))
    # What must be given first, then what belongs to nothing special.
    for each in sorted(
        _shown(command, ctx, "option"), key=lambda each: (not each.required, bool(each.rich_help_panel))
    ):
        panel = _REQUIRED if each.required else each.rich_help_panel or _OPTIONS
        found.setdefault(panel, []).append((_option(each), _says(each)))
    return found


def _shown(command: Any, ctx: Any, kind: str) -> list[Any]:
    """Arguments or options, but for ``--help``, which whoever reads this has found."""
    found = [each for each in command.get_params(ctx) if each.param_type_name == kind and not each.hidden]
    return [each for each in found if each.name != "help"]


def _is_command(argument: Any, command: Any) -> bool:
    """Whether it is somebody's command, behind ``--``."""
    return argument.nargs == -1 and not command.context_settings.get("allow_interspersed_args", True)


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]").rstrip(".…")
    return f"{name} ..." if argument.nargs == -1 else name


def _option(option: Any) -> str:
    """Its names and its value. Of several long names the first: the others are what it was called before."""
    long = [name for name in option.opts if name.startswith("--")]
    flags = ", ".join(sorted({*option.opts} - {*long[1:]}, key=len))
    if option.secondary_opts:
        return flags.replace("--", "--[no-]")
    return flags if option.is_flag else f"{flags} {option.metavar or option.name.upper()}"


def _says(option: Any) -> str:
    default = option.default
    says = " ".join((option.help or "").split())
    if option.secondary_opts:
        return f"{says} [default: {'yes' if default else 'no'}]"
    if option.is_flag or option.required or default is None or default in ("", ()) or not option.show_default:
        return says
    return f"{says} [default: {f'{default:g}' if isinstance(default, float) else default}]"


def _show(command: Any, ctx: Any) -> None:
    """Print the page, with styles where the terminal has them."""
    from rich.text import Text

    from joulewise.cli.console import Console

    console = Console(soft_wrap=True)
    with console.capture() as captured:  # or a broken pipe would make the console end us
        for line in _page(command, ctx, min(console.width, _WIDEST)):
            console.print(Text.assemble(*line))
    obeyed(sys.stdout).write(captured.get())
