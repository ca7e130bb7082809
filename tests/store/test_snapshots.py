"""The same on both engines: a snapshot comes back exactly, and is thrown away rather than trusted."""

import math

import pytest

from joulewise.core.event import Shifted
from joulewise.store import Database, SqliteStore, open_store

EVENTS = 5


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))],
)
def store(request, tmp_path):
    named = tmp_path / "joulewise.db" if request.param == "sqlite" else request.getfixturevalue("database_url")
    store = open_store(named)
    journal = store.journal("series/nightly")
    for place in range(EVENTS):
        journal.append(Shifted(float(place), "pace", ""))
    yield store
    store.close()


def test_a_snapshot_comes_back_exactly(store):
    state = {"a": [1, 2.5, None, "ä±\x00"], "b": {"c": 0.1 + 0.2, "d": math.inf}, "e": 2**70}
    store.snapshots().save("series/nightly", 3, 4, state)
    assert store.snapshots().load("series/nightly", 3) == (4, state)
    assert store.snapshots().load("series/other", 3) is None


def test_a_snapshot_of_another_version_is_not_used_and_gives_way(store):
    snapshots = store.snapshots()
    snapshots.save("series/nightly", 2, 5, {"old": True})
    assert snapshots.load("series/nightly", 3) is None
    snapshots.save("series/nightly", 3, 2, {"new": True})
    assert snapshots.load("series/nightly", 3) == (2, {"new": True})
    assert snapshots.load("series/nightly", 2) is None


def test_of_two_writers_the_one_that_has_read_further_stays(store):
    snapshots = store.snapshots()
    snapshots.save("series/nightly", 3, 4, {"last": 4})
    snapshots.save("series/nightly", 3, 2, {"last": 2})
    assert snapshots.load("series/nightly", 3) == (4, {"last": 4})
    snapshots.save("series/nightly", 3, 5, {"last": 5})
    assert snapshots.load("series/nightly", 3) == (5, {"last": 5})


def test_a_snapshot_of_events_that_are_not_there_is_not_used_and_gives_way(store):
    snapshots = store.snapshots()
    snapshots.save("series/nightly", 3, EVENTS + 1, {})
    assert snapshots.load("series/nightly", 3) is None
    snapshots.save("series/nightly", 3, 1, {"last": 1})
    assert snapshots.load("series/nightly", 3) == (1, {"last": 1})


@pytest.mark.parametrize("damaged", ["", "{", "[]", "3"])
def test_a_damaged_snapshot_is_none(store, damaged):
    store.snapshots().save("series/nightly", 3, 4, {})
    assert store.database.change("UPDATE snapshots SET state = :state", {"state": damaged}) == 1
    assert store.snapshots().load("series/nightly", 3) is None


def test_where_nothing_can_be_kept_a_snapshot_is_missed_by_nobody(tmp_path):
    file = tmp_path / "joulewise.db"
    file.write_bytes(b"no database at all" * 100)
    snapshots = SqliteStore(Database(file)).snapshots()
    snapshots.save("series/nightly", 3, 4, {})
    assert snapshots.load("series/nightly", 3) is None
    assert file.read_bytes() == b"no database at all" * 100
