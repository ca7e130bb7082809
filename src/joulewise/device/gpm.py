"""What the units of a GPU were doing: NVML's GPM counters (Hopper and newer), as shares of time and bytes a second.

Each answer is the mean between two samples. Samples closer than about 100 ms often give 0 or NaN on an H200, so they
give no reading here, and the earlier sample stays the start of the next one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from joulewise.core.errors import Unsupported
from joulewise.device import nvml_library as library
from joulewise.device.nvml import NvmlGpu

SHORTEST_S: Final = 0.09  # a poll at 10 Hz comes some milliseconds early at times

_MIB: Final = 2.0**20

# nvml.h, nvmlGpmMetricId_t → our name. Percentages become shares of 0 to 1.
_SHARES: Final[Mapping[int, str]] = {
    1: "graphics",
    2: "sm",
    3: "occupancy",
    4: "integer",
    5: "tensor",
    6: "fp64_tensor",
    7: "half_tensor",
    9: "integer_tensor",
    10: "dram",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
# MiB a second become bytes a second.
_RATES: Final[Mapping[int, str]] = {
    20: "pcie_out_bytes_per_s",
    21: "pcie_in_bytes_per_s",
    60: "nvlink_in_bytes_per_s",
    61: "nvlink_out_bytes_per_s",
}


@dataclass(frozen=True, slots=True)
class GpmReading:
    """The mean activity between two moments. A metric that the GPU does not give is absent."""

    start_s: float
    end_s: float
    values: Mapping[str, float]


class Gpm:
    """GPM of one GPU. Unsupported where the GPU or driver has none, NotPermitted where profiling is for root."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu = gpu
        nvml, handle = gpu.session()
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise Unsupported(f"{gpu.info.uuid} ({gpu.info.name}) has no GPM; it came with Hopper")
            self._samples: tuple[Any, ...] = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
        except nvml.NVMLError as error:
            raise library.translated(error.value, "GPM", gpu.info.uuid) from None
        self._start_s: float | None = None

    def read(self) -> GpmReading | None:
        """The mean since the previous reading; None the first time, too early, or if nothing sane came back."""
        nvml, handle = self._gpu.session()
        if self._start_s is not None and self._gpu.time.now_s() - self._start_s < SHORTEST_S:
            return None
        earlier, later = self._samples
        try:
            _, now_s, _ = self._gpu.dated(lambda: nvml.nvmlGpmSampleGet(handle, later))
            answer = None if self._start_s is None else self._metrics(nvml, earlier, later)
        except nvml.NVMLError as error:
            raise library.translated(error.value, "GPM", self._gpu.info.uuid) from None
        start_s, self._start_s = self._start_s, now_s
        self._samples = (later, earlier)
        if start_s is None or not answer:
            return None
        return GpmReading(start_s, now_s, answer)

    def close(self) -> None:
        """Give the samples back to the driver. The GPU stays."""
        nvml, _ = self._gpu.session()
        for sample in self._samples:
            nvml.nvmlGpmSampleFree(sample)
        self._samples = ()

    def _metrics(self, nvml: ModuleType, earlier: Any, later: Any) -> dict[str, float]:
        wanted = (*_SHARES, *_RATES)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = earlier, later
        for place, metric in enumerate(wanted):
            request.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        values: dict[str, float] = {}
        for place, metric in enumerate(wanted):
            answer = request.metrics[place]
            if answer.nvmlReturn != 0 or not math.isfinite(answer.value) or answer.value < 0:
                continue
            if metric in _SHARES:
                values[_SHARES[metric]] = min(answer.value / 100.0, 1.0)
            else:
                values[_RATES[metric]] = answer.value * _MIB
        return values
