"""A partition: the compute of one nanobatch beside one communication kernel of the other, as an event-driven simulator.

What it is: the seconds and joules of a run of compute operations while a collective runs on ``k`` SMs from the start
of one operation and is waited for at the end of another (or runs alone, before them: sequential). Both contend for
SMs, for HBM bandwidth and, through the latency of a loaded memory system, for each other's pace; the SM clock and a
power limit act on all of it. Between events (an operation ends, the collective starts or ends) all rates are constant,
so the walk from event to event is exact; it is done for many schedules at once. What it is not: a network simulator
(the collective is one rate), nor a thermal one.

The law, S SMs, x = SM clock / its maximum, work of operation i as seconds alone, the collective as 1:

    collective      r = (rs^−p + link^−p)^(−1/p),  rs = k·b·x^γ / (1 + λ_i)     λ_i: loaded latency beside operation i
                    its HBM share u = r·hbm_s is granted max–min fairly: at most max(1/2, 1 − what the operation asks)
    operation i     d_i = (c_i^n + m_i^n)^(1/n),   c_i = compute_s/x · S/(S − k) · waves,   m_i = memory_s/(1 − u)
    waves           ⌈n/(S − k)⌉·(S − k)/n for n tiles, against the same with k = 0; 1 where the tiles are not known
    start           beside an operation that fills the GPU the collective waits for SMs: for a share ``queue`` of it
    power           static + joules of the operation per second done, (1 − m)·v(x)² + m of it, m = the chip's
                    memory_share of its part of memory
                    + k·sm_w·x·v(x)² + joules of the collective per second done;  v(x) as in ``model/physics``
    limit           where power would exceed it, x falls until it does not, in each phase by itself

The roofline and contention terms are those of section 8 of the notes on Kareus (OSDI'26); λ and ``queue`` are ours:
without them no choice of the others reproduces the measured A100 grid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model import physics
from joulewise.model.physics import Chip

Array = NDArray[Any]

SEQUENTIAL = -1
"""The ``start`` (and ``end``) of a schedule whose collective runs alone, before the first operation."""
_OVERLAP = 6.0  # n: compute and memory of one kernel overlap well, not perfectly
_LIMITER_STEPS = 14  # bisections of x under a power limit: 1/16000 of the clock range


@dataclass(frozen=True, slots=True)
class Operation:
    """One compute kernel, or a run of like ones. Seconds are alone on the whole GPU at maximum clock."""

    name: str
    compute_s: float  # were HBM free of charge
    memory_s: float  # were arithmetic free of charge
    energy_j: float  # beyond static power, at maximum clock
    latency: float = 0.0  # λ: by how much its traffic stretches the latency that the collective's SMs see
    queue: float = 0.0  # share of it that passes before a collective launched beside it gets its SMs
    tiles: int = 0  # thread blocks, for whole waves; 0: not known


@dataclass(frozen=True, slots=True)
class Collective:
    """One communication kernel; rates are shares of it done per second."""

    sm_per_s: Mapping[int, float]  # b: by one SM, keyed by threads of a block
    link_per_s: float  # what the wire allows
    hbm_s: float  # seconds of full HBM bandwidth that its reads and writes take
    energy_j: float  # beyond static power and that of its SMs
    sm_w: float  # one SM that polls and copies, at maximum clock
    sharpness: float = 2.0  # p: how abruptly the wire takes over from the SMs
    clock_power: float = 0.5  # γ: an SM's copy is partly latency of the memory system, which has its own clock
    launch_s: float = 0.0  # from its event until its first byte


@dataclass(frozen=True, slots=True)
class Partition:
    """What runs, on what."""

    operations: tuple[Operation, ...]
    collective: Collective
    sms: int
    chip: Chip  # for the voltage curve and the clock range
    static_w: float

    def __post_init__(self) -> None:
        if not self.operations or self.sms < 2:
            raise ModelError(f"a partition needs operations and 2 or more SMs, not {len(self.operations)}, {self.sms}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """One choice: the collective starts with operation ``start`` and is waited for at the end of operation ``end``."""

    start: int
    end: int
    sms: int
    block: int
    sm_mhz: float | None = None  # None: maximum

    @property
    def sequential(self) -> bool:
        """Whether nothing overlaps."""
        return self.start == SEQUENTIAL


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds and joules of one GPU for each schedule, and the clock that the power limit left (mean over time)."""

    time_s: Array
    energy_j: Array
    x: Array


