"""A cluster as its scheduler's journal tells it: power, cap and jobs over time, folded as the journal grows.

What it is: a reader's fold of the events that ``joulewise cluster up`` writes, for whoever watches from another process
or long after. Joules are the cluster's own counters as they were written down (about once a minute), so the power
between two of them is exact, and leaving every other one out keeps it so: memory is bounded whatever the journal's
length. What it is not: the scheduler (whose ``status`` knows what each node draws this second), a writer, or a page.
Times are seconds since 1970 of the cluster's own clock.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from joulewise.cluster.limits import Limits
from joulewise.cluster.queue import Book, Kept
from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.event import Aimed, Event, Limited, Ordered, Turned
from joulewise.core.knob import Setting
from joulewise.core.units import format_duration
from joulewise.report.cluster_shown import (
    BudgetShown,
    ClusterBrief,
    ClusterShown,
    JobShown,
    NodeShown,
    PowerShown,
    Span,
)
from joulewise.report.cluster_words import setting_words
from joulewise.store.journal import Journal

PREFIX = "cluster/"
"""Of the streams that are clusters' journals."""
_MOST_COUNTS = 1200
_MOST_CAPS = 2000
_MOST_SPANS = 60
MOST_JOBS = 300
"""Jobs that are shown at once; those that are not over come first."""


