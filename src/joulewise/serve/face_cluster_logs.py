"""The journals of all clusters in a store, followed; a few of them remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict

from joulewise.report.cluster_log import PREFIX, ClusterLog
from joulewise.store import Store

MOST = 100
"""Clusters that are listed, and remembered: a list that is longer than what is remembered reads every journal from the
start at every look."""


class ClusterLogs:
    """One log a cluster, the same for all who ask meanwhile. Safe with several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, ClusterLog] = OrderedDict()

    def names(self) -> list[str]:
        """The clusters that there are. NotKept when that cannot be read."""
        return [stream.removeprefix(PREFIX) for stream in self._store.streams(PREFIX)]

    def of(self, name: str) -> ClusterLog | None:
        """The log of a cluster, with what is new; None: there is none of that name."""
        with self._lock:
            log = self._logs.get(name)
        if log is None:
            if name not in self.names():
                return None
            log = ClusterLog(name, self._store.journal(PREFIX + name))
        log.refresh()
        with self._lock:
            self._logs[name] = log
            self._logs.move_to_end(name)
            while len(self._logs) > MOST:
                self._logs.popitem(last=False)
        return log
