"""An estimate of a fleet on the terminal: result first, then where, then what it rests on. 80 columns; or JSON."""

from __future__ import annotations

import json

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.core.units import format_percent
from joulewise.report import fleet_words as words
from joulewise.report.fleet import Findings

_LONGEST = 26


def print_page(found: Findings, kwh_price: float | None, carbon_g_per_kwh: float | None) -> None:
    """To stdout."""
    Console(highlight=False).print(page(found, kwh_price, carbon_g_per_kwh))


def page(found: Findings, kwh_price: float | None, carbon_g_per_kwh: float | None) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [Text(words.headline(found), style="bold")]
    parts += [Text(line) for line in words.worth(found, kwh_price, carbon_g_per_kwh)]
    parts += [Text(words.about(found), style="dim"), Text()]
    parts += [Text(line) for line in (*words.savings(found), *words.idle(found))]
    parts.append(_models(found))
    if found.jobs:
        parts.append(_jobs(found))
        parts.append(Text(words.starts(found)))
    parts.append(Text())
    parts += [Text(f"rests on: {each}", style="dim") for each in words.rests_on(found)]
    parts += [Text(f"not known: {each}", style="dim") for each in words.unknowns()]
    return Group(*parts)


def dumped(found: Findings, kwh_price: float | None, carbon_g_per_kwh: float | None) -> str:
    """As JSON, every number in full."""
    return json.dumps(words.plain(found, kwh_price, carbon_g_per_kwh), indent=2, allow_nan=False)


def _models(found: Findings) -> Table:
    table = _table("GPU model", "GPUs", "kWh/day", "idle", "saved kWh/day (95 %)")
    for model in found.models:
        resting = (model.held_kwh + model.free_kwh) / model.kwh if model.kwh > 0.0 else 0.0
        table.add_row(
            _short(model.gpu_name or "no model name"),
            str(model.gpus),
            words.amount(model.kwh),
            format_percent(resting) if resting > 0.0 else "0",
            words.between(model.saving.reached),
        )
    return table


def _jobs(found: Findings) -> Table:
    table = _table("job", "GPU-hours", "kWh/day", "clock", "saved kWh/day (95 %)")
    for job in found.jobs[: words.MOST_JOBS]:
        table.add_row(
            _short(job.job),
            words.amount(job.gpu_hours),
            words.amount(job.saving.kwh),
            words.clock(job),
            words.between(job.saving.reached),
        )
    if len(found.jobs) > words.MOST_JOBS:
        table.add_row(f"… {len(found.jobs) - words.MOST_JOBS} more, see --json", "", "", "", "")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
