"""Many laws at once: draws of what is unknown about a card and a load, evaluated at settings.

What it is: the list of unknowns with their priors, and the law of ``model/physics`` over arrays (draws × settings).
What it is not: a belief; ``model/dvfs`` decides which draws are likely.

Time has no scale here (a unit of work has ``gpu_s`` 1): only ratios are ever compared with measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.knob import MEMORY_MHZ, POWER_LIMIT_W, SM_MHZ, Setting, Space
from joulewise.model import physics
from joulewise.model.catalog import GpuModel
from joulewise.model.learnt import LoadPrior
from joulewise.model.physics import Chip, Load
from joulewise.model.unknowns import Dial

Array = NDArray[Any]

# The load. Middle and spread of the library of model/families and of the fits of 217 power-limit series and 158
# applications that it draws from: κ from 0.02 (streaming) to 1, dynamic power 0.07 (NCF) to 2.1 of limit − static.
LOAD = (
    Dial("sm_share", 0.0, 1.0, 0.8, 2.4),
    Dial("intensity", 0.0, math.inf, 0.85, 0.7),  # dynamic_w / (default limit − static power of the model)
    Dial("host_part", 0.0, math.inf, 0.2, 1.3),  # host_s / gpu_s
    Dial("dram_part", 0.0, 1.0, 0.6, 1.2),  # dram_share / (1 − sm_share)
    Dial("sharpness", 1.0, 6.0, 1.6, 0.9),
    # A parameter of the chip in the law, but what share of the energy memory takes is the load's: fits give 0.07–0.98.
    Dial("memory_share", 0.0, 1.0, 0.4, 1.5),
)
# The card. Centres are the model's own; the spread is that of cards of one model (10–20 % in power at equal work,
# mostly leakage) and of the fit itself, in which static power, voltage floor and memory share trade off.
CARD = (
    Dial("static_w", 0.0, math.inf, 1.0, 0.18),
    Dial("idle_w", 0.0, math.inf, 1.0, 0.2),
    Dial("volt_knee", 0.02, 0.98, 0.68, 0.35),
    Dial("volt_floor", 0.2, 1.0, 0.68, 0.3),
    Dial("limiter_gain", 0.5, math.inf, 1.0, 0.03),
    Dial("overlap", 1.0, 20.0, 2.0, 0.7),
    Dial("memory_part", 0.0, 1.0, 0.3, 0.6),  # memory_w / static_w
)
# A GPU that the catalogue does not know: the models of the catalogue differ by this much. Powers in units of the
# default limit: static 0.09 (V100) to 0.28 (RTX 8000), idle 0.11 to 0.18.
_STRANGER = {
    "static_w": (0.2, 0.4),
    "idle_w": (0.15, 0.4),
    "volt_knee": (0.63, 0.7),
    "volt_floor": (0.66, 0.6),
    "limiter_gain": (0.99, 0.05),
    "overlap": (2.0, 0.8),
    "memory_part": (0.25, 0.8),
}
_STRANGER_FLOOR = 0.17  # sm_floor, of most models of the catalogue


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What every draw (rows) says of every setting (columns)."""

    time: Array
    """Seconds of a unit of work, in units of its busy time at maximum clocks."""
    power_w: Array
    """Average of one GPU."""
    busy_w: Array
    """While busy."""
    x: Array
    """SM clock while busy, as a share of the maximum."""
    capped: Array
    """Whether the power limit holds the clock below what was asked for."""
    busy: Array
    """Share of the time that the GPU is busy."""


