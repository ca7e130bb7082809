"""A run being kept, beside the command: named late, in vain, or by a store that hangs; the command never notices."""

import threading

import pytest

from joulewise.cli.gpus import OpenGpus
from joulewise.core.errors import NotKept
from joulewise.core.event import Began, Finished
from joulewise.core.measurement import Reading
from joulewise.report import keeping
from joulewise.report.figures import Beyond
from joulewise.report.keeping import Keeping, facts_of
from joulewise.report.kept_run import KeptRun
from joulewise.report.story import Story
from joulewise.report.summaries import Summaries
from joulewise.store import Database, SqliteStore, views
from joulewise.store.thinned import Thinned
from tests.cli import made_up

MEASURED = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0}
GPU = "GPU-1"


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(Database(tmp_path / "joulewise.db"))
    yield store
    store.close()


def some_seconds(seconds=30):
    thinned = Thinned(1, unix_s=1.7e9)
    for tick in range(10 * seconds):
        thinned.reading(0, Reading(tick / 10, power_w=300.0))
    return thinned


def a_keeping(store, tuned=None, thinned=None):
    facts = facts_of(["train", "--api-key", "SECRET"], OpenGpus.none("none here"), unix_s=1.7e9, virtual=True)
    return Keeping(store, [GPU], thinned or some_seconds(), Began(0.0, "run", facts), tuned)


def test_a_measured_run_is_kept_with_its_readings_and_without_its_secrets(store):
    kept = a_keeping(store)
    kept.begin()
    assert kept.end(30.0, "ended", MEASURED) is None
    run = views.one(store.tables, "run")
    assert (run.measured, run.facts["command"]) == (MEASURED, ["train", "--api-key", "***"])
    assert len(store.readings().read("run", GPU).time_s) == 30
    (told,), _ = Summaries(store).page()
    assert (told.energy_j, told.began_s, told.virtual, told.tuned) == (4e5, 1.7e9, True, False)


def test_a_tuned_run_is_kept_under_the_tuners_name_and_its_journal_left_sealed(store):
    named = [None]
    kept = a_keeping(store, tuned=lambda: named[0])
    kept.begin()
    journal = store.journal("tuners")
    for event in made_up.run("tuners", hold=10):
        journal.append(event)
    named[0] = "tuners"
    before = list(journal.read())
    assert kept.end(30.0, "ended", MEASURED) is None
    assert list(journal.read()) == before
    assert views.one(store.tables, "tuners").measured == MEASURED
    assert store.readings().gpus("tuners") == [GPU]
    assert [run.name for run in views.runs(store.tables)] == ["tuners"]


def test_a_run_that_was_to_be_tuned_and_never_was_is_kept_with_the_reason(store):
    kept = a_keeping(store, tuned=lambda: None)
    kept.begin()
    assert kept.end(30.0, "ended", MEASURED, untuned="the command used no GPU") is None
    (told,), _ = Summaries(store).page()
    assert told.headline.startswith("not tuned: the command used no GPU; 400.00")
    assert len(store.readings().read("run", GPU).time_s) == 30


def test_a_command_that_is_killed_with_us_leaves_what_was_written(store, monkeypatch):
    monkeypatch.setattr(keeping, "_PERIOD_S", 0.01)
    written = threading.Event()
    write = store.readings().write

    class Telling:
        def write(self, *args):
            write(*args)
            written.set()

    kept = a_keeping(store)
    kept._readings = Telling()
    kept.begin()
    assert written.wait(30)
    assert views.one(store.tables, "run").finished is None
    assert len(store.readings().read("run", GPU).time_s) == 29  # the last second was still open
    kept.end(30.0, "ended", MEASURED)


def test_a_store_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "joulewise.db").write_bytes(b"no database at all" * 100)
    kept = a_keeping(SqliteStore(Database(tmp_path / "joulewise.db")))
    kept.begin()
    said = kept.end(30.0, "ended", MEASURED)
    assert said.startswith("this run is not kept in the store yet: ")
    assert "move it away" in said
    assert "\n" not in said


def test_a_store_that_is_away_for_a_while_costs_no_reading(store, monkeypatch):
    monkeypatch.setattr(keeping, "_PERIOD_S", 0.01)
    tried = threading.Event()
    real = store.readings()

    class Away:
        def __init__(self):
            self.left = 3

        def write(self, *args):
            self.left -= 1
            if self.left >= 0:
                raise NotKept("the server is away")
            tried.set()
            real.write(*args)

    kept = a_keeping(store)
    kept._readings = Away()
    kept.begin()
    assert tried.wait(30)
    assert kept.end(30.0, "ended", MEASURED) is None
    assert len(real.read("run", GPU).time_s) == 30


def test_a_store_that_hangs_does_not_hold_the_exit_code(store, monkeypatch):
    monkeypatch.setattr(keeping, "END_WAIT_S", 0.05)
    let_go = threading.Event()

    class Hung:
        def write(self, *args):
            let_go.wait(30)

    kept = a_keeping(store)
    kept._readings = Hung()
    kept.begin()
    assert "has not answered" in kept.end(30.0, "ended", MEASURED)
    let_go.set()
    kept._thread.join(30)


def test_a_command_that_never_started_leaves_nothing(store):
    kept = a_keeping(store)
    assert kept.end(0.0, "ended", MEASURED) is None
    assert views.runs(store.tables) == []


def test_an_end_is_written_even_where_readings_cannot_be(store):
    kept = a_keeping(store)

    class Refusing:
        def write(self, *args):
            raise NotKept("no room")

    kept._readings = Refusing()
    kept.begin()
    assert kept.end(30.0, "ended", MEASURED).startswith("this run is not kept in the store yet: no room; saved in ")
    assert isinstance(views.one(store.tables, "run").finished, Finished)


def test_what_a_dry_run_would_set_is_kept_with_it_and_says_how_to_come_by_it(store):
    kept = a_keeping(store, tuned=lambda: None)
    kept.begin()
    advised = "would set power limit 675 W: −2.0 % ± 1.7 % energy, +1.6 % ± 1.1 % time expected"
    assert kept.end(30.0, "ended", MEASURED, advised=advised) is None
    summaries = Summaries(store)
    (told,), _ = summaries.page()
    assert told.headline.startswith(f"{advised}; 400.00 ± 0.30 kJ")
    assert (told.tuned, told.saved_j) == (False, None)
    run = KeptRun.of(store, told, Story.of([event for _, event in store.journal("run").read()]))
    assert "<h2>What to do next</h2>" in run.page(Beyond())
