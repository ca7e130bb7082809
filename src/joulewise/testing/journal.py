# ruff: noqa: D102 (the names of the tests are their sentences)
"""What every ``Journal`` must do, as tests: inherit ``JournalConformance`` and give it a ``journal`` fixture."""

from __future__ import annotations

import threading

import pytest

from joulewise.core.errors import Conflict
from joulewise.core.event import Event, Expired, Shifted
from joulewise.store.journal import Journal

_WRITERS, _EACH = 4, 25


class JournalConformance:
    """Inherit and override ``journal``: empty, and writable."""

    @pytest.fixture
    def journal(self) -> Journal:
        """The journal under test."""
        raise NotImplementedError("override the fixture 'journal'")

    def test_it_is_a_journal(self, journal: Journal) -> None:
        assert isinstance(journal, Journal)
        assert journal.trouble is None

    def test_what_is_appended_is_read_in_order_with_ids_from_1(self, journal: Journal) -> None:
        events = [_event(place) for place in range(5)]
        assert [journal.append(event) for event in events] == [1, 2, 3, 4, 5]
        assert list(journal.read()) == list(enumerate(events, start=1))

    def test_only_what_came_after_an_id_is_read(self, journal: Journal) -> None:
        for place in range(4):
            journal.append(_event(place))
        assert [number for number, _ in journal.read(since=2)] == [3, 4]
        assert list(journal.read(since=4)) == []

    def test_an_event_that_would_not_follow_the_one_named_is_refused_and_not_written(self, journal: Journal) -> None:
        assert journal.append(_event(0), after=0) == 1
        with pytest.raises(Conflict):
            journal.append(_event(1), after=0)
        assert journal.append(_event(1), after=1) == 2
        assert len(list(journal.read())) == 2

    def test_an_event_with_a_number_that_is_none_is_refused_and_stands_in_nobody_s_way(self, journal: Journal) -> None:
        journal.append(_event(0))
        with pytest.raises(ValueError, match="JSON compliant"):
            journal.append(Shifted(float("nan"), "pace", "never"))
        journal.append(_event(1))
        assert list(journal.read()) == [(1, _event(0)), (2, _event(1))]
        assert journal.trouble is None

    def test_reading_while_writing_gives_what_was_there(self, journal: Journal) -> None:
        journal.append(_event(0))
        reading = journal.read()
        first = next(reading)
        journal.append(_event(1))
        assert first == (1, _event(0))
        assert list(journal.read(since=1)) == [(2, _event(1))]

    def test_several_threads_lose_nothing_and_share_no_id(self, journal: Journal) -> None:
        given: list[int] = []

        def write(writer: int) -> None:
            given.extend(journal.append(Expired(float(place), writer, "x")) for place in range(_EACH))

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(_WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == list(range(1, _WRITERS * _EACH + 1))
        read = [event for _, event in journal.read() if isinstance(event, Expired)]
        for writer in range(_WRITERS):
            assert [event.time_s for event in read if event.trial == writer] == [float(p) for p in range(_EACH)]


def _event(place: int) -> Event:
    return Shifted(float(place), "pace", f"event {place}: ± − “ ”")
