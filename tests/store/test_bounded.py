"""Waits for a store that does not answer are bounded, in number and in time."""

import threading

import pytest

from joulewise.core.errors import NotKept
from joulewise.core.event import Began, Shifted
from joulewise.store import Database, SqliteStore
from joulewise.store.bounded import BackgroundJournal, BoundedCalls

BEGAN = Began(0.0, "run", {})


def event(number):
    return Shifted(float(number), "idle", "")


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(Database(tmp_path / "joulewise.db"))
    yield store
    store.close()


class Gated:
    """A journal that takes nothing while its gate is shut."""

    def __init__(self, journal):
        self.journal, self.stream = journal, journal.stream
        self.gate, self.reached = threading.Event(), threading.Event()

    def append(self, event, after=None):
        self.reached.set()
        assert self.gate.wait(30)
        return self.journal.append(event, after)

    def flush(self):
        return self.journal.flush()

    @property
    def trouble(self):
        return self.journal.trouble


def test_a_call_that_answers_is_a_call():
    calls = BoundedCalls("a store", 30.0)
    assert calls(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        calls(lambda: 1 // 0)
    assert calls(lambda: 8) == 8


def test_a_call_that_does_not_answer_is_given_up_and_others_are_refused_at_once_until_it_does():
    calls, answer, answered = BoundedCalls("a store", 30.0), threading.Event(), threading.Event()
    with pytest.raises(NotKept, match="has not answered for 0 s"):
        calls(lambda: answer.wait(30) and answered.set(), 0.0)
    with pytest.raises(NotKept, match="still has not answered"):  # with 30 s this would be no test but a wait
        calls(lambda: 7)
    answer.set()
    assert answered.wait(30)
    while True:
        try:
            assert calls(lambda: 7) == 7
            break
        except NotKept:  # its thread ends a moment later
            continue


def test_events_are_in_the_store_when_append_returns(store):
    journal = BackgroundJournal(store.journal("run"), wait_s=30.0)
    for number in range(3):
        assert journal.append(event(number)) == number + 1
        assert len(list(store.journal("run").read())) == number + 1
    assert journal.end(30.0)
    assert journal.trouble is None


def test_a_store_that_hangs_is_waited_for_once_and_then_nothing_is_lost(store):
    gated = Gated(store.journal("run"))
    journal = BackgroundJournal(gated, wait_s=0.0)
    assert journal.append(BEGAN) == 1
    journal._wait_s = 300.0  # from here on a wait would be seen: by the test's own limit
    assert [journal.append(event(number)) for number in (1, 2, 3)] == [2, 3, 4]
    assert not journal.end(0.0)
    assert journal.unwritten() == (0, [BEGAN, event(1), event(2), event(3)])
    assert [each for _, each in journal.read()] == [BEGAN, event(1), event(2), event(3)]
    assert journal.trouble == "4 events are not written yet"
    gated.gate.set()
    assert journal.end(30.0)
    assert [each for _, each in store.journal("run").read()] == [BEGAN, event(1), event(2), event(3)]


def test_a_store_that_refuses_says_why_and_is_tried_again_at_the_end(tmp_path):
    folder = tmp_path / "no folder yet"
    folder.write_text("a file")
    store = SqliteStore(Database(folder / "joulewise.db"))
    journal = BackgroundJournal(store.journal("run"), wait_s=30.0)
    journal.append(BEGAN)
    assert "file exists" in journal.refusal
    folder.unlink()
    assert journal.end(30.0)
    assert [each for _, each in store.journal("run").read()] == [BEGAN]
    store.close()


def test_a_run_that_is_gone_on_with_follows_what_the_store_holds(store):
    store.journal("run").append(BEGAN)
    journal = BackgroundJournal(store.journal("run"), [BEGAN], wait_s=30.0)
    assert journal.append(event(1), after=1) == 2
    assert journal.end(30.0)
    assert [number for number, _ in store.journal("run").read()] == [1, 2]


def test_closing_a_file_does_not_wait_for_a_call_that_hangs(store):
    inside, answer = threading.Event(), threading.Event()

    def hangs():
        with store.database.writing():
            inside.set()
            answer.wait(30)

    thread = threading.Thread(target=hangs)
    thread.start()
    assert inside.wait(30)
    store.close()
    assert thread.is_alive()
    answer.set()
    thread.join()
