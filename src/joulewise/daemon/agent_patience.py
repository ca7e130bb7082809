"""A GPU whose driver may hang, read without hanging with it.

An agent has one thread that looks at all GPUs, and a driver call that never returns would end all control of the node.
So the calls of one GPU run in a thread of its own, and whoever waits in vain for ``patience_s`` hears GpuStalled: then,
and at once from then on until the call comes back. Another reader of the same kind: the daemon's ``worker``, which
cannot wait at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from joulewise.core.errors import GpuStalled
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.core.timeline import TimeSource
from joulewise.device.gpu import Gpu, GpuInfo

PATIENCE_S: Final = 1.0
"""A reading takes microseconds, the counter milliseconds; one in a hundred thousand takes a tenth of a second."""

T = TypeVar("T")


class _Call:
    """One call, its result, and whether it has come back."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._result: Any = None
        self._error: BaseException | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self._result = self._act()
        except BaseException as error:  # whoever waits raises it
            self._error = error
        self.over.set()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class PatientGpu:
    """``gpu``, for one thread to read. See ``gpu.Gpu``; GpuStalled besides."""

    def __init__(self, gpu: Gpu, *, patience_s: float = PATIENCE_S) -> None:
        self._gpu = gpu
        self._patience_s = patience_s
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._late: _Call | None = None
        # A daemon thread: one that hangs in the driver must not keep the process from ending.
        threading.Thread(target=self._work, name=f"reader of {gpu.info.uuid}", daemon=True).start()

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        return self._gpu.info

    @property
    def time(self) -> TimeSource:
        """The time in which it lives."""
        return self._gpu.time

    def read(self) -> Reading:
        """As the GPU does."""
        return self._wait_for(self._gpu.read)

    def energy(self) -> EnergyReading:
        """As the GPU does."""
        return self._wait_for(self._gpu.energy)

    def processes(self) -> tuple[int, ...] | None:
        """As the GPU does."""
        return self._wait_for(self._gpu.processes)

    def _wait_for(self, act: Callable[[], T]) -> T:
        if self._late is None or self._late.over.is_set():
            call = _Call(act)
            self._calls.put(call)
            if call.over.wait(self._patience_s):
                self._late = None
                result: T = call.result()
                return result
            self._late = call
        raise GpuStalled(
            f"the driver does not answer for {self._gpu.info.uuid} in {self._patience_s:g} s; see 'dmesg | grep Xid'"
        )

    def _work(self) -> None:
        while True:
            self._calls.get().run()
