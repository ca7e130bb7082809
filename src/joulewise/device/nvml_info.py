"""What NVML says of a GPU that does not change: its names, what could be set on it, when its sensors speak.

Asked once, when an ``NvmlGpu`` is made. Sensor timing is not NVML's to tell: it comes from the catalogue where the
model is known there, else from what is known of its architecture.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.measurement import SensorTiming
from joulewise.core.timeline import TimeSource
from joulewise.core.units import watts_from_milliwatts
from joulewise.device.gpu import GpuInfo
from joulewise.device.nvml_reads import is_ga100, power_kind
from joulewise.device.nvml_space import AMPERE, HOPPER, VOLTA, notes_on, or_none, space_of
from joulewise.model import catalog


def describe(nvml: ModuleType, handle: Any, time: TimeSource) -> GpuInfo:
    """Everything about a GPU that does not change. Raises NVMLError only if it cannot even be named."""
    name = nvml.nvmlDeviceGetName(handle)
    architecture = or_none(nvml, nvml.nvmlDeviceGetArchitecture, handle)
    memory = or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    default_mw = or_none(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    known = _catalogued(name)
    return GpuInfo(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=name,
        index=nvml.nvmlDeviceGetIndex(handle),
        backend="nvml",
        space=space_of(nvml, handle, architecture),
        sensors=_sensors(nvml, handle, name, architecture, time),
        idle_power_w=known.chip.idle_w if known else None,
        default_limit_w=watts_from_milliwatts(default_mw) if default_mw else None,
        memory_bytes=memory.total if memory else None,
        pci_bus_id=pci.busId if pci else None,
        driver=or_none(nvml, nvml.nvmlSystemGetDriverVersion),
        notes=tuple(notes_on(nvml, handle)),
    )


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
    if is_ga100(name):
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
    if or_none(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle) is None:
        return replace(timing, counter_update_s=None)
    if known is None:
        timing = replace(timing, counter_call_s=time.now_s() - start_s)
    if timing.counter_update_s is None:  # the driver has a counter that our tables do not know of
        timing = replace(timing, counter_update_s=SensorTiming().counter_update_s)
    return timing


@lru_cache
def _catalogued(name: str) -> catalog.GpuModel | None:
    try:
        return catalog.load(name)
    except BadSpec:
        return None
