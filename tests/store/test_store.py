import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Told, to_json
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.store import SqliteStore, default_path, open_store
from joulewise.store.store import masked

SOURCE = Path(__file__).parents[2] / "src"
RUNS = 10_000
MANY = """
INSERT INTO events (stream, id, kind, at, event)
WITH RECURSIVE number (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM number WHERE id < :runs)
SELECT 'series/x', id, 'Told', 0, replace(:line, :of, :to || (id - 1)) FROM number
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("JOULEWISE_DATABASE", raising=False)


def told(trial: int) -> Told:
    profile = tuple(EpochCost(60.0 + each, 18e3, error_s=0.5, error_j=90.0) for each in range(3))
    return Told(1.7e9 + trial, trial, Outcome.REACHED, 12, 720.5, 216e3, profile)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("{}/a.db", "{}/a.db"),
        ("sqlite:///{}/a.db", "{}/a.db"),
        ("sqlite:///a.db", "a.db"),
        ("a.db", "a.db"),
        (Path("a.db"), "a.db"),
    ],
)
def test_a_file_is_named_by_its_path_or_url(tmp_path, url, path):
    named = url if isinstance(url, Path) else url.format(tmp_path)
    assert open_store(named).name == path.format(tmp_path)


def test_without_a_name_it_is_what_the_environment_says_and_else_the_users_own_file(monkeypatch, tmp_path):
    assert open_store().name == str(default_path())
    monkeypatch.setenv("JOULEWISE_DATABASE", f"sqlite:///{tmp_path}/b.db")
    assert open_store().name == f"{tmp_path}/b.db"
    assert open_store(tmp_path / "c.db").name == f"{tmp_path}/c.db"
    monkeypatch.setenv("JOULEWISE_DATABASE", "")
    assert open_store().name == str(default_path())


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://ada:s3cret@host/db", "mysql://ada:***@host/db"),
        ("postgresql+psycopg2://ada:s3cret@host/db", "postgresql://USER"),
        ("host=localhost dbname=x password=s3cret", "by its URL"),
        ("sqlite://", "sqlite:///FILE"),
        ("sqlite:///", "sqlite:///FILE"),
        ("postgresql://ada:s3cret@host:port/db", "postgresql://USER"),
        ("postgresql://ada:s3cret@host", "names none"),
        ("postgres:s3cret", "not the URL"),
    ],
)
def test_what_names_no_database_is_refused_with_the_way_out_and_without_the_password(url, says):
    if url.startswith("postgres") and "psycopg2" not in url:
        pytest.importorskip("sqlalchemy")
    with pytest.raises(BadSpec) as raised:
        open_store(url)
    assert says in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_password_is_shown_to_nobody():
    assert masked("postgresql://ada:p@ss/w:rd@host/db?sslmode=off") == "postgresql://ada:***@host/db?sslmode=off"
    assert masked("postgresql://host/db?user=a&password=x&b=1") == "postgresql://host/db?user=a&password=***&b=1"
    pytest.importorskip("sqlalchemy")
    assert open_store("postgresql://ada:p%40ss@host/db?password=other").name == "postgresql://ada:***@host/db"


@pytest.mark.parametrize("missing", ["sqlalchemy", "psycopg"])
def test_without_its_packages_postgresql_is_a_missing_part_and_files_still_work(tmp_path, missing):
    """In an interpreter where the package cannot be imported, as where it is not installed."""
    script = f"""
import sys
sys.modules[{missing!r}] = None
from joulewise.core.errors import MissingPart
from joulewise.store import open_store
open_store(sys.argv[1]).streams()
try:
    open_store("postgresql://a@b/c")
except MissingPart as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.db")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pip install 'joulewise[server]'" in ran.stdout


def test_opening_a_store_loads_no_package_that_a_file_does_not_need():
    script = "import sys; from joulewise.store import open_store; open_store('x.db'); print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"sqlalchemy", "psycopg"}.isdisjoint(ran.stdout.split())


def test_streams_of_a_file_are_listed_by_how_they_begin(tmp_path):
    store = open_store(tmp_path / "a.db")
    assert store.streams() == []
    for name in ("series/b", "series/a", "run_1", "runs1"):
        store.journal(name).append(told(0))
        store.journal(name).append(told(1))
    assert store.streams("series/") == ["series/a", "series/b"]
    assert store.streams("run_") == ["run_1"]  # no pattern
    assert store.streams() == ["run_1", "runs1", "series/a", "series/b"]
    store.close()


def test_a_damaged_file_is_refused_with_the_way_out_and_kept(tmp_path):
    file = tmp_path / "a.db"
    store = open_store(file)
    for trial in range(200):
        store.journal("series/x").append(told(trial))
    store.close()
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    damaged = open_store(file)
    with pytest.raises(NotKept, match="move it away"):
        list(damaged.journal("series/x").read())
    with pytest.raises(NotKept, match="move it away"):
        damaged.journal("series/x").append(told(200), after=200)
    damaged.close()
    assert file.read_bytes()[8192:] == b"\xff" * (len(whole) - 8192)


def test_a_damaged_event_is_named_by_its_stream_and_number(tmp_path):
    store = open_store(tmp_path / "a.db")
    for trial in range(3):
        store.journal("series/x").append(told(trial))
    store.database.change("UPDATE events SET event = 'x' WHERE id = :id", {"id": 2})
    with pytest.raises(BadSpec, match=r"event 2 of series/x in .*a\.db is damaged"):
        list(store.journal("series/x").read())
    store.close()


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def test_ten_thousand_runs_of_one_stream_are_read_by_index(request, tmp_path, engine):
    """The CPU time is told, not judged: reading is to be linear in what is new, and what is new is found by its key."""
    url = tmp_path / "a.db" if engine == "sqlite" else request.getfixturevalue("database_url")
    store = open_store(url)
    journal = store.journal("series/x")
    assert store.streams() == []
    assert (
        store.database.change(MANY, {"line": to_json(told(0)), "of": '"trial":0', "to": '"trial":', "runs": RUNS})
        == RUNS
    )
    assert journal.append(told(RUNS), after=RUNS) == RUNS + 1
    began_s = time.process_time()
    read = list(journal.read())
    whole_s = time.process_time() - began_s
    assert [(number, event.trial) for number, event in read] == [(trial + 1, trial) for trial in range(RUNS + 1)]
    began_s = time.process_time()
    assert len(list(journal.read(since=RUNS))) == 1
    print(f"CPU to read {RUNS} runs: {whole_s:.3f} s, the last: {time.process_time() - began_s:.4f} s")
    query = "SELECT id, event FROM events WHERE stream = :stream AND id > :since ORDER BY id"
    explain = "EXPLAIN QUERY PLAN " if isinstance(store, SqliteStore) else "EXPLAIN "
    store.database.change("ANALYZE", {})
    plan = str(store.database.select(explain + query, {"stream": "series/x", "since": RUNS}))
    assert "PRIMARY KEY" in plan or "events_pkey" in plan
    firsts = "SELECT stream FROM events WHERE id = 1 AND substr(stream, 1, :length) = :prefix"
    assert "events_first" in str(store.database.select(explain + firsts, {"length": 1, "prefix": "s"}))
    store.close()
