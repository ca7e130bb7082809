"""A second, richer truth for benches: a GPU that the law of ``model/physics`` cannot represent.

Whoever fits the law and then judges it on the same law proves nothing. `RichLaw` has the law's call surface, and
differs where real boards do:

* a load is a mixture of kernels, each with its own clock sensitivity, intensity and overlap of its pipes;
* the limiter holds the average power, but each kernel pulls the clock its own way, so each settles on its own
  point; and it keeps the further below its cap the more the power wanders;
* voltage bends upwards above its knee instead of rising straight;
* part of what the law takes for static is the clock tree, which follows clock and voltage;
* below an uncore knee everything slows more than in proportion to the clock;
* part of the host's time never overlaps;
* each card has its own leakage, switching power, voltage and sensor gain.

The plain laws hold: time falls and power rises with the clock, energy is power × time. Its figures are plausible
ranges with their sources, not a fit to any one board. What it is not: a belief. Nothing that decides may import it.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from joulewise.core.errors import ModelError
from joulewise.model import physics
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Chip, Load, Operation
from joulewise.model.workloads import Phase, stretched

_KERNELS = 6  # kinds of kernel in one load; more blur towards the simple law
_GRID = 96  # clocks at which a mixture's power is tabulated for the limiter
_MOST_MIXTURES = 2048  # kept at once; a simulation uses tens


@dataclass(frozen=True, slots=True)
class _Kernel:
    weight: float  # share of the load's busy time at maximum clocks
    sm_share: float
    dram_share: float
    sharpness: float
    dynamic_w: float


@dataclass(slots=True)
class _Mixture:
    kernels: tuple[_Kernel, ...]
    leanings: tuple[float, ...]  # each kernel's clock against the common one where the limiter reigns
    unrest: float  # standard deviation / mean of the switching power over the kernels, at maximum clocks
    power_w: dict[float, list[float]] = field(default_factory=dict)  # over the grid, by memory-clock fraction


class RichLaw:
    """One card of the kind `chip`, drawn by `seed`; a law to run virtual GPUs on.

    `card` is the chip as this card has it (leakage, idle, heat, limiter), `gain` what its power sensor shows of the
    truth; `VirtualGpu(replace(model, chip=law.card), law=law, gain=law.gain)` is the whole card. `spread` scales how
    far cards deviate: 1 is the usual, 0 makes all cards alike but leaves mixtures and bends.
    """

    def __init__(self, chip: Chip, seed: int = 0, *, spread: float = 1.0) -> None:
        draw = random.Random(f"card {seed}")

        def around(centre: float, half_width: float) -> float:
            return centre + spread * half_width * draw.uniform(-1.0, 1.0)

        # Cards of one model differ by 10–20 % in power at equal work, mostly by leakage: ±18 % on what is static,
        # ±8 % on what switches.
        leak = math.exp(around(0.0, 0.18))
        self._switching = around(1.0, 0.08)
        self.nominal = chip
        self.card = replace(
            chip,
            static_w=chip.static_w * leak,
            memory_w=chip.memory_w * leak,
            idle_w=chip.idle_w * leak,
            deep_idle_w=chip.deep_idle_w * leak,
            volt_knee=min(0.9, max(0.1, around(chip.volt_knee, 0.05))),
            volt_floor=min(0.95, max(0.4, around(chip.volt_floor, 0.03))),
            limiter_gain=chip.limiter_gain * around(1.0, 0.005),  # B300 holds 98.5–99.6 % of its cap
            overlap=chip.overlap * around(1.5, 0.3),
            heat=replace(chip.heat, resistance_k_per_w=chip.heat.resistance_k_per_w * around(1.0, 0.1)),
        )
        self.gain = around(1.0, 0.04)  # a few percent a card (arXiv 2312.02741)
        # The clock tree: babelstream on an A100 takes 145 W at 1005 MHz and 228 W at 1410 MHz at the same bandwidth.
        self._tree_w = around(0.3, 0.15) * (self.card.static_w - self.card.memory_w)
        self._bend = around(0.6, 0.3)  # share of the rise above the knee that is quadratic
        # V100 slows super-linearly below 700 of 1380 MHz, 1.4 × its floor: ×7 at 405 MHz where the clock alone gives
        # ×3.4. A knee at 1.5 × the floor with steepness 1.5 gives ×6.9.
        self._uncore_x = min(0.6, chip.sm_floor * around(1.5, 0.2))
        self._uncore_steepness = around(1.5, 0.5)
        self._serial_host = around(0.2, 0.1)  # share of host time that never overlaps
        # B300 under a 500 W cap lets 50–500 ms bursts reach 708–717 W but holds 5 ms bursts to 526 W: it acts on
        # an average, though not on that alone.
        self._agility = around(0.2, 0.1)  # how far a kernel of twice the power pulls the clock down: 2^−agility
        self._caution = around(0.05, 0.03)  # share of the power's unrest that it stays below the cap: 1–2 %
        self.jitter = Jitter(spread=max(0.0, around(0.015, 0.007)), correlation=0.6, tail=3.0)
        self._seed = seed
        self._mixtures: dict[tuple[float, float, float, float], _Mixture] = {}

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
        """Where `load` settles on this card; arguments and result as in `physics.operate`.

        `chip` is the nominal one that the law was made for, or `card`; another raises ModelError. `sm_mhz` is the mean
        over busy time, since kernels may settle on different clocks.
        """
        if chip is not self.nominal and chip is not self.card and chip not in (self.nominal, self.card):
            raise ModelError(f"this law is of a card of {self.nominal.sm_max_mhz:g} MHz; make one for each chip")
        card = self.card
        y = 1.0 if memory_mhz is None else memory_mhz / card.memory_max_mhz
        x, limited_by = 1.0 if lock_mhz is None else min(1.0, lock_mhz / card.sm_max_mhz), "clock"
        if temperature_c is not None and (ceiling := physics.heat_limited_x(card, temperature_c)) < x:
            x, limited_by = ceiling, "heat"
        still_w = card.static_w - self._tree_w - card.memory_w * (1.0 - y)
        static_w = still_w * physics.leakage(card, temperature_c)  # what no clock of the SMs touches

        mixture = self._mixture(load)
        clocks = [x] * len(mixture.kernels)
        if limit_w is not None:
            clocks, held_by = self._limited(mixture, x, y, card.limiter_gain * limit_w - static_w)
            limited_by = held_by or limited_by
        unit_s, moving_w, mean_x = self._settled(mixture, clocks, y)
        if limited_by in ("clock", "heat"):
            mean_x = x  # all run at it; a mean of equal numbers would be off by a rounding
        busy_w = static_w + moving_w
        busy = load.gpu_s * unit_s
        step = self._with_host(load.host_s, busy)
        idle_w = self.idle_power_w(mean_x, y, temperature_c)
        average_w = idle_w + (busy_w - idle_w) * busy / step
        return Operation(
            sm_mhz=mean_x * card.sm_max_mhz,
            memory_mhz=y * card.memory_max_mhz,
            busy_s=busy,
            step_s=step,
            busy_power_w=busy_w,
            average_power_w=average_w,
            energy_j=average_w * step,
            limited_by=limited_by,
        )

    def idle_power_w(self, x: float, y: float = 1.0, temperature_c: float | None = None) -> float:
        """Power of this card while nothing runs but the clocks are kept, as `physics.idle_power_w`."""
        card = self.card
        kept = card.idle_sm_share * x * self._squared_voltage(x) + (1.0 - card.idle_sm_share) * y
        cold_w = card.deep_idle_w + (card.idle_w - card.deep_idle_w) * kept
        return cold_w * float(physics.leakage(card, temperature_c))

    def disturbed(self, phases: Iterator[Phase], *, seed: int = 0) -> Iterator[Phase]:
        """The same phases with this card's heavy-tailed, autocorrelated noise on the length of whole steps."""
        factors = self.jitter.factors(f"card {self._seed} job {seed}")
        factor = next(factors)
        for phase in phases:
            yield Phase(phase.name, stretched(phase.load, factor, factor), phase.ends_step)
            if phase.ends_step:
                factor = next(factors)

    def _mixture(self, load: Load) -> _Mixture:
        """The kernels of a load. They do not depend on its length, so steps that jitter share them."""
        key = (load.sm_share, load.dynamic_w, load.dram_share, load.sharpness)
        mixture = self._mixtures.get(key)
        if mixture is None:
            if len(self._mixtures) >= _MOST_MIXTURES:
                self._mixtures.clear()
            mixture = self._mixtures[key] = self._made(load)
        return mixture

    def _made(self, load: Load) -> _Mixture:
        kernels = _kernels(load, self._switching)
        mean_w = sum(kernel.weight * kernel.dynamic_w for kernel in kernels)
        variance = sum(kernel.weight * (kernel.dynamic_w - mean_w) ** 2 for kernel in kernels)
        if mean_w <= 0.0:
            return _Mixture(kernels, (1.0,) * len(kernels), 0.0)
        leanings = tuple((mean_w / kernel.dynamic_w) ** self._agility for kernel in kernels)
        return _Mixture(kernels, leanings, math.sqrt(variance) / mean_w)

    def _settled(self, mixture: _Mixture, clocks: list[float], y: float) -> tuple[float, float, float]:
        """Kernels at their clocks: busy seconds per second at maximum clocks, W that follow the clock, mean x."""
        unit_s = moving_j = turned = 0.0
        for kernel, x in zip(mixture.kernels, clocks, strict=True):
            slow_s = kernel.weight * self._slowdown(kernel, x, y)
            square = self._squared_voltage(x)
            unit_s += slow_s
            moving_j += kernel.weight * self._work_w(kernel, square) + slow_s * self._tree_w * x * square
            turned += slow_s * x
        return unit_s, moving_j / unit_s, turned / unit_s

    def _limited(self, mixture: _Mixture, lock_x: float, y: float, budget_w: float) -> tuple[list[float], str]:
        """Clocks that the limiter leaves, and what limits: "power", "floor", or "" where the lock does.

        `budget_w` is for the power that follows the clock. The limiter moves a common clock until the mean power
        meets the budget; the mean over the grid of that common clock is tabulated, and read off linearly.
        """
        floor = self.card.sm_floor
        low, high = floor / max(mixture.leanings), 1.0 / min(mixture.leanings)
        spacing = (high - low) / (_GRID - 1)

        def leaning(common_x: float) -> list[float]:
            return [min(1.0, max(floor, common_x * lean)) for lean in mixture.leanings]

        table = mixture.power_w.get(y)
        if table is None:
            table = [self._settled(mixture, leaning(low + i * spacing), y)[1] for i in range(_GRID)]
            mixture.power_w[y] = table
        budget_w *= 1.0 - self._caution * mixture.unrest
        right = bisect_right(table, budget_w)
        if right == _GRID:
            return [lock_x] * len(mixture.kernels), ""
        if right == 0:
            held = [floor] * len(mixture.kernels)
        else:
            below_w = table[right - 1]
            held = leaning(low + spacing * (right - 1 + (budget_w - below_w) / (table[right] - below_w)))
        clocks = [min(lock_x, x) for x in held]
        if min(clocks) >= lock_x:
            return clocks, ""
        return clocks, "power" if right > 0 else "floor"

    def _squared_voltage(self, x: float) -> float:
        """V² relative to that at x = 1: flat up to the knee, then linear with a quadratic part."""
        card = self.card
        rise = (x - card.volt_knee) / (1.0 - card.volt_knee)
        if rise <= 0.0:
            return card.volt_floor * card.volt_floor
        v = card.volt_floor + (1.0 - card.volt_floor) * rise * (1.0 - self._bend + self._bend * rise)
        return v * v

    def _slowdown(self, kernel: _Kernel, x: float, y: float) -> float:
        """Busy time of one kernel against that at maximum clocks."""
        p = kernel.sharpness
        blind = 1.0 - kernel.sm_share - kernel.dram_share + kernel.dram_share * y**-p
        slow = (kernel.sm_share * x**-p + blind) ** (1.0 / p)
        if x < self._uncore_x:
            short = self._uncore_x / x - 1.0
            slow *= 1.0 + self._uncore_steepness * short * short
        return float(slow)

    def _work_w(self, kernel: _Kernel, squared_voltage: float) -> float:
        """Switching joules of one kernel per second that it would be busy at maximum clocks."""
        m = self.card.memory_share * (1.0 - kernel.sm_share)
        return kernel.dynamic_w * ((1.0 - m) * squared_voltage + m)

    def _with_host(self, host_s: float, busy: float) -> float:
        """Step time: part of the host's time is serial, the rest overlaps."""
        serial_s = self._serial_host * host_s
        free_s = host_s - serial_s
        longer = max(busy, free_s)
        n = self.card.overlap
        return serial_s + float(longer * (1.0 + (min(busy, free_s) / longer) ** n) ** (1.0 / n))


