"""What a measured command used, as text and as JSON: the result first, then how it is known.

Pure: it is given what was measured and says it. The JSON is part of the public surface; keys end in their unit, and
a value that nobody knows is null, with the ``reason`` beside it:

``command`` · ``exit_code`` · ``started`` (UTC) · ``virtual`` (whether its GPUs were simulated) · ``duration_s`` ·
``energy_j`` · ``error_j`` (one standard error of
sampling) · ``gain_error`` (the sensor's own, relative) · ``total_error_j`` (both) · ``power_w`` (average) · ``source``
(counter, integrated, modelled) · ``outcome`` (reached, stopped_early, failed) · ``notes`` · ``reason`` · ``gpus``: for
each ``uuid``, ``name``, ``index``, ``backend``, ``low_power_w``, ``peak_power_w`` and the same again · ``host``:
``energy_j``, ``reason`` · ``set``: null, or what ``--set`` held: ``requested`` and, GPU by GPU, ``effective`` (knob →
value), ``restored`` (``gpu``, ``knob``, ``ending``, ``before``, ``wrote``, ``after``, ``why``), ``notes``, ``held_s``
(for how much of ``duration_s`` it is known to have been in force) and ``ended_early`` (null, or why that is not all) ·
``tune``: null, or what ``--tune`` did; see ``cli.tuned``.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli import tuned
from joulewise.cli.console import Console
from joulewise.cli.tuned import TuneResult
from joulewise.core.knob import Setting
from joulewise.core.measurement import Measurement, Source
from joulewise.core.units import format_duration, format_energy, format_percent, format_power
from joulewise.device.lease import Restored
from joulewise.report import keeping, knobs
from joulewise.report.history import sparkline
from joulewise.report.keeping import Keeping, measurement_json
from joulewise.report.meter import GpuResult, HostResult, together
from joulewise.report.outcome import advised

_SOURCES = {
    Source.COUNTER: "energy counter",
    Source.INTEGRATED: "summed power samples",
    Source.MODELLED: "a model, not a sensor",
}


@dataclass(frozen=True, slots=True)
class SetResult:
    """What was held on the GPUs while the command ran, and how it came back."""

    requested: Setting
    effective: Mapping[str, Setting]
    """GPU → what was in force there."""
    restored: tuple[Restored, ...]
    notes: tuple[str, ...] = ()
    held_s: float | None = None
    """For how long of the run it was in force, as far as is known; None where nobody looked."""
    ended_early: str | None = None
    """Why that is less than the whole run; None if it is not."""


@dataclass(frozen=True, slots=True)
class Result:
    """A command and what it used."""

    command: tuple[str, ...]
    exit_code: int
    started: str
    """When, in UTC, ISO 8601."""
    duration_s: float
    """From the start of the command to its end, in the GPUs' time."""
    gpus: tuple[GpuResult, ...]
    host: HostResult
    held: SetResult | None = None
    """What ``--set`` did; None where it was not asked for."""
    tuned: TuneResult | None = None
    """What ``--tune`` did; None where it was not asked for."""
    virtual: bool = False
    """Whether the GPUs were simulated."""

    @property
    def total(self) -> Measurement[Any] | None:
        """All GPUs that could be measured together; None where none could."""
        return together(self.gpus)


def headline(result: Result) -> str:
    """Joules, seconds and watts in one line; of the host where there is no GPU."""
    measured = result.total
    if measured is not None:
        energy = f"{format_energy(measured.energy_j, measured.error_j)} in {format_duration(measured.duration_s)}"
        return f"{energy}, {format_power(measured.power_w)} on average" if measured.duration_s > 0 else energy
    if result.host.energy_j is not None:
        power = format_power(result.host.energy_j / result.duration_s) if result.duration_s > 0 else "? W"
        return f"{format_energy(result.host.energy_j)} in {format_duration(result.duration_s)}, {power} (host only)"
    return f"no energy was measured in {format_duration(result.duration_s)}"


def gpu_names(result: Result) -> str:
    """``"4 × NVIDIA A100, NVIDIA H200"``."""
    counts = Counter(gpu.info.name for gpu in result.gpus)
    names = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    return f"{names} (virtual)" if names and result.virtual else names


