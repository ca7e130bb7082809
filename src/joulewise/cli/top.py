"""``joulewise top``: GPUs at a glance, now or live: power and limit, clocks, heat, what holds them back, joules."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli.gpus import HELP, opened
from joulewise.core.errors import BadSpec, GpuError, GpuLost, Unsupported

if TYPE_CHECKING:
    from rich.console import RenderableType

    from joulewise.cli.look import Sight
    from joulewise.device.gpu import Gpu
    from joulewise.report.meter import Meter

_PIDS_EVERY_S = 10.0
"""Process lists cost the driver milliseconds (peers poll them at 0.1 Hz)."""
_LOAD = "transformer"
"""What virtual GPUs are busy with, so that there is something to see."""

_FIRST_S = 0.3
"""The first readings are in by then."""
_WARM_UP_S = 1.5
"""How old virtual GPUs are when they are looked at once: old enough to be at work."""


def top(
    gpu: Annotated[str | None, typer.Option(metavar="SPEC", help=HELP)] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a look, on a line of its own; null where nothing was read.")
    ] = False,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two looks.")] = 1.0,
) -> None:
    """Watch GPUs: power and limit, clocks, use, heat, throttle reason, joules.

    Joules count from the start of watching. q or Ctrl-C ends it. With
    --gpu sim:h200 it shows a virtual GPU that trains a transformer.

      joulewise top
      joulewise top --gpu nvml:all --interval 5
      joulewise top --once --json | jq '.gpus[].power_w'
    """
    if not 0.1 <= interval <= 3600:
        raise BadSpec(f"--interval {interval:g} is outside 0.1 to 3600 seconds; 1 is usual")
    with opened(gpu, load=_LOAD) as found:
        if once:
            if found.simulated:
                time.sleep(_WARM_UP_S)
            sights = [look_at(each) for each in found.gpus]
            if as_json:
                typer.echo(json.dumps(as_object(sights)))
            else:
                _print(sights)
            refuse_if_all_lost(sights)
            return
        from joulewise.report.meter import Meter

        with Meter(found.gpus) as meter:
            meter.begin()
            watch = Watch(meter)
            if as_json:
                _stream(watch, interval)
            else:
                _live(watch, interval)


def look_at(gpu: Gpu) -> Sight:
    """One GPU now, by a look of our own. A fault is part of the answer."""
    from joulewise.cli.look import Sight

    try:
        reading = gpu.read()
    except GpuError as error:
        return Sight(gpu.info, None, reason=str(error))
    return Sight(gpu.info, reading, pids=_pids(gpu), counter_j=_counter_j(gpu))


def as_object(sights: Sequence[Sight]) -> dict[str, Any]:
    """A look as JSON: ``time`` (UTC) and ``gpus``, whose keys end in their units."""
    return {"time": datetime.now(UTC).isoformat(), "gpus": [sight.as_json() for sight in sights]}


class Watch:
    """A meter watched over time: the sampler's last readings, and now and then the process lists."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._pids: dict[str, tuple[int, ...] | None] = {}
        self._pids_due_s = 0.0

    def sights(self) -> list[Sight]:
        """Every GPU as it is now."""
        from joulewise.cli.look import sights

        if time.monotonic() >= self._pids_due_s:
            self._pids_due_s = time.monotonic() + _PIDS_EVERY_S
            self._pids = {gpu.info.uuid: _pids(gpu) for gpu in self._meter.gpus}
        return [replace(sight, pids=self._pids.get(sight.info.uuid)) for sight in sights(self._meter)]

    def refuse_if_all_lost(self) -> None:
        """GpuLost, with the reasons, once there is nothing left to watch."""
        from joulewise.cli.look import sights

        refuse_if_all_lost(sights(self._meter))

    def page(self, width: int) -> RenderableType:
        """What a terminal shows."""
        from rich.console import Group
        from rich.text import Text

        from joulewise.cli.look import table
        from joulewise.core.units import format_duration, format_energy, format_power

        sights = self.sights()
        report = self._meter.so_far()
        power_w = [sight.reading.power_w for sight in sights if sight.reading and sight.reading.power_w is not None]
        head = Text("joulewise top", style="bold")
        if power_w:
            head.append(f"  {format_power(sum(power_w))}", style="not bold")
        if report is not None and report.gpus:
            used = format_energy(report.total.energy_j, report.total.error_j)
            head.append(f"  {used} in {format_duration(report.duration_s)}", style="not bold")
        head.append("  q quits", style="dim not bold")
        return Group(head, Text(), table(sights, width=width), *reasons(sights))


def refuse_if_all_lost(sights: Sequence[Sight]) -> None:
    """GpuLost, with the reasons, if none of them can be read any more."""
    if all(sight.reason is not None for sight in sights):
        raise GpuLost("; ".join(dict.fromkeys(str(sight.reason) for sight in sights)))


def reasons(sights: Sequence[Sight]) -> list[RenderableType]:
    """A line for each GPU that cannot be read, under the table."""
    from rich.text import Text

    lost = [f"{sight.info.index}: {sight.reason}" for sight in sights if sight.reading is None and sight.reason]
    return [Text(), *(Text(line, style="red") for line in lost)] if lost else []


def _print(sights: Sequence[Sight]) -> None:
    from joulewise.cli.console import Console
    from joulewise.cli.look import table

    console = Console()
    console.print(table(sights, width=console.width), *reasons(sights), sep="\n")


def _stream(watch: Watch, interval_s: float) -> None:
    """A JSON object every ``interval_s``, until whoever reads has had enough or the last GPU is lost."""
    while True:
        time.sleep(interval_s)
        typer.echo(json.dumps(as_object(watch.sights())))
        watch.refuse_if_all_lost()


def _live(watch: Watch, interval_s: float) -> None:
    """The table, drawn anew every ``interval_s`` until q; where the terminal cannot, one table after another."""
    from rich.live import Live

    from joulewise.cli.console import Console

    console = Console()
    if not console.is_terminal or console.is_dumb_terminal:
        while True:
            time.sleep(interval_s)
            console.print(watch.page(console.width))
            watch.refuse_if_all_lost()
    with single_keys() as key_within, Live(console=console, screen=True, auto_refresh=False) as live:
        key_within(_FIRST_S)
        while True:
            live.update(watch.page(console.width), refresh=True)
            watch.refuse_if_all_lost()
            if key_within(interval_s) == "q":
                return


@contextmanager
def single_keys() -> Iterator[Callable[[float], str]]:
    """Read keys as they are pressed: gives a function that waits so many seconds for one and returns it or ''."""
    if not sys.stdin.isatty():
        yield _no_key_within
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def key_within(timeout_s: float) -> str:
        ready, _, _ = select.select([keyboard], [], [], timeout_s)
        return os.read(keyboard, 1).decode(errors="replace").lower() if ready else ""

    try:
        tty.setcbreak(keyboard)
        yield key_within
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _no_key_within(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""


def _pids(gpu: Gpu) -> tuple[int, ...] | None:
    try:
        return gpu.processes()
    except GpuError:
        return None


def _counter_j(gpu: Gpu) -> float | None:
    try:
        return gpu.energy().energy_j
    except (Unsupported, GpuError):
        return None
