"""Windows: what was spent between two moments, on which GPU, how sure that is. ``Monitor`` is what users hold.

Windows nest and overlap, serve as context manager, decorator or begin/end pair, and can be read while open. An edge
costs microseconds: it stamps the time, reads power, and looks at the counter if that is quick. A counter whose call
takes milliseconds is looked at by the sampler's thread instead; the window's end looks itself only if that takes
less than a thousandth of the window. The arithmetic happens when a report is first read, not in the job's way.

GPU work is asynchronous: unless the caller gives ``sync`` (such as ``torch.cuda.synchronize``), a window ends when
the host says so, not when the kernels do.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ParamSpec, TypeVar

from joulewise.core.errors import GpuLost, WindowError
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Outcome
from joulewise.core.timeline import TimeSource
from joulewise.device.gpu import Gpu
from joulewise.device.recording import Recorder
from joulewise.monitor.report import Report, Witness
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.track import AROUND_S, Extract, affordable

P = ParamSpec("P")
R = TypeVar("R")
Sync = Callable[[], object]

_REPORTS_KEPT = 100


class Window:
    """One stretch of work, from ``begin`` to ``end``. Made by ``Monitor.window``; used once."""

    def __init__(
        self, monitor: Monitor, name: str, *, work: float, setting: Setting, sync: Sync | None, settle: bool
    ) -> None:
        self.name = name
        self.work = work
        """How much is done in it, in the caller's unit; may be changed until the end."""
        self.setting = setting
        self.settle = settle
        self._monitor = monitor
        self._sync = sync
        self._from_s: float | None = None
        self._heads: list[Extract] | None = None
        self._report: Report | None = None
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._from_s is not None and self._report is None

    @property
    def report(self) -> Report:
        """What it measured. WindowError before its end."""
        if self._report is None:
            raise WindowError(f"window {self.name!r} has not ended; so_far() reads an open one")
        return self._report

    def begin(self) -> Window:
        """Start the window; WindowError if it has been started before."""
        with self._lock:
            if self._from_s is not None:
                raise WindowError(f"window {self.name!r} has begun before; make a new one with monitor.window()")
            if self._sync is not None:
                self._sync()
            sampler = self._monitor.sampler
            for track in sampler.tracks:
                track.poll()
                if track.slow_counter:
                    sampler.want_counter(track)
                else:
                    track.count()
            sampler.opened(self._keep_head)
            self._from_s = sampler.time.now_s()
        return self

    def end(self, *, outcome: Outcome = Outcome.REACHED, settle: bool | None = None) -> Report:
        """Stop the window and report, at once. WindowError if it is not open.

        With ``settle`` it waits for the counter's next tick (up to 0.1 s), which halves the error of a short
        window. If a GPU was lost the report ends where it was last seen, and GpuLost is raised, once; ``report``
        still holds what was measured.
        """
        with self._lock:
            if self._from_s is None or self._report is not None:
                state = "has ended before" if self._report is not None else "has not begun"
                raise WindowError(f"window {self.name!r} {state}")
            if self._sync is not None:
                self._sync()
            to_s = self._monitor.sampler.time.now_s()
            self._look(to_s - self._from_s, settle=self.settle if settle is None else settle)
            self._report = self._summary(self._from_s, to_s, outcome)
            self._monitor.sampler.closed()
        self._monitor._ended(self._report)
        return self._report

    def so_far(self) -> Report:
        """What was spent up to now, without ending it. WindowError if it is not open."""
        with self._lock:
            if self._from_s is None or self._report is not None:
                raise WindowError(f"window {self.name!r} is not open; its report is in .report once it has ended")
            to_s = self._monitor.sampler.time.now_s()
            self._look(to_s - self._from_s)
            return self._summary(self._from_s, to_s, Outcome.REACHED)

    def __enter__(self) -> Window:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.open:
            return
        try:
            self.end(outcome=_outcome(error))
        except GpuLost:
            if error is None:  # what went wrong inside says more
                raise

    def _look(self, duration_s: float, *, settle: bool = False) -> None:
        sampler = self._monitor.sampler
        if settle:
            sampler.wait_for_ticks()
        dear = [track for track in sampler.tracks if track.slow_counter]
        afford = affordable(dear, duration_s)
        for track in sampler.tracks:
            if afford or not track.slow_counter:
                track.count()
            track.poll()

    def _keep_head(self, now_s: float) -> bool:
        """Keep what was read around the begin before the tracks forget it. True when done."""
        from_s = self._from_s
        if from_s is None or now_s < from_s + AROUND_S:
            return False
        if self._report is None:
            self._heads = [track.extract(from_s, from_s) for track in self._monitor.sampler.tracks]
        return True

    def _summary(self, from_s: float, to_s: float, outcome: Outcome) -> Report:
        witnesses = [
            Witness.of(track, from_s, to_s, self._heads[i] if self._heads else None)
            for i, track in enumerate(self._monitor.sampler.tracks)
        ]
        return Report(self.name, from_s, to_s, self.work, self.setting, outcome, tuple(witnesses))


