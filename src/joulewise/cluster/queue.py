"""A cluster's book: every job that was ordered, what is aimed at for it and what became of it, folded from the journal.

What it is: the memory of a scheduler that may be killed at any point. Nothing is done before it is written here
(``Aimed``), and nothing is believed done before the engine has shown it (``Turned``). The fold is deterministic and
reads no clock; what it does not know (a later version's event, facts without meaning here) it passes over.

Fencing: every event is appended after the last one that this book has read. If somebody else has written in between,
another scheduler leads, and ``Fenced`` is raised before anything is done.

What it is not: the queue that users see (the engine has that), a policy, or an actuator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulewise.cluster.engine import JobState, Order
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec, Conflict, Fenced
from joulewise.core.event import Aimed, Event, Led, Limited, Ordered, Turned
from joulewise.core.plain import built, plain
from joulewise.store.journal import Journal

# How often to try to become the leader while others write: each try reads what they wrote.
_TRIES = 8

ENDS: Mapping[str, JobState] = {"ended": "ended", "failed": "failed", "cancelled": "cancelled", "lost": "failed"}
"""What is ``Turned`` for good, and the state that a job is in from then on."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What shall become of a job. ``way`` and ``place`` are what it has afterwards: None and empty where it shall wait
    or end. ``version`` counts a job's aims."""

    what: str
    version: int
    time_s: float
    way: Way | None = None
    place: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Kept:
    """One job in the book. ``former``: the last aim before this one that gave it a place. ``done``: units of work
    that it had done when last written down. ``energy_j`` by node.
    ``settled``: it is over and its energy is written down for good."""

    order: Order
    number: int
    """Counts orders in the book: the order of submission."""
    id: str = ""
    versions: int = 0
    aim: Aim | None = None
    former: Aim | None = None
    reached: int = 0
    """The version of the last aim that the engine has shown to be so."""
    state: JobState = "waiting"
    starts: int = 0
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: int | None = None
    why: str = ""
    done: float = 0.0
    gpu_s: float = 0.0
    energy_j: Mapping[str, float] = field(default_factory=dict)
    before_j: Mapping[str, float] = field(default_factory=dict)
    """Of it, what agents tell no more: from under an id that it had before, or from an account closed too early."""
    settled: bool = False
    lost: bool = False
    """It is over only because the engine did not show it any more."""
    by: Mapping[str, Any] = field(default_factory=dict)
    """Who handed it in, as the engine said (``core.caller``); empty in old journals."""

    @property
    def over(self) -> bool:
        """Whether it is done for good."""
        return self.ended_s is not None


