"""The recurring example: real convergence on the processor, joules of a virtual GPU."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.physics import Load
from tests import preloaded

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_recurring.py"
RECURRENCES = 4
"""Twenty take five minutes; four show that every part is there."""
TARGET = 2.5
TEXTS = 768
"""An epoch."""


@pytest.mark.slow
@pytest.mark.exhaustive
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


def test_an_epoch_of_a_larger_batch_takes_less_energy():
    """It takes fewer steps, and so less of what every step takes; in virtual time, since where the processor is busy
    with something else the GPU waits for its steps, and draws power."""
    said = {
        name.id: ast.literal_eval(given.value)
        for given in ast.parse(EXAMPLE.read_text()).body
        if isinstance(given, ast.Assign) and isinstance(name := given.targets[0], ast.Name)
    }
    (fixed_s, *fixed), (text_s, *text) = said["FIXED"], said["PER_TEXT"]

    def epoch_j(batch_size: int) -> float:
        clock = VirtualTime()
        gpu = VirtualGpu(catalog.load("h200"), time=clock)
        step = [Load(fixed_s, *fixed), Load(batch_size * text_s, *text)]
        steps = [gpu.submit(step) for _ in range(TEXTS // batch_size)]
        clock.run(gpu.finish(steps[-1]))
        return gpu.truth().energy_j

    assert epoch_j(16) > epoch_j(32) > epoch_j(64) > epoch_j(128)


@pytest.mark.slow
@pytest.mark.exhaustive
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