def command_line(result: Result) -> str:
    """The command as one would type it."""
    return shlex.join(result.command)


def as_json(result: Result) -> dict[str, Any]:
    """The whole result, every number in the unit that its key ends in."""
    return {
        "command": list(result.command),
        "exit_code": result.exit_code,
        "started": result.started,
        "virtual": result.virtual,
        **measurement_json(result.total, None if result.gpus else "no GPU"),
        "duration_s": result.duration_s,
        "gpus": [
            {
                "uuid": gpu.info.uuid,
                "name": gpu.info.name,
                "index": gpu.info.index,
                "backend": gpu.info.backend,
                **measurement_json(gpu.measurement, gpu.reason),
                "low_power_w": gpu.series.low_w(),
                "peak_power_w": gpu.series.peak_w(),
            }
            for gpu in result.gpus
        ],
        "host": {"energy_j": result.host.energy_j, "reason": result.host.reason},
        "set": None if result.held is None else _set_json(result.held),
        "tune": None if result.tuned is None else tuned.as_json(result.tuned),
    }


def measured(result: Result) -> dict[str, Any]:
    """What the store keeps of it; see ``report.keeping.measured``."""
    return keeping.measured(
        result.gpus, duration_s=result.duration_s, host_j=result.host.energy_j, exit_code=result.exit_code
    )


def keep(kept: Keeping, result: Result, now_s: float, why: str | None = None, **instead: Any) -> str | None:
    """Keep what was measured; None, or why that could not be, in one line.

    ``why`` says how it ended, where whoever ran it knows better than its exit code; ``instead`` are measured facts that
    are known better, too.
    """
    if why is None:
        why = "ended" if result.exit_code == 0 else f"ended with exit code {result.exit_code}"
    facts = {}
    if result.tuned is not None and result.tuned.untuned is not None:
        facts["untuned"] = result.tuned.untuned
    if result.tuned is not None and result.tuned.advice is not None:
        facts["advised"] = advised(result.tuned.advice)
    return kept.end(now_s, why, {**measured(result), **instead}, **facts)


def _set_json(held: SetResult) -> dict[str, Any]:
    return {
        "requested": dict(held.requested),
        "effective": {uuid: dict(setting) for uuid, setting in held.effective.items()},
        "restored": [{**asdict(each), "ending": each.ending.value} for each in held.restored],
        "notes": list(held.notes),
        "held_s": held.held_s,
        "ended_early": held.ended_early,
    }


def as_text(result: Result, *, width: int) -> RenderableType:
    """For a terminal of ``width`` columns: the headline, the power over time, and how it is known."""
    head = Text("joulewise: ", style="dim")
    lines: list[RenderableType] = [head]
    if result.tuned is not None:  # what it was run for comes first
        head.append(result.tuned.headline, style="bold")
        head = Text("  ")
        lines.append(head)
    head.append(headline(result), style="bold" if result.tuned is None else "")
    names = Text("  " + gpu_names(result), style="cyan")
    if result.gpus and len(head) + len(names) <= width:
        head.append_text(names)
    elif result.gpus:
        lines.append(names)
    if len(result.gpus) == 1:
        lines.append(_curve(result.gpus[0], width))
    elif result.gpus:
        lines.append(_rows(result, width))
    lines.extend(Text("  " + line, style="dim") for line in _why(result))
    lines.extend(Text("  " + line, style="yellow") for line in _warnings(result))
    return Group(*lines)


def show(result: Result, console: Console) -> None:
    """Print the text, a line never broken in the middle of a number."""
    console.print(as_text(result, width=console.width), soft_wrap=True, highlight=False)


def _curve(gpu: GpuResult, width: int) -> Text:
    low_w, peak_w = gpu.series.low_w(), gpu.series.peak_w()
    if low_w is None or peak_w is None:
        return Text("  no power reading", style="yellow")
    span = f"{low_w:.0f} to {peak_w:.0f} W"
    line = Text("  ")
    room = max(10, min(60, width - len(span) - 6))
    line.append(sparkline(gpu.series.power_w(), width=room, top=gpu.series.top_w()), style="green")
    return line.append(f"  {span}", style="dim")


