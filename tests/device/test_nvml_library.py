"""Which NVML a process gets, and what its answers are called. What it reads is in test_nvml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.core.errors import GpuError, GpuLost, NotPermitted, Unsupported
from joulewise.device import nvml_library as library
from joulewise.native import VNVML, library_path

RESET_REQUIRED, GPU_IS_LOST, UNKNOWN = 16, 15, 999  # nvml.h, nvmlReturn_t


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (RESET_REQUIRED, GpuLost, "it needs a reset; 'nvidia-smi -r' resets it"),
        (GPU_IS_LOST, GpuLost, "it fell off the bus; see 'dmesg | grep Xid'"),
        (13, Unsupported, "GPU-1 or its driver has no energy counter; see 'joulewise doctor'"),
        (4, NotPermitted, "does not let this user have the energy counter of GPU-1"),
        (UNKNOWN, GpuError, "NVML could not give the energy counter: NVML error 999"),
    ],
)
def test_every_answer_of_the_driver_is_an_error_with_the_way_out(code, kind, says, monkeypatch):
    monkeypatch.delenv(library.ENVIRONMENT, raising=False)
    error = library.translated(code, "energy counter", "GPU-1")
    assert type(error) is kind
    assert says in str(error)


def test_behind_a_simulator_the_way_out_is_the_simulators(monkeypatch):
    monkeypatch.setenv(library.ENVIRONMENT, "/somewhere")
    error = library.translated(GPU_IS_LOST, "power", "GPU-1")
    assert str(error).endswith("start the simulator again")


def in_a_process(script: str, *arguments: object, **environ: str) -> str:
    full = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ended = subprocess.run(command, env=full, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_where_the_drivers_nvml_is_loaded_already_the_virtual_one_is_refused(tmp_path: Path, virtual_nvml: None):
    """Two libraries of one name in one process: whoever asks by name would get the first."""
    driver = shutil.copy(library_path(), tmp_path / VNVML)
    script = (
        "import ctypes, pathlib, sys\n"
        "from joulewise.core.errors import BadSpec\n"
        "from joulewise.device.nvml_library import use_virtual\n"
        "ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
        "try:\n"
        "    use_virtual(pathlib.Path(sys.argv[2]))\n"
        "except BadSpec as error:\n"
        "    print(error)\n"
    )
    said = in_a_process(script, driver, tmp_path, JOULEWISE_VNVML="")
    assert "the driver's NVML is already loaded in this process" in said


def test_a_binding_from_before_instant_power_is_refused(tmp_path: Path):
    (tmp_path / "pynvml.py").write_text("NVML_FI_DEV_MEMORY_TEMP = 82\n")
    script = (
        "from joulewise.core.errors import MissingPart\n"
        "from joulewise.device.nvml_library import nvml\n"
        "try:\n"
        "    nvml()\n"
        "except MissingPart as error:\n"
        "    print(error)\n"
    )
    said = in_a_process(script, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]), JOULEWISE_VNVML="")
    assert f"{tmp_path / 'pynvml.py'} is not a current nvidia-ml-py" in said


def test_the_environment_is_as_before_in_whatever_order_simulators_are_left(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_load_virtual", lambda: None)
    monkeypatch.delenv(library.ENVIRONMENT, raising=False)
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "lock").touch()
    outer, inner = library.virtual(first), library.virtual(second)
    outer.__enter__()
    inner.__enter__()
    (first / "lock").unlink()
    outer.__exit__(None, None, None)
    assert os.environ[library.ENVIRONMENT] == str(second)
    inner.__exit__(None, None, None)
    assert library.ENVIRONMENT not in os.environ
    (first / "lock").touch()
    with library.virtual(first):
        with library.virtual(second):
            assert os.environ[library.ENVIRONMENT] == str(second)
        assert os.environ[library.ENVIRONMENT] == str(first)
    assert library.ENVIRONMENT not in os.environ
