import sqlite3
import stat
from pathlib import Path

import pytest

from joulewise.core.errors import Conflict, NotKept
from joulewise.core.event import Shifted
from joulewise.store import Database, MemoryJournal, SqliteJournal, default_path
from joulewise.store.database import on_network
from joulewise.store.journal import Journal
from joulewise.testing import JournalConformance
from tests.store.writing import started


def event(place: int) -> Shifted:
    return Shifted(float(place), "pace", f"event {place}")


class TestMemoryJournal(JournalConformance):
    @pytest.fixture
    def journal(self) -> Journal:
        return MemoryJournal()


class TestSqliteJournal(JournalConformance):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Journal:
        return SqliteJournal(tmp_path / "a" / "joulewise.db", "run-1")


def test_a_journal_outlives_its_process_and_streams_do_not_mix(tmp_path):
    file = tmp_path / "joulewise.db"
    script = (
        "import sys; from pathlib import Path; from joulewise.core.event import Shifted;"
        "from joulewise.store import SqliteJournal; import os;"
        "SqliteJournal(Path(sys.argv[1]), 'a').append(Shifted(1.0, 'pace', 'written')); os._exit(9)"
    )
    assert started(script, str(file)).wait() == 9
    SqliteJournal(file, "b").append(event(7))
    assert [each.says for _, each in SqliteJournal(file, "a").read()] == ["written"]


def test_processes_that_append_at_once_lose_nothing(tmp_path):
    file = tmp_path / "joulewise.db"
    script = (
        "import sys; from pathlib import Path; from joulewise.core.event import Shifted;"
        "from joulewise.store import SqliteJournal;"
        "journal = SqliteJournal(Path(sys.argv[1]), 'one');"
        "[journal.append(Shifted(float(n), 'pace', sys.argv[2])) for n in range(40)]; assert journal.flush()"
    )
    writers = [started(script, str(file), str(number)) for number in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    read = list(SqliteJournal(file, "one").read())
    assert [number for number, _ in read] == list(range(1, 121))
    for number in range(3):
        assert [each.time_s for _, each in read if each.says == str(number)] == [float(n) for n in range(40)]


def test_two_that_decide_after_the_same_event_cannot_both_write(tmp_path):
    one, other = (SqliteJournal(tmp_path / "joulewise.db", "run") for _ in range(2))
    one.append(event(0))
    assert one.append(event(1), after=1) == 2
    with pytest.raises(Conflict, match="is at event 2, not 1"):
        other.append(event(2), after=1)


class FullDisk:
    """A real database whose disk is full until it is not: SQLite's own limit of pages stands for the disk's."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def fill(self) -> None:
        with self._database.reading() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count={pages}")

    def make_room(self) -> None:
        with self._database.reading() as connection:
            connection.execute("PRAGMA max_page_count=100000")


def test_a_full_disk_costs_no_event_and_is_said(tmp_path):
    database = Database(tmp_path / "joulewise.db")
    journal = SqliteJournal(database, "run")
    assert journal.append(event(0)) == 1
    disk = FullDisk(database)
    disk.fill()
    big = [Shifted(float(place), "pace", "x" * 5000) for place in range(1, 6)]
    assert [journal.append(each) for each in big] == [2, 3, 4, 5, 6]
    assert "full" in journal.trouble
    assert "kept in memory" in journal.trouble
    assert [number for number, _ in journal.read()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(NotKept):
        journal.append(event(6), after=6)
    disk.make_room()
    assert journal.flush()
    assert journal.trouble is None
    assert [each for _, each in SqliteJournal(tmp_path / "joulewise.db", "run").read()] == [event(0), *big]


def test_a_place_that_cannot_be_written_keeps_the_run_in_memory(tmp_path):
    (tmp_path / "file").write_text("in the way")
    journal = SqliteJournal(tmp_path / "file" / "joulewise.db", "run")
    assert journal.append(event(0)) == 1
    assert "JOULEWISE_HOME" in journal.trouble
    assert list(journal.read()) == [(1, event(0))]
    assert not journal.flush()


def test_a_damaged_file_is_left_as_it_is_and_named(tmp_path):
    file = tmp_path / "joulewise.db"
    file.write_bytes(b"no database at all" * 100)
    journal = SqliteJournal(file, "run")
    journal.append(event(0))
    assert "move it away" in journal.trouble
    assert file.read_bytes() == b"no database at all" * 100
    assert list(journal.read()) == [(1, event(0))]
    with pytest.raises(NotKept, match="move it away"):
        list(SqliteJournal(file, "run").read())


def test_a_file_of_a_newer_version_is_refused_and_kept(tmp_path):
    file = tmp_path / "joulewise.db"
    SqliteJournal(file, "run").append(event(0))
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(NotKept, match="newer joulewise"):
        list(SqliteJournal(file, "run").read())


def test_what_is_kept_is_for_its_owner_alone(tmp_path):
    SqliteJournal(tmp_path / "own" / "joulewise.db", "run").append(event(0))
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "own" / "joulewise.db").stat().st_mode) == 0o600


def test_reading_what_was_never_written_makes_no_file(tmp_path):
    assert list(SqliteJournal(tmp_path / "joulewise.db", "run").read()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_has_a_connection_of_its_own(tmp_path):
    journal = SqliteJournal(tmp_path / "joulewise.db", "run")
    journal.append(event(0))
    script = (
        "import os, sys; from pathlib import Path; from joulewise.core.event import Shifted;"
        "from joulewise.store import SqliteJournal; journal = SqliteJournal(Path(sys.argv[1]), 'run');"
        "journal.append(Shifted(1.0, 'pace', 'parent')); pid = os.fork();"
        "journal.append(Shifted(2.0, 'pace', 'child' if pid == 0 else 'parent'));"
        "pid and os.waitpid(pid, 0)"
    )
    assert started(script, str(tmp_path / "joulewise.db")).wait() == 0
    assert [number for number, _ in journal.read()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("environ", "where"),
    [
        ({"JOULEWISE_HOME": "/somewhere"}, "/somewhere/joulewise.db"),
        ({"XDG_DATA_HOME": "/data"}, "/data/joulewise/joulewise.db"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/home/a"}, "/home/a/.local/share/joulewise/joulewise.db"),
        ({"HOME": "/home/a"}, "/home/a/.local/share/joulewise/joulewise.db"),
    ],
)
def test_the_file_lies_where_the_environment_says(monkeypatch, environ, where):
    for name in ("JOULEWISE_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert default_path() == Path(where)


def test_a_network_file_system_is_known_by_the_deepest_mount(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sdb /home/fast\\040disk xfs rw 0 0\n"
    )
    assert on_network(Path("/home/ada/joulewise.db"), mounts)
    assert not on_network(Path("/home/fast disk/joulewise.db"), mounts)
    assert not on_network(Path("/srv/joulewise.db"), mounts)
    assert not on_network(Path("/srv/joulewise.db"), tmp_path / "nothing")
