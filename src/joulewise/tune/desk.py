"""Where the trials of one recurring job are handed out and handed in: the tuner's decisions, kept in a journal.

The tuner (``tune/series``) is a fold of events and decides; the journal holds the events; a desk joins the two. It
reads what is new, asks the tuner what follows, and appends that ``after`` the last event it knew. If somebody else was
faster it reads and decides anew, so that any number of desks, in any number of processes, may serve one job and no
trial is handed out or counted twice. A desk may be thrown away at any moment: the journal is all there is, and
everything here can be repeated after a crash (an ask under the same ``key``, a tell of the same trial).

``SeriesDesk`` is what the command line needs of a desk: ``Desk`` here, ``serve.client.Client`` over HTTP. Neither
reads a GPU nor runs a job. Time is ``wall``, in seconds since 1970: machines that share a job should agree on it to
well within a lease; if they do not, a trial may expire too early, and its result is still taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from joulewise.core.errors import BadSpec, Conflict
from joulewise.core.event import Asked, Event, Progressed
from joulewise.core.frontier import Frontier
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.store import Journal, Snapshots, Store
from joulewise.tune.replay import Replay
from joulewise.tune.series import SeriesSummary, SeriesTuner, SizeBelief, TrialRecord

T = TypeVar("T")

PREFIX = "series/"
LEASE_S = 600.0
"""A trial of which nothing is heard for this long is lost: longer than most epochs, short beside a night."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a running trial is told when it reports."""

    most_epochs: int
    """After so many epochs without its target it should be stopped."""
    go_on: bool
    """Whether it should train on."""


