"""What goes into and comes out of the virtual NVML's shared memory, as plain values, and their form there.

Milliwatts and millijoules are NVML's own units.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from joulewise.core.errors import BadSpec
from joulewise.device import vnvml_structs as structs
from joulewise.device.vnvml_structs import MAX_PROCESSES, NONE_32, NONE_64


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """What a virtual GPU says of itself. Numbers that are not known stay None and read as NOT_SUPPORTED."""

    uuid: str
    name: str
    sm_clocks_mhz: Sequence[int]
    memory_clocks_mhz: Sequence[int]
    memory_total_bytes: int
    limit_mw: tuple[int, int, int] | None
    """Lowest, highest, default power limit; None: the GPU has none."""
    pci_bus_id: str = "00000000:01:00.0"
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    serial: str = ""
    brand: int = 14
    """NVML's number; 14 is plain NVIDIA, what data-centre GPUs report."""
    architecture: int = NONE_32
    """NVML's number: 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell; all ones: unknown."""
    compute_capability: tuple[int, int] = (0, 0)
    cores: int | None = None
    memory_bus_bits: int | None = None
    memory_reserved_bytes: int = 0
    bar1_total_bytes: int | None = None
    gpm: bool = False
    shutdown_c: int | None = None
    slowdown_c: int | None = None
    max_operating_c: int | None = None


class Values(TypedDict, total=False):
    """What ``publish`` takes. Absent: as before. None: the GPU has no such value, NVML says NOT_SUPPORTED."""

    simulated_ns: int
    energy_mj: int | None
    memory_used_bytes: int | None
    clocks_event_reasons: int | None
    power_violation_ns: int | None
    thermal_violation_ns: int | None
    power_mw: int | None
    power_instant_mw: int | None
    power_average_mw: int | None
    sm_mhz: int | None
    graphics_mhz: int | None
    memory_mhz: int | None
    video_mhz: int | None
    utilisation_gpu_percent: int | None
    utilisation_memory_percent: int | None
    temperature_c: int | None
    memory_temperature_c: int | None
    pstate: int | None
    processes: Sequence[tuple[int, int | None]]
    """(pid, bytes) each; the first 16 are shown."""
    gpm_ns: int
    """Simulated time of the GPM integrals."""
    gpm_integral: Mapping[int, float]
    """GPM metric id → its integral over simulated seconds since start."""


@dataclass(frozen=True, slots=True)
class Control:
    """What clients have asked of one GPU, as of ``sequence``."""

    power_limit_mw: int
    """0 on a GPU that has no power limit."""
    sm_lock_mhz: tuple[int, int] | None
    memory_lock_mhz: tuple[int, int] | None
    persistence: bool
    sequence: int
    written_ns: int
    """CLOCK_MONOTONIC of the last write; 0: never written."""
    writer_pid: int

    @property
    def power_limit_w(self) -> float | None:
        """None on a GPU that has no power limit."""
        return self.power_limit_mw / 1000.0 if self.power_limit_mw else None


class Knobs(TypedDict, total=False):
    """What ``write_control`` takes. Absent: as before."""

    power_limit_mw: int
    sm_lock_mhz: tuple[int, int] | None
    memory_lock_mhz: tuple[int, int] | None
    persistence: bool


def describe(block: Any, gpu: GpuIdentity) -> None:
    """Fill the identity of one GPU; every value is unpublished, the limit at its default, persistence on."""
    identity = block.identity
    sm_mhz, memory_mhz = sorted(gpu.sm_clocks_mhz, reverse=True), sorted(gpu.memory_clocks_mhz, reverse=True)
    if not 0 < len(sm_mhz) <= structs.MAX_SM_CLOCKS or not 0 < len(memory_mhz) <= structs.MAX_MEMORY_CLOCKS:
        raise BadSpec(
            f"{gpu.name} has {len(sm_mhz)} SM and {len(memory_mhz)} memory clocks; "
            f"there is room for 1 to {structs.MAX_SM_CLOCKS} and 1 to {structs.MAX_MEMORY_CLOCKS}"
        )
    identity.uuid, identity.name, identity.serial = gpu.uuid.encode(), gpu.name.encode(), gpu.serial.encode()
    domain, bus, rest = gpu.pci_bus_id.split(":")
    identity.pci_domain, identity.pci_bus = int(domain, 16), int(bus, 16)
    identity.pci_device = int(rest.split(".")[0], 16)
    identity.pci_device_id, identity.pci_subsystem_id = gpu.pci_device_id, gpu.pci_subsystem_id
    identity.brand, identity.architecture = gpu.brand, gpu.architecture
    identity.compute_major, identity.compute_minor = gpu.compute_capability
    identity.cores, identity.memory_bus_bits = gpu.cores or 0, gpu.memory_bus_bits or 0
    identity.memory_total_bytes = gpu.memory_total_bytes
    identity.memory_reserved_bytes = gpu.memory_reserved_bytes
    identity.bar1_total_bytes = gpu.bar1_total_bytes or 0
    identity.gpm_supported = gpu.gpm
    identity.limit_min_mw, identity.limit_max_mw, identity.limit_default_mw = gpu.limit_mw or (0, 0, 0)
    for name in ("shutdown_c", "slowdown_c", "max_operating_c"):
        degrees = getattr(gpu, name)
        setattr(identity, name, NONE_32 if degrees is None else degrees)
    identity.sm_clock_count, identity.memory_clock_count = len(sm_mhz), len(memory_mhz)
    identity.sm_clocks_mhz[: len(sm_mhz)] = sm_mhz
    identity.memory_clocks_mhz[: len(memory_mhz)] = memory_mhz
    ctypes.memset(ctypes.addressof(block.published), 0xFF, ctypes.sizeof(structs.Published))
    block.published.process_count = block.published.gpm_slots = 0
    block.control.power_limit_mw = identity.limit_default_mw
    block.control.persistence = 1


def fill_processes(scratch: Any, processes: Sequence[tuple[int, int | None]]) -> None:
    """Write the process list into a Published struct; there is room for the first 16."""
    shown = processes[:MAX_PROCESSES]
    scratch.process_count = len(shown)
    for slot, (pid, memory_bytes) in enumerate(shown):
        scratch.processes[slot] = structs.Process(pid, 0, NONE_64 if memory_bytes is None else memory_bytes)


def range_of(word: int) -> tuple[int, int] | None:
    """Lowest and highest locked MHz; None: not locked."""
    return (word >> 32, word & NONE_32) if word else None


def word_of(mhz: tuple[int, int] | None) -> int:
    """The inverse of ``range_of``."""
    return 0 if mhz is None else mhz[0] << 32 | mhz[1]
