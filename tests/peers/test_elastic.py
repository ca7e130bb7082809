"""An elastic script with torch: stopped as one process, it goes on as two ranks that pause together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.peers.conftest import LONGEST_S, ROOT

CLIENT = Path(__file__).parent / "clients" / "elastic_train.py"
STEPS, ENDED, PAUSED = 60, 20, 40


def start(peers: Path, folder: Path, *more: object, rank: int | None = None) -> subprocess.Popen[str]:
    ranks = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2"}
    others = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [peers / "python", CLIENT, folder, str(STEPS), *map(str, more)],
        env={**others, **ranks, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_torch_script_is_stopped_resized_and_paused_and_ends_with_the_same_weights(peers: Path, tmp_path: Path):
    folder = tmp_path / "checkpoints"
    first = start(peers, folder, int(signal.SIGTERM), 0, ENDED)
    _, said = first.communicate(timeout=LONGEST_S)
    assert first.returncode == 143, said
    (saved,) = folder.glob("step-*.pt")
    assert int(saved.name.split("-")[1]) == ENDED + 1

    # Only rank 1 is asked; both pause after that step, and nobody ends them.
    ranks = [start(peers, folder, int(signal.SIGUSR1), 1, PAUSED, rank=rank) for rank in range(2)]
    try:
        answers = [rank.communicate(timeout=LONGEST_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    told = [json.loads(out) for out, _ in answers]
    assert [each["world"] for each in told] == [2, 2]
    assert [each["from"] for each in told] == [ENDED + 1] * 2
    assert told[0]["paused"] == [PAUSED + 1]  # rank 0 writes for all
    assert all(each["apart"] < 1e-5 for each in told)
    assert all(each["moved"] > 0.1 for each in told)
