"""When an operation of a pipeline began and ended on its GPU: by CUDA events, by virtual work, or by the host's clock.

Nothing waits for a GPU here. Events are asked whether they have been passed; an operation that did one piece of virtual
work is exactly as long as that work was. Moments are in the time in which the GPU's readings are stamped.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

from joulewise.core.timeline import TimeSource
from joulewise.frameworks.gpu_time import EventStamp, GpuTime


class OpStamp(Protocol):
    """An operation that has been launched; ``end`` when all of it has."""

    def end(self) -> None:
        """All of it has been launched."""
        ...

    def began_s(self) -> float | None:
        """When the GPU began it; None until it has."""
        ...

    def ended_s(self) -> float | None:
        """When the GPU was done; None until it is."""
        ...


class HostStamp:
    """By the host's clock, for operations that are done when they return; and by the virtual work that was in them."""

    def __init__(self, time: TimeSource) -> None:
        self._time = time
        self._before = _last_sent()
        self._began_s = time.now_s()
        self._ended_s: float | None = None

    def end(self) -> None:
        """The operation is done."""
        sent = _last_sent()
        done = sent.done if sent is not None and sent is not self._before else None
        if done is None:
            self._ended_s = self._time.now_s()
        else:
            self._began_s, self._ended_s = float(done.started_s), float(done.finished_s)

    def began_s(self) -> float | None:
        """When it began; what is known better at the end is then told."""
        return self._began_s

    def ended_s(self) -> float | None:
        """When it was done."""
        return self._ended_s


class CudaStamp:
    """By two CUDA events on the current stream."""

    def __init__(self, gpu_time: GpuTime, device: int | None) -> None:
        self._gpu_time, self._device = gpu_time, device
        self._first: EventStamp | None = gpu_time.stamp(device)
        self._last: EventStamp | None = None
        self._began_s: float | None = None
        self._ended_s: float | None = None

    def end(self) -> None:
        """All of it has been launched."""
        self._last = self._gpu_time.stamp(self._device)

    def began_s(self) -> float | None:
        """When the GPU began it."""
        if self._began_s is None and self._first is not None:
            self._began_s = self._first.time_s()
            if self._began_s is not None:
                self._first = None  # its event is used again
        return self._began_s

    def ended_s(self) -> float | None:
        """When the GPU was done."""
        if self._ended_s is None and self._last is not None and self.began_s() is not None:
            self._ended_s = self._last.time_s()
            if self._ended_s is not None:
                self._last = None
        return self._ended_s


class Stamps:
    """Makes stamps for the operations of one rank, whose GPU lives in ``time``. ``device`` is torch's, where known."""

    def __init__(self, time: TimeSource, device: Any = None) -> None:
        self._time = time
        self._gpu_time: GpuTime | None = None
        self._device: int | None = None
        if getattr(device, "type", "cpu") == "cuda":
            self._gpu_time = GpuTime(sys.modules["torch"].cuda)
            self._device = device.index

    def begin(self) -> OpStamp | None:
        """An operation is about to be launched; None while a CUDA graph is being captured."""
        if self._gpu_time is None:
            return HostStamp(self._time)
        return None if self._gpu_time.capturing else CudaStamp(self._gpu_time, self._device)


def _last_sent() -> Any:
    virtual = sys.modules.get("joulewise.device.work")
    return virtual.last_sent() if virtual is not None else None
