"""The command line: verbs, one file each, and the one place where errors become a line and an exit code.

Data goes to stdout, everything else to stderr. A verb's file is imported when the verb is used, so that
``joulewise --help`` is quick. Exit codes: 0 done, 1 tried and failed, 2 cannot be done as asked (a bad flag, an
unknown GPU, a file that cannot be written), 130 interrupted; ``run`` and ``sim`` keep their command's own.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from joulewise.cli.help import ReadableCommand, ReadableGroup
from joulewise.cli.help import usage as call_of  # 'usage' is a module of this package, and takes the name when loaded
from joulewise.cli.plain import speak_plainly
from joulewise.core.errors import BadSpec, JoulewiseError, OutOfRange
from joulewise.core.visible import visible

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BEFORE_THE_VERB = ("-q", "--quiet", "-v", "--verbose", "--version")

_MEASURE, _LOOK, _MACHINE, _SHARE = "Measure and tune", "Look", "This machine", "Shared nodes and clusters"


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb lives, among which it is named, and what it is for. ``takes_command``: the rest of the line is
    somebody's command."""

    module: str
    name: str
    panel: str
    help: str
    takes_command: bool = False

    def load(self, called: str) -> Any:
        """The verb as a command of the command-line library, imported now."""
        found = getattr(importlib.import_module(f"joulewise.cli.{self.module}"), self.name)
        if isinstance(found, typer.Typer):
            command = typer.main.get_command(found)
            command.name = called
            return command
        settings = {"allow_interspersed_args": False} if self.takes_command else {}
        alone = typer.Typer(add_completion=False)
        alone.command(called, cls=ReadableCommand, context_settings=settings)(found)
        return typer.main.get_command(alone)


VERBS = {
    "run": Verb("run", "run", _MEASURE, "Measure a command; with --tune, make it spend less.", takes_command=True),
    "recur": Verb("recur", "app", _MEASURE, "Learn the best batch size and setting of a training that returns."),
    "plan": Verb("plan", "app", _MEASURE, "Plan the clocks of one iteration of a pipeline."),
    "top": Verb("top", "top", _LOOK, "Watch GPUs: power, clocks, heat, joules."),
    "history": Verb("past", "history", _LOOK, "List the runs: what each used and saved; what was learnt."),
    "report": Verb("report", "report", _LOOK, "Write a run as a page or a picture; compare two runs."),
    "verify": Verb("verify", "verify", _LOOK, "Recompute a report's saving from the run's journal."),
    "countersign": Verb("countersign", "countersign", _LOOK, "Have another host sign that a run's journal exists now."),
    "serve": Verb("serve", "app", _LOOK, "Show all of it in a browser; metrics; an API."),
    "estimate": Verb("estimate", "estimate", _LOOK, "Say what tuning would save in a fleet, from its DCGM history."),
    "doctor": Verb("doctor", "doctor", _MACHINE, "Say what can be measured and set here, and what to do if not."),
    "sim": Verb("sim", "sim", _MACHINE, "Run a command against virtual GPUs.", takes_command=True),
    "config": Verb("config", "config", _MACHINE, "Say which defaults your configuration files set, and where."),
    "model": Verb("model", "app", _MACHINE, "Fit, list and show the laws of GPU models."),
    "cluster": Verb("cluster", "app", _SHARE, "Share the GPUs and joules of a cluster among its jobs."),
    "daemon": Verb("daemon", "daemon", _SHARE, "Set this node's GPUs for users who may, and put them back."),
    "grant": Verb("grant", "app", _SHARE, "Give a user the right to set GPUs for a while, or take it back."),
    "leases": Verb("leases", "leases", _SHARE, "Say who holds which knob of which GPU, and until when."),
    "restore": Verb("restore", "restore", _SHARE, "Put back what leases had set, with the daemon alive or dead."),
    "stand": Verb("stand", "stand", _SHARE, "Keep clocks locked between leases, for good."),
}


_OTHER_WORDS = {
    "tune": "run --tune -- COMMAND",
    "measure": "run -- COMMAND",
    "profile": "run -- COMMAND",
    "monitor": "top",
    "watch": "top",
    "runs": "history",
    "list": "history",
    "dashboard": "serve",
    "ui": "serve",
}


def _meant(word: str) -> str | None:
    """What somebody meant who gave this as a verb; None where that cannot be told."""
    if word in _OTHER_WORDS:
        return f"write 'joulewise {_OTHER_WORDS[word]}'"
    if not word.startswith("-") and (shutil.which(word) or Path(word).is_file()):
        return f"to measure that command, write 'joulewise run -- {word} …'"
    return None


class Verbs(ReadableGroup):
    """The verbs, each imported when it is called; help and completion know only its name and one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, verb in VERBS.items():
            self.add_command(TyperCommand(name, help=verb.help, rich_help_panel=verb.panel))

    def get_params(self, ctx: Any) -> Any:
        """Its flags. Completion that can be installed need not be shown, too: that is for packagers."""
        found: list[Any] = super().get_params(ctx)
        for each in found:
            if each.name == "show_completion":
                each.hidden = True
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is called, imported. BadSpec, with the way out, for a word that means another."""
        if args[0] == "help" and not ctx.resilient_parsing:
            args = _asking(ctx, args[1:])
        if args[0] not in VERBS and not ctx.resilient_parsing and (meant := _meant(args[0])):
            raise BadSpec(f"no verb is called {args[0]!r}; {meant}")
        name, _, rest = super().resolve_command(ctx, args)
        return name, VERBS[name].load(name) if name else None, rest


