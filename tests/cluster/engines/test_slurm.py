"""Slurm behind the engine protocol, against a real Slurm of four nodes on this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from joulewise.cluster.engine import JobSeen, Order
from joulewise.cluster.engines import slurm_order
from joulewise.cluster.engines.slurm import SlurmEngine
from joulewise.cluster.engines.slurm_commands import SlurmCommands
from joulewise.core.errors import BadSpec, EngineLost, MissingPart
from joulewise.testing import EngineConformance
from joulewise.testing.slurm_site import SlurmSite, slurm_site

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm")]

LONGEST_S = 90.0
SOURCES = str(Path(__file__).parents[3] / "src")
NUMBERS = count(1)

# An elastic script as a user would write it without us: it saves when asked, says so, and waits to be ended.
TRAINING = """
import json, os, pathlib, signal, sys, time
folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(exist_ok=True)
sys.path.insert(0, sys.argv[3])
from joulewise.cluster.progress import Progress, write
saved = folder / "saved.json"
state = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "sum": 0, "starts": 0}
state["starts"] += 1
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
def save(paused):
    beside = folder / "saved.tmp"
    beside.write_text(json.dumps(state))
    beside.rename(saved)
    write(folder, Progress(state["step"], steps, state["step"], time.time(), paused=paused))
while state["step"] < steps:
    save(paused=bool(asked))
    while asked:
        time.sleep(0.01)
    time.sleep(0.02)
    state["sum"] += state["step"]
    state["step"] += 1
with open("result", "a") as result:
    result.write(f"{state['sum']} {state['starts']}\\n")
save(paused=False)
"""


class Stage:
    """A real Slurm, and jobs that sleep. Elastic ones have a folder, but do not listen: they are requeued after the
    engine's grace."""

    longest_s = LONGEST_S

    def __init__(self, site: SlurmSite, folder: Path) -> None:
        self.site = site
        self.folder = folder
        self.engine = self.made(grace_s=0.2)
        self.engine.take(self.next_epoch())

    def made(self, grace_s: float = 20.0) -> SlurmEngine:
        return SlurmEngine(commands=self.site.commands, grace_s=grace_s, poll_s=0.3)

    def other(self) -> SlurmEngine:
        return self.made(grace_s=0.2)

    def next_epoch(self) -> int:
        return next(NUMBERS)

    def order(self, name: str, *, gpus: int, elastic: bool = True, ends: int | None = None) -> Order:
        command = ("sleep", "300") if ends is None else ("sh", "-c", f"exit {ends}")
        checkpoint = "checkpoint" if elastic else None
        return Order(f"{name}-{next(NUMBERS)}", command, gpus, checkpoint=checkpoint, directory=str(self.folder))

    def training(self, steps: int, gpus: int = 2) -> Order:
        """One that saves; its result is ``RESULT`` of the folder."""
        home = self.folder / f"training-{next(NUMBERS)}"
        home.mkdir()
        (home / "train.py").write_text(TRAINING)
        words = (sys.executable, "train.py", "checkpoint", str(steps), SOURCES)
        return Order(home.name, words, gpus, checkpoint="checkpoint", directory=str(home), work=steps)

    def job(self, name: str, engine: SlurmEngine | None = None) -> JobSeen:
        return next(job for job in (engine or self.engine).jobs() if job.name == name)

    def until(self, so: Callable[[], object], engine: SlurmEngine | None = None) -> float:
        """Let time pass until it is so; how long that took."""
        begun_s = time.monotonic()
        while not so():
            assert time.monotonic() - begun_s < LONGEST_S, (
                f"not so after {LONGEST_S} s: {(engine or self.engine).jobs()}"
            )
            (engine or self.engine).wait(0.5)
        return time.monotonic() - begun_s

    def until_state(self, name: str, state: str, engine: SlurmEngine | None = None) -> JobSeen:
        self.until(lambda: self.job(name, engine).state == state, engine)
        return self.job(name, engine)


@pytest.fixture(scope="module")
def site() -> Iterator[SlurmSite]:
    if os.geteuid() != 0:
        pytest.skip("only root starts a Slurm whose jobs run as their users")
    # A short path, for sockets.
    with tempfile.TemporaryDirectory(prefix="jw-slurm-", dir="/tmp") as folder, ExitStack() as ending:
        try:
            running = ending.enter_context(slurm_site(Path(folder), gpu=None))
        except MissingPart as missing:
            pytest.skip(str(missing))
        yield running


