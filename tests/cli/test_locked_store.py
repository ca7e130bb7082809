"""A store that does not answer, locked by another process or on a disk that hangs: a run's end does not wait for it."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from joulewise.cli import tuning
from joulewise.cli.gpus import OpenGpus
from joulewise.cli.objectives import Wanted
from joulewise.core.measurement import Outcome
from joulewise.device.job_lease import JobLease
from joulewise.report.keeping import END_WAIT_S, SAVE_WAIT_S
from joulewise.report.summaries import State, Summaries
from joulewise.store import Database, SqliteStore, open_store, views
from joulewise.tune.desk import Desk
from tests import preloaded

PYTHON = sys.executable
CRITERION = f"exit code passed on, ≤ {END_WAIT_S:g} s + {SAVE_WAIT_S:g} s waited, one line, nothing lost"
# Locks a store until its standard input ends, and says so: another program, at work in the middle of a transaction.
LOCKS_SQLITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""
LOCKS_POSTGRESQL = """
import psycopg, sys
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("LOCK TABLE joulewise.events, joulewise.readings IN ACCESS EXCLUSIVE MODE")
    print("locked", flush=True)
    sys.stdin.read()
"""
# Whoever opens a file with a lease on it waits in the kernel, 45 s unless the administrator says otherwise: a disk that
# hangs, as far as the opener can tell.
HANGS = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("locked", flush=True)
sys.stdin.read()
"""


