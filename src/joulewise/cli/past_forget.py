"""``joulewise history --forget``: runs, and what they taught, taken out of the store for good.

A run's journal is its proof, and nothing brings it back: all of them at once only after a question, and none that is
still being written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from joulewise.cli import FAILED, complain, say
from joulewise.cli.recur_views import counted
from joulewise.core.errors import BadSpec, NotKept
from joulewise.report.run_summary import SILENT_S, State
from joulewise.report.summaries import Summaries
from joulewise.store import Memory, Store, views

ALL = "all"


def forget(ctx: typer.Context, store: Store, memory: Memory, what: str, *, yes: bool) -> None:
    """Forget a run by the beginning of its name, a workload by its fingerprint, or ``all``; and say what is gone.

    All of it goes only if ``yes``, or whoever sits at the terminal says so. BadSpec where nothing is called so, it is
    still running, or nobody can be asked; NotKept where the store cannot be changed.
    """
    if what == ALL:
        said = _all(ctx, store, memory, yes=yes)
    else:
        said = f"forgotten: workload {what}" if memory.forget(what) else ""
        _refuse_unforgotten(memory)
    say(ctx, said or _run(store, views.named(store.tables, what)))


def _run(store: Store, name: str) -> str:
    run = views.one(store.tables, name)
    if run is not None and _running(store, [run]):
        raise BadSpec(
            f"run {name} is still running, and is kept until its end; one that was killed can be forgotten "
            f"{SILENT_S / 60:g} min later"
        )
    return f"forgotten: run {name}, {counted(views.forget(store.tables, name), 'event')}"


def _all(ctx: typer.Context, store: Store, memory: Memory, *, yes: bool) -> str:
    runs = views.runs(store.tables)
    running = _running(store, runs)
    gone = [run.name for run in runs if run.name not in running]
    # Runs may be on a server, where what was learnt never is.
    apart = f" in {memory.database.name}" if memory.database.name != store.name else ""
    what = f"{counted(len(gone), 'run')} and what was learnt about {counted(len(memory.all()), 'workload')}{apart}"
    if running:
        say(ctx, f"{counted(len(running), 'run')} still running, and kept: {', '.join(running[:5])}")
    if not yes:
        _ask(f"forget {what}, with every proof, in {store.name}")
    memory.forget()
    _refuse_unforgotten(memory)
    for name in gone:
        views.forget(store.tables, name)
    return f"forgotten: {what}"


def _refuse_unforgotten(memory: Memory) -> None:
    """NotKept where what was learnt could not be changed."""
    if memory.trouble:
        raise NotKept(memory.trouble)


def _ask(what: str) -> None:
    """Return if whoever sits at the terminal wants it. BadSpec where nobody does."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()):
        raise BadSpec(f"this would {what}; nothing is forgotten yet, add --yes if it shall be")
    if not typer.confirm(f"joulewise: {what}?", err=True):
        complain("nothing was forgotten")
        raise typer.Exit(FAILED)


def _running(store: Store, runs: Sequence[views.Run]) -> list[str]:
    """The names of those that are still being written."""
    summaries = Summaries(store)
    open_ended = [run.name for run in runs if run.finished is None]
    found = ((name, summaries.one(name)) for name in open_ended)
    return [name for name, told in found if told is not None and told.state is State.RUNNING]
