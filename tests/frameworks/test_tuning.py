"""Tuning from inside a script: where it tunes, where it leaves that to others, and where it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import joulewise
from joulewise import native
from joulewise.core.block import Rung
from joulewise.core.errors import GpuLost, LeaseLost, NotKept
from joulewise.core.event import Began, Decided, Event
from joulewise.core.marks import ENVIRONMENT
from joulewise.core.objective import MinEnergy
from joulewise.device import discover, node
from joulewise.device.lease import Lease
from joulewise.frameworks import hooks, huggingface, lightning
from joulewise.frameworks.torch import Job, _Found, _reason, _Record, _Tuner, tuning
from joulewise.report.claim import Claim
from joulewise.report.meter import Meter
from joulewise.report.story import Story
from joulewise.report.summaries import Summaries
from joulewise.store import Database, SqliteStore, open_store, views
from joulewise.store.journal import MemoryJournal
from joulewise.store.memory import Memory
from joulewise.store.recurring import workload
from joulewise.tune.status import Advice, Summary
from tests.cli import made_up
from tests.cli.test_locked_store import HANGS, Locked


def test_under_a_command_that_watches_the_job_it_is_left_to_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "/nowhere")
    with tuning() as job:
        job.step()
        assert job.status is None
    assert job.says == "the command that runs this job watches it"
    assert job.summary is None


@pytest.mark.parametrize("trainer", [huggingface, lightning])
def test_a_trainers_callback_has_the_job_that_it_tunes(trainer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    told = trainer.Told(max_slowdown=0.02)
    assert told.job is None
    state = SimpleNamespace(epoch=0.0, global_step=0, current_epoch=0)
    if trainer is huggingface:
        told.on_train_begin(None, state, None)
        told.on_train_end(None, state, None)
    else:
        told.on_train_start(state, None)
        told.on_train_end(state, None)
    assert told.job.says == "local rank 0 tunes for local rank 3"


def test_of_several_ranks_the_first_tunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    with tuning() as job:
        job.step()
    assert job.says == "local rank 0 tunes for local rank 3"


def test_without_a_gpu_training_goes_on_and_it_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with tuning(gpu="nvml:GPU-00000000-none") as job:
        for _ in range(3):
            job.step()
    assert job.says.startswith("not tuned: ")
    assert job.summary is None
    assert "not tuned" in caplog.text


def test_a_bound_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="max_slowdown"), tuning(max_slowdown=-0.1):
        pass


def test_a_driver_that_hangs_while_gpus_are_taken_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulewise.frameworks.torch._END_S", 0.2)
    asked, answers, released, in_time = threading.Event(), threading.Event(), threading.Event(), []

    class Held:
        def release(self) -> None:
            released.set()

    def hold(gpus: object, *, reason: str) -> Held:
        asked.set()
        in_time.append(answers.wait(30))
        return Held()

    monkeypatch.setattr("joulewise.device.hold.hold", hold)
    with tuning(gpu="sim:h200", journal=MemoryJournal()) as job:
        while not asked.wait(0.02):  # until its pace is known
            job.step()
    answers.set()
    assert released.wait(60)
    assert in_time == [True]


def test_training_begins_although_the_store_hangs_and_its_end_waits_no_longer_than_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    store = SqliteStore(Database())
    with store.database.writing():
        pass
    store.close()
    with Locked(HANGS, str(tmp_path / "joulewise.db")) as lock:
        with tuning(gpu="sim:h200") as job:
            began = job.says
            job.step()
        assert lock.holds()
    assert began == "waiting for the store"
    assert job.says == "not tuned: the store had not answered when training ended"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "saved in" in warning
    with tuning(gpu="sim:h200") as job:
        job.step()
    assert sorted(run.facts["tuned"] for run in views.runs(store.tables) if "tuned" in run.facts) == [False]
    assert len(views.runs(store.tables)) == 2
    store.close()


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_what_fails_in_measuring_is_a_warning_and_training_goes_on(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise GpuLost("it fell off the bus")

    monkeypatch.setattr(Meter, fails, failing)
    trained = False
    with tuning(gpu="sim:h200", journal=MemoryJournal()) as job:
        job.step()
        trained = True
    assert trained
    assert "it fell off the bus" in caplog.text
    assert (job.says == "not tuned: it fell off the bus") == (fails == "begin")
    assert hooks.marker() is None
    with pytest.raises(ZeroDivisionError), tuning(gpu="sim:h200", journal=MemoryJournal()) as job:
        job.step(1 / 0)


@pytest.mark.parametrize(("code", "outcome"), [(None, "reached"), (0, "reached"), (3, "failed"), ("no data", "failed")])
def test_a_script_that_exits_has_failed_only_where_its_exit_code_says_so(
    code: int | str | None, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    with pytest.raises(SystemExit), tuning(gpu="sim:h200"):
        sys.exit(code)
    store = open_store()
    (run,) = views.runs(store.tables)
    store.close()
    assert run.measured is not None
    assert run.measured["outcome"] == outcome


def test_what_fails_in_training_fails_as_ever_and_the_tuner_ends() -> None:
    with pytest.raises(ZeroDivisionError), tuning(gpu="sim:h200", journal=MemoryJournal()) as job:
        job.step(1 / 0)
    assert job.summary is not None
    assert job.summary.why == "stopped"
    assert hooks.marker() is None
    joulewise.step()


@pytest.mark.parametrize(
    ("program", "said"),
    [("/home/me/secret-client/train.py", "train.py"), ("", "a Python session"), ("a\nb.py", "a?b.py")],
)
def test_whoever_may_read_the_lease_learns_the_scripts_name_and_no_more(program: str, said: str) -> None:
    assert _reason(program) == f"joulewise in {said}"


def test_a_lease_says_nothing_of_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def hold(gpus: object, *, reason: str) -> Lease:
        told.append(reason)
        raise LeaseLost("as far as it needs to go")

    monkeypatch.setattr("joulewise.device.hold.hold", hold)
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key=SECRET"])
    with Meter(found := discover.find("sim:h200")) as meter:
        record = _Record(meter, "run", 1, "", {})
        tuner = _Tuner(_Found.of(found), MinEnergy(), False, record, Job(""))
        with pytest.raises(LeaseLost):
            tuner._acquire()
    assert told == ["joulewise in train.py"]


@pytest.mark.usefixtures("may_set")
def test_what_a_virtual_gpu_saves_is_told_from_what_was_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "SECRET"])
    with tuning(gpu="sim:h200") as job:  # in this very process
        job.step()
    done = scripted("""
        from joulewise.device.work import work
        from joulewise.frameworks.torch import tuning

        with tuning() as job:  # behind NVML, by whoever started the script
            for _ in range(400):  # long enough to know its pace, however busy the machine
                work("gnn")
                job.step()
        print(job.says)
    """)
    assert "the loop ended" in done
    store = open_store()
    runs, total = Summaries(store).page(0, 5)
    assert total == 2
    assert [(run.virtual, run.gpus) for run in runs] == [(True, ("NVIDIA H200",))] * 2
    told = [event for run in runs for _, event in store.journal(run.name).read() if isinstance(event, Began)]
    assert [event.facts["simulated"] for event in told] == [False, True]
    assert ["train.py", "--api-key", "***"] in [event.facts["command"] for event in told]
    assert Summaries(store).totals(virtual=False).runs == 0


LOOP = """
    from joulewise.device.work import work
    from joulewise.frameworks.torch import tuning

    with tuning(max_slowdown=0.05, seed=1) as job:
        for _ in range(450):  # minutes of the virtual GPU: long enough to set something
            work("transformer")
            job.step()
    print(job.says)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("may_set")
