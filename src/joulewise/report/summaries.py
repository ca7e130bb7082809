"""Every run of a store in short, a page at a time, and what they come to together; for lists of any length.

What a run came to is folded from its journal once, when it has ended, and remembered beside the journal (table
``summaries``), from where it may be thrown away at any time: it is folded again. So a look at ten thousand runs reads
one page of rows and a few sums. Runs that are new to us get a provisional row, from their first and last events alone,
before all of theirs are folded. Both are done as far as ``patience_s`` allows, the latest first, and go on with the
next look: whoever looks first after a long absence is answered soon, and ``behind`` says that there is more to come.
Not the runs themselves: ``store.views`` and ``report.story`` tell those.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from joulewise.core.errors import JoulewiseError, NotKept
from joulewise.core.parsing import json_value
from joulewise.core.plain import plain
from joulewise.report.run_summary import RunSummary, State, recalled, state_of, summary, words_of
from joulewise.report.story import Story
from joulewise.store import views
from joulewise.store.store import Store
from joulewise.store.views import Run

__all__ = ["RunSummary", "State", "Summaries", "Totals"]

VERSION: Final = 1
"""Of what is remembered. Another one is folded anew; minus this is a provisional row."""
PATIENCE_S: Final = 0.1
"""How long one look may go on with what is new, in seconds of this thread's processor time."""
_WALL: Final = 5.0
"""So many times as long by the clock: a database elsewhere costs waiting, not processor time."""
_LEAST: Final = 25
"""So many runs are taken in whatever it takes: each look shall be further than the last."""
WAIT_S: Final = 0.5
"""How long whoever asks waits for another's look, by the clock; then what is there by now is the answer."""
DAMAGED: Final = "its journal is damaged"
"""How the headline of a run begins that cannot be told any more."""
_FRESH_S: Final = 1.0
_YOUNG_S: Final = 120.0
"""What a whole command used is written seconds after its tuner has ended."""
_SURE_S: Final = 3600.0
"""Who was not heard of for so long is not looked at again unless it begins anew."""
_AT_ONCE: Final = 200
_MOST: Final = 500

