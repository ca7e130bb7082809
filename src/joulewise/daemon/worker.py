"""Where hardware calls run, so that the one thread that decides never waits for a driver.

One GPU, one thread, first come first served: a hung call stops its own GPU and no other. Results come back to the
deciding thread, which calls ``deliver``; a callback never runs anywhere else. ``Inline`` does the same without
threads, for tests in virtual time.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol


class Job:
    """One call for one GPU, and what to do with its result in the deciding thread."""

    __slots__ = ("call", "cancelled", "done", "error", "gpu", "late", "must", "ran", "result", "since_s")

    def __init__(
        self, gpu: str, call: Callable[[], Any], done: Callable[[Job], None], since_s: float, *, must: bool = False
    ) -> None:
        self.gpu = gpu
        self.call = call
        self.done = done
        self.since_s = since_s
        self.late = False
        """Nobody waits for it any more; what it did must be undone when it comes back."""
        self.cancelled = False
        """Need not begin if it has not yet."""
        self.must = must
        """Runs however late."""
        self.ran = False
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Make the call; the deciding thread finds how it went in ``ran``, ``result`` and ``error``."""
        if self.cancelled:
            return
        self.ran = True
        try:
            self.result = self.call()
        except Exception as error:  # whatever a driver call raises is for the decider to answer
            self.error = error


class Executor(Protocol):
    """Runs jobs, in order for each GPU."""

    def submit(self, job: Job) -> None:
        """Run it as soon as those before it on its GPU are done. Returns at once."""
        ...


class Inline:
    """Runs jobs when told to, in the caller's thread. ``hold`` a GPU to play a driver that hangs."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._held: set[str] = set()

    def submit(self, job: Job) -> None:
        """Keep it for ``deliver``."""
        self._jobs.append(job)

    def hold(self, gpu: str) -> None:
        """Let nothing of ``gpu`` run."""
        self._held.add(gpu)

    def let_go(self, gpu: str) -> None:
        """Let it run again."""
        self._held.discard(gpu)

    def deliver(self) -> int:
        """Run everything that may run, and what that brings up; how many jobs that was."""
        count = 0
        waiting: deque[Job] = deque()
        while self._jobs:
            job = self._jobs.popleft()
            if job.gpu in self._held:
                waiting.append(job)
                continue
            job.run()
            job.done(job)
            count += 1
        self._jobs = waiting
        return count


class Workers:
    """One thread for each GPU that has ever had a job. ``fd`` is readable when results wait for ``deliver``."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queues: dict[str, SimpleQueue[Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._finished: deque[Job] = deque()
        self._called = False
        """Whether ``fd`` is readable already: one call wakes the decider for all that has finished by then."""

    def submit(self, job: Job) -> None:
        """Hand it to its GPU's thread."""
        queue = self._queues.get(job.gpu)
        if queue is None:
            queue = self._queues[job.gpu] = SimpleQueue()
            # A daemon thread: one that hangs in the driver must not keep the process from ending.
            thread = threading.Thread(target=self._work, args=(queue,), name=f"worker of {job.gpu}", daemon=True)
            self._threads.append(thread)
            thread.start()
        queue.put(job)

    def deliver(self) -> int:
        """Call back for every job that is done; how many there were. Only from the deciding thread."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        self._called = False  # after the read: else a call made in between would be read away and never made again
        count = 0
        while self._finished:
            job = self._finished.popleft()
            try:
                job.done(job)
            except Exception:  # a fault of ours about one result shall not take the leases of all others with it
                traceback.print_exc()
            count += 1
        return count

    def close(self, wait_s: float = 1.0) -> None:
        """End the threads; one that hangs for longer than ``wait_s`` is left behind."""
        for queue in self._queues.values():
            queue.put(None)
        until_s = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            os.close(self.fd)

    def _work(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            job.run()
            self._finished.append(job)
            if not self._called:
                self._called = True
                os.eventfd_write(self.fd, 1)
