"""The recurring example: real convergence on the processor, joules of a virtual GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import preloaded

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_recurring.py"
RECURRENCES = 4
"""Twenty take five minutes; four show that every part is there."""
TARGET = 2.5


@pytest.mark.slow
def test_the_example_recurs_learns_and_really_converges(environ, virtual_nvml, peers_python, tmp_path):
    environ = {**environ, "JOULEWISE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    job = ["--job", "manual", "--batch-sizes", "16..128", "--default", "16", "--max-epochs", "16", "--lr", "0.003"]
    gpu = ["--gpu", "sim:h200", "--speed", "10", "--no-tune"]
    train = [
        str(peers_python),
        str(EXAMPLE),
        "--batch-size",
        "{batch_size}",
        "--lr",
        "{learning_rate}",
        "--epochs",
        "{epochs}",
    ]
    results = []
    for number in range(RECURRENCES):
        flags = [*job, "--target", f"val_loss<={TARGET}", *gpu, "--json", str(tmp_path / f"{number}.json")]
        ran = preloaded.run("recur", "run", *flags, "--", *train, env=environ, timeout=240)
        assert ran.returncode == 0, ran.stderr
        results.append(json.loads((tmp_path / f"{number}.json").read_text()))
    first, *rest = results
    assert [trial["batch_size"] for trial in first["trials"]] == [16]
    assert {trial["batch_size"] for result in rest for trial in result["trials"]} - {16}, "nothing else was tried"
    for result in results:
        last = result["trials"][-1]
        assert (last["outcome"], last["value"] <= TARGET) == ("reached", True)
        assert 2 <= last["epochs"] <= 16
        for trial in result["trials"]:
            (cost,) = trial["profile"]
            assert 70 < cost["energy_j"] / cost["duration_s"] < 700
    # An epoch of a larger batch takes fewer steps, and so less of what every step takes.
    costs = {trial["batch_size"]: trial["profile"][0] for result in results for trial in result["trials"]}
    larger = max(costs)
    assert costs[larger]["energy_j"] < costs[16]["energy_j"]


@pytest.mark.slow
def test_a_larger_batch_needs_more_epochs_to_the_same_loss(peers_python):
    def epochs(batch_size: int) -> int:
        rate = 0.003 * (batch_size / 16) ** 0.5
        flags = ["--batch-size", str(batch_size), "--lr", str(rate), "--target", str(TARGET), "--seed", "1"]
        ran = subprocess.run(
            [str(peers_python), str(EXAMPLE), *flags],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        lines = ran.stdout.splitlines()
        assert float(lines[-1].partition("val_loss=")[2]) <= TARGET
        return len(lines)

    assert epochs(16) < epochs(64) < epochs(256)
