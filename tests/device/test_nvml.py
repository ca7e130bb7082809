"""NvmlGpu over the virtual NVML, which this process loads instead of a driver's; a real one is in test_nvml_real."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulewise.core.errors import GpuError, GpuLost, NoGpu, NotPermitted, Unsupported
from joulewise.core.knob import Choices
from joulewise.core.measurement import Throttle
from joulewise.core.timeline import WallTime
from joulewise.device import nvml_info, nvml_library, nvml_reads, nvml_space
from joulewise.device.gpm import SHORTEST_S, Gpm
from joulewise.device.gpu import Gpu
from joulewise.device.node import RunningNode, spawn
from joulewise.device.nvml import NvmlGpu, mig_parents
from joulewise.native import library_path
from joulewise.testing import GpuConformance, LostGpuConformance

try:
    library_path()
except FileNotFoundError as error:
    pytest.skip(f"the virtual NVML is not built: {error}", allow_module_level=True)


@contextmanager
def virtual_node(spec: str, *, speed: float = 1.0, load: str | None = None) -> Iterator[RunningNode]:
    """A simulator that this process sees through NVML while the context lasts."""
    with spawn(spec, speed=speed, load=load) as node, nvml_library.virtual(node.directory):
        yield node


@pytest.fixture(scope="module")
def fast_node() -> Iterator[RunningNode]:
    with virtual_node("sim:h200,v100,a100", speed=10.0, load="transformer") as node:
        yield node


class TestNvmlGpuInSimulatedTime(GpuConformance):
    @pytest.fixture(params=[0, 1, 2])
    def gpu(self, fast_node: RunningNode, request: pytest.FixtureRequest) -> Gpu:
        index: int = request.param
        return NvmlGpu.all()[index]


class TestNvmlGpuThatIsLost(LostGpuConformance):
    @pytest.fixture
    def lost_gpu(self, fast_node: RunningNode) -> Iterator[Gpu]:
        gpu = NvmlGpu.all()[0]
        with fast_node.client() as client:
            client.fault(0, "lost")
            yield gpu
            client.clear(0)


def test_time_and_readings_are_simulated_where_the_simulator_is_faster(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    first_wall_s, before, second_wall_s = time.monotonic(), gpu.energy(), time.monotonic()
    gpu.time.sleep(3.0)
    third_wall_s, after, fourth_wall_s = time.monotonic(), gpu.energy(), time.monotonic()
    simulated_s = after.time_s - before.time_s
    assert simulated_s >= 3.0
    assert 10 * (third_wall_s - second_wall_s) - 0.01 <= simulated_s <= 10 * (fourth_wall_s - first_wall_s) + 0.01
    assert 100 < (after.energy_j - before.energy_j) / simulated_s < 1000


def test_what_it_reads_is_what_is_so(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    with fast_node.client() as client:
        before, start = client.truth(0), gpu.energy()
        gpu.time.sleep(20.0)
        after, end = client.truth(0), gpu.energy()
    true_w = (after.energy_j - before.energy_j) / (after.time_s - before.time_s)
    seen_w = (end.energy_j - start.energy_j) / (end.time_s - start.time_s)
    # No gain error here; a tick of 0.1 s at either edge, and room for a simulator that waits for its processor.
    assert seen_w == pytest.approx(true_w, rel=0.05)


def test_its_info_comes_from_the_driver_and_the_catalogue(fast_node: RunningNode) -> None:
    h200, v100, a100 = (gpu.info for gpu in NvmlGpu.all())
    assert h200.name == "NVIDIA H200"
    assert h200.space.knobs["sm_mhz"] == Choices(345.0, 1980.0, 15.0)
    assert h200.space.knobs["power_limit_w"] == Choices(200.0, 700.0)
    assert h200.sensors.power_duty == 0.25
    assert h200.driver
    assert [info.index for info in (h200, v100, a100)] == [0, 1, 2]
    assert "memory_mhz" not in v100.space.knobs  # locked memory clocks came with Ampere
    assert v100.sensors.average_window_s is None
    assert h200.notes == ("virtual: simulated by joulewise, no hardware",)


def test_what_moves_slowly_is_asked_for_once_a_second(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    gpu.read()
    with fast_node.client() as client:
        client.fault(0, "foreign", power_limit_w=500)
        gpu.time.sleep(1.5)
        assert gpu.read().power_limit_w == 500
        client.fault(0, "foreign", power_limit_w=700)


def test_gpm_gives_shares_between_samples_that_are_far_enough_apart(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    gpm = Gpm(gpu)
    assert gpm.read() is None
    gpu.time.sleep(3 * SHORTEST_S)
    reading = gpm.read()
    assert reading is not None
    assert reading.end_s - reading.start_s >= 3 * SHORTEST_S
    shares = {name: value for name, value in reading.values.items() if not name.endswith("_per_s")}
    assert {"sm", "tensor", "dram"} <= set(shares)
    assert all(0 <= share <= 1 for share in shares.values())
    assert shares["sm"] > 0.5
    gpm.close()


def test_gpm_samples_too_close_together_are_no_reading(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    gpm = Gpm(gpu)
    for _ in range(50):  # until the machine lets two reads follow each other closely
        gpu.time.sleep(2 * SHORTEST_S)
        start_s = gpu.time.now_s()
        gpm.read()
        too_early = gpm.read()
        if gpu.time.now_s() - start_s < SHORTEST_S:
            break
    assert too_early is None
    later = None
    for _ in range(50):  # until a busy machine lets the simulator say something new
        gpu.time.sleep(2 * SHORTEST_S)
        later = gpm.read()
        if later is not None:
            break
    assert later is not None
    assert later.start_s >= start_s
    gpm.close()


def test_gpm_is_unsupported_before_hopper(fast_node: RunningNode) -> None:
    with pytest.raises(Unsupported, match="GPM"):
        Gpm(NvmlGpu.all()[2])


def test_a_gpu_without_a_counter_says_so_once_and_for_all(fast_node: RunningNode) -> None:
    with fast_node.client() as client:
        client.fault(2, "unsupported", groups=["energy_counter"])
        gpu = NvmlGpu.all()[2]
        client.clear(2)
    assert gpu.info.sensors.counter_update_s is None


def test_without_instant_power_there_is_plain_power_and_its_window_is_known(fast_node: RunningNode) -> None:
    with fast_node.client() as client:
        for index in (0, 1):
            client.fault(index, "unsupported", groups=["field_values"])
        h200, v100 = NvmlGpu.all()[:2]
        for index in (0, 1):
            client.clear(index)
    assert h200.info.sensors.power_window_s == 1.0  # a 1 s average on Hopper …
    reading = h200.read()  # one look: between two the sensor may move
    assert reading.power_w == reading.average_power_w
    assert v100.info.sensors.power_window_s == 0.02  # … and instant on Volta
    assert v100.read().power_w is not None
    assert v100.read().average_power_w is None


def test_a_value_that_is_unsupported_is_none_and_not_asked_again(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    with fast_node.client() as client:
        client.fault(0, "unsupported", groups=["other"])
        reading = gpu.read()
        client.clear(0)
    assert reading.power_w is not None
    assert reading.sm_mhz is None
    assert reading.utilization is None
    assert gpu.read().sm_mhz is None


def test_a_gpu_that_answers_nothing_is_lost(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    with fast_node.client() as client:
        client.fault(0, "unsupported")
        with pytest.raises(GpuLost):
            gpu.read()
        client.clear(0)


def test_one_lost_gpu_does_not_hide_the_others(fast_node: RunningNode, caplog: pytest.LogCaptureFixture) -> None:
    with fast_node.client() as client:
        client.fault(1, "lost")
        with caplog.at_level(logging.WARNING, logger="joulewise"):
            names = [gpu.info.name for gpu in NvmlGpu.all()]
        client.clear(1)
    assert len(names) == 2
    assert "GPU 1 is left out" in caplog.text


def test_processes_are_unknown_where_the_driver_does_not_tell(fast_node: RunningNode) -> None:
    gpu = NvmlGpu.all()[0]
    with fast_node.client() as client:
        assert gpu.processes()
        client.fault(0, "unsupported", groups=["processes"])
        assert gpu.processes() is None
        client.clear(0)


def test_an_unknown_uuid_is_no_gpu(fast_node: RunningNode) -> None:
    with pytest.raises(NoGpu, match="GPU-nobody"):
        NvmlGpu("GPU-nobody")


def test_without_mig_there_are_no_instances(fast_node: RunningNode) -> None:
    assert mig_parents() == {}


def run_python(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A script in a fresh process, which finds this package and these tests."""
    full = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    return subprocess.run(
        [sys.executable, "-c", script], env=full, capture_output=True, text=True, timeout=60, check=False
    )