class SeriesDesk(Protocol):
    """One recurring job, asked and told: here or at the other end of a wire. Methods may be called from any thread."""

    @property
    def trouble(self) -> str | None:
        """Why something that was said is not kept (yet), in one line; None while all is."""
        ...

    @property
    def job(self) -> Recurring | None:
        """What is registered; None where nothing is."""
        ...

    def register(self, job: Recurring) -> None:
        """Make the job known; nothing if it is known as it is.

        Known otherwise, it is replaced while none of its runs has counted or is under way, and BadSpec after that.
        """
        ...

    def ask(
        self, recurrence: str, platform: Platform, owner: str = "", key: str = "", lease_s: float = LEASE_S
    ) -> Asked:
        """The next trial of this recurrence; under a ``key`` that was used before, the trial it gave then.

        It is lost, and free for others, ``lease_s`` seconds after the last that was heard of it. BadSpec for a job
        that is not registered, or whose sizes cannot be run; NotKept where the journal cannot be written.
        """
        ...

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        """The epochs after which the trial should be stopped without its target; ``profile``: what epochs cost it."""
        ...

    def progress(
        self, trial: int, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = LEASE_S
    ) -> Standing:
        """The trial lives and has done so many epochs: its lease begins anew, and it learns whether to go on."""
        ...

    def tell(
        self,
        trial: int,
        *,
        outcome: Outcome,
        epochs: int,
        duration_s: float,
        energy_j: float,
        profile: Sequence[EpochCost] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """How the trial ended, after how many epochs, and what it took in all. Said twice it counts once."""
        ...

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        """What is believed about each batch size there."""
        ...

    def summary(self, platform: Platform) -> SeriesSummary:
        """What learning has cost there so far, and what was saved."""
        ...

    def history(self) -> list[TrialRecord]:
        """Every trial, in the order in which they were handed out."""
        ...

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        """Whole runs that nothing beats in both time and energy, by batch size and setting."""
        ...


class Desk:
    """A ``SeriesDesk`` on a journal, which must be the job's own (``series/NAME``). NotKept where that fails."""

    def __init__(
        self,
        journal: Journal,
        *,
        snapshots: Snapshots | None = None,
        stream: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.journal = journal
        stream = stream if stream is not None else str(getattr(journal, "stream", ""))
        self._name = stream.removeprefix(PREFIX)
        self._wall = wall
        self._lock = threading.RLock()
        self._replay = Replay(journal, snapshots, stream)

    @classmethod
    def of(cls, store: Store, job: str, *, wall: Callable[[], float] = time.time) -> Desk:
        """The desk of the job of this name in a store."""
        stream = PREFIX + job
        return cls(store.journal(stream), snapshots=store.snapshots(), stream=stream, wall=wall)

    @property
    def trouble(self) -> str | None:
        """As the journal says."""
        return self.journal.trouble

    @property
    def job(self) -> Recurring | None:
        """What is registered; None where nothing is."""
        with self._lock:
            if not self._replay.tuner.settled:  # somebody may have registered it, perhaps otherwise, since
                self._replay.catch_up()
            return self._replay.tuner.job

    @property
    def last_platform(self) -> Platform | None:
        """The platform of the last ask; None where nobody has asked."""
        with self._lock:
            self._replay.catch_up()
            return self._replay.asked.platform if self._replay.asked is not None else None

    def knows(self, trial: int) -> bool:
        """Whether this trial was ever handed out."""
        with self._lock:
            if self._replay.asked is None or trial > self._replay.asked.trial:  # perhaps by somebody else since
                self._replay.catch_up()
            return self._replay.asked is not None and 0 <= trial <= self._replay.asked.trial

    def register(self, job: Recurring) -> None:
        """As ``SeriesDesk.register``."""
        self._decided(lambda tuner, now_s: tuner.register(job, now_s))

    def ask(
        self, recurrence: str, platform: Platform, owner: str = "", key: str = "", lease_s: float = LEASE_S
    ) -> Asked:
        """As ``SeriesDesk.ask``."""

        def decide(tuner: SeriesTuner, now_s: float) -> list[Event]:
            if tuner.job is None:
                raise BadSpec(f"no job is registered as {self._name!r}; register it first")
            return tuner.ask(
                now_s=now_s, recurrence=recurrence, platform=platform, owner=owner, key=key, lease_s=lease_s
            )

        with self._lock:
            events = self._decided(decide)
            asked = events[-1] if events else self._replay.tuner.asked(key)
        if not isinstance(asked, Asked):
            raise RuntimeError(f"asked for a trial, the tuner decided {asked}")
        return asked

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        """As ``SeriesDesk.limit``. BadSpec for a trial that was never handed out."""
        if not self.knows(trial):
            raise BadSpec(f"trial {trial} of {self._name!r} was never handed out; ask for one")
        return self._seen(lambda tuner: tuner.limit(trial, tuple(profile)))

    def progress(
        self, trial: int, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = LEASE_S
    ) -> Standing:
        """As ``SeriesDesk.progress``. It is written only if it says something new or half the lease is over."""

        def decide(tuner: SeriesTuner, now_s: float) -> list[Event]:
            said = tuner.progress(trial, now_s=now_s, epochs=epochs, profile=tuple(profile), lease_s=lease_s)
            return [event for event in said if not self._is_old_news(event, now_s)]

        with self._lock:
            self._decided(decide)
            most = self._replay.tuner.limit(trial, tuple(profile))
        return Standing(most, epochs < most)

    def tell(
        self,
        trial: int,
        *,
        outcome: Outcome,
        epochs: int,
        duration_s: float,
        energy_j: float,
        profile: Sequence[EpochCost] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """As ``SeriesDesk.tell``."""

        def decide(tuner: SeriesTuner, now_s: float) -> list[Event]:
            return tuner.tell(
                trial,
                now_s=now_s,
                outcome=outcome,
                epochs=epochs,
                duration_s=duration_s,
                energy_j=energy_j,
                profile=tuple(profile),
                notes=tuple(notes),
            )

        with self._lock:
            self._decided(decide)
            self._replay.save()  # now, since nobody waits for the answer to a tell

    def expire(self) -> int:
        """Let go of every trial that is overdue; how many were. An ask does so too: this is for when nobody asks."""
        return len(self._decided(lambda tuner, now_s: tuner.expired(now_s)))

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        """As ``SeriesDesk.beliefs``."""
        return self._seen(lambda tuner: tuner.beliefs(platform))

    def summary(self, platform: Platform) -> SeriesSummary:
        """As ``SeriesDesk.summary``."""
        return self._seen(lambda tuner: tuner.summary(platform))

    def history(self) -> list[TrialRecord]:
        """As ``SeriesDesk.history``."""
        return self._seen(lambda tuner: tuner.history())

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        """As ``SeriesDesk.frontier``."""
        return self._seen(lambda tuner: tuner.frontier(platform))

    def _seen(self, look: Callable[[SeriesTuner], T]) -> T:
        """What ``look`` finds in the tuner once it knows everything that is written."""
        with self._lock:
            self._replay.catch_up()
            return look(self._replay.tuner)

    def _decided(self, decide: Callable[[SeriesTuner, float], Iterable[Event]]) -> list[Event]:
        """Append what ``decide`` says, which was decided on everything that precedes it; what was appended of it."""
        with self._lock:
            while True:
                self._replay.catch_up()
                events = list(decide(self._replay.tuner, self._wall()))
                try:
                    for event in events:
                        self._replay.append(event)
                except Conflict:
                    # Somebody got ahead, so the job moved on: nobody waits for ever. What of ours was written before
                    # stands, each event being a fact by itself.
                    continue
                return events

    def _is_old_news(self, event: Event, now_s: float) -> bool:
        if not isinstance(event, Progressed):
            return False
        before = self._replay.heard_of(event.trial)
        if before is None or (before.epochs, before.profile) != (event.epochs, event.profile):
            return False
        return before.expires_s - now_s > (event.expires_s - now_s) / 2
