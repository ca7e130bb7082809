"""How a trial is stopped: asked first, told then, killed at last.

A script that asks (``joulewise.should_stop``) gets its answer and ends by itself; any other gets SIGTERM, and time to
write a checkpoint. Whatever is left of it after ``grace_s`` is killed, with all that it has started: two trainings on
one GPU would both be measured wrongly.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from joulewise.core.marks import start_of
from joulewise.monitor.metrics import MetricFeed

_LOOK_S = 0.02


class Stop:
    """The stop of one command, of which ``pid`` is the first process."""

    def __init__(self, pid: int, feed: MetricFeed, grace_s: float) -> None:
        self._pid, self._feed, self._grace_s = pid, feed, grace_s
        self.why: str | None = None
        """Why it is being stopped; None while it is not."""
        self.killed = False
        self._signalled = False
        self._until_s = 0.0
        self._family: set[tuple[int, int]] = set()

    def ask(self, why: str) -> None:
        """Begin to stop it. A second reason changes nothing."""
        if self.why is not None:
            return
        self.why = why
        self._feed.stop()
        self._until_s = time.monotonic() + self._grace_s
        if not self._feed.asked:
            self._terminate()

    def keep_up(self) -> None:
        """Now and then while it runs: the next step, once its time is over."""
        if self.why is None or self.killed or time.monotonic() < self._until_s:
            return
        if self._signalled:
            self.killed = True
            self._send(signal.SIGKILL, {(self._pid, start_of(self._pid) or 0), *self._family, *_family(self._pid)})
        else:
            self._until_s = time.monotonic() + self._grace_s
            self._terminate()

    def tidy(self) -> None:
        """The command has ended: what it had started and left behind when we told it to end is ended, too.

        A shell that gets SIGTERM ends at once, and leaves the training that it had started to nobody.
        """
        if not self._signalled:
            return
        self._send(signal.SIGKILL if self.killed else signal.SIGTERM, self._family)
        until_s = time.monotonic() + self._grace_s
        while any(_lives(*each) for each in self._family):
            if time.monotonic() >= until_s and not self.killed:
                self.killed = True
                self._send(signal.SIGKILL, self._family)
            time.sleep(_LOOK_S)

    def _terminate(self) -> None:
        self._signalled = True
        self._family = _family(self._pid)  # when it has ended, nobody can tell whose they were
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)

    @staticmethod
    def _send(number: signal.Signals, processes: set[tuple[int, int]]) -> None:
        for pid, started in processes:
            if _lives(pid, started):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)


def _lives(pid: int, started: int) -> bool:
    """Whether this very process has not ended; one that nobody has waited for has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X") and start_of(pid) == started


def _family(pid: int) -> set[tuple[int, int]]:
    """All that a process has started, and they, each with when it started: a pid comes again."""
    found: set[tuple[int, int]] = set()
    waiting = [pid]
    while waiting:
        for file in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with suppress(OSError, ValueError):
                for child in map(int, file.read_text().split()):
                    started = start_of(child)
                    if started is not None and (child, started) not in found:
                        found.add((child, started))
                        waiting.append(child)
    return found
