"""``examples/train_elastic.py`` as users run it, in processes: however it is stopped and resized, it ends the same.

Steps take no virtual time here; the loop is held back by nothing but the processor, so the number of steps is what
makes a run long enough to be disturbed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from joulewise.cluster import progress
from joulewise.device.node import spawn

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_elastic.py"
STEPS = 900
LONGEST_S = 120.0


class Jobs:
    """Starts the example in a folder, and ends whatever is left of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoint, self.result = folder / "checkpoints", folder / "result.jsonl"
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *more: str, steps: int = STEPS, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
        argv = [sys.executable, str(EXAMPLE), f"--steps={steps}", f"--checkpoint={self.checkpoint}"]
        others = ("RANK", "WORLD_SIZE", "SLURM_", "JOULEWISE_VNVML")
        mine = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        job = subprocess.Popen(
            [*argv, f"--result={self.result}", *more],
            env={**mine, **(environ or {})},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(job)
        return job

    def ranks(self, count: int, *more: str, steps: int = STEPS) -> list[subprocess.Popen[str]]:
        each = ({"RANK": str(rank), "WORLD_SIZE": str(count)} for rank in range(count))
        return [self.start(*more, steps=steps, environ=environ) for environ in each]

    def done(self, *jobs: subprocess.Popen[str]) -> list[int]:
        """Their exit codes, when they have ended."""
        return [(job.communicate(timeout=LONGEST_S), job.returncode)[1] for job in jobs]

    def until(self, true: Callable[[progress.Progress], bool]) -> progress.Progress:
        """What the progress file says as soon as ``true`` holds."""
        ends_s = time.monotonic() + LONGEST_S
        while time.monotonic() < ends_s:
            told = progress.read(self.checkpoint)
            if told is not None and true(told):
                return told
            time.sleep(0.01)
        raise AssertionError(f"never came to be; last was {progress.read(self.checkpoint)}")

    @property
    def results(self) -> list[dict]:
        return [json.loads(line) for line in self.result.read_text().splitlines()]

    def end(self) -> None:
        for job in self.running:
            if job.poll() is None:
                job.kill()
            job.communicate()


@pytest.fixture
def jobs(tmp_path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> str:
    """The hash of the final weights of a run that nobody stops."""
    made = Jobs(tmp_path_factory.mktemp("undisturbed"))
    assert made.done(made.start()) == [0]
    (result,) = made.results
    assert (result["steps"], result["starts"]) == (STEPS, 1)
    assert result["loss"] < 0.4  # it has learnt: three classes guessed are ln 3 = 1.1
    return result["sha256"]


def test_killed_at_any_point_and_started_again_it_ends_with_the_same_weights(jobs, undisturbed):
    draw = random.Random(0)
    kills = 0
    while kills < 6:
        job = jobs.start("--every-seconds=0.02")
        started = kills + 1
        jobs.until(lambda told, started=started: told.starts >= started)
        time.sleep(draw.uniform(0.0, 0.15))
        job.kill()
        if jobs.done(job) == [0]:  # it was faster
            break
        kills += 1
    else:
        assert jobs.done(jobs.start("--every-seconds=0.02")) == [0]
    assert kills >= 2
    (result,) = jobs.results
    assert result["sha256"] == undisturbed
    assert result["starts"] == kills + 1


def test_asked_to_pause_it_saves_and_waits_and_told_to_end_it_ends_at_once(jobs, undisturbed):
    job = jobs.start()
    jobs.until(lambda told: told.steps is not None)
    job.send_signal(signal.SIGUSR1)
    paused = jobs.until(lambda told: told.paused)
    assert paused.safe
    assert paused.step < STEPS
    job.send_signal(signal.SIGTERM)
    assert jobs.done(job) == [143]
    assert jobs.done(jobs.start()) == [0]
    (result,) = jobs.results
    assert (result["sha256"], result["starts"]) == (undisturbed, 2)


def test_told_to_end_it_loses_nothing(jobs, undisturbed):
    job = jobs.start()
    jobs.until(lambda told: told.steps is not None)
    job.send_signal(signal.SIGTERM)
    assert jobs.done(job) == [143]
    told = progress.read(jobs.checkpoint)
    assert told.saved_step == told.step < STEPS
    assert jobs.done(jobs.start()) == [0]
    assert jobs.results[0]["sha256"] == undisturbed


def test_stopped_and_started_with_another_number_of_tasks_it_ends_with_the_same_weights(jobs, undisturbed):
    first = jobs.ranks(2)
    jobs.until(lambda told: told.steps is not None)
    for rank in first:
        rank.send_signal(signal.SIGTERM)
    assert jobs.done(*first) == [143, 143]
    assert progress.read(jobs.checkpoint).world == 2
    assert jobs.done(*jobs.ranks(3)) == [0, 0, 0]
    (result,) = jobs.results
    assert (result["sha256"], result["starts"]) == (undisturbed, 2)
    assert progress.read(jobs.checkpoint).world == 3


def test_told_to_end_on_one_task_all_end_at_the_same_step(jobs):
    ranks = jobs.ranks(2, steps=10**6)
    jobs.until(lambda told: told.steps is not None)
    ranks[1].send_signal(signal.SIGTERM)
    assert jobs.done(*ranks) == [143, 143]


def test_when_one_task_dies_the_others_say_so_and_end(jobs):
    ranks = jobs.ranks(2, steps=10**6)
    jobs.until(lambda told: told.steps is not None)
    ranks[1].kill()
    said, _ = ranks[0].communicate(timeout=LONGEST_S)
    assert ranks[0].returncode == 1
    assert said.splitlines()[-1].startswith("train_elastic: ")


def test_a_rigid_job_begins_anew_and_one_that_ignores_signals_goes_on(jobs, undisturbed):
    job = jobs.start("--rigid", "--ignore-term")
    assert jobs.done(job) == [0]
    assert not jobs.checkpoint.exists()
    deaf = jobs.start("--ignore-term", "--ignore-usr1")
    jobs.until(lambda told: told.steps is not None)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        deaf.send_signal(number)
    assert jobs.done(deaf) == [0]
    assert [result["sha256"] for result in jobs.results] == [undisturbed] * 2


def test_a_start_that_finds_everything_done_adds_no_second_result(jobs):
    for _ in range(2):
        assert jobs.done(jobs.start(steps=5)) == [0]
    assert [result["starts"] for result in jobs.results] == [1]


@pytest.mark.exhaustive
@pytest.mark.alone
def test_on_virtual_gpus_more_are_faster_but_not_so_many_times(tmp_path):
    lasted_s = {}
    with spawn("sim:a100-sxm*8", speed=5) as node, node.client() as client:
        for gpus in (1, 8):
            jobs = Jobs(tmp_path / str(gpus))
            jobs.folder.mkdir()
            seen = {"JOULEWISE_VNVML": str(node.directory), "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus)))}
            before_j = [client.truth(index).energy_j for index in range(8)]
            started_s = client.truth().time_s
            assert jobs.done(jobs.start("--step-seconds=0.5", steps=60, environ=seen)) == [0]
            lasted_s[gpus] = client.truth().time_s - started_s
            drawn_w = [(client.truth(i).energy_j - before_j[i]) / lasted_s[gpus] for i in range(8)]
            idle_w = max(drawn_w[gpus:], default=60.0)
            assert min(drawn_w[:gpus]) > 1.5 * idle_w
            assert progress.read(jobs.checkpoint).world == gpus
    assert lasted_s[1] > 29.0  # 60 steps of 0.5 s
    assert 4.5 < lasted_s[8] < lasted_s[1]  # 60 × 0.5 s × (1/8 + 3 %) is 4.65 s, and starting takes some
