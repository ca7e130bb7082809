"""Which law stands for a GPU that is known by its name alone, and how far it may be from the truth.

What it is: from a name as exporters write it ("NVIDIA H100 80GB HBM3") to the catalogue's own model, to that of a
neighbour of the same architecture with wider spreads, or to a stranger of which only the highest clock and the power
limit are known. What it is not: a claim that a neighbour was measured; `Kin.says` tells which it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Choices, Space
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.hypotheses import CARD

# Words of a name → a model of the catalogue with the same architecture; the first that fits. Dies differ in size, and
# boards in their limit: powers are scaled to the limit.
_NEIGHBOURS = (
    (r"\b(GH200|H100|H200|H800|H20)\b", "h200"),
    (r"\b(GB200|GB300|B100|B200|B300)\b", "b300"),
    (r"\bRTX\s*PRO\s*\d+|\bRTX\s*50[5-9]0\b", "rtxpro6000"),
    (r"\bA(100|800)\b.*\bPCIE?\b|\bPG509|\bA30\b", "a100"),
    (r"\bA(100|800)\b", "a100-sxm"),
    (r"\bA(2|10|10G|16|40)\b|\bA[2456][05]00\b|\bRTX\s*30[5-9]0\b", "a40"),
    (r"\bV100S?\b|\bTITAN V\b", "v100"),
    (r"\bT4G?\b|\bRTX\s*[4-8]000$|\bRTX\s*20[6-8]0\b|\bTITAN RTX\b", "rtx8000"),
    (r"\bP(100|40|4)\b", "p100"),
    (r"\bTITAN X|\bGTX\s*10[5-8]0\b", "titanx"),
)
_FURTHER = 1.7
"""Spreads of a neighbour's card against those of the model's own cards: what the models of the catalogue differ by."""
_UNSURE_LIMIT = 0.15
"""Of a limit that was guessed from the highest power seen, in logarithms."""
_LEAST_CLOCK_MHZ = 300.0
_LOWER_MEMORY = 0.8
"""A memory clock that a stranger may have below its highest: 0.69 (H200) to 0.93 (RTX 6000) in the catalogue."""


@dataclass(frozen=True, slots=True)
class Kin:
    """A law for GPUs of one name."""

    name: str
    """As the exporter writes it."""
    kind: str
    """"own", "neighbour" or "stranger"."""
    says: str
    """For people: what the law rests on."""
    limit_w: float
    space: Space
    model: GpuModel | None
    memory_mhz: tuple[float, ...] = ()
    """Memory clocks that can be set."""
    memory_sure: bool = True
    """Whether it is known that these can be set; else it is as likely as not."""
    limit_unsure: float = 0.0
    card: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def kin_of(
    name: str,
    *,
    limit_w: float | None = None,
    most_w: float | None = None,
    most_sm_mhz: float | None = None,
    most_memory_mhz: float | None = None,
) -> Kin:
    """The law for GPUs called ``name``. ``limit_w`` is their power limit, if known; ``most_w``, ``most_sm_mhz`` and
    ``most_memory_mhz`` are the highest power and clocks that were seen of any of them."""
    try:
        own = catalog.load(name)
    except BadSpec:
        own = None
    if own is not None:
        return Kin(name, "own", f"the law of {own.name}", own.default_limit_w, own.space, own, own.memory_mhz.all())
    guessed_w = limit_w if limit_w is not None else most_w
    unsure = 0.0 if limit_w is not None else _UNSURE_LIMIT
    for pattern, key in _NEIGHBOURS:
        if re.search(pattern, name.upper()):
            return _neighbour(name, catalog.load(key), guessed_w, unsure, (most_sm_mhz, most_memory_mhz))
    limit_w = guessed_w or 300.0
    high = max(most_sm_mhz or 1500.0, _LEAST_CLOCK_MHZ)
    memory = (_LOWER_MEMORY * most_memory_mhz, most_memory_mhz) if most_memory_mhz else ()
    knobs = {"sm_mhz": Choices(0.2 * high, high, 1.0)} | ({"memory_mhz": Choices.of(memory)} if memory else {})
    says = "no law of this GPU is known: any GPU of this limit and clock"
    return Kin(name, "stranger", says, limit_w, Space(knobs), None, memory, False, unsure)


def _neighbour(
    name: str, near: GpuModel, limit_w: float | None, unsure: float, most_mhz: tuple[float | None, float | None]
) -> Kin:
    limit_w = limit_w or near.default_limit_w
    scale, chip = limit_w / near.default_limit_w, near.chip
    seen_mhz, memory_seen_mhz = most_mhz
    high = seen_mhz if seen_mhz is not None and seen_mhz > _LEAST_CLOCK_MHZ else chip.sm_max_mhz
    memory_high = memory_seen_mhz or chip.memory_max_mhz
    memory = tuple(mhz * memory_high / chip.memory_max_mhz for mhz in near.memory_mhz.all())
    chip = replace(
        chip,
        sm_max_mhz=high,
        memory_max_mhz=memory_high,
        static_w=chip.static_w * scale,
        idle_w=chip.idle_w * scale,
        deep_idle_w=chip.deep_idle_w * scale,
        memory_w=chip.memory_w * scale,
    )
    clocks = Choices(0.2 * high, high, 1.0)
    model = replace(near, name=name, chip=chip, default_limit_w=limit_w, sm_mhz=clocks, memory_mhz=Choices.of(memory))
    card = {
        dial.name: (
            chip.memory_w / chip.static_w if dial.name == "memory_part" else float(getattr(chip, dial.name)),
            _FURTHER * dial.spread,
        )
        for dial in CARD
    }
    says = f"no law of its own: that of {near.name}, of the same architecture, with wider spreads"
    return Kin(name, "neighbour", says, limit_w, model.space, model, memory, False, unsure, card)
