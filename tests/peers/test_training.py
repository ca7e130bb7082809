"""Training programs that we did not write, unchanged, train on a virtual H200 under ``joulewise sim --couple torch``.

Both compute on the processor, with torch's own optimisers and data made here or by a simulated environment: a BERT
that pre-trains on a text, with loader processes, and an actor-critic that learns to balance a pole, one step an
episode.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from joulewise.model import catalog, workloads
from joulewise.model.physics import operate

H200 = catalog.load("h200")
HALF_MHZ = 990
WATCH = Path(__file__).parent / "clients" / "watch_training.py"
Sim = Callable[..., "subprocess.CompletedProcess[str]"]
WORDS = ("watt", "joule", "clock", "power", "energy", "memory", "kernel", "step", "batch", "epoch")


def text(lines: int) -> str:
    """Pairs of sentences, as this BERT reads them."""
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(WORDS, k=8)) for _ in range(2 * lines)]
    return "".join(f"{one}\t{other}\n" for one, other in zip(sentences[::2], sentences[1::2], strict=True))


def law_s(load: str, lock_mhz: float | None) -> float:
    """Seconds of one step of the workload ``load`` without jitter."""
    phases = workloads.get(load, gpu=H200).step()
    return sum(
        operate(H200.chip, phase.load, lock_mhz=lock_mhz, limit_w=H200.default_limit_w).step_s for phase in phases
    )


def check(report: dict[str, Any], load: str, steps: int, lock_at: int) -> None:
    """The program was coupled, seen, and slowed down by the lock as the law says."""
    assert report["coupled"]["steps"] == steps
    assert report["pid"] in report["pids_seen"]
    assert report["pids_after"] == []
    assert report["energy_j"] > 1.5 * H200.chip.idle_w * report["duration_s"]

    # The first step follows no other, and the one during which the lock came is neither one nor the other.
    step_s = [later - earlier for earlier, later in pairwise(report["submitted_s"])]
    fast_s, slow_s = mean(step_s[2 : lock_at - 1]), mean(step_s[lock_at + 1 :])
    assert fast_s == pytest.approx(law_s(load, None), rel=0.04)
    assert slow_s == pytest.approx(law_s(load, HALF_MHZ), rel=0.02)
    assert slow_s > 1.5 * fast_s


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone  # its pace is compared with the law's
def test_a_bert_with_loader_processes_trains_and_slows_down_with_the_clock(
    peers: Path, sim: Sim, tmp_path: Path
) -> None:
    steps, batch, lock_at = 12, 8, 6
    corpus, vocabulary, report = tmp_path / "corpus.txt", tmp_path / "vocabulary", tmp_path / "report.json"
    corpus.write_text(text(steps * batch))
    subprocess.run([peers / "bert-vocab", "-c", corpus, "-o", vocabulary], check=True, capture_output=True)
    bert = [peers / "bert", "-c", corpus, "-v", vocabulary, "-o", tmp_path / "model"]
    small = ["--hidden", "32", "--layers", "2", "--attn_heads", "2", "--batch_size", f"{batch}"]

    done = sim(
        *("--gpu", "sim:h200", "--couple", "torch", "--"),
        *(sys.executable, WATCH, report, f"{lock_at}", f"{HALF_MHZ}"),
        *(*bert, *small, "--epochs", "1", "--num_workers", "2"),
    )

    assert done.returncode == 0, done.stderr
    assert "Model Saved" in done.stdout
    check(json.loads(report.read_text()), "transformer", steps, lock_at)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone  # its pace is compared with the law's
def test_an_actor_critic_trains_and_slows_down_with_the_clock(
    peers: Path, actor_critic: Path, sim: Sim, tmp_path: Path
) -> None:
    steps, lock_at = 30, 14
    report = tmp_path / "report.json"

    done = sim(
        *("--gpu", "sim:h200", "--couple", "torch", "--load", "cnn", "--"),
        *(sys.executable, WATCH, report, f"{lock_at}", f"{HALF_MHZ}"),
        *(peers / "python", actor_critic, "--max-episodes", f"{steps}"),
    )

    assert done.returncode == 0, done.stderr
    assert f"Episode {steps}" in done.stdout
    check(json.loads(report.read_text()), "cnn", steps, lock_at)