class Locked:
    """Another process that locks a store, until the block ends."""

    def __init__(self, script, *arguments):
        self._process = subprocess.Popen(
            [PYTHON, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        assert self._process.stdout.readline() == "locked\n"
        return self

    def holds(self):
        return self._process.poll() is None

    def __exit__(self, *_):
        self._process.stdin.close()
        assert self._process.wait(120) == 0
        self._process.stdout.close()


@pytest.fixture
def home(tmp_path):
    """A user's folder with a store in it."""
    store = SqliteStore(Database(tmp_path / "home" / "joulewise.db"))
    with store.database.writing():
        pass
    store.close()
    return tmp_path / "home"


@pytest.fixture
def joulewise(environ, recording, home):
    def joulewise(verb, *arguments, command, database=""):
        env = {**environ, "JOULEWISE_HOME": str(home), "JOULEWISE_DATABASE": database, "COLUMNS": "400"}
        return preloaded.run(*verb.split(), "--gpu", f"replay:{recording}", *arguments, "--", *command, env=env)

    return joulewise


def ends_at(path):
    """A command that writes down when it ends, and fails."""
    return [PYTHON, "-c", f"import pathlib, time; pathlib.Path({str(path)!r}).write_text(str(time.time())); exit(3)"]


def line_about(ran):
    (line,) = [line for line in ran.stderr.splitlines() if "not kept" in line]
    return line


def files(home):
    return sorted(path.name for path in (home / "unsent").iterdir())


def test_a_locked_file_does_not_hold_up_the_end_and_the_next_run_takes_everything_in(
    joulewise, home, tmp_path, scenario
):
    shown = scenario("R37", "run; SQLite locked by another process", criterion=CRITERION)
    with Locked(LOCKS_SQLITE, str(home / "joulewise.db")) as lock:
        ran = joulewise("run", command=ends_at(tmp_path / "end"))
        after_s = time.time() - float((tmp_path / "end").read_text())
        assert lock.holds()
    assert ran.returncode == 3
    (saved,) = files(home)
    assert line_about(ran).endswith(f"saved in {home}/unsent/{saved}, and the next run takes it in")
    assert (home / "unsent" / saved).stat().st_mode & 0o777 == 0o600

    assert "not kept" not in joulewise("run", command=["true"]).stderr
    store = SqliteStore(Database(home / "joulewise.db"))
    told = {run.exit_code: run for run in Summaries(store).page()[0]}
    assert told.keys() == {0, 3}
    assert (told[3].state, told[3].energy_j is not None) == (State.FINISHED, True)
    assert saved.startswith(told[3].name)
    assert len(store.readings().read(told[3].name, store.readings().gpus(told[3].name)[0]).time_s) >= 1
    store.close()
    assert files(home) == []
    shown.saw(f"exit code 3 after {after_s:.1f} s, lock still held; the next run took it in")


def test_a_store_on_a_disk_that_hangs_does_not_hold_up_the_end(joulewise, home, tmp_path, scenario):
    shown = scenario("R37", "run; opening the store's file hangs", criterion=CRITERION)
    breaks_s = int(Path("/proc/sys/fs/lease-break-time").read_text())
    assert breaks_s > 20, "the kernel ends leases too early here for this test to show anything"
    with Locked(HANGS, str(home / "joulewise.db")):
        ran = joulewise("run", command=ends_at(tmp_path / "end"))
        after_s = time.time() - float((tmp_path / "end").read_text())
        # The kernel lets nobody in before that, so whoever has ended has not waited for the file.
        assert after_s < breaks_s / 2
    assert ran.returncode == 3
    assert f"has not answered for {END_WAIT_S:g} s; saved in {home}/unsent/" in line_about(ran)
    assert len(files(home)) == 1
    shown.saw(f"exit code 3 after {after_s:.1f} s, the file hangs for {breaks_s} s")


@pytest.mark.xdist_group("postgresql")
def test_a_locked_table_does_not_hold_up_the_end(joulewise, home, postgresql, database_url, tmp_path, scenario):
    shown = scenario("R37", "run; PostgreSQL tables locked", criterion=CRITERION)
    store = open_store(database_url)
    store.streams()
    with Locked(LOCKS_POSTGRESQL, database_url) as lock:
        ran = joulewise("run", command=ends_at(tmp_path / "end"), database=database_url)
        after_s = time.time() - float((tmp_path / "end").read_text())
        assert lock.holds()
    assert ran.returncode == 3
    assert "has not answered" in line_about(ran)
    (saved,) = files(home)
    held = (home / "unsent" / saved).read_text()
    assert "s3cret" not in held
    assert "not kept" not in joulewise("run", command=["true"], database=database_url).stderr
    assert sorted(run.measured["exit_code"] for run in views.runs(store.tables)) == [0, 3]
    assert files(home) == []
    store.close()
    shown.saw(f"exit code 3 after {after_s:.1f} s, lock still held; the next run took it in")


TRIAL = ["--metric-pattern", r"epoch (?P<epoch>\d+) val_acc=(?P<val_acc>\S+)", "--no-tune"]


def recurring(joulewise, script):
    return joulewise(
        "recur run",
        *(
            "--job",
            "nightly",
            "--batch-sizes",
            "8,16",
            "--default",
            "8",
            "--target",
            "val_acc>=0.5",
            "--max-epochs",
            "3",
            *TRIAL,
        ),
        command=["sh", "-c", f"{script}; echo epoch 1 val_acc=0.6 for {{batch_size}}"],
    )


def test_a_recurring_job_s_result_is_not_lost_where_the_store_is_locked_as_it_ends(joulewise, home, tmp_path, scenario):
    shown = scenario("R37", "recur run; SQLite locked while it trains", criterion=CRITERION)
    go, lock = tmp_path / "lock", f"{PYTHON} -c '{LOCKS_SQLITE}' {home}/joulewise.db"
    os.mkfifo(go)
    # The training itself starts what locks the store: after the trial was handed out, before it is handed in.
    locking = f"({lock} <{go} >{tmp_path}/out 2>/dev/null &) ; until grep -q locked {tmp_path}/out; do sleep 0.05; done"
    with os.fdopen(os.open(go, os.O_RDWR), "w"):  # as long as this is open, its input does not end
        ran = recurring(joulewise, locking)
        database = sqlite3.connect(home / "joulewise.db", timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            database.execute("BEGIN IMMEDIATE")
        database.close()
    assert ran.returncode == 0, ran.stderr
    assert len([line for line in ran.stderr.splitlines() if "saved in" in line]) == 2, ran.stderr  # the run, the result
    assert len(files(home)) == 2

    deadline = time.monotonic() + 120.0
    while True:  # what locks the store ends by itself, now that its input has
        with sqlite3.connect(home / "joulewise.db", timeout=0) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError:
                assert time.monotonic() < deadline
    database.close()
    assert recurring(joulewise, "true").returncode == 0
    store = SqliteStore(Database(home / "joulewise.db"))
    history = Desk.of(store, "nightly").history()
    store.close()
    assert [record.told.outcome for record in history] == [Outcome.REACHED, Outcome.REACHED]
    assert files(home) == []
    shown.saw("exit code 0, lock still held; the next run handed the result in before it asked")


def test_a_recurring_job_does_not_begin_where_no_trial_can_be_had_and_says_so_in_one_line(joulewise, home, scenario):
    shown = scenario("R37", "recur run; SQLite locked at its beginning", criterion="one line, nothing started")
    with Locked(LOCKS_SQLITE, str(home / "joulewise.db")):
        ran = recurring(joulewise, f"touch {home}/began")
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "locked" in ran.stderr
    assert not (home / "began").exists()
    shown.saw(ran.stderr.split("; ")[-1].strip())


def test_what_was_set_is_given_back_while_the_tuner_still_waits_for_its_store(idle_gpu, monkeypatch, scenario):
    shown = scenario("R37", "run --tune; the tuner's end waits for the store", criterion="GPU given back before")
    monkeypatch.setattr(tuning, "_PATIENCE_S", 0.2)
    answers, given_back = threading.Event(), []

    class Lease:
        def release(self):
            given_back.append(made._thread.is_alive())
            return SimpleNamespace(restored=())

    def waits():
        made._measured.set()
        answers.wait(30)

    made = tuning.Tuning(OpenGpus([idle_gpu], {}, "a test's"), Wanted(), ["true"])
    made._lease = JobLease(Lease)
    made._lease.take()
    made._thread = threading.Thread(target=waits)
    made._thread.start()
    made.finish()
    assert given_back == [True]
    answers.set()
    made._thread.join()
    shown.saw("given back while the store had not answered")
