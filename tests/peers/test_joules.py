"""The same half minute of virtual training, by several tools: their joules agree with each other and with the truth."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from joulewise.device.node import RunningNode, spawn
from tests.scenario_table import Shown

CLIENTS = Path(__file__).parent / "clients"
WINDOW_S = 30.05  # not a multiple of the 0.1 s in which counters tick
LOOK_S = 0.02  # how often the truth is looked up; a step of the load lasts some 0.3 s
LONGEST_S = 60.0

Curve = tuple[list[float], list[float]]


@contextmanager
def truth(node: RunningNode) -> Iterator[Curve]:
    """The true energy of GPU 0 against time, as it grows."""
    times_s: list[float] = []
    energies_j: list[float] = []
    enough = threading.Event()

    def look() -> None:
        with node.client() as client:
            while not enough.wait(LOOK_S):
                seen = client.truth(0)
                times_s.append(seen.time_s)
                energies_j.append(seen.energy_j)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield times_s, energies_j
    finally:
        enough.set()
        thread.join()


class Client:
    """A measuring program of ``clients``, in a process of its own. Raises EOFError if it fails."""

    def __init__(self, *command: str | Path, environ: dict[str, str], errors: Path) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, env=environ
            )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def hear(self, wanted: str) -> str:
        """The next line that begins with ``wanted``; tools talk, some of them on standard output."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(wanted):
                return line
        raise EOFError(f"{self._process.args!r} said no {wanted!r}: {self._errors.read_text()}")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=LONGEST_S)


@pytest.fixture
def environ_with_smi(tmp_path: Path) -> Iterator[tuple[RunningNode, dict[str, str]]]:
    """A node that trains, and an environment for its clients. CodeCarbon looks only where an nvidia-smi is."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    with spawn("sim:h200", load="cnn") as node:  # the sensors of this node have no gain error
        environ = node.environment()
        yield node, {**environ, "PATH": f"{smi.parent}:{environ['PATH']}"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_joulewise_zeus_codecarbon_wandb_and_the_truth_agree_within_1_percent(
    peers: Path,
    tmp_path: Path,
    environ_with_smi: tuple[RunningNode, dict[str, str]],
    scenario: Callable[..., Shown],
) -> None:
    shown = scenario("R22", "joulewise, Zeus, CodeCarbon, W&B on vNVML", criterion=f"within 1 % over {WINDOW_S:g} s")
    node, environ = environ_with_smi
    with ExitStack() as stack:
        times_s, energies_j = stack.enter_context(truth(node))
        clients = [
            Client(sys.executable, CLIENTS / "our_monitor.py", environ=environ, errors=tmp_path / "ours"),
            Client(
                *(peers / "python", CLIENTS / "other_monitors.py", tmp_path),
                environ=environ,
                errors=tmp_path / "others",
            ),
        ]
        for client in clients:
            stack.enter_context(client)
        for client in clients:
            client.hear("ready")
        for client in clients:
            client.tell("go")
        time.sleep(WINDOW_S)
        for client in clients:
            client.tell("stop")
        windows = {name: window for client in clients for name, window in json.loads(client.hear("{")).items()}

    assert set(windows) == {"joulewise", "zeus", "codecarbon", "wandb"}
    joules = {}
    for name, (begun_s, ended_s, measured_j) in windows.items():
        assert ended_s - begun_s == pytest.approx(WINDOW_S, abs=0.5)
        begun_j, ended_j = np.interp([begun_s, ended_s], times_s, energies_j)
        print(f"{name}: {measured_j:.1f} J in {ended_s - begun_s:.3f} s, truth {ended_j - begun_j:.1f} J")
        assert measured_j == pytest.approx(ended_j - begun_j, rel=0.01), name
        joules[name] = measured_j * WINDOW_S / (ended_s - begun_s)  # their windows begin and end milliseconds apart
    for one, other in combinations(joules, 2):
        assert joules[one] == pytest.approx(joules[other], rel=0.01), (one, other)
    mean_j = sum(joules.values()) / len(joules)
    shown.saw(", ".join(f"{name} {each / mean_j - 1:+.2%}" for name, each in joules.items()))