class Hypotheses:
    """The unknowns of one card and one load, with their priors.

    `limit_w` is the default power limit of one GPU; `unsure` by how much it may be another, in logarithms.
    """

    def __init__(
        self,
        space: Space,
        model: GpuModel | None,
        limit_w: float,
        *,
        unsure: float = 0.0,
        prior: LoadPrior | None = None,
        card: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.limit_w = limit_w
        self.known = model is not None
        self._start = _reaching(model.chip, space) if model is not None else _stranger(space, limit_w)
        self.sm_max_mhz = self._start.sm_max_mhz
        self.memory_max_mhz = self._start.memory_max_mhz
        self.dials = (*LOAD, *CARD)
        self.names = tuple(dial.name for dial in self.dials)
        self._room_w = max(limit_w - self._start.static_w, 0.1 * limit_w)
        centre, spread = [], []
        for dial in self.dials:
            value, width = self._expected(dial, prior, card or {})
            centre.append(float(dial.z(value)))
            # The gain of the limiter stands for a limit that is not known, too; its unknown counts from 0.5.
            spread.append(math.hypot(width, 2.0 * unsure) if dial.name == "limiter_gain" else width)
        self.mean, self.spread = np.array(centre), np.array(spread)

    def _expected(
        self, dial: Dial, prior: LoadPrior | None, card: Mapping[str, tuple[float, float]]
    ) -> tuple[float, float]:
        """Where the prior of one unknown sits and how wide it is."""
        if dial in LOAD:
            if prior is not None and dial.name in prior.mean:
                return prior.mean[dial.name], prior.spread.get(dial.name, dial.spread)
            return dial.centre, dial.spread
        if dial.name in card:
            return card[dial.name]
        value = (
            self._start.memory_w / self._start.static_w
            if dial.name == "memory_part"
            else float(getattr(self._start, dial.name))
        )
        return value, dial.spread if self.known else _STRANGER[dial.name][1]

    def values(self, z: Array) -> dict[str, Array]:
        """The unknowns of draws (rows) in their own units."""
        return {dial.name: np.asarray(dial.value(z[:, i])) for i, dial in enumerate(self.dials)}

    def at(self, z: Array, settings: Sequence[Setting], *, ceiling_x: float = 1.0) -> Outcomes:
        """What draws say of settings; `ceiling_x` is the highest clock that the GPU goes to by itself."""
        value: dict[str, Any] = {name: column[:, None] for name, column in self.values(z).items()}
        chip = replace(
            self._start,
            **{name: value[name] for name in ("static_w", "idle_w", "volt_knee", "volt_floor", "overlap")},
            limiter_gain=value["limiter_gain"],
            memory_share=value["memory_share"],
            memory_w=value["memory_part"] * value["static_w"],
            deep_idle_w=value["idle_w"] * (self._start.deep_idle_w / self._start.idle_w),
        )
        load = Load(
            gpu_s=1.0,
            sm_share=value["sm_share"],
            dynamic_w=value["intensity"] * self._room_w,
            host_s=value["host_part"],
            dram_share=value["dram_part"] * (1.0 - value["sm_share"]),
            sharpness=value["sharpness"],
        )
        lock_x = np.array([min(ceiling_x, s.get(SM_MHZ.name, math.inf) / chip.sm_max_mhz) for s in settings])
        y = np.array([min(1.0, s.get(MEMORY_MHZ.name, math.inf) / chip.memory_max_mhz) for s in settings])
        limit_w = np.array([s.get(POWER_LIMIT_W.name, self.limit_w) for s in settings])
        free_x = self._limiter(chip, load, limit_w, y)
        x = np.minimum(lock_x, free_x)
        busy = physics.busy_s(chip, load, x, y)
        time = physics.step_s(chip, load, x, y)
        busy_w = physics.busy_power_w(chip, load, x, y)
        idle_w = physics.idle_power_w(chip, x, y)
        return Outcomes(time, idle_w + (busy_w - idle_w) * busy / time, busy_w, x, free_x < lock_x, busy / time)

    def _limiter(self, chip: Chip, load: Load, limit_w: Array, y: Array) -> Array:
        """The clock that each limit leaves, whatever the lock; solved once a different limit and memory clock."""
        pairs, where = np.unique(np.stack([limit_w, y]), axis=1, return_inverse=True)
        x = physics.limited_x(chip, load, np.ones(pairs.shape[1]), pairs[0], pairs[1])
        return np.asarray(x[:, where.reshape(-1)])


def _reaching(chip: Chip, space: Space) -> Chip:
    """`chip` with its maxima where this card's are: boards of one model may be clocked higher than the catalogue's."""
    sm, memory = space.knobs.get(SM_MHZ.name), space.knobs.get(MEMORY_MHZ.name)
    if memory is not None and memory.high > chip.memory_max_mhz:
        chip = replace(chip, memory_max_mhz=memory.high)
    if sm is None or sm.high <= chip.sm_max_mhz:
        return chip
    lower = chip.sm_max_mhz / sm.high
    return replace(chip, sm_max_mhz=sm.high, volt_knee=chip.volt_knee * lower, sm_floor=chip.sm_floor * lower)


def _stranger(space: Space, limit_w: float) -> Chip:
    """A chip of which only the ranges of its knobs and its default limit are known."""
    value = {name: centre for name, (centre, _) in _STRANGER.items()}
    sm, memory = space.knobs.get(SM_MHZ.name), space.knobs.get(MEMORY_MHZ.name)
    return Chip(
        sm_max_mhz=sm.high if sm is not None else 1000.0,  # a unit like any other: no clock can be set
        memory_max_mhz=memory.high if memory is not None else 1000.0,
        sm_floor=_STRANGER_FLOOR,
        static_w=value["static_w"] * limit_w,
        idle_w=value["idle_w"] * limit_w,
        deep_idle_w=0.4 * value["idle_w"] * limit_w,  # 1/2.5, the middle of what a field study of idle GPUs reports
        volt_knee=value["volt_knee"],
        volt_floor=value["volt_floor"],
        limiter_gain=value["limiter_gain"],
        overlap=value["overlap"],
        memory_share=0.5,  # drawn with the load
        memory_w=value["memory_part"] * value["static_w"] * limit_w,
    )
