"""Programs that others wrote, from an environment of their own (``make peers``), against our virtual GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers"
PROGRAMS = ("python", "gpustat", "nvitop", "bert", "bert-vocab")
IGNITE = "pytorch-ignite==0.5.5"
ACTOR_CRITIC = "pytorch_ignite-0.5.5/examples/reinforcement_learning/actor_critic.py"
LONGEST_S = 120.0  # for any one program, so that a hang is an error and not the end of the suite


def absent(reason: str) -> NoReturn:
    """Skip on a developer's machine; in CI nothing may be left out."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def peers() -> Path:
    """Where the programs of the peers' environment are."""
    missing = [name for name in PROGRAMS if not (PEERS / "bin" / name).exists()]
    if missing:
        absent(f"{PEERS.name} has no {', '.join(missing)}; 'make peers' installs them")
    return PEERS / "bin"


@pytest.fixture(scope="session")
def actor_critic(peers: Path) -> Path:
    """An example of PyTorch-Ignite as its authors published it; fetched once, kept beside its environment."""
    directory = PEERS / "sdist"
    script = directory / ACTOR_CRITIC
    if not script.exists():
        pip = [f"{peers / 'python'}", "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        fetched = subprocess.run(
            [*pip, "--no-deps", "--no-binary", "pytorch-ignite", "--dest", f"{directory}", IGNITE],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        archives = list(directory.glob("pytorch_ignite-*.tar.gz"))
        if fetched.returncode or not archives:
            absent(f"{IGNITE} cannot be fetched: {fetched.stderr.strip().splitlines()[-1:]}")
        with tarfile.open(archives[0]) as archive:
            archive.extract(ACTOR_CRITIC, directory, filter="data")
    return script


Sim = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def sim(tmp_path: Path) -> Sim:
    """`joulewise sim` with the given arguments, run to its end in an empty directory."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "joulewise", "sim", *arguments],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1"},
        )

    return run
