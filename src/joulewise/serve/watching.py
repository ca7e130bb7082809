"""A thread that looks at one thing again and again: at its pace, and at once when somebody waits for it.

For ``live``, one a GPU: a call of the driver that hangs holds up this thread and no other, and whoever waits can tell
that it hangs. What it is not: a pool, or anything that knows what is looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_SHORTEST_S = 0.01
_PACE_S = 1.0
"""Until a look has told another."""
_log = logging.getLogger("joulewise.serve")


class Watching:
    """Calls ``look(asked)``, which gives the seconds from its begin to the next one; ``asked``: somebody waits for it.
    What it raises is logged, and it is tried again at its pace.

    ``turned`` is notified after each look; ``ask``, ``served`` and ``hangs`` are for whoever holds it. ``now`` is a
    monotonic clock.
    """

    def __init__(
        self,
        look: Callable[[bool], float],
        *,
        name: str,
        turned: threading.Condition,
        now: Callable[[], float],
    ) -> None:
        self._look, self._name, self._turned, self._now = look, name, turned, now
        self._wanted = self._served = 0
        self._since_s: float | None = None
        """Since when a look is under way; None while none is."""
        self._asked, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._thread is None:
            self._stopping = threading.Event()  # a thread that was left behind keeps its own, and ends by it
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping,), name=f"joulewise {self._name}", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Let it end; ``join`` waits for that."""
        self._stopping.set()
        self._asked.set()

    def join(self, within_s: float) -> None:
        """Wait for its end; one that hangs is left behind."""
        if self._thread is not None:
            self._thread.join(max(0.0, within_s))
            self._thread = None

    def ask(self) -> int:
        """Have it looked at now; ``served`` tells of the number when that was done."""
        self._wanted += 1
        self._asked.set()
        return self._wanted

    def served(self, number: int) -> bool:
        """Whether it was looked at since that was asked for."""
        return self._served >= number

    def hangs(self, longer_s: float) -> bool:
        """Whether a look has been under way for longer than that."""
        return self._since_s is not None and self._now() - self._since_s > longer_s

    def _run(self, stopping: threading.Event) -> None:
        pace_s = _PACE_S
        while not stopping.is_set():
            began_s = self._now()
            self._asked.clear()
            with self._turned:
                wanted, self._since_s = self._wanted, began_s
                asked = wanted > self._served
            looked = False
            try:
                pace_s = self._look(asked)
                looked = True
            except Exception:  # a fault of ours in one look shall not end the watch
                _log.exception("a look at %s failed", self._name)
            with self._turned:
                self._since_s = None
                if looked:
                    self._served = max(self._served, wanted)
                self._turned.notify_all()
            self._asked.wait(max(_SHORTEST_S, began_s + pace_s - self._now()))
