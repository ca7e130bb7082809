"""Simulated policies side by side: a table for the terminal, result first, 80 columns; and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli.cluster_figures import Figures
from joulewise.cli.cluster_scene import Scene
from joulewise.core.units import format_duration, kwh_from_joules
from joulewise.report.chart import time_unit

PARTS = {
    "jobs": "at work",
    "starts": "starting",
    "idle": "idle GPUs",
    "hosts": "hosts",
    "sleeping": "asleep",
    "boots": "boots",
}
"""Where energy goes, in words."""

_SHORT = {"days": "d", "hours": "h", "minutes": "min"}


def headline(found: Sequence[Figures]) -> str:
    """Which policy is best, in a line or two. Who leaves jobs undone is not."""
    if not found:
        return "No policy was simulated to its end."
    left = ", ".join(f"{each.policy} {each.unfinished}" for each in found if each.unfinished)
    found = [each for each in found if not each.unfinished]
    if not found:
        return f"Jobs that were never done, since nothing leaves them room to run (raise budget or cap): {left}."
    quick = min(found, key=lambda each: float("inf") if each.mean_s is None else each.mean_s)
    if len(found) == 1:
        return f"{quick.policy}: {duration(quick.mean_s)} mean completion time, {kwh(quick.energy_j)} kWh."
    frugal = min(found, key=lambda each: each.energy_j)
    if quick is frugal:
        same = [each.policy for each in found if (each.mean_s, each.energy_j) == (quick.mean_s, quick.energy_j)]
        if len(same) > 1:
            return f"{', '.join(same)} have the shortest mean completion time and need least energy, all alike."
        return f"{quick.policy} has the shortest mean completion time and needs least energy."
    return (
        f"Shortest mean completion time: {quick.policy}, {duration(quick.mean_s)}. "
        f"Least energy: {frugal.policy}, {kwh(frugal.energy_j)} kWh."
    )


def page(scene: Scene, found: Sequence[Figures]) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [Text(headline(found), style="bold"), Text(scene.about(), style="dim")]
    if found:
        parts += [_times(found), _energies(found)]
    parts += [Text(f"assumed: {line}", style="dim") for line in scene.assumptions()]
    return Group(*parts)


def as_json(scene: Scene, found: Sequence[Figures], interrupted: str | None) -> dict[str, Any]:
    """The same, every number in full."""
    return {
        "trace": scene.trace,
        "jobs": len(scene.jobs),
        "gpus": {rack.kind.name: rack.kind.gpus for rack in scene.racks},
        "seed": scene.seed,
        "budget": asdict(scene.limits),
        "assumed": scene.assumptions(),
        "policies": [asdict(each) for each in found],
        "interrupted": interrupted,
    }


def duration(time_s: float | None) -> str:
    """As people read it; nothing where there is none."""
    return "–" if time_s is None else format_duration(time_s)


def kwh(energy_j: float | None) -> str:
    """The number alone: ``"1,234"``, ``"12.3"``, ``"0.12"``; nothing where there is none."""
    return "–" if energy_j is None else _three(kwh_from_joules(energy_j))


def columns(found: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """Title and cells of every column of the first table; those of which there is nothing to say are left out."""
    unit_s, unit = time_unit(max(each.mean_s or 0.0 for each in found))

    def times(all_s: Iterable[float | None]) -> list[str]:
        return ["–" if time_s is None else _three(time_s / unit_s) for time_s in all_s]

    shown = [
        ("policy", [each.policy for each in found]),
        (f"mean {_SHORT[unit]}", times(each.mean_s for each in found)),
        ("median", times(each.median_s for each in found)),
        ("p99", times(each.p99_s for each in found)),
        ("kWh", [kwh(each.energy_j) for each in found]),
        ("restarts", [f"{each.restarts:,}" for each in found]),
    ]
    if any(each.cost is not None for each in found):
        shown.insert(5, ("kg" if found[0].cost_unit == "g" else found[0].cost_unit, [_cost(each) for each in found]))
    if any(each.deadlines for each in found):
        shown.append(("in time", [f"{each.deadlines_met}/{each.deadlines}" for each in found]))
    if any(each.over_budget is not None for each in found):
        shown.append(("budget", [_kept(each.over_budget) for each in found]))
    if any(each.over_cap is not None for each in found):
        shown.append(("cap", [_kept(each.over_cap) for each in found]))
    if any(each.unfinished for each in found):
        shown.append(("not done", [str(each.unfinished) for each in found]))
    return shown


def energy_columns(found: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """The same of the second table: kWh by part."""
    rows = [{} if each.parts is None else each.parts.as_dict() for each in found]
    shown = [("kWh", [each.policy for each in found])]
    shown += [(words, [kwh(row.get(part)) for row in rows]) for part, words in PARTS.items()]
    if any((each.after_j or 0.0) > 0.005 * each.energy_j for each in found):
        shown.append(("after", [kwh(each.after_j) for each in found]))
    return shown


def _three(value: float) -> str:
    """Three digits, or two decimals where that is fewer."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _cost(of: Figures) -> str:
    """Kilograms, or money."""
    return "–" if of.cost is None else _three(of.cost / 1000.0 if of.cost_unit == "g" else of.cost)


def _kept(over: float | None) -> str:
    return "kept" if not over else f"+{max(0.1, over * 100):.1f} %"


def _times(found: Sequence[Figures]) -> Table:
    return _table(columns(found), mark=_least([each.mean_s for each in found]))


def _energies(found: Sequence[Figures]) -> Table:
    return _table(energy_columns(found), mark=_least([None if each.unfinished else each.energy_j for each in found]))


def _least(values: Sequence[float | None]) -> int | None:
    there = [(value, at) for at, value in enumerate(values) if value is not None]
    return min(there)[1] if there else None


def _table(shown: Sequence[tuple[str, list[str]]], *, mark: int | None) -> Table:
    """The best row stands out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for title, cells in shown:
        table.add_column(title, justify="left" if cells is shown[0][1] else "right", no_wrap=True)
    for at, row in enumerate(zip(*(cells for _, cells in shown), strict=True)):
        table.add_row(*row, style="bold green" if at == mark and len(shown[0][1]) > 1 else "")
    return table
