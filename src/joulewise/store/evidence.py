"""What a store keeps of a tuned run beside its journal: power every second, when steps ended, the measured total.

``tune/audit`` compares the blocks of the journal with it; ``digest`` pins it, so that a countersignature covers the
readings as well as the journal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from joulewise.core.event import Began, Event
from joulewise.store import views
from joulewise.store.journal import Journal
from joulewise.store.pace import Pace, pace_stream, read
from joulewise.store.readings import Sample
from joulewise.store.store import Store

_SAME_CLOCK_S: Final = 1.0
_CIRCUMSTANCES: Final = {
    "gpus": "that it was tuned on",
    "gpu_names": "that its GPUs are",
    "virtual": "virtual:",
    "simulated": "simulated:",
    "speed": "that its clock's speed was",
}
"""Facts of a run's first event that are kept beside the journal as well, and how they read in a line."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was kept of a run beside its journal. Times are those of the journal's clock, in ``Sample.at_s`` too."""

    power: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    """GPU → its samples, in order. Empty where there are none."""
    pace: Mapping[str, Pace] = field(default_factory=dict)
    """Phase → its steps. Empty where none were kept."""
    measured_j: float | None = None
    """Joules of the run on its GPUs, in its last process; None where nothing says."""
    measured_s: float | None = None
    """How long that process was measured, up to the last reading; None where nothing says."""
    speed: float = 1.0
    """How fast the clock of the journal runs against the wall's, by what was kept beside it."""
    readings_error: float = 0.0
    """One standard error of the power of some seconds beyond their scatter, as a share of it (``store.thinned``)."""
    contradictions: tuple[str, ...] = ()
    """Where the journal says otherwise than what was kept beside it of GPUs, clock and whether they were virtual."""
    digest: str = ""
    """SHA-256 of all of it, in hexadecimal."""
    trouble: str = ""
    """Why the readings cannot be placed on the journal's clock; empty where they can."""


def circumstances(journal: Journal | None) -> dict[str, Any]:
    """What the end of a run keeps beside its journal of how it ran, for whoever edits the journal later: a dict with
    ``circumstances``, or an empty one without a tuner's journal."""
    events = [] if journal is None else [event for _, event in journal.read() if isinstance(event, Began)]
    if not events:
        return {}
    facts = events[-1].facts
    return {"circumstances": {name: facts.get(name) for name in _CIRCUMSTANCES if name in facts}}


def evidence(store: Store, run: str, events: Sequence[Event]) -> Evidence:
    """What ``store`` keeps of ``run`` beside ``events``, its journal. NotKept when the store cannot be read, BadSpec
    where what is kept is damaged."""
    readings = store.readings()
    samples = {uuid: list(readings.samples(run, uuid)) for uuid in readings.gpus(run)}
    pace = read(event for _, event in store.journal(pace_stream(run)).read())
    kept = views.one(store.tables, run)
    measured = None if kept is None or kept.measured is None else dict(kept.measured)
    digest = hashlib.sha256()
    for uuid, some in sorted(samples.items()):
        rows = [[round(1000 * each.at_s), each.power_w, each.sm_mhz, each.memory_mhz, each.limit_w] for each in some]
        digest.update(_line(["power", uuid, rows]))
    for phase, each in sorted(pace.items()):
        digest.update(_line(["pace", phase, each.start_s, each.end_s, each.work]))
    digest.update(_line(["measured", measured]))
    begun = [event for event in events if isinstance(event, Began)]
    clocks = [start for start in (_number(event.facts.get("unix_s")) for event in begun) if start is not None]
    beside = _mapping((measured or {}).get("circumstances"))
    speed = _number(beside.get("speed"))
    trouble = ""
    if samples and len(clocks) < max(1, len(begun)):
        trouble = "the journal does not say when its clock began"
    elif samples and max(clocks) - min(clocks) > _SAME_CLOCK_S:
        trouble = "the run was begun on several clocks"
    elif samples and speed is None and any(event.facts.get("speed", 1.0) != 1.0 for event in begun):
        # Its word alone must not say how closely the readings can be compared.
        trouble = "how fast the run's clock ran is told by its journal alone"
    against = tuple(_contradictions(begun, beside, measured or {}))
    if trouble:
        return Evidence(digest=digest.hexdigest(), contradictions=against, trouble=trouble)
    power = {uuid: [replace(each, at_s=each.at_s - clocks[-1]) for each in some] for uuid, some in samples.items()}
    uuids = list(map(str, _list(begun[-1].facts.get("gpus")))) if begun else []
    total_j, total_s = _total(measured or {}, uuids)
    strayed = _number((measured or {}).get("readings_error")) or 0.0
    return Evidence(power, pace, total_j, total_s, speed or 1.0, max(0.0, strayed), against, digest.hexdigest())


def _total(measured: Mapping[str, Any], uuids: Sequence[str]) -> tuple[float | None, float | None]:
    """Joules and seconds of these GPUs: a node has others, which are measured as well."""
    gpus = {str(each.get("uuid")): each for each in _list(measured.get("gpus")) if isinstance(each, Mapping)}
    if not gpus:
        return _number(measured.get("energy_j")), _number(measured.get("duration_s"))
    ours = [gpus.get(uuid, {}) for uuid in uuids]
    joules = [_number(each.get("energy_j")) for each in ours]
    seconds = [each for each in (_number(each.get("duration_s")) for each in ours) if each is not None]
    known = [each for each in joules if each is not None]
    return (sum(known) if known and len(known) == len(ours) else None), (max(seconds) if seconds else None)


def _contradictions(begun: Sequence[Began], beside: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    """Where what the journal says of how the run ran is not what was kept beside it."""
    names = {
        str(each.get("uuid")): each.get("name") for each in _list(measured.get("gpus")) if isinstance(each, Mapping)
    }
    for began in begun:
        for name, words in _CIRCUMSTANCES.items():
            if name in beside and began.facts.get(name) != beside[name]:
                yield f"the journal says {words} {began.facts.get(name)!r}, what was kept beside it {beside[name]!r}"
        if "gpu_names" in beside:
            continue
        for uuid, name in zip(_list(began.facts.get("gpus")), _list(began.facts.get("gpu_names")), strict=False):
            if names.get(str(uuid)) not in (None, name):
                yield f"the journal says that {uuid} is {name!r}, what was measured that it is {names[str(uuid)]!r}"


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    """A finite number above 0; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value) if value > 0 else None


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
