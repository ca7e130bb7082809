"""A run being kept, beside the command: named late, in vain, or by a store that hangs; the command never notices."""

import threading

import pytest

from joulewise.cli.gpus import OpenGpus
from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Began, Finished
from joulewise.core.measurement import Reading
from joulewise.report import keeping
from joulewise.report.figures import Beyond
from joulewise.report.keeping import Keeping, facts_of
from joulewise.report.kept_run import KeptRun
from joulewise.report.story import Story
from joulewise.report.summaries import Summaries
from joulewise.store import Database, SqliteStore, unsent, views
from joulewise.store.bounded import BackgroundJournal
from joulewise.store.pace import PaceRecord, pace_stream, read
from joulewise.store.thinned import Thinned
from joulewise.store.unsent import Unsent
from tests.cli import made_up
from tests.cli.test_locked_store import LOCKS_SQLITE, Locked
from tests.daemon.running import until
from tests.store.writing import started

LOCKS_WRITERS = LOCKS_SQLITE.replace("EXCLUSIVE", "IMMEDIATE")

MEASURED = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0}
KEPT = {**MEASURED, "readings_error": 0.0}
"""Nothing told how far its readings strayed from a counter."""
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
    assert (run.measured, run.facts["command"]) == (KEPT, ["train", "--api-key", "***"])
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
    assert views.one(store.tables, "tuners").measured == KEPT
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


def test_nothing_about_earlier_runs_is_a_fault_of_this_one(store, monkeypatch):
    def damaged(*_):
        raise OSError("cannot rename")

    monkeypatch.setattr(keeping, "take_in", damaged)
    kept = a_keeping(store)
    kept.begin()
    assert kept.end(30.0, "ended", MEASURED) is None
    assert len(store.readings().read("run", GPU).time_s) == 30


def test_a_short_run_is_written_before_the_rest_of_many_earlier_ones(store, monkeypatch):
    begun = threading.Event()

    def never_done(store, enough):
        begun.set()
        while not enough():
            pass

    monkeypatch.setattr(keeping, "take_in", never_done)
    kept = a_keeping(store)
    kept.begin()
    assert begun.wait(30)
    assert kept.end(30.0, "ended", MEASURED) is None
    assert views.one(store.tables, "run").measured == KEPT


def test_a_run_that_cannot_be_summed_up_is_taken_in_all_the_same(store, monkeypatch):
    for name in ("a", "b"):
        unsent.save(store, Unsent(name, {name: (0, [Began(0.0, name, {}), Finished(1.0, "ended", {})])}))

    def damaged(self, name):
        raise BadSpec(f"{name} is damaged")

    monkeypatch.setattr(Summaries, "keep", damaged)
    keeping.take_in(store)
    assert {run.name for run in views.runs(store.tables)} == {"a", "b"}
    assert not unsent.waits("a")


# The tuner of a run that ended with a store that could not be written: what its next run finds. Run as a process, since
# a run is gone on with only where its process is gone.
TUNER = """
import sys
from joulewise.core.event import Began, Finished
from joulewise.report.keeping import save, tuners_journal
from joulewise.store import open_store, recurring
from joulewise.store.unsent import Unsent

store, ends = open_store(sys.argv[1]), sys.argv[2] == "ends"
facts = {**recurring.whereabouts(), "fingerprint": "mark", "gpus": ["GPU-1"], "wanted": "least", "seed": 7}
opened = tuners_journal(store, "first", "mark", ["GPU-1"], "least", 7)
opened.journal.append(Began(0.0, "first", facts))
assert opened.journal.end(30)
if ends:
    save(store, Unsent("first", {"first": (1, [Finished(9.0, "ended", {"seal": "all"})])}))
"""


@pytest.fixture
def tuner(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))

    def tuner(how):
        assert started(TUNER, str(tmp_path / "joulewise.db"), how).wait() == 0

    return tuner


def the_next(store):
    return keeping.tuners_journal(store, "second", "mark", [GPU], "least", 8)


def test_a_tuned_run_that_was_killed_is_gone_on_with(store, tuner):
    tuner("is killed")
    opened = the_next(store)
    assert (opened.run, opened.seed) == ("first", 7)


def test_a_tuned_run_whose_end_waits_in_a_file_is_not_gone_on_with(store, tuner):
    tuner("ends")
    assert the_next(store).run == "second"
    assert [type(event) for _, event in store.journal("first").read()] == [Began, Finished]
    assert not unsent.waits("first")


def test_nor_is_it_where_its_end_cannot_be_taken_in_yet(store, tuner, tmp_path):
    tuner("ends")
    with Locked(LOCKS_WRITERS, str(tmp_path / "joulewise.db")):  # readers are let in, as they are while others write
        assert the_next(store).run == "second"
        assert unsent.waits("first")
    keeping.take_in(store)
    assert [type(event) for _, event in store.journal("first").read()] == [Began, Finished]


class Steps:
    """The steps of a job, told a second each."""

    def __init__(self):
        self.made = 0
        self.ready = []

    def make(self, number):
        self.ready += [(float(step), step + 1.0, "", step + 1.0) for step in range(self.made, self.made + number)]
        self.made += number

    def __call__(self):
        ready, self.ready = self.ready, []
        return ready


def steps_kept(store):
    return sum(
        len(pace.end_s) for pace in read(event for _, event in store.journal(pace_stream("tuned")).read()).values()
    )


@pytest.mark.parametrize("gone_on", [False, True])
@pytest.mark.parametrize("frees", ["before the end", "after it"])
def test_no_step_is_lost_where_a_store_is_locked_for_a_while(store, tmp_path, monkeypatch, gone_on, frees):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    monkeypatch.setattr(keeping, "_PERIOD_S", 0.01)
    first, *others = made_up.run("tuned", hold=10)
    if gone_on:
        earlier = PaceRecord().event([(-1.0, 0.0, "", 1.0)], "tuned", last=True)
        store.journal("tuned").append(first)
        store.journal(pace_stream("tuned")).append(earlier)
    journal = BackgroundJournal(store.journal("tuned"), [first] if gone_on else [])
    for event in others if gone_on else [first, *others]:
        journal.append(event)
    assert journal.end(30)
    steps = Steps()
    facts = facts_of(["train"], OpenGpus.none("none here"), unix_s=1.7e9)
    kept = Keeping(
        store,
        [GPU],
        Thinned(1, unix_s=1.7e9),
        Began(0.0, "run", facts),
        lambda: "tuned",
        journal=lambda: journal,
        steps=steps,
    )
    steps.make(10)
    kept.begin()
    until(lambda: steps_kept(store) >= 9, 30)  # the last one may still grow
    with Locked(LOCKS_WRITERS, str(tmp_path / "joulewise.db")):
        steps.make(10)
        until(lambda: kept._pace_journal.trouble is not None, 30)
        said = kept.end(30.0, "ended", MEASURED) if frees == "after it" else None
    if frees == "before the end":
        assert kept.end(30.0, "ended", MEASURED) is None
    else:
        assert "saved in" in said
        kept._thread.join(60)
        keeping.take_in(store)
    assert steps_kept(store) == 20 + gone_on
    assert not list((tmp_path / "unsent").glob("*.jsonl"))
