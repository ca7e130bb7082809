"""The law's parameters as free unknowns, and the law as residuals of them.

What it is: the translation between parameters and unknowns (logarithms and logits, so that no bound can be broken)
and the weak priors that keep what the data do not show within reason. What it is not: a search; see `model/fit`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.model.levenberg import Solution
from joulewise.model.physics import Chip, Load
from joulewise.model.sweep import Columns, evaluate

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Dial:
    """One unknown: its name, its open bounds, and where a weak prior puts it (spread in logs or logits)."""

    name: str
    low: float
    high: float
    centre: float
    spread: float

    def z(self, value: Any) -> Any:
        """The unknown that stands for `value`."""
        part = np.maximum(np.asarray(value, dtype=float) - self.low, 1e-9)
        if math.isinf(self.high):
            return np.log(part)
        share = np.clip(part / (self.high - self.low), 1e-6, 1.0 - 1e-6)
        return np.log(share / (1.0 - share))

    def value(self, z: Any) -> Any:
        """The value that the unknown `z` stands for."""
        if math.isinf(self.high):
            return self.low + np.exp(np.clip(z, -50.0, 50.0))
        return self.low + (self.high - self.low) / (1.0 + np.exp(-np.clip(z, -30.0, 30.0)))


# Centres are the middle of the fits published for V100, A40, RTX 6000, P100 and A100; spreads about twice theirs.
# Centres of static and idle power are in units of the lowest power seen (a floor under both, nearly).
CHIP_DIALS = (
    Dial("static_w", 0.0, math.inf, 0.85, 0.6),
    Dial("idle_w", 0.0, math.inf, 0.7, 0.5),
    Dial("volt_knee", 0.02, 0.98, 0.70, 1.0),
    Dial("volt_floor", 0.45, 1.0, 0.68, 1.0),
    Dial("sm_floor", 0.02, 1.0, 0.22, 0.8),
    Dial("limiter_gain", 0.5, math.inf, 1.0, 0.06),
    Dial("overlap", 1.0, 20.0, 2.0, 0.8),
    Dial("memory_share", 0.0, 1.0, 0.4, 1.5),
    Dial("memory_part", 0.0, 1.0, 0.3, 1.0),  # memory_w / static_w
    Dial("sharpness", 1.0, 6.0, 1.7, 0.8),  # of all loads of this fit
)
LOAD_DIALS = (
    Dial("gpu_s", 0.0, math.inf, 1.0, 1e6),  # no belief at all
    Dial("sm_share", 0.0, 1.0, 0.7, 5.0),
    Dial("dynamic_w", 0.0, math.inf, 1.3, 2.5),  # in units of the series' highest power
    Dial("host_part", 0.0, math.inf, 0.6, 5.0),  # host_s / gpu_s
    Dial("dram_part", 0.0, 1.0, 0.5, 2.5),  # dram_share / (1 − sm_share)
    Dial("static_part", 0.0, math.inf, 1.0, 0.15),
)
DIAL = {dial.name: dial for dial in LOAD_DIALS}


@dataclass(frozen=True, slots=True)
class Law:
    """The law as residuals of unknowns: `free` of the chip first, then each series' own."""

    columns: Columns
    start: Chip
    free: Sequence[Dial]
    sharpness: float = 1.0

    def chip(self, shared: Array) -> Chip:
        """The chip that the shared unknowns stand for."""
        values: dict[str, Any] = {d.name: float(d.value(z)) for d, z in zip(self.free, shared, strict=True)}
        values.pop("sharpness", None)
        memory_part = values.pop("memory_part", None)
        chip = replace(self.start, **values)
        if memory_part is not None:
            chip = replace(chip, memory_w=memory_part * chip.static_w)
        # Deep idle was not seen: it keeps its ratio to resident idle.
        return replace(chip, deep_idle_w=self.start.deep_idle_w * chip.idle_w / self.start.idle_w)

    def load(self, shared: Array, own: Array) -> Load:
        """The loads as one Load of arrays."""
        values = {dial.name: dial.value(z) for dial, z in zip(LOAD_DIALS, own, strict=True)}
        sharpness = self.sharpness
        for dial, z in zip(self.free, shared, strict=True):
            if dial.name == "sharpness":
                sharpness = float(dial.value(z))
        dram_part = values["dram_part"] if self.memory_told else np.zeros_like(own[0])
        return Load(
            gpu_s=values["gpu_s"],
            sm_share=values["sm_share"],
            dynamic_w=values["dynamic_w"],
            host_s=values["host_part"] * values["gpu_s"],
            dram_share=dram_part * (1.0 - values["sm_share"]),
            sharpness=sharpness,
            static_part=values["static_part"],
        )

    @property
    def memory_told(self) -> bool:
        """Whether the memory clock moved."""
        return bool(np.ptp(self.columns.y) > 0.0)

    def loads(self, shared: Array, own: Array) -> tuple[Load, ...]:
        """The loads one by one."""
        return tuple(_floats(self.load(shared, own), i) for i in range(own.shape[1]))

    def residuals(self, shared: Array, own: Array) -> Array:
        """Log time and log power, said minus measured; `own` may hold several copies of all series."""
        columns = self.columns
        copies = own.shape[1] // columns.series
        if copies > 1:
            columns = columns.times(copies)
        load = self.load(shared, own)
        spread = Load(*(_at(getattr(load, name), columns.owner) for name in Load.__slots__))
        time_s, power_w = evaluate(self.chip(shared), spread, columns)
        return np.stack([np.log(time_s) - columns.log_time, np.log(power_w) - columns.log_power])

    def mape(self, solution: Solution) -> tuple[float, float]:
        """Mean absolute error of time and power, percent."""
        error = 100.0 * np.abs(np.expm1(self.residuals(solution.shared, solution.own))).mean(axis=1)
        return float(error[0]), float(error[1])

    def errors(self, own: Array, covariance: Array) -> dict[str, float]:
        """Standard errors of the dials' values, from those of the unknowns (first order)."""
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return {
            dial.name: float(abs(dial.value(z + 0.01) - dial.value(z - 0.01)) / 0.02 * sigma)
            for dial, z, sigma in zip(LOAD_DIALS, own, deviation, strict=True)
            if dial.name != "dram_part" or self.memory_told
        }


def unknowns_of(load: Load) -> list[float]:
    """A load as its own unknowns."""
    values = {
        "gpu_s": load.gpu_s,
        "sm_share": load.sm_share,
        "dynamic_w": load.dynamic_w,
        "host_part": load.host_s / load.gpu_s,
        "dram_part": load.dram_share / max(1.0 - load.sm_share, 1e-9),
        "static_part": load.static_part,
    }
    return [float(dial.z(values[dial.name])) for dial in LOAD_DIALS]


def free_dials(columns: Columns) -> list[Dial]:
    """The shared unknowns that these points can tell."""
    clocks_known = not np.all(np.isnan(columns.seen_x)) or float(np.ptp(columns.lock_x)) > 0.0
    told = {
        "limiter_gain": columns.limited,
        "sm_floor": columns.limited,
        "memory_part": float(np.ptp(columns.y)) > 0.0,
        "sharpness": clocks_known,
    }
    return [dial for dial in CHIP_DIALS if told.get(dial.name, True)]


def _at(value: Any, owner: Array) -> Any:
    return value[owner] if isinstance(value, np.ndarray) else value


def _floats(load: Load, i: int) -> Load:
    return Load(*(float(_at(getattr(load, name), np.array(i))) for name in Load.__slots__))
