"""What NVML says of a GPU that does not change: its names, what could be set on it, when its sensors speak.

Asked once, when an ``NvmlGpu`` is made. Sensor timing is not NVML's to tell: it comes from the catalogue where the
model is known there, else from what is known of its architecture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import SensorTiming
from joulewise.core.timeline import TimeSource
from joulewise.core.units import watts_from_milliwatts
from joulewise.device import nvml_library as library
from joulewise.device.gpu import GpuInfo
from joulewise.model import catalog

T = TypeVar("T")

PowerKind = Literal["instant", "plain", "average"]
""""instant": instant and average power apart; "plain": one power, instant; "average": only a 1 s average."""

# nvml.h, NVML_DEVICE_ARCH_*.
VOLTA, AMPERE, HOPPER = 5, 7, 9
_INSTANT_POWER = 186  # NVML_FI_DEV_POWER_INSTANT
_VGPU_GUEST, _VGPU_HOST = 2, 3  # NVML_GPU_VIRTUALIZATION_MODE_VGPU, _HOST_VGPU


def describe(nvml: ModuleType, handle: Any, time: TimeSource) -> GpuInfo:
    """Everything about a GPU that does not change. Raises NVMLError only if it cannot even be named."""
    name = nvml.nvmlDeviceGetName(handle)
    architecture = _or_none(nvml, nvml.nvmlDeviceGetArchitecture, handle)
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    default_mw = _or_none(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    known = _catalogued(name)
    return GpuInfo(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=name,
        index=nvml.nvmlDeviceGetIndex(handle),
        backend="nvml",
        space=_space(nvml, handle, architecture),
        sensors=_sensors(nvml, handle, name, architecture, time),
        idle_power_w=known.chip.idle_w if known else None,
        default_limit_w=watts_from_milliwatts(default_mw) if default_mw else None,
        memory_bytes=memory.total if memory else None,
        pci_bus_id=pci.busId if pci else None,
        driver=_or_none(nvml, nvml.nvmlSystemGetDriverVersion),
        notes=tuple(_notes(nvml, handle)),
    )


def power_kind(nvml: ModuleType, handle: Any) -> PowerKind:
    """The best power that the driver gives of this GPU."""
    fields = _or_none(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_INSTANT_POWER])
    if fields is not None and fields[0].nvmlReturn == 0:
        return "instant"
    architecture = _or_none(nvml, nvml.nvmlDeviceGetArchitecture, handle)
    # nvml.h on nvmlDeviceGetPowerUsage: a 1 s average since Ampere, except on GA100.
    if architecture is not None and architecture >= AMPERE and not _is_ga100(nvml.nvmlDeviceGetName(handle)):
        return "average"
    return "plain"


def instances(nvml: ModuleType, count: int) -> Mapping[str, str]:
    """The UUID of every MIG instance → the UUID of its GPU; empty where MIG is off."""
    parents: dict[str, str] = {}
    for index in range(count):
        handle = _or_none(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        parent = None if handle is None else _or_none(nvml, nvml.nvmlDeviceGetUUID, handle)
        if parent is None or not _mig_is_on(nvml, handle):
            continue
        for slot in range(_or_none(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = _or_none(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            uuid = None if instance is None else _or_none(nvml, nvml.nvmlDeviceGetUUID, instance)
            if uuid is not None:
                parents[uuid] = parent
    return parents


def is_wsl(root: Path = Path("/")) -> bool:
    """Whether this is Linux inside Windows, where the Windows driver answers for NVML."""
    return (root / "dev/dxg").exists()


def generic_timing(name: str, architecture: int | None) -> SensorTiming:
    """Sensor timing of a GPU that the catalogue does not know, by its architecture.

    Measured on public polling data and by arXiv 2312.02741: V100 20 ms power and 1/6 s utilisation; A100 and H100 a
    25 ms look in each 100 ms; RTX 3090 100 ms; A100 utilisation 1 s. Others are taken to be like those.
    """
    if architecture is None:
        return SensorTiming()
    if architecture < AMPERE:
        early = SensorTiming(
            power_update_s=0.02, power_window_s=0.02, average_window_s=None, utilization_update_s=1 / 6
        )
        # No energy counter before Volta (nvml.h on nvmlDeviceGetTotalEnergyConsumption).
        return replace(early, counter_update_s=0.02 if architecture >= VOLTA else None)
    if _is_ga100(name):
        return SensorTiming(power_window_s=0.025, average_window_s=None, utilization_update_s=1.0)
    if architecture == HOPPER:
        return SensorTiming(power_window_s=0.025)
    return SensorTiming()


def _sensors(nvml: ModuleType, handle: Any, name: str, architecture: int | None, time: TimeSource) -> SensorTiming:
    known = _catalogued(name)
    timing = known.sensors if known else generic_timing(name, architecture)
    if power_kind(nvml, handle) == "average":
        timing = replace(timing, power_window_s=timing.average_window_s or 1.0)
    start_s = time.now_s()
    if _or_none(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle) is None:
        return replace(timing, counter_update_s=None)
    if known is None:
        timing = replace(timing, counter_call_s=time.now_s() - start_s)
    if timing.counter_update_s is None:  # the driver has a counter that our tables do not know of
        timing = replace(timing, counter_update_s=SensorTiming().counter_update_s)
    return timing


def _space(nvml: ModuleType, handle: Any, architecture: int | None) -> Space:
    knobs: dict[str, Choices] = {}
    if architecture is not None and architecture >= VOLTA:
        memory_mhz = _or_none(nvml, nvml.nvmlDeviceGetSupportedMemoryClocks, handle) or []
        if memory_mhz:
            sm_mhz = _or_none(nvml, nvml.nvmlDeviceGetSupportedGraphicsClocks, handle, max(memory_mhz)) or []
            if sm_mhz:
                knobs["sm_mhz"] = choices(sm_mhz)
            if architecture >= AMPERE:  # nvmlDeviceSetMemoryLockedClocks: Ampere or newer
                knobs["memory_mhz"] = choices(memory_mhz)
    limits_mw = _or_none(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
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


def _notes(nvml: ModuleType, handle: Any) -> list[str]:
    notes = []
    if _mig_is_on(nvml, handle):
        notes.append("MIG is on: power and energy are of the whole GPU, which its instances share; never set it")
    mode = _or_none(nvml, nvml.nvmlDeviceGetVirtualizationMode, handle)
    if mode == _VGPU_GUEST:
        notes.append("vGPU guest: the host owns power and clocks, so most readings and all settings are missing")
    elif mode == _VGPU_HOST:
        notes.append("vGPU host: guests share this GPU; power and energy are theirs together")
    if library.is_virtual():
        notes.append("virtual: simulated by joulewise, no hardware")
    elif is_wsl():
        notes.append("WSL: the Windows driver answers; some readings and all settings are missing, measure on Linux")
    return notes


def _mig_is_on(nvml: ModuleType, handle: Any) -> bool:
    mode = _or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == 1


def _is_ga100(name: str) -> bool:
    return any(model in name for model in ("A100", "A30", "A800"))


@lru_cache
def _catalogued(name: str) -> catalog.GpuModel | None:
    try:
        return catalog.load(name)
    except BadSpec:
        return None


def _or_none(nvml: ModuleType, ask: Callable[..., T], *arguments: Any) -> T | None:
    """The answer, or None if there is none to be had."""
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None
