"""Where clocks are when nobody leases them, and how that is changed: said durably, or not at all."""

from __future__ import annotations

import pytest

from joulewise.core.errors import GpuLost, NotPermitted, NotSaved, OutOfRange, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Owner
from joulewise.device.saved import Memory
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog

OWNER = Owner("lease-1", 1000, 42)


class Disk(Memory):
    """Memory that may be full."""

    full = False

    def stand(self, knob: str, value: float | None) -> None:
        if self.full:
            raise NotSaved("no space left")
        super().stand(knob, value)


@pytest.fixture
def gpu() -> VirtualGpu:
    return VirtualGpu(catalog.load("h200"), time=VirtualTime(100.0))


@pytest.fixture
def controls(gpu: VirtualGpu) -> VirtualControls:
    return VirtualControls(gpu)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def keeper(controls: VirtualControls, disk: Disk) -> Keeper:
    return Keeper(controls, disk, baseline=Setting(memory_mhz=2201))


def test_a_limit_does_not_stand_and_is_not_touched(keeper: Keeper, controls: VirtualControls) -> None:
    controls.write("power_limit_w", 600.0)
    for value in (500.0, None):
        with pytest.raises(Unsupported, match="only sm_mhz and memory_mhz can"):
            keeper.stand("power_limit_w", value)
    assert controls.asked() == Setting(power_limit_w=600)
    assert keeper.saved.standing == {}


def test_what_stands_is_set_again_after_a_restart(keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu) -> None:
    keeper.stand("sm_mhz", 1650.0)
    assert controls.asked() == Setting(sm_mhz=1650)
    gpu.reload_driver()
    assert Keeper(controls, keeper.saved).replay() == ()
    assert controls.asked() == Setting(sm_mhz=1650)


def test_what_stands_no_more_goes_to_the_baseline_or_is_free(keeper: Keeper, controls: VirtualControls) -> None:
    keeper.stand("sm_mhz", 1650.0)
    keeper.stand("memory_mhz", 3201.0)
    keeper.stand("sm_mhz", None)
    keeper.stand("memory_mhz", None)
    assert controls.asked() == Setting(memory_mhz=2201)
    assert keeper.saved.standing == {}


def test_a_leased_clock_gets_there_when_its_lease_ends(keeper: Keeper, controls: VirtualControls) -> None:
    keeper.take(["sm_mhz"], OWNER)
    keeper.stand("sm_mhz", 1650.0)
    assert controls.asked() == Setting()
    assert [each.ending for each in keeper.restore(["sm_mhz"])] == [Ending.STANDING]
    assert controls.asked() == Setting(sm_mhz=1650)


def test_what_cannot_stand_is_refused_and_what_stood_stands(keeper: Keeper, gpu: VirtualGpu) -> None:
    keeper.stand("memory_mhz", 3201.0)
    for fault, error in (({"no_permission": True}, NotPermitted), ({"lost": True}, GpuLost)):
        gpu.fault(**fault)
        for knob, value in (("sm_mhz", 1200.0), ("memory_mhz", 2201.0), ("memory_mhz", None)):
            with pytest.raises(error):
                keeper.stand(knob, value)
        gpu.clear()
        assert keeper.saved.standing == {"memory_mhz": 3201.0}
    for knob, nonsense, error in (("sm_mhz", 1.0, OutOfRange), ("warp_drive", None, Unsupported)):
        with pytest.raises(error):
            keeper.stand(knob, nonsense)
    assert VirtualControls(gpu).asked() == Setting(memory_mhz=3201)


def test_what_cannot_be_saved_does_not_stand_and_is_not_set(
    keeper: Keeper, controls: VirtualControls, disk: Disk
) -> None:
    controls.write("sm_mhz", 1005.0)  # somebody's
    disk.full = True
    with pytest.raises(NotSaved):
        keeper.stand("sm_mhz", 1200.0)
    assert controls.asked() == Setting(sm_mhz=1005)
    disk.full = False
    keeper.stand("sm_mhz", 1200.0)
    disk.full = True
    with pytest.raises(NotSaved):
        keeper.stand("sm_mhz", None)
    assert controls.asked() == Setting(sm_mhz=1200)  # as it would be after a restart


def test_a_gpu_that_is_lost_in_the_middle_is_brought_to_what_stood(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    keeper.stand("sm_mhz", 1650.0)

    class Dying(VirtualControls):
        """Writes, and then has no time to say so."""

        dies = True

        def write(self, knob: str, value: float) -> None:
            super().write(knob, value)
            if self.dies:
                self.dies = False
                raise GpuLost("it fell off the bus")

    dying = Keeper(Dying(gpu), keeper.saved)
    with pytest.raises(GpuLost):
        dying.stand("sm_mhz", 1200.0)
    assert keeper.saved.standing == {"sm_mhz": 1650.0}
    assert controls.asked() == Setting(sm_mhz=1650)
