"""A desk for somebody who trains: what cannot be said now never disturbs the job.

A server that is away, a full disk or a trial that nobody knows any more are no reason to end a training run or to lose
one. ``progress``, ``limit`` and ``tell`` of a ``Steady`` never raise what joulewise raises on purpose: ``trouble``
says what was wrong, a result that could not be handed in is kept and tried again with the next call, and a running
trial goes by the last limit that it heard. ``register``, ``ask`` and the views raise as they do: nothing runs then.
Where the desk is a store's own, its calls are bounded (``store.bounded``): what does not answer counts as away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from joulewise.core.errors import BadSpec, JoulewiseError, NotKept
from joulewise.core.event import Asked, Told
from joulewise.core.frontier import Frontier
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.store.bounded import CALL_WAIT_S, BoundedCalls
from joulewise.tune.desk import LEASE_S, SeriesDesk, Standing
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord

T = TypeVar("T")

ASK_WAIT_S = 10.0
"""For a trial to be handed out: nothing runs yet, and without an answer nothing will."""
_AWAY_S = 5.0
_HERE = (float("-inf"), "")
_NO_LIMIT = 2**31 - 1
"""Where nobody has said yet how many epochs a trial may take."""


class Steady:
    """Another ``SeriesDesk``, with the promise above."""

    def __init__(self, desk: SeriesDesk, calls: BoundedCalls | None = None) -> None:
        self._desk, self._calls = desk, calls
        self._lock = threading.RLock()
        self._registered: Recurring | None = None
        self._limits: dict[int, int] = {}
        self._untold: list[Told] = []
        self._trouble: str | None = None
        self._away = _HERE
        """When the desk last could not be reached, and why."""

    @property
    def trouble(self) -> str | None:
        """Why the last that was said is not kept, or a result still is here, in one line; None while all is well."""
        with self._lock:
            if self._trouble is not None:
                return self._trouble
        try:
            return self._called(lambda: self._desk.trouble)
        except NotKept as error:
            return str(error)

    @property
    def untold(self) -> tuple[Told, ...]:
        """The results that could not be handed in."""
        with self._lock:
            return tuple(self._untold)

    @property
    def job(self) -> Recurring | None:
        """As ``SeriesDesk.job``."""
        return self._called(lambda: self._desk.job, ASK_WAIT_S)

    def register(self, job: Recurring) -> None:
        """As ``SeriesDesk.register``."""
        self._called(lambda: self._desk.register(job), ASK_WAIT_S)
        self._registered = job

    def ask(
        self, recurrence: str, platform: Platform, owner: str = "", key: str = "", lease_s: float = LEASE_S
    ) -> Asked:
        """As ``SeriesDesk.ask``. Results that wait are handed in before, since the answer rests on them.

        BadSpec, too, if somebody has registered another job under this name since we registered ours: what we ran
        would be taken for that one's.
        """
        self.flush()
        asked = self._called(lambda: self._desk.ask(recurrence, platform, owner, key, lease_s), ASK_WAIT_S)
        try:
            job = self._registered
            if job is not None:  # as it stays now: a job with a run under way is not replaced
                self._called(lambda: self._desk.register(job))
        except NotKept as error:
            self._trouble = str(error)
        except BadSpec:
            self.tell(
                asked.trial, outcome=Outcome.PREEMPTED, epochs=0, duration_s=0.0, energy_j=0.0, notes=("never ran",)
            )
            raise
        return asked

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        """As ``SeriesDesk.limit``; the last that was heard where nobody answers."""
        try:
            self._limits[trial] = self._called(lambda: self._desk.limit(trial, profile))
            self._trouble = None
        except JoulewiseError as error:
            self._trouble = str(error)
        return self._limits.get(trial, self._most_epochs)

    def progress(
        self, trial: int, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = LEASE_S
    ) -> Standing:
        """As ``SeriesDesk.progress``; by the last limit that was heard where nobody answers."""
        try:
            standing = self._called(lambda: self._desk.progress(trial, epochs, profile, lease_s))
        except JoulewiseError as error:
            self._trouble = str(error)
            most = self._limits.get(trial, self._most_epochs)
            return Standing(most, epochs < most)
        self._limits[trial] = standing.most_epochs
        self._trouble = None
        return standing

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
        """As ``SeriesDesk.tell``; kept here where nobody takes it now."""
        told = Told(time.time(), trial, outcome, epochs, duration_s, energy_j, tuple(profile), tuple(notes))
        with self._lock:
            self._limits.pop(trial, None)
            self._untold.append(told)
            self.flush()

    def flush(self) -> bool:
        """Try once more to hand in the results that wait, as at the end; whether none waits any longer."""
        with self._lock:
            while self._untold:
                try:
                    self._called(partial(hand_in, self._desk, self._untold[0]))
                    self._trouble = None
                except NotKept as error:
                    self._trouble = f"{error} ({len(self._untold)} results wait)"
                    return False
                except JoulewiseError as error:  # refused for good: it would be refused for ever
                    self._trouble = str(error)
                self._untold.pop(0)
            return True

    def _called(self, function: Callable[[], T], wait_s: float = CALL_WAIT_S) -> T:
        try:
            answer = function() if self._calls is None else self._calls(function, wait_s)
        except NotKept as error:
            self._away = (time.monotonic(), str(error))
            raise
        self._away = _HERE
        return answer

    def _viewed(self, function: Callable[[], T]) -> T:
        """What ``function`` reads; refused at once where the last call has just failed: it would wait as long again."""
        since_s, why = self._away
        if time.monotonic() - since_s < _AWAY_S:
            raise NotKept(why)
        return self._called(function, ASK_WAIT_S)

    @property
    def _most_epochs(self) -> int:
        return self._registered.max_epochs if self._registered is not None else _NO_LIMIT

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        """As ``SeriesDesk.beliefs``."""
        return self._viewed(lambda: self._desk.beliefs(platform))

    def summary(self, platform: Platform) -> SeriesSummary:
        """As ``SeriesDesk.summary``."""
        return self._viewed(lambda: self._desk.summary(platform))

    def history(self) -> list[TrialRecord]:
        """As ``SeriesDesk.history``."""
        return self._viewed(self._desk.history)

    def frontier(self, platform: Platform) -> Frontier[tuple[int, Setting]]:
        """As ``SeriesDesk.frontier``."""
        return self._viewed(lambda: self._desk.frontier(platform))


def hand_in(desk: SeriesDesk, told: Told) -> None:
    """Tell ``desk`` a result; raises as ``SeriesDesk.tell`` does."""
    desk.tell(
        told.trial,
        outcome=told.outcome,
        epochs=told.epochs,
        duration_s=told.duration_s,
        energy_j=told.energy_j,
        profile=told.profile,
        notes=told.notes,
    )
