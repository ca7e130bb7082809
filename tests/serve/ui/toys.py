"""What is written to a store while a dashboard is looked at, made without waiting for any of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any

from joulewise.cluster.engine import Order
from joulewise.cluster.state import Way
from joulewise.core.event import Aimed, Began, Event, Finished, Led, Ordered, Turned, to_json
from joulewise.core.knob import Setting
from joulewise.core.plain import plain
from joulewise.store import Sample
from joulewise.store.sql import SqliteStore
from tests.serve import face_toys


def at_once(store: SqliteStore, stream: str, events: Iterable[Event]) -> None:
    """As the journal would have them, in one transaction: one each would take minutes where disks are slow."""
    rows = [(stream, number, type(each).__name__, each.time_s, to_json(each)) for number, each in enumerate(events, 1)]
    with store.database.writing() as connection:
        connection.executemany("INSERT INTO events (stream, id, kind, at, event) VALUES (?, ?, ?, ?, ?)", rows)


class Run:
    """A command that is measured: ``begin``, ``read`` readings, ``end``."""

    def __init__(self, store: SqliteStore, name: str, *, began_s: float, gpus: tuple[str, ...] = ("GPU-1",)) -> None:
        self._store, self.name, self._began_s, self._gpus = store, name, began_s, gpus
        self._read_s = 0

    def begin(self) -> None:
        names = ["NVIDIA H200"] * len(self._gpus)
        facts: dict[str, Any] = {"command": ["python", f"{self.name}.py"], "gpus": list(self._gpus), "gpu_names": names}
        facts |= {"tuned": False, "unix_s": 0.0}
        face_toys.write(self._store, self.name, [Began(self._began_s, self.name, facts)])

    def read(self, seconds: int) -> None:
        """So many seconds more of readings."""
        times = range(self._read_s, self._read_s + seconds)
        for uuid in self._gpus:
            rows = [Sample(self._began_s + at, 300.0 + 50.0 * math.sin(at / 9), 1500.0, limit_w=700.0) for at in times]
            self._store.readings().write(self.name, uuid, rows)
        self._read_s += seconds

    def end(self) -> None:
        measured = {"energy_j": 5000.0, "energy_error_j": 9.0, "duration_s": float(self._read_s), "exit_code": 0}
        ended = Finished(self._began_s + self._read_s, "ended", {"measured": measured})
        face_toys.write(self._store, self.name, [ended])


class Hall:
    """A cluster with more jobs than a page can show: the first ``over`` of them are over, the others run."""

    def __init__(self, store: SqliteStore, name: str, *, over: int, running: int, spans: int, now_s: float) -> None:
        self._store, self._stream, self._now_s = store, f"cluster/{name}", now_s
        self._seconds = count(1)
        self.over = [f"old-{number:03}" for number in range(over)]
        self.running = [f"new-{number:03}" for number in range(running)]
        from_s = now_s - 10.0 * (over + running + spans + 2)
        events: list[Event] = [Led(from_s, 1, {})]
        for number, job in enumerate((*self.over, *self.running)):
            events += self._job(job, from_s + 10.0 * number, spans, over=job in self.over)
        at_once(store, self._stream, [*sorted(events, key=lambda event: event.time_s), self._measured(now_s, 0.0)])

    def go_on(self) -> None:
        """A second passes: meters and every running job have more to say."""
        second = next(self._seconds)
        now_s = self._now_s + second
        self._write(self._measured(now_s, 9000.0 * second))
        for number, job in enumerate(self.running):
            facts = {"energy_j": {f"n{number % 8}": 1000.0 * second}, "of": job, "done": float(second)}
            self._write(Turned(now_s, job, "measured", facts))

    def _write(self, event: Event) -> None:
        face_toys.write(self._store, self._stream, [event])

    def _measured(self, at_s: float, spent_j: float) -> Event:
        meters = {f"n{number}": spent_j / 8 for number in range(8)}
        return Turned(at_s, "", "measured", {"meters_j": meters, "idle_j": {}, "shown_j": spent_j, "purse": {}})

    def _job(self, job: str, from_s: float, spans: int, *, over: bool) -> Iterable[Event]:
        place = {"n1": 4}
        order = Order(job, ("python", "train.py"), 4, from_s, checkpoint="c", work=1000.0)
        yield Ordered(from_s, job, {**plain(order), "id": job})
        yield self._aimed(from_s + 1.0, job, "start", 0, place)
        yield Turned(from_s + 2.0, job, "started", {"version": 1, "starts": 1, "place": place})
        for number in range(1, spans):
            yield self._aimed(from_s + 2.0 + 8.0 * number, job, "retune", number, place)
        if over:
            yield Turned(from_s + 10.0 * spans, job, "ended", {"exit_code": 0})

    def _aimed(self, at_s: float, job: str, what: str, number: int, place: dict[str, int]) -> Event:
        way = Way(4, 0.8, 900.0, Setting(sm_mhz=1200 + 15 * (number % 2)), "a100")
        return Aimed(at_s, 1, job, what, {"way": plain(way), "place": place, "version": 1}, "it is the shortest")
