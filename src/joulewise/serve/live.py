"""The GPUs of the server's own machine, watched: what ``/metrics``, ``/api/gpus`` and ``/api/events`` show.

A thread a GPU asks the driver, about once a second; whoever asks this object gets what is in memory, so that a call
that hangs holds up no request, and no other GPU. What is older than some seconds is unknown, not the last value for
ever. It only reads.
What it is not: a record; ten minutes are kept and lost with the process (``store/readings`` keeps those of runs).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self

from joulewise.core.errors import BadSpec
from joulewise.device.gpu import Gpu
from joulewise.device.host import HostEnergy
from joulewise.serve.watched import Counted, GpuNow, Holders, WatchedGpu
from joulewise.serve.watching import Watching

LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.1, 60.0
_HOLDERS_EVERY_S = 5.0
_HOST_EVERY_S = 5.0
"""The host's counters wrap, at the earliest after a minute."""
_FRESH_S = 0.2
"""Counters that were looked at so recently are not asked again, however many scrape."""
_BESIDE_S = 1.0
"""How often it is looked whether one of those two is due."""
_END_S = 2.0


class LiveGpus:
    """``gpus`` (maybe none) watched every ``interval_s``. Use ``with``, or ``start`` and ``stop``; tests call ``look``.

    ``why`` says where they come from, or why there are none; ``virtual`` that all of them are simulated; ``node`` the
    machine. ``holders`` tells who has a lease. Safe to ask from several threads; nothing here raises or waits for the
    driver, but ``refresh``, which waits so long at most. BadSpec for an interval that makes no sense.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        *,
        interval_s: float = 1.0,
        why: str = "",
        virtual: bool = False,
        node: str | None = None,
        holders: Holders | None = None,
        host: HostEnergy | None = None,
        now: Callable[[], float] = time.monotonic,
        unix: Callable[[], float] = time.time,
    ) -> None:
        if not LEAST_INTERVAL_S <= interval_s <= MOST_INTERVAL_S:
            raise BadSpec(
                f"--interval {interval_s:g} is outside {LEAST_INTERVAL_S:g} to {MOST_INTERVAL_S:g} seconds; 1 is usual"
            )
        self.why = why
        self.virtual = virtual
        self.node = socket.gethostname() if node is None else node
        self.interval_s = interval_s
        self.stale_s = max(5.0 * interval_s, 10.0)
        """From when on what was read is unknown."""
        self._watched = [WatchedGpu(gpu, interval_s=interval_s, now=now, unix=unix) for gpu in gpus]
        self._holders, self._host = holders, host
        self._held: Mapping[str, str] | None = None
        self._zones: dict[str, float] = {}
        self._held_due_s = self._host_due_s = self._fresh_s = float("-inf")
        self._now, self._unix = now, unix
        self._turned = threading.Condition()
        watching = partial(Watching, turned=self._turned, now=now)
        self._watches = [
            watching(partial(self._look_at, each), name=f"GPU {each.gpu.info.uuid}") for each in self._watched
        ]
        self._beside = watching(lambda _: self._look_beside(), name="the host and leases")
        self._started = False

    # -- what others ask

    def __len__(self) -> int:
        return len(self._watched)

    def gpus(self, *, history: bool = False) -> tuple[GpuNow, ...]:
        """Every GPU as last seen; with the curve of its last ten minutes where that is wanted."""
        with self._turned:
            held = self._held or {}
            return tuple(
                each.shown(
                    node=self.node,
                    virtual=self.virtual,
                    held_by=held.get(each.gpu.info.uuid),
                    stale_s=self.stale_s,
                    history=history,
                )
                for each in self._watched
            )

    @property
    def power_w(self) -> float | None:
        """Of all GPUs that can be read; None where none can."""
        known = [gpu.power_w for gpu in self.gpus() if gpu.power_w is not None]
        return sum(known) if known else None

    @property
    def troubles(self) -> tuple[str, ...]:
        """A line for each GPU that cannot be read."""
        return tuple(f"GPU {gpu.index} ({gpu.name}): {gpu.reason}" for gpu in self.gpus() if gpu.reason is not None)

    @property
    def held(self) -> Mapping[str, str] | None:
        """GPU → who holds a lease on it, in words; None where nobody can tell."""
        with self._turned:
            return self._held

    @property
    def zones_j(self) -> Mapping[str, float]:
        """Joules of the host's processors and memory since the start, by zone; what cannot be read is not there, nor a
        zone that is a part of another or holds others: those that are there may be summed."""
        with self._turned:
            return dict(self._zones)

    def counted(self) -> dict[str, Counted]:
        """GPU → joules that only grow, where they are known. ``refresh`` first for those of now."""
        with self._turned:
            found = {each.gpu.info.uuid: each.counted(self.stale_s) for each in self._watched}
        return {uuid: counted for uuid, counted in found.items() if counted is not None}

    def refresh(self, *, within_s: float = 2.0) -> bool:
        """Have the counters looked at now, unless that was just done. False where the driver took longer than
        ``within_s``, or nobody watches; what is shown is then as old as it is. A GPU that is known to hang is not
        waited for, so that the others' counters are told as soon as ever."""
        with self._turned:
            asked_s = self._now()
            if asked_s - self._fresh_s < _FRESH_S:
                return True
            if not self._started or not self._watches:
                return False
            asked = [(each, each.ask()) for each in self._watches if not each.hangs(within_s)]
            served = self._turned.wait_for(
                lambda: not self._started or all(each.served(number) for each, number in asked), within_s
            )
            if served:
                # Not now: on a busy machine we may be woken long after the counters were looked at.
                self._fresh_s = max(self._fresh_s, asked_s)
            return served and self._started and len(asked) == len(self._watches)

    # -- life

    def start(self) -> None:
        """Begin to watch, each GPU on a thread of its own. A second call does nothing, and so does one without any."""
        if not self._started and (self._watched or (self._host is not None and self._host.zones)):
            self._started = True
            for each in (*self._watches, self._beside):
                each.start()

    def stop(self) -> None:
        """End watching. Waits a moment for the threads; one that hangs in the driver is left behind."""
        with self._turned:
            self._started = False
            self._turned.notify_all()
        watches = (*self._watches, self._beside)
        for each in watches:
            each.stop()
        until_s = time.monotonic() + _END_S
        for each in watches:
            each.join(until_s - time.monotonic())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def look(self) -> None:
        """One round over everything that is due, in the caller's own thread."""
        for each in self._watched:
            self._look_at(each, False)
        self._look_beside()

    def _look_at(self, each: WatchedGpu, asked: bool) -> float:
        # Not under the lock: a driver that hangs shall hold up nobody but this thread. What a look changes are single
        # values, each whole at any time.
        each.look(counters=asked, watched=len(self._watched))
        return each.pace_s

    def _look_beside(self) -> float:
        held, zones = self._look_at_holders(), self._look_at_host()
        with self._turned:
            self._held, self._zones = held, zones
        return _BESIDE_S

    def _look_at_holders(self) -> Mapping[str, str] | None:
        if self._holders is None or self._now() < self._held_due_s:
            return self._held
        self._held_due_s = self._now() + _HOLDERS_EVERY_S
        return self._holders()

    def _look_at_host(self) -> dict[str, float]:
        if self._host is None or self._now() < self._host_due_s:
            return self._zones
        self._host_due_s = self._now() + _HOST_EVERY_S
        read = self._host.read().zones
        found = {zone.name: read[zone.name].energy_j for zone in self._host.zones if zone.counts}
        return {name: energy_j for name, energy_j in found.items() if energy_j is not None}
