"""What ``make demo-cluster`` is made of, on small numbers; the parts that it starts have tests of their own."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cluster.brought_sources import read
from joulewise.device.node import spawn
from joulewise.plan.schedules_named import named

DEMO = Path(__file__).parents[2] / "examples" / "demo_cluster"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))


def part(name: str):
    return importlib.import_module(name)


def test_without_slurm_the_demo_says_in_a_line_what_to_install(tmp_path):
    made = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(tmp_path / "out.html")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 1
    assert made.stdout == ""
    assert len(made.stderr.splitlines()) == 1
    assert made.stderr.startswith("demo-cluster: ")
    assert "make system" in made.stderr or "root" in made.stderr


def test_the_pipeline_s_order_is_the_one_that_is_planned():
    pipe = part("train_pipe")
    planned = named("1f1b", stages=pipe.STAGES, microbatches=pipe.MICROBATCHES)
    for stage in range(pipe.STAGES):
        planned_here = [(each.kind, each.microbatch) for each in planned.dag.operations if each.rank == stage]
        assert pipe.order_of(stage) == planned_here


@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_profile_becomes_a_plan_whose_promise_the_pipeline_keeps(tmp_path, monkeypatch):
    floors, pipe, profile = part("floors"), part("train_pipe"), part("profile_pipe")
    monkeypatch.chdir(tmp_path)
    steps, speed = 4, 3.0
    with spawn(f"sim:{floors.GPU}*{pipe.STAGES}", speed=speed) as node:
        for name, value in node.environment({}).items():
            monkeypatch.setenv(name, value)
        link = pipe.Link(str(node.directory))
        rows = ["stage,instruction,frequency,time,energy"]
        for kind in pipe.LOADS:
            for stage in range(pipe.STAGES):
                done = link.work([pipe.load_of(stage, kind)] * 3, stage)
                took_s, drawn_j = (done.finished_s - done.started_s) / 3, done.energy_j / 3
                rows += [f"{stage},{kind},{clock},{took_s * 1410 / clock},{drawn_j}" for clock in (1410, 1200)]
        (tmp_path / "profile.csv").write_text("\n".join(rows) + "\n")
        shape = ["--stages", str(pipe.STAGES), "--microbatches", str(pipe.MICROBATCHES)]
        words = ["--schedule", "1f1b", *shape, "--blocking-w", "70", "--gpu-name", floors.GPU]
        environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path)}
        floors.called(
            floors.joulewise("plan", "solve", "profile.csv", *words, "--out", "plan.json"),
            environ,
            tmp_path,
            log="plan.txt",
        )
        points = read(str(tmp_path / "plan.json"))["gpus"]["8"]
        promised_s = min(point["time_s"] for point in points)
        stages, at_s, took = pipe.pipeline(str(node.directory)), 0.0, []
        for _ in range(steps):
            ended_s = pipe.iterate(stages, at_s)
            took.append(ended_s - at_s)
            at_s = ended_s
        for stage in stages:
            stage.go.put(None)
            stage.join()
    assert profile.CLOCKS[0] == 1410
    # The first iteration begins whenever it begins; the others follow at once.
    assert took[1:] == pytest.approx([promised_s] * (steps - 1), rel=0.02)


def test_a_pipeline_that_was_stopped_ends_with_the_same_weights():
    pipe = part("train_pipe")
    whole, stopped = pipe.State(0), pipe.State(0)
    for _ in range(10):
        whole.update()
    for _ in range(4):
        stopped.update()
    again = pipe.State(0)
    again.load_state_dict(stopped.state_dict())
    for _ in range(6):
        again.update()
    assert again.weights.tobytes() == whole.weights.tobytes()


def test_steps_of_a_series_are_those_of_runs_that_got_there():
    floors, series = part("floors"), part("train_series")
    trials = [
        {"batch_size": 128, "outcome": "reached", "epochs": 5},
        {"batch_size": 128, "outcome": "stopped_early", "epochs": 1},
        {"batch_size": 64, "outcome": "reached", "epochs": 9},
        {"batch_size": 128, "outcome": "reached", "epochs": 6},
    ]
    assert floors.mean_epochs(trials, 128) == 5.5
    with pytest.raises(floors.Failed, match="batch size 256"):
        floors.mean_epochs(trials, 256)
    assert series.steps_an_epoch(64) == 2 * series.steps_an_epoch(128)


def test_a_run_of_the_series_trains_and_tells_its_metric(tmp_path):
    series = part("train_series")
    batch = 256
    with spawn("sim:a100-sxm", speed=400.0) as node:
        made = subprocess.run(
            [
                sys.executable,
                str(DEMO / "train_series.py"),
                "--batch-size",
                str(batch),
                "--lr",
                "0.002",
                "--epochs",
                "2",
            ],
            env=node.environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        worked_s = series.step_s(batch) * series.steps_an_epoch(batch)
    assert made.returncode == 0, made.stderr
    losses = [float(line.partition("val_loss=")[2]) for line in made.stdout.splitlines()]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    assert worked_s > 60  # virtual: an epoch is long enough to be tuned in


def test_what_failed_says_the_last_words_of_who_failed(tmp_path):
    floors = part("floors")
    with pytest.raises(floors.Failed, match="exit code 3: not today"):
        floors.called(
            [sys.executable, "-c", "import sys; print('not today', file=sys.stderr); sys.exit(3)"],
            os.environ,
            tmp_path,
            log="words.txt",
        )
    assert json.dumps((tmp_path / "words.txt").read_text()) == '"not today\\n"'