def _asking(ctx: Any, words: list[str]) -> list[str]:
    """``help VERB`` as ``VERB --help``; ``help`` alone shows ours and ends."""
    if not words:
        typer.echo(ctx.get_help())
        ctx.exit()
    verb = VERBS.get(words[0])
    # What follows the verb's own name is somebody's command, to be run: never that.
    return [*words[: 1 if verb is not None and verb.takes_command else 2], "--help"]


app = typer.Typer(cls=Verbs, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})


@dataclass(frozen=True, slots=True)
class Talk:
    """How much the user wants to hear; what ``-q`` and ``-v`` set."""

    quiet: bool = False
    verbose: bool = False


def talk(ctx: typer.Context) -> Talk:
    """What ``-q`` and ``-v`` said."""
    return ctx.obj if isinstance(ctx.obj, Talk) else Talk()


class _Plain(logging.Formatter):
    """A line for each message; where in our code it came from is for ``--verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__("joulewise: %(message)s")
        self._verbose = verbose

    def format(self, record: Any) -> str:
        """As the library does; a live view that has taken stderr would obey what stands in it."""
        return visible(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in the library
        """The trace, or what was raised in a few words."""
        if self._verbose or ei[0] is None:
            return super().formatException(ei)
        return f"joulewise: {ei[0].__name__}: {ei[1]}"


def _version(wanted: bool) -> None:
    if wanted:
        import joulewise

        typer.echo(f"joulewise {joulewise.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only errors, and what was asked for.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say where things come from.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Spend fewer joules on deep-learning training, and prove what was saved.

      joulewise run -- python train.py
      joulewise run --tune --report report.html -- python train.py
      joulewise run --gpu sim:h200 -- python examples/train_virtual.py

    The last one needs no GPU, nor does any verb with --gpu sim:h200.
    """
    ctx.obj = Talk(quiet, verbose)
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(format="joulewise: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Plain(verbose=verbose))
    logging.getLogger("joulewise").setLevel(level)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def complain(message: str) -> None:
    """One line on stderr, whatever the message is made of; nothing where nobody reads it any more."""
    with suppress(OSError):
        print("joulewise: " + visible(" ".join(message.split())), file=sys.stderr)


def say(ctx: typer.Context, message: str) -> None:
    """A remark on stderr, unless the user wants quiet."""
    if not talk(ctx).quiet:
        complain(message)


def exit_code_of(error: JoulewiseError) -> int:
    """2 when asking differently would help, 1 when it was tried and failed."""
    return BAD_INPUT if isinstance(error, (BadSpec, OutOfRange)) else FAILED


def _too_late(error: Any) -> str | None:
    """What to write where a flag of ours stands behind the verb; None where that is not the fault."""
    flag, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if flag not in _BEFORE_THE_VERB or context is None or context.parent is None:
        return None
    verb = "" if flag == "--version" else f" {context.command_path.partition(' ')[2]} …"
    return f"{flag} goes before the verb; write 'joulewise {flag}{verb}'"


def _see(error: Any, args: list[str] | None) -> str:
    """Where it is said how a verb is called that was called wrongly; how, where a word is missing."""
    context = getattr(error, "ctx", None)
    if context is None:  # the library does not always say of which verb it speaks
        verb = next((word for word in (sys.argv[1:] if args is None else args) if not word.startswith("-")), "")
        return f"see 'joulewise{f' {verb}' if verb in VERBS else ''} --help'"
    missing = getattr(getattr(error, "param", None), "param_type_name", "") == "argument"
    how = f"write '{call_of(context.command, context)}', " if missing else ""
    return f"{how}see '{context.command_path} --help'"


def _unexpected(error: Exception) -> int:
    """Say in a line what nobody has caught, and return the exit code; with ``--verbose`` raise it, to show where.

    A file or folder that the system keeps from us is the user's to name or to open; all else is a bug of ours.
    """
    if logging.getLogger("joulewise").isEnabledFor(logging.DEBUG):
        raise error
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes | os.PathLike):
        why = (error.strerror or str(error)).lower()
        complain(f"{os.fsdecode(error.filename)} cannot be used: {why}; name another, or change its rights")
        return BAD_INPUT
    if isinstance(error, MemoryError):
        complain("there is not enough memory for this; give a smaller input, or run it where there is more")
        return FAILED
    complain(f"a fault of joulewise itself: {type(error).__name__}: {error}; 'joulewise -v …' shows where")
    return FAILED


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit. An expected fault is one line on stderr, never a traceback."""
    speak_plainly()
    try:
        code = app(args, standalone_mode=False, prog_name="joulewise")
    except JoulewiseError as error:
        complain(str(error))
        code = exit_code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, for example `head`; keep the interpreter from saying so at exit.
        sys.stdout = None
        code = FAILED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            sys.stdout = None
            complain(f"the output cannot be written: {(error.strerror or '').lower()}; make room, or send it elsewhere")
            sys.exit(FAILED)
        # The command-line library's own faults know how to say themselves.
        if not hasattr(error, "format_message"):
            sys.exit(_unexpected(error))
        message = error.format_message().strip().rstrip(".")
        code = BAD_INPUT if message else 0  # without one it has shown its help, as a group of verbs does by itself
        if message:
            complain(_too_late(error) or f"{message}; {_see(error, args)}")
    _drop_what_nobody_reads()
    sys.exit(code if isinstance(code, int) else 0)


def _drop_what_nobody_reads() -> None:
    """What is left of our messages when their reader has gone: the interpreter would try to write it at its end, and
    exit with 120 instead of our code."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        sys.stderr = None
