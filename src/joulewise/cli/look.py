"""How a GPU at one instant looks: a row of ``joulewise top``, a line under ``joulewise run --live``, and JSON.

Pure. What was not read shows as a dash, never as 0. JSON keys end in their unit and are part of the public surface;
what was not read is null:

``uuid`` · ``name`` · ``index`` · ``backend`` · ``power_w`` · ``average_power_w`` (the driver's slow average) ·
``power_limit_w`` · ``sm_mhz`` · ``memory_mhz`` · ``utilization`` and ``memory_utilization`` (0 to 1) ·
``temperature_c`` · ``memory_used_bytes`` · ``memory_bytes`` · ``throttle`` (reasons in words; empty: none) ·
``energy_j`` ± ``error_j`` (since watching began) · ``counter_j`` (since the driver was loaded; ``--once`` only) ·
``pids`` · ``reason`` (why there is no reading).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from joulewise.core.measurement import Measurement, Reading, Throttle
from joulewise.core.units import format_si
from joulewise.device.gpu import GpuInfo

if TYPE_CHECKING:
    from joulewise.report.meter import Meter

NOTHING = "–"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Shares of the limit from which power is worth a second look; for the eye only.
_WARM, _HOT = 0.75, 0.95


@dataclass(frozen=True, slots=True)
class Sight:
    """One GPU as seen now. ``reading`` is None once it can no longer be read, and ``reason`` says why."""

    info: GpuInfo
    reading: Reading | None
    used: Measurement[Any] | None = None
    """Energy since watching began."""
    pids: tuple[int, ...] | None = None
    reason: str | None = None
    counter_j: float | None = None
    """What the GPU's own counter shows, joules since its driver was loaded."""

    def as_json(self) -> dict[str, Any]:
        """Every number in the unit that its key ends in; null where nothing was read."""
        reading = self.reading or Reading(time_s=0.0)
        return {
            "uuid": self.info.uuid,
            "name": self.info.name,
            "index": self.info.index,
            "backend": self.info.backend,
            "power_w": reading.power_w,
            "average_power_w": reading.average_power_w,
            "power_limit_w": reading.power_limit_w,
            "sm_mhz": reading.sm_mhz,
            "memory_mhz": reading.memory_mhz,
            "utilization": reading.utilization,
            "memory_utilization": reading.memory_utilization,
            "temperature_c": reading.temperature_c,
            "memory_used_bytes": reading.memory_used_bytes,
            "memory_bytes": self.info.memory_bytes,
            "throttle": sorted(reason.value for reason in reading.throttle) if reading.throttle is not None else None,
            "energy_j": self.used.energy_j if self.used else None,
            "error_j": self.used.error_j if self.used else None,
            "counter_j": self.counter_j,
            "pids": list(self.pids) if self.pids is not None else None,
            "reason": self.reason,
        }


def sights(meter: Meter) -> list[Sight]:
    """Every GPU of ``meter`` as its sampler last saw it, with its energy so far."""
    report = meter.so_far()
    return [
        Sight(
            info=track.gpu.info,
            reading=track.latest if track.lost is None else None,
            used=report.gpus.get(track.gpu.info.uuid) if report else None,
            reason=None if track.lost is None else str(track.lost),
        )
        for track in (meter.sampler.tracks if meter.sampler is not None else ())
    ]


def value(number: float | None, unit: str, *, decimals: int = 0) -> str:
    """A number with its unit, or a dash."""
    return NOTHING if number is None else f"{number:.{decimals}f} {unit}"


def percent(ratio: float | None) -> str:
    """A ratio as whole percent, or a dash."""
    return value(None if ratio is None else ratio * 100, "%")


def power(reading: Reading) -> Text:
    """Power against its limit, in the colour of how near it is."""
    if reading.power_w is None:
        return Text(NOTHING, style="dim")
    if reading.power_limit_w is None:
        return Text(f"{reading.power_w:.0f} W")
    share = reading.power_w / reading.power_limit_w
    text = Text(f"{reading.power_w:.0f}", style="red" if share >= _HOT else "yellow" if share >= _WARM else "green")
    return text.append(f" / {reading.power_limit_w:.0f} W", style="default")


