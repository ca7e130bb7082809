"""``joulewise history``: the runs that were kept, what each used or saved, and what was learnt about which workload.

Reads the store only. Not the readings of a run: those are ``joulewise serve``'s to draw.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time as clock
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import complain, outputs, say
from joulewise.cli.past_store import StoreFlag, learnt_in, opened_store
from joulewise.core.errors import BadSpec, NotKept

if TYPE_CHECKING:
    from joulewise.report.claim import Claim
    from joulewise.report.run_summary import RunSummary
    from joulewise.report.story import Story
    from joulewise.store import Memory, Remembered, Store
    from joulewise.store.views import Run

_MOST = 20


def history(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Tell this one, by the beginning of its name.")
    ] = None,
    learnt: Annotated[bool, typer.Option("--learnt", help="What was learnt, workload by workload.")] = False,
    most: Annotated[int, typer.Option("-n", metavar="RUNS", help="At most so many, the latest; 0 for all.")] = _MOST,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report of RUN, too; 'joulewise report' has more.")
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Forget a run, a workload's fingerprint, or 'all'.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --forget all: do not ask.")] = False,
    database: StoreFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")] = False,
) -> None:
    """List the runs: what each took, used and, if it was tuned, saved; or tell one of them.

    Every run of 'joulewise run' and every trial of 'joulewise recur run' is kept, unless --no-keep. --learnt tells what
    the next run of the same command begins with.

      joulewise history
      joulewise history 20260314-1015
      joulewise history --learnt
      joulewise history --forget 20260314-1015
    """
    from joulewise.store import Memory, views

    if most < 0:
        raise BadSpec(f"-n {most} is no number of runs; write -n {_MOST}, or -n 0 for all")
    if forget is not None and (run is not None or learnt):
        other = run if run is not None else "--learnt"
        raise BadSpec(f"--forget {forget} goes without {other}: nothing was forgotten; name once what is to go")
    if report is not None and run is None:
        raise BadSpec("--report needs a RUN: 'joulewise history' names them")
    store = opened_store(database)
    tables = store.tables
    if forget is not None:
        from joulewise.cli import past_forget

        past_forget.forget(ctx, store, Memory(learnt_in(database, store)), forget, yes=yes)
        return
    if learnt:
        latest = {
            (run.facts.get("fingerprint"), uuid): run
            for run in reversed(views.runs(tables))
            if run.finished
            for uuid in _cards(run)
        }
        _tell_learnt(_known(Memory(learnt_in(database, store))), latest, store, as_json=as_json)
        return
    if run is None:
        _tell_runs(views.runs(tables, most=most or None), store, as_json=as_json)
        return
    name = views.named(tables, run)
    events = [event for _, event in store.journal(name).read()]
    from joulewise.report import outcome
    from joulewise.report.claim import INTERVAL, Claim
    from joulewise.report.story import Story

    story = Story.of(events)
    claim = Claim.of(story)
    if report is not None:
        from joulewise.report.page import page

        outputs.refuse_no_html("--report", report)
        outputs.refuse_unwritable("--report", report)
        report.write_text(page(story), encoding="utf-8", errors="replace")
        say(ctx, f"the report is {report}")
    found = views.one(tables, name)
    measured = None if found is None else found.measured
    untuned = found is not None and found.facts.get("tuned") is False
    headline = _short(found).headline if found is not None and untuned else outcome.headline(story, claim)
    if as_json:
        facts = {"run": name, "headline": headline, "facts": dict(story.facts), "claim": claim.to_json()}
        print(json.dumps({**facts, "measured": None if measured is None else dict(measured)}, allow_nan=False))
        return
    from joulewise.cli.tuned import chapters

    print(f"{name}: {headline}")
    for line in _about(found) if found is not None else ():
        print(f"  {line}")
    if claim.held:
        judged = "" if claim.energy_change is None else f", {claim.about}"
        print(f"  {INTERVAL}, against the same job with nothing set{judged}")
    for line in chapters(story):
        print(f"  {line}")


def _about(run: Run) -> list[str]:
    """What ran, what it used in all unless that is its headline, and to which job it belongs."""
    from joulewise.core.units import format_duration, format_energy

    told = _short(run)
    lines = ["  on ".join(filter(None, (told.command, _gpus(told))))]
    if told.tuned and told.energy_j is not None and told.duration_s is not None:
        used = format_energy(told.energy_j, told.energy_error_j)
        lines.append(f"used {used} in {format_duration(told.duration_s)} in all")
    series = run.facts.get("series")
    if isinstance(series, Mapping) and "job" in series:
        lines.append(
            f"a trial of {series['job']} at batch size {series.get('batch_size')}; see 'joulewise recur status'"
        )
    return [line for line in lines if line]


def _gpus(told: RunSummary) -> str:
    """``"2 × H200 (virtual)"``."""
    counts = Counter(name.replace("NVIDIA ", "") for name in told.gpus)
    named = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    return f"{named} (virtual)" if told.virtual and named else named


def _known(memory: Memory) -> list[Remembered]:
    found = memory.all()
    if memory.trouble and not found:
        raise NotKept(memory.trouble)
    if memory.trouble:
        complain(memory.trouble)
    return found


def _tell_runs(runs: Sequence[Run], store: Store, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_run_json(each, store) for each in runs], allow_nan=False))
        return
    if not runs:
        print(f"no run has been kept yet, as far as {store.name} knows; try 'joulewise run --tune -- COMMAND'")
        return
    from joulewise.report.summaries import Summaries

    summaries = Summaries(store)
    rows: list[tuple[str, ...]] = [("run (begun, UTC)", "took", "energy", "saved", "slower", "GPU", "command")]
    rows += [_row(each, summaries.one(each.name) or _short(each), store) for each in runs]
    shown = [column for column in range(6) if column == 0 or any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in shown}
    for row in rows:
        line = "  ".join(row[column].ljust(widths[column]) for column in shown)
        # Numbers are never cut; of the command as much as the terminal has room for.
        room = max(12, shutil.get_terminal_size((120, 24)).columns - len(line) - 2)
        command = row[6] if len(row[6]) <= room else f"{row[6][: room - 1]}…"
        print(f"{line}  {command}".rstrip())
    from joulewise.report.claim import INTERVAL

    if 4 in shown:
        print(f"saved, slower: against the same job with nothing set; {INTERVAL}")
    print("'joulewise history RUN' tells one of them, 'joulewise report RUN' writes it as a page")


def _row(run: Run, told: RunSummary, store: Store) -> tuple[str, ...]:
    """A run in the columns of the list."""
    from joulewise.core.units import format_duration, format_energy

    return (
        run.name,
        "" if told.duration_s is None else format_duration(told.duration_s),
        "" if told.energy_j is None else format_energy(told.energy_j),
        *_saved(run, told, store),
        _gpus(told),
        _without_folder(told.command),
    )


def _without_folder(command: str) -> str:
    """``python train.py`` for ``/opt/venv/bin/python train.py``: which one matters less than what follows."""
    program, space, rest = command.partition(" ")
    return f"{program.rpartition('/')[2]}{space}{rest}"


def _saved(run: Run, told: RunSummary, store: Store) -> tuple[str, str]:
    """How much less energy and how much more time than with nothing set; or what became of it in a word or two."""
    from joulewise.report import outcome
    from joulewise.report.claim import percent
    from joulewise.report.run_summary import State
    from joulewise.report.summaries import DAMAGED

    if told.headline.startswith(DAMAGED):
        return "damaged", ""
    if told.energy_change is not None and told.time_change is not None and told.state is State.FINISHED:
        return percent(-told.energy_change, told.energy_half or 0.0), percent(told.time_change, told.time_half or 0.0)
    if told.state is not State.FINISHED:
        return told.state.value, ""
    if not told.tuned:
        return "", ""
    found = _story(run, store)
    if found is None:
        return "damaged", ""
    story, claim = found
    if claim.held:
        return "not proven", ""
    return "not tuned" if outcome.untuned(story, claim) else "nothing held", ""


def _story(run: Run, store: Store) -> tuple[Story, Claim] | None:
    """The whole run, and what it claims; None where its journal cannot be read any more."""
    from joulewise.report.claim import Claim
    from joulewise.report.story import Story

    try:
        story = Story.of(event for _, event in store.journal(run.name).read())
    except BadSpec:  # one damaged run shall not hide the others
        return None
    return story, Claim.of(story)


def _short(run: Run) -> RunSummary:
    """A run that was not tuned, by its first and last event."""
    from joulewise.report.run_summary import state_of, summary

    return summary(run, state_of(run, run.last_at_s, clock.time()), clock.time())


def _run_json(run: Run, store: Store) -> dict[str, Any]:
    from joulewise.report import outcome

    found = _story(run, store)
    untuned = run.facts.get("tuned") is False
    return {
        "run": run.name,
        "began": _when(run.began_at_s),
        "facts": dict(run.facts),
        "finished": None if run.finished is None else run.finished.why,
        "headline": None if found is None else _short(run).headline if untuned else outcome.headline(*found),
        "claim": None if found is None else found[1].to_json(),
        "measured": None if run.measured is None else dict(run.measured),
    }


def _cards(run: Run) -> Sequence[str]:
    """The UUIDs of a run's GPUs; "" where it does not say."""
    found = run.facts.get("gpus")
    return [str(uuid) for uuid in found] if isinstance(found, list) and found else [""]


