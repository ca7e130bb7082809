"""A driver reload in mid-window, through NVML: the simulator, the worker and the measurer are three processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from joulewise import native
from joulewise.device import node
from joulewise.device.node import NodeClient, RunningNode
from joulewise.model.physics import Load
from tests.device.busy import kept_busy

try:
    native.library_path()
except FileNotFoundError:
    pytest.skip("the virtual NVML is not built; install joulewise with a C compiler", allow_module_level=True)

LOAD = Load(gpu_s=0.2, sm_share=0.9, dynamic_w=300.0)

MEASURE = """
import json, sys
from joulewise.device.nvml import NvmlGpu
from joulewise.monitor.window import Monitor
with Monitor(NvmlGpu.all()) as monitor:
    for name in ("across", "after"):
        window = monitor.begin(name)
        print("open", flush=True)
        sys.stdin.readline()
        print(json.dumps(monitor.end(name).as_json()), flush=True)
"""


@contextmanager
def measuring(running: RunningNode) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE],
        env=running.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(heard(process))


def live(client: NodeClient, duration_s: float) -> None:
    """Wait until the GPU has lived so much longer."""
    until_s = client.truth().time_s + duration_s
    while (left_s := until_s - client.truth().time_s) > 0:
        time.sleep(left_s / client.speed)


@pytest.mark.parametrize("model", ["h200", "v100"])
def test_a_reload_gives_no_negative_energy_and_a_window_flagged_as_reset(model: str) -> None:
    """H200: a dear, slow counter; V100: a cheap, quick one. The gap in between is from power."""
    with (
        node.spawn(f"sim:{model}", speed=5.0) as running,
        kept_busy(running, LOAD),
        running.client() as client,
    ):
        live(client, 6.0)  # the counter must stand higher than it will again, or its fall cannot be seen
        with measuring(running) as found:
            assert heard(found) == "open"
            start = client.truth()
            live(client, 3.0)
            client.fault(0, "reload")
            live(client, 3.0)
            end = client.truth()
            across = ended(found)
            assert heard(found) == "open"
            live(client, 1.0)
            after = ended(found)
    mean_w = (end.energy_j - start.energy_j) / (end.time_s - start.time_s)
    assert "counter reset" in across["notes"]
    assert across["energy_j"] == pytest.approx(mean_w * across["duration_s"], rel=0.05)
    assert "counter reset" not in after["notes"]
    assert after["energy_j"] > 0
