import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Finished, Proven, Shifted
from joulewise.store import Sample, open_store, views


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def store(request, tmp_path):
    named = tmp_path / "joulewise.db" if request.param == "sqlite" else request.getfixturevalue("database_url")
    store = open_store(named)
    yield store
    store.close()


@pytest.fixture
def database(store):
    return store.tables


def a_run(store, name, *, proven=True, finished=True):
    journal = store.journal(name)
    journal.append(Began(0.0, name, {"command": ["python", name]}))
    journal.append(Shifted(1.0, "pace", "slower"))
    if proven:
        journal.append(Proven(2.0, -0.05, 0.01, 0.0, 0.01))
        journal.append(Proven(3.0, -0.08, 0.006, 0.008, 0.003))
    if finished:
        journal.append(Finished(4.0, "done", {"exit_code": 0}))


def test_runs_are_told_latest_first_with_their_last_proof(store, database):
    a_run(store, "first")
    a_run(store, "second", proven=False, finished=False)
    second, first = views.runs(database)
    assert (first.name, first.facts["command"], first.proven.energy_change) == ("first", ["python", "first"], -0.08)
    assert first.finished.facts == {"exit_code": 0}
    assert (second.name, second.proven, second.finished) == ("second", None, None)
    assert [run.name for run in views.runs(database, most=1)] == ["second"]


def test_a_run_is_named_by_the_beginning_of_its_name(store, database):
    a_run(store, "2026-a")
    a_run(store, "2026-b")
    assert views.named(database, "2026-a") == "2026-a"
    with pytest.raises(BadSpec, match="2 runs are called '2026'"):
        views.named(database, "2026")
    with pytest.raises(BadSpec, match="no run is called '%'"):
        views.named(database, "%")


def test_a_forgotten_run_leaves_the_others(store, database):
    a_run(store, "first")
    a_run(store, "second")
    assert views.forget(database, "first") == 5
    assert [run.name for run in views.runs(database)] == ["second"]


def test_a_damaged_event_hides_no_other_run(store, database):
    a_run(store, "first")
    a_run(store, "second")
    database.change("UPDATE events SET event = 'x' WHERE stream = 'first' AND kind = 'Proven'", {})
    assert {run.name: run.proven is not None for run in views.runs(database)} == {"first": False, "second": True}


def test_where_nothing_was_ever_kept_there_are_no_runs(database):
    assert views.runs(database) == []


MEASURED = {"energy_j": 5.0, "duration_s": 2.0}


def test_what_a_run_used_is_in_its_end_or_beside_its_sealed_journal(store, database):
    a_run(store, "tuned")
    store.journal(views.measured_stream("tuned")).append(Finished(9.0, "ended", {"measured": MEASURED}))
    a_run(store, "untold")
    store.journal("plain").append(Began(0.0, "plain", {"tuned": False}))
    store.journal("plain").append(Finished(9.0, "ended", {"measured": MEASURED}))
    found = {run.name: run.measured for run in views.runs(database)}
    assert found == {"plain": MEASURED, "untold": None, "tuned": MEASURED}
    assert {name: views.one(database, name).measured for name in found} == found
    assert [run.name for run in views.runs(database, most=2)] == ["plain", "untold"]


def test_one_run_is_found_by_its_whole_name_only(store, database):
    a_run(store, "first")
    store.journal("series/x").append(Shifted(1.0, "pace", "slower"))
    assert views.one(database, "first").proven.energy_change == -0.08
    for name in ("fir", "", "series/x", views.measured_stream("first"), "%"):
        assert views.one(database, name) is None


def test_a_run_that_tells_its_clock_began_by_it(store, database):
    store.journal("a").append(Began(50.0, "a", {"unix_s": 1.7e9}))
    store.journal("a").append(Began(70.0, "a", {"unix_s": 1.7e9}))  # killed, and gone on with
    (run,) = views.runs(database)
    assert (run.began_at_s, run.unix_s) == (1.7e9 + 50.0, 1.7e9)


def test_all_that_was_kept_of_a_forgotten_run_is_gone(store, database):
    a_run(store, "first")
    store.journal(views.measured_stream("first")).append(Finished(9.0, "ended", {"measured": MEASURED}))
    store.readings().write("first", "GPU-1", [Sample(1.7e9, 1.0)])
    store.snapshots().save("first", 1, 1, {})
    views.forget(database, "first")
    for table in ("events", "snapshots", "readings", "summaries"):
        assert database.select(f"SELECT COUNT(*) FROM {table}", {}) == [(0,)]
