"""The one law of time, power and heat of a GPU, used by the simulator, the fits and the tuners alike.

What it is: closed formulas from a chip (shared by all work on one GPU model), a load (one phase or one whole
iteration of work) and the settings in force (SM clock, memory clock, power limit, temperature) to seconds,
watts and joules. What it is not: a sensor (see ``device/sensors``), a noise model, or the truth of a bench
(see ``model/truth``, which this law cannot represent).

Symbols of the literature, once: x = SM clock / its maximum, y = memory clock / its maximum, and

    v(x)     = max(v0, v0 + (1 − v0)(x − xk)/(1 − xk))            voltage: flat up to a knee, then linear
    G(x, y)  = G0·(κ·x^−p + δ·y^−p + 1 − κ − δ)^(1/p)             GPU-busy seconds
    T        = (H^n + G^n)^(1/n)                                   one step: host time H overlaps busy time
    Pb(x, y) = ψ·Ps(θ) − Pm(1 − y) + Pd·[(1 − m)·v² + m]·G0/G,  m = μ(1 − κ)   busy power
    Pi(x, y) = Pdeep + (Pidle − Pdeep)·[s·x·v² + (1 − s)·y]        power while waiting, clocks kept
    x*(cap)  = max{x ≤ lock : Pb(x) ≤ η·cap}, at least xmin        the limiter acts on busy power
    Pavg     = Pi + (Pb − Pi)·G/T,   E = Pavg·T
    τ dθ/dt  = Rth·P − (θ − θa),     Ps(θ) = Ps·exp(kθ(θ − θ0))    heat and leakage

The voltage curve is that of "Going green" (SC22); time and power follow the usual split of an iteration into
a part that scales with the SM clock and a part that does not.

Every function takes Python floats or numpy arrays: the arithmetic is shared, and only the four primitives
(`_larger`, `_smaller`, `_choose`, `_exp`) look at the type, so a scalar costs microseconds and a fit
evaluates thousands of points at once. Fields of `Chip` and `Load` may hold arrays too (a fit does this); they
broadcast. The law checks nothing: whoever builds a `Chip` or a `Load` from outside data checks it, as
`model/catalog` does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Real = TypeVar("Real", float, Array)  # what a formula is evaluated on: one point, or many at once

_NEWTON_STEPS = 12  # from x = 1 the root is reached to 1e-9 in 3–8 steps for every chip of the catalogue


@dataclass(frozen=True, slots=True)
class Heat:
    """How the board warms, and what warmth costs."""

    resistance_k_per_w: float = 0.10  # Rth: kelvin above ambient per watt, steady state
    time_constant_s: float = 60.0  # τ: of die and cold plate or heat sink together
    ambient_c: float = 30.0  # θa: of the coolant (air or water) that reaches the board
    reference_c: float = 60.0  # θ0: where the chip's static_w holds
    leakage_per_k: float = 0.006  # kθ: relative growth of static power per kelvin
    throttle_c: float = 85.0  # from here on the clock is taken back


@dataclass(frozen=True, slots=True)
class Chip:
    """What is shared by all work on one GPU model. Powers in W, clocks in MHz, the rest are fractions."""

    sm_max_mhz: float  # the clock at which x = 1
    memory_max_mhz: float  # the clock at which y = 1
    sm_floor: float  # xmin: the lowest x that the limiter goes down to
    static_w: float  # Ps: power of a busy board beyond what its switching takes, at maximum memory clock
    idle_w: float  # Pidle: work resident but waiting, both clocks at maximum
    deep_idle_w: float  # Pdeep: nothing resident, lowest clocks
    volt_knee: float  # xk: above this x the voltage rises
    volt_floor: float  # v0: voltage below the knee, relative to that at x = 1
    limiter_gain: float = 1.0  # η: the limiter holds η × its limit
    overlap: float = 1.0  # n: 1 = host and GPU take turns, large = they overlap perfectly
    memory_share: float = 0.5  # μ: share of clock-insensitive switching energy that does not scale with V²
    memory_w: float = 0.0  # Pm: part of static_w that is proportional to the memory clock
    # s: share of the resident-idle excess that goes away with the SM clock, the rest with the memory clock.
    # L40S: 105 W resident, 61 W with SM clock down, 35 W with both down: 44/70 (execution-idle study, 2026).
    idle_sm_share: float = 0.63
    heat: Heat = field(default_factory=Heat)


@dataclass(frozen=True, slots=True)
class Load:
    """One phase, or one whole iteration, of work, as this chip sees it; gpu_s + host_s > 0."""

    gpu_s: float  # G0: busy seconds at maximum clocks
    sm_share: float  # κ: share of gpu_s that scales with the SM clock
    dynamic_w: float  # Pd: switching power while busy at maximum clocks
    host_s: float = 0.0  # H: seconds of host or loader work that the GPU may have to wait for
    dram_share: float = 0.0  # δ: share of gpu_s that scales with the memory clock; at most 1 − sm_share
    sharpness: float = 1.0  # p: 1 = many kernels one after another; 2–5 = one kernel with overlapping pipes
    # ψ: static power under this load against the chip's. It varies by some 10 %, with how warm the board runs
    # and how much of it this work keeps awake.
    static_part: float = 1.0


@dataclass(frozen=True, slots=True)
class Operation:
    """Where a load settles on a chip under given settings."""

    sm_mhz: float
    memory_mhz: float
    busy_s: float
    step_s: float
    busy_power_w: float
    average_power_w: float
    energy_j: float  # of one step
    limited_by: str  # "clock" (lock or maximum), "power", "heat" or "floor" (limit cannot be held)


# A load of no switching power (a pure wait) must not divide by zero; no real load comes near a microwatt.
_LEAST_W = 1e-6


def _larger(a: Real | float, b: Real | float) -> Any:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a > b else b


def _smaller(a: Real | float, b: Real | float) -> Any:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a < b else b


def _choose(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, np.ndarray):
        return np.where(condition, a, b)
    return a if condition else b


def _exp(a: Any) -> Any:
    return np.exp(a) if isinstance(a, np.ndarray) else math.exp(a)


def voltage(chip: Chip, x: Real) -> Real:
    """Supply voltage at clock fraction `x`, relative to that at x = 1."""
    rise = (x - chip.volt_knee) * ((1.0 - chip.volt_floor) / (1.0 - chip.volt_knee))
    return chip.volt_floor + _larger(rise, 0.0)  # type: ignore[no-any-return]


def busy_s(chip: Chip, load: Load, x: Real, y: Real | float = 1.0) -> Real:  # noqa: ARG001 (one signature for all)
    """Seconds that the GPU is busy for one step at clock fractions `x` and `y`."""
    return load.gpu_s * _slowdown(load, x, y)  # type: ignore[no-any-return]


def step_s(chip: Chip, load: Load, x: Real, y: Real | float = 1.0) -> Real:
    """Seconds of one step, host work included, at clock fractions `x` and `y`."""
    return _with_host(chip, load, busy_s(chip, load, x, y))  # type: ignore[no-any-return]


def busy_power_w(chip: Chip, load: Load, x: Real, y: Real | float = 1.0, temperature_c: float | None = None) -> Real:
    """Power while the GPU is busy; `temperature_c` None means the chip's reference temperature."""
    m = chip.memory_share * (1.0 - load.sm_share)
    v = voltage(chip, x)
    switching = load.dynamic_w * ((1.0 - m) * v * v + m) / _slowdown(load, x, y)
    return _static_w(chip, load, y, temperature_c) + switching  # type: ignore[no-any-return]


