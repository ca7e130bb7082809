"""The suite on a real GPU, read-only; run by test_nvml_real in a process that has no virtual NVML in it."""

from __future__ import annotations

import pytest

from joulewise.device.gpm import SHORTEST_S, Gpm
from joulewise.device.gpu import Gpu
from joulewise.device.nvml import NvmlGpu
from joulewise.testing import GpuConformance


class TestRealGpu(GpuConformance):
    @pytest.fixture
    def gpu(self) -> Gpu:
        return NvmlGpu.all()[0]


def test_a_real_hopper_gives_gpm() -> None:
    gpu = NvmlGpu.all()[0]
    if not any(model in gpu.info.name for model in ("H100", "H200", "GH200")):
        pytest.skip(f"{gpu.info.name} is no Hopper")
    gpm = Gpm(gpu)
    assert gpm.read() is None
    gpu.time.sleep(3 * SHORTEST_S)
    reading = gpm.read()
    assert reading is not None
    assert {"sm", "dram", "tensor"} <= set(reading.values)
    gpm.close()
