"""One GPU's raw knobs: what the lease engine turns. No memory and no promise; those are ``saved`` and ``keeper``.

``NvmlControls`` turns a real GPU (or one behind the virtual NVML), ``VirtualControls`` a ``VirtualGpu`` in this
process. A clock value is a *ceiling*: writing it locks the clock into [lowest supported, value].
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.core.timeline import TimeSource

LIMIT = "power_limit_w"
"""The one knob that can be read."""
CLOCKS = ("sm_mhz", "memory_mhz")
"""Knobs that cannot be read: what is set there is known only by who set it."""


def as_set(knob: str, value: float, choices: Choices) -> float:
    """What the hardware has for ``value``: a ceiling between two clocks is the lower one, never a faster GPU."""
    return choices.at_most(value) if knob in CLOCKS else choices.snap(value)


@runtime_checkable
class Controls(Protocol):
    """One GPU to be turned, by one thread at a time.

    Every method raises GpuLost once the GPU or its driver is gone; those that set raise NotPermitted, Unsupported
    and OutOfRange, and then nothing has changed.
    """

    @property
    def uuid(self) -> str:
        """The GPU's name for good."""
        ...

    @property
    def name(self) -> str:
        """Its model."""
        ...

    @property
    def space(self) -> Space:
        """What can be set, within which range."""
        ...

    @property
    def default_limit_w(self) -> float | None:
        """The vendor's power limit, where it is known."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What is special here: MIG, vGPU, WSL, virtual."""
        ...

    @property
    def time(self) -> TimeSource:
        """The time in which the GPU lives."""
        ...

    @property
    def locks(self) -> Path | None:
        """The folder of the lock that keeps other processes from writing it; None if it lives in this one."""
        ...

    def value(self, knob: str) -> float | None:
        """What was last *requested* of ``knob``, by whomever; None for clocks, which cannot be read."""
        ...

    def exact(self, knob: str, value: float) -> float:
        """``value`` as ``value()`` would give it back once written: in the driver's units (whole mW, whole MHz)."""
        ...

    def enforced_limit_w(self) -> float | None:
        """The limit in force, which may be below the requested one (a BMC's, say); None if unknown."""
        ...

    def write(self, knob: str, value: float) -> None:
        """Set the limit, or the ceiling of a clock."""
        ...

    def reset(self, knob: str) -> None:
        """The limit to the vendor's default, a clock to no lock."""
        ...

    def read(self) -> Reading:
        """As ``Gpu.read``."""
        ...

    def energy(self) -> EnergyReading:
        """As ``Gpu.energy``: Unsupported where there is no counter."""
        ...

    def processes(self) -> tuple[int, ...] | None:
        """As ``Gpu.processes``."""
        ...

    def persistence(self) -> bool | None:
        """Whether settings stay while nobody uses the GPU; None if unknown or without meaning here."""
        ...

    def set_persistence(self, on: bool) -> None:
        """Let the driver stay loaded, or not."""
        ...