def idle_power_w(chip: Chip, x: Real, y: Real | float = 1.0, temperature_c: float | None = None) -> Real:
    """Power while nothing runs but the clocks are kept, as between the kernels of a resident job.

    With nothing resident the driver lets the clocks fall and the board takes `chip.deep_idle_w`.
    """
    v = voltage(chip, x)
    kept = chip.idle_sm_share * x * v * v + (1.0 - chip.idle_sm_share) * y
    return (chip.deep_idle_w + (chip.idle_w - chip.deep_idle_w) * kept) * leakage(chip, temperature_c)  # type: ignore[no-any-return]


def average_power_w(chip: Chip, load: Load, x: Real, y: Real | float = 1.0, temperature_c: float | None = None) -> Real:
    """Mean power over one step, waiting for the host included."""
    busy = busy_s(chip, load, x, y)
    idle_w = idle_power_w(chip, x, y, temperature_c)
    busy_w = busy_power_w(chip, load, x, y, temperature_c)
    return idle_w + (busy_w - idle_w) * busy / _with_host(chip, load, busy)  # type: ignore[no-any-return]


def energy_j(chip: Chip, load: Load, x: Real, y: Real | float = 1.0, temperature_c: float | None = None) -> Real:
    """Joules of one step: average power × step time."""
    return average_power_w(chip, load, x, y, temperature_c) * step_s(chip, load, x, y)