def simulate(partition: Partition, schedules: Sequence[Schedule], *, limit_w: float | None = None) -> Outcome:
    """Run every schedule. Raises ModelError for one that the partition cannot run."""
    _check(partition, schedules)
    run = _Run(partition, schedules, limit_w)
    start = np.array([schedule.start for schedule in schedules])
    end = np.array([schedule.end for schedule in schedules])
    run.finish_alone(start == SEQUENTIAL)
    for index, operation in enumerate(partition.operations):
        run.begin(start == index, operation)
        run.compute(operation)
        run.finish_alone(end == index)
    return Outcome(run.time_s, run.energy_j, run.x_time / run.time_s)


def alone(partition: Partition, x: Array) -> tuple[Array, Array]:
    """Seconds and joules of the operations with no collective at all, at each clock fraction of `x`."""
    none = np.zeros_like(x)
    time = np.array([_duration(partition, one, x, none, none) for one in partition.operations])
    volt2 = physics.voltage(partition.chip, x) ** 2
    joules = np.array([one.energy_j * _clocked(partition.chip, one, volt2) for one in partition.operations])
    return time.sum(axis=0), joules.sum(axis=0) + partition.static_w * time.sum(axis=0)


class _Run:
    """The walk over all schedules at once: what is left of each collective, and what has been spent."""

    def __init__(self, partition: Partition, schedules: Sequence[Schedule], limit_w: float | None) -> None:
        chip, collective = partition.chip, partition.collective
        self.partition, self.limit_w = partition, limit_w
        self.k = np.array([float(schedule.sms) for schedule in schedules])
        self.b = np.array([collective.sm_per_s[schedule.block] for schedule in schedules])
        self.x = np.array([1.0 if s.sm_mhz is None else s.sm_mhz / chip.sm_max_mhz for s in schedules])
        self.left = np.ones(len(schedules))
        self.running = np.zeros(len(schedules), bool)
        self.wait_s = np.zeros(len(schedules))  # until a launched collective gets its SMs
        self.time_s, self.energy_j, self.x_time = (np.zeros(len(schedules)) for _ in range(3))

    def begin(self, chosen: Array, operation: Operation) -> None:
        """Launch the collective beside ``operation`` where ``chosen``."""
        solo = _duration(self.partition, operation, self.x, np.zeros_like(self.k), np.zeros_like(self.k))
        self.running |= chosen
        self.wait_s = np.where(chosen, self.partition.collective.launch_s + operation.queue * solo, self.wait_s)

    def compute(self, operation: Operation) -> None:
        """One operation: alone until the collective gets its SMs, beside it until it ends, alone again."""
        left = np.ones_like(self.left)  # of the operation
        for beside in (False, True, False):
            x, pace, moved = self._phase(operation, beside)
            busy = self.running & (self.left > 0) & (beside | (self.wait_s > 0))
            span = left / pace
            if beside:
                span = np.where(busy, np.minimum(span, self.left / np.maximum(moved, 1e-300)), 0.0)
            else:
                span = np.where(
                    busy, np.minimum(span, self.wait_s), np.where(self.running & (self.left > 0), 0.0, span)
                )
                moved = np.zeros_like(moved)
                self.wait_s = np.where(busy, self.wait_s - span, self.wait_s)
            self._spend(span, x, moved, operation, pace, beside=beside)
            left = np.clip(left - span * pace, 0.0, None)

    def finish_alone(self, chosen: Array) -> None:
        """Wait for the collective where ``chosen``; nothing else runs."""
        x, _, moved = self._phase(None, True)
        span = np.where(chosen & (self.left > 0), self.left / np.maximum(moved, 1e-300), 0.0)
        launch = np.where(chosen & ~self.running, self.partition.collective.launch_s, self.wait_s * chosen)
        self._spend(np.where(span > 0, launch, 0.0), x, np.zeros_like(moved), None, None, beside=False)
        self._spend(span, x, moved, None, None, beside=True)
        self.running = self.running & ~chosen
        self.wait_s = np.where(chosen, 0.0, self.wait_s)

    def _phase(self, operation: Operation | None, beside: bool) -> tuple[Array, Array, Array]:
        """Clock, operations per second and collectives per second of a phase."""
        x = self.x
        if self.limit_w is not None:
            low = np.minimum(x, self.partition.chip.sm_floor)
            high = x
            fits = self._power(operation, beside, x, *self._rates(operation, beside, x)) <= self.limit_w
            for _ in range(_LIMITER_STEPS):
                middle = (low + high) / 2.0
                power = self._power(operation, beside, middle, *self._rates(operation, beside, middle))
                low, high = (
                    np.where(power <= self.limit_w, middle, low),
                    np.where(power <= self.limit_w, high, middle),
                )
            x = np.where(fits, x, low)
        return x, *self._rates(operation, beside, x)

    def _rates(self, operation: Operation | None, beside: bool, x: Array) -> tuple[Array, Array]:
        k = self.k if beside else np.zeros_like(self.k)
        moved = np.zeros_like(k)
        used = np.zeros_like(k)
        collective = self.partition.collective
        if beside:
            latency = operation.latency if operation else 0.0
            by_sm = k * self.b * x**collective.clock_power / (1.0 + latency)
            p = collective.sharpness
            moved = (by_sm**-p + collective.link_per_s**-p) ** (-1.0 / p)
            asked = moved * collective.hbm_s
            if operation is not None:
                alone = _duration(self.partition, operation, x, k, np.zeros_like(k))
                granted = np.minimum(asked, np.maximum(0.5, 1.0 - operation.memory_s / alone))
            else:
                granted = np.minimum(asked, 1.0)
            moved = np.where(asked > granted, granted / max(collective.hbm_s, 1e-300), moved)
            used = np.minimum(granted, 0.999)
        pace = np.zeros_like(k) if operation is None else 1.0 / _duration(self.partition, operation, x, k, used)
        return pace, moved

    def _power(self, operation: Operation | None, beside: bool, x: Array, pace: Array, moved: Array) -> Array:
        volt2 = physics.voltage(self.partition.chip, x) ** 2
        power = self.partition.static_w + moved * self.partition.collective.energy_j
        if beside:
            power = power + self.k * self.partition.collective.sm_w * x * volt2
        if operation is not None:
            power = power + pace * operation.energy_j * _clocked(self.partition.chip, operation, volt2)
        return np.asarray(power)

    def _spend(
        self, span: Array, x: Array, moved: Array, operation: Operation | None, pace: Array | None, *, beside: bool
    ) -> None:
        power = self._power(operation, beside, x, np.zeros_like(x) if pace is None else pace, moved)
        self.time_s = self.time_s + span
        self.x_time = self.x_time + span * x
        self.energy_j = self.energy_j + span * power
        self.left = np.where(self.left - span * moved <= 1e-12, 0.0, self.left - span * moved)


