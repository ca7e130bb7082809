"""The lease on a job's GPUs, taken on one thread and given back on another, in bounded time.

A tuner takes its lease from a thread beside the job; the job's own thread gives it back when the job has ended, maybe
while it is still being taken, or while a call of a driver that hangs stands in the way. What is behind ``run --tune``,
``recur run`` and ``frameworks.torch.tuning``; ``run --set`` gives back by ``release_in_time``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from joulewise.core.errors import GpuStalled, LeaseLost
from joulewise.device.lease import Ended, Lease

GIVE_BACK_S: Final = 5.0
"""How long the end of a job waits for its GPUs to be given back. A whole node takes less than a second; a driver that
hangs takes for ever, and the guardian or the daemon gives back when this process ends."""

_log = logging.getLogger("joulewise")


class JobLease:
    """At most one lease, got by ``acquire``, until ``give_back``; afterwards nothing is taken any more."""

    def __init__(self, acquire: Callable[[], Lease]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()  # never held while a driver or a daemon is waited for

    def take(self) -> Lease:
        """The lease. LeaseLost once the job has ended, before or meanwhile; else raises as ``acquire`` does."""
        if self._over.is_set():
            raise LeaseLost("the job has ended; nothing is set any more")
        lease = self._acquire()
        with self._lock:
            if not self._over.is_set():
                self._lease = lease
                return lease
        lease.release()
        raise LeaseLost("the job ended while its GPUs were being taken; they were given back")

    def give_back(self) -> Ended | None:
        """Release the lease; None where there is none, or it was given back before. Raises as ``release_in_time``. A
        ``take`` that is under way is not waited for: what it gets is released by it."""
        with self._lock:
            self._over.set()
            lease, self._lease = self._lease, None
        return release_in_time(lease) if lease is not None else None


def release_in_time(lease: Lease) -> Ended:
    """Release ``lease``. GpuStalled where that takes longer than ``GIVE_BACK_S``: it goes on by itself; else what
    ``release`` raises."""
    outcome: list[Ended | BaseException] = []

    def release() -> None:
        try:
            outcome.append(lease.release())
        except BaseException as error:  # raised again where it was called
            outcome.append(error)
            _log.debug("giving back lease %s: %s", lease.name, error)

    thread = threading.Thread(target=release, name="joulewise release", daemon=True)
    thread.start()
    thread.join(GIVE_BACK_S)
    if not outcome:
        raise GpuStalled(
            f"lease {lease.name} has not been given back for {GIVE_BACK_S:g} s: a driver that hangs? What it set is "
            "given back when this process ends, at the latest; see 'joulewise leases'"
        )
    ended = outcome[0]
    if isinstance(ended, BaseException):
        raise ended
    return ended