def limited_x(
    chip: Chip,
    load: Load,
    lock_x: Real | float,
    cap_w: Real | float,
    y: Real | float = 1.0,
    temperature_c: float | None = None,
) -> Any:
    """Clock fraction on which the power limiter settles while `load` is busy.

    The largest x ≤ `lock_x` whose busy power is within limiter_gain × `cap_w`; never below `chip.sm_floor`,
    where the limit may be exceeded, and never above the lock (which may itself lie below the floor).

    Below the knee the equation is linear in u = x^p. Above, both sides times G/G0, to the power p, give a
    function that is convex in u, so Newton's steps from the right fall monotonically onto the root: no
    bracket is needed.
    """
    p = load.sharpness
    m = chip.memory_share * (1.0 - load.sm_share)
    budget = (chip.limiter_gain * cap_w - _static_w(chip, load, y, temperature_c)) / _larger(load.dynamic_w, _LEAST_W)
    c = _larger(budget, 1e-9) ** p
    fixed = c * _clock_blind(load, y)
    sensitive = c * load.sm_share

    # At or below the knee: voltage is volt_floor.
    low = ((1.0 - m) * chip.volt_floor * chip.volt_floor + m) ** p
    room = low - fixed
    u_knee = chip.volt_knee**p
    bites = room * u_knee > sensitive  # over budget already at the knee
    u_low = sensitive / _choose(bites, room, 1.0)
    if not isinstance(bites, np.ndarray) and bites:
        u = u_low
    else:
        slope = (1.0 - chip.volt_floor) / (1.0 - chip.volt_knee)
        u = 1.0 + 0.0 * (u_low + c)
        for _ in range(_NEWTON_STEPS):
            x = u ** (1.0 / p)
            v = chip.volt_floor + (x - chip.volt_knee) * slope
            q = (1.0 - m) * v * v + m
            over = (q * x) ** p - (sensitive + fixed * u)
            steep = q ** (p - 1.0) * (q + x * (1.0 - m) * 2.0 * v * slope) - fixed
            # Where the limit does not bite at x = 1 (over ≤ 0) or the root is below the knee, stay put.
            move = over / _choose(steep > 1e-12, steep, 1.0)
            before, u = u, _larger(u - _larger(move, 0.0), u_knee)
            # Newton's next step is as small as this one's square. Of an array, those at the knee would move for ever.
            if not (before - u > 1e-12).any() if isinstance(u, np.ndarray) else move < 1e-12:
                break
        u = _choose(bites, u_low, u)
    return _smaller(_larger(u ** (1.0 / p), chip.sm_floor), lock_x)


