"""NVIDIA GPUs through NVML, reading only: ``nvml_reads`` with what ``nvml_info`` knows of each model."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from joulewise.device import nvml_library as library
from joulewise.device.gpu import GpuInfo
from joulewise.device.nvml_info import describe
from joulewise.device.nvml_library import use_virtual
from joulewise.device.nvml_reads import NvmlReads, count
from joulewise.device.nvml_space import instances

__all__ = ["NvmlGpu", "mig_parents", "use_virtual"]


class NvmlGpu(NvmlReads):
    """One NVIDIA GPU, by its UUID. Safe to read from several threads; works on after a fork."""

    _info: GpuInfo

    def _describe(self, nvml: ModuleType, handle: Any) -> None:
        self._info = describe(nvml, handle, self._time)

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        return self._info


def mig_parents() -> Mapping[str, str]:
    """The UUID of every MIG instance → the UUID of its GPU. NoGpu or MissingPart where there is no NVML."""
    nvml = library.nvml()
    return instances(nvml, count(nvml))
