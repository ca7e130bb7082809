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

from joulewise.cli import doctor
from joulewise.cli.checkup import Checkup, GpuFindings
from joulewise.cli.finding import Finding
from joulewise.device.node import RunningNode, spawn
from tests import preloaded

POWERCAP = "JOULEWISE_POWERCAP_ROOT"


@pytest.fixture
def bare(environ: dict[str, str], no_driver: str, tmp_path: Path) -> dict[str, str]:
    """An environment in which there is nothing to measure, whatever this machine has."""
    (tmp_path / "amdsmi.py").write_text("raise KeyError('libamd_smi.so')")
    path = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    return {
        **environ,
        "LD_LIBRARY_PATH": no_driver,
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
    return preloaded.run("doctor", *arguments, env=environ)


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
    assert done.stdout.startswith("Nothing can be measured or set here.")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "→ install it" in done.stdout


@pytest.fixture(scope="module")
def node(virtual_nvml: None) -> Any:
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
    assert doctor.verdict(a_checkup()).plain.startswith("Nothing can be measured or set here.\nTry it without a GPU")


def test_a_way_out_stands_under_its_no() -> None:
    gpu = a_gpu(0, findings=(Finding("power", False, "why", "the way out"),))
    console = Console(file=io.StringIO(), width=80)
    console.print(doctor.page(a_checkup(gpu)))
    assert isinstance(console.file, io.StringIO)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    assert lines[lines.index("✗ power         why") + 1] == "→ the way out"