_ENDS: Final = "kind IN ('Began', 'Finished') AND substr(stream, 1, 9) <> 'measured/'"
_EDGES: Final = f"SELECT COUNT(*), MAX(at), SUM(id) FROM events WHERE {_ENDS}"
_NEW: Final = f"""
SELECT edges.stream
FROM (SELECT stream, MAX(id) AS id, MAX(at) AS at FROM events WHERE {_ENDS} GROUP BY stream) AS edges
LEFT JOIN summaries ON summaries.stream = edges.stream
WHERE summaries.stream IS NULL OR summaries.edge_id <> edges.id OR summaries.version NOT IN (:version, :provisional)
ORDER BY edges.at DESC LIMIT {_AT_ONCE}
"""
_UNSETTLED: Final = f"""
SELECT stream, version, state, summary FROM summaries WHERE settled = 0 AND began_s < :before_s
ORDER BY began_s DESC LIMIT {_AT_ONCE}
"""
_REMEMBERED: Final = f"""
SELECT summary FROM summaries WHERE stream = :stream AND version = :version AND settled = 1 AND edge_id =
(SELECT MAX(id) FROM events WHERE stream = :stream AND {_ENDS})
"""
_HEARD: Final = "SELECT MAX(at) FROM events WHERE stream = :stream"
_EDGE: Final = "SELECT MAX(id) FROM events WHERE stream = :stream AND kind IN ('Began', 'Finished')"
_NUMBERS: Final = ("began_s", "watched_s", "energy_j", "saved_j", "saved_half_j")
_WHOLE: Final = ("version", "edge_id", "settled", "simulated")
_TEXTS: Final = ("state", "words", "summary")
_COLUMNS: Final = (*_WHOLE, *_TEXTS, *_NUMBERS)
_CASTS: Final = (
    *(f"CAST(:{name} AS BIGINT)" for name in _WHOLE),
    *(f"CAST(:{name} AS TEXT)" for name in _TEXTS),
    *(f"CAST(:{name} AS DOUBLE PRECISION)" for name in _NUMBERS),
)
_SAVE: Final = (
    f"INSERT INTO summaries (stream, {', '.join(_COLUMNS)}) SELECT CAST(:stream AS TEXT), {', '.join(_CASTS)} "
    # A run that was forgotten meanwhile stays so.
    "WHERE EXISTS (SELECT 1 FROM events WHERE stream = :stream AND id = :edge_id) "
    f"ON CONFLICT (stream) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS)}"
)
_WHERE: Final = "(:state = '' OR state = :state) AND words LIKE :pattern ESCAPE '!'"
_PAGE: Final = f"""
SELECT summary FROM summaries WHERE {_WHERE} ORDER BY began_s DESC, stream DESC LIMIT :most OFFSET :first
"""
_COUNT: Final = f"SELECT COUNT(*) FROM summaries WHERE {_WHERE}"
_TOTALS: Final = """
SELECT COUNT(*), COALESCE(SUM(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0), COALESCE(SUM(simulated), 0),
    COALESCE(SUM(energy_j), 0), SUM(saved_j), SUM(saved_half_j * saved_half_j), COALESCE(SUM(watched_s), 0)
FROM summaries WHERE simulated IN (:real, :simulated)
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """All runs together."""

    runs: int = 0
    running: int = 0
    virtual: int = 0
    """How many of the runs were on simulated GPUs: what those used and saved was never spent."""
    energy_j: float = 0.0
    """Of those that were measured to their end."""
    saved_j: float | None = None
    """Of those that claim something; None where none does."""
    saved_half_j: float | None = None
    """Half of its 95 % interval: runs err independently, so that halves add in squares."""
    watched_s: float = 0.0


class Summaries:
    """The runs of ``store``. Safe with several threads and processes. NotKept when the store cannot be read.

    ``now`` gives Unix time. What cannot be remembered (a store that may only be read) is left out of lists, and
    ``trouble`` says so.
    """

    def __init__(
        self,
        store: Store,
        *,
        fresh_s: float = _FRESH_S,
        patience_s: float = PATIENCE_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._tables = store, store.tables
        self._fresh_s, self._patience_s, self._now = fresh_s, patience_s, now
        self._lock = threading.Lock()
        self._looked_s = -math.inf
        self._edges: tuple[object, ...] | None = None
        self.trouble: str | None = None
        """Why some runs may be missing, in one line; None while none is."""
        self.behind = False
        """Whether some are missing, or not folded, since there was too much for one look. The next one goes on."""

    def page(self, first: int = 0, most: int = 50, query: str = "", state: str = "") -> tuple[list[RunSummary], int]:
        """Runs from number ``first`` on, the latest first, at most ``most``; and how many there are in all.

        Only those with ``query`` in their name, command, GPU or headline, and in ``state``, where these are given.
        """
        self.refresh()
        wanted = {"pattern": _pattern(query), "state": _clean(state)}
        rows = self._tables.select(_PAGE, {**wanted, "first": max(0, first), "most": min(max(0, most), _MOST)})
        counted = self._tables.select(_COUNT, wanted)
        return list(_read(rows, self._now())), counted[0][0] if counted else 0

    def one(self, name: str) -> RunSummary | None:
        """The run of exactly this name, as it stands now; None if there is none."""
        run = self._run(name)
        if run is None:
            return None
        rows = self._tables.select(_REMEMBERED, {"stream": name, "version": VERSION})
        for told in _read(rows, self._now()):
            return told
        return self._told(run)[0]

    def totals(self, *, virtual: bool | None = None) -> Totals:
        """All runs together; only those on simulated GPUs, or only the others, if ``virtual`` says so."""
        self.refresh()
        real, simulated = (0, 1) if virtual is None else (int(virtual), int(virtual))
        for runs, running, of_them, energy_j, saved_j, squares, watched_s in self._tables.select(
            _TOTALS, {"real": real, "simulated": simulated}
        ):
            half_j = None if saved_j is None else math.sqrt(squares or 0.0)
            return Totals(runs, int(running), int(of_them), energy_j, saved_j, half_j, watched_s)
        return Totals()

    def keep(self, name: str) -> None:
        """Remember what this run came to, as whoever ran it does at its end; in vain is no fault."""
        try:
            run = self._run(name)
            if run is not None:
                told, full = self._told(run)
                self._save(run, told, full=full)
        except NotKept as error:
            self.trouble = str(error)

    def refresh(self, patience_s: float | None = None) -> bool:
        """Take in what has happened since the last look; whether all journals that have ended are folded.

        Looks at most once in ``fresh_s``, unless ``patience_s`` is given. NotKept when the store cannot be read.
        """
        # Who names a patience has time to wait; others are answered out of what is there, also while a long journal is
        # folded for somebody else.
        if not self._lock.acquire(timeout=-1 if patience_s is not None else WAIT_S):
            return False
        try:
            if 0 <= self._now() - self._looked_s < self._fresh_s and patience_s is None:
                return not self.behind
            patience_s = self._patience_s if patience_s is None else patience_s
            try:
                whole = self._take_in(_Patience(patience_s))
                done = self._fold(_Patience(patience_s if whole else 0.0)) and whole
                self.trouble, self.behind = None, not done
            except _NotRemembered as error:
                self.trouble, self.behind = str(error), False
                done = False
            self._looked_s = self._now()
            return done
        finally:
            self._lock.release()

    def _take_in(self, patience: _Patience) -> bool:
        """A provisional row for each run that has begun or ended since, the latest first; whether all have one."""
        edges = next(iter(self._tables.select(_EDGES, {})), None)
        if edges == self._edges:
            return True
        numbers = {"version": VERSION, "provisional": -VERSION}
        before: list[str] = []
        taken = 0
        while streams := [stream for (stream,) in self._tables.select(_NEW, numbers)]:
            if streams == before:  # what cannot be told is never remembered; not for ever again
                break
            before = streams
            for stream in streams:
                if taken >= _LEAST and patience.over:
                    return False
                taken += 1
                run = self._run(stream)
                if run is not None:
                    heard_s = self._heard_s(run)
                    state = state_of(run, heard_s, self._now())
                    told = summary(run, state, self._now(), heard_s=heard_s)
                    self._save(run, told, full=not told.tuned and state is not State.RUNNING)
        self._edges = edges
        return True

    def _fold(self, patience: _Patience) -> bool:
        """Fold what has ended and is not folded yet, and see what has become of those that run; whether all are."""
        before_s = 1e300
        folded = 0
        while rows := self._tables.select(_UNSETTLED, {"before_s": before_s}):
            for stream, version, state, remembered in rows:
                run = self._run(stream)
                if run is None:
                    self._tables.change("DELETE FROM summaries WHERE stream = :stream", {"stream": stream})
                    continue
                before_s = min(before_s, run.began_at_s)
                heard_s = self._heard_s(run)
                now = state_of(run, heard_s, self._now())
                if now is State.RUNNING:
                    told = summary(run, now, self._now(), heard_s=heard_s)
                    if _text(told) != remembered:
                        self._save(run, told, full=False)
                elif version == VERSION and state == now and not self._settled(run, now, heard_s):
                    continue
                elif folded and patience.over:  # one at least: the next look shall be further
                    return False
                else:
                    folded += 1
                    told, full = self._told(run)
                    self._save(run, told, full=full)
            if len(rows) < _AT_ONCE:
                return True
        return True

    def _told(self, run: Run) -> tuple[RunSummary, bool]:
        """The run as it stands, all of its journal read where it has ended; and whether that is so."""
        heard_s, now_s = self._heard_s(run), self._now()
        state = state_of(run, heard_s, now_s)
        if state is State.RUNNING or run.facts.get("tuned") is False:
            return summary(run, state, now_s, heard_s=heard_s), state is not State.RUNNING
        try:
            story = Story.of(event for _, event in self._store.journal(run.name).read())
            return summary(run, state, now_s, story, heard_s=heard_s), True
        except NotKept:
            raise
        except (JoulewiseError, ValueError, ArithmeticError) as error:  # one damaged run hides no other
            told = summary(run, state, now_s, heard_s=heard_s)
            return _damaged(told, error), True

    def _save(self, run: Run, told: RunSummary, *, full: bool) -> None:
        settled = full and self._settled(run, told.state, self._heard_s(run))
        edge = self._tables.select(_EDGE, {"stream": run.name})
        values = {
            "version": VERSION if full else -VERSION,
            "edge_id": edge[0][0] or 0 if edge else 0,
            "settled": int(settled),
            "state": told.state.value,
            "simulated": int(told.virtual),
            "began_s": told.began_s,
            "watched_s": None if told.state is State.RUNNING else told.duration_s,
            "energy_j": told.energy_j,
            "saved_j": told.saved_j,
            "saved_half_j": told.saved_half_j,
            "words": _clean(words_of(told)),
            "summary": _text(told),
        }
        try:
            self._tables.change(_SAVE, {"stream": run.name, **values})
        except NotKept as error:
            raise _NotRemembered(str(error)) from error

    def _settled(self, run: Run, state: State, heard_s: float) -> bool:
        """Whether nothing more will come of it, unless it begins anew."""
        if state is State.FINISHED:
            return run.measured is not None or not 0 <= self._now() - run.last_at_s < _YOUNG_S
        return state is State.KILLED and self._now() - heard_s > _SURE_S

    def _heard_s(self, run: Run) -> float:
        """When something was last written by or of a run."""
        if run.finished is not None:
            return run.last_at_s
        rows = self._tables.select(_HEARD, {"stream": run.name})
        last_s = rows[0][0] if rows else None
        return max(run.last_at_s, last_s or 0.0, self._store.readings().written_s(run.name) or 0.0)

    def _run(self, name: str) -> Run | None:
        return views.one(self._tables, name)


class _Patience:
    """``seconds`` of this thread's processor time, and not much longer by the clock."""

    def __init__(self, seconds: float) -> None:
        self._cpu_s, self._wall_s = time.thread_time() + seconds, time.monotonic() + _WALL * seconds

    @property
    def over(self) -> bool:
        """Whether that has passed."""
        return time.thread_time() > self._cpu_s or time.monotonic() > self._wall_s


class _NotRemembered(NotKept):
    """The table of summaries cannot be written, though the journal may be read."""


def _text(told: RunSummary) -> str:
    """As it is remembered: of one that runs without what changes from second to second."""
    lasting = replace(told, duration_s=None) if told.state is State.RUNNING else told
    return json.dumps(plain(lasting), separators=(",", ":"), allow_nan=False)


def _damaged(told: RunSummary, error: Exception) -> RunSummary:
    return replace(told, headline=f"{DAMAGED}: {error}")


def _read(rows: list[tuple[Any, ...]], now_s: float) -> Iterator[RunSummary]:
    for (text,) in rows:
        try:
            yield recalled(json_value(text), now_s)
        except (ValueError, TypeError, KeyError):  # one damaged row hides no other; the next version makes it anew
            continue


def _pattern(query: str) -> str:
    """For LIKE: ``query`` as it is, anywhere; % and _ are letters here."""
    literal = _clean(query).lower()
    for letter in "!%_":
        literal = literal.replace(letter, f"!{letter}")
    return f"%{literal}%"


def _clean(text: str) -> str:
    """Text that every engine can hold: no half of a pair of surrogates, no NUL."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "")
