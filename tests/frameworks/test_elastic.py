"""``joulewise.elastic`` in one process: what is saved, what is taken up, and what signals do."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
from typing import Any

import pytest

import joulewise
from joulewise.cluster import progress
from joulewise.core.errors import BadSpec, NotKept
from joulewise.frameworks import elastic as module
from joulewise.frameworks import elastic_files
from joulewise.frameworks.elastic_ranks import Ranks

HEARD = (signal.SIGUSR1, signal.SIGTERM)


class Counter:
    """The least that can be trained: it remembers the steps that it has seen."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No torch, no launcher; and signals are as they were, whatever a test does."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name in ("torch", "torch.distributed"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = {number: signal.getsignal(number) for number in HEARD}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def train(folder, count=10, until=None, counter=None, **options) -> tuple[Counter, Any]:
    """Train up to ``count`` steps, or be gone (as if killed) in step ``until``."""
    counter = counter or Counter()
    job = joulewise.elastic(folder, counter, **options)
    for step in job.steps(count):
        if step == until:
            break
        counter.seen.append(step)
    return counter, job


def test_every_step_is_done_once_and_in_order(tmp_path):
    counter, job = train(tmp_path)
    assert counter.seen == list(range(10))
    assert (job.start_step, job.saved_step, job.starts) == (0, 10, 1)


def test_a_second_start_goes_on_from_what_was_saved(tmp_path):
    train(tmp_path, until=7, every_s=1e-9)
    counter, job = train(tmp_path)
    assert counter.seen == list(range(10))
    assert (job.start_step, job.starts) == (7, 2)


def test_what_was_done_since_the_last_save_is_done_again(tmp_path):
    train(tmp_path, count=4)
    train(tmp_path, until=7)
    counter, job = train(tmp_path)
    assert (job.start_step, job.starts) == (4, 3)
    assert counter.seen == list(range(10))


def test_a_job_that_was_done_has_no_steps_left(tmp_path):
    train(tmp_path)
    counter, job = train(tmp_path)
    assert counter.seen == list(range(10))
    assert job.start_step == 10


def test_how_far_it_is_can_be_read_at_any_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WRITTEN_EVERY_S", 0.0)
    job = joulewise.elastic(tmp_path, Counter(), world=4)
    told = progress.read(tmp_path)
    assert (told.step, told.steps, told.saved_step, told.world, told.starts) == (0, None, 0, 4, 1)
    for step in job.steps(5):
        told = progress.read(tmp_path)
        assert (told.step, told.steps, told.saved_step, told.paused) == (step, 5, 0, False)
    told = progress.read(tmp_path)
    assert (told.step, told.saved_step) == (5, 5)


def test_it_is_written_about_once_a_second_and_not_at_every_step(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(module.progress_file, "write", lambda folder, now: written.append(now.step))
    train(tmp_path, count=1000)
    assert len(written) < 20


@pytest.mark.parametrize(
    "state",
    [
        lambda c: c,
        lambda c: {"counter": c},
        lambda c: {"save": c.state_dict, "load": c.load_state_dict},
        lambda c: {"a": {"save": c.state_dict, "load": c.load_state_dict}, "b": Counter()},
    ],
)
def test_state_may_be_given_in_several_ways(tmp_path, state):
    counter = Counter()
    for step in joulewise.elastic(tmp_path, state(counter)).steps(3):
        counter.seen.append(step)
    again = Counter()
    joulewise.elastic(tmp_path, state(again))
    assert again.seen == [0, 1, 2]


@pytest.mark.parametrize("state", [3, {}, {"model": 3}, {"save": 1, "load": 2}, [Counter()]])
def test_what_is_no_state_is_refused_with_a_way_out(tmp_path, state):
    with pytest.raises(BadSpec, match=r'give \{"save": function, "load": function\}'):
        joulewise.elastic(tmp_path, state)


def test_a_checkpoint_of_another_script_is_refused(tmp_path):
    train(tmp_path)
    with pytest.raises(BadSpec, match="holds state; this script's state is model, optimizer"):
        joulewise.elastic(tmp_path, {"model": Counter(), "optimizer": Counter()})


def test_a_folder_that_cannot_be_is_refused_at_once(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotKept, match="cannot be kept in"):
        joulewise.elastic(tmp_path / "file" / "checkpoints", Counter())
    assert not any(getattr(signal.getsignal(number), "__self__", None) for number in HEARD)  # as if it had not been


def test_one_loop_a_script(tmp_path):
    _, job = train(tmp_path)
    with pytest.raises(BadSpec, match="twice"):
        next(job.steps(10))


def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, caplog):
    train(tmp_path, count=4)
    train(tmp_path, count=8)
    last = max(tmp_path.glob("step-*"))
    last.write_bytes(last.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING, "joulewise"):
        counter, job = train(tmp_path)
    assert (job.start_step, counter.seen) == (4, list(range(10)))
    assert "damaged" in caplog.text
    assert "going on from step 4" in caplog.text


def test_on_a_full_disk_training_goes_on_keeps_the_last_good_one_and_says_so_once(tmp_path, caplog, monkeypatch):
    train(tmp_path, count=4)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "joulewise"):
        patch.setattr(elastic_files.os, "fsync", full)
        counter, job = train(tmp_path, every_s=1e-9)
    assert counter.seen == list(range(10))
    assert job.saved_step == 4
    assert progress.read(tmp_path).saved_step == 4
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert train(tmp_path)[1].start_step == 4


# Signals.


