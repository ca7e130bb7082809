"""Joules next to the loss: what is logged, by whom, and that training never hears of a fault."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from joulewise import native
from joulewise.core.timeline import VirtualTime
from joulewise.device import node
from joulewise.frameworks import tensorboard, wandb
from joulewise.frameworks.energy_log import EnergyLog
from tests.frameworks.conftest import Client
from tests.frameworks.installed import python_path
from tests.monitor.played import PlayedGpu, constant

NAMES = {"energy/total_j", "energy/total_error_j", "energy/power_w", "energy/step_j"}


class Written:
    """What was logged: (values, step)."""

    def __init__(self) -> None:
        self.points: list[tuple[dict[str, float], int | None]] = []

    def __call__(self, values: Mapping[str, float], step: int | None) -> None:
        self.points.append((dict(values), step))


def played(power_w: float = 300.0, gpus: int = 1) -> tuple[VirtualTime, list[PlayedGpu]]:
    time = VirtualTime()
    return time, [PlayedGpu(constant(power_w), time=time, seed=seed) for seed in range(gpus)]


def test_joules_and_watts_of_all_gpus_are_logged_with_the_step_they_are_of() -> None:
    time, gpus = played(gpus=2)
    written = Written()
    with EnergyLog(written, gpus=gpus, every_s=3600.0) as log:
        for step in range(100):
            time.sleep(1.0)
            if step % 20 == 19:
                log.measure()
            log.step(step)
    assert log.trouble is None
    assert [step for _, step in written.points] == [19, 39, 59, 79, 99, None]
    for number, (values, _) in enumerate(written.points[:5], 1):
        assert values.keys() == NAMES
        assert values["energy/total_j"] == pytest.approx(600.0 * 20.0 * number, rel=0.02)
        assert values["energy/power_w"] == pytest.approx(600.0, rel=0.02)
    # The fifth is of the moment before its own step was counted, and so are all but the first.
    assert [values["energy/step_j"] for values, _ in written.points[1:5]] == pytest.approx([600.0] * 4, rel=0.02)
    assert log.report is not None
    assert written.points[-1][0]["energy/total_j"] == log.report.energy_j == pytest.approx(60_000.0, rel=0.01)


def test_a_step_with_nothing_new_writes_nothing() -> None:
    time, gpus = played()
    written = Written()
    with EnergyLog(written, gpus=gpus, every_s=3600.0) as log:
        for _ in range(10):
            time.sleep(1.0)
            log.step()
        assert written.points == []
    assert len(written.points) == 1


def test_the_logs_own_thread_looks_without_being_asked() -> None:
    written = Written()
    with EnergyLog(written, gpu="sim:h200", every_s=1.0) as log:
        for _ in range(600):
            log._stop.wait(0.05)
            log.step()
            if written.points:
                break
    assert written.points[0][0]["energy/power_w"] > 0


def test_a_writer_that_raises_costs_the_log_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    time, gpus = played()

    def broken(values: Mapping[str, float], step: int | None) -> None:
        raise ConnectionError("the network is away")

    with EnergyLog(broken, gpus=gpus, every_s=3600.0) as log:
        for _ in range(5):
            time.sleep(5.0)
            log.measure()
            log.step()
    assert log.trouble == "energy could not be written: ConnectionError: the network is away"
    assert len(caplog.records) == 1  # said once
    assert log.report is not None


def test_without_a_gpu_training_goes_on_and_it_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    written = Written()
    with EnergyLog(written, gpu="nvml:GPU-00000000-none") as log:
        log.step()
    assert log.trouble.startswith("no energy is logged: ")
    assert (written.points, log.report) == ([], None)


def test_a_gpu_that_is_lost_on_the_way_is_logged_up_to_there() -> None:
    time, gpus = played()
    written = Written()
    log = EnergyLog(written, gpus=gpus, every_s=3600.0).begin()
    time.sleep(50.0)
    gpus[0].lost = True
    time.sleep(50.0)
    log.measure()
    log.step()
    log.close()
    log.close()
    assert written.points[-1][0]["energy/total_j"] == pytest.approx(300.0 * 50.0, rel=0.03)


def test_of_several_ranks_the_first_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    _, gpus = played()
    written = Written()
    with EnergyLog(written, gpus=gpus) as log:
        log.step()
    assert log.trouble == "local rank 0 logs for local rank 3"
    assert written.points == []


@pytest.mark.parametrize("every_s", [0.0, -1.0, 0.5, math.nan, math.inf])
def test_an_interval_that_makes_no_sense_is_refused(every_s: float) -> None:
    with pytest.raises(ValueError, match="every_s"):
        EnergyLog(Written(), every_s=every_s)


class Board:
    """A writer as TensorBoard's."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int | None]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars.append((tag, scalar_value, global_step))


