"""A small store with something of everything that the dashboard shows, made without waiting for any of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joulewise.cluster.engine import Order
from joulewise.cluster.state import Way
from joulewise.core.event import Aimed, Began, Event, Finished, Led, Limited, Ordered, Turned
from joulewise.core.knob import Setting
from joulewise.core.plain import plain
from joulewise.plan import plan_files
from joulewise.store import Sample
from joulewise.store.store import Store
from tests.cli import made_up
from tests.plan.made_up import plan

TUNED = "20260101-000000-abcd"
NASTY = "a/b <script>alert(1)</script> %2F ü ../.."
CLUSTER = "hall/train"
UUID = "GPU-1"
T0 = 1.8e9


def write(store: Store, stream: str, events: Iterable[Event]) -> None:
    journal = store.journal(stream)
    for event in events:
        journal.append(event)


def tuned(store: Store, name: str = TUNED, **facts: Any) -> None:
    """A tuned run that has ended, its events in Unix time."""
    write(store, name, made_up.run(name, hold=40, unix_s=T0 - made_up.START_S, **facts))


def plain_run(store: Store, name: str = NASTY, *, energy_j: float = 5000.0) -> None:
    """A run that was only measured."""
    facts = {"command": ["python", "<script>.py"], "gpu_names": ["NVIDIA H200"], "tuned": False, "unix_s": 0.0}
    measured = {"energy_j": energy_j, "energy_error_j": 9.0, "duration_s": 20.0, "exit_code": 0}
    write(store, name, [Began(T0, name, facts), Finished(T0 + 20.0, "ended", {"measured": measured})])


def readings(store: Store, stream: str, *, seconds: int = 300, uuid: str = UUID) -> None:
    rows = [Sample(T0 + at, 300.0 + 50.0 * math.sin(at / 9), 1500.0, limit_w=700.0) for at in range(seconds)]
    store.readings().write(stream, uuid, rows)


def cluster_events(one: str = "one") -> list[Event]:
    """Two jobs, the first of them resized by a cap, over ten minutes."""
    fast, slow = Way(8, 0.5, 2000.0, kind="a100"), Way(4, 0.8, 900.0, Setting(sm_mhz=1200), "a100")
    orders = {name: Order(name, ("python", "train.py"), 8, T0, checkpoint="c", work=1000.0) for name in (one, "two")}
    events: list[Event] = [Led(T0, 1, {})]
    events += [Ordered(T0 + 1, name, {**plain(order), "id": name}) for name, order in orders.items()]
    events += [
        Aimed(T0 + 2, 1, one, "start", {"way": plain(fast), "place": {"n1": 8}, "version": 1}, "it is the shortest"),
        Turned(T0 + 5, one, "started", {"version": 1, "starts": 1, "place": {"n1": 8}}),
        Limited(T0 + 300, "cap", {"source": "operator", "cap_w": 3000.0, "from_s": T0 + 300}),
        Limited(T0 + 301, "budget", {"energy_j": 3.6e9, "period_s": 86_400.0}),
        Aimed(T0 + 302, 1, one, "resize", {"way": plain(slow), "place": {"n1": 4}, "version": 2}, "the cap fell"),
        Turned(T0 + 310, one, "started", {"version": 2, "starts": 2, "place": {"n1": 4}}),
    ]
    for minute in range(11):
        spent_j = 4000.0 * 60 * min(minute, 5) + 2500.0 * 60 * max(0, minute - 5)
        facts = {"meters_j": {"n1": spent_j, "n2": 100.0}, "idle_j": {"n1": 10.0}, "shown_j": spent_j, "purse": {}}
        events.append(Turned(T0 + 60 * minute, "", "measured", facts))
    events.append(Turned(T0 + 600, one, "measured", {"energy_j": {"n1": 1e6}, "of": one, "done": 400.0}))
    return sorted(events, key=lambda event: event.time_s)


def filled(store: Store) -> None:
    """All of it."""
    tuned(store)
    readings(store, TUNED)
    plain_run(store)
    write(store, f"cluster/{CLUSTER}", cluster_events())


def plans(folder: Path) -> Path:
    """A folder with a plan, a file that is none, and things that are not plans at all."""
    folder.mkdir(exist_ok=True)
    plan_files.write(plan(), folder / "four stages.json")
    (folder / "broken.json").write_text('{"format": "joulewise-plan"', encoding="utf-8")
    (folder / ".hidden.json").write_text("{}", encoding="utf-8")
    (folder / "notes.txt").write_text("not a plan", encoding="utf-8")
    (folder / "folder.json").mkdir(exist_ok=True)
    return folder


def until(so: Any, *, timeout_s: float = 10.0) -> None:
    """Wait until ``so()``; for what another thread does."""
    deadline_s = time.monotonic() + timeout_s
    while not so():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
