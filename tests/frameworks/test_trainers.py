"""Real Hugging Face and Lightning trainers on a virtual GPU: steps told by callback, and unasked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from joulewise import native
from joulewise.core.marks import Clock, Mark, MarkKind
from joulewise.device import couple_torch, node, nvml_library
from joulewise.frameworks import inject
from joulewise.model import workloads
from joulewise.monitor.steps import StepFeed
from joulewise.store import open_store, views
from tests.frameworks.conftest import Client
from tests.frameworks.installed import python_path

pytestmark = pytest.mark.slow
SOURCES = Path(inject.__file__).parents[2]
LOAD, SPEED = "transformer", 10.0


@pytest.fixture(scope="module")
def running() -> Iterator[node.RunningNode]:
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with node.spawn("sim:h200", speed=SPEED) as running:
        yield running


def trained(running: node.RunningNode, client: Client, home: Path, name: str) -> tuple[list[Mark], list[Mark]]:
    """The marks of a trainer on the virtual GPU, in its simulated time: with our callback, and without."""
    environ: Mapping[str, str] = {**running.environment(), "PYTHONPATH": str(SOURCES)}
    marks = home / "marks"
    marks.mkdir()
    hooked = inject.environment(couple_torch.environment(environ, LOAD), marks)
    lines = client(name, environ=hooked, cwd=home).splitlines()
    told, untold = (int(line.removeprefix("pid ")) for line in lines if line.startswith("pid "))
    feed = StepFeed(marks, _time_of(running))
    found = feed.read()
    feed.close()
    return [mark for mark in found if mark.pid == told], [mark for mark in found if mark.pid == untold]


def _time_of(running: node.RunningNode) -> nvml_library.SimulatedTime:
    return nvml_library.SimulatedTime(nvml_library.VnvmlState.open(running.directory))


def check_durations(steps: list[Mark]) -> None:
    """Clean steps last as long as on the virtual GPU, to its own jitter: no wall's hiccup is in them."""
    clean_s = [
        later.time_s - earlier.time_s
        for earlier, later in pairwise(steps)
        if later.clean and earlier.clock is later.clock is Clock.SIMULATED
    ]
    assert len(clean_s) >= 4
    expected_s = workloads.get(LOAD).nominal_step_s
    assert sorted(clean_s)[len(clean_s) // 2] == pytest.approx(expected_s, rel=0.05)


def steps_of(marks: list[Mark]) -> list[Mark]:
    return [mark for mark in marks if mark.kind is MarkKind.STEP]


def named(marks: list[Mark], kind: MarkKind) -> list[str]:
    return [mark.name for mark in marks if mark.kind is kind]


def unclean(marks: list[Mark]) -> set[int]:
    return {number for number, mark in enumerate(steps_of(marks)) if not mark.clean}


def test_a_hugging_face_trainer(running: node.RunningNode, client: Client, tmp_path: Path) -> None:
    told, untold = trained(running, client, tmp_path, "hf_train.py")
    for marks in (told, untold):
        assert len(steps_of(marks)) == 12
        assert named(marks, MarkKind.PAUSE).count("evaluation") >= 3
        assert {4, 8} <= unclean(marks)
        check_durations(steps_of(marks))
    assert named(told, MarkKind.HELLO) == ["huggingface"]
    assert named(untold, MarkKind.HELLO) == ["torch"]
    assert {mark.work for mark in steps_of(told)} == {2 * 4 * 6.0}  # tokens of the batches of one step
    assert {mark.work for mark in steps_of(untold)} == {1.0}


def test_a_lightning_trainer(running: node.RunningNode, client: Client, tmp_path: Path) -> None:
    told, untold = trained(running, client, tmp_path, "lightning_train.py")
    for marks in (told, untold):
        assert len(steps_of(marks)) == 12
        assert "evaluation" in named(marks, MarkKind.PAUSE)
        assert 6 in unclean(marks)
        check_durations(steps_of(marks))
    assert named(told, MarkKind.HELLO) == ["lightning"]
    assert named(untold, MarkKind.HELLO) == ["torch"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("trainer", ["huggingface", "lightning"])
def test_a_training_that_raises_gives_its_setting_back_while_the_process_lives_on(
    trainer: str, client: Client, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    with node.spawn("sim:h200", speed=20.0) as own:
        database = tmp_path / "runs.db"
        environ = {
            **own.environment(),
            "PYTHONPATH": python_path(site),
            "JOULEWISE_HOME": str(tmp_path / "home"),
            "JOULEWISE_DATABASE": str(database),
        }
        said = client("trainer_fails.py", trainer, environ=environ, cwd=tmp_path).splitlines()
    assert json.loads(said[-1])  # something was set, and the GPU was free again
    (run,) = views.runs(open_store(database).tables)
    assert run.finished is not None
    assert run.measured is not None
    assert run.measured["outcome"] == "failed"
