"""AmdGpu on a stand-in for AMD SMI, made after its documentation; and the containment of its import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joulewise.core.errors import GpuLost, Unsupported
from joulewise.core.knob import Choices
from joulewise.core.timeline import VirtualTime
from joulewise.device.amd import EXPERIMENTAL, AmdGpu
from joulewise.device.gpu import Gpu
from joulewise.testing import GpuConformance, LostGpuConformance


class SmiError(Exception):
    def __init__(self, err_code: int) -> None:
        super().__init__(f"Error code:\n\t{err_code} | made up")
        self.err_code = err_code


class Smi:
    """One MI300X at 420 W, in the words and units of AMD SMI (watts, microwatts, megabytes, 15.3 µJ steps)."""

    AmdSmiException = SmiError
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, time: VirtualTime) -> None:
        self.time = time
        self.failing: dict[str, int] = {}
        self.power: dict[str, Any] = {"current_socket_power": 420, "average_socket_power": "N/A"}

    def _check(self, name: str) -> None:
        code = self.failing.get(name, self.failing.get("*"))
        if code is not None:
            raise SmiError(code)

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        self._check("power")
        return self.power

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, Any]:
        self._check("energy")
        steps = int(420e6 * self.time.now_s() / 15.3)
        return {"energy_accumulator": steps, "counter_resolution": 15.3, "timestamp": 1}

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, Any]:
        self._check("clock")
        return {"clk": {"gfx": 2100, "mem": 1300}[kind], "max_clk": 2100}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        self._check("activity")
        return {"gfx_activity": 93, "umc_activity": 0xFFFF, "mm_activity": "N/A"}

    def amdsmi_get_temp_metric(self, handle: str, sensor: str, metric: str) -> int:
        self._check("temperature")
        return 61

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, Any]:
        self._check("vram")
        return {"vram_total": 196592, "vram_used": 1024}

    def amdsmi_get_power_cap_info(self, handle: str) -> dict[str, Any]:
        self._check("cap")
        cap = {"power_cap": 750, "default_power_cap": 750, "min_power_cap": 100, "max_power_cap": 750}
        return {name: watts * 1_000_000 for name, watts in cap.items()}

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        self._check("asic")
        return {"market_name": "AMD Instinct MI300X", "asic_serial": "0x3A1F00C4D5E6B7A8"}

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        self._check("bdf")
        return "0000:05:00.0"

    def amdsmi_get_gpu_driver_info(self, handle: str) -> dict[str, Any]:
        self._check("driver")
        return {"driver_version": "6.12.12"}

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[dict[str, Any]]:
        self._check("processes")
        return [{"pid": 77}, {"pid": 12}, {"pid": 0}]


@pytest.fixture
def smi() -> Smi:
    return Smi(VirtualTime(100.0))


class TestAmdGpu(GpuConformance):
    @pytest.fixture
    def gpu(self, smi: Smi) -> Gpu:
        return AmdGpu(smi, "card", 0, time=smi.time)


class TestAmdGpuThatIsLost(LostGpuConformance):
    @pytest.fixture
    def lost_gpu(self, smi: Smi) -> Gpu:
        gpu = AmdGpu(smi, "card", 0, time=smi.time)
        smi.failing["*"] = 34  # driver not loaded
        return gpu


def test_its_info_is_in_our_units_and_says_that_it_is_experimental(smi: Smi) -> None:
    info = AmdGpu(smi, "card", 3, time=smi.time).info
    assert info.uuid == "GPU-3a1f00c4d5e6b7a8"  # as ROCR_VISIBLE_DEVICES takes it
    assert info.name == "AMD Instinct MI300X"
    assert info.index == 3
    assert info.space.knobs == {"power_limit_w": Choices(100.0, 750.0)}
    assert info.default_limit_w == 750.0
    assert info.memory_bytes == 196592 * 2**20
    assert info.notes == (EXPERIMENTAL,)


def test_its_reading_is_in_our_units(smi: Smi) -> None:
    reading = AmdGpu(smi, "card", 0, time=smi.time).read()
    assert reading.power_w == 420.0
    assert reading.average_power_w is None
    assert reading.power_limit_w == 750.0
    assert (reading.sm_mhz, reading.memory_mhz) == (2100.0, 1300.0)
    assert reading.utilization == 0.93
    assert reading.memory_utilization is None
    assert reading.temperature_c == 61.0
    assert reading.memory_used_bytes == 2**30


def test_its_counter_is_steps_times_their_size(smi: Smi) -> None:
    gpu = AmdGpu(smi, "card", 0, time=smi.time)
    start = gpu.energy()
    smi.time.sleep(10.0)
    assert gpu.energy().energy_j - start.energy_j == pytest.approx(4200.0, abs=1e-3)


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        ({"current_socket_power": "N/A", "average_socket_power": 250}, 250.0),  # before MI300
        ({"current_socket_power": 0, "average_socket_power": 0}, None),  # zeros that mean nothing (MI250)
        ({"current_socket_power": 0xFFFFFFFF, "average_socket_power": 0xFFFF}, None),
        ({}, None),
    ],
)
def test_power_is_the_best_there_is_and_never_a_false_zero(
    smi: Smi, power: dict[str, Any], expected: float | None
) -> None:
    smi.power = power
    assert AmdGpu(smi, "card", 0, time=smi.time).read().power_w == expected


def test_what_is_not_supported_is_none(smi: Smi) -> None:
    smi.failing.update(clock=2, temperature=3, processes=10, energy=2, cap=2)
    gpu = AmdGpu(smi, "card", 0, time=smi.time)
    reading = gpu.read()
    assert reading.sm_mhz is None
    assert reading.temperature_c is None
    assert reading.power_w == 420.0
    assert gpu.processes() is None
    assert gpu.info.sensors.counter_update_s is None
    assert gpu.info.space.knobs == {}
    with pytest.raises(Unsupported):
        gpu.energy()


def test_a_passing_fault_is_no_reading_and_passes(smi: Smi) -> None:
    gpu = AmdGpu(smi, "card", 0, time=smi.time)
    smi.failing["power"] = 30  # busy
    assert gpu.read().power_w is None
    del smi.failing["power"]
    assert gpu.read().power_w == 420.0


def test_a_gpu_that_answers_nothing_is_lost(smi: Smi) -> None:
    gpu = AmdGpu(smi, "card", 0, time=smi.time)
    smi.failing["*"] = 12  # I/O error
    with pytest.raises(GpuLost):
        gpu.read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("print('noise'); raise KeyError('libamd_smi.so')", "finds no ROCm library"),
        ("print('noise'); raise OSError('libamd_smi.so: cannot open')", "finds no ROCm library"),
    ],
)
def test_an_import_that_prints_and_raises_is_contained(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "amdsmi.py").write_text(content)
    script = (
        "from joulewise.core.errors import MissingPart\n"
        "from joulewise.device.amd import AmdGpu\n"
        "try:\n    AmdGpu.all()\nexcept MissingPart as error:\n    print(error)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "ROCM_PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert words in done.stdout
    assert "noise" not in done.stdout
    assert done.stdout.count("\n") == 1


def test_rocms_own_copy_is_preferred(tmp_path: Path) -> None:
    installed, rocm = tmp_path / "site", tmp_path / "rocm"
    (rocm / "share" / "amd_smi").mkdir(parents=True)
    installed.mkdir()
    (installed / "amdsmi.py").write_text("raise KeyError('the wheel')")
    (rocm / "share" / "amd_smi" / "amdsmi.py").write_text(
        "class AmdSmiException(Exception): pass\ndef amdsmi_init(): raise AmdSmiException('from ROCm')\n"
    )
    script = (
        "from joulewise.core.errors import NoGpu\n"
        "from joulewise.device.amd import AmdGpu\n"
        "try:\n    AmdGpu.all()\nexcept NoGpu as error:\n    print(error)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *sys.path]), "ROCM_PATH": str(rocm)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert "from ROCm" in done.stdout
