"""What really happens on a simulated cluster: jobs at work, nodes, and the meter. Nothing here decides.

What it is: the world half of a simulation. It holds the meter and the heap of what is to come, and knows what it means
that a job starts, works, is seen at work, stops. Who lets that happen is another matter: ``simulator`` (the round
itself, in one go) or ``engines/simulated`` (a scheduler, through the protocol of an engine).
What it is not: a policy, or a book of who is where (``placement``, or the engine's own); of that it is told only how
many GPUs and nodes are in which state (``Ground``).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Protocol

from joulewise.cluster.life import Life
from joulewise.cluster.outcome import Meter, Span
from joulewise.cluster.state import Kind, Way

# What happens at the same moment happens in this order: what frees before what asks, the limits before the round, and
# the round last.
END, SAVED, BOOT, ARRIVAL, WORK, SEEN, LIMIT, ROUND = range(8)

About = Life | tuple[str, int] | None

_Event = tuple[float, int, int, About, int]
"""Time, rank, number (so that equal ones keep their order), about whom, of which span."""


class Ground(Protocol):
    """All nodes of a kind, by number: ``placement.Floor`` is one."""

    kind: Kind
    free: int

    @property
    def off(self) -> Collection[int]:
        """Sleeping nodes."""
        ...

    @property
    def booting(self) -> Collection[int]:
        """Nodes under way."""
        ...

    @property
    def on(self) -> int:
        """Powered nodes."""
        ...

    @property
    def used(self) -> int:
        """GPUs that jobs hold."""
        ...


class World:
    """From ``begun_s`` on. ``seen_s``: how long a job must have worked in one way before that counts as seen; None:
    nobody looks."""

    def __init__(self, begun_s: float, grounds: Sequence[Ground], seen_s: float | None) -> None:
        self.meter = Meter(begun_s)
        self.spans: list[Span] = []
        self.events: list[_Event] = []
        self.running = 0
        self._grounds = grounds
        self._seen_s = seen_s
        self._number = 0

    def plan(self, time_s: float, rank: int, about: About) -> None:
        """Something is to happen; about a job, only if it still is in its present span then."""
        self._number += 1
        span = about.span if isinstance(about, Life) else 0
        heapq.heappush(self.events, (time_s, rank, self._number, about, span))

    def begin(self, life: Life, way: Way, kind: Kind, nodes: int, now_s: float, ready_s: float) -> None:
        """A job holds its GPUs from now on and works from ``ready_s`` on (past, for one that only changes clocks)."""
        self.running += 1
        if life.started_s is None:
            life.started_s = now_s
        life.way = way
        life.kind = kind
        life.nodes = nodes
        life.unit_s, unit_j = life.submission.truth.unit(way, nodes)
        life.watts = unit_j / life.unit_s
        life.since_s = now_s
        life.ready_s = ready_s
        life.works = ready_s <= now_s
        if not life.works:
            self.meter.watts.starts += life.start_w
            self.plan(ready_s, WORK, life)
        else:
            self.meter.watts.jobs += life.watts
            self._look(life, now_s)
        left = max(0.0, life.submission.work - life.done)
        self.plan(max(now_s, ready_s) + left * life.unit_s, END, life)

    def work(self, life: Life, time_s: float) -> None:
        """A job has started up and works from now on."""
        self.meter.watts.starts -= life.start_w
        self.meter.watts.jobs += life.watts
        life.works = True
        self.note()
        self._look(life, time_s)

    def _look(self, life: Life, time_s: float) -> None:
        if self._seen_s is not None:
            self.plan(time_s + self._seen_s, SEEN, life)

    def stop(self, life: Life, time_s: float) -> None:
        """A job's span ends: by its end, a preemption or any other move. Its way stays, for whoever asks."""
        assert life.way is not None
        watts = self.meter.watts
        if life.works:
            watts.jobs -= life.watts
        else:
            watts.starts -= life.start_w
        self.running -= 1
        if not self.running:  # no dust of rounding stays behind
            watts.jobs = watts.starts = 0.0
        start_s = max(0.0, min(time_s, life.ready_s) - life.since_s)
        way = life.way
        name = life.submission.name
        if time_s > life.since_s:
            self.spans.append(Span(name, life.since_s, time_s, way.gpus, life.nodes, way.setting, way.kind, start_s))
        life.close(time_s)

    def nodes_changed(self) -> None:
        """GPUs or nodes have come or gone: what is drawn besides jobs is worked out anew."""
        watts = self.meter.watts
        watts.idle = watts.hosts = watts.sleeping = watts.boots = 0.0
        for ground in self._grounds:
            kind = ground.kind
            watts.idle += ground.free * kind.idle_gpu_w
            watts.hosts += ground.on * kind.host_w
            watts.sleeping += len(ground.off) * kind.off_w
            watts.boots += len(ground.booting) * kind.boot_w
        self.note()

    def note(self) -> None:
        """Put the present draw into the series."""
        grounds = self._grounds
        self.meter.note(sum(ground.used for ground in grounds), sum(ground.on for ground in grounds))
