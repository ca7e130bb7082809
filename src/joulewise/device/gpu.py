"""What every GPU is to the rest of the house: something that can be read. Writing is the lease's.

``NvmlGpu``, ``AmdGpu``, ``VirtualGpu`` and ``ReplayGpu`` implement the protocol; ``joulewise.testing`` holds the
suite that each of them passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from joulewise.core.knob import Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """What does not change while a GPU is up."""

    uuid: str
    """The GPU's name for good; indices move over reboots."""
    name: str
    """The model as its vendor calls it: "NVIDIA H200"."""
    index: int
    """Where its backend listed it; for display."""
    backend: str
    """"nvml", "amd", "virtual" or "replay"."""
    space: Space = field(default_factory=Space)
    """What could be set on it, given the rights."""
    sensors: SensorTiming = field(default_factory=SensorTiming)
    idle_power_w: float | None = None
    default_limit_w: float | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    driver: str | None = None
    notes: tuple[str, ...] = ()
    """One clear line each on what is special here: MIG, vGPU, WSL, experimental backend."""


@runtime_checkable
class Gpu(Protocol):
    """One GPU, reading only. Methods raise GpuLost once the GPU, its driver or its simulator is gone."""

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        ...

    @property
    def time(self) -> TimeSource:
        """The time in which this GPU lives and its readings are stamped."""
        ...

    def read(self) -> Reading:
        """Cheap (microseconds): power, clocks, utilisation, temperature, throttle reasons."""
        ...

    def energy(self) -> EnergyReading:
        """The energy counter, which can cost milliseconds. Unsupported where there is none."""
        ...

    def processes(self) -> tuple[int, ...] | None:
        """Pids with work on this GPU, or None where nobody can tell. Costs milliseconds: ask rarely."""
        ...
