"""The desks of all jobs in a store, a few of them remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict

from joulewise.store import Store
from joulewise.tune.desk import PREFIX, Desk

_REMEMBERED = 64
"""Desks in memory. One of a job with 10,000 trials takes some tens of megabytes; a forgotten one is read again."""


class Desks:
    """One desk a job, the same for all who ask meanwhile. Safe with several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._desks: OrderedDict[str, Desk] = OrderedDict()

    def of(self, job: str) -> Desk:
        """The desk of this job, whether it is registered or not."""
        with self._lock:
            desk = self._desks.pop(job, None) or Desk.of(self._store, job)
            self._desks[job] = desk
            if len(self._desks) > _REMEMBERED:
                self._desks.popitem(last=False)
            return desk

    def names(self) -> list[str]:
        """The jobs that there are. NotKept when that cannot be read."""
        return [stream.removeprefix(PREFIX) for stream in self._store.streams(PREFIX)]
