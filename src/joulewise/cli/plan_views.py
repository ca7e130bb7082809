"""A plan in a user's words: tables and pictures for the terminal, and the same as JSON. Result first, 80 columns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli.console import Console
from joulewise.cli.finding import Finding
from joulewise.core.knob import Setting
from joulewise.core.units import format_energy
from joulewise.plan.dag import KINDS
from joulewise.plan.execution import SEQUENTIAL, launches
from joulewise.plan.plan import Plan, PlanPoint, Step
from joulewise.report.plan_colours import IDLE, Scale, hue, ink_on
from joulewise.report.plan_words import about, as_fast, headline, percent, power, saved, slower, time

_ROWS = 11
"""Points shown of a plan, besides nothing set."""
_STAGES = 16
"""Stages whose clocks are listed."""
_MARKS = {True: Text("✓", style="green"), False: Text("✗", style="red"), None: Text("!", style="yellow")}


def summary(plan: Plan) -> RenderableType:
    """The frontier as a table."""
    parts: list[RenderableType] = [Text(headline(plan), style="bold"), Text(about(plan), style="dim"), _table(plan)]
    parts += [Text(f"assumed: {each}", style="dim") for each in plan.assumptions]
    return Group(*parts)


def whole(plan: Plan, point: PlanPoint) -> RenderableType:
    """The frontier, the pipeline before and after, and the clocks of every stage."""
    scale = Scale(each.setting for options in plan.profile.options.values() for each in options)
    width = Console().width
    end_s = max(plan.baseline.time_s, point.time_s)
    return Group(
        summary(plan),
        Text(f"\nnothing set: {time(plan.baseline)}, {format_energy(plan.baseline.energy_j)}", style="bold"),
        *pipeline(plan, plan.baseline, scale, end_s, width),
        Text(f"\nplanned: {time(point)}, {format_energy(point.energy_j)}", style="bold"),
        *pipeline(plan, point, scale, end_s, width),
        _legend(scale),
        Text(),
        _clocks(plan, point),
        *launched(plan, point),
    )


def answer(plan: Plan, point: PlanPoint) -> RenderableType:
    """One point: what it takes, and the clocks of every stage."""
    words = (
        f"{time(point)}, {format_energy(point.energy_j, plan.energy_error_j(point))}, {power(point)}: "
        f"{saved(plan, point)} energy {slower(plan, point)}"
    )
    tables = Text(), _clocks(plan, point), *launched(plan, point)
    return Group(Text(words, style="bold"), Text(about(plan), style="dim"), *tables)


def findings(found: Sequence[Finding], *, refused: bool) -> RenderableType:
    """What a check found, the verdict first."""
    lines: list[Text] = []
    for each in found:
        lines.append(Text.assemble("  ", _MARKS[each.ok], f" {each.what}: {each.says}"))
        if each.do:
            lines.append(Text(f"    → {each.do}", style="cyan"))
    verdict = Text("This plan is not for here.", style="bold red") if refused else Text("Nothing speaks against it.")
    return Group(verdict, *lines)


def pipeline(plan: Plan, point: PlanPoint, scale: Scale, end_s: float, width: int) -> Iterable[Text]:
    """A line a rank: in each place what runs in the middle of that time, as the digit and colour of its clock."""
    name = max(len(f"rank {plan.schedule.ranks - 1}"), 6)
    cells = max(20, width - name - 1)
    rows = [[(IDLE, "dim")] * cells for _ in range(plan.schedule.ranks)]
    chosen = [step for row in plan.steps(point) for step in row]
    for operation, step, (start_s, stop_s) in zip(
        plan.schedule.dag.operations, chosen, plan.times_s(point), strict=True
    ):
        share = scale.share(step.setting)
        look = (scale.digit(step.setting), f"{ink_on(share)} on {scale.colour(step.setting)}")
        # Places whose middle lies within.
        first, last = (max(0, min(cells, round(at / end_s * cells))) for at in (start_s, stop_s))
        rows[operation.rank][first:last] = [look] * (last - first)
    for rank, row in enumerate(rows):
        yield Text.assemble((f"rank {rank}".ljust(name + 1), "dim"), *row, no_wrap=True, overflow="crop")


def summary_json(plan: Plan) -> dict[str, Any]:
    """A plan without the choices of its points."""
    return {
        "parallelism": about(plan),
        "identity": plan.identity.to_json(),
        "costs": asdict(plan.costs),
        "assumptions": list(plan.assumptions),
        "baseline": point_json(plan, plan.baseline),
        "as_fast": point_json(plan, as_fast(plan)),
        "points": [point_json(plan, point) for point in plan.points],
    }


def point_json(plan: Plan, point: PlanPoint) -> dict[str, float | None]:
    """A point's figures; ``saving`` and ``slowdown`` are against nothing set."""
    return {
        "time_s": point.time_s,
        "energy_j": point.energy_j,
        "energy_error_j": plan.energy_error_j(point),
        "power_w": point.power_w,
        "bound_j": point.bound_j,
        "saving": 1 - point.energy_j / plan.baseline.energy_j,
        "slowdown": point.time_s / plan.baseline.time_s - 1,
    }


