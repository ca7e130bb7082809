"""The journal on a real PostgreSQL, with writers, wires and servers that die."""

import re
import tempfile
import threading
from pathlib import Path

import pytest

from joulewise.core.errors import Conflict, NotKept
from joulewise.core.event import Expired, Shifted
from joulewise.store import open_store
from joulewise.store.journal import Journal
from joulewise.store.schema import VERSION, Engine, steps
from joulewise.testing import JournalConformance
from tests.postgresql import PASSWORD
from tests.store.cutting_proxy import CuttingProxy
from tests.store.writing import STREAM, started, wait_until, writer, written_by

pytestmark = pytest.mark.xdist_group("postgresql")


def event(place: int) -> Shifted:
    return Shifted(float(place), "pace", f"event {place}")


def name_in(url: str) -> str:
    """The database's own name."""
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def store(database_url):
    store = open_store(database_url)
    yield store
    store.close()


@pytest.fixture
def proxy(postgresql):
    with tempfile.TemporaryDirectory(prefix="jw-wire-", dir="/tmp") as folder:  # short, as a socket's path must be
        proxy = CuttingProxy(Path(folder), postgresql.folder)
        yield proxy
        proxy.close()


@pytest.fixture
def beyond(proxy, database_url):
    """The same database, over a wire that can break."""
    store = open_store(re.sub("host=.*", f"host={proxy.folder}", database_url))
    yield store
    store.close()


class TestPostgresJournal(JournalConformance):
    @pytest.fixture
    def journal(self, store) -> Journal:
        return store.journal("run-1")


def test_streams_do_not_mix_and_are_listed_by_how_they_begin(store):
    for name in ("series/b", "series/a", "run_1", "runs1"):
        store.journal(name).append(event(len(name)))
        store.journal(name).append(event(0))
    assert store.streams("series/") == ["series/a", "series/b"]
    assert store.streams("run_") == ["run_1"]  # no pattern
    assert [number for number, _ in store.journal("series/a").read()] == [1, 2]


def test_two_that_decide_after_the_same_event_cannot_both_write(store):
    one, other = (store.journal("run") for _ in range(2))
    one.append(event(0))
    assert one.append(event(1), after=1) == 2
    with pytest.raises(Conflict, match="is at event 2, not 1"):
        other.append(event(2), after=1)


def test_a_writer_that_is_killed_between_its_insert_and_its_commit_has_written_nothing(database_url, store):
    journal = store.journal("run")
    journal.append(event(0))
    script = """
import os, sys
from sqlalchemy import text
from joulewise.store import open_store
with open_store(sys.argv[1]).database.writing("run") as connection:
    connection.execute(text("INSERT INTO events VALUES ('run', 2, 'x', 0, 'x')"))
    os.kill(os.getpid(), 9)
"""
    assert started(script, database_url).wait(60) == -9
    assert journal.append(event(1), after=1) == 2
    assert [each for _, each in journal.read()] == [event(0), event(1)]


def test_a_server_that_crashes_again_and_again_costs_no_event_and_doubles_none(
    postgresql, database_url, store, scenario
):
    shown = scenario("R24", "PostgreSQL crashed under two writers, 3 times", criterion="no event lost or doubled")
    journal = store.journal(STREAM)
    writers = [writer(database_url, number, 60) for number in range(2)]
    for reached in (20, 60, 100):
        wait_until(lambda reached=reached: len(list(journal.read())) >= reached)
        postgresql.crash()
        postgresql.start()
    assert [each.wait(120) for each in writers] == [0, 0]
    read = list(journal.read())
    assert [number for number, _ in read] == list(range(1, 121))
    for number in range(2):
        assert written_by(number, read) == [float(n) for n in range(60)]
    shown.saw(f"{len(read)} events of 2 writers, each once, in order")


def test_what_is_appended_while_the_server_is_away_waits_and_is_written_later(postgresql, store):
    journal = store.journal("run")
    assert journal.append(event(0)) == 1
    postgresql.stop()
    assert [journal.append(event(1)), journal.append(event(2))] == [2, 3]
    assert "host and port" in journal.trouble
    assert "(2 events kept in memory)" in journal.trouble
    assert list(journal.read()) == [(2, event(1)), (3, event(2))]
    with pytest.raises(NotKept, match="host and port"):
        journal.append(event(3), after=3)
    postgresql.start()
    assert journal.flush()
    assert journal.trouble is None
    assert list(journal.read()) == [(1, event(0)), (2, event(1)), (3, event(2))]