def test_a_run_is_kept_as_the_command_keeps_one_and_the_next_starts_from_what_it_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "runs.db"
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JOULEWISE_DATABASE", str(database))
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-c", textwrap.dedent(LOOP)]
    with node.spawn("sim:h200", speed=20.0) as running:
        for environ in (running.environment(), running.environment()):
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
            assert (done.returncode, done.stderr) == (0, "")
    store = open_store(database)
    second, first = views.runs(store.tables)
    for run in (first, second):
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run.name)
        assert run.facts["wanted"] == "least energy, at most 5.0 % slower"
        assert run.facts["fingerprint"] == workload(command, run.facts["gpu_names"]).fingerprint()  # as of ``run``
        assert run.finished is not None
        assert run.measured is not None
        assert run.measured["outcome"] == "reached"
        assert run.measured["energy_j"] > 50.0 * run.measured["duration_s"]
        (gpu,) = store.readings().gpus(run.name)
        assert len(store.readings().read(run.name, gpu).time_s) == pytest.approx(run.measured["duration_s"], rel=0.2)
    (learnt,) = Memory(Database(tmp_path / "home" / "joulewise.db")).all()
    assert (learnt.fingerprint, learnt.runs) == (first.facts["fingerprint"], 2)
    assert "what this job was best at before" in " ".join(
        event.decision.reason for _, event in store.journal(second.name).read() if isinstance(event, Decided)
    )


def test_a_store_that_cannot_be_used_costs_the_keeping_and_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JOULEWISE_DATABASE", str(tmp_path))  # a directory
    with tuning(gpu="sim:h200") as job:
        job.step()
    assert job.summary is not None
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("this run is not kept in the store yet: ")


def test_how_it_ended_is_said_as_the_command_says_it() -> None:
    journal, events = MemoryJournal(), made_up.run()
    for event in events:
        journal.append(event)
    job = Job("")
    job._journal = journal
    job.summary = Summary("stopped", Rung.STEPS, "steps of 250 ms, told by hooks")
    assert job.says == Claim.of(Story.of(events)).says()
    assert job.says.startswith("saved 7.")


def test_what_a_dry_run_would_set_is_said_as_the_command_says_it() -> None:
    job = Job("")
    job._journal = MemoryJournal()
    advice = Advice(made_up.HELD, "", 0.01, 0.005, -0.08, 0.01)
    job.summary = Summary("stopped", Rung.STEPS, "x", advice=(advice,))
    assert job.says.startswith("would set SM clock at most 1500 MHz: −8.0 % ± 2.0 % energy, +1.0 % ± 1.0 % time")


def test_a_journal_that_cannot_be_read_is_said_and_raises_nothing() -> None:
    class Damaged(MemoryJournal):
        def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
            raise NotKept("the database is damaged")

    job = Job("")
    job._journal = Damaged()
    job.summary = Summary("stopped", Rung.STEPS, "x")
    assert job.says == "what was tuned cannot be told: the database is damaged"


def scripted(code: str) -> str:
    """What a script prints that runs on a virtual GPU which lives twenty times as fast."""
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with node.spawn("sim:h200", speed=20.0) as running:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=running.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_on_a_virtual_gpu_is_told_what_it_could_save() -> None:
    printed = scripted("""
        from joulewise.device.work import work
        from joulewise.frameworks.torch import tuning
        from joulewise.store.journal import MemoryJournal

        with tuning(max_slowdown=0.05, dry_run=True, journal=MemoryJournal()) as job:
            for _ in range(2000):  # a minute of the virtual GPU
                work("gnn")
                job.step()
        print(job.says)
        print(job.summary.ruler)
    """)
    advice, ruler = printed.splitlines()
    assert "energy" in advice
    assert "expected" in advice
    assert ruler.endswith("told by hooks")
