"""Looks at a virtual GPU that lives faster than the wall: fresh ones, dated by when the GPU showed what they saw.

At twenty times the wall's speed a simulator that shows its values every 20 ms is up to 0.4 s behind its own GPU, and a
reader that the machine holds up for 5 ms stamps what it sees 0.1 s too late: tens of joules at each edge of a window.
No real GPU has either trouble. So a look asks the simulator to show what the instruments show now, reads it through
NVML as ever, and takes for its moment the simulated time that was published together with the values. It tells nothing
that a real GPU would not: what a sensor shows, and when one looked.

In real time there is no need for it: readings are stamped by the machine's clock there, as on real hardware.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from joulewise.core.errors import JoulewiseError
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.device.vnvml_structs import Group
from joulewise.device.work import LateAnswer, Link

T = TypeVar("T")

_LONGEST_WALL_S = 0.1  # for a simulator to answer; on a loaded machine it needs some milliseconds
_AGAIN_WALL_S = 1.0  # after it did not: what is published all the same is dated too
# Values are shown anew every 20 ms, so two looks on end are rarely disturbed: on a loaded machine, one in ten is.
_TRIES = 10


class Looks:
    """Looks at GPU ``index`` of the simulator that ``state`` is of. For any thread, and after a fork."""

    def __init__(self, state: VnvmlState, index: int) -> None:
        self._state, self._index = state, index

    def dated(self, ask: Callable[[], T], cost: Group | None = None) -> tuple[T, float, float]:
        """What ``ask`` reads of the GPU, and the simulated moments between which the GPU showed it.

        They are one moment, unless new values were shown at every try; or, where the ``cost`` of a call is imitated,
        its begin and end with that moment between them. What ``ask`` raises is let through.
        """
        begun_s = self._now_s()
        self._refresh()
        for _ in range(_TRIES):
            from_s = self._shown_s()
            value = ask()
            to_s = self._shown_s()
            if from_s == to_s:
                break
        if cost is not None:
            # The machine's own delays are not the GPU's: a call takes as long as it is made to take.
            half_s = 0.5 * self._state.latency_s(self._index, cost) * self._state.speed
            from_s, to_s = max(from_s - half_s, min(begun_s, from_s)), min(to_s + half_s, self._now_s())
        return value, from_s, to_s

    def _now_s(self) -> float:
        return self._state.simulated_ns() / 1e9

    def _shown_s(self) -> float:
        return self._state.shown_ns(self._index) / 1e9

    def _refresh(self) -> None:
        """Have the GPU shown as it is now. Where nobody answers, it is seen as it was shown last."""
        _asking.show(self._state, self._index)


class _Asking:
    """This process's one connection to a simulator, for one thread at a time: a process of many threads (a daemon) has
    no more open files for it, however they come and go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._owed: int | None = None  # the request whose answer was late, and is still to come
        self._again_wall_s = -float("inf")

    def show(self, state: VnvmlState, index: int) -> None:
        """Ask for a GPU to be shown; nothing happens where nobody answers, or somebody else waits for too long."""
        if time.monotonic() < self._again_wall_s or not self._lock.acquire(timeout=_LONGEST_WALL_S):
            return
        try:
            if self._link is None or self._link.directory != os.fspath(state.directory):
                self._link, self._owed = Link(state.directory, longest_s=_LONGEST_WALL_S), None
            if self._owed is not None:
                self._link.receive(self._owed)
            self._owed = self._link.send({"op": "show", "gpu": index})
            self._link.receive(self._owed)
            self._owed = None
        except LateAnswer:  # the connection is as good as ever
            self._again_wall_s = time.monotonic() + _AGAIN_WALL_S
        except JoulewiseError:
            self._link = None
            self._again_wall_s = time.monotonic() + _AGAIN_WALL_S
        finally:
            self._lock.release()


_asking = _Asking()


def _after_fork() -> None:
    """A child speaks on a connection of its own."""
    global _asking
    _asking = _Asking()


os.register_at_fork(after_in_child=_after_fork)
