"""Processes for benches that have more work than one core: each begins afresh.

Not forked: a copy of a process with threads (a numeric library's, a test runner's) may wait for ever for a lock that
one of them held at that moment. So what is handed to them, and what comes back, has to travel; so has whatever
``begin`` sets up in each of them before its first piece.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def processes(count: int | None = None, begin: Callable[..., None] | None = None, *given: Any) -> ProcessPoolExecutor:
    """A pool of ``count`` processes (as many as there are cores) that leave the others first; ``begin(*given)`` is
    called in each."""
    afresh = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count or os.cpu_count(), mp_context=afresh, initializer=_begun, initargs=(begin, *given))


def _begun(begin: Callable[..., None] | None, *given: Any) -> None:
    os.nice(10)
    if begin is not None:
        begin(*given)
