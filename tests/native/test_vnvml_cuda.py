"""PyTorch asks NVML how many GPUs CUDA has: virtual ones, which no CUDA can open, are not counted for it.

PyTorch's core and the CUDA driver are stand-ins here, libraries of the same names; tests/peers has the real PyTorch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.device.vnvml_layout import VnvmlState
from joulewise.native import library_path

from .conftest import PRELUDE

# What torch.cuda does before CUDA has been started: ``_raw_device_count_nvml``.
COUNT = """
def torch_count():
    library, count = CDLL("libnvidia-ml.so.1"), c_int(-1)
    return [library.nvmlInit(), library.nvmlDeviceGetCount_v2(byref(count)), count.value]

if len(sys.argv) > 1:
    CDLL(sys.argv[1])
nvmlInit()
tell([torch_count(), nvmlDeviceGetCount(), torch_count(), nvmlDeviceGetCount()])
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """A folder for the stand-ins, searched before others."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    return folder


def counted(environment: dict[str, str], libraries: Path, *loaded: str) -> str:
    path = f"{libraries}{os.pathsep}{environment['LD_LIBRARY_PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + COUNT, *loaded],
        env={**environment, "LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def stand_in(libraries: Path, name: str) -> str:
    shutil.copy(library_path("libjoulewise-flow.so"), libraries / name)
    return name


def test_the_first_nvml_init_counts_every_gpu_where_there_is_no_pytorch(
    state: VnvmlState, environment: dict[str, str], libraries: Path
) -> None:
    stand_in(libraries, "libc10.so")  # it is there, and this process has not loaded it
    assert counted(environment, libraries) == "[[0, 0, 2], 2, [0, 0, 2], 2]"


def test_pytorch_counts_none_and_other_readers_in_its_process_count_all(
    state: VnvmlState, environment: dict[str, str], libraries: Path
) -> None:
    assert counted(environment, libraries, stand_in(libraries, "libc10.so")) == "[[0, 0, 0], 2, [0, 0, 0], 2]"


def test_where_a_cuda_driver_is_there_pytorch_is_sent_to_it(
    state: VnvmlState, environment: dict[str, str], libraries: Path
) -> None:
    stand_in(libraries, "libcuda.so.1")
    unknown = 999  # upon an error PyTorch asks CUDA itself
    said = counted(environment, libraries, stand_in(libraries, "libc10.so"))
    assert said == f"[[0, {unknown}, -1], 2, [0, {unknown}, -1], 2]"
