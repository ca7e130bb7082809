"""A lease that dies at any line leaves nothing behind once its file is replayed: see crash_trials."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.device.node import RunningNode, spawn
from tests.tiers import ALL

ROOT = Path(__file__).parents[2]
SHM = Path("/dev/shm")
"""A death takes nothing of what was written, whether or not it is on a disk: no need to wait for one."""
POINTS = 80
"""Of some hundred for each kind. The hardware is touched at one in seven at least."""


@pytest.fixture(scope="module")
def node(virtual_nvml: None, may_set: None) -> Iterator[RunningNode]:
    with spawn("sim:h200") as node:
        yield node


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "visits", "least"), [("none", 1, 300), ("standing", 1, 300), ("replay", 1, 150), ("stand", 3, 150)]
)
def test_whatever_the_line_at_which_it_dies_everything_is_as_before(
    node: RunningNode, kind: str, visits: int, least: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="joulewise-", dir=SHM if SHM.is_dir() else None) as state:
        done = subprocess.run(
            [sys.executable, "-m", "tests.device.crash_trials", kind, state, str(visits), str(POINTS)],
            env=node.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["lines"] > least  # the tracer saw the engine's lines
    # And the hardware was touched when many of them ran.
    assert found["modified"] >= (least / 6 if ALL else 1)
