"""Tables of every version that was ever written are brought to this one, with all that is in them."""

import sqlite3
from pathlib import Path

import pytest

from joulewise.core.errors import NotKept
from joulewise.core.event import Expired
from joulewise.store import Memory, Sample, open_store
from joulewise.store.schema import VERSION, Engine, steps
from tests.store.writing import started

LINE = '{"event":"Expired","time_s":1.0,"trial":3,"reason":"old"}'
# As joulewise wrote it before there were steps; never to be edited.
VERSION_1 = f"""
CREATE TABLE events (
    stream TEXT NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    event TEXT NOT NULL,
    PRIMARY KEY (stream, id)
) WITHOUT ROWID;
CREATE INDEX events_by_kind ON events (kind, at);
CREATE TABLE learnt (
    fingerprint TEXT NOT NULL,
    gpu_uuid TEXT NOT NULL,
    gpu_name TEXT NOT NULL,
    at REAL NOT NULL,
    runs INTEGER NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (fingerprint, gpu_uuid)
) WITHOUT ROWID;
INSERT INTO events VALUES ('old', 1, 'Expired', 5.0, '{LINE}'), ('old', 2, 'Expired', 6.0, '{LINE}');
INSERT INTO learnt VALUES ('f', 'GPU-1', 'NVIDIA H200', 5.0, 7, '{{"sm_mhz": 1500}}');
PRAGMA user_version=1;
"""


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "joulewise.db"
    made(file, VERSION_1)
    return file


def made(file: Path, script: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(script)
    connection.close()


def described(file: Path) -> list[tuple[object, ...]]:
    """Every column and index of a file, as SQLite tells them."""
    connection = sqlite3.connect(file)
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    columns = [(table, *column) for (table,) in tables for column in connection.execute(f"PRAGMA table_xinfo({table})")]
    indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name").fetchall()
    connection.close()
    return [*columns, *indexes]


def test_a_file_of_version_1_is_migrated_in_place_and_keeps_everything(file):
    store = open_store(file)
    assert list(store.journal("old").read()) == [(1, Expired(1.0, 3, "old")), (2, Expired(1.0, 3, "old"))]
    assert store.journal("old").append(Expired(2.0, 4, "new"), after=2) == 3
    assert store.streams() == ["old"]
    store.snapshots().save("old", 1, 3, {"a": 1})
    assert store.snapshots().load("old", 1) == (3, {"a": 1})
    remembered = Memory(file).recall("f", "GPU-1", "NVIDIA H200")
    assert (remembered.runs, remembered.payload) == (7, {"sm_mhz": 1500})
    assert store.database.select("PRAGMA user_version", {}) == [(VERSION,)]
    store.close()


# As the second step left it; never to be edited.
VERSION_2 = f"""
{VERSION_1}
CREATE TABLE snapshots (
    stream TEXT NOT NULL,
    version BIGINT NOT NULL,
    last_id BIGINT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (stream)
) WITHOUT ROWID;
CREATE INDEX events_first ON events (stream) WHERE id = 1;
INSERT INTO snapshots VALUES ('old', 3, 2, 6.0, '{{"a": 1}}');
PRAGMA user_version=2;
"""


def test_a_file_of_version_2_keeps_its_snapshots_and_takes_readings(tmp_path):
    file = tmp_path / "second.db"
    made(file, VERSION_2)
    store = open_store(file)
    assert store.snapshots().load("old", 3) == (2, {"a": 1})
    store.readings().write("old", "GPU-1", [Sample(1.7e9, 300.0)])
    assert store.readings().read("old", "GPU-1").power_w == [300.0]
    assert len(list(store.journal("old").read())) == 2
    store.close()


def test_a_new_file_and_a_migrated_one_hold_their_values_alike(file, tmp_path):
    for each in (file, tmp_path / "new.db"):
        store = open_store(each)
        store.journal("run").append(Expired(2.0, 4, "new"))
        assert store.database.select("SELECT typeof(id), typeof(at), typeof(event) FROM events", {})[-1] == (
            "integer",
            "real",
            "text",
        )
        store.close()
    names = [[row[:3] if len(row) > 3 else row for row in described(each)] for each in (file, tmp_path / "new.db")]
    assert names[0] == names[1]


def test_the_steps_of_a_version_are_those_that_it_has_not_taken():
    both = steps(Engine.SQLITE, 0)
    assert both == steps(Engine.SQLITE, 0, 1) + steps(Engine.SQLITE, 1)
    assert steps(Engine.SQLITE, VERSION) == []
    assert not any("WITHOUT ROWID" in statement for statement in steps(Engine.POSTGRESQL, 0))


def test_processes_that_migrate_one_file_at_once_do_it_once(file):
    script = (
        "import sys; from joulewise.store import open_store; from joulewise.core.event import Expired;"
        "journal = open_store(sys.argv[1]).journal('run');"
        "journal.append(Expired(1.0, 1, 'x')); assert journal.flush(), journal.trouble"
    )
    writers = [started(script, str(file)) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    store = open_store(file)
    assert [number for number, _ in store.journal("run").read()] == [1, 2, 3, 4]
    assert len(list(store.journal("old").read())) == 2
    store.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(file):
    made(file, "CREATE TABLE snapshots (in_the_way)")
    before = described(file)
    store = open_store(file)
    with pytest.raises(NotKept, match="snapshots already exists"):
        store.streams()
    store.close()
    assert described(file) == before
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    connection.close()


def test_another_programs_database_is_not_written_into(tmp_path):
    file = tmp_path / "theirs.db"
    made(file, "CREATE TABLE photos (name TEXT)")
    before = described(file)
    with pytest.raises(NotKept, match="another program's database"):
        open_store(file).journal("run").append(Expired(1.0, 1, "x"), after=0)
    assert described(file) == before
