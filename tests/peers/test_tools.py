"""Other people's tools see the virtual GPUs and who works on them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from joulewise.model import catalog

Sim = Callable[..., "subprocess.CompletedProcess[str]"]


def test_gpustat_shows_each_gpu_with_its_power_and_its_process(peers: Path, sim: Sim) -> None:
    # Asked twice: until its first update, a tenth of a second in, a sensor shows what was there before the load.
    twice = f"'{peers / 'gpustat'}' --json >/dev/null; '{peers / 'gpustat'}' --json"
    done = sim("--gpu", "sim:a100,h200", "--load", "transformer", "--", "sh", "-c", twice)

    assert done.returncode == 0, done.stderr
    gpus = json.loads(done.stdout)["gpus"]
    models = [catalog.load("a100"), catalog.load("h200")]
    assert [gpu["name"] for gpu in gpus] == [model.name for model in models]
    assert [gpu["enforced.power.limit"] for gpu in gpus] == [model.default_limit_w for model in models]
    for gpu, model in zip(gpus, models, strict=True):
        assert gpu["power.draw"] > model.chip.deep_idle_w
        assert gpu["memory.used"] > 0
        assert [process["command"] for process in gpu["processes"]] == ["python"]
    assert len({gpu["uuid"] for gpu in gpus}) == 2


def test_gpustat_prints_its_table(peers: Path, sim: Sim) -> None:
    done = sim("--gpu", "sim:h200*2", "--", peers / "gpustat", "--show-power", "--no-color")

    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert [row.split("|")[0].strip() for row in rows] == ["[0] NVIDIA H200", "[1] NVIDIA H200"]
    assert all("/ 700 W" in row for row in rows)


def test_nvitop_prints_its_table_without_an_error(peers: Path, sim: Sim) -> None:
    done = sim("--gpu", "sim:h200*2", "--load", "transformer", "--", peers / "nvitop", "-1")

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("H200") == 2
    assert done.stdout.count("/ 700W") == 2
    # One row for each process on each GPU: here the simulator, which plays the load, on both.
    rows = re.findall(r"^│ +(\d) +(\d+) C ", done.stdout, flags=re.MULTILINE)
    assert [gpu for gpu, _ in rows] == ["0", "1"]
    assert len({pid for _, pid in rows}) == 1
    assert "ERROR" not in done.stdout + done.stderr
