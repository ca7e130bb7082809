"""What nvidia-ml-py sets in one process is what the law gives to the work of another."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from joulewise.device.node import RunningNode, spawn
from joulewise.device.work import Done, Link
from joulewise.model import catalog
from joulewise.model.physics import Load, operate

H200 = catalog.load("h200")
STEP = Load(gpu_s=0.05, sm_share=0.85, dynamic_w=420.0, host_s=0.005)
HALF_MHZ = 990
STEPS = 30
CLIENT = Path(__file__).parent / "clients" / "set_and_read.py"

Nvml = Callable[..., dict[str, Any]]


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with spawn("sim:h200") as node:
        yield node


@pytest.fixture
def nvml(peers: Path, node: RunningNode) -> Nvml:
    """A script that sets and reads with nvidia-ml-py alone, in a process and an environment of its own."""

    def run(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [peers / "python", CLIENT, *arguments],
            env=node.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown

    return run


@contextmanager
def working(node: RunningNode) -> Iterator[None]:
    """Steps without end, from a thread."""
    enough = threading.Event()

    def train() -> None:
        link = Link(node.directory)
        while not enough.is_set():
            link.work(STEP, hidden=True)
        link.close()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def steps_s(node: RunningNode) -> float:
    """Seconds of one step now, after a few that let a new clock arrive."""
    link = Link(node.directory)
    for _ in range(4):
        link.work(STEP, hidden=True)
    done: list[Done] = [link.work(STEP, hidden=True) for _ in range(STEPS)]
    link.close()
    return (done[-1].finished_s - done[0].started_s) / STEPS


def test_half_the_clock_gives_the_laws_step_time(node: RunningNode, nvml: Nvml) -> None:
    law = operate(H200.chip, STEP)
    assert steps_s(node) == pytest.approx(law.step_s, rel=0.02)

    nvml(f"lock={HALF_MHZ}")
    slow = operate(H200.chip, STEP, lock_mhz=HALF_MHZ)
    assert slow.step_s > 1.7 * law.step_s
    assert steps_s(node) == pytest.approx(slow.step_s, rel=0.02)

    nvml("reset")
    assert steps_s(node) == pytest.approx(law.step_s, rel=0.02)


def test_200_w_gives_the_laws_power(node: RunningNode, nvml: Nvml) -> None:
    with working(node):
        nvml("limit=200", "for=2.0")  # so that the driver's 1 s average has forgotten the time before
        for _ in range(4):  # a busy machine may keep the work, and so the GPU, waiting for a while
            shown = nvml("for=2.5")
            with node.client() as client:
                temperature_c = client.truth().temperature_c
            law = operate(H200.chip, STEP, limit_w=200.0, temperature_c=temperature_c)
            if shown["counted_w"] > 0.98 * law.average_power_w and shown["shown_w"] > 0.98 * law.average_power_w:
                break

    assert shown["limit_w"] == 200.0
    assert law.average_power_w < 0.6 * operate(H200.chip, STEP).average_power_w
    assert shown["counted_w"] == pytest.approx(law.average_power_w, rel=0.02)
    assert shown["shown_w"] == pytest.approx(law.average_power_w, rel=0.02)
    assert shown["sm_mhz"] == pytest.approx(law.sm_mhz, rel=0.02)


def test_what_it_reads_is_what_the_catalogue_says(node: RunningNode, nvml: Nvml) -> None:
    shown = nvml()
    with node.client() as client:
        assert shown["uuid"] == client.uuids[0]
    assert shown["name"] == H200.name
    assert shown["limit_w"] == H200.default_limit_w
    assert shown["sm_max_mhz"] == H200.chip.sm_max_mhz
    assert shown["limits_w"] == [200.0, 700.0]
    assert shown["pids"] == []
