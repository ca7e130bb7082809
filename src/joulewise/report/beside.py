"""What a report tells beside the tuner's journal: what the whole command used, how it was measured, and its carbon.

A tuned run's journal ends before its command does, so that these stand elsewhere (``store.views.Run.measured``) or come
from whoever asks for the report. The page carries them, so that ``joulewise verify`` can draw it again. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from joulewise.core.units import format_duration, format_energy, format_percent, format_power
from joulewise.report import worth
from joulewise.report.claim import STANDARD_ERRORS, Claim
from joulewise.report.knobs import ceiling
from joulewise.report.worth import Carbon

SOURCES = {
    "counter": "the GPUs’ own energy counters",
    "integrated": "power readings, summed over time",
    "modelled": "a model, not a sensor",
}
"""Where joules come from, in words."""


@dataclass(frozen=True, slots=True)
class Beside:
    """``measured`` as the store keeps it (None: nobody measured the whole command), ``carbon`` as it was asked for."""

    measured: Mapping[str, Any] | None = None
    carbon: Carbon | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        carbon = None if self.carbon is None else self.carbon.to_json()
        return {"measured": None if self.measured is None else dict(self.measured), "carbon": carbon}

    @classmethod
    def from_json(cls, values: object) -> Beside:
        """What ``to_json`` wrote; ValueError for anything else."""
        measured, carbon = (
            (values.get(key) for key in ("measured", "carbon")) if isinstance(values, Mapping) else (0, 0)
        )
        if not (measured is None or isinstance(measured, Mapping)):
            raise ValueError("what the command used cannot be read")
        return cls(measured, None if carbon is None else Carbon.from_json(carbon))

    @property
    def energy_j(self) -> float | None:
        """What the command used on all of its GPUs; None where that is not known."""
        return number(self.measured, "energy_j")

    @property
    def error_j(self) -> float | None:
        """One standard error of it, the sensor's own included; None where it is not known."""
        return error_j(self.measured)


def number(values: Mapping[str, Any] | None, key: str) -> float | None:
    """A finite number out of JSON that somebody may have edited; None for anything else."""
    value = (values or {}).get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def error_j(values: Mapping[str, Any] | None) -> float | None:
    """One standard error of ``energy_j`` in J: of sampling, and of the sensor. None where it is not known."""
    energy_j, sampling_j = number(values, "energy_j"), number(values, "energy_error_j")
    if energy_j is None or sampling_j is None:
        return None
    return math.hypot(sampling_j, (number(values, "gain_error") or 0.0) * energy_j)


def tiles(beside: Beside) -> list[tuple[str, str]]:
    """What stands at the top of a report: joules and mean power of the whole command."""
    energy_j, duration_s = beside.energy_j, number(beside.measured, "duration_s")
    if energy_j is None:
        return []
    shown = [
        (
            format_energy(energy_j, beside.error_j),
            "used by the whole command, ± one standard error, the sensor’s included",
        )
    ]
    if duration_s:
        shown.append((format_power(energy_j / duration_s), f"on average over {format_duration(duration_s)}"))
    return shown


def spent(beside: Beside) -> str:
    """GPU by GPU what was used, as HTML; empty where nothing was measured."""
    measured = beside.measured
    if measured is None or beside.energy_j is None:
        return '<p class="say">No energy of the whole command was measured.</p>'
    gpus = [gpu for gpu in _list(measured.get("gpus")) if isinstance(gpu, Mapping)]
    rows = [_row(f"{gpu.get('name') or 'GPU'} {str(gpu.get('uuid') or '')[:12]}", gpu) for gpu in gpus]
    rows += [_row("all GPUs", measured)] if len(rows) != 1 else []
    host_j = number(measured, "host_energy_j")
    said = [] if host_j is None else [f"Processors and memory of the host took {format_energy(host_j)} more."]
    code = measured.get("exit_code")
    said += [f"The command ended with exit code {code}."] if isinstance(code, int) and code else []
    return (
        '<div class="wide"><table><thead><tr><th>GPU</th><th class="n">energy</th><th class="n">on average</th>'
        f"<th>measured by</th></tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
        + "".join(f'<p class="small">{escape(each)}</p>' for each in said)
    )


def _row(name: str, part: Mapping[str, Any]) -> str:
    energy_j, duration_s = number(part, "energy_j"), number(part, "duration_s")
    if energy_j is None:
        why = str(part.get("reason") or "no reading")
        return f'<tr><td>{escape(name)}</td><td class="n"></td><td class="n"></td><td>{escape(why)}</td></tr>'
    mean = format_power(energy_j / duration_s) if duration_s else ""
    by = SOURCES.get(str(part.get("source")), str(part.get("source") or ""))
    return (
        f'<tr><td>{escape(name)}</td><td class="n">{escape(format_energy(energy_j, error_j(part)))}</td>'
        f'<td class="n">{escape(mean)}</td><td>{escape(by)}</td></tr>'
    )


def method(facts: Mapping[str, Any], claim: Claim, beside: Beside) -> str:
    """How the figures came about, in words for whoever has to rely on them; HTML."""
    said = []
    if beside.energy_j is not None:
        by = SOURCES.get(str((beside.measured or {}).get("source")), "its sensors")
        gain = number(beside.measured, "gain_error")
        beyond = f", with {format_percent(gain)} for the sensor itself" if gain else ""
        alone = " A headline’s ± is of sampling alone." if gain and facts.get("tuned") is False else ""
        said.append(
            f"Energy is that of the GPUs from the start of the command to its end, by {by}. ± is one standard error of "
            f"sampling{beyond}.{alone} The host, its fans and the room’s cooling are not in it."
        )
    wanted = facts.get("set")
    if isinstance(wanted, Mapping) and wanted:
        knobs = [ceiling(str(knob), value) for knob, value in wanted.items() if isinstance(value, (int, float))]
        said.append(f"The user had set {', '.join(knobs)}.")
    if claim.held:
        said.append(
            "The saving is against the same job on the same GPUs with nothing set: while it ran, short baseline "
            "windows at times drawn from a seed beforehand had the default setting, and were compared with the "
            "work around them. Probing and the windows themselves count as spent. ± of a saving is half of a 95 % "
            "interval; the sensor’s own error cancels in such a ratio."
        )
    elif facts.get("tuned") is False:
        said.append("Nothing was tuned, so no saving is claimed.")
    if facts.get("virtual") or facts.get("simulated"):
        said.append("The GPUs were simulated or replayed: none of these joules was spent now.")
    return "".join(f"<p>{escape(each)}</p>" for each in said)


def carbon(claim: Claim, beside: Beside) -> str:
    """What that means in CO2e, with factor and source; HTML, empty where no factor was given."""
    if beside.carbon is None:
        return ""
    error = beside.error_j
    used = None if beside.energy_j is None else worth.Amount(beside.energy_j, STANDARD_ERRORS * (error or 0.0))
    saved = None if claim.saved_j is None else worth.Amount(claim.saved_j, claim.saved_half_j or 0.0)
    said = worth.carbon_lines(beside.carbon, used, saved)
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in said)}</ul>"


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
