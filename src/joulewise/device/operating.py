"""Where a virtual GPU settles under what was asked of it: the law, asked once per situation and remembered.

It is the only door from the virtual hardware to the law. It is not the law (``model/physics``), and it knows no
time: what follows what is the board's matter (``device/board``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from joulewise.core.measurement import Throttle
from joulewise.model import physics
from joulewise.model.catalog import GpuModel
from joulewise.model.physics import Chip, Load, Operation

Range = tuple[float, float]
"""(low, high), both inclusive."""

# The law sees temperature in tenths of a kelvin: at most 0.03 % of static power, and situations recur.
_TEMPERATURE_DIGITS = 1
_REMEMBERED = 4096  # situations; a workload has tens of loads, times a few temperatures


class Law(Protocol):
    """What decides time and power: ``model.physics`` itself, or an object that knows better."""

    def operate(
        self,
        chip: Chip,
        load: Load,
        *,
        lock_mhz: float | None = None,
        memory_mhz: float | None = None,
        limit_w: float | None = None,
        temperature_c: float | None = None,
    ) -> Operation:
        """Where ``load`` settles; None means "not set"."""
        ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the clocks and the limiter; None leaves it to the driver."""

    sm_mhz: Range | None = None
    memory_mhz: Range | None = None
    limit_w: float | None = None
    bmc_limit_w: float | None = None
    """What the board's own controller allows, whatever the driver is asked for; None: it stays out of it."""

    def enforced_limit_w(self, default_w: float) -> float:
        """The lower of the limit asked for (``default_w`` if none) and the board controller's."""
        asked_w = default_w if self.limit_w is None else self.limit_w
        return asked_w if self.bmc_limit_w is None else min(asked_w, self.bmc_limit_w)


@dataclass(frozen=True, slots=True)
class Idle:
    """A board with nothing to do."""

    power_w: float
    sm_mhz: float
    memory_mhz: float


class OperatingPoints:
    """The law of one virtual GPU, with a memory."""

    def __init__(self, model: GpuModel, law: Law | None = None) -> None:
        self._model = model
        self._chip = model.chip
        self._law: Law = physics if law is None else law
        self._known: dict[tuple[object, ...], Operation] = {}

    def at_work(self, load: Load, demand: Demand, temperature_c: float, *, limits: float = 1.0) -> Operation:
        """Where ``load`` settles under the power limit, or under ``limits`` times it."""
        limit_w = limits * demand.enforced_limit_w(self._model.default_limit_w)
        lock_mhz = demand.sm_mhz[1] if demand.sm_mhz else None
        memory_mhz = demand.memory_mhz[1] if demand.memory_mhz else None
        temperature_c = round(temperature_c, _TEMPERATURE_DIGITS)
        key = (load, lock_mhz, memory_mhz, limit_w, temperature_c)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[key] = self._law.operate(
                self._chip,
                load,
                lock_mhz=lock_mhz,
                memory_mhz=memory_mhz,
                limit_w=limit_w,
                temperature_c=temperature_c,
            )
        return known

    def at_rest(self, demand: Demand, temperature_c: float, *, resident: bool) -> Idle:
        """Nothing runs: a resident process keeps the clocks up; without one they fall, and power with them.

        A lock whose lower end is above the resting clock holds the clocks of an empty GPU up too.
        """
        chip, model = self._chip, self._model
        temperature_c = round(temperature_c, _TEMPERATURE_DIGITS)
        sm_mhz, memory_mhz = model.sm_mhz.low, model.memory_mhz.low
        held_up = _within(sm_mhz, demand.sm_mhz) > sm_mhz or _within(memory_mhz, demand.memory_mhz) > memory_mhz
        if not resident and not held_up:
            return Idle(chip.deep_idle_w * physics.leakage(chip, temperature_c), sm_mhz, memory_mhz)
        if resident:
            sm_mhz, memory_mhz = chip.sm_max_mhz, chip.memory_max_mhz
        sm_mhz = min(_within(sm_mhz, demand.sm_mhz), physics.heat_limited_x(chip, temperature_c) * chip.sm_max_mhz)
        memory_mhz = _within(memory_mhz, demand.memory_mhz)
        power_w = physics.idle_power_w(chip, sm_mhz / chip.sm_max_mhz, memory_mhz / chip.memory_max_mhz, temperature_c)
        return Idle(power_w, sm_mhz, memory_mhz)

    def throttle(self, operation: Operation) -> frozenset[Throttle]:
        """The law's reason in NVML's words: a clock below the maximum that nothing else holds down is locked."""
        if operation.limited_by in ("power", "floor"):
            return frozenset({Throttle.POWER_CAP})
        if operation.limited_by == "heat":
            return frozenset({Throttle.HEAT})
        return frozenset({Throttle.LOCKED} if operation.sm_mhz < self._chip.sm_max_mhz else ())

    def activity(self, load: Load, operation: Operation) -> tuple[float, float, float]:
        """Shares of time: with a kernel running, bound by the SM clock, bound by something else (memory).

        The law's own split of busy time, κ·x^−p of (G/G0)^p, stands in for the hardware's activity counters.
        """
        if load.gpu_s <= 0 or operation.busy_s <= 0:
            return (0.0, 0.0, 0.0)
        busy = operation.busy_s / operation.step_s
        slowed_x = operation.sm_mhz / self._chip.sm_max_mhz * operation.busy_s / load.gpu_s
        sm_bound = min(1.0, load.sm_share * slowed_x**-load.sharpness)
        return (busy, busy * sm_bound, busy * (1.0 - sm_bound))


def _within(value: float, span: Range | None) -> float:
    return value if span is None else min(max(value, span[0]), span[1])
