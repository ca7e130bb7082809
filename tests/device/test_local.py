"""LocalLease: on virtual GPUs of this process in virtual time, and over the virtual NVML with its files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from joulewise.core.errors import GpuLost, LeaseLost, NotPermitted
from joulewise.core.knob import Setting, Space
from joulewise.core.timeline import TimeSource, VirtualTime
from joulewise.device.lease import Ending, Lease
from joulewise.device.local import LocalLease
from joulewise.device.node import NodeClient, RunningNode
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.saved import Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.model import catalog
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
def node(virtual_nvml: None) -> Iterator[RunningNode]:
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


# What fails, and is owed.

BOTH = ("sm_mhz", "power_limit_w")


class Falling(VirtualControls):
    """A GPU that falls off the bus when its limit is written, which happens all the same."""

    falls = False

    def write(self, knob: str, value: float) -> None:
        super().write(knob, value)
        if self.falls and knob == "power_limit_w":
            self.falls = False
            self._gpu.fault(lost=True)
            self.read()


def falling(count: int = 1) -> tuple[list[VirtualGpu], list[Falling]]:
    time = VirtualTime()
    gpus = [VirtualGpu(catalog.load("h200"), time=time, index=index) for index in range(count)]
    return gpus, [Falling(gpu) for gpu in gpus]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_lease_whose_apply_cannot_be_undone_ends_and_the_next_one_gives_back_first(
    tmp_path: Path, on_disk: bool
) -> None:
    (gpu,), (controls,) = falling()
    state = tmp_path if on_disk else None
    lease = LocalLease.take([controls], BOTH, state=state, guard=False)
    lease.apply(Setting(power_limit_w=650))
    controls.falls = True
    with pytest.raises(GpuLost, match=f"going back failed too.*so lease {lease.name} has ended"):
        lease.apply(Setting(sm_mhz=1200, power_limit_w=400))
    assert not lease.alive
    assert [notice.kind for notice in lease.notices()] == ["ended"]
    ended = lease.release()
    assert {each.ending for each in ended.restored} == {Ending.FAILED}
    assert "could not go back" in ended.why
    with pytest.raises(LeaseLost):
        lease.apply(Setting())
    gpu.clear()
    assert controls.asked() == Setting(sm_mhz=1200, power_limit_w=400)  # nobody is there to do it, without a guardian
    with LocalLease.take([controls], ["memory_mhz"], state=state, guard=False):
        assert controls.asked().get("sm_mhz") is None
        assert gpu.asked_limit_w == 700.0
    assert Saved.known(tmp_path) == ()


def test_a_gpu_that_cannot_go_back_after_anothers_failure_ends_the_lease_on_both() -> None:
    gpus, controls = falling(2)
    ordered = sorted(range(2), key=lambda each: controls[each].uuid)
    first, second = gpus[ordered[0]], gpus[ordered[1]]

    class Telling(Falling):
        def write(self, knob: str, value: float) -> None:
            first.fault(lost=True)  # it is lost while the second one is written, and refuses
            super().write(knob, value)

    second.fault(no_permission=True)
    lease = LocalLease.take([controls[ordered[0]], Telling(second)], BOTH, state=None)
    with pytest.raises(NotPermitted, match=r"could not go back .*has ended"):
        lease.apply(Setting(power_limit_w=400))
    assert not lease.alive
    first.clear()
    with LocalLease.take([controls[ordered[0]]], BOTH, state=None):
        assert first.asked_limit_w == 700.0


def test_what_a_lease_could_not_give_back_another_one_on_that_gpu_does(nvml_stage: NvmlStage, tmp_path: Path) -> None:
    uuid = nvml_stage.uuids[0]
    for how in ("look", "release"):
        nvml_stage.set_limit(uuid, 650.0)
        one, other = nvml_stage.take([uuid], ["power_limit_w"]), nvml_stage.take([uuid], ["sm_mhz"])
        one.apply(Setting(power_limit_w=400))
        other.apply(Setting(sm_mhz=1200))
        nvml_stage.refuse(uuid, True)
        assert [each.ending for each in one.release().restored] == [Ending.FAILED]
        nvml_stage.refuse(uuid, False)
        if how == "look":
            other.notices()
            assert nvml_stage.limit_w(uuid) == 650.0
            assert nvml_stage.ceiling_mhz(uuid) == 1200  # what the living lease has set stays
        assert {each.knob for each in other.release().restored} == {"sm_mhz"}
        assert (nvml_stage.limit_w(uuid), nvml_stage.ceiling_mhz(uuid)) == (650.0, None)
        assert Saved.known(tmp_path) == ()
