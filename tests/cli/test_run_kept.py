"""``joulewise run`` and what is left of it in the store, as a user has it: processes, a file, ``joulewise history``."""

import json
import os
import signal
import time

import pytest

from joulewise.report.summaries import State, Summaries
from joulewise.store import Database, SqliteStore, open_store, views
from tests import preloaded


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def run(environ, recording, home):
    def run(*flags, command, **more):
        env = {**environ, "JOULEWISE_HOME": str(home), "COLUMNS": "160", **more}
        return preloaded.run("run", "--gpu", f"replay:{recording}", *flags, "--", *command, env=env)

    return run


@pytest.fixture
def store(home):
    store = SqliteStore(Database(home / "joulewise.db"))
    yield store
    store.close()


def history(environ, home, *args):
    env = {**environ, "JOULEWISE_HOME": str(home), "COLUMNS": "160"}
    ran = preloaded.run("history", *args, env=env)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_an_untuned_run_is_kept_and_told(run, store, environ, home, tmp_path):
    result = tmp_path / "out.json"
    ran = run("--json", str(result), command=["sh", "-c", "sleep 2.2; exit 3"])
    assert ran.returncode == 3
    said = json.loads(result.read_text())
    (told,), _ = Summaries(store).page()
    assert (told.state, told.tuned, told.virtual, told.exit_code) == (State.FINISHED, False, True, 3)
    assert (told.energy_j, told.energy_error_j, told.duration_s) == (
        said["energy_j"],
        said["error_j"],
        said["duration_s"],
    )
    assert told.ended_s - told.began_s == pytest.approx(told.duration_s, abs=1.0)
    (uuid,) = store.readings().gpus(told.name)
    curve = store.readings().read(told.name, uuid)
    assert 2 <= len(curve.time_s) <= told.duration_s + 3  # one a second, where a busy machine makes it longer, too
    assert told.began_s - 2 <= curve.time_s[0] <= curve.time_s[-1] <= told.ended_s + 2
    row = history(environ, home).splitlines()[1]
    assert row.startswith(told.name)
    assert " J " in row
    assert "sh -c 'sleep 2.2; exit 3'" in row
    assert history(environ, home, told.name).splitlines()[0] == f"{told.name}: {told.headline}"
    assert "ended with exit code 3" in told.headline
    (listed,) = json.loads(history(environ, home, "--json"))
    assert listed["measured"]["energy_j"] == said["energy_j"]


def test_there_is_nothing_to_verify_in_a_run_that_was_not_tuned(run, store, environ, home):
    run(command=["true"])
    (told,), _ = Summaries(store).page()
    env = {**environ, "JOULEWISE_HOME": str(home)}
    ran = preloaded.run("verify", told.name, env=env)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "was not tuned" in ran.stderr


def test_no_keep_leaves_the_store_alone(run, home):
    assert run("--no-keep", command=["true"]).returncode == 0
    assert not home.exists()


def test_a_store_that_cannot_be_written_is_one_line_and_the_command_goes_on(run, home):
    home.mkdir()
    (home / "joulewise.db").write_bytes(b"damaged" * 100)
    ran = run(command=["sh", "-c", "echo out; exit 5"])
    assert (ran.returncode, ran.stdout) == (5, "out\n")
    assert ran.stderr.count("this run is not kept") == 1
    assert "Traceback" not in ran.stderr
    assert (home / "joulewise.db").read_bytes() == b"damaged" * 100
    assert "not kept" in run(command=["true"], JOULEWISE_DATABASE="mysql://x").stderr


def test_runs_go_where_the_database_is_named(run, home, tmp_path):
    assert run(command=["true"], JOULEWISE_DATABASE=f"sqlite:///{tmp_path}/other.db").returncode == 0
    store = open_store(tmp_path / "other.db")
    assert len(views.runs(store.tables)) == 1
    store.close()
    assert not (home / "joulewise.db").exists()


@pytest.mark.xdist_group("postgresql")
def test_runs_are_kept_in_postgresql(run, database_url):
    ran = run(command=["sleep", "1.5"], JOULEWISE_DATABASE=database_url)
    assert (ran.returncode, "not kept" in ran.stderr) == (0, False), ran.stderr
    store = open_store(database_url)
    (told,), _ = Summaries(store).page()
    assert told.energy_j > 0
    assert len(store.readings().gpus(told.name)) == 1
    store.close()


def test_a_run_that_is_killed_is_there_and_said_to_be_killed(environ, recording, home, store):
    words = ["run", "--gpu", f"replay:{recording}", "--", "sleep", "60"]
    env = {**environ, "JOULEWISE_HOME": str(home)}
    with preloaded.Command(*words, env=env, start_new_session=True) as ran:
        deadline = time.monotonic() + 120.0
        while not (home / "joulewise.db").exists() or not views.runs(store.tables):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (told,), _ = Summaries(store).page()
        assert (told.state, told.energy_j) == (State.RUNNING, None)
        os.killpg(ran.pid, signal.SIGKILL)
    later = Summaries(store, now=lambda: time.time() + 1000)
    (told,), _ = later.page()
    assert told.state is State.KILLED