def test_it_works_on_after_a_fork(fast_node: RunningNode) -> None:
    script = (
        "import os\n"
        "from joulewise.device.nvml import NvmlGpu\n"
        "gpu = NvmlGpu.all()[0]\n"
        "before = gpu.energy().energy_j\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    ok = gpu.read().power_w > 0 and gpu.energy().energy_j >= before\n"
        "    os._exit(0 if ok else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0, 'the child could not read'\n"
        "assert gpu.read().power_w > 0\n"
        "print('fine')\n"
    )
    done = run_python(script, **fast_node.environment())
    assert done.stdout == "fine\n", done.stderr


def test_a_process_under_the_simulator_needs_nothing_but_the_environment(fast_node: RunningNode) -> None:
    script = "from joulewise.device.discover import find; print([gpu.info.index for gpu in find()])"
    directory = {nvml_library.ENVIRONMENT: str(fast_node.directory)}
    assert run_python(script, **directory).stdout == "[0, 1, 2]\n"
    chosen = run_python(script, **directory, CUDA_VISIBLE_DEVICES="2,0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert chosen.stdout == "[2, 0]\n"


SAY_ERROR = (
    "from joulewise.core.errors import JoulewiseError\n"
    "from joulewise.device.discover import find\n"
    "try:\n"
    "    find('nvml')\n"
    "except JoulewiseError as error:\n"
    "    print(type(error).__name__, error)\n"
)


def test_no_driver_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")  # hides a real one
    done = run_python(SAY_ERROR, LD_LIBRARY_PATH=str(tmp_path), JOULEWISE_VNVML="")
    assert done.stdout.startswith("NoGpu no GPU to read: NVIDIA: no driver here")
    assert done.stdout.count("\n") == 1
    assert "--gpus all" in done.stdout
    assert "; joulewise.gpus('sim:h200') gives a virtual one" in done.stdout  # a caller in Python has no flags


def test_no_simulator_where_the_environment_names_one_is_one_line(tmp_path: Path) -> None:
    done = run_python(SAY_ERROR, JOULEWISE_VNVML=str(tmp_path))
    assert f"no simulator runs in {tmp_path}" in done.stdout


def test_another_package_called_pynvml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text("NVML_FI_DEV_POWER_INSTANT = 186\n")
    full = os.pathsep.join([str(tmp_path), *sys.path])
    done = run_python(SAY_ERROR, PYTHONPATH=full, JOULEWISE_VNVML="")
    assert "is not a current nvidia-ml-py" in done.stdout
    assert "pip uninstall pynvml" in done.stdout


def test_importing_the_backend_loads_no_binding() -> None:
    script = "import sys, joulewise.device.discover, joulewise.device.nvml; print('pynvml' in sys.modules)"
    assert run_python(script).stdout == "False\n"


def test_at_speed_one_it_lives_in_wall_time_and_a_dead_simulator_is_a_lost_gpu() -> None:
    with virtual_node("sim:rtx8000*2") as node:
        gpus = NvmlGpu.all()
        assert isinstance(gpus[0].time, WallTime)
        assert abs(gpus[0].read().time_s - time.monotonic()) < 5
        node.kill()
        time.sleep(0.02)  # the library asks the kernel whether the simulator lives every 5 ms
        for gpu in gpus:
            with pytest.raises(GpuLost, match="simulator is gone"):
                gpu.energy()
            with pytest.raises(GpuLost):
                gpu.read()
        with pytest.raises(GpuLost):
            NvmlGpu.all()


def test_after_a_change_of_simulators_the_old_gpus_are_lost_and_the_new_ones_are_read() -> None:
    with virtual_node("sim:a40"):
        old = NvmlGpu.all()[0]
        with virtual_node("sim:p100"):
            assert NvmlGpu.all()[0].info.name.endswith("P100-PCIE-16GB")
            with pytest.raises(GpuLost):
                old.read()
        assert old.read().power_w is not None  # back under its own simulator


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([345, 360, 375], Choices(345.0, 375.0, 15.0)),
        ([375, 345, 360, 345], Choices(345.0, 375.0, 15.0)),
        ([135, 142, 150], Choices.of([135.0, 142.0, 150.0])),
        ([1593], Choices.of([1593.0])),
        ([2201, 3201], Choices.of([2201.0, 3201.0])),
    ],
)
def test_evenly_spaced_clocks_are_a_range_and_others_a_list(values: list[int], expected: Choices) -> None:
    assert nvml_space.choices(values) == expected


