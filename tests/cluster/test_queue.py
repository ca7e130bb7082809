"""The book: a deterministic fold of the journal, fenced, and patient with what it does not know."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from joulewise.cluster.engine import Order
from joulewise.cluster.queue import Book
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec, Fenced
from joulewise.core.event import Aimed, Finished, Limited, Ordered, Turned
from joulewise.core.knob import Setting
from joulewise.store.journal import MemoryJournal
from joulewise.store.store import open_store

ORDER = Order("bert", ("python", "train.py"), 8, 10.0, checkpoint="/scratch/bert", environ={"A": "b"}, work=1000.0)
WAY = Way(8, 0.5, 900.0, Setting(sm_mhz=1200), "toy", error=0.1)


def story(book: Book) -> None:
    book.lead(0.0)
    book.order(1.0, ORDER, "17")
    book.aim(2.0, "bert", "start", WAY, {"n1": 8}, "it is alone")
    book.turn(3.0, "bert", "started", starts=1, version=1)
    book.append(Limited(4.0, "cap", {"cap_w": 9000.0}))
    book.turn(5.0, "bert", "measured", energy_j={"n1": 500.0}, done=7.0, gpu_s=16.0)
    book.turn(5.0, "", "measured", meters_j={"": 900.0, "n1": 800.0})


def test_whoever_reads_the_same_journal_has_the_same_book() -> None:
    journal = MemoryJournal()
    book = Book(journal)
    story(book)
    again = Book(journal)
    assert again.jobs == book.jobs
    assert (again.epoch, again.limits, again.meters_j) == (1, book.limits, {"": 900.0, "n1": 800.0})
    kept = again.jobs["bert"]
    assert kept.order == ORDER
    assert kept.aim is not None
    assert (kept.aim.way, kept.aim.place, kept.aim.version) == (WAY, {"n1": 8}, 1)
    assert (kept.id, kept.state, kept.starts, kept.reached, kept.done) == ("17", "running", 1, 1, 7.0)
    assert kept.energy_j == {"n1": 500.0}


def test_a_scheduler_whose_journal_moved_under_it_is_fenced_before_it_does_anything() -> None:
    journal = MemoryJournal()
    old = Book(journal)
    story(old)
    new = Book(journal)
    assert new.lead(6.0) == 2
    with pytest.raises(Fenced, match="another scheduler leads now"):
        old.aim(7.0, "bert", "preempt", None, {}, "")
    assert new.jobs["bert"].aim is not None
    assert new.jobs["bert"].aim.what == "start"


def test_a_new_leader_reads_what_was_written_between_its_reading_and_its_leading() -> None:
    journal = MemoryJournal()
    late = Book(journal)
    story(Book(journal))
    assert late.lead(6.0) == 2
    assert list(late.jobs) == ["bert"]


def test_a_job_ends_once_and_its_name_may_be_used_again() -> None:
    book = Book(MemoryJournal())
    story(book)
    book.turn(8.0, "bert", "ended", ended_s=7.5, exit_code=0, starts=1)
    book.turn(9.0, "bert", "failed", exit_code=1)
    assert (book.jobs["bert"].state, book.jobs["bert"].ended_s, book.jobs["bert"].exit_code) == ("ended", 7.5, 0)
    with pytest.raises(BadSpec, match="is over"):
        book.aim(9.0, "bert", "start", WAY, {"n1": 8}, "")
    book.turn(9.0, "bert", "measured", energy_j={"n2": 5.0}, final=True)
    assert book.jobs["bert"].settled
    assert book.jobs["bert"].energy_j == {"n1": 500.0, "n2": 5.0}
    book.order(10.0, ORDER, "18")
    kept = book.jobs["bert"]
    assert (kept.id, kept.state, kept.aim, kept.energy_j, kept.settled) == ("18", "waiting", None, {}, False)


def test_one_that_stopped_has_no_aim_but_its_versions_go_on() -> None:
    book = Book(MemoryJournal())
    story(book)
    book.turn(6.0, "bert", "stopped", done=5.0)
    assert (book.jobs["bert"].aim, book.jobs["bert"].done) == (None, 5.0)
    assert book.aim(7.0, "bert", "start", WAY, {"n2": 8}, "").version == 2


def test_what_it_does_not_know_it_passes_over() -> None:
    journal = MemoryJournal()
    journal.append(Finished(0.0, "something else", {}))
    journal.append(Ordered(1.0, "odd", {"gpus": 3}))
    journal.append(Ordered(1.0, "bert", {**_plain(), "id": "1", "colour": "blue"}))
    journal.append(Aimed(2.0, 1, "nobody", "start", {}))
    journal.append(Aimed(2.0, 1, "bert", "teleport", {"way": {"gpus": "many"}}))
    journal.append(Turned(3.0, "bert", "sang", {"song": 1}))
    journal.append(Turned(3.0, "nobody", "ended", {}))
    book = Book(journal)
    assert list(book.jobs) == ["bert"]
    assert book.jobs["bert"].aim is None
    assert book.jobs["bert"].state == "waiting"


def test_the_book_outlives_its_process_in_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with closing(open_store(url)) as store:
        story(Book(store.journal("cluster")))
    with closing(open_store(url)) as store:
        assert Book(store.journal("cluster")).jobs["bert"].order == ORDER


def _plain() -> dict[str, object]:
    journal = MemoryJournal()
    Book(journal).order(0.0, ORDER)
    return dict(next(event.facts for _, event in journal.read() if isinstance(event, Ordered)))


def test_a_job_that_is_over_and_left_its_name_to_another_is_kept_until_its_energy_is_settled() -> None:
    journal = MemoryJournal()
    book = Book(journal)
    story(book)
    book.turn(6.0, "bert", "ended", exit_code=0)
    book.order(7.0, ORDER, "18")
    assert [kept.energy_j for kept in Book(journal).former.values()] == [{"n1": 500.0}]
    book.turn(8.0, "bert", "measured", of="17", energy_j={"n1": 700.0}, final=True)
    assert Book(journal).former == book.former == {}
    assert (book.jobs["bert"].id, book.jobs["bert"].energy_j, book.jobs["bert"].settled) == ("18", {}, False)


def test_one_that_settled_before_its_name_was_used_again_leaves_nothing() -> None:
    book = Book(MemoryJournal())
    story(book)
    book.turn(6.0, "bert", "ended", exit_code=0)
    book.turn(6.0, "bert", "measured", of="17", energy_j={"n1": 700.0}, final=True)
    book.order(7.0, ORDER, "18")
    assert book.former == {}


def test_a_job_with_another_id_keeps_what_it_took_under_the_one_before() -> None:
    book = Book(MemoryJournal())
    story(book)
    book.order(6.0, ORDER, "18")
    kept = book.jobs["bert"]
    assert (kept.id, kept.energy_j, kept.before_j) == ("18", {"n1": 500.0}, {"n1": 500.0})
    assert (kept.state, kept.versions, kept.starts) == ("running", 1, 1)


def test_a_job_that_was_lost_and_is_found_waits_to_be_decided_with_its_account_open_again() -> None:
    journal = MemoryJournal()
    book = Book(journal)
    story(book)
    book.turn(6.0, "bert", "lost")
    assert book.jobs["bert"].lost
    book.turn(6.0, "bert", "measured", of="17", final=True)
    book.turn(7.0, "bert", "found", id="19", before_j={"n1": 400.0})
    kept = Book(journal).jobs["bert"]
    assert kept == book.jobs["bert"]
    assert (kept.id, kept.over, kept.lost, kept.settled, kept.why, kept.aim) == ("19", False, False, False, "", None)
    assert (kept.before_j, kept.energy_j, kept.done) == ({"n1": 400.0}, {"n1": 500.0}, 7.0)
    assert book.aim(8.0, "bert", "start", WAY, {"n1": 8}, "").version == 2