def _rows(result: Result, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("  GPU", no_wrap=True)
    # What does not fit is left out, from the right: half a number says nothing.
    shown = 2 if width < 48 else 3 if width < 56 else 4 if width < 72 else 5
    for heading in ("energy", "average", "peak")[: shown - 1]:
        table.add_column(heading, justify="right", no_wrap=True)
    if shown == 5:
        table.add_column("power over time", no_wrap=True)
    several_kinds = len({gpu.info.name for gpu in result.gpus}) > 1
    highest_w = max((gpu.series.top_w() or 0.0 for gpu in result.gpus), default=0.0)
    curve = max(8, min(40, width - 56))
    for gpu in result.gpus:
        measured, peak_w = gpu.measurement, gpu.series.peak_w()
        name = gpu.info.name.removeprefix("NVIDIA ") if several_kinds else short(gpu.info.uuid)
        cells: list[Text | str] = [
            Text(f"  {gpu.info.index} {name}"),
            format_energy(measured.energy_j, measured.error_j) if measured else Text("no reading", style="yellow"),
            format_power(measured.power_w) if measured else "",
            f"{peak_w:.0f} W" if peak_w is not None else "",
            Text(sparkline(gpu.series.power_w(), width=curve, top=highest_w), style="green"),
        ]
        table.add_row(*cells[:shown])
    return table


def _why(result: Result) -> list[str]:
    lines: list[str] = []
    measured = result.total
    if measured is not None:
        gain = f"besides ± {format_percent(measured.gain_error)} of the sensor"
        lines.append(f"{_SOURCES[measured.source]}; ± one standard error, {gain}")
    if result.host.energy_j is not None and measured is not None:
        lines.append(f"host (processors and memory): {format_energy(result.host.energy_j)} more")
    if result.held is not None:
        lines.extend(line for line, trouble in _set_lines(result.held) if not trouble)
    if result.tuned is not None:
        lines.extend(tuned.why(result.tuned))
        if result.tuned.report is not None:
            lines.append(f"the report is {result.tuned.report}")
    return lines


def _early(held: SetResult, duration_s: float) -> list[str]:
    """For how much of the run the setting was there, if not for all; the way out was said when it happened."""
    if held.ended_early is None:
        return []
    for_s = "" if held.held_s is None else f" for the first {held.held_s:.1f} of {duration_s:.1f} s"
    return [f"{knobs.chosen(held.requested)}: in force{for_s} only, {held.ended_early.partition('; ')[0]}"]


def _set_lines(held: SetResult) -> list[tuple[str, bool]]:
    """What was set and what came back, a line a knob, and whether it is trouble."""
    if held.restored:
        return knobs.restored_lines(held.restored, gpus=len(held.effective), effective=held.effective)
    return [(f"{knobs.chosen(held.requested)}, whether it came back is not known: see 'joulewise doctor'", True)]


def _warnings(result: Result) -> list[str]:
    lines = [f"{short(gpu.info.uuid)}: {gpu.reason}" for gpu in result.gpus if gpu.reason is not None]
    for gpu in result.gpus:
        if gpu.measurement is not None:
            lines.extend(f"{short(gpu.info.uuid)}: {note}" for note in gpu.measurement.notes)
    if result.held is not None:
        lines.extend(_early(result.held, result.duration_s))
        lines.extend(line for line, trouble in _set_lines(result.held) if trouble)
        lines.extend(result.held.notes)
    if result.tuned is not None:
        lines.extend(tuned.trouble(result.tuned))
    if not result.gpus and result.host.energy_j is None:
        lines.append(f"host: {result.host.reason}")
    if result.exit_code:
        lines.append(f"{result.command[0]} ended with {ending(result.exit_code)}")
    return list(dict.fromkeys(lines))


def ending(exit_code: int) -> str:
    """How a command ended, in words: ``"exit code 3"``, ``"signal SIGKILL"``."""
    import signal

    if exit_code > 128:
        try:
            return f"signal {signal.Signals(exit_code - 128).name} (exit code {exit_code})"
        except ValueError:
            pass
    return f"exit code {exit_code}"


def short(uuid: str) -> str:
    """The first part of a UUID, enough to tell the GPUs of a node apart."""
    return uuid[:12]