@pytest.mark.parametrize(("numbered", "expected"), [(True, [102, 104, 104]), (False, [3, 5, 5])])
def test_tensorboard_gets_a_curve_each_at_the_scripts_steps_or_at_counted_ones(
    numbered: bool, expected: list[int]
) -> None:
    time, gpus = played()
    board = Board()
    with tensorboard.EnergyLog(board, gpus=gpus, every_s=3600.0) as log:
        for step in range(100, 105):
            time.sleep(10.0)
            if step % 2 == 0 and step > 100:
                log.measure()
            log.step(step if numbered else None)
    assert [step for tag, _, step in board.scalars if tag == "energy/total_j"] == expected
    assert {tag for tag, _, _ in board.scalars} == NAMES


class Run:
    """A run as W&B's: what is not committed goes with the next point."""

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []
        self.summary: dict[str, float] = {}
        self._pending: dict[str, float] = {}

    def log(self, data: dict[str, float], commit: bool = True) -> None:
        self._pending |= data
        if commit:
            self.history.append(self._pending)
            self._pending = {}


def test_in_wandb_a_point_goes_with_the_scripts_next_and_the_total_into_the_summary() -> None:
    time, gpus = played()
    run = Run()
    with wandb.EnergyLog(run, gpus=gpus, every_s=3600.0) as log:
        for number in range(4):
            time.sleep(10.0)
            if number == 2:
                log.measure()
            log.step(7)  # a number that W&B would not take
            run.log({"loss": 0.5})
    assert [set(each) for each in run.history] == [{"loss"}, {"loss"}, {"loss", *NAMES}, run.history[3].keys(), NAMES]
    assert run.history[3].keys() == {"loss"}
    assert run.summary["energy/total_j"] == pytest.approx(300.0 * 40.0, rel=0.03)


def test_importing_the_loggers_loads_neither_package() -> None:
    probe = (
        "import sys; import joulewise.frameworks.wandb, joulewise.frameworks.tensorboard;"
        "print({'wandb', 'tensorboard', 'torch', 'numpy'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"


@pytest.fixture(scope="module")
def running() -> Iterator[node.RunningNode]:
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with node.spawn("sim:h200", load="transformer") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "wandb",
        "tensorboard",
        # Through another's trainer: the same two logs.
        pytest.param("huggingface", marks=pytest.mark.exhaustive),
        pytest.param("lightning", marks=pytest.mark.exhaustive),
    ],
)
def test_the_real_packages_have_energy_next_to_the_loss(
    running: node.RunningNode, client: Client, tmp_path: Path, how: str
) -> None:
    place = tmp_path / "installed"
    place.mkdir()
    with running.client() as asks:
        before = asks.truth()
        environ = {**running.environment(), "PYTHONPATH": python_path(place)}
        said = client("energy_train.py", how, environ=environ, cwd=tmp_path)
        after = asks.truth()
    true_w = (after.energy_j - before.energy_j) / (after.time_s - before.time_s)
    (line,) = [line for line in said.splitlines() if line.startswith("curves ")]
    curves = json.loads(line.removeprefix("curves "))
    assert curves.keys() >= {"loss", *NAMES}
    assert len(curves["loss"]) == 8
    total_j = [value for _, value in curves["energy/total_j"]]
    assert len(total_j) >= 2
    assert total_j == sorted(total_j)
    for _, power_w in curves["energy/power_w"]:
        assert power_w == pytest.approx(true_w, rel=0.3)  # over a second or less
    steps = [step for step, _ in curves["energy/total_j"]]
    assert steps == sorted(steps)
