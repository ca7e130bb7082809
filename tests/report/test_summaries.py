"""Runs in short, on both engines: what a list says is what the run's own journal says, and is not folded twice."""

import math
import os
import socket
import time
from pathlib import Path

import pytest

from joulewise.core.event import Began, Finished, Shifted, to_json
from joulewise.core.marks import start_of
from joulewise.core.plain import plain
from joulewise.report.claim import Claim
from joulewise.report.run_summary import SILENT_S
from joulewise.report.story import Story
from joulewise.report.summaries import RunSummary, State, Summaries, Totals
from joulewise.store import Database, Sample, SqliteStore, open_store, views
from tests.cli import made_up

MEASURED = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0, "gpus": []}


class Clock:
    """Unix time that the test moves."""

    def __init__(self):
        self.ahead_s = 0.0

    def __call__(self):
        return time.time() + self.ahead_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))])
def store(request, tmp_path):
    named = tmp_path / "joulewise.db" if request.param == "sqlite" else request.getfixturevalue("database_url")
    store = open_store(named)
    yield store
    store.close()


@pytest.fixture
def summaries(store, clock):
    return Summaries(store, fresh_s=0.0, patience_s=60.0, now=clock)


def tuned(store, name, *, finished=True, **facts):
    journal = store.journal(name)
    for event in made_up.run(name, hold=30, **facts):
        if finished or not isinstance(event, Finished):
            journal.append(event)
    return Claim.of(Story.of(event for _, event in journal.read()))


def plain_run(store, name, *, finished=True, measured=MEASURED, **facts):
    journal = store.journal(name)
    told = {"command": ["python", name], "gpu_names": ["NVIDIA H200"], "tuned": False, "virtual": False, **facts}
    journal.append(Began(5.0, name, told))
    if finished:
        journal.append(Finished(1005.0, "ended", {"measured": measured}))


def counting(store, what):
    """How often rows are asked for of the given kind, from now on."""
    asked = []
    select = store.tables.select

    def counted(query, values):
        if what in query:
            asked.append(query)
        return select(query, values)

    store.tables.select = counted
    return asked


def test_a_tuned_run_says_what_its_claim_says(store, summaries):
    claim = tuned(store, "first")
    (told,), total = summaries.page()
    assert total == 1
    assert (told.name, told.state, told.tuned, told.bound) == ("first", State.FINISHED, True, 0.02)
    for name in ("saved_j", "saved_half_j", "energy_change", "energy_half", "time_change", "time_half"):
        assert getattr(told, name) == pytest.approx(getattr(claim, name))
    assert told.headline == claim.says()
    assert told.gpus == ("NVIDIA H200",)
    assert told.command == "python train.py"
    assert told.energy_j is None  # nobody measured the whole of it
    assert summaries.one("first") == told


def test_what_the_whole_command_used_stands_beside_a_tuned_runs_sealed_journal(store, summaries):
    tuned(store, "first")
    assert summaries.page()[0][0].energy_j is None
    store.journal(views.measured_stream("first")).append(Finished(0.0, "ended", {"measured": MEASURED}))
    (told,), total = summaries.page()
    assert (told.energy_j, told.energy_error_j, told.duration_s, told.exit_code) == (4e5, 300.0, 1000.0, 0)
    assert total == 1  # what stands beside it is no run
    assert summaries.one(views.measured_stream("first")) is None


def test_a_run_that_was_only_measured_says_what_it_used(store, summaries):
    plain_run(store, "a", unix_s=1.7e9)
    plain_run(store, "b", measured={**MEASURED, "energy_j": None, "exit_code": 3}, untuned="the command used no GPU")
    by_name = {told.name: told for told in summaries.page()[0]}
    assert by_name["a"].headline == "400.00 ± 0.30 kJ in 16 min 40 s, 400 W on average"
    assert (by_name["a"].tuned, by_name["a"].bound, by_name["a"].saved_j) == (False, None, None)
    assert (by_name["a"].began_s, by_name["a"].ended_s) == (1.7e9 + 5.0, 1.7e9 + 1005.0)
    assert by_name["b"].headline == "not tuned: the command used no GPU; no energy was measured; ended with exit code 3"


def test_pages_come_latest_first_and_can_be_searched(store, summaries):
    for number in range(7):
        plain_run(store, f"run-{number}", unix_s=1.7e9 + number, gpu_names=["NVIDIA A100" if number % 2 else "B_100%"])
    tuned(store, "<script>alert(1)</script>")
    some, total = summaries.page(first=1, most=3)
    assert ([told.name for told in some], total) == (["run-6", "run-5", "run-4"], 8)
    assert summaries.page(query="a100")[1] == 3
    assert summaries.page(query="B_100%")[1] == 4
    assert summaries.page(query="BX100")[1] == 0  # _ and % are letters
    assert summaries.page(query="%!_")[1] == 0
    assert [told.name for told in summaries.page(query="<SCRIPT>")[0]] == ["<script>alert(1)</script>"]
    assert summaries.page(query="python RUN-3")[1] == 1
    assert summaries.page(query="\x00\ud800")[1] == 0
    assert summaries.page(state="finished")[1] == 8
    assert summaries.page(state="killed")[1] == summaries.page(state="x")[1] == 0
    assert summaries.page(first=-5, most=10_000)[1] == 8
    assert summaries.page(first=100)[0] == []


