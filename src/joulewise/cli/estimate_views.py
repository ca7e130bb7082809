"""An estimate of a fleet on the terminal: result first, then where, then what it rests on. 80 columns; or JSON."""

from __future__ import annotations

import json

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli.columns import fitted
from joulewise.cli.console import Console
from joulewise.core.units import format_percent
from joulewise.report import fleet_words as words
from joulewise.report.fleet import Findings
from joulewise.report.worth import Carbon

_LONGEST = 26


def print_page(found: Findings, kwh_price: float | None, carbon: Carbon | None) -> None:
    """To stdout."""
    console = Console()
    console.print(page(console, found, kwh_price, carbon))


def page(console: Console, found: Findings, kwh_price: float | None, carbon: Carbon | None) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [Text(words.headline(found), style="bold")]
    parts += [Text(line) for line in words.worth(found, kwh_price, carbon)]
    parts += [Text(words.about(found), style="dim"), Text()]
    parts += [Text(line) for line in (*words.savings(found), *words.idle(found))]
    parts.append(_models(console, found))
    if found.jobs:
        parts.append(_jobs(console, found))
        parts.append(Text(words.starts(found)))
    parts.append(Text())
    parts += [Text(f"rests on: {each}", style="dim") for each in words.rests_on(found)]
    parts += [Text(f"not known: {each}", style="dim") for each in words.unknowns()]
    return Group(*parts)


def dumped(found: Findings, kwh_price: float | None, carbon: Carbon | None) -> str:
    """As JSON, every number in full."""
    return json.dumps(words.plain(found, kwh_price, carbon), indent=2, allow_nan=False)


def _models(console: Console, found: Findings) -> Table:
    rows = []
    for model in found.models:
        resting = (model.held_kwh + model.free_kwh) / model.kwh if model.kwh > 0.0 else 0.0
        rows.append(
            (
                _short(model.gpu_name or "no model name"),
                str(model.gpus),
                words.amount(model.kwh),
                format_percent(resting) if resting > 0.0 else "0",
                words.between(model.saving.reached),
            )
        )
    heads = ("GPU model", "GPUs", "kWh/day", "idle", "saved kWh/day (95 %)")
    return fitted(console, heads, rows, spare=("idle", "GPUs", "kWh/day"))


def _jobs(console: Console, found: Findings) -> Table:
    rows = [
        (
            _short(job.job),
            words.amount(job.gpu_hours),
            words.amount(job.saving.kwh),
            words.clock(job),
            words.between(job.saving.reached),
        )
        for job in found.jobs[: words.MOST_JOBS]
    ]
    if len(found.jobs) > words.MOST_JOBS:
        rows.append((f"… {len(found.jobs) - words.MOST_JOBS} more, see --json", "", "", "", ""))
    heads = ("job", "GPU-hours", "kWh/day", "clock", "saved kWh/day (95 %)")
    return fitted(console, heads, rows, spare=("clock", "GPU-hours", "kWh/day"))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