@pytest.mark.parametrize(
    ("name", "architecture", "duty", "counter"),
    [
        ("Quadro GV100", 5, 1.0, True),
        ("NVIDIA TITAN Xp", 4, 1.0, False),
        ("NVIDIA A100-SXM4-80GB", 7, 0.25, True),
        ("NVIDIA GeForce RTX 3090", 7, 1.0, True),
        ("NVIDIA H100 80GB HBM3", 9, 0.25, True),
        ("NVIDIA of the future", 99, 1.0, True),
        ("NVIDIA unheard of", None, 1.0, True),
    ],
)
def test_sensor_timing_of_an_uncatalogued_gpu_follows_its_architecture(
    name: str, architecture: int | None, duty: float, counter: bool
) -> None:
    timing = nvml_info.generic_timing(name, architecture)
    assert timing.power_duty == duty
    assert (timing.counter_update_s is not None) == counter


class StandInError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def stand_in(*, mig: int = 0, virtualization: int = 1, **functions: Any) -> Any:
    """As much of NVML as describes a GPU that the virtual NVML cannot be: sliced, shared, silent."""
    slices = {"GPU-a": ["MIG-1", "MIG-2"], "GPU-b": []}
    uuids = list(slices)

    def slice_of(handle: str, place: int) -> str:
        if place >= len(slices[handle]):
            raise StandInError(6)  # not found
        return slices[handle][place]

    answers = {
        "nvmlDeviceGetMigMode": lambda handle: [mig if handle == "GPU-a" else 0, 0],
        "nvmlDeviceGetVirtualizationMode": lambda handle: virtualization,
        "nvmlDeviceGetHandleByIndex": lambda index: uuids[index],
        "nvmlDeviceGetUUID": lambda handle: handle,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": slice_of,
    }
    return SimpleNamespace(NVMLError=StandInError, **answers, **functions)