class Monitor:
    """Measures energy over windows of work, on *my* GPUs unless told which.

    >>> monitor = Monitor()                      # doctest: +SKIP
    >>> with monitor.window("epoch") as window:  # doctest: +SKIP
    ...     train()
    >>> print(window.report)                     # doctest: +SKIP
    epoch: 2.561 ± 0.031 kJ in 8.2 s (counter)

    ``gpus`` is a sequence of Gpu or a specification such as ``"nvml:0-3"``. ``sync`` is called at every edge.
    ``recorder`` gets every reading and every window. May be used from several threads.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu] | str | None = None,
        *,
        interval_s: float = 0.1,
        recorder: Recorder | None = None,
        sync: Sync | None = None,
        settle: bool = False,
        sampler: Sampler | None = None,
    ) -> None:
        if sampler is None:
            if gpus is None or isinstance(gpus, str):
                from joulewise.device.discover import find

                gpus = find(gpus)
            sampler = Sampler(gpus, interval_s=interval_s, recorder=recorder)
        self.sampler = sampler
        self._recorder = recorder
        self._sync = sync
        self._settle = settle
        self._named: dict[str, Window] = {}
        self._reports: deque[Report] = deque(maxlen=_REPORTS_KEPT)
        self._told: set[int] = set()
        self._lock = threading.Lock()
        self.sampler.start()

    @property
    def time(self) -> TimeSource:
        """The time in which windows are measured."""
        return self.sampler.time

    @property
    def gpus(self) -> list[Gpu]:
        """What is measured."""
        return [track.gpu for track in self.sampler.tracks]

    @property
    def reports(self) -> list[Report]:
        """The last finished windows, oldest first."""
        with self._lock:
            return list(self._reports)

    def window(
        self,
        name: str = "window",
        *,
        work: float = 1.0,
        setting: Setting = DEFAULT,
        sync: Sync | None = None,
        settle: bool | None = None,
    ) -> Window:
        """A window to be used in a ``with`` statement, or begun and ended by hand. Names need not differ."""
        return Window(
            self,
            name,
            work=work,
            setting=setting,
            sync=self._sync if sync is None else sync,
            settle=self._settle if settle is None else settle,
        )

    def measured(self, name: str | None = None, *, work: float = 1.0) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function: every call is a window, found in ``reports`` and ``last(name)``."""

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.window(name or function.__name__, work=work):
                    return function(*args, **kwargs)

            return call

        return decorate

    def begin(self, name: str, *, work: float = 1.0, setting: Setting = DEFAULT) -> Window:
        """Begin a window that ``end`` will find by its name; WindowError if one of that name is open."""
        window = self.window(name, work=work, setting=setting)
        with self._lock:
            if name in self._named:
                raise WindowError(f"window {name!r} is open already; end it first, or use monitor.window({name!r})")
            self._named[name] = window
        return window.begin()

    def end(
        self, name: str, *, work: float | None = None, outcome: Outcome = Outcome.REACHED, settle: bool | None = None
    ) -> Report:
        """End the window of that name and report; WindowError if none is open. See ``Window.end``."""
        with self._lock:
            window = self._named.pop(name, None)
            known = ", ".join(map(repr, self._named)) or "none"
        if window is None:
            raise WindowError(f"no window {name!r} is open (open: {known}); begin it with monitor.begin({name!r})")
        if work is not None:
            window.work = work
        return window.end(outcome=outcome, settle=settle)

    def last(self, name: str) -> Report:
        """The last finished window of that name; WindowError if there is none."""
        with self._lock:
            for report in reversed(self._reports):
                if report.name == name:
                    return report
        raise WindowError(f"no window {name!r} has ended yet")

    def close(self) -> None:
        """Stop sampling. Open windows can still be ended; they then rest on readings at their edges."""
        self.sampler.stop()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self, report: Report) -> None:
        with self._lock:
            self._reports.append(report)
            lost = [track for track in self.sampler.tracks if track.lost is not None]
            news = [track for track in lost if track.index not in self._told]
            self._told.update(track.index for track in news)
        if self._recorder is not None:
            self._recorder.window(report.name, report.as_json())
        if news and news[0].lost is not None:
            raise GpuLost(f"{news[0].lost}; window {report.name!r} holds what was measured before") from news[0].lost


def _outcome(error: BaseException | None) -> Outcome:
    """How work ended that raised ``error``. Frameworks have out-of-memory errors of their own, told by name."""
    if error is None:
        return Outcome.REACHED
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Outcome.OUT_OF_MEMORY
    return Outcome.STOPPED_EARLY if isinstance(error, (KeyboardInterrupt, SystemExit)) else Outcome.FAILED
