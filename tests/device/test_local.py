"""LocalLease: on virtual GPUs of this process in virtual time, and over the virtual NVML with its files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from joulewise.core.knob import Space
from joulewise.core.timeline import TimeSource, VirtualTime
from joulewise.device.lease import Lease
from joulewise.device.local import LocalLease
from joulewise.device.node import NodeClient, RunningNode
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.model import catalog
from joulewise.native import library_path
from joulewise.testing import LeaseConformance
from tests.device.test_nvml import virtual_node


class VirtualStage:
    """Two virtual GPUs in this process."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.gpus = [VirtualGpu(catalog.load("h200"), time=self.time, index=index) for index in range(2)]
        self.controls = {gpu.info.uuid: VirtualControls.of(gpu) for gpu in self.gpus}
        self.uuids: Sequence[str] = tuple(self.controls)
        self.space = self.gpus[0].info.space

    def take(self, uuids: Sequence[str], knobs: Collection[str]) -> Lease:
        return LocalLease.take([self.controls[uuid] for uuid in uuids], knobs, state=None)

    def limit_w(self, uuid: str) -> float:
        return self._gpu(uuid).asked_limit_w

    def ceiling_mhz(self, uuid: str) -> float | None:
        return self.controls[uuid].asked().get("sm_mhz")

    def set_limit(self, uuid: str, limit_w: float) -> None:
        self.controls[uuid].write("power_limit_w", limit_w)

    def refuse(self, uuid: str, on: bool) -> None:
        self._gpu(uuid).fault(no_permission=on)

    def _gpu(self, uuid: str) -> VirtualGpu:
        return self.gpus[list(self.uuids).index(uuid)]


class NvmlStage:
    """Two GPUs behind the virtual NVML, seen past it through the simulator's memory."""

    def __init__(self, node: RunningNode, client: NodeClient, state: Path) -> None:
        self.controls = {each.uuid: each for each in NvmlControls.all()}
        self.uuids: Sequence[str] = tuple(self.controls)
        self.space: Space = self.controls[self.uuids[0]].space
        self.time: TimeSource = self.controls[self.uuids[0]].time
        self.directory = state
        self.seen = VnvmlState.open(node.directory)
        self._client = client

    def take(self, uuids: Sequence[str], knobs: Collection[str]) -> Lease:
        # Guardians are apart in test_guardian: here they would only cost time.
        return LocalLease.take([self.controls[uuid] for uuid in uuids], knobs, state=self.directory, guard=False)

    def limit_w(self, uuid: str) -> float:
        return self.seen.read_control(self.uuids.index(uuid)).power_limit_mw / 1000

    def ceiling_mhz(self, uuid: str) -> float | None:
        lock = self.seen.read_control(self.uuids.index(uuid)).sm_lock_mhz
        return None if lock is None else lock[1]

    def set_limit(self, uuid: str, limit_w: float) -> None:
        self._client.fault(self.uuids.index(uuid), "foreign", power_limit_w=limit_w)

    def refuse(self, uuid: str, on: bool) -> None:
        if on:
            self._client.fault(self.uuids.index(uuid), "no_permission")
        else:
            self._client.clear(self.uuids.index(uuid))


class TestLocalLeaseOnVirtualGpus(LeaseConformance):
    @pytest.fixture
    def stage(self) -> VirtualStage:
        return VirtualStage()


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    try:
        library_path()
    except FileNotFoundError as error:
        pytest.skip(f"the virtual NVML is not built: {error}")
    with virtual_node("sim:h200*2") as node:
        yield node


@pytest.fixture
def nvml_stage(node: RunningNode, tmp_path: Path) -> Iterator[NvmlStage]:
    with node.client() as client:
        stage = NvmlStage(node, client, tmp_path)
        for uuid in stage.uuids:
            stage.set_limit(uuid, stage.space.knobs["power_limit_w"].high)
        yield stage
        stage.seen.close()


class TestLocalLeaseOverNvml(LeaseConformance):
    @pytest.fixture
    def stage(self, nvml_stage: NvmlStage) -> NvmlStage:
        return nvml_stage