class Asked(Counter):
    """Sends this process a signal in a certain step, as a scheduler would."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__()
        self.number, self.step = number, step
        self.saves = 0

    def state_dict(self) -> dict[str, Any]:
        self.saves += 1
        return super().state_dict()

    def train(self, job, count=10) -> None:
        for step in job.steps(count):
            if step == self.step:
                signal.raise_signal(self.number)
            self.seen.append(step)


def test_asked_to_pause_it_saves_at_the_boundary_says_so_and_goes_on_if_nobody_ends_it(tmp_path, monkeypatch):
    told = []
    real = progress.write
    monkeypatch.setattr(progress, "write", lambda folder, now: (told.append(now), real(folder, now)))
    counter = Asked(signal.SIGUSR1, 3)
    counter.train(joulewise.elastic(tmp_path, counter, pause_s=0.05))
    (paused,) = [each for each in told if each.paused]
    assert (paused.step, paused.saved_step, paused.safe) == (4, 4, True)
    assert not told[-1].paused
    assert counter.seen == list(range(10))


def test_told_to_end_it_saves_and_exits_with_143(tmp_path):
    counter = Asked(signal.SIGTERM, 3)
    with pytest.raises(SystemExit) as ended:
        counter.train(joulewise.elastic(tmp_path, counter))
    assert ended.value.code == 143
    assert counter.seen == [0, 1, 2, 3]
    assert train(tmp_path)[1].start_step == 4


def test_told_to_end_while_it_pauses_it_ends_at_once_without_saving_again(tmp_path, monkeypatch):
    counter = Asked(signal.SIGUSR1, 3)
    job = joulewise.elastic(tmp_path, counter, pause_s=600.0)
    monkeypatch.setattr(module.time, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        counter.train(job)
    assert (ended.value.code, counter.saves) == (143, 1)


def test_nothing_is_saved_where_nothing_was_done_since(tmp_path):
    counter = Asked(signal.SIGTERM, -1)
    job = joulewise.elastic(tmp_path, counter)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        counter.train(job)
    assert counter.saves == 0


def test_asked_before_the_first_step_it_pauses_there(tmp_path, monkeypatch):
    counter = Counter()
    job = joulewise.elastic(tmp_path, counter, pause_s=0.0)
    signal.raise_signal(signal.SIGUSR1)
    assert list(job.steps(2)) == [0, 1]


def test_handlers_from_before_are_called_too_and_come_back(tmp_path):
    heard = []
    for number in HEARD:
        signal.signal(number, lambda number, _: heard.append(number))
    before = {number: signal.getsignal(number) for number in HEARD}
    counter = Asked(signal.SIGUSR1, 1)
    counter.train(joulewise.elastic(tmp_path, counter, pause_s=0.0))
    assert heard == [signal.SIGUSR1]
    assert {number: signal.getsignal(number) for number in HEARD} == before
    counter = Asked(signal.SIGTERM, 12)
    with pytest.raises(SystemExit):
        counter.train(joulewise.elastic(tmp_path, counter), count=20)
    assert heard == [signal.SIGUSR1, signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in HEARD} == before


def test_a_request_to_pause_that_comes_after_the_end_does_not_kill(tmp_path):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    train(tmp_path)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_in_another_thread_it_trains_and_hears_nothing(tmp_path):
    before = {number: signal.getsignal(number) for number in HEARD}
    found = []
    thread = threading.Thread(target=lambda: found.append(train(tmp_path)[0].seen))
    thread.start()
    thread.join()
    assert found == [list(range(10))]
    assert {number: signal.getsignal(number) for number in HEARD} == before


def test_a_forked_child_ends_on_sigterm_as_if_we_were_not_there(tmp_path):
    job = joulewise.elastic(tmp_path, Counter())
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)  # no step, so nothing
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert list(job.steps(1)) == [0]


# Ranks.


def test_only_rank_0_saves_and_writes_its_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    _, job = train(tmp_path, every_s=1e-9)
    assert (job.rank, job.world) == (1, 2)
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_can_talk_stop_at_the_same_step(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    others = iter([5, -5, 0, 0, 0, 3])  # the other rank: goes on from 5 as well, and is told to end after three steps
    counter = Counter()
    train(tmp_path, count=5, counter=Counter())
    job = joulewise.elastic(tmp_path, counter, agree=lambda number: max(number, next(others)))
    with pytest.raises(SystemExit):
        counter.seen.extend(job.steps(100))
    assert counter.seen == list(range(8))
    assert job.saved_step == 8


def test_ranks_that_can_talk_are_all_asked_for_their_state_and_rank_0_writes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = []
    state = {"save": lambda: asked.append("saved"), "load": lambda _: None}
    assert list(joulewise.elastic(tmp_path, state, agree=lambda number: number).steps(3)) == [0, 1, 2]
    assert asked == ["saved"]
    assert list(tmp_path.iterdir()) == []
    assert list(joulewise.elastic(tmp_path, state).steps(3)) == [0, 1, 2]
    assert asked == ["saved"]  # alone, rank 1 is asked for nothing


def test_ranks_that_would_go_on_from_different_steps_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    others = iter([7, -7])
    job = joulewise.elastic(tmp_path, Counter(), agree=lambda number: max(number, next(others)))
    with pytest.raises(BadSpec, match="goes on from step 0, but others from 0 to 7"):
        next(job.steps(10))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),  # a batch script, not a task of a step
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4"}, (1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, (0, 2)),
        ({"RANK": "many", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "5", "WORLD_SIZE": "2"}, (0, 1)),
    ],
)
def test_which_rank_this_is_the_launcher_says(environ, found):
    ranks = Ranks.here(environ=environ)
    assert (ranks.rank, ranks.count) == found


def test_a_single_rank_counts_the_gpus_that_it_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,5")
    assert joulewise.elastic(tmp_path, Counter()).world == 3
    assert joulewise.elastic(tmp_path, Counter(), world=12).world == 12