@pytest.fixture
def stage(site: SlurmSite) -> Iterator[Stage]:
    folder = site.folder / f"home-{next(NUMBERS)}"
    folder.mkdir()
    yield (made := Stage(site, folder))
    for job in made.engine.jobs():  # of a test that failed
        if job.state not in ("ended", "failed", "cancelled"):
            site.commands.run("scancel", job.id)


class TestSlurmEngine(EngineConformance):
    @pytest.fixture
    def stage(self, stage: Stage) -> Stage:
        return stage


def result(order: Order) -> list[str]:
    path = Path(order.directory) / "result"
    return path.read_text().split() if path.exists() else []


def steps_saved(order: Order) -> int:
    path = Path(order.directory) / "checkpoint" / "saved.json"
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def test_a_resized_job_goes_on_from_its_checkpoint_and_ends_once_with_the_right_result(stage: Stage) -> None:
    engine = stage.made()
    engine.take(stage.next_epoch())
    order = stage.training(steps=200)
    identity = engine.submit(order)
    engine.start(order.name, {"n1": 2})
    stage.until(lambda: steps_saved(order) > 5, engine)
    engine.resize(order.name, {"n2": 4, "n3": 4})
    stage.until(lambda: stage.job(order.name, engine).place == {"n2": 4, "n3": 4}, engine)
    assert stage.job(order.name, engine).id == identity
    engine.stop(order.name, "two tasks share one folder here, which this script is not made for")
    stage.until_state(order.name, "cancelled", engine)

    order = stage.training(steps=120)
    engine.submit(order)
    engine.start(order.name, {"n1": 2})
    stage.until(lambda: steps_saved(order) > 5, engine)
    engine.resize(order.name, {"n4": 8})
    stage.until(lambda: stage.job(order.name, engine).place == {"n4": 8}, engine)
    ended = stage.until_state(order.name, "ended", engine)
    assert (ended.exit_code, ended.starts) == (0, 2)
    assert result(order) == [str(sum(range(120))), "2"]


def test_a_job_that_is_moved_before_its_command_has_begun_goes_on_elsewhere_and_has_not_failed(stage: Stage) -> None:
    """A signal would end Slurm's TaskProlog, and the task with it, with exit code 1."""
    engine = stage.made()
    engine.take(stage.next_epoch())
    prolog, begun, go = (stage.site.folder / name for name in ("task-prolog", "begun", "go"))
    before = prolog.read_text()
    waits = f'if [ "$SLURM_STEP_ID" = 0 ]; then : >{begun}; while [ ! -e {go} ]; do sleep 0.05; done; fi\n'
    prolog.write_text(before.replace("#!/bin/sh\n", f"#!/bin/sh\n{waits}"))
    try:
        order = stage.training(steps=100)
        engine.submit(order)
        engine.start(order.name, {"n1": 2})
        stage.until(begun.exists, engine)
        stage.until_state(order.name, "running", engine)
        engine.resize(order.name, {"n2": 2})
        for _ in range(4):
            engine.wait(0.3)
            assert stage.job(order.name, engine).state == "leaving"
        go.touch()
        ended = stage.until_state(order.name, "ended", engine)
    finally:
        prolog.write_text(before)
    assert (ended.starts, result(order)) == (2, [str(sum(range(100))), "2"])


@pytest.mark.exhaustive
def test_a_job_whose_node_dies_is_held_for_the_scheduler_and_runs_again_elsewhere(stage: Stage) -> None:
    engine = stage.engine
    order = stage.training(steps=150)
    identity = engine.submit(order)
    engine.start(order.name, {"n2": 2})
    stage.until(lambda: steps_saved(order) > 5)
    stage.site.kill_node("n2")
    try:
        stage.until(lambda: stage.job(order.name).state == "waiting")
        assert next(node for node in engine.nodes() if node.name == "n2").state == "down"
        before = steps_saved(order)
        engine.start(order.name, {"n3": 2})
        ended = stage.until_state(order.name, "ended")
        assert (ended.id, ended.starts) == (identity, 2)
        assert result(order) == [str(sum(range(150))), "2"]
        assert before > 5
    finally:
        stage.site.revive_node("n2")


