"""What ``joulewise run``, ``joulewise top`` and ``tuning()`` measure with: a window over GPUs and host, its history.

It puts the monitor, the recording, the history and the host's counters together, and never raises once it has
begun: what happened to a GPU is part of its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from joulewise.core.errors import GpuLost
from joulewise.core.measurement import Measurement, Outcome, total
from joulewise.device.gpu import Gpu, GpuInfo
from joulewise.device.host import HostEnergy, HostReading
from joulewise.device.recording import Recorder
from joulewise.monitor.report import Report
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.window import Monitor, Window
from joulewise.report.history import History, Series
from joulewise.store.thinned import Thinned

T = TypeVar("T")

_SO_FAR_SHARE = 0.005
"""What looking at the counters of an open window may cost, as a share of time; their calls take milliseconds."""
_LEAST_SO_FAR_S = 0.5
_PATIENCE_S, _VIEW_PATIENCE_S = 10.0, 2.0
"""How long the driver may take to answer at the end, and for a view of the open window. A call of a wedged driver never
returns, and the command's exit code must not wait for it; a whole node of slow counters answers within a second."""
_HOST_S = 20.0
"""Between two looks at the host's counters, which want to be read once a minute: they wrap."""


@dataclass(frozen=True, slots=True)
class GpuResult:
    """One GPU's part. ``measurement`` is None where there is nothing to say, and then ``reason`` says why."""

    info: GpuInfo
    series: Series
    measurement: Measurement[Any] | None
    reason: str | None = None
    window_s: float | None = None
    """From begin to end in the GPU's time, however long it could be read."""


@dataclass(frozen=True, slots=True)
class HostResult:
    """Processors and memory of the host. ``energy_j`` is None where ``reason`` says why."""

    energy_j: float | None
    reason: str | None = None


class Meter:
    """One window over some GPUs (maybe none) and the host. Use ``with``; then ``begin``, ``end``.

    With ``unix_s``, what Unix time is when the GPUs' clock shows 0, one sample a second of each GPU is made ready to be
    kept (``thinned``). Raises BadSpec when ``record`` cannot be written, before anything is measured.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        interval_s: float = 0.1,
        record: Path | None = None,
        unix_s: float | None = None,
    ) -> None:
        self.gpus = tuple(gpus)
        self.host = HostEnergy()
        self._recorder = Recorder(record, gpus) if record is not None else None
        self.thinned = Thinned(len(self.gpus), unix_s, self._recorder) if unix_s is not None else None
        self.history = History(len(self.gpus), interval_s=interval_s, recorder=self.thinned or self._recorder)
        self._monitor: Monitor | None = None
        if gpus:
            sampler = Sampler(gpus, interval_s=interval_s, recorder=self.history)
            self._monitor = Monitor(sampler=sampler, recorder=self._recorder)
        self._window: Window | None = None
        self._host_before: HostReading | None = None
        self._so_far: Report | None = None
        self._hung = False
        self._over = threading.Event()

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._monitor is not None:
            self._monitor.close()
        if self._recorder is not None:
            self._recorder.close()

    @property
    def sampler(self) -> Sampler | None:
        """What polls the GPUs; None where there are none."""
        return self._monitor.sampler if self._monitor is not None else None

    def begin(self) -> None:
        """Start the window."""
        self._host_before = self.host.read()
        if self.host.zones:
            threading.Thread(target=self._keep_host_up, name="joulewise host", daemon=True).start()
        if self._monitor is not None:
            self._window = self._monitor.window("run", settle=True).begin()

    def so_far(self) -> Report | None:
        """The open window up to now, as fresh as its cost allows; None where there is no GPU."""
        if self._window is None or self._monitor is None:
            return None
        calls_s = sum(track.counter_call_s for track in self._monitor.sampler.tracks if track.has_counter)
        fresh_s = max(_LEAST_SO_FAR_S, calls_s / _SO_FAR_SHARE)
        stale = self._so_far is None or self._monitor.time.now_s() - self._so_far.to_s >= fresh_s
        if stale and not self._hung:
            seen = _within(_VIEW_PATIENCE_S, self._window.so_far)
            self._hung = seen is None
            self._so_far = seen or self._so_far
        return self._so_far

    def end(self, outcome: Outcome) -> tuple[list[GpuResult], HostResult]:
        """Stop the window; what each GPU and the host used in it."""
        assert self._host_before is not None, "begin comes before end"
        report = _within(_PATIENCE_S, lambda: self._report(outcome))
        self.history.end()
        self._over.set()
        host = self.host.between(self._host_before, self.host.read())
        return self._gpu_results(report), self._host_result(host.energy_j, host.notes)

    def _keep_host_up(self) -> None:
        # A thread of its own: whoever has begun the window may wait for a store, or for nothing at all.
        while not self._over.wait(_HOST_S):
            self.host.read()

    def _report(self, outcome: Outcome) -> Report | None:
        if self._window is None:
            return None
        try:
            return self._window.end(outcome=outcome)
        except GpuLost:  # the report says so, GPU by GPU
            return self._window.report

    def _gpu_results(self, report: Report | None) -> list[GpuResult]:
        if report is None:
            hung = (
                f"the driver hangs: no answer for {_PATIENCE_S:g} s; what was read before is in the recording, if any"
            )
            series = self.history.series
            return [GpuResult(gpu.info, series[place], None, hung) for place, gpu in enumerate(self.gpus)]
        return [
            GpuResult(
                info=gpu.info,
                series=self.history.series[place],
                measurement=report.gpus.get(gpu.info.uuid),
                reason=report.missing.get(gpu.info.uuid),
                window_s=report.duration_s,
            )
            for place, gpu in enumerate(self.gpus)
        ]

    def _host_result(self, energy_j: float | None, notes: Sequence[str]) -> HostResult:
        if energy_j is not None:
            return HostResult(energy_j)
        reasons = dict.fromkeys((*self.host.missing, *notes))  # what is missing is noted of every window, too
        return HostResult(None, "; ".join(reasons) or "no zone of the host could be read")


def together(parts: Sequence[GpuResult]) -> Measurement[Any] | None:
    """All GPUs that could be measured together; None where none could."""
    measured = [part.measurement for part in parts if part.measurement is not None]
    return total(measured) if measured else None


def _within(patience_s: float, call: Callable[[], T]) -> T | None:
    """What ``call`` returns, or raises; None when it has not returned in time, and is left behind on its thread."""
    answer: list[T] = []
    fault: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(call())
        except BaseException as error:
            fault.append(error)

    thread = threading.Thread(target=run, name="joulewise meter", daemon=True)
    thread.start()
    thread.join(patience_s)
    if fault:
        raise fault[0]
    return answer[0] if answer else None