def _clocked(chip: Chip, operation: Operation, volt2: Array) -> Array:
    """Joules of an operation beyond static, relative to maximum clock: switching follows V², memory does not."""
    memory = chip.memory_share * operation.memory_s / (operation.memory_s + operation.compute_s)
    return np.asarray((1.0 - memory) * volt2 + memory)


def _duration(partition: Partition, operation: Operation, x: Array, k: Array, used: Array) -> Array:
    """Seconds of one operation on the SMs and the HBM bandwidth that the collective leaves."""
    sms = float(partition.sms)
    compute = operation.compute_s / x * sms / (sms - k)
    if operation.tiles:
        whole = math.ceil(operation.tiles / sms) * sms
        compute = compute * np.ceil(operation.tiles / (sms - k)) * (sms - k) / whole
    memory = operation.memory_s / (1.0 - used)
    return np.asarray((compute**_OVERLAP + memory**_OVERLAP) ** (1.0 / _OVERLAP))


def _check(partition: Partition, schedules: Sequence[Schedule]) -> None:
    last = len(partition.operations) - 1
    for schedule in schedules:
        window = schedule.end == SEQUENTIAL if schedule.sequential else 0 <= schedule.start <= schedule.end <= last
        if not window:
            raise ModelError(f"window {schedule.start}–{schedule.end} is outside operations 0–{last}; or both −1")
        if not 1 <= schedule.sms < partition.sms:
            raise ModelError(f"{schedule.sms} SMs for the collective is outside 1–{partition.sms - 1}")
        if schedule.block not in partition.collective.sm_per_s:
            raise ModelError(f"no rate for blocks of {schedule.block}; known: {sorted(partition.collective.sm_per_s)}")
        if schedule.sm_mhz is not None and not 0 < schedule.sm_mhz <= partition.chip.sm_max_mhz:
            raise ModelError(f"sm_mhz={schedule.sm_mhz:g} is outside 0–{partition.chip.sm_max_mhz:g}")