@pytest.mark.exhaustive
def test_a_controller_that_was_killed_loses_no_job(stage: Stage) -> None:
    engine = stage.engine
    runs, waits = stage.training(steps=400), stage.order("waits", gpus=1)
    engine.submit(runs)
    engine.submit(waits)
    engine.start(runs.name, {"n1": 2})
    stage.until(lambda: steps_saved(runs) > 5)
    stage.site.kill_controller()
    try:
        with pytest.raises(EngineLost, match=r"slurmctld does not answer.*start it"):
            engine.jobs()
    finally:
        stage.site.start_controller()

    # What slurmctld had not written down yet is forgotten: it is handed in again, waits, and is started once more.
    def over() -> bool:
        job = {each.name: each for each in engine.jobs()}.get(runs.name)
        up = [node.name for node in engine.nodes() if node.state == "up"]
        # A node whose job ended in the meantime is drained: nobody took its word that it had.
        if job is not None and job.state == "waiting" and up:
            engine.start(runs.name, {"n1" if "n1" in up else "n4": 2})
        return job is not None and job.state == "ended"

    stage.until(over)
    assert set(result(runs)[::2]) == {str(sum(range(400)))}
    assert stage.job(waits.name).state == "waiting"
    engine.stop(waits.name, "the test is over")
    if "n1" in {node.name for node in engine.nodes() if node.state != "up"}:
        stage.site.commands.run("scontrol", "update", "NodeName=n1", "State=resume")


@pytest.mark.exhaustive
def test_a_script_that_ignores_every_plea_is_leaving_and_then_gone(stage: Stage) -> None:
    order = stage.order("deaf", gpus=1)
    deaf = replace(order, command=("sh", "-c", "trap '' TERM USR1; while :; do sleep 1; done"))
    stage.engine.submit(deaf)
    stage.engine.start(deaf.name, {"n1": 1})
    stage.until_state(deaf.name, "running")
    stage.engine.preempt(deaf.name)  # it is asked, not waited for
    assert stage.job(deaf.name).state == "leaving"
    assert stage.job(deaf.name).place == {"n1": 1}
    stage.until_state(deaf.name, "waiting")


def test_what_users_do_past_the_scheduler_is_put_right(stage: Stage) -> None:
    run = stage.site.commands.run
    order = stage.order("freed", gpus=1)
    identity = stage.engine.submit(order)
    stage.engine.wait(0.3)
    assert "JobHeldAdmin" in run("scontrol", "show", "job", identity)  # its user could not release it
    double = run(
        "sbatch",
        "--parsable",
        "--hold",
        "--gres=gpu:1",
        f"--comment={_comment(run, identity)}",
        "--output=/dev/null",
        "--wrap",
        "sleep 100",
    ).strip()
    foreign = run(
        "sbatch", "--parsable", "--gres=gpu:3", "-w", "n4", "--output=/dev/null", "--wrap", "sleep 100"
    ).strip()
    stage.until(lambda: "CANCELLED" in run("scontrol", "show", "job", double))
    assert f"job {identity} has this name already" in run("scontrol", "show", "job", double)
    assert stage.job(order.name).id == identity
    stage.until(lambda: {node.name: node.foreign_gpus for node in stage.engine.nodes()}["n4"] == 3)
    with pytest.raises(BadSpec, match="a job of others"):
        stage.engine.power("n4", on=False)
    run("scancel", foreign)
    stage.engine.stop(order.name, "the test is over")


@pytest.mark.exhaustive
def test_a_user_who_comments_on_a_job_of_ours_keeps_that_one_through_a_resize(stage: Stage) -> None:
    order = stage.order("commented", gpus=1)
    identity = stage.engine.submit(order)
    stage.engine.start(order.name, {"n1": 1})
    stage.until_state(order.name, "running")
    stage.site.commands.run("scontrol", "update", f"JobId={identity}", "Comment=baseline for the paper")
    stage.engine.wait(0.5)
    stage.engine.resize(order.name, {"n2": 2})
    stage.until(lambda: stage.job(order.name).place == {"n2": 2})
    named = stage.site.commands.run("squeue", "--noheader", f"--name={order.name}", "--format=%i").split()
    assert (named, stage.job(order.name).id) == ([identity], identity)
    stage.engine.stop(order.name, "the test is over")


