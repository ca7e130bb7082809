"""What an x-ray found, in a user's words: result first, then where, then what it rests on. 80 columns; or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli.console import Console
from joulewise.core.units import format_duration, format_power
from joulewise.plan.trace_steps import MARKED, REPEATING
from joulewise.plan.xray import PLANS, Findings, Interval, Saving
from joulewise.plan.xray_piece import RUN
from joulewise.plan.xray_where import WAIT, Bar

PLAN_NAMES = {"one_clock": "one clock", "phased": "a clock a phase", "each_run": "limit of all plans"}
LETTERS = {"compute": ("C", "#0072b2"), "memory": ("m", "#e69f00"), "communication": ("x", "#009e73")}
LETTERS |= {"copy": ("h", "#cc79a7")}
WORDS = {"compute": "compute-bound", "memory": "memory-bound", "communication": "communication", "copy": "host copies"}
WORDS |= {WAIT: "standing still"}
_WAITS = {"host": "the host", "rank": "another rank"}
_LONGEST_NAME = 44
_MOST_LANES = 8


def headline(found: Findings) -> str:
    """What could be saved, in a sentence."""
    plan, limit = (saving(found, name, found.where_slowdown) for name in ("phased", "each_run"))
    return (
        f"A plan could save {span(plan.saving)} of the GPUs' energy at {share(plan.slowdown)} slowdown; "
        f"no plan more than {span(limit.saving)}."
    )


def about(found: Findings) -> str:
    """What was looked at."""
    ranks = (
        f"{len(found.ranks)} of {found.world} ranks"
        if found.ranks and found.world
        else f"{found.lanes} GPU{'s' * (found.lanes > 1)}"
    )
    how = {MARKED: "marked by the profiler", REPEATING: "found by what repeats"}
    steps = f"{found.steps} step{'s' * (found.steps > 1)} of {format_duration(found.step_s)}"
    return f"{ranks}, {steps}, {how.get(found.steps_by, 'the whole trace taken for a step')}; {found.model.name}"


def assumptions(found: Findings) -> Iterator[str]:
    """What the figures rest on, one sentence each."""
    if found.on_cpu:
        yield (
            "The trace shows no GPU: its operators and collectives stand in for kernels, "
            f"as if they ran on one {found.model.name} each with these times."
        )
    yield from _clock_and_power(found)
    yield (
        "Kernels follow the clock by their kind, told by name: compute-bound mostly, memory-bound hardly; "
        "collectives, host and other ranks keep their pace."
    )
    if found.read:
        yield "Who waits for whom was read from the trace."
    else:
        yield (
            "Who waits for whom across streams was inferred from the order seen; "
            "profile with enable_cuda_sync_events to have it read."
        )
    if found.world and len(found.ranks) < found.world:
        yield "Ranks whose traces were not given are taken to be like those that were."
    if abs(found.explained - 1.0) > 0.02:
        yield f"The graph takes {percent(found.explained)} of the time seen: ranks wait for more than it shows."
    switch = format_duration(found.model.switching.clock_switch_s)
    phases = f"{found.phases} phases" if found.phases > 1 else "one phase"
    yield f"A change of clock takes {switch}, so a step has {phases}; the limit changes clocks for nothing at any run."
    yield f"Ranges hold nine in ten of {found.draws} draws of what is not known. Energy of GPUs alone."


def _clock_and_power(found: Findings) -> Iterator[str]:
    """What was seen of the job, and what is believed in its place; both are of one GPU."""
    told = ((found.seen_mhz, found.default_mhz, "MHz", "--sm-mhz"), (found.seen_w, found.power_w, "W", "--power-w"))
    seen = [f"{value:.0f} {unit}" for value, _, unit, _ in told if value is not None]
    if seen:
        yield f"You saw {' and '.join(seen)} a GPU; draws that do not agree with that count little."
    believed = [(each, unit, flag) for value, each, unit, flag in told if value is None]
    if believed:
        ranges = " and ".join(
            f"{each.middle:.0f} {unit} ({each.low:.0f} … {each.high:.0f})" for each, unit, _ in believed
        )
        flags = " and ".join(flag for *_, flag in believed)
        yield f"Believed, not measured: {ranges} a GPU. {flags} {'say' if len(believed) > 1 else 'says'} better."


def page(found: Findings, width: int) -> RenderableType:
    """All of it."""
    return Group(
        Text(headline(found), style="bold"),
        Text(about(found), style="dim"),
        _savings(found),
        _kinds(found),
        _names(found),
        Text(waits(found)),
        *_timeline(found, width),
        Text(),
        *(Text(f"assumed: {each}", style="dim") for each in assumptions(found)),
    )


def print_page(found: Findings) -> None:
    """To stdout."""
    console = Console()
    console.print(page(found, console.width))


def dumped(found: Findings) -> str:
    """As JSON, every number in full."""
    plain = asdict(found)
    model = plain.pop("model")
    plain["gpu"] = {"key": model["key"], "name": model["name"]}
    plain["assumptions"] = list(assumptions(found))
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)


def waits(found: Findings) -> str:
    """What the GPUs stood still for, in a sentence."""
    still = next((place.time for place in found.where if place.kind == WAIT), 0.0)
    named = [(_WAITS.get(wait.cause, _short(wait.name)), wait.time) for wait in found.waits if wait.time >= 0.001]
    rest = still - sum(time for _, time in named)
    shown = [f"{percent(time)} {name}" for name, time in named[:5]]
    if rest >= 0.001:
        shown.append(f"{percent(rest)} pauses between kernels")
    if not shown:
        return "The GPUs never stand still."
    return f"The GPUs stand still for {percent(still)} of the time: {', '.join(shown)}."


def saving(found: Findings, plan: str, slowdown: float) -> Saving:
    """One of the figures."""
    return next(each for each in found.savings if (each.plan, each.slowdown) == (plan, slowdown))


def span(value: Interval) -> str:
    """``"12 % (8.1 … 16 %)"``."""
    low, high = (_number(each) for each in (value.low, value.high))
    return f"{_number(value.middle)} % ({low} … {high} %)"


def percent(part: float) -> str:
    """``"3.4 %"``."""
    return f"{_number(part)} %"


def slowdowns(found: Findings) -> Sequence[float]:
    """Those that were asked about, in order."""
    return sorted({each.slowdown for each in found.savings})


def share(slowdown: float) -> str:
    """A slowdown as it was asked for: ``"1 %"``."""
    return f"{100 * slowdown:g} %"


def _short(name: str) -> str:
    """Without its middle: kernels of a library differ at their ends."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[half + 1 - _LONGEST_NAME :]}"