class ClusterLog:
    """One cluster's journal, followed. Safe with several threads."""

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._told = _Told(journal, self._hear)
        self._book = Book(self._told)
        self._told.heard = True
        self._limits = Limits()
        self._time_s: float | None = None
        self._counts: list[tuple[float, float]] = []
        """(when, what the cluster's meter showed), at most ``_MOST_COUNTS``."""
        self._caps: list[tuple[float, float | None]] = []
        self._meters: dict[str, tuple[float, float]] = {}
        self._node_w: dict[str, float | None] = {}
        self._spans: dict[str, list[Span]] = {}
        self._damaged: str | None = None

    def refresh(self) -> None:
        """Take in what is new. NotKept when the store cannot be read; a damaged event is a trouble, not a fault."""
        with self._lock:
            try:
                self._book.read()
                self._damaged = None
            except BadSpec as fault:
                self._damaged = str(fault)

    def brief(self) -> ClusterBrief:
        """In a line."""
        with self._lock:
            states = [str(kept.state) for kept in self._book.jobs.values()]
            energy_j = self._counts[-1][1] if self._counts else None
            over = sum(kept.over for kept in self._book.jobs.values())
            running = states.count("running")
            return ClusterBrief(
                self.name,
                self._time_s,
                self._power_w(),
                self._cap_w(),
                energy_j,
                running,
                len(states) - over - running,
                over,
            )

    def shown(self) -> ClusterShown:
        """In full."""
        with self._lock:
            kept = sorted(self._book.jobs.values(), key=lambda each: (each.over, -each.number))
            jobs = tuple(map(self._job, kept[:MOST_JOBS]))
            limit = self._limits.at(self._time_s or 0.0)
            budget = None
            if limit.energy_j is not None:
                budget = BudgetShown(limit.energy_j, limit.period_s, _spent_j(self._book.purse), limit.budget_by)
            troubles = filter(None, (self._damaged, self._told.trouble, *limit.says))
            return ClusterShown(
                self.name,
                self._time_s,
                self._power_w(),
                self._cap_w(),
                self._counts[-1][1] if self._counts else None,
                self._power(),
                budget,
                self._nodes(),
                jobs,
                max(0, len(kept) - MOST_JOBS),
                tuple(troubles),
                limit.cap_by,
            )

    def job_names(self) -> list[str]:
        """All its jobs."""
        with self._lock:
            return list(self._book.jobs)

    def why(self, job: str) -> str | None:
        """Why a job runs as it does or waits, as it was written down when it was decided; None: no such job."""
        with self._lock:
            kept = self._book.jobs.get(job)
            return None if kept is None else _why(kept, self._time_s)

    # The fold.

    def _hear(self, event: Event) -> None:
        """Called with each event before the book has folded it."""
        self._time_s = max(self._time_s or event.time_s, event.time_s)
        match event:
            case Limited():
                self._limits.hear(event)
                self._note_cap(event.time_s)
            case Turned(name="", what="measured"):
                self._count(event)
                self._note_cap(event.time_s)
            case Turned():
                self._turn(event)
            case Aimed(what="retune"):
                self._retune(event)
            case Ordered():
                known = self._book.jobs.get(event.name)
                if known is None or known.over:
                    self._spans.pop(event.name, None)
            case _:
                pass

    def _count(self, event: Turned) -> None:
        shown_j = _number(event.facts.get("shown_j"))
        if shown_j is not None and (not self._counts or event.time_s > self._counts[-1][0]):
            self._counts.append((event.time_s, shown_j))
            if len(self._counts) > _MOST_COUNTS:
                # A counter loses nothing by being looked at half as often.
                self._counts = self._counts[::2] if len(self._counts) % 2 else [*self._counts[::2], self._counts[-1]]
        meters = event.facts.get("meters_j")
        for node, value in meters.items() if isinstance(meters, Mapping) else ():
            energy_j = _number(value)
            if not node or energy_j is None:
                continue
            before = self._meters.get(node)
            if before is not None and event.time_s > before[0]:
                # A meter that stands still is that of a node which says nothing, asleep or lost: not known is not 0.
                grown_j = energy_j - before[1]
                self._node_w[node] = grown_j / (event.time_s - before[0]) if grown_j > 0 else None
            self._meters[node] = (event.time_s, energy_j)

    def _note_cap(self, time_s: float) -> None:
        cap_w = self._limits.at(time_s).cap_w
        if self._caps and (self._caps[-1][1] == cap_w or time_s < self._caps[-1][0]):
            return
        self._caps.append((time_s, cap_w))
        del self._caps[:-_MOST_CAPS]

    def _turn(self, event: Turned) -> None:
        if event.what == "started":
            kept = self._book.jobs.get(event.name)
            place = event.facts.get("place")
            gpus = sum(place.values()) if isinstance(place, Mapping) else 0
            way = None if kept is None or kept.aim is None else kept.aim.way
            words = "" if way is None else setting_words(way.setting)
            self._open(event.name, event.time_s, gpus or (0 if way is None else way.gpus), words)
        elif event.what in ("stopped", "ended", "failed", "cancelled", "lost"):
            self._close(event.name, _number(event.facts.get("ended_s")) or event.time_s)

    def _retune(self, event: Aimed) -> None:
        spans = self._spans.get(event.name)
        way = event.facts.get("way")
        if not spans or spans[-1].to_s is not None or not isinstance(way, Mapping):
            return
        setting = way.get("setting")
        words = _setting_of(setting) if isinstance(setting, Mapping) else spans[-1].words
        self._open(event.name, event.time_s, spans[-1].gpus, words)

    def _open(self, job: str, time_s: float, gpus: int, words: str) -> None:
        last = self._spans.get(job, [])
        if last and last[-1].to_s is None and (last[-1].gpus, last[-1].words) == (gpus, words):
            return
        self._close(job, time_s)
        spans = self._spans.setdefault(job, [])
        spans.append(Span(time_s, None, gpus, words))
        del spans[:-_MOST_SPANS]

    def _close(self, job: str, time_s: float) -> None:
        spans = self._spans.get(job)
        if spans and spans[-1].to_s is None:
            spans[-1] = replace(spans[-1], to_s=max(time_s, spans[-1].from_s))

    # What is shown.

    def _power_w(self) -> float | None:
        if len(self._counts) < 2:
            return None
        (from_s, from_j), (to_s, to_j) = self._counts[-2:]
        return max(0.0, to_j - from_j) / (to_s - from_s)

    def _cap_w(self) -> float | None:
        return self._caps[-1][1] if self._caps else None

    def _power(self) -> PowerShown:
        ends = [time_s for time_s, _ in self._counts]
        turns = [time_s for time_s, _ in self._caps]
        times = sorted({*ends, *turns})
        power: list[float | None] = []
        caps: list[float | None] = []
        for time_s in times:
            at = bisect.bisect_left(ends, time_s)
            if 0 < at < len(ends):
                (from_s, from_j), (to_s, to_j) = self._counts[at - 1 : at + 1]
                power.append(max(0.0, to_j - from_j) / (to_s - from_s))
            else:
                power.append(None)
            cap = bisect.bisect_right(turns, time_s)
            caps.append(self._caps[cap - 1][1] if cap else None)
        return PowerShown(tuple(times), tuple(power), tuple(caps))

    def _nodes(self) -> tuple[NodeShown, ...]:
        used: dict[str, int] = {}
        for kept in self._book.jobs.values():
            if kept.state == "running" and kept.aim is not None:
                for node, gpus in kept.aim.place.items():
                    used[node] = used.get(node, 0) + gpus
        idle = self._book.idle_j
        return tuple(
            NodeShown(
                node,
                self._node_w.get(node),
                self._meters[node][1] if node in self._meters else None,
                idle.get(node, 0.0) if node in self._meters else None,
                used.get(node, 0),
            )
            for node in sorted({*self._meters, *used})
        )

    def _job(self, kept: Kept) -> JobShown:
        order, aim = kept.order, kept.aim
        way = None if aim is None or kept.over else aim.way
        busy = aim is not None and not kept.over and aim.what != "retune" and kept.reached != aim.version
        return JobShown(
            order.name,
            str(kept.state),
            aim.what if busy and aim is not None else "",
            0 if way is None else way.gpus,
            order.gpus,
            {} if way is None or aim is None else dict(aim.place),
            "" if way is None else setting_words(way.setting),
            sum(kept.energy_j.values()),
            kept.done,
            order.work,
            kept.starts,
            order.submitted_s,
            kept.started_s,
            kept.ended_s,
            order.deadline_s,
            kept.exit_code,
            kept.why,
            tuple(self._spans.get(order.name, ())),
        )


