"""What is known about a recurring job, as tables and as JSON. Pure: it is given what the tuner believes and says it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from joulewise.core.frontier import Frontier
from joulewise.core.knob import Setting
from joulewise.core.plain import plain
from joulewise.core.series import Platform, Recurring
from joulewise.core.units import format_duration, format_energy, format_si
from joulewise.report.series_standing import standing
from joulewise.report.words import named
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord
from joulewise.tune.series_terms import objective

__all__ = [
    "counted",
    "dumped",
    "frontier_table",
    "history_table",
    "plain",
    "run_words",
    "status_page",
    "summary_lines",
    "trial_json",
]

_NOTHING = "·"
_WIDE = 110  # columns: from here on there is room for a sentence
_KEY = "*: default · in brackets: where the mean lies, 95 % · dim: expected, never run"


def dumped(value: dict[str, Any]) -> str:
    """One line of JSON."""
    return json.dumps(value, allow_nan=False)


def counted(number: int, what: str) -> str:
    """``"1 epoch"``, ``"2 epochs"``."""
    return f"{number} {what}{'s' if number != 1 else ''}"


def status_page(
    job: Recurring, platform: Platform, summary: SeriesSummary, beliefs: Sequence[SizeBelief], *, width: int
) -> RenderableType:
    """The whole of ``recur status``, made for ``width`` columns."""
    within = counted(job.max_epochs, "epoch")
    head = Text(f"{job.name} on {platform.key}: {job.target} within {within}", style="bold")
    why = [
        Padding(Text(line), (0, 0, 0, 2), expand=False)
        for line in (objective(job), *summary_lines(job, summary, beliefs))
    ]
    table = _belief_table(job, summary, beliefs, wide=width >= _WIDE)
    return Group(head, *why, Text(), table, Text(_KEY, style="dim"))


def summary_lines(job: Recurring, summary: SeriesSummary, beliefs: Sequence[SizeBelief] = ()) -> list[str]:
    """What is known so far, what it cost to learn, what it has saved; what is not known yet."""
    so_far = f"{counted(summary.recurrences, 'recurrence')}, {counted(summary.trials, 'trial')}"
    lines = [f"so far {so_far}: {format_energy(summary.energy_j)}, {format_duration(summary.duration_s)}"]
    if summary.best is not None and summary.best_energy_j is not None and summary.best_duration_s is not None:
        best = f"{summary.best}, the default," if summary.best == job.default else str(summary.best)
        run = run_words(summary.best_energy_j, summary.best_duration_s)
        lines.append(f"the best known is {best} with about {run} a run")
    if summary.default_energy_j is not None and summary.default_duration_s is not None and summary.best != job.default:
        default = run_words(summary.default_energy_j, summary.default_duration_s)
        lines.append(f"the default, {job.default}, takes about {default}")
    if summary.learning_cost is not None and summary.recurrences > 1:
        lines.append(f"learning has cost about {max(0.0, summary.learning_cost):.1f} runs of the best")
    return [*lines, *standing(job, summary, beliefs)]


def run_words(energy_j: float, duration_s: float) -> str:
    """``"41.2 kJ in 1 min 28 s"``."""
    return f"{format_si(energy_j, 'J')} in {format_duration(duration_s)}"


def _belief_table(job: Recurring, summary: SeriesSummary, beliefs: Sequence[SizeBelief], *, wide: bool) -> Table:
    unit, factor = ("", 1.0) if job.objective.get("what") == "money" else _unit(beliefs)
    table = _table("size", "runs", "epochs", "an epoch", f"cost of a run{unit}")
    table.add_column("", no_wrap=not wide)
    for belief in beliefs:
        table.add_row(
            f"{belief.batch_size}{'*' if belief.batch_size == job.default else ' '}",
            str(belief.runs),
            _epochs(belief, job.max_epochs),
            _epoch(belief),
            _cost(belief, factor),
            f"{belief.state}: {belief.says}" if wide and belief.says else belief.state,
            style="bold" if belief.batch_size == summary.best else "dim" if belief.runs == 0 else "",
        )
    return table


def _table(*titles: str) -> Table:
    """Columns of numbers, two spaces apart: eight of them have room in 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _unit(beliefs: Sequence[SizeBelief]) -> tuple[str, float]:
    """One unit for a whole column of joules."""
    most = max((belief.cost for belief in beliefs if belief.cost is not None), default=1.0)
    prefix, factor = next((each for each in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if most >= each[1]), ("", 1.0))
    return f" ({prefix}J)", factor


