"""What became of a recurrence, as text and as JSON: the result first, then why, then what is known by now.

The JSON is part of the public surface: ``job`` · ``recurrence`` · ``number`` · ``reached`` · ``error`` (null, or why
not) · ``exit_code`` · ``duration_s`` and ``energy_j`` (of all trials, in the GPUs' time) · ``virtual`` · ``platform``
· ``trials``: for each ``trial``, ``batch_size``, ``purpose``, ``reason``, ``command``, ``outcome``, ``epochs``,
``value``, ``duration_s``, ``energy_j``, ``error_j``, ``before_training_s`` and ``…_j`` (not in these), ``exit_code``,
``profile`` (what an epoch costs, setting by setting), ``notes``, ``run`` (under which name it is kept, or null),
``tune`` (null, or as in ``cli.tuned``) ·
``summary`` and ``beliefs``: as ``recur status`` says.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.text import Text

from joulewise.cli import complain, tuned
from joulewise.cli.console import Console
from joulewise.cli.outputs import JsonFile
from joulewise.cli.recur_desk import StoreDesk
from joulewise.cli.recur_loop import Recurrence, Trial, in_short
from joulewise.cli.recur_views import counted, plain, summary_lines
from joulewise.core.errors import JoulewiseError
from joulewise.core.secrecy import masked
from joulewise.core.series import Platform, Recurring
from joulewise.core.units import format_duration, format_energy
from joulewise.tune.desk import SeriesDesk
from joulewise.tune.series import SeriesSummary, SizeBelief


def tell(
    done: Recurrence,
    job: Recurring,
    desk: SeriesDesk,
    platform: Platform,
    file: JsonFile | None,
    *,
    quiet: bool,
    virtual: bool,
) -> None:
    """The result to stderr and to where it was asked for. The command has ended: nothing here may fail it."""
    beliefs: list[SizeBelief] = []
    summary: SeriesSummary | None = None
    try:
        beliefs, summary = desk.beliefs(platform), desk.summary(platform)
    except JoulewiseError as error:
        done.unkept = done.unkept or str(error)
    if done.error is not None:
        complain(f"{_name(job, summary)}: {done.error}")
    elif not quiet:
        _show(lines(done, job, summary, beliefs, virtual=virtual))
    if done.unkept is not None:
        saved = desk.save_untold() if isinstance(desk, StoreDesk) else ""
        complain(f"what was learnt is not all kept: {done.unkept}{saved}")
    if file is not None:
        try:
            file.write(as_json(done, job, platform, beliefs, summary, virtual=virtual))
        except OSError as error:
            complain(f"--json {file.name} could not be written: {error.strerror}")


def lines(
    done: Recurrence, job: Recurring, summary: SeriesSummary | None, beliefs: list[SizeBelief], *, virtual: bool
) -> list[str]:
    """What to say of a recurrence that reached its target: the result, why this way, what is known."""
    trial = done.reached
    assert trial is not None
    ended, size = trial.ended, trial.asked.batch_size
    cost = f"{format_energy(done.energy_j)} in {format_duration(done.duration_s)}"
    metric = job.target.partition(">")[0].partition("<")[0]
    what = f"reached {metric} {ended.value:g} in {counted(ended.epochs, 'epoch')} at batch size {size}"
    first = f"{_name(job, summary)}: {what}: {cost}" + (" (virtual)" if virtual else "")
    told = [first, trial.asked.reason]
    told += [f"before it: {in_short(each.asked, each.ended)}" for each in done.trials if each is not trial]
    if ended.tuned is not None:
        told.append(f"clocks: {ended.tuned.headline}")
    told += summary_lines(job, summary, beliefs) if summary is not None else []
    told += ended.notes
    told.append(f"'joulewise recur status {job.name}' tells what is believed about each batch size")
    return [line for line in told if line]


def as_json(
    done: Recurrence,
    job: Recurring,
    platform: Platform,
    beliefs: list[SizeBelief],
    summary: SeriesSummary | None,
    *,
    virtual: bool,
) -> dict[str, Any]:
    """See the module's docstring."""
    return {
        "job": job.name,
        "recurrence": done.name,
        "number": summary.recurrences if summary is not None else None,
        "reached": done.reached is not None,
        "error": done.error,
        "exit_code": done.exit_code,
        "duration_s": done.duration_s,
        "energy_j": done.energy_j,
        "virtual": virtual,
        "platform": plain(platform),
        "trials": [_trial(trial) for trial in done.trials],
        "summary": plain(summary),
        "beliefs": plain(beliefs),
    }


def _trial(trial: Trial) -> dict[str, Any]:
    asked, ended = trial.asked, trial.ended
    return {
        "trial": asked.trial,
        "batch_size": asked.batch_size,
        "purpose": asked.purpose.value,
        "reason": asked.reason,
        "command": masked(trial.command),
        "outcome": ended.outcome.value,
        "epochs": ended.epochs,
        "value": ended.value,
        "duration_s": ended.duration_s,
        "energy_j": ended.energy_j,
        "error_j": ended.error_j,
        "before_training_s": ended.before_s,
        "before_training_j": ended.before_j,
        "exit_code": ended.exit_code,
        "profile": plain(ended.profile),
        "notes": list(ended.notes),
        "run": ended.run,
        "tune": None if ended.tuned is None else tuned.as_json(ended.tuned),
    }


def _name(job: Recurring, summary: SeriesSummary | None) -> str:
    return f"{job.name} #{summary.recurrences}" if summary is not None else job.name


def _show(told: list[str]) -> None:
    console = Console(stderr=True, soft_wrap=True)
    first, *rest = told
    with suppress(OSError), console.capture() as captured:  # or a broken pipe would make the console end us
        console.print(Text(f"joulewise: {first}", style="bold"))
        for line in rest:
            console.print(Text(f"  {line}"))
    with suppress(OSError):  # whoever read our stderr has gone
        console.file.write(captured.get())
        console.file.flush()
