"""Unchanged scripts coupled with virtual GPUs, and a stand-in for torch's optimisers; tests/peers has the real ones."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from joulewise import native
from joulewise.device import couple_torch, node
from joulewise.device.node import RunningNode
from joulewise.model import workloads
from tests.torch_stand_in import FORK, STEPS_OF_PARENT_AND_TRAINER, STEPS_TAKING_TURNS, TAKE_TURNS

try:
    native.library_path()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

LOAD = "gnn"  # the shortest steps of the library: some 30 ms
STEP_S = workloads.get(LOAD).nominal_step_s


@pytest.fixture
def two() -> Iterator[RunningNode]:
    with node.spawn("sim:h200*2") as running:
        yield running


def script(
    running: RunningNode, code: str, *path: Path, flags: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` coupled, with ``path`` on PYTHONPATH; whether it succeeded is the test's to say."""
    base = {**running.environment(), "PYTHONPATH": ":".join(map(str, path)), **(environ or {})}
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env=couple_torch.environment(base, LOAD),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def coupled(running: RunningNode) -> dict[str, float]:
    with running.client() as client:
        return dict(client.status()["coupled"])


TRAIN = """
    import time, torch.optim
    optimizer = torch.optim.Optimizer()
    for _ in range(20):
        optimizer.step()
        print(time.monotonic())
"""


def test_each_step_takes_as_long_as_on_the_virtual_gpu(two: RunningNode, stand_in: Path) -> None:
    done = script(two, TRAIN, stand_in)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ends_s = [float(line) for line in done.stdout.split()]
    # The first two steps fill the one that runs ahead. The machine may be busy, the virtual GPU is not.
    assert statistics.median(b - a for a, b in pairwise(ends_s[1:])) == pytest.approx(STEP_S, rel=0.3)
    assert ends_s[-1] - ends_s[1] >= 0.97 * 18 * STEP_S
    assert coupled(two)["steps"] == 20


def test_what_the_script_computes_is_hidden_in_the_wait(two: RunningNode, stand_in: Path) -> None:
    slow = TRAIN.replace("optimizer.step()", f"time.sleep({STEP_S / 3}); optimizer.step()")
    done = script(two, slow, stand_in)
    ends_s = [float(line) for line in done.stdout.split()]
    assert statistics.median(b - a for a, b in pairwise(ends_s[1:])) == pytest.approx(STEP_S, rel=0.3)
    assert coupled(two)["late_steps"] < 10


def test_steps_that_take_longer_than_on_the_virtual_gpu_are_counted(two: RunningNode, stand_in: Path) -> None:
    slow = TRAIN.replace("optimizer.step()", f"time.sleep({3 * STEP_S}); optimizer.step()")
    script(two, slow, stand_in)
    late = coupled(two)
    assert late["steps"] == 20
    assert late["late_steps"] == 19
    assert late["late_s"] >= 0.9 * 19 * 2 * STEP_S


def test_a_sitecustomize_that_was_there_before_runs_as_ever(two: RunningNode, stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\nname = 'theirs'\n")
    done = script(two, TRAIN + "    import sitecustomize; print(sitecustomize.name)", tmp_path, stand_in)
    said = done.stdout.split()
    assert said[0] == said[-1] == "theirs"
    assert said.count("theirs") == 2
    assert coupled(two)["steps"] == 20


def test_a_script_without_torch_runs_as_ever(two: RunningNode) -> None:
    done = script(two, "print('hello')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert coupled(two)["steps"] == 0


def test_a_program_that_it_starts_is_coupled_too(two: RunningNode, stand_in: Path) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {textwrap.dedent(TRAIN)!r}], check=True)"
    assert script(two, code, stand_in).returncode == 0
    assert coupled(two)["steps"] == 20


def test_a_pair_of_optimisers_that_take_turns_is_one_iteration(two: RunningNode, stand_in: Path) -> None:
    assert script(two, TAKE_TURNS, stand_in).returncode == 0
    assert coupled(two)["steps"] == STEPS_TAKING_TURNS


def test_when_the_first_optimiser_is_done_the_next_one_leads(two: RunningNode, stand_in: Path) -> None:
    code = """
        import torch.optim
        for _ in range(3):
            optimizer = torch.optim.Optimizer()
            for _ in range(5):
                optimizer.step()
    """
    assert script(two, code, stand_in).returncode == 0
    assert coupled(two)["steps"] == 15


def test_a_loaders_worker_takes_no_step_and_a_forked_trainer_does(two: RunningNode, stand_in: Path) -> None:
    done = script(two, FORK, stand_in)
    assert done.returncode == 0, done.stderr
    assert coupled(two)["steps"] == sum(STEPS_OF_PARENT_AND_TRAINER)


def test_each_rank_works_on_its_own_gpu(two: RunningNode, stand_in: Path) -> None:
    ranks = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    done = script(two, TRAIN, stand_in, environ=ranks)
    assert done.returncode == 0, done.stderr
    with two.client() as client:
        idle, busy = client.truth(0), client.truth(1)
    assert busy.energy_j > idle.energy_j + 20 * STEP_S * 50.0


def test_a_simulator_that_dies_costs_the_script_one_line(two: RunningNode, stand_in: Path) -> None:
    code = f"""
        import os, signal, torch.optim
        optimizer = torch.optim.Optimizer()
        for number in range(10):
            optimizer.step()
            if number == 5:
                os.kill({two.pid}, signal.SIGKILL)
        print("trained")
    """
    done = script(two, code, stand_in)
    assert done.returncode == 0
    assert done.stdout == "trained\n"
    assert done.stderr.startswith("joulewise: no longer coupled: the simulator in ")
    assert done.stderr.count("\n") == 1