def _kernels(load: Load, switching: float) -> tuple[_Kernel, ...]:
    """A mixture whose mean sensitivities and power at maximum clocks are the load's, times `switching`.

    Seeded by the load alone: the same work has the same kernels on every card.
    """
    draw = random.Random(f"kernels {load.sm_share!r} {load.dynamic_w!r} {load.dram_share!r}")
    raw = [0.3 + draw.expovariate(1.0) for _ in range(_KERNELS)]
    weights = [w / sum(raw) for w in raw]
    # RTX 8000, 20 codes: κ of single kernels is spread over all of 0…1.
    offsets = [1.3 * draw.gauss(0.0, 1.0) for _ in range(_KERNELS)]
    shares = _shares(load.sm_share, weights, offsets)
    # H200: 716 W in GEMMs, 574 W in copies; RTX 8000: 98–255 W over 20 codes.
    levels = [math.exp(0.3 * draw.gauss(0.0, 1.0) + 0.4 * (share - load.sm_share)) for share in shares]
    mean_level = sum(w * level for w, level in zip(weights, levels, strict=True))
    blind = 1.0 - load.sm_share
    dram = load.dram_share / blind if blind > 0.0 else 0.0
    return tuple(
        _Kernel(
            weight=weight,
            sm_share=share,
            dram_share=(1.0 - share) * dram,
            # Single kernels overlap their pipes: exponents of 2–5 fit them (RTX 8000: 2, V100: 5), sums of them 1.
            sharpness=max(load.sharpness, draw.uniform(1.2, 4.0)),
            dynamic_w=switching * load.dynamic_w * level / mean_level,
        )
        for weight, share, level in zip(weights, shares, levels, strict=True)
    )


def _shares(mean: float, weights: list[float], offsets: list[float]) -> list[float]:
    """Shares within 0…1 around `mean`, scattered by `offsets` on the logistic scale, their mean kept."""
    if not 1e-6 < mean < 1.0 - 1e-6:  # nothing to scatter
        return [mean] * len(weights)
    centre = math.log(mean / (1.0 - mean))
    low, high = centre - 10.0, centre + 10.0
    shares: list[float] = []
    for _ in range(40):
        middle = 0.5 * (low + high)
        shares = [1.0 / (1.0 + math.exp(-middle - offset)) for offset in offsets]
        if sum(w * s for w, s in zip(weights, shares, strict=True)) > mean:
            high = middle
        else:
            low = middle
    return shares