def test_mig_vgpu_and_plain_gpus_get_one_clear_line_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nvml_library.ENVIRONMENT, raising=False)
    assert nvml_space.notes_on(stand_in(), "GPU-a") == []
    (mig,) = nvml_space.notes_on(stand_in(mig=1), "GPU-a")
    assert mig.startswith("MIG is on")
    (guest,) = nvml_space.notes_on(stand_in(virtualization=2), "GPU-a")
    assert guest.startswith("vGPU guest")
    (host,) = nvml_space.notes_on(stand_in(virtualization=3), "GPU-a")
    assert host.startswith("vGPU host")


def test_slices_are_mapped_to_the_gpu_they_are_of() -> None:
    assert nvml_space.instances(stand_in(mig=1), 2) == {"MIG-1": "GPU-a", "MIG-2": "GPU-a"}


def test_a_gpu_lost_while_its_slices_are_listed_has_none() -> None:
    def lost(handle: str) -> str:
        raise StandInError(15)

    sliced = stand_in(mig=1)
    sliced.nvmlDeviceGetUUID = lost
    assert nvml_space.instances(sliced, 2) == {}
    assert nvml_space.instances(stand_in(mig=0), 2) == {}


def field(code: int, value: int) -> SimpleNamespace:
    return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=value))


def powers(*fields: SimpleNamespace) -> dict[str, float | None]:
    return nvml_reads._both_powers(stand_in(nvmlDeviceGetFieldValues=lambda handle, ids: fields), "GPU-a")


def test_a_sentinel_or_a_zero_is_no_power() -> None:
    assert powers(field(0, 312_400), field(0, 300_000)) == {"power_w": 312.4, "average_power_w": 300.0}
    assert powers(field(0, 0xFFFF_FFFF), field(3, 0)) == {"power_w": None, "average_power_w": None}
    assert powers(field(0, 0), field(0, 1)) == {"power_w": None, "average_power_w": 0.001}


def test_a_loss_inside_a_field_is_a_loss() -> None:
    with pytest.raises(StandInError, match="15"):
        powers(field(15, 0), field(15, 0))


def test_throttle_reasons_become_words() -> None:
    module = stand_in(
        NVMLError_FunctionNotFound=StandInError, nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x1 | 0x4 | 0x40
    )
    assert nvml_reads._throttle(module, "GPU-a") == {"throttle": {Throttle.IDLE, Throttle.POWER_CAP, Throttle.HEAT}}


def test_old_drivers_are_asked_by_the_old_name() -> None:
    def missing(handle: str) -> int:
        raise StandInError(13)

    module = stand_in(
        NVMLError_FunctionNotFound=StandInError,
        nvmlDeviceGetCurrentClocksEventReasons=missing,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x8,
    )
    assert nvml_reads._throttle(module, "GPU-a") == {"throttle": {Throttle.HARDWARE}}


@pytest.mark.parametrize(
    ("code", "kind"),
    [(15, GpuLost), (9, GpuLost), (1, GpuLost), (16, GpuLost), (3, Unsupported), (13, Unsupported), (4, NotPermitted)],
)
def test_nvmls_codes_become_our_errors_in_one_line(code: int, kind: type[GpuError]) -> None:
    error = nvml_library.translated(code, "energy counter", "GPU-a")
    assert type(error) is kind
    assert "GPU-a" in str(error)
    assert "\n" not in str(error)
    assert type(nvml_library.translated(10, "energy counter", "GPU-a")) is GpuError


def test_wsl_is_known_by_its_device(tmp_path: Path) -> None:
    assert not nvml_space.is_wsl(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "dxg").touch()
    assert nvml_space.is_wsl(tmp_path)