class _Told:
    """A journal that is only read, and told aloud as it is."""

    def __init__(self, journal: Journal, tell: Callable[[Event], None]) -> None:
        self._journal = journal
        self._tell = tell
        self.heard = False
        """Nothing is read before: whoever listens is not ready yet."""

    @property
    def trouble(self) -> str | None:
        return self._journal.trouble

    def append(self, event: Event, after: int | None = None) -> int:  # noqa: ARG002 (one protocol)
        raise BadSpec("this journal is only read here; the cluster's scheduler writes it")

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        for number, event in self._journal.read(since) if self.heard else ():
            self._tell(event)
            yield number, event


def _why(kept: Kept, now_s: float | None) -> str:
    name, aim = kept.order.name, kept.aim
    if kept.over:
        code = "" if kept.exit_code in (None, 0) else f" with exit code {kept.exit_code}"
        return f"{name} is over: {kept.state}{code}{f'; {kept.why}' if kept.why else ''}."
    if aim is None:
        since_s = kept.order.submitted_s
        waited = f" for {format_duration(now_s - since_s)}" if now_s is not None and now_s > since_s else ""
        return f"{name} waits{waited}: nothing has been decided for it since it came, or since it was stopped."
    way = aim.way
    how = "waits" if way is None else f"{way.gpus} GPUs on {', '.join(aim.place) or 'no node'}"
    what = {
        "start": "was started",
        "resize": "was resized",
        "migrate": "was moved",
        "retune": "was given another setting",
        "preempt": "was stopped, to go on later",
        "stop": "was told to end",
    }.get(aim.what, aim.what)
    setting = "" if way is None else f", {setting_words(way.setting)}"
    said = f"{name} {what} ({how}{setting})"
    return f"{said}: {aim.reason}" if aim.reason else f"{said}; no reason was written down."


def _spent_j(purse: Mapping[str, float]) -> float | None:
    if "begun_j" not in purse or "last_j" not in purse:
        return None
    return max(0.0, purse["last_j"] - purse["begun_j"])


def _setting_of(values: Mapping[str, Any]) -> str:
    try:
        return setting_words(Setting(**values))
    except (TypeError, ValueError, Unsupported):
        return ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