def _number(part: float) -> str:
    value = 100.0 * part
    return f"{value:.0f}" if abs(value) >= 9.95 else f"{value + 0.0:.1f}".replace("-0.0", "0.0").replace("-", "−")


def _savings(found: Findings) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("slower by", justify="right", no_wrap=True)
    for plan in PLANS:
        table.add_column(PLAN_NAMES[plan], justify="right", no_wrap=True)
    for slowdown in slowdowns(found):
        row = [saving(found, plan, slowdown) for plan in PLANS]
        table.add_row(share(slowdown), *(span(each.saving) for each in row))
    return table


def _kinds(found: Findings) -> Table:
    table = _where_table(f"where (limit of plans at {share(found.where_slowdown)})")
    for place in found.where:
        if not place.name:
            clock = "" if place.clock is None else percent(place.clock)
            table.add_row(WORDS[place.kind], percent(place.time), percent(place.energy), percent(place.saved), clock)
    return table


def _names(found: Findings) -> Table:
    table = _where_table("kernels and collectives")
    for place in found.where:
        if place.name and place.clock is not None:
            shares = (place.time, place.energy, place.saved, place.clock)
            table.add_row(_short(place.name), *(percent(each) for each in shares))
    return table


def _where_table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title, no_wrap=True, min_width=_LONGEST_NAME)
    for name in ("time", "energy", "saved", "clock"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _timeline(found: Findings, width: int) -> Iterator[Text]:
    """A line a GPU for kernels, and one for what runs beside them, if anything does.

    A letter is what runs in the middle of that time.
    """
    lanes = sorted({bar.lane for bar in found.bars})
    end_s = max((bar.start_s + bar.duration_s for bar in found.bars), default=0.0)
    if not lanes or end_s <= 0:
        return
    cells, kinds = max(20, width - 10), {bar.kind for bar in found.bars}
    yield Text()
    for lane in lanes[:_MOST_LANES]:
        for name, wanted in ((f"GPU {lane}", True), ("", False)):
            bars = [bar for bar in found.bars if bar.lane == lane and (bar.what == RUN) == wanted]
            if not bars and not wanted:
                continue
            row = _cells(bars, cells, end_s)
            yield Text.assemble((name.ljust(9), "dim"), *row, no_wrap=True, overflow="crop")
    key = ", ".join(f"{letter} {WORDS[kind]}" for kind, (letter, _) in LETTERS.items() if kind in kinds)
    more = f"; {len(lanes) - _MOST_LANES} GPUs more in --json" if len(lanes) > _MOST_LANES else ""
    yield Text(f"one step, {format_duration(end_s)}: {key}{more}", style="dim")


def _cells(bars: Sequence[Bar], cells: int, end_s: float) -> list[tuple[str, str]]:
    row = [("·", "dim")] * cells
    for bar in bars:
        letter, colour = LETTERS[bar.kind]
        first, last = (round(at / end_s * cells) for at in (bar.start_s, bar.start_s + bar.duration_s))
        row[first:last] = [(letter, colour)] * (last - first)
    return row


def figures(found: Findings) -> tuple[tuple[str, str], ...]:
    """What a page shows large, with its words."""
    shown = []
    for slowdown in slowdowns(found):
        plan, limit = (saving(found, name, slowdown).saving for name in ("phased", "each_run"))
        likely = f"({_number(plan.low)} … {percent(plan.high)})"
        words = f"{likely} at {share(slowdown)} slowdown; at most {percent(limit.middle)}"
        shown.append((percent(plan.middle), words))
    if found.seen_w is not None:
        return (*shown, (format_power(found.seen_w), "mean of one GPU, as you saw it"))
    return (*shown, (format_power(found.power_w.middle), "believed mean of one GPU"))
