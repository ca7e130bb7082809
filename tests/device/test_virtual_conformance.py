"""The conformance suite on in-process virtual GPUs, on virtual time."""

from __future__ import annotations

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.device.gpu import Gpu
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, workloads
from joulewise.testing import GpuConformance, LostGpuConformance


class TestIdleVirtualGpu(GpuConformance):
    @pytest.fixture(params=catalog.names())
    def gpu(self, request: pytest.FixtureRequest) -> Gpu:
        return VirtualGpu(catalog.load(request.param), time=VirtualTime(), seed=7)


class TestBusyVirtualGpu(GpuConformance):
    @pytest.fixture(params=["h200", "a100", "v100", "rtx8000"])
    def gpu(self, request: pytest.FixtureRequest) -> Gpu:
        time = VirtualTime(100.0)
        gpu = VirtualGpu(catalog.load(request.param), time=time, seed=3)
        time.spawn(gpu.run(workloads.get("transformer", seed=1)))
        time.sleep(1.0)
        return gpu


class TestVirtualGpuThatIsLost(LostGpuConformance):
    @pytest.fixture
    def lost_gpu(self) -> Gpu:
        gpu = VirtualGpu(catalog.load("h200"), time=VirtualTime())
        gpu.fault(lost=True)
        return gpu