def test_a_server_that_was_started_anew_between_two_appends_is_not_noticed(postgresql, store):
    journal = store.journal("run")
    journal.append(event(0), after=0)
    postgresql.stop()
    postgresql.start()
    assert journal.append(event(1), after=1) == 2
    assert journal.trouble is None


@pytest.mark.parametrize("arrives", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("after", [0, None], ids=["after", "whenever"])
def test_an_event_whose_commit_was_not_answered_is_there_once(proxy, beyond, store, arrives, after):
    journal = beyond.journal("run")
    assert list(journal.read()) == []
    proxy.cut_at_commit(arrives=arrives, stay_away=False)
    assert journal.append(event(0), after=after) == 1
    assert journal.append(event(1), after=1) == 2
    assert list(store.journal("run").read()) == list(journal.read()) == [(1, event(0)), (2, event(1))]


@pytest.mark.parametrize("arrives", [True, False], ids=["done", "not done"])
def test_a_doubt_that_cannot_be_settled_at_once_is_settled_before_the_next_write(proxy, beyond, store, arrives):
    journal = beyond.journal("run")
    journal.append(event(0))
    proxy.cut_at_commit(arrives=arrives, stay_away=True)
    journal.append(event(1))
    assert "(1 events kept in memory)" in journal.trouble
    assert len(list(store.journal("run").read())) == (2 if arrives else 1)
    proxy.come_back()
    assert [each for _, each in journal.read()] == [event(0), event(1)]
    assert journal.append(event(2), after=2) == 3
    assert journal.trouble is None
    proxy.cut_at_commit(arrives=arrives, stay_away=True)
    with pytest.raises(NotKept):
        journal.append(event(3), after=3)
    proxy.come_back()
    there = [each for _, each in journal.read(since=3)]
    assert there == ([event(3)] if arrives else [])
    assert journal.append(event(4), after=3 + len(there)) == 4 + len(there)
    assert [each for _, each in store.journal("run").read()] == [event(0), event(1), event(2), *there, event(4)]


@pytest.mark.parametrize("arrives", [True, False], ids=["done", "not done"])
def test_what_waits_in_doubt_is_there_once_when_it_is_flushed(proxy, beyond, store, arrives):
    journal = beyond.journal("run")
    assert list(journal.read()) == []  # the tables are made over a wire that is whole
    proxy.cut_at_commit(arrives=arrives, stay_away=True)
    assert journal.append(event(0)) == 1
    assert "(1 events kept in memory)" in journal.trouble
    proxy.come_back()
    assert journal.flush()
    assert list(store.journal("run").read()) == list(journal.read()) == [(1, event(0))]


def test_a_writer_waits_for_one_that_is_under_way_and_follows_it(postgresql, store):
    """The lock decides, not who looks first: so a commit whose answer was lost has ended when it is looked for."""
    journal = store.journal("run")
    journal.append(event(0))
    release, held = threading.Event(), threading.Event()

    def slow() -> None:
        from sqlalchemy import text

        with store.database.writing("run") as connection:
            line = '{"event":"Expired","time_s":1.0,"trial":7,"reason":"slow"}'
            connection.execute(text("INSERT INTO events VALUES ('run', 2, 'Expired', 0, :line)"), {"line": line})
            held.set()
            release.wait(30)

    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    slowly = threading.Thread(target=slow)
    slowly.start()
    assert held.wait(30)
    other = threading.Thread(target=journal.append, args=(event(2),))
    other.start()
    wait_until(lambda: postgresql.run(waiting) == [(1,)])
    release.set()
    slowly.join(30)
    other.join(30)
    assert list(journal.read())[1:] == [(2, Expired(1.0, 7, "slow")), (3, event(2))]


def test_the_time_of_writing_is_the_servers_own(postgresql, database_url, store):
    store.journal("run").append(event(0))
    (told,) = postgresql.run("SELECT at - extract(epoch FROM now()) FROM joulewise.events", name_in(database_url))
    assert -60 < told[0] <= 0


def test_a_forked_child_has_a_connection_of_its_own(database_url, store):
    script = """
import os, sys
from joulewise.core.event import Shifted
from joulewise.store import open_store
journal = open_store(sys.argv[1]).journal("run")
journal.append(Shifted(0.0, "pace", "parent"))
pid = os.fork()
for n in range(20):
    journal.append(Shifted(float(n), "pace", "parent" if pid else "child"))
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert started(script, database_url).wait(60) == 0
    assert [number for number, _ in store.journal("run").read()] == list(range(1, 42))


def test_tables_of_version_1_are_migrated_and_keep_everything(postgresql, database_url, store):
    database = name_in(database_url)
    line = '{"event":"Expired","time_s":1.0,"trial":3,"reason":"old"}'
    statements = [
        "CREATE SCHEMA joulewise",
        "SET search_path TO joulewise",
        "CREATE TABLE version (number BIGINT NOT NULL)",
        "INSERT INTO version VALUES (1)",
        *steps(Engine.POSTGRESQL, 0, 1),
        f"INSERT INTO events VALUES ('old', 1, 'Expired', 5.0, '{line}')",
    ]
    postgresql.run("; ".join(statements), database)
    assert list(store.journal("old").read()) == [(1, Expired(1.0, 3, "old"))]
    assert store.streams() == ["old"]
    store.snapshots().save("old", 1, 1, {"a": 1})
    assert store.snapshots().load("old", 1) == (1, {"a": 1})
    assert postgresql.run("SELECT number FROM joulewise.version", database) == [(VERSION,)]


def test_a_database_of_a_newer_version_is_refused_and_kept(postgresql, database_url, store):
    store.journal("run").append(event(0))
    database = name_in(database_url)
    postgresql.run("UPDATE joulewise.version SET number = 99", database)
    later = open_store(database_url)
    journal = later.journal("run")
    journal.append(event(1))
    assert "newer joulewise (tables 99" in journal.trouble
    with pytest.raises(NotKept, match="newer joulewise"):
        later.streams()
    assert postgresql.run("SELECT count(*) FROM joulewise.events", database) == [(1,)]
    later.close()


def test_tables_that_were_dropped_are_made_anew(postgresql, database_url, store):
    journal = store.journal("run")
    journal.append(event(0))
    postgresql.run("DROP SCHEMA joulewise CASCADE", name_in(database_url))
    with pytest.raises(NotKept, match="does not exist"):
        list(journal.read())
    assert journal.append(event(1)) == 1


def test_a_role_that_may_only_look_can_look(postgresql, database_url, store):
    store.journal("run").append(event(0))
    postgresql.run(
        f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'; GRANT USAGE ON SCHEMA joulewise TO reader;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA joulewise TO reader",
        name_in(database_url),
    )
    looking = open_store(postgresql.url(name_in(database_url), user="reader"))
    assert looking.streams() == ["run"]
    assert list(looking.journal("run").read()) == [(1, event(0))]
    with pytest.raises(NotKept, match="permission denied"):
        looking.journal("run").append(event(1), after=1)
    looking.close()


FAULTS = {
    "wrong password": ("check the user and the password", {"password": "wröng-s3cret"}, ""),
    "no such user": ("check the user and the password", {"user": "nobody_here"}, ""),
    "no such database": ("createdb", {"database": "nowhere"}, ""),
    "not allowed": ("CREATE SCHEMA joulewise AUTHORIZATION", {"user": "guest"}, "DROP SCHEMA joulewise CASCADE"),
    "nothing granted": ("grant it the rights", {"user": "guest"}, ""),
    "read only": ("name the primary", {}, "ALTER DATABASE {} SET default_transaction_read_only = on"),
    "disk full": ("make room on the server's disk", {}, "CREATE TRIGGER no_room BEFORE INSERT ON joulewise.events {}"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_goes_wrong_is_told_with_the_way_out_and_without_the_password(postgresql, database_url, store, fault):
    """A full disk is the only one acted: a trigger raises the server's own error 53100."""
    store.journal("run").append(event(0))
    store.close()
    way, names, before = FAULTS[fault]
    database = name_in(database_url)
    if fault == "disk full":
        postgresql.run(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
            database,
        )
        before = before.format("EXECUTE FUNCTION full_disk()")
    if names.get("user") == "guest" and postgresql.run("SELECT 1 FROM pg_roles WHERE rolname = 'guest'") == []:
        postgresql.run(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
    if before:
        postgresql.run(before.format(database), database)
    broken = open_store(postgresql.url(**{"database": database, **names}))
    journal = broken.journal("run")
    journal.append(event(1))
    with pytest.raises(NotKept) as raised:
        journal.append(event(2), after=2)
    broken.close()
    for said in (journal.trouble, str(raised.value)):
        assert way in said
        assert "\n" not in said
        assert names.get("password", PASSWORD) not in said
        assert ":***@/" in said
    assert type(raised.value) is NotKept
