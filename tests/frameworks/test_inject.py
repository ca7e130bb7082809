"""Hooks injected into unchanged scripts, with a stand-in for torch's optimisers; test_torch has the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from joulewise import native
from joulewise.core.marks import Clock, Mark, MarkKind
from joulewise.core.timeline import WallTime
from joulewise.device import couple_torch, node
from joulewise.frameworks import inject
from joulewise.model import workloads
from joulewise.monitor.steps import StepFeed
from tests.torch_stand_in import FORK, STEPS_OF_PARENT_AND_TRAINER, STEPS_TAKING_TURNS, TAKE_TURNS

TRAIN = """
    import torch.optim
    optimizer = torch.optim.Optimizer()
    for _ in range(20):
        optimizer.step()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where marks go."""
    home = tmp_path / "marks"
    home.mkdir()
    return home


def script(home: Path, code: str, *path: Path, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with hooks injected and ``path`` on PYTHONPATH; whether it succeeded is the test's to say."""
    base = {**os.environ, "PYTHONPATH": ":".join(map(str, path))}
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env=inject.environment(base, home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def marks(home: Path) -> list[Mark]:
    feed = StepFeed(home, WallTime())
    try:
        return feed.read()
    finally:
        feed.close()


def steps(home: Path) -> int:
    return sum(mark.kind is MarkKind.STEP for mark in marks(home))


def test_every_step_of_an_unchanged_script_is_marked(home: Path, stand_in: Path) -> None:
    done = script(home, TRAIN, stand_in)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    told = marks(home)
    assert Counter(mark.kind for mark in told) == {MarkKind.HELLO: 1, MarkKind.STEP: 20, MarkKind.BYE: 1}
    assert (told[0].name, told[0].rank) == ("torch", 0)


def test_what_is_no_python_and_what_has_no_torch_run_as_ever(home: Path) -> None:
    environ = inject.environment(os.environ, home)
    assert subprocess.run(["/bin/sh", "-c", "exit 3"], env=environ).returncode == 3
    done = script(home, "print('hello')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    assert list(home.iterdir()) == []


def test_programs_that_it_starts_are_followed_each_by_itself(home: Path, stand_in: Path) -> None:
    train = textwrap.dedent(TRAIN) + "print('half', flush=True); input()" + textwrap.dedent(TRAIN)
    code = f"""
        import subprocess, sys
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        both = [subprocess.Popen([sys.executable, "-c", {train!r}], **pipes) for _ in range(2)]
        for each in both:
            each.stdout.readline()
        for each in both:
            each.communicate("go on")
        print([each.returncode for each in both])
    """
    assert script(home, code, stand_in).stdout == "[0, 0]\n"
    told = [mark for mark in marks(home) if mark.kind is MarkKind.STEP]
    assert sorted(Counter(mark.pid for mark in told).values()) == [40, 40]
    assert {mark.rank for mark in told} == {0, 1}


def test_a_pair_of_optimisers_that_take_turns_is_one_iteration(home: Path, stand_in: Path) -> None:
    assert script(home, TAKE_TURNS, stand_in).returncode == 0
    assert steps(home) == STEPS_TAKING_TURNS


def test_a_loaders_worker_marks_nothing_and_a_forked_trainer_does(home: Path, stand_in: Path) -> None:
    done = script(home, FORK, stand_in)
    assert done.returncode == 0, done.stderr
    told = Counter(mark.pid for mark in marks(home) if mark.kind is MarkKind.STEP)
    assert tuple(sorted(told.values())) == STEPS_OF_PARENT_AND_TRAINER
    assert len(list(home.iterdir())) == 2


def test_what_the_script_tells_itself_goes_before_what_is_injected(home: Path, stand_in: Path) -> None:
    code = """
        import joulewise, torch.optim
        optimizer = torch.optim.Optimizer()
        for _ in range(20):
            optimizer.step()
            joulewise.step(7)
    """
    home_of_joulewise = Path(inject.__file__).parents[2]
    assert script(home, code, stand_in, home_of_joulewise).returncode == 0
    told = [mark.work for mark in marks(home) if mark.kind is MarkKind.STEP]
    assert told == [1.0] + [7.0] * 20


def test_an_old_torch_without_global_hooks_trains_as_ever(home: Path, stand_in: Path, tmp_path: Path) -> None:
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "__init__.py").write_text("class Optimizer:\n    def step(self): pass\n")
    done = script(home, TRAIN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert marks(home) == []


@pytest.mark.parametrize("hooks_first", [True, False])
def test_together_with_a_coupling_each_step_ends_when_its_virtual_gpu_is_done(
    home: Path, stand_in: Path, hooks_first: bool
) -> None:
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    load = "gnn"
    with node.spawn("sim:h200", speed=2.0) as running:
        base: Mapping[str, str] = {**running.environment(), "PYTHONPATH": str(stand_in)}
        if hooks_first:
            environ = inject.environment(couple_torch.environment(base, load), home)
        else:
            environ = couple_torch.environment(inject.environment(base, home), load)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(TRAIN)], env=environ, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        with running.client() as client:
            assert client.status()["coupled"]["steps"] == 20
    told = [mark for mark in marks(home) if mark.kind is MarkKind.STEP]
    assert len(told) == 20
    simulated = [mark.time_s for mark in told if mark.clock is Clock.SIMULATED]
    assert len(simulated) >= 19  # of the last one only the simulator knows when it was done
    step_s = workloads.get(load).nominal_step_s
    durations_s = [later - earlier for earlier, later in pairwise(simulated)]
    # The machine may be busy, and a script that comes late leaves its virtual GPU waiting; the best half is exact.
    assert sorted(durations_s)[len(durations_s) // 4] == pytest.approx(step_s, rel=0.1)
