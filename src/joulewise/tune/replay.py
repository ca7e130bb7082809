"""A series tuner as of the last event of its journal: read once, from a snapshot where there is one, then followed.

Anyone may write to the journal, and anyone may delete a job and begin it anew: the last event that we know is looked at
again whenever we read on, and if it is not there as we know it, all that we know is thrown away and read again. Not
safe with several threads: ``desk`` is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Asked, Event, Expired, Progressed, Told, from_json, to_json
from joulewise.store import Journal, Snapshots
from joulewise.tune.series import SeriesTuner

_SNAPSHOT_EVERY = 200
"""Events between two snapshots. Reading so many takes 15 ms; writing a snapshot of 10,000 trials takes 30 ms, which is
then a sixth of a millisecond an event."""


@dataclass(slots=True)
class _Known:
    """What follows from the events up to ``last``."""

    tuner: SeriesTuner = field(default_factory=SeriesTuner)
    last: int = 0
    event: Event | None = None
    """The one of that number."""
    asked: Asked | None = None
    """The last trial that was handed out. They are numbered as they are handed out, from 0."""
    alive: dict[int, Progressed] = field(default_factory=dict)
    """The last word of each trial that runs, of those heard here: a snapshot does not keep them."""

    def take_in(self, number: int, event: Event) -> None:
        self.tuner.fold(event)
        self.last, self.event = number, event
        match event:
            case Asked():
                self.asked = event
            case Progressed():
                self.alive[event.trial] = event
            case Told() | Expired():
                self.alive.pop(event.trial, None)


class Replay:
    """The tuner of one stream. ``catch_up`` before looking at it."""

    def __init__(self, journal: Journal, snapshots: Snapshots | None, stream: str) -> None:
        self._journal = journal
        self._snapshots = snapshots
        self._stream = stream
        self._known: _Known | None = None
        self._saved = 0

    @property
    def tuner(self) -> SeriesTuner:
        """As of the last event that was read."""
        return self._now.tuner

    @property
    def last(self) -> int:
        """Its number; 0 where there is none."""
        return self._now.last

    @property
    def asked(self) -> Asked | None:
        """The last trial that was handed out; None where none was."""
        return self._now.asked

    def heard_of(self, trial: int) -> Progressed | None:
        """The last word of a trial that runs, if we have read it."""
        return self._now.alive.get(trial)

    def catch_up(self) -> None:
        """Read what is new. NotKept where the journal cannot be read, or what is in it is damaged."""
        if self._known is None:
            self._known = self._loaded() or _Known()
        before = self._now.last
        if not self._follow():
            self._known, before = _Known(), 0
            self._follow()
        if self._now.last - before >= _SNAPSHOT_EVERY:  # whoever starts next shall not have to read all that
            self.save()

    def append(self, event: Event) -> None:
        """Write what follows from all that we know, and take it in. Conflict where there is more by now."""
        now = self._now
        now.take_in(self._journal.append(event, after=now.last), event)

    def save(self) -> None:
        """Keep a snapshot if it is time for one; one that cannot be kept is missed by nobody."""
        now = self._now
        if self._snapshots is None or now.event is None or now.last - self._saved < _SNAPSHOT_EVERY:
            return
        self._saved = now.last
        state = {
            "tuner": now.tuner.to_json(),
            "event": to_json(now.event),
            "asked": to_json(now.asked) if now.asked is not None else None,
        }
        self._snapshots.save(self._stream, SeriesTuner.VERSION, now.last, state)

    @property
    def _now(self) -> _Known:
        if self._known is None:
            self.catch_up()
        assert self._known is not None
        return self._known

    def _follow(self) -> bool:
        """Take in what follows the last event that we know; False if that one is not there as we know it."""
        now = self._now
        same = now.last == 0
        try:
            for number, event in self._journal.read(max(0, now.last - 1)):
                if number > now.last:
                    now.take_in(number, event)
                elif event != now.event:
                    return False
                same = True
        except BadSpec as error:  # an event that is none: nobody asked wrongly, the journal is damaged
            raise NotKept(str(error)) from error
        return same

    def _loaded(self) -> _Known | None:
        """What the latest snapshot knows. It may be missing or damaged, and then it is not needed."""
        found = self._snapshots.load(self._stream, SeriesTuner.VERSION) if self._snapshots is not None else None
        if found is None:
            return None
        last, state = found
        try:
            asked = from_json(state["asked"]) if state["asked"] is not None else None
            known = _Known(SeriesTuner.from_json(state["tuner"]), last, from_json(state["event"]))
            known.asked = asked if isinstance(asked, Asked) else None
        except (BadSpec, KeyError, TypeError, ValueError, AttributeError):
            return None
        self._saved = last
        return known
