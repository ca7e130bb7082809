"""What a store keeps of a tuned run beside its journal: power every second, when steps ended, the measured total.

``tune/audit`` compares the blocks of the journal with it; ``digest`` pins it, so that a countersignature covers the
readings as well as the journal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulewise.core.event import Began, Event
from joulewise.store import views
from joulewise.store.pace import Pace, pace_stream, read
from joulewise.store.readings import Sample
from joulewise.store.store import Store

_SAME_CLOCK_S = 1.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was kept of a run beside its journal. Times are those of the journal's clock, in ``Sample.at_s`` too."""

    power: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    """GPU → its samples, in order. Empty where there are none."""
    pace: Mapping[str, Pace] = field(default_factory=dict)
    """Phase → its steps. Empty where none were kept."""
    measured_j: float | None = None
    """Joules of the whole run on all its GPUs; None where nothing says."""
    digest: str = ""
    """SHA-256 of all of it, in hexadecimal."""
    trouble: str = ""
    """Why the readings cannot be placed on the journal's clock; empty where they can."""


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
    total_j = None if measured is None else measured.get("energy_j")
    known = isinstance(total_j, int | float) and not isinstance(total_j, bool) and math.isfinite(total_j)
    starts = [event.facts.get("unix_s") for event in events if isinstance(event, Began)]
    clocks = [start for start in starts if isinstance(start, int | float) and math.isfinite(start)]
    trouble = ""
    if samples and len(clocks) < max(1, len(starts)):
        trouble = "the journal does not say when its clock began"
    elif samples and max(clocks) - min(clocks) > _SAME_CLOCK_S:
        trouble = "the run was begun on several clocks"
    if trouble:
        return Evidence(digest=digest.hexdigest(), trouble=trouble)
    power = {uuid: [replace(each, at_s=each.at_s - clocks[-1]) for each in some] for uuid, some in samples.items()}
    return Evidence(power, pace, float(total_j) if known and total_j is not None else None, digest.hexdigest())


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
