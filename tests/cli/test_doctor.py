from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from joulewise.cli import checkup, doctor
from joulewise.cli.checkup import Checkup, GpuFindings
from joulewise.cli.control import Control
from joulewise.cli.finding import Finding
from joulewise.core.errors import GpuLost, Unsupported
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.device.gpu import GpuInfo
from joulewise.device.node import RunningNode, spawn
from joulewise.native import library_path

POWERCAP = "JOULEWISE_POWERCAP_ROOT"


@pytest.fixture
def bare(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment in which there is nothing to measure, whatever this machine has."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")  # hides a real one
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")
    path = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    return {
        **environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": path,
        "ROCM_PATH": "/nowhere",
        POWERCAP: str(tmp_path / "absent"),
    }


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    zone = tmp_path / "powercap" / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "energy_uj").write_text("1000\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    return zone.parent


def run_doctor(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joulewise", "doctor", *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def finding(plain: list[dict[str, Any]], what: str) -> dict[str, Any]:
    (found,) = (each for each in plain if each["what"] == what)
    return found


def test_with_nothing_to_measure_every_no_has_its_why_and_the_exit_code_says_so(bare: dict[str, str]) -> None:
    done = run_doctor(bare, "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["measurable"] is False
    assert answer["gpus"] == []
    nvidia = finding(answer["parts"], "NVIDIA")
    assert nvidia["ok"] is False
    assert "no driver here" in nvidia["says"]
    assert "--gpus all" in nvidia["do"]
    amd = finding(answer["parts"], "AMD")
    assert "ROCm" in amd["do"]
    assert "does not exist" in answer["host"][0]["says"]
    assert "sim:h200" in answer["mine"]["do"]


def test_the_hosts_counters_alone_are_something(bare: dict[str, str], powercap: Path) -> None:
    done = run_doctor({**bare, POWERCAP: str(powercap)}, "--json")
    assert done.returncode == 0, done.stderr
    assert finding(json.loads(done.stdout)["host"], "energy") == {
        "what": "energy",
        "ok": True,
        "says": "package-0",
        "do": None,
    }


def test_the_page_fits_eighty_columns_and_starts_with_the_result(bare: dict[str, str]) -> None:
    done = run_doctor(bare)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith("Can measure nothing")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "→ install it" in done.stdout


@pytest.fixture(scope="module")
def node() -> Any:
    try:
        library_path()
    except FileNotFoundError as error:
        pytest.skip(f"the virtual NVML is not built: {error}")
    with spawn("sim:h200*2,v100") as running:
        yield running


def test_virtual_gpus_are_measured_set_and_mine(node: RunningNode, environ: dict[str, str]) -> None:
    done = run_doctor(node.environment(environ), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    h200, _, v100 = answer["gpus"]
    assert [gpu["mine"] for gpu in answer["gpus"]] == [True, True, True]
    assert h200["measurable"]
    assert finding(h200["findings"], "power")["ok"] is True
    assert finding(h200["findings"], "energy")["says"].startswith("counter, new every 100 ms")
    assert finding(h200["findings"], "activity")["ok"] is True
    assert finding(v100["findings"], "activity")["ok"] is False
    assert "345–1980 step 15" in finding(h200["findings"], "sm_mhz")["says"]
    assert "virtual" in finding(h200["findings"], "note")["says"]


def test_which_gpus_are_mine_is_said_with_the_reason(node: RunningNode, environ: dict[str, str]) -> None:
    chosen = {**node.environment(environ), "CUDA_VISIBLE_DEVICES": "2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    answer = json.loads(run_doctor(chosen, "--json").stdout)
    assert [gpu["mine"] for gpu in answer["gpus"]] == [False, False, True]
    assert answer["mine"]["says"] == "2 (CUDA_VISIBLE_DEVICES=2)"
    guessed = {**node.environment(environ), "CUDA_VISIBLE_DEVICES": "2"}
    assert json.loads(run_doctor(guessed, "--json").stdout)["mine"]["ok"] is None
    nothing = {**node.environment(environ), "CUDA_VISIBLE_DEVICES": ""}
    assert json.loads(run_doctor(nothing, "--json").stdout)["mine"]["ok"] is False


def test_in_a_terminal_equal_gpus_share_their_lines(
    in_terminal: Any, node: RunningNode, environ: dict[str, str]
) -> None:
    terminal = in_terminal([sys.executable, "-m", "joulewise", "doctor"], **node.environment(environ))
    assert terminal.finish() == 0
    shown = terminal.plain()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("NVIDIA H200") == 2
    assert shown.count("345–1980 step 15") == 1
    assert "\x1b[" in terminal.shown  # colours in a terminal


class OddGpu:
    """A GPU that is difficult in the way that a test wants."""

    def __init__(self, info: GpuInfo, reading: Reading | Exception, energy: EnergyReading | Exception) -> None:
        self._info = info
        self._reading = reading
        self._energy = energy

    @property
    def info(self) -> GpuInfo:
        return self._info

    @property
    def time(self) -> TimeSource:
        return WallTime()

    def read(self) -> Reading:
        if isinstance(self._reading, Exception):
            raise self._reading
        return self._reading

    def energy(self) -> EnergyReading:
        if isinstance(self._energy, Exception):
            raise self._energy
        return self._energy

    def processes(self) -> None:
        return


INFO = GpuInfo(
    uuid="GPU-1",
    name="Odd",
    index=0,
    backend="nvml",
    space=Space({"power_limit_w": Choices(100, 300), "sm_mhz": Choices.of([float(mhz) for mhz in range(135, 200, 7)])}),
    sensors=SensorTiming(),
)
GOOD = Reading(0.0, power_w=100.0)
NO_COUNTER = Unsupported("none")


def what(findings: GpuFindings, name: str) -> Finding:
    (found,) = (each for each in findings.findings if each.what == name)
    return found


def test_a_gpu_without_a_counter_is_measured_by_its_power() -> None:
    found = checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "energy").ok is None
    assert "integrated" in what(found, "energy").says
    assert found.measurable


def test_a_lost_gpu_says_so_and_cannot_be_measured() -> None:
    found = checkup._gpu(OddGpu(INFO, GpuLost("it fell off"), GpuLost("it fell off")), mine=True, control=Control())
    assert what(found, "power") == Finding("power", False, "it fell off")
    assert not found.measurable


def test_a_gpu_that_tells_no_power_and_has_no_counter_cannot_be_measured() -> None:
    found = checkup._gpu(OddGpu(INFO, Reading(0.0, sm_mhz=1.0), NO_COUNTER), mine=True, control=Control())
    assert what(found, "power").ok is False
    assert not found.measurable


def test_a_long_list_of_clocks_is_shown_as_its_ends() -> None:
    found = checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "sm_mhz").says.endswith("be set to 135–198")


def test_a_gpu_on_which_nothing_can_be_set_says_so() -> None:
    found = checkup._gpu(OddGpu(replace(INFO, space=Space()), GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "set").ok is False
    assert not found.settable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_mig_is_roots_to_set_and_root_is_told_whom_it_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_VNVML", raising=False)
    info = replace(INFO, notes=("MIG is on: power and energy are of the whole GPU",))
    found = checkup._gpu(OddGpu(info, GOOD, NO_COUNTER), mine=True, control=Control())
    assert found.settable is checkup.capable(21)
    assert what(found, "note").says == info.notes[0]
    if found.settable:
        assert what(found, "MIG").says == "is on: root may set it, but it hits all instances"
    os.seteuid(65534)
    try:
        found = checkup._gpu(OddGpu(info, GOOD, NO_COUNTER), mine=True, control=Control())
    finally:
        os.seteuid(0)
    assert not found.settable
    assert "root's alone" in what(found, "rights").says


def test_rights_are_read_from_the_capabilities(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for effective, expected in (("0000000000200000", True), ("000001ffffdfffff", False), ("0", False)):
        status.write_text(f"Name:\tx\nCapEff:\t{effective}\n")
        assert checkup.capable(21, status) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_is_told_how_to_get_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_VNVML", raising=False)
    os.seteuid(65534)
    try:
        rights = checkup.may_set()
    finally:
        os.seteuid(0)
    assert rights.ok is False
    assert "65534" in rights.says
    assert rights.do == checkup.ROOT


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("NVIDIA: no driver; install it", Finding("NVIDIA", False, "no driver", "install it")),
        ("AMD: nothing", Finding("AMD", False, "nothing", None)),
        ("no simulator runs: x; start one", Finding("GPU", False, "no simulator runs: x", "start one")),
    ],
)
def test_a_backends_own_words_are_split_into_why_and_way_out(reason: str, expected: Finding) -> None:
    assert checkup._backend(reason) == expected


def a_checkup(*gpus: GpuFindings) -> Checkup:
    return Checkup("0", "3", "Linux", 1000, gpus, Finding("mine", True, "0"), (), ())


def a_gpu(index: int, **changes: Any) -> GpuFindings:
    findings = (Finding("power", True, "new every 100 ms"), Finding("energy", True, f"costs {index} µs"))
    gpu = GpuFindings(index, "Odd", f"GPU-{index}", "nvml", True, None, None, findings)
    return replace(gpu, **changes)


def test_equal_neighbours_are_one_group_and_others_are_not() -> None:
    gpus = [a_gpu(0), a_gpu(1), a_gpu(2, name="Other"), a_gpu(3)]
    assert [[gpu.index for gpu in group] for group in doctor.alike(gpus)] == [[0, 1], [2], [3]]


def test_the_verdict_counts_what_can_be_measured_and_set() -> None:
    assert doctor.verdict(a_checkup(a_gpu(0), a_gpu(1))).plain == "Can measure 2 GPUs; can set none."
    settable = a_gpu(0, findings=(Finding("power", True, ""), Finding("sm_mhz", True, "")))
    assert doctor.verdict(a_checkup(settable)).plain == "Can measure 1 GPU; can set 1 GPU."
    assert doctor.verdict(a_checkup()).plain.startswith("Can measure nothing; can set none.")


def test_a_way_out_stands_under_its_no() -> None:
    gpu = a_gpu(0, findings=(Finding("power", False, "why", "the way out"),))
    console = Console(file=io.StringIO(), width=80)
    console.print(doctor.page(a_checkup(gpu)))
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert lines[lines.index("✗ power         why") + 1] == "→ the way out"
