"""Following a run costs little however long it is, and its end is told at once."""

from joulewise.core.block import Role
from joulewise.core.event import Finished
from joulewise.report.story import Story
from joulewise.serve import face_stories
from joulewise.serve.face_stories import Stories
from joulewise.store.database import Database
from joulewise.store.sql import SqliteStore
from tests.cli import made_up
from tests.serve import face_toys as toys


class Clock:
    """A second passes with every look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def began(tmp_path, blocks=5):
    """A store with a run that goes on, and what comes next in it."""
    store = SqliteStore(Database(tmp_path / "x.db"))
    made = made_up.Made()
    for _ in range(blocks):
        made.block(made_up.HELD, Role.HOLD, "held")
    toys.write(store, "run", made.events)
    made.events.clear()
    return store, made


def test_a_run_that_goes_on_is_folded_again_after_twenty_times_as_long_as_that_took(tmp_path):
    store, made = began(tmp_path)
    clock = Clock()
    stories = Stories(store, now=clock)
    first = stories.of("run", 0.0)  # took a second, by this clock
    made.block(made_up.HELD, Role.HOLD, "held")
    toys.write(store, "run", made.events)
    assert stories.of("run", 0.0) is first
    clock.now_s += 20.0
    later = stories.of("run", 0.0)
    assert len(later.story.events) == len(first.story.events) + 2
    assert stories.of("run", 0.0) is later


def test_the_end_of_a_run_is_told_at_once(tmp_path):
    store, made = began(tmp_path)
    stories = Stories(store, now=Clock())
    stories.of("run", 0.0)
    toys.write(store, "run", [Finished(made.now_s, "ended", {})])
    told = stories.of("run", 0.0)
    assert told.story.finished is not None
    events = [event for _, event in store.journal("run").read()]
    assert told.story == Story.of(events)


def test_a_run_that_is_longer_than_all_that_may_be_remembered_is_not_read_anew_at_every_look(tmp_path, monkeypatch):
    monkeypatch.setattr(face_stories, "_MOST_EVENTS", 3)
    store, _ = began(tmp_path)
    stories = Stories(store)
    assert stories.of("run", 0.0) is stories.of("run", 0.0)