def bar(share: float | None, width: int) -> str:
    """``share`` of ``width`` characters filled, in eighths of a character."""
    if share is None:
        return " " * width
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def throttle(reading: Reading) -> str:
    """Why the clock is held back, in words; empty when it is not."""
    if reading.throttle is None:
        return NOTHING
    return ", ".join(reason.value for reason in Throttle if reason in reading.throttle)


def energy(used: Measurement[Any] | None) -> str:
    """Joules since watching began, or a dash."""
    return NOTHING if used is None else format_si(used.energy_j, "J")


def name(info: GpuInfo) -> str:
    """The model's name without its maker, which says nothing new in a column."""
    return info.name.removeprefix("NVIDIA ").removeprefix("AMD ")


def table(sights: Sequence[Sight], *, width: int) -> Table:
    """One row a GPU, made for ``width`` columns: what has no room is left out, not cut."""
    wide, usual, some = width >= 110, width >= 78, width >= 58
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=False)
    shown.add_column("GPU", no_wrap=True, overflow="ellipsis", max_width=26 if wide else 16 if some else 12)
    shown.add_column("power / limit", justify="right", no_wrap=True)
    if wide:
        shown.add_column("", no_wrap=True)
    if some:
        shown.add_column("SM clock", justify="right", no_wrap=True)
    if wide:
        shown.add_column("memory", justify="right", no_wrap=True)
    if some:
        shown.add_column("busy", justify="right", no_wrap=True)
    if usual:
        shown.add_column("temp", justify="right", no_wrap=True)
        shown.add_column("throttle", no_wrap=True, overflow="ellipsis", max_width=26 if wide else 11)
    watched = any(sight.used is not None for sight in sights)
    if watched:
        shown.add_column("energy", justify="right", no_wrap=True)
    if wide:
        shown.add_column("pids", no_wrap=True, overflow="ellipsis")
    for sight in sights:
        reading = sight.reading
        title = Text(f"{sight.info.index} {name(sight.info)}", style="bold")
        if reading is None:
            # The reason stands below the table, in full.
            shown.add_row(title, Text("no reading", style="red"))
            continue
        share = None
        if reading.power_w is not None and reading.power_limit_w:
            share = reading.power_w / reading.power_limit_w
        cells: list[Text | str] = [title, power(reading)]
        if wide:
            cells.append(Text(bar(share, 12), style="green"))
        if some:
            cells.append(value(reading.sm_mhz, "MHz"))
        if wide:
            cells.append(value(reading.memory_mhz, "MHz"))
        if some:
            cells.append(percent(reading.utilization))
        if usual:
            cells += [value(reading.temperature_c, "°C"), Text(throttle(reading), style="yellow")]
        if watched:
            cells.append(energy(sight.used))
        if wide:
            cells.append(NOTHING if sight.pids is None else " ".join(map(str, sight.pids)))
        shown.add_row(*cells)
    return shown


def line(sight: Sight, *, name_width: int = 0) -> Text:
    """One GPU in one line, for the panel under a running command; columns stand below each other."""
    text = Text(f"{sight.info.index} {name(sight.info)}".ljust(name_width) + "  ", style="bold")
    if sight.reading is None:
        return text.append(f"no reading: {sight.reason or 'not yet'}", style="red")
    drawn = power(sight.reading)
    text.append(" " * (11 - len(drawn)), style="not bold").append_text(drawn)
    text.append(f"  {value(sight.reading.sm_mhz, 'MHz'):>8}", style="not bold")
    text.append(f"  {percent(sight.reading.utilization):>5}", style="not bold")
    text.append(f"  {value(sight.reading.temperature_c, '°C'):>5}", style="not bold")
    held = throttle(sight.reading)
    return text.append(f"  {held}", style="yellow not bold") if held and held != NOTHING else text
