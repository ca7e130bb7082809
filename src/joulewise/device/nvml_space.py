"""What NVML says could be set on a GPU, and what is special about it: asked once, with nothing but the binding.

Apart from ``nvml_info`` because the privileged daemon needs this and must not load what that one loads (the
catalogue, and numpy with it).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from joulewise.core.knob import Choices, Space
from joulewise.core.units import watts_from_milliwatts
from joulewise.device import nvml_library as library

T = TypeVar("T")

# nvml.h, NVML_DEVICE_ARCH_*.
VOLTA, AMPERE, HOPPER = 5, 7, 9
_VGPU_GUEST, _VGPU_HOST = 2, 3  # NVML_GPU_VIRTUALIZATION_MODE_VGPU, _HOST_VGPU


def space_of(nvml: ModuleType, handle: Any, architecture: int | None) -> Space:
    """The knobs that this GPU and driver have, and their ranges."""
    knobs: dict[str, Choices] = {}
    if architecture is not None and architecture >= VOLTA:
        memory_mhz = or_none(nvml, nvml.nvmlDeviceGetSupportedMemoryClocks, handle) or []
        if memory_mhz:
            sm_mhz = or_none(nvml, nvml.nvmlDeviceGetSupportedGraphicsClocks, handle, max(memory_mhz)) or []
            if sm_mhz:
                knobs["sm_mhz"] = choices(sm_mhz)
            if architecture >= AMPERE:  # nvmlDeviceSetMemoryLockedClocks: Ampere or newer
                knobs["memory_mhz"] = choices(memory_mhz)
    limits_mw = or_none(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    if limits_mw and 0 < limits_mw[0] <= limits_mw[1]:
        low_w, high_w = map(watts_from_milliwatts, limits_mw)
        knobs["power_limit_w"] = Choices(low_w, high_w)
    return Space(knobs)


def choices(values: list[int]) -> Choices:
    """A range with a step where the values are evenly spaced, else the list itself."""
    ordered = sorted(set(values))
    steps = {later - earlier for earlier, later in itertools.pairwise(ordered)}
    if len(ordered) > 2 and len(steps) == 1:
        return Choices(float(ordered[0]), float(ordered[-1]), float(steps.pop()))
    return Choices.of([float(value) for value in ordered])


def notes_on(nvml: ModuleType, handle: Any) -> list[str]:
    """One clear line each on what is special here: MIG, vGPU, WSL, virtual."""
    notes = []
    if mig_is_on(nvml, handle):
        notes.append("MIG is on: power and energy are of the whole GPU, which its instances share; never set it")
    mode = or_none(nvml, nvml.nvmlDeviceGetVirtualizationMode, handle)
    if mode == _VGPU_GUEST:
        notes.append("vGPU guest: the host owns power and clocks, so most readings and all settings are missing")
    elif mode == _VGPU_HOST:
        notes.append("vGPU host: guests share this GPU; power and energy are theirs together")
    if library.is_virtual():
        notes.append("virtual: simulated by joulewise, no hardware")
    elif is_wsl():
        notes.append("WSL: the Windows driver answers; some readings and all settings are missing, measure on Linux")
    return notes


def instances(nvml: ModuleType, count: int) -> Mapping[str, str]:
    """The UUID of every MIG instance → the UUID of its GPU; empty where MIG is off."""
    parents: dict[str, str] = {}
    for index in range(count):
        handle = or_none(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        parent = None if handle is None else or_none(nvml, nvml.nvmlDeviceGetUUID, handle)
        if parent is None or not mig_is_on(nvml, handle):
            continue
        for slot in range(or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            uuid = None if instance is None else or_none(nvml, nvml.nvmlDeviceGetUUID, instance)
            if uuid is not None:
                parents[uuid] = parent
    return parents


def mig_is_on(nvml: ModuleType, handle: Any) -> bool:
    """Whether this GPU is cut into instances."""
    mode = or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == 1


def is_wsl(root: Path = Path("/")) -> bool:
    """Whether this is Linux inside Windows, where the Windows driver answers for NVML."""
    return (root / "dev/dxg").exists()


def or_none(nvml: ModuleType, ask: Callable[..., T], *arguments: Any) -> T | None:
    """The answer, or None if there is none to be had."""
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None