class Book:
    """All jobs by name, the epoch, and the limits' events; methods may be called from any thread.

    ``watch`` is told of every event right before and right after it is written (``before Aimed``, ``after Aimed``).
    """

    def __init__(self, journal: Journal, *, watch: Callable[[str], None] | None = None) -> None:
        self._journal = journal
        self._watch = watch or (lambda _: None)
        self._lock = threading.RLock()
        self._last = 0
        self._numbers = 0
        self.epoch = 0
        self.jobs: dict[str, Kept] = {}
        self.former: dict[str, Kept] = {}
        """By id: jobs that are over, whose names others have now, and whose energy is not settled yet."""
        self.limits: list[Limited] = []
        self.meters_j: dict[str, float] = {}
        """What nodes' meters had counted when last written down, and (under "") the whole cluster's."""
        self.idle_j: dict[str, float] = {}
        """The same of what was no job's."""
        self.shown_j = 0.0
        """What the cluster's meter showed then: it must not fall."""
        self.measured_s: float | None = None
        """When that was; None: never."""
        self.purse: dict[str, float] = {}
        """Where the period of an energy budget stood then."""
        self.read()

    @property
    def trouble(self) -> str | None:
        """Why what was written may not outlive us; None while it does."""
        return self._journal.trouble

    def read(self) -> None:
        """Take in what is new in the journal."""
        with self._lock:
            for number, event in self._journal.read(self._last):
                self._fold(event)
                self._last = number

    def lead(self, time_s: float, facts: Mapping[str, Any] | None = None) -> int:
        """A new epoch, above every one before; whoever led so far is fenced from now on."""
        with self._lock:
            for _ in range(_TRIES):
                self.read()
                event = Led(time_s, self.epoch + 1, dict(facts or {}))
                try:
                    self._write(event)
                except Conflict:
                    continue
                return self.epoch
        raise Fenced(
            f"{_TRIES} times somebody else wrote first: another scheduler leads this cluster; stop one of them"
        )

    def append(self, event: Event) -> None:
        """Write an event down and take it in. Fenced if somebody else has written since; NotKept if it cannot be."""
        with self._lock:
            try:
                self._write(event)
            except Conflict as late:
                raise Fenced(
                    f"somebody else has written in this cluster's journal (epoch {self.epoch} was ours); another "
                    "scheduler leads now, and this one must stop"
                ) from late

    def _write(self, event: Event) -> None:
        kind = type(event).__name__
        self._watch(f"before {kind}")
        self._last = self._journal.append(event, after=self._last)
        self._fold(event)
        self._watch(f"after {kind}")

    # The words of a scheduler.

    def order(self, time_s: float, order: Order, id: str = "", by: Mapping[str, Any] | None = None) -> None:
        """A job has been handed in, by whom the engine says. One of the same name that is over makes room for it; one
        that is not is the same job, and has this id from now on."""
        self.append(Ordered(time_s, order.name, {**plain(order), "id": id, **({"by": dict(by)} if by else {})}))

    def aim(
        self,
        time_s: float,
        name: str,
        what: str,
        way: Way | None,
        place: Mapping[str, int],
        reason: str,
        *,
        by: Mapping[str, Any] | None = None,
        number: int | None = None,
    ) -> Aim:
        """Write down what shall become of a job; the aim, with its version. ``by``: at whose word; None: decided.
        ``number``: BadSpec if the job of that name has another one (``Kept``)."""
        with self._lock:
            if self.jobs[name].over or number not in (None, self.jobs[name].number):
                raise BadSpec(f"job {name!r} is over; nothing can be done about it any more")
            facts = {
                "way": None if way is None else plain(way),
                "place": dict(place),
                "version": self.jobs[name].versions + 1,
                **({"by": dict(by)} if by else {}),
            }
            self.append(Aimed(time_s, self.epoch, name, what, facts, reason))
            aim = self.jobs[name].aim
            assert aim is not None
            return aim

    def turn(self, time_s: float, name: str, what: str, **facts: Any) -> None:
        """Write down what became of a job."""
        self.append(Turned(time_s, name, what, facts))

    # The fold.

    def _fold(self, event: Event) -> None:
        match event:
            case Led():
                self.epoch = max(self.epoch, event.epoch)
            case Limited():
                self.limits.append(event)
            case Ordered():
                self._ordered(event)
            case Aimed():
                self._aimed(event)
            case Turned():
                self._turned(event)
            case _:
                pass

    def _ordered(self, event: Ordered) -> None:
        facts = dict(event.facts)
        id_ = str(facts.pop("id", "") or "")
        by = facts.pop("by", None)
        known = self.jobs.get(event.name)
        if known is not None and not known.over:
            # The engine has given it an id since, or another one.
            self.jobs[event.name] = _renumbered(known, id_)
            return
        try:
            order = built(Order, facts)
        except BadSpec:
            return
        if known is not None and known.id and not known.settled:
            self.former[known.id] = known
        self._numbers += 1
        self.jobs[event.name] = Kept(order, self._numbers, id_, by=by if isinstance(by, Mapping) else {})

    def _aimed(self, event: Aimed) -> None:
        known = self.jobs.get(event.name)
        if known is None or known.over:
            return
        facts = event.facts
        try:
            way = None if facts.get("way") is None else built(Way, facts["way"])
            place = {str(node): int(count) for node, count in dict(facts.get("place") or {}).items()}
            version = int(facts.get("version") or 0)
        except (BadSpec, TypeError, ValueError):
            return
        aim = Aim(event.what, version, event.time_s, way, place, event.reason)
        versions = max(known.versions, version)
        self.jobs[event.name] = replace(known, versions=versions, aim=aim, former=_held(known))

    def _turned(self, event: Turned) -> None:
        facts = event.facts
        if event.what == "measured" and not event.name:
            self.meters_j.update({str(node): float(j) for node, j in dict(facts.get("meters_j") or {}).items()})
            self.idle_j.update({str(node): float(j) for node, j in dict(facts.get("idle_j") or {}).items()})
            self.shown_j = max(self.shown_j, float(facts.get("shown_j") or 0.0))
            self.measured_s = event.time_s
            self.purse = {str(name): float(value) for name, value in dict(facts.get("purse") or {}).items()}
            return
        known = self.jobs.get(event.name)
        about = str(facts.get("of") or "")
        if about and (known is None or known.id != about):
            # The last word on a job whose name another one has now.
            if about in self.former and event.what == "measured" and facts.get("final"):
                del self.former[about]
            return
        if known is None:
            return
        more: dict[str, Any] = {}
        if "done" in facts:
            more["done"] = float(facts["done"])
        if "gpu_s" in facts:
            more["gpu_s"] = float(facts["gpu_s"])
        if "energy_j" in facts:
            more["energy_j"] = {**known.energy_j, **{str(n): float(j) for n, j in dict(facts["energy_j"]).items()}}
        if event.what == "started":
            more["state"] = "running"
            more["reached"] = int(facts.get("version", known.reached))
            more["starts"] = int(facts.get("starts", known.starts + 1))
            more["started_s"] = event.time_s if known.started_s is None else known.started_s
        elif event.what == "stopped":
            # It waits, and nothing is aimed at: whatever it ran as is decided anew.
            more |= {"state": "waiting", "aim": None, "former": None}
        elif event.what == "found" and known.over:
            # It was given up, or ended, and is there again: its account goes on, everything else is decided anew.
            known = _renumbered(known, str(facts.get("id") or ""))
            if "before_j" in facts:
                more["before_j"] = {str(n): float(j) for n, j in dict(facts["before_j"]).items()}
            more |= {"state": "waiting", "aim": None, "former": None, "settled": False, "lost": False}
            more |= {"ended_s": None, "exit_code": None, "why": ""}
        elif event.what in ENDS and not known.over:
            more["state"] = ENDS[event.what]
            more["ended_s"] = float(facts.get("ended_s") or event.time_s)
            more["exit_code"] = facts.get("exit_code")
            more["why"] = str(facts.get("why") or ("the engine no longer knows it" if event.what == "lost" else ""))
            more["starts"] = int(facts.get("starts", known.starts))
            more["lost"] = event.what == "lost"
        if event.what == "measured" and facts.get("final"):
            more["settled"] = True
        self.jobs[event.name] = replace(known, **more)


def _renumbered(known: Kept, id_: str) -> Kept:
    """The same job under another id, if that is one: what it took under the old one stays its own."""
    if not id_ or id_ == known.id:
        return known
    return replace(known, id=id_, before_j=known.energy_j) if known.id else replace(known, id=id_)


def _held(known: Kept) -> Aim | None:
    """The last aim with a place: what a job keeps until a new aim comes true."""
    return known.aim if known.aim is not None and known.aim.way is not None else known.former
