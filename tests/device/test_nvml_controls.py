"""NvmlControls over the virtual NVML: what is written is what the simulator's memory shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from joulewise.core.errors import GpuLost, NoGpu, NotPermitted, OutOfRange, Unsupported
from joulewise.core.knob import Choices
from joulewise.device.controls import Controls
from joulewise.device.node import RunningNode
from joulewise.device.nvml import NvmlGpu
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.virtual_controls import VirtualControls
from joulewise.device.vnvml_layout import VnvmlState
from tests.device.test_nvml import virtual_node


@pytest.fixture(scope="module")
def node(virtual_nvml: None, may_set: None) -> Iterator[RunningNode]:
    with virtual_node("sim:h200,v100") as node:
        yield node


@pytest.fixture
def seen(node: RunningNode) -> Iterator[VnvmlState]:
    with VnvmlState.open(node.directory) as state:
        yield state


def test_controls_say_of_a_gpu_what_the_gpu_says(node: RunningNode) -> None:
    for controls, gpu in zip(NvmlControls.all(), NvmlGpu.all(), strict=True):
        assert isinstance(controls, Controls)
        info = gpu.info
        assert (controls.uuid, controls.name, controls.index) == (info.uuid, info.name, info.index)
        assert (controls.space, controls.default_limit_w) == (info.space, info.default_limit_w)
        assert (controls.notes, controls.driver) == (info.notes, info.driver)
        assert controls.processes() == gpu.processes()
        assert controls.energy().energy_j <= gpu.energy().energy_j


def test_a_clock_is_a_ceiling_over_the_lowest_there_is(node: RunningNode, seen: VnvmlState) -> None:
    controls = NvmlControls.all()[0]
    controls.write("sm_mhz", 1200.0)
    controls.write("memory_mhz", 2201.0)
    assert (seen.read_control(0).sm_lock_mhz, seen.read_control(0).memory_lock_mhz) == ((345, 1200), (2201, 2201))
    assert controls.value("sm_mhz") is None
    assert controls.value("memory_mhz") is None
    for knob in ("sm_mhz", "memory_mhz"):
        controls.reset(knob)
    assert (seen.read_control(0).sm_lock_mhz, seen.read_control(0).memory_lock_mhz) == (None, None)


def test_a_limit_is_exact_to_the_milliwatt(node: RunningNode, seen: VnvmlState) -> None:
    controls = NvmlControls.all()[0]
    for limit_mw in (200_000, 200_001, 333_333, 612_345, 699_999, 700_000):
        controls.write("power_limit_w", limit_mw / 1000)
        assert seen.read_control(0).power_limit_mw == limit_mw
        assert controls.value("power_limit_w") == limit_mw / 1000 == controls.exact("power_limit_w", limit_mw / 1000)
    assert controls.exact("power_limit_w", 300.00049) == 300.0
    controls.write("power_limit_w", 300.0)
    controls.reset("power_limit_w")
    assert seen.read_control(0).power_limit_mw == 700_000


def test_a_bmc_is_seen_in_the_limit_in_force_only(node: RunningNode) -> None:
    controls = NvmlControls.all()[0]
    with node.client() as client:
        client.fault(0, "bmc", limit_w=500.0)
        assert controls.value("power_limit_w") == 700.0
        assert controls.enforced_limit_w() == 500.0
        client.fault(0, "bmc", limit_w=None)
    assert controls.enforced_limit_w() == 700.0


def test_what_the_driver_refuses_is_said_in_our_words_and_changes_nothing(node: RunningNode, seen: VnvmlState) -> None:
    h200, v100 = NvmlControls.all()
    before = seen.read_control(0)
    with pytest.raises(OutOfRange, match=r"power_limit_w=900 .*200–700"):
        h200.write("power_limit_w", 900.0)
    with pytest.raises(Unsupported, match="memory_mhz"):  # locked memory clocks came with Ampere
        v100.write("memory_mhz", 877.0)
    with node.client() as client:
        for fault, error in (("no_permission", NotPermitted), ("lost", GpuLost)):
            client.fault(0, fault)
            for act in (
                lambda: h200.write("power_limit_w", 300.0),
                lambda: h200.write("sm_mhz", 1200.0),
                lambda: h200.reset("sm_mhz"),
                lambda: h200.set_persistence(True),
            ):
                with pytest.raises(error):
                    act()
            client.clear(0)
    assert seen.read_control(0) == before


def test_an_unknown_gpu_is_no_gpu(node: RunningNode) -> None:
    with pytest.raises(NoGpu):
        NvmlControls("GPU-nobody")


def test_virtual_controls_are_controls_and_one_for_each_gpu() -> None:
    from joulewise.core.timeline import VirtualTime
    from joulewise.device.virtual import VirtualGpu
    from joulewise.model import catalog

    gpu, other = (VirtualGpu(catalog.load("h200"), time=VirtualTime(), index=index) for index in range(2))
    controls = VirtualControls.of(gpu)
    assert isinstance(controls, Controls)
    assert VirtualControls.of(gpu) is controls
    assert VirtualControls.of(other) is not controls
    assert controls.space.knobs["sm_mhz"] == Choices(345.0, 1980.0, 15.0)
    assert controls.persistence() is None
    with pytest.raises(Unsupported):
        controls.set_persistence(True)


def test_the_engine_loads_neither_numpy_nor_the_catalogue() -> None:
    probe = (
        "import sys, joulewise.device.local, joulewise.device.nvml_controls, joulewise.device.hold;"
        "print(*sorted({n.split('.')[0] for n in sys.modules}), *(n for n in sys.modules if '.model' in n))"
    )
    out = subprocess.run([sys.executable, "-I", "-S", "-c", "import sys; sys.path += " + repr(sys.path) + ";" + probe],
                         capture_output=True, text=True, check=True).stdout  # fmt: skip
    foreign = {name for name in out.split() if name not in sys.stdlib_module_names and name != "joulewise"}
    assert foreign <= {"__main__"}
