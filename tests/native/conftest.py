"""Clients of the virtual NVML: real nvidia-ml-py in a process of its own, which is how the library is found in life."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from joulewise.device.vnvml_layout import ENVIRONMENT, GpuIdentity, VnvmlState
from joulewise.native import library_path

PRELUDE = """
import json, os, sys, threading, time
from pynvml import *

def error_of(call, *args):
    "The number of the NVML error that a call raises; 0: none."
    try:
        call(*args)
    except NVMLError as error:
        return error.value
    return NVML_SUCCESS

def become_nobody():
    CDLL("libnvidia-ml.so.1")  # while we may still read where it is
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)

def tell(value):
    print(json.dumps(value), flush=True)
"""


def h200(index: int = 0, **changes: Any) -> GpuIdentity:
    """A GPU with the ranges of an H200."""
    facts: dict[str, Any] = {
        "uuid": f"GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd",
        "name": "NVIDIA H200",
        "sm_clocks_mhz": range(345, 1981, 15),
        "memory_clocks_mhz": (3201, 2201),
        "memory_total_bytes": 150_754_820_096,
        "memory_reserved_bytes": 600 << 20,
        "limit_mw": (200_000, 700_000, 700_000),
        "pci_bus_id": f"0000000{index}:1B:00.0",
        "pci_device_id": 0x233510DE,
        "architecture": 9,
        "compute_capability": (9, 0),
        "cores": 16_896,
        "gpm": True,
        "slowdown_c": 92,
    }
    return GpuIdentity(**(facts | changes))


def publish_all(state: VnvmlState, index: int = 0) -> None:
    """Values that are all different, so that no test can take one for another."""
    state.publish(
        index,
        simulated_ns=5_000_000_000,
        energy_mj=9_876_543_210,
        memory_used_bytes=20 << 30,
        clocks_event_reasons=0x4,
        power_violation_ns=1_111,
        power_mw=312_400,
        power_instant_mw=318_000,
        power_average_mw=312_300,
        sm_mhz=1755,
        graphics_mhz=1750,
        memory_mhz=3201,
        utilisation_gpu_percent=97,
        utilisation_memory_percent=41,
        temperature_c=61,
        memory_temperature_c=70,
        pstate=0,
        processes=[(os.getpid(), 20 << 30), (1, None)],
    )


@pytest.fixture(scope="session")
def library() -> Path:
    try:
        return library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place that other users may look into, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="vnvml-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def state(directory: Path) -> Iterator[VnvmlState]:
    """A simulator of two GPUs that publishes once and then holds still."""
    with VnvmlState.create(directory, [h200(0), h200(1)]) as state:
        publish_all(state, 0)
        publish_all(state, 1)
        yield state


@pytest.fixture
def environment(library: Path, directory: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), ENVIRONMENT: str(directory)}


Client = Callable[..., Any]


@pytest.fixture
def client(environment: dict[str, str]) -> Client:
    """Run a script in a client process; what it told last."""

    def run(script: str, *arguments: object) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def talk(environment: dict[str, str]) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start a client and talk with it line by line."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
