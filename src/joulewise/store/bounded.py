"""A store that may not answer: waits for it are bounded, so that a lock or a hung disk never holds up a run.

A write to SQLite may wait for another process's lock, one to PostgreSQL for a table lock, and a read from a disk or a
server that hangs may never come back. None of this can be interrupted, so it happens on threads that can be left
behind. ``BoundedCalls`` gives up waiting for a call; ``BackgroundJournal`` writes a run's events from a thread of its
own and knows at any time which of them are not in the store, for ``store.unsent`` to save.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from joulewise.core.errors import NotKept
from joulewise.core.event import Event, to_json
from joulewise.store.journal import refuse_late
from joulewise.store.kept import KeptJournal

CALL_WAIT_S: Final = 2.5
"""For one call. SQLite gives up on a lock after 2 s and says why, which is better than that we do."""
APPEND_WAIT_S: Final = 0.25
"""For one event of a run. The tuner accounts for its time with gaps of at most 0.5 s (``tune.chain``): half of that."""
_RETRY_S: Final = 5.0
"""Between attempts to write what could not be written; as ``store.kept``."""

T = TypeVar("T")


class BoundedCalls:
    """Calls to the store called ``name``, one at a time, each given up after ``wait_s`` seconds.

    A call that was given up goes on by itself; until it has ended, others are refused at once. Its result is lost, so
    that whoever writes must be able to write again.
    """

    def __init__(self, name: str, wait_s: float = CALL_WAIT_S) -> None:
        self.name, self.wait_s = name, wait_s
        self._turn = threading.Lock()
        self._given_up = threading.Event()

    def __call__(self, function: Callable[[], T], wait_s: float | None = None) -> T:
        """What ``function`` returns or raises; NotKept where it does not end in time."""
        wait_s = self.wait_s if wait_s is None else wait_s
        if not self._turn.acquire(timeout=0 if self._given_up.is_set() else wait_s):
            raise NotKept(f"{self.name} still has not answered an earlier call; see what locks it")
        outcome: list[tuple[T | None, BaseException | None]] = []
        ended = threading.Event()
        threading.Thread(target=self._run, args=(function, outcome, ended), name="joulewise store", daemon=True).start()
        if not ended.wait(wait_s):
            self._given_up.set()
            if not ended.is_set():
                raise NotKept(f"{self.name} has not answered for {wait_s:g} s; see what locks it")
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _run(self, function: Callable[[], T], outcome: list[Any], ended: threading.Event) -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:  # raised again where it was called
            outcome.append((None, error))
        self._given_up.clear()
        self._turn.release()
        ended.set()


class BackgroundJournal:
    """A ``Journal`` that writes to another one from a thread, for a stream that has no other writer.

    ``append`` waits until the event is written, for at most ``wait_s``, and not at all while the store is behind.
    All events stay in memory, so that reading needs no store. ``past`` is what the stream held before.
    """

    def __init__(self, journal: KeptJournal, past: Sequence[Event] = (), wait_s: float = APPEND_WAIT_S) -> None:
        self.stream = journal.stream
        self._journal, self._wait_s = journal, wait_s
        self._events = list(past)
        self._past = len(past)
        self._handed = self._written = len(self._events)
        """How many events the other journal has taken, and how many of them are in the store."""
        self._behind = False
        """Whether an append was not waited for to its end."""
        self._trouble: str | None = None
        self._ended = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def continued(self) -> bool:
        """Whether the stream held events before."""
        return self._past > 0

    @property
    def trouble(self) -> str | None:
        """As ``Journal.trouble``; never waits."""
        with self._changed:
            missing = len(self._events) - self._written
            return (self._trouble or f"{missing} events are not written yet") if missing else None

    @property
    def refusal(self) -> str | None:
        """Why the store could not be written when it last answered; None where it could, or never did."""
        with self._changed:
            return self._trouble

    def append(self, event: Event, after: int | None = None) -> int:
        """As ``Journal.append``."""
        to_json(event)  # as strict as the journal that is written
        with self._changed:
            refuse_late(after, len(self._events), self.stream)
            self._events.append(event)
            number = len(self._events)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="joulewise journal", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if not self._behind and self._trouble is None:
                self._behind = not self._changed.wait_for(lambda: self._handed >= number, self._wait_s)
            return number

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        """As ``Journal.read``, from memory."""
        with self._changed:
            events = self._events[max(0, since) :]
        yield from enumerate(events, start=max(0, since) + 1)

    def end(self, wait_s: float) -> bool:
        """No more events will come; whether all are written within ``wait_s``. May be asked again."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._written == len(self._events), wait_s)

    def unwritten(self) -> tuple[int, list[Event]]:
        """After which id of the stream events are missing in the store, and these events. Never waits."""
        with self._changed:
            return self._written, self._events[self._written :]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_work, _RETRY_S if self._trouble is not None else None)
                event = self._events[self._handed] if self._handed < len(self._events) else None
                last_try = self._ended and event is None
                if last_try and self._written == len(self._events):
                    return
            try:
                if event is not None:
                    self._journal.append(event)
                else:
                    self._journal.flush()
                trouble = self._journal.trouble
            except Exception as error:  # a bug of ours: what is missing is saved elsewhere, as for a store that is away
                with self._changed:
                    self._trouble = f"{type(error).__name__}: {error}"
                    self._changed.notify_all()
                return
            with self._changed:
                self._handed += event is not None
                self._trouble = trouble
                if trouble is None:
                    self._written = self._handed
                self._behind = self._handed < len(self._events)
                self._changed.notify_all()
                if last_try:
                    return  # what is missing now is saved elsewhere

    def _is_work(self) -> bool:
        return self._handed < len(self._events) or self._ended
