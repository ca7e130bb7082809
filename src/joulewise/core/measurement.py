"""What is read and what is measured: one instant of one GPU, one window of work, and how far to trust it.

A value that could not be read is None, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S")


class Source(StrEnum):
    """Where joules come from, from the most to the least trusted."""

    COUNTER = "counter"
    """The hardware's own energy counter."""
    INTEGRATED = "integrated"
    """Power samples, summed over time."""
    MODELLED = "modelled"
    """A law, not a sensor."""


class Outcome(StrEnum):
    """How the observed work ended. Only ``REACHED`` is a full observation; the rest are censored or excluded."""

    REACHED = "reached"
    STOPPED_EARLY = "stopped_early"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    PREEMPTED = "preempted"


class Throttle(StrEnum):
    """Why the clock is below what the job would like, in words a user can read."""

    IDLE = "idle"
    POWER_CAP = "power cap"
    HEAT = "heat"
    LOCKED = "locked clocks"
    HARDWARE = "hardware slowdown"
    SYNC = "sync boost"
    DISPLAY = "display clocks"


@dataclass(frozen=True, slots=True)
class SensorTiming:
    """When a GPU's sensors say something new, and how wrong they are as instruments. Seconds and ratios.

    Known per GPU model (catalogue), or measured; ``None`` where nobody knows.
    """

    power_update_s: float = 0.1
    """The instant power reading changes once in this time."""
    power_window_s: float = 0.1
    """It is the mean over this time before the update; shorter than the update means that the sensor looks
    only part of the time (25 ms of each 100 ms on A100 and H100)."""
    average_window_s: float | None = 1.0
    """Window of the driver's slow average, or None where plain power is instant."""
    counter_update_s: float | None = 0.1
    """The energy counter moves once in this time; None where there is no counter."""
    counter_call_s: float = 1e-6
    """What one read of the counter costs (3.45 ms on an H200)."""
    counter_window_s: float | None = None
    """The counter sums the same part-time samples if this is below its update time; None means it sees all."""
    utilization_update_s: float = 0.2
    gain_error: float = 0.03
    """One relative standard error of the sensor's own gain, constant per card: it cancels in a ratio on one
    card, and no averaging removes it."""

    @property
    def power_duty(self) -> float:
        """The share of time that the power sensor looks at."""
        return min(1.0, self.power_window_s / self.power_update_s)


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one instant; what the sensors show, which may be older than ``time_s``."""

    time_s: float
    power_w: float | None = None
    """The most instantaneous power the GPU offers."""
    average_power_w: float | None = None
    """The driver's own slow average (1 s on most GPUs since Ampere)."""
    power_limit_w: float | None = None
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    utilization: float | None = None
    """Share of time with a kernel running, 0 to 1."""
    memory_utilization: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    throttle: frozenset[Throttle] | None = None


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """The energy counter. ``energy_j`` is what it showed somewhere in ``[time_s, time_s + call_s]``."""

    time_s: float
    energy_j: float
    call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement(Generic[S]):
    """One window of work under one setting: its time, its energy, and how far both can be trusted."""

    setting: S
    duration_s: float
    energy_j: float
    error_j: float
    """One standard error from sampling and sensor timing."""
    gain_error: float
    """The sensor's own relative error, kept apart: it cancels in a ratio on one card."""
    source: Source
    work: float = 1.0
    """How much was done, in the caller's unit (steps, samples, tokens)."""
    outcome: Outcome = Outcome.REACHED
    notes: tuple[str, ...] = field(default=())
    """What a reader should know: "counter reset", "3 samples lost"."""

    @property
    def power_w(self) -> float:
        """Average power over the window."""
        return self.energy_j / self.duration_s if self.duration_s > 0 else math.nan

    @property
    def total_error_j(self) -> float:
        """Sampling error and gain error together: how far this is from true joules."""
        return math.hypot(self.error_j, self.gain_error * self.energy_j)


def total(parts: list[Measurement[S]] | tuple[Measurement[S], ...]) -> Measurement[S]:
    """One window seen by several GPUs: energies add, time does not.

    Sampling errors are independent and add in squares; gains are each card's own, so they do too. The
    weakest source and the first outcome that is not ``REACHED`` stand for the whole.
    """
    if not parts:
        raise ValueError("nothing to add up")
    energy_j = sum(part.energy_j for part in parts)
    gain_j = math.sqrt(sum((part.gain_error * part.energy_j) ** 2 for part in parts))
    return Measurement(
        setting=parts[0].setting,
        duration_s=max(part.duration_s for part in parts),
        energy_j=energy_j,
        error_j=math.sqrt(sum(part.error_j**2 for part in parts)),
        gain_error=gain_j / energy_j if energy_j > 0 else max(part.gain_error for part in parts),
        source=max((part.source for part in parts), key=list(Source).index),
        work=parts[0].work,
        outcome=next((part.outcome for part in parts if part.outcome is not Outcome.REACHED), Outcome.REACHED),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