def test_totals_add_up_and_runs_err_independently(store, summaries):
    assert summaries.totals() == Totals()
    claims = [tuned(store, name, seed=seed) for seed, name in enumerate(("a", "b"), start=1)]
    plain_run(store, "c")
    plain_run(store, "d", virtual=True)
    plain_run(store, "e", finished=False)
    totals = summaries.totals()
    assert (totals.runs, totals.running, totals.virtual, totals.energy_j) == (5, 1, 1, 8e5)
    assert totals.saved_j == pytest.approx(sum(claim.saved_j for claim in claims))
    assert totals.saved_half_j == pytest.approx(math.hypot(*(claim.saved_half_j for claim in claims)))
    assert totals.watched_s == pytest.approx(sum(claim.watched_s for claim in claims) + 2000.0)
    assert summaries.totals(virtual=False).energy_j == summaries.totals(virtual=True).energy_j == 4e5
    assert summaries.totals(virtual=True).saved_j is None


def test_a_run_that_is_heard_of_runs_and_one_that_falls_silent_was_killed(store, summaries, clock):
    plain_run(store, "a", finished=False)
    (told,), _ = summaries.page()
    assert (told.state, told.ended_s, told.headline) == (State.RUNNING, None, "running")
    clock.ahead_s = SILENT_S + 60
    store.readings().write("a", "GPU-1", [Sample(clock(), 300.0)])  # written now: that is a sign of life, too
    store.tables.change("UPDATE readings SET at = :at", {"at": clock()})
    assert summaries.page()[0][0].state is State.RUNNING
    assert summaries.page()[0][0].duration_s == pytest.approx(SILENT_S + 60, abs=30)
    clock.ahead_s += 2 * SILENT_S
    (told,), _ = summaries.page(state="killed")
    assert (told.state, told.headline) == (State.KILLED, "killed")
    assert told.ended_s == pytest.approx(clock() - 2 * SILENT_S, abs=60)
    store.journal("a").append(Began(9.0, "a", {"command": ["x"], "tuned": False}))  # gone on with
    clock.ahead_s = 0.0
    assert summaries.page()[0][0].state is State.RUNNING


