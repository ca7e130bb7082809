"""``joulewise recur status``, ``history``, ``frontier``, ``plot`` and ``list``: what has been learnt. Reads only."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import say
from joulewise.cli.recur_desk import DatabaseFlag, ServerFlag, TokenFlag, names, opened_desk
from joulewise.core.errors import BadSpec
from joulewise.core.series import Platform, Recurring
from joulewise.tune.desk import SeriesDesk
from joulewise.tune.series import TrialRecord

if TYPE_CHECKING:
    from joulewise.cli.console import Console

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
OnFlag = Annotated[
    str | None, typer.Option("--on", metavar="GPU", help="On these GPUs, by a part of their name. Default: the last.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")]
_MOST = 50


def status(
    job: JobName,
    on: OnFlag = None,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """What is believed about each batch size, what learning cost, and what was saved.

    joulewise recur status nightly
    joulewise recur status nightly --on A100 --json
    """
    with _known(job, database, server, token_file) as (registered, desk, trials):
        from joulewise.cli import recur_views

        platform = _platform(trials, on)
        summary, beliefs = desk.summary(platform), desk.beliefs(platform)
    if as_json:
        known = {"job": registered, "platform": platform, "summary": summary, "beliefs": beliefs}
        print(recur_views.dumped({name: recur_views.plain(value) for name, value in known.items()}))
        return
    _print(recur_views.status_page(registered, platform, summary, beliefs, width=_console().width))


def history(
    job: JobName,
    most: Annotated[int, typer.Option("-n", metavar="TRIALS", help="At most so many, the latest; 0 for all.")] = _MOST,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Every trial: why it was tried, how it ended, what it took.

    joulewise recur history nightly
    """
    if most < 0:
        raise BadSpec(f"-n {most} is no number of trials; write -n {_MOST}, or -n 0 for all")
    with _known(job, database, server, token_file) as (_, _, trials):
        from joulewise.cli import recur_views
    shown = trials[-most:] if most > 0 else trials
    if as_json:
        print(recur_views.dumped({"job": job, "trials": [recur_views.trial_json(each) for each in shown]}))
        return
    _print(recur_views.history_table(shown, width=_console().width))


def frontier(
    job: JobName,
    on: OnFlag = None,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Whole runs that nothing beats in both time and energy, by batch size and setting.

    joulewise recur frontier nightly
    """
    with _known(job, database, server, token_file) as (_, desk, trials):
        from joulewise.cli import recur_views

        platform = _platform(trials, on)
        points = desk.frontier(platform)
    if as_json:
        rows = [
            {
                "batch_size": point.setting[0],
                "setting": dict(point.setting[1]),
                "time_s": point.time_s,
                "energy_j": point.energy_j,
                "time_error_s": point.time_error_s,
                "energy_error_j": point.energy_error_j,
            }
            for point in points
        ]
        print(recur_views.dumped({"job": job, "platform": recur_views.plain(platform), "points": rows}))
        return
    _print(recur_views.frontier_table(points))


def plot(
    job: JobName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The picture: .svg, .png or .pdf.")],
    on: OnFlag = None,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
) -> None:
    """Draw what is believed about each batch size, and what each recurrence cost.

    joulewise recur plot nightly nightly.svg
    """
    from joulewise.cli import outputs, recur_plot
    from joulewise.report.plot import check

    check(file, "FILE")
    outputs.refuse_unwritable("FILE", file)
    with _known(job, database, server, token_file) as (registered, desk, trials):
        platform = _platform(trials, on)
        recur_plot.draw(file, registered, platform, desk.summary(platform), desk.beliefs(platform), trials)


def jobs(
    ctx: typer.Context,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Which jobs there are.

    joulewise recur list
    """
    found = names(database, server, token_file)
    if as_json:
        from joulewise.cli import recur_views

        print(recur_views.dumped({"jobs": found}))
        return
    for name in found:
        print(name)
    if not found:
        say(ctx, "there is no job yet; 'joulewise recur run --job' begins one")


@contextmanager
def _known(
    job: str, database: str | None, server: str | None, token_file: Path | None
) -> Iterator[tuple[Recurring, SeriesDesk, list[TrialRecord]]]:
    """A job that is there, its desk and its trials. BadSpec, with those that are, where it is not."""
    with opened_desk(job, database, server, token_file) as desk:
        found = names(database, server, token_file)
        registered = desk.job if job in found else None
        if registered is None:
            near = difflib.get_close_matches(job, found, n=1)
            known = (
                f"there is {near[0]!r}" if near else f"there are: {', '.join(found)}" if found else "there is none yet"
            )
            raise BadSpec(f"no job is called {job!r}; {known}; 'joulewise recur run --job' begins one")
        yield registered, desk, desk.history()


def _platform(trials: list[TrialRecord], on: str | None) -> Platform:
    """What to look at: the platform of the last trial, or of the last whose name holds ``on``."""
    known = list(dict.fromkeys(trial.asked.platform for trial in reversed(trials)))
    if not known:
        raise BadSpec("nothing has run yet; 'joulewise recur run' is the first")
    for platform in known:
        if on is None or on.lower() in platform.key.lower():
            return platform
    raise BadSpec(f"--on {on}: it has run on {', '.join(platform.key for platform in known)}")


def _console() -> Console:
    from joulewise.cli.console import Console

    return Console()


def _print(page: object) -> None:
    _console().print(page)
