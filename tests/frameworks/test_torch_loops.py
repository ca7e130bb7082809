"""Real PyTorch loops, unchanged, with hooks injected: every iteration is seen once, and nothing is changed."""

from __future__ import annotations

import json
import os

import pytest

from joulewise.core.marks import Mark, MarkKind
from joulewise.core.timeline import WallTime
from joulewise.frameworks import inject
from joulewise.monitor.steps import StepFeed
from tests.frameworks.conftest import Client

pytestmark = pytest.mark.slow
Told = dict[str, list[Mark]]


@pytest.fixture(scope="module")
def runs(client: Client, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, bool, int]:
    """The marks of each loop, whether all losses were the same as without hooks, and the number of files."""
    home = tmp_path_factory.mktemp("marks")
    bare = json.loads(client("torch_loops.py"))
    hooked = json.loads(client("torch_loops.py", environ=inject.environment(os.environ, home)))
    feed = StepFeed(home, WallTime())
    files = len(list(home.iterdir()))
    marks = feed.read()
    feed.close()
    told = {loop: [mark for mark in marks if mark.pid == pid] for loop, (pid, _) in hooked.items()}
    same = [losses for _, losses in bare.values()] == [losses for _, losses in hooked.values()]
    return told, same, files


def steps(marks: list[Mark]) -> list[Mark]:
    return [mark for mark in marks if mark.kind is MarkKind.STEP]


def test_not_one_bit_of_what_is_computed_changes(runs: tuple[Told, bool, int]) -> None:
    assert runs[1]


@pytest.mark.parametrize(
    ("loop", "count"),
    [
        ("plain", 10),
        ("accumulates", 5),
        ("adversarial", 10),
        ("skips", 8),
        ("compiles", 8),
        ("evaluates", 20),
        ("has_a_teacher", 60),
        ("loads", 6),
        ("own", 5),
    ],
)
def test_every_iteration_is_one_step(runs: tuple[Told, bool, int], loop: str, count: int) -> None:
    assert len(steps(runs[0][loop])) == count


def test_each_loop_has_a_file_and_loader_processes_have_none(runs: tuple[Told, bool, int]) -> None:
    told, _, files = runs
    assert files == len(told)


def test_evaluations_and_checkpoints_are_told_and_their_steps_are_not_clean(runs: tuple[Told, bool, int]) -> None:
    marks = runs[0]["evaluates"]
    pauses = [mark.name for mark in marks if mark.kind is MarkKind.PAUSE]
    assert pauses == ["evaluation", "checkpoint", "evaluation", "evaluation", "evaluation"]
    assert sum(mark.kind is MarkKind.RESUME for mark in marks) == 5
    unclean = [number for number, mark in enumerate(steps(marks)) if not mark.clean]
    assert unclean == [0, 5, 8, 10, 15]


def test_compilation_is_told(runs: tuple[Told, bool, int]) -> None:
    marks = runs[0]["compiles"]
    assert "compile" in [mark.name for mark in marks if mark.kind is MarkKind.PAUSE]
    assert not steps(marks)[2].clean
    assert steps(marks)[-1].clean


def test_what_happens_in_every_iteration_is_soon_a_part_of_it(runs: tuple[Told, bool, int]) -> None:
    assert all(mark.clean for mark in steps(runs[0]["has_a_teacher"])[-30:])


def test_a_loop_with_nothing_but_steps_is_clean_from_the_second_on(runs: tuple[Told, bool, int]) -> None:
    assert [mark.clean for mark in steps(runs[0]["plain"])] == [False] + [True] * 9
    assert {mark.kind for mark in runs[0]["plain"]} == {MarkKind.HELLO, MarkKind.STEP}
