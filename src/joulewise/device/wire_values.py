"""The values inside messages, to and from JSON: readings, spaces, how a knob came back. Pure functions, no I/O.

``wire`` frames and checks messages; this is what they carry. What is not known is left out, never written as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from joulewise.core.errors import BadMessage
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, Throttle
from joulewise.device.lease import Ending, Notice, Restored

_MOST_WHY = 200  # characters: 64 GPUs × 3 knobs of them fit into one line
_READING = tuple(each.name for each in fields(Reading))


def from_space(space: Space) -> dict[str, Any]:
    """What may be set, as plain objects: a range, a range with a step, or the values themselves."""
    return {knob: _from_choices(choices) for knob, choices in space.knobs.items()}


def to_space(obj: Mapping[str, Any]) -> Space:
    """The opposite of ``from_space``."""
    return Space({knob: _to_choices(each) for knob, each in obj.items()})


def _from_choices(choices: Choices) -> dict[str, Any]:
    if choices.values:
        return {"values": list(choices.values)}
    step = {} if choices.step is None else {"step": choices.step}
    return {"low": choices.low, "high": choices.high, **step}


def _to_choices(obj: Mapping[str, Any]) -> Choices:
    if "values" in obj:
        return Choices.of([float(value) for value in obj["values"]])
    step = obj.get("step")
    return Choices(float(obj["low"]), float(obj["high"]), None if step is None else float(step))


def from_reading(reading: Reading) -> dict[str, Any]:
    """What was read; what was not is left out."""
    known = {name: value for name in _READING if (value := getattr(reading, name)) is not None}
    if reading.throttle is not None:
        known["throttle"] = sorted(reading.throttle)
    return known


def to_reading(obj: Mapping[str, Any]) -> Reading:
    """The opposite of ``from_reading``; fields of a newer daemon are ignored."""
    known = {name: obj[name] for name in _READING if name in obj}
    if "throttle" in known:
        known["throttle"] = frozenset(Throttle(reason) for reason in known["throttle"])
    return Reading(**known)


def from_energy(energy: EnergyReading) -> dict[str, Any]:
    """The counter."""
    return {"time_s": energy.time_s, "energy_j": energy.energy_j, "call_s": energy.call_s}


def to_energy(obj: Mapping[str, Any]) -> EnergyReading:
    """The opposite of ``from_energy``."""
    return EnergyReading(float(obj["time_s"]), float(obj["energy_j"]), float(obj.get("call_s", 0.0)))


def from_restored(restored: Restored) -> dict[str, Any]:
    """How one knob came back; None stays null, since it says "not known" or "no lock"."""
    return {
        "gpu": restored.gpu,
        "knob": restored.knob,
        "ending": restored.ending.value,
        "before": restored.before,
        "wrote": restored.wrote,
        "after": restored.after,
        **({"why": restored.why[:_MOST_WHY]} if restored.why else {}),
    }


def to_restored(obj: Mapping[str, Any]) -> Restored:
    """The opposite of ``from_restored``. BadMessage if it is none."""
    try:
        return Restored(
            obj["gpu"],
            obj["knob"],
            Ending(obj["ending"]),
            obj["before"],
            obj["wrote"],
            obj["after"],
            obj.get("why", ""),
        )
    except (KeyError, ValueError) as error:
        raise BadMessage(f"the daemon says in a way we do not know how a knob came back: {error}") from None


def from_notice(lease: str, notice: Notice) -> dict[str, Any]:
    """An event for the owner of ``lease``."""
    said = {"gpu": notice.gpu, "knob": notice.knob, "wrote": notice.wrote, "found": notice.found}
    known = {name: value for name, value in said.items() if value is not None}
    return {"event": notice.kind, "lease": lease, "says": notice.says, **known}


def to_notice(obj: Mapping[str, Any]) -> Notice:
    """The opposite of ``from_notice``."""
    return Notice(
        str(obj["event"]),
        str(obj.get("says", "")),
        obj.get("gpu"),
        obj.get("knob"),
        obj.get("wrote"),
        obj.get("found"),
    )