def test_a_process_that_lives_is_not_killed_however_silent_it_is(store, summaries, clock):
    here = {"host": socket.gethostname(), "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
    me = {**here, "pid": os.getpid(), "pid_start": start_of(os.getpid())}
    plain_run(store, "lives", finished=False, **me)
    plain_run(store, "gone", finished=False, **{**me, "pid_start": 1})
    plain_run(store, "elsewhere", finished=False, **{**me, "boot": "another"})
    clock.ahead_s = 2 * SILENT_S
    states = {told.name: told.state for told in summaries.page()[0]}
    assert states == {"lives": State.RUNNING, "gone": State.KILLED, "elsewhere": State.KILLED}


def test_a_tuned_run_that_was_killed_says_what_it_had_saved(store, summaries, clock):
    tuned(store, "a", finished=False)
    assert summaries.page()[0][0].saved_j is None  # while it runs its journal is not folded again and again
    clock.ahead_s = 2 * SILENT_S
    (told,), _ = summaries.page()
    assert told.headline.startswith("killed; saved ")
    assert told.saved_j > 0


def test_what_is_remembered_is_not_folded_again(store, summaries, clock):
    for number in range(5):
        tuned(store, f"run-{number}")
    before = summaries.page()
    clock.ahead_s = 600.0
    summaries.page()
    asked = counting(store, "id > :since")  # how a journal is read
    again = Summaries(store, fresh_s=0.0, now=clock)  # another process
    assert again.page() == before
    assert again.totals().runs == 5
    assert again.one("run-3") == before[0][1]
    assert asked == []


def test_what_was_remembered_by_another_version_or_was_damaged_is_made_anew(store, summaries):
    plain_run(store, "a")
    plain_run(store, "b")
    before = summaries.page()
    store.tables.change("UPDATE summaries SET version = 99, summary = '{}' WHERE stream = 'a'", {})
    assert Summaries(store).page() == before
    store.tables.change("UPDATE summaries SET summary = '{' WHERE stream = 'b'", {})
    assert [told.name for told in Summaries(store).page()[0]] == ["a"]  # one damaged row hides no other
    assert summaries.one("b").name == "b"
    store.tables.change("DELETE FROM summaries", {})
    assert Summaries(store).page() == before


def test_a_damaged_journal_hides_no_other_run(store, summaries):
    tuned(store, "bad")
    tuned(store, "good")
    plain_run(store, "worse")
    change = store.tables.change
    change("UPDATE events SET event = '{' WHERE stream = 'bad' AND kind = 'Seen'", {})
    change("UPDATE events SET event = '{' WHERE stream = 'worse'", {})
    by_name = {told.name: told for told in summaries.page()[0]}
    assert "damaged" in by_name["bad"].headline
    assert by_name["good"].saved_j > 0
    assert summaries.one("good").saved_j > 0


def test_folding_is_put_off_when_there_is_much_of_it_and_comes_to_the_same(store, clock):
    claims = {name: tuned(store, name, seed=seed) for seed, name in enumerate("abc", start=1)}
    hasty = Summaries(store, fresh_s=60.0, patience_s=-1.0, now=clock)
    some, total = hasty.page()
    assert total == 3
    assert [told.state for told in some] == [State.FINISHED] * 3
    assert [told.saved_j is None for told in some] == [False, True, True]
    assert some[1].headline.endswith(" % energy")  # as the run's own last words have it
    for _ in range(10):
        if hasty.refresh(patience_s=-1.0):
            break
    assert {told.name: told.saved_j for told in hasty.page()[0]} == {
        name: pytest.approx(claim.saved_j) for name, claim in claims.items()
    }


def test_a_long_list_of_new_runs_is_taken_in_bit_by_bit_the_latest_first(tmp_path, clock):
    store = SqliteStore(Database(tmp_path / "joulewise.db"))
    rows = [
        (f"run-{number:04d}", place, type(event).__name__, 1.7e9 + number + 0.1 * place, to_json(event))
        for number in range(600)
        for place, event in enumerate(
            (
                Began(5.0, "x", {"tuned": False, "unix_s": 1.7e9 + number}),
                Finished(9.0, "ended", {"measured": MEASURED}),
            ),
            start=1,
        )
    ]
    store.journal("first").append(Began(5.0, "first", {"tuned": False, "unix_s": 1.6e9}))  # makes the tables
    with store.database.writing() as connection:
        connection.executemany("INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)", rows)
    store.tables.change("UPDATE events SET at = 1.6e9 WHERE stream = 'first'", {})
    hasty = Summaries(store, fresh_s=0.0, patience_s=0.0, now=clock)
    some, total = hasty.page(most=10)
    assert [told.name for told in some] == [f"run-{number:04d}" for number in range(599, 589, -1)]
    assert total < 601
    assert hasty.behind
    assert not hasty.refresh()
    looks = 0
    while not hasty.refresh():
        looks += 1
        assert looks < 601
    assert looks > 3
    assert (hasty.totals().runs, hasty.behind) == (601, False)
    store.close()


def test_whoever_asks_while_another_folds_is_answered_out_of_what_is_there(tmp_path, clock, monkeypatch):
    store = SqliteStore(Database(tmp_path / "joulewise.db"))
    plain_run(store, "a")
    summaries = Summaries(store, fresh_s=0.0, now=clock)
    assert summaries.page()[1] == 1
    plain_run(store, "b")
    monkeypatch.setattr("joulewise.report.summaries.WAIT_S", 0.01)
    with summaries._lock:  # as while somebody else folds a journal of a million events
        assert summaries.page()[1] == 1
        assert summaries.totals().runs == 1
    assert summaries.page()[1] == 2
    store.close()


def test_a_forgotten_run_is_gone_from_list_and_totals(store, summaries):
    tuned(store, "first")
    plain_run(store, "second")
    store.readings().write("second", "GPU-1", [Sample(1.7e9, 1.0)])
    assert summaries.totals().runs == 2
    assert views.forget(store.tables, "second") == 2
    assert summaries.totals().runs == 1
    assert [told.name for told in summaries.page()[0]] == ["first"]
    assert summaries.one("second") is None
    assert store.readings().gpus("second") == []


def test_what_ran_is_remembered_by_whoever_ran_it(store, clock):
    tuned(store, "first")
    store.journal(views.measured_stream("first")).append(Finished(0.0, "ended", {"measured": MEASURED}))
    Summaries(store).keep("first")
    Summaries(store).keep("nobody")
    asked = counting(store, "id > :since")
    (told,), _ = Summaries(store, now=clock).page()
    assert (told.energy_j, asked) == (4e5, [])
    assert told.saved_j > 0


def test_streams_that_are_no_runs_are_none(store, summaries):
    store.journal("series/nightly").append(Shifted(1.0, "pace", ""))
    assert summaries.page() == ([], 0)
    assert summaries.one("series/nightly") is None


def test_a_summary_is_plain(store, summaries):
    plain_run(store, "a")
    told = plain(summaries.one("a"))
    assert told["state"] == "finished"
    assert set(told) == set(RunSummary.__slots__)


def test_a_store_that_may_only_be_read_shows_what_is_remembered_and_says_what_may_be_missing(tmp_path, clock):
    store = SqliteStore(Database(tmp_path / "joulewise.db"))
    plain_run(store, "a")
    Summaries(store).page()
    plain_run(store, "b")
    with store.database.reading() as connection:
        connection.execute("PRAGMA query_only=1")
    summaries = Summaries(store, now=clock)
    assert [told.name for told in summaries.page()[0]] == ["a"]
    assert "readonly" in summaries.trouble
    assert summaries.one("b").headline.startswith("400.0")
    store.close()


def test_a_command_that_is_no_text_can_be_listed(store, summaries):
    plain_run(store, "a", command=["true", os.fsdecode(b"\xff"), "x\x00y"])
    assert summaries.page(query="true")[1] == 1