def steps_json(plan: Plan, point: PlanPoint) -> list[list[dict[str, Any]]]:
    """For every rank what it does, in its order."""
    return [[_step_json(step) for step in row] for row in plan.steps(point)]


def _step_json(step: Step) -> dict[str, Any]:
    found = {each.name: getattr(step, each.name) for each in fields(step)} | {"setting": dict(step.setting)}
    there = launches(step.setting)
    return found | ({"launches": [asdict(launch) for launch in there]} if there else {})


def dumped(value: dict[str, Any]) -> str:
    """As JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)


def print_page(page: RenderableType) -> None:
    """To stdout."""
    Console().print(page)


def shown_points(plan: Plan, most: int = _ROWS) -> list[PlanPoint]:
    """Some of its points, evenly, with both ends and the one that is as fast as nothing set."""
    last = len(plan.points) - 1
    steps = min(most - 1, last)
    some = {round(at * last / steps) if steps else 0 for at in range(steps + 1)}
    return [plan.points[at] for at in sorted(some | {plan.points.index(as_fast(plan))})]


def _table(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("iteration", "energy", "power", "slower", "saved", "over bound"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    base, same = plan.baseline, as_fast(plan)
    table.add_row(time(base), format_energy(base.energy_j), power(base), "", "", "", "nothing set")
    for point in shown_points(plan):
        figures = point_json(plan, point)
        over = "" if point.bound_j is None else f"{max(0.0, point.energy_j / point.bound_j - 1) * 100:.2f} %"
        mark = "as fast" if point is same else "thriftiest" if point is plan.points[-1] else ""
        table.add_row(
            time(point),
            format_energy(point.energy_j),
            power(point),
            percent(figures["slowdown"] or 0.0),
            percent(figures["saving"] or 0.0),
            over,
            mark,
        )
    return table


def _clocks(plan: Plan, point: PlanPoint) -> Table:
    """Of every stage and kind: the mean setting, from and to, and how often it changes."""
    knob = Scale(step.setting for row in plan.steps(point) for step in row).knob
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("stage", "rank", "kind", knob, "lowest", "highest", "time each"):
        table.add_column(title, justify="left" if title == "kind" else "right", no_wrap=True)
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for row in plan.steps(point):
        for step in row:
            found.setdefault((step.stage, step.kind), []).append((step.setting.get(knob, float("nan")), step.time_s))
    for (stage, kind), pairs in sorted(found.items(), key=lambda each: (each[0][0], KINDS.index(each[0][1]))):
        if stage >= _STAGES:
            continue
        values, times = zip(*pairs, strict=True)
        table.add_row(
            str(stage),
            str(plan.schedule.stage_ranks[stage]),
            kind,
            _number(sum(values) / len(values)),
            _number(min(values)),
            _number(max(values)),
            f"{sum(times) / len(times) * 1000:.4g} ms",
        )
    if plan.schedule.stages > _STAGES:
        table.caption = f"and {plan.schedule.stages - _STAGES} stages more; --json has them all"
    return table


def launched(plan: Plan, point: PlanPoint) -> list[RenderableType]:
    """Of every stage and kind the ways in which partitions are launched, the most frequent first; none: nothing."""
    counted: dict[tuple[int, str], Counter[Setting]] = {}
    for row in plan.steps(point):
        for step in row:
            counted.setdefault((step.stage, step.kind), Counter())[step.setting] += 1
    if not any(launches(setting) for ways in counted.values() for setting in ways):
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("stage", "kind", "times", "sm_mhz", "communication launched at slot × SMs"):
        table.add_column(title, justify="right" if title in ("stage", "times", "sm_mhz") else "left")
    for (stage, kind), ways in sorted(counted.items(), key=lambda each: (each[0][0], KINDS.index(each[0][1]))):
        if stage < _STAGES:
            for setting, times in ways.most_common():
                how = ", ".join(map(str, launches(setting))) or SEQUENTIAL
                table.add_row(str(stage), kind, str(times), _number(setting.get("sm_mhz", float("nan"))), Text(how))
    return [table]


def _legend(scale: Scale) -> Text:
    parts: list[tuple[str, str]] = [("clock  " if scale.knob != "power_limit_w" else "limit  ", "dim")]
    for step in range(9):
        share = step / 8
        parts.append((f" {step + 1} ", f"{ink_on(share)} on {hue(share)}"))
    return Text.assemble(*parts, (f"  1 = {scale.named(0.0)}, 9 = {scale.named(1.0)}, {IDLE} = waiting", "dim"))


def _number(value: float) -> str:
    return "not set" if value != value else f"{value:.0f}"