def test_two_users_jobs_of_one_name_both_live(stage: Stage) -> None:
    run = stage.site.commands.run
    order = stage.order("shared", gpus=1)
    identity = stage.engine.submit(order)
    words = ("--parsable", "--hold", "--gres=gpu:1", "--chdir=/", "--output=/dev/null", "--wrap=sleep 100")
    other = run("sbatch", "--uid=1", f"--comment={_comment(run, identity)}", *words).strip()
    stage.engine.wait(0.3)
    assert {stage.job(order.name).id, stage.job(f"{order.name}@{other}").id} == {identity, other}
    assert f"JobName={order.name}@{other}" in run("scontrol", "show", "job", other)
    stage.engine.stop(order.name, "the test is over")
    stage.until(lambda: stage.job(order.name).state == "cancelled")
    assert stage.made().jobs()[-1].name == f"{order.name}@{other}"  # another scheduler calls it so too
    stage.engine.stop(f"{order.name}@{other}", "the test is over")


@pytest.mark.parametrize(
    "comment",
    ["joulewise " + "[" * 1014, r'joulewise {"v":1,"digest":"d","folder":"/a\u0000b","order":{"name":"a","gpus":1}}'],
    ids=["deep", "no path"],
)
def test_a_strange_comment_stops_nobody(stage: Stage, comment: str) -> None:
    run = stage.site.commands.run
    strange = run("sbatch", "--parsable", "--hold", "--output=/dev/null", f"--comment={comment}", "--wrap=true").strip()
    stage.engine.wait(0.0)
    assert strange not in {job.id for job in stage.engine.jobs()}
    run("scancel", strange)


def test_a_job_that_is_handed_in_again_is_its_users_with_his_group_and_environment(stage: Stage) -> None:
    run = stage.site.commands.run
    stage.site.folder.chmod(0o755)
    order = Order(f"again-{next(NUMBERS)}", ("sh", "-c", "id -ru; id -rg; env"), 1, directory=str(stage.folder))
    of_user = {**stage.site.commands.environ, "OF_USER": "two words"}
    folder, comment = slurm_order.written(order, time.time(), of_user)
    for path in (stage.folder, folder.parent, folder, *folder.iterdir()):
        os.chown(path, 1, 1)
    words = ("--parsable", "--hold", "--uid=1", "--gid=1", "--gres=gpu:1", "--chdir=/", "--output=/dev/null")
    identity = run("sbatch", *words, f"--comment={comment}", "--wrap=true").strip()
    root = SlurmEngine(commands=SlurmCommands({**stage.site.commands.environ, "OF_ROOT": "secret"}), poll_s=0.3)
    root.take(stage.next_epoch())
    mine = root._view.look().mine[order.name]
    run("scancel", identity)
    root._hand_in_again(mine, [8])
    root.start(order.name, {"n1": 1})
    ended = stage.until_state(order.name, "ended", root)
    seen = (stage.folder / f"{order.name}-{ended.id}.out").read_text().splitlines()
    assert seen[:2] == ["1", "1"]
    assert [line for line in seen if line.startswith("OF_")] == ["OF_USER=two words"]


def test_sizes_that_slurm_cannot_give_are_refused_with_those_that_it_can(stage: Stage) -> None:
    with pytest.raises(BadSpec, match=r"12 GPUs.*nearest that fit: 8 or 16"):
        stage.engine.submit(stage.order("twelve", gpus=12))
    order = stage.order("uneven", gpus=16)
    stage.engine.submit(order)
    with pytest.raises(BadSpec, match="same number of GPUs"):
        stage.engine.start(order.name, {"n1": 8, "n2": 4})
    with pytest.raises(BadSpec, match="which has 8"):
        stage.engine.start(order.name, {"n1": 9})
    stage.engine.stop(order.name, "the test is over")


def test_without_munge_every_call_says_so(stage: Stage) -> None:
    stage.site.kill_munge()
    try:
        order = stage.order("m", gpus=1)
        for act in (stage.engine.jobs, lambda: stage.engine.wait(0.1), lambda: stage.engine.submit(order)):
            with pytest.raises(EngineLost, match=r"munge does not answer.*start it"):
                act()
    finally:
        stage.site.start_munge()
    assert stage.engine.ready() == (
        "no slurmdbd: 'sacct' shows no energies, and jobs that ended are forgotten after MinJobAge",
    )


def _comment(run: Callable[..., str], identity: str) -> str:
    said = json.loads(run("squeue", "--json"))["jobs"]
    return str(next(job["comment"] for job in said if str(job["job_id"]) == identity))
