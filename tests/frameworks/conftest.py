"""Real PyTorch, Hugging Face and Lightning, from the peers' environment (``make peers``)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.peers.conftest import LONGEST_S, PEERS, absent

CLIENTS = Path(__file__).parent / "clients"
Client = Callable[..., str]


@pytest.fixture(scope="session")
def client() -> Client:
    """Run a program of ``clients`` with the peers' Python, to its end; its output."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        absent(f"{PEERS.name} is not there; 'make peers' makes it")

    def run(name: str, *arguments: str, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run(
            [python, CLIENTS / name, *arguments],
            env={**(os.environ if environ is None else environ), **quiet},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
