"""The conformance suite on a real NVIDIA GPU. Reading only: nothing is ever set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRON = {name: value for name, value in os.environ.items() if name != "JOULEWISE_VNVML"}
ENVIRON["PYTHONPATH"] = os.pathsep.join(sys.path)
FIND = (
    "from joulewise.core.errors import JoulewiseError\n"
    "from joulewise.device.nvml import NvmlGpu\n"
    "try:\n"
    "    NvmlGpu.all()\n"
    "except JoulewiseError as error:\n"
    "    print(error)\n"
)


@pytest.mark.gpu
def test_a_real_gpu_passes_the_suite() -> None:
    # In a process of its own: a process holds one library called libnvidia-ml.so.1, and others want the virtual one.
    reason = subprocess.run(
        [sys.executable, "-c", FIND], env=ENVIRON, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    if reason:
        pytest.skip(reason.strip())
    suite = Path(__file__).with_name("real_nvml.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(suite)],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
