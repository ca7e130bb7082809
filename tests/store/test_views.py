import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Finished, Proven, Shifted
from joulewise.store import Database, SqliteJournal, views


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "joulewise.db")


def a_run(database, name, *, proven=True, finished=True):
    journal = SqliteJournal(database, name)
    journal.append(Began(0.0, name, {"command": ["python", name]}))
    journal.append(Shifted(1.0, "pace", "slower"))
    if proven:
        journal.append(Proven(2.0, -0.05, 0.01, 0.0, 0.01))
        journal.append(Proven(3.0, -0.08, 0.006, 0.008, 0.003))
    if finished:
        journal.append(Finished(4.0, "done", {"exit_code": 0}))


def test_runs_are_told_latest_first_with_their_last_proof(database):
    a_run(database, "first")
    a_run(database, "second", proven=False, finished=False)
    second, first = views.runs(database)
    assert (first.name, first.facts["command"], first.proven.energy_change) == ("first", ["python", "first"], -0.08)
    assert first.finished.facts == {"exit_code": 0}
    assert (second.name, second.proven, second.finished) == ("second", None, None)
    assert [run.name for run in views.runs(database, most=1)] == ["second"]


def test_a_run_is_named_by_the_beginning_of_its_name(database):
    a_run(database, "2026-a")
    a_run(database, "2026-b")
    assert views.named(database, "2026-a") == "2026-a"
    with pytest.raises(BadSpec, match="2 runs are called '2026'"):
        views.named(database, "2026")
    with pytest.raises(BadSpec, match="no run is called '%'"):
        views.named(database, "%")


def test_a_forgotten_run_leaves_the_others(database):
    a_run(database, "first")
    a_run(database, "second")
    assert views.forget(database, "first") == 5
    assert [run.name for run in views.runs(database)] == ["second"]


def test_a_damaged_event_hides_no_other_run(database):
    a_run(database, "first")
    a_run(database, "second")
    with database.writing() as connection:
        connection.execute("UPDATE events SET event = 'x' WHERE stream = 'first' AND kind = 'Proven'")
    assert {run.name: run.proven is not None for run in views.runs(database)} == {"first": False, "second": True}


def test_where_nothing_was_ever_kept_there_are_no_runs(database):
    assert views.runs(database) == []