def _tell_learnt(known: Sequence[Remembered], latest: Mapping[Any, Run], store: Store, *, as_json: bool) -> None:
    """What is known workload by workload; ``latest`` is the last run of each, on that
    card, that came to its end."""
    if as_json:
        keys = ("fingerprint", "gpu_uuid", "gpu_name", "runs")
        rows = [
            {**{key: getattr(each, key) for key in keys}, "kept": _when(each.at_s), "payload": dict(each.payload)}
            for each in known
        ]
        print(json.dumps(rows, allow_nan=False))
        return
    from joulewise.cli.recur_views import counted

    if not known:
        print("nothing has been learnt yet; try 'joulewise run --tune -- COMMAND'")
    for each in known:
        runs = counted(each.runs, "run")
        print(f"{each.fingerprint}  {each.gpu_name} {each.gpu_uuid[:12]}  {runs}, last {_when(each.at_s)}")
        run = latest.get((each.fingerprint, each.gpu_uuid)) or latest.get((each.fingerprint, ""))
        if run is not None:
            print(f"  {_command(run.facts)}")
        for line in _learnt_lines(each.payload):
            print(f"  {line}")
        found = _story(run, store) if run is not None else None
        if run is not None and found is not None:
            from joulewise.report import outcome

            print(f"  {run.name}: {outcome.headline(*found)}")


def _learnt_lines(payload: Mapping[str, Any]) -> list[str]:
    """What the next run begins with, phase by phase; of a payload that reads otherwise nothing."""
    from joulewise.report.knobs import ceiling
    from joulewise.report.words import SHOWN

    lines = []
    phases = payload.get("phases")
    for phase, kept in phases.items() if isinstance(phases, Mapping) else ():
        chosen = kept.get("chosen") if isinstance(kept, Mapping) else None
        if not isinstance(chosen, Mapping):
            continue
        values = ", ".join(ceiling(knob, value) for knob, value in chosen.items() if isinstance(value, (int, float)))
        state = f", {'' if kept.get('verified') else 'not yet '}{SHOWN} by itself" if values else ""
        lines.append(f"{f'{phase}: ' if phase else ''}{values or 'default'}{state}")
    return lines


def _command(facts: Mapping[str, Any]) -> str:
    command = facts.get("command")
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command or "")


def _when(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