def leakage(chip: Chip, temperature_c: float | None) -> Any:
    """Factor on static and idle power at `temperature_c`, 1 at the chip's reference temperature or None."""
    if temperature_c is None:
        return 1.0
    return _exp(chip.heat.leakage_per_k * (temperature_c - chip.heat.reference_c))


def settled_c(chip: Chip, power_w: float) -> float:
    """Temperature that the board reaches at constant power, in °C."""
    return chip.heat.ambient_c + chip.heat.resistance_k_per_w * power_w


def warmed_c(chip: Chip, temperature_c: float, power_w: float, duration_s: float) -> float:
    """Temperature after `duration_s` at constant `power_w`, exact for any duration, in °C."""
    goal = settled_c(chip, power_w)
    return goal + (temperature_c - goal) * math.exp(-duration_s / chip.heat.time_constant_s)


def heat_limited_x(chip: Chip, temperature_c: float) -> float:
    """Highest clock fraction that heat allows: 1 up to `throttle_c`, then down to the floor over 5 K.

    The slope stands in for the firmware's loop, which holds the temperature near its target.
    """
    over = (temperature_c - chip.heat.throttle_c) / 5.0
    if over <= 0.0:
        return 1.0
    return max(chip.sm_floor, 1.0 - over * (1.0 - chip.sm_floor))


def operate(
    chip: Chip,
    load: Load,
    *,
    lock_mhz: float | None = None,
    memory_mhz: float | None = None,
    limit_w: float | None = None,
    temperature_c: float | None = None,
) -> Operation:
    """Where `load` settles: lock, limit and heat applied in that order. None means "not set"."""
    y = 1.0 if memory_mhz is None else memory_mhz / chip.memory_max_mhz
    x, limited_by = 1.0 if lock_mhz is None else min(1.0, lock_mhz / chip.sm_max_mhz), "clock"
    if temperature_c is not None and (ceiling := heat_limited_x(chip, temperature_c)) < x:
        x, limited_by = ceiling, "heat"
    if limit_w is not None and (held := limited_x(chip, load, x, limit_w, y, temperature_c)) < x:
        x, limited_by = held, "power" if held > chip.sm_floor else "floor"
    busy = busy_s(chip, load, x, y)
    step = _with_host(chip, load, busy)
    busy_w = busy_power_w(chip, load, x, y, temperature_c)
    idle_w = idle_power_w(chip, x, y, temperature_c)
    average_w = idle_w + (busy_w - idle_w) * busy / step
    return Operation(
        sm_mhz=x * chip.sm_max_mhz,
        memory_mhz=y * chip.memory_max_mhz,
        busy_s=busy,
        step_s=step,
        busy_power_w=busy_w,
        average_power_w=average_w,
        energy_j=average_w * step,
        limited_by=limited_by,
    )


def _clock_blind(load: Load, y: Any) -> Any:
    """The part of (G/G0)^p that the SM clock does not touch."""
    blind = 1.0 - load.sm_share - load.dram_share
    return blind + load.dram_share * y ** (-load.sharpness)


def _slowdown(load: Load, x: Any, y: Any) -> Any:
    """G(x, y)/G0: busy time against that at maximum clocks."""
    p = load.sharpness
    return (load.sm_share * x ** (-p) + _clock_blind(load, y)) ** (1.0 / p)


def _with_host(chip: Chip, load: Load, busy: Any) -> Any:
    """T from G: host time that overlaps; scaled by the larger of the two so that no power overflows."""
    longer = _larger(busy, load.host_s)
    ratio = _smaller(busy, load.host_s) / longer
    return longer * (1.0 + ratio**chip.overlap) ** (1.0 / chip.overlap)


def _static_w(chip: Chip, load: Load, y: Any, temperature_c: float | None) -> Any:
    return (load.static_part * chip.static_w - chip.memory_w * (1.0 - y)) * leakage(chip, temperature_c)