def _epochs(belief: SizeBelief, most: int) -> str:
    """To the target. Of a size that never got there nothing is known beyond the most epochs that a run may take."""
    if belief.successes or belief.epochs_high < most:
        return _between(belief.epochs, belief.epochs_low, belief.epochs_high, 1)
    return f"at least {belief.epochs_low:,.1f}"


def _between(value: float, low: float | None, high: float | None, decimals: int) -> str:
    known = [f"{each:,.{decimals}f}" for each in (value, low, high) if each is not None]
    return known[0] if len(known) < 3 else f"{known[0]} ({known[1]}–{known[2]})"


def _cost(belief: SizeBelief, factor: float) -> str:
    """In ``factor`` joules, or money: the mean to three digits, its interval to as many decimals."""
    if belief.cost is None:
        return _NOTHING
    value = belief.cost / factor
    low, high = (None if each is None else each / factor for each in (belief.cost_low, belief.cost_high))
    return _between(value, low, high, max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0)


def _epoch(belief: SizeBelief) -> str:
    cost = belief.epoch
    return _NOTHING if cost is None else f"{format_si(cost.energy_j, 'J')}, {format_duration(cost.duration_s)}"


def history_table(trials: Sequence[TrialRecord], *, width: int) -> Table:
    """Every trial, a line each; why it was tried, and what is known besides, where the terminal is wide enough."""
    table = _table("trial", "asked (UTC)", "size", "epochs", "energy", "time")
    table.add_column("ended", no_wrap=True)
    wide = width >= _WIDE
    if wide:
        table.add_column("why it was tried, and what came of it", overflow="fold")
    for trial in trials:
        asked, told = trial.asked, trial.told
        row = [
            str(asked.trial),
            f"{datetime.fromtimestamp(asked.time_s, UTC):%Y-%m-%d %H:%M}",
            str(asked.batch_size),
            str(told.epochs) if told is not None else _NOTHING,
            format_si(told.energy_j, "J") if told is not None else _NOTHING,
            format_duration(told.duration_s) if told is not None else _NOTHING,
            ended(trial),
        ]
        notes = told.notes if told is not None else ()
        table.add_row(*row, *(["; ".join(filter(None, (asked.reason, *notes)))] if wide else []))
    return table


def ended(trial: TrialRecord) -> str:
    """How a trial ended, in a word or two."""
    if trial.told is not None:
        return trial.told.outcome.value.replace("_", " ")
    return "never came back" if trial.expired is not None else "runs"


def trial_json(trial: TrialRecord) -> dict[str, Any]:
    """A trial in one level: what was asked, and what came back (null where nothing did)."""
    asked, told = trial.asked, trial.told
    known = {name: None if told is None else getattr(told, name) for name in ("epochs", "duration_s", "energy_j")}
    return {
        "trial": asked.trial,
        "recurrence": asked.recurrence,
        "batch_size": asked.batch_size,
        "platform": plain(asked.platform),
        "purpose": asked.purpose.value,
        "reason": asked.reason,
        "owner": asked.owner,
        "asked_s": asked.time_s,
        "told_s": None if told is None else told.time_s,
        "outcome": None if told is None else told.outcome.value,
        **known,
        "profile": [] if told is None else plain(told.profile),
        "notes": [] if told is None else list(told.notes),
        "expired": trial.expired is not None,
    }


def frontier_table(points: Frontier[tuple[int, Setting]]) -> Table:
    """Whole runs that nothing beats, fastest first."""
    table = _table("time", "energy", "size")
    table.add_column("setting")
    for point in points:
        size, setting = point.setting
        energy = format_energy(point.energy_j, point.energy_error_j)
        table.add_row(format_duration(point.time_s), energy, str(size), named(setting))
    return table
