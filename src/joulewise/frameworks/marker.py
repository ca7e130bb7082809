"""The marker of one process: turns steps, phases and pauses into marks, in order, each with the best stamp there is.

A step's end is stamped by the GPU where the job uses one (``gpu_time``) or works on a virtual one, and by the
host's clock otherwise. GPU stamps become known a little later, so a step is written at the next mark. Where something
else than a step is marked before the GPU is done, the steps under way are written first, as not clean.

Who may tell steps: the job itself before a framework's callback, a callback before the hooks that were injected
(``iterations``). The others keep silent, so that no step counts twice.

Jobs use it through ``hooks``. Plain Python from 3.9 on, standard library only: it runs in whatever Python the job has.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Protocol

from joulewise.core.marks import UNKNOWN_RANK, Clock, Mark, MarkKind, Ring
from joulewise.frameworks.gpu_time import GpuTime

INJECTED, CALLBACK, JOB = 0, 1, 2
"""Who tells steps, by precedence."""
TOGETHER_S = 0.01
"""Steps of which the GPU does several in this time are taken together: a stamp costs some 30 µs, and this bounds it."""
_MOST_TOGETHER = 64
_NONE = (0, 0.0, True)  # steps, their work, and whether all of them are clean
_MOST_PENDING = 1024  # launches that a GPU takes in before the host has to wait, and so the most steps on their way


class Sink(Protocol):
    """Where marks go."""

    def write(self, mark: Mark) -> None:
        """Take one mark; its time is the machine's monotonic clock, or a simulator's."""
        ...


class _Stamp(Protocol):
    def time_s(self) -> float | None: ...


class _WorkStamp:
    """The end of a piece of virtual work (``device.work.Sent``)."""

    __slots__ = ("_sent",)

    def __init__(self, sent: Any) -> None:
        self._sent = sent

    def time_s(self) -> float | None:
        done = self._sent.done
        return None if done is None else float(done.finished_s)


class _Step:
    """A step, or ``count`` short ones together, whose end is not known yet."""

    __slots__ = ("clean", "clock", "count", "phase", "stamp", "work")

    def __init__(self, stamp: _Stamp, clock: Clock, work: float, phase: str, clean: bool, count: int) -> None:
        self.stamp, self.clock, self.work, self.phase, self.clean = stamp, clock, work, phase, clean
        self.count = count


class Marker:
    """Marks of this process into ``directory``, or into ``sink``. Every method returns at once and never raises."""

    def __init__(self, directory: str | None = None, *, sink: Sink | None = None) -> None:
        self._directory, self._sink = directory, sink
        self._given = sink is not None
        self.device: int | None = None
        """The GPU on which the steps are done, where a hook knows it; None: the current one."""
        self.phase_name = ""
        self.paused = ""
        self._reset()

    def _reset(self) -> None:
        if not self._given:
            self._sink = None
        self._broken = False
        self._rank: int | None = None
        self._told_by = -1
        self._clean = True
        self._pending: deque[_Step] = deque()
        self._busy = threading.Lock()
        self._gpu_time: GpuTime | None = None
        self._pace, self._carried = 1, _NONE
        self._step_s: float | None = None
        self._ended_s: float | None = None

    def after_fork(self) -> None:
        """In a forked child: the file is the parent's; this process makes its own when it takes a step."""
        if self._given:
            self._broken = True  # the tuner is in the parent
        else:
            self._reset()

    @property
    def marking(self) -> bool:
        """Whether this process has told of a step, or of something else, and goes on to."""
        return not self._broken and self._told_by >= 0

    # What is marked.

    def hello(self, who: str, precedence: int) -> bool:
        """``who`` wants to tell steps: whether they may."""
        if self._broken or precedence < self._told_by:
            return False
        if precedence > self._told_by:
            with _Quietly(self):
                self._told_by, self._clean = precedence, False
                self._write(MarkKind.HELLO, who, work=float(_number("WORLD_SIZE")))
        return not self._broken

    def step(self, work: float, who: str, precedence: int) -> bool:
        """A step has been launched, or done. ``work`` that is no amount is let be.

        False while a CUDA graph is being captured: nothing is done then, and nothing is marked.
        """
        if precedence != self._told_by and not self.hello(who, precedence):
            return True
        if self._broken:
            return True
        try:
            amount = float(work)
            return self._step(amount) if 0.0 <= amount < math.inf else True
        except (TypeError, ValueError):
            return True
        except Exception:  # as in _Quietly, which costs more
            self._broken = True
            return True

    def phase(self, name: str) -> None:
        """Another phase begins."""
        if self._broken or name == self.phase_name:
            return
        with _Quietly(self):
            self._hurry()
            self.phase_name, self._clean = name, False
            self._write(MarkKind.PHASE, name)

    def pause(self, why: str) -> None:
        """The job does something else than steps now."""
        if self._broken or self.paused:
            return
        with _Quietly(self):
            self._hurry()
            self.paused, self._clean = why, False
            self._write(MarkKind.PAUSE, why)

    def resume(self) -> None:
        """The job is back at its steps."""
        if self._broken or not self.paused:
            return
        with _Quietly(self):
            self.paused, self._clean = "", False
            self._write(MarkKind.RESUME)

    def bye(self) -> None:
        """The process ends."""
        if self._broken or self._sink is None:
            return
        with _Quietly(self):
            self._hurry()
            self._write(MarkKind.BYE)

    # How.

    def _step(self, work: float) -> bool:
        gpu_time = self._gpu_time or self._gpu()
        if gpu_time is not None and gpu_time.capturing:
            return False
        clean, self._clean = self._clean and not self.paused, True
        if self._pending:
            self._collect()
        virtual = sys.modules.get("joulewise.device.work")
        sent = virtual.last_sent() if virtual is not None else None
        if sent is not None:
            self._await(_WorkStamp(sent), Clock.SIMULATED, work, clean, 1)
        elif gpu_time is None:
            if self._pending:
                self._hurry()
            self._write(MarkKind.STEP, self.phase_name, work, clean)
        else:
            count, carried, all_clean = self._carried
            if count + 1 < self._pace:  # to be taken together with the next
                self._carried = count + 1, carried + work, all_clean and clean
                return True
            self._carried = _NONE
            self._await(gpu_time.stamp(self.device), Clock.GPU, carried + work, all_clean and clean, count + 1)
        return True

    def _await(self, stamp: _Stamp, clock: Clock, work: float, clean: bool, count: int) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._hurry()
        self._pending.append(_Step(stamp, clock, work, self.phase_name, clean, count))

    def _gpu(self) -> GpuTime | None:
        torch = sys.modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized():
            self._gpu_time = GpuTime(cuda)
        return self._gpu_time

    def _collect(self) -> None:
        """Write the steps whose ends are known by now."""
        if not self._busy.acquire(blocking=False):  # another thread, or a signal's handler: it is being done
            return
        try:
            while self._pending:
                step = self._pending[0]
                time_s = step.stamp.time_s()
                if time_s is None:
                    return
                self._pending.popleft()
                self._write(MarkKind.STEP, step.phase, step.work, step.clean, time_s, step.clock)
                if step.clock is Clock.GPU:
                    self._set_pace(step, time_s)
        finally:
            self._busy.release()

    def _hurry(self) -> None:
        """Write all steps under way: with their ends where known, else as of now and not clean."""
        gpu_time = self._gpu_time
        if gpu_time is None or not gpu_time.capturing:
            self._collect()
        if not self._busy.acquire(blocking=False):
            return
        try:
            while self._pending:
                step = self._pending.popleft()
                self._write(MarkKind.STEP, step.phase, step.work, clean=False)
                self._clean = False
            count, work, _ = self._carried
            if count:
                self._write(MarkKind.STEP, self.phase_name, work, clean=False)
                self._clean, self._carried = False, _NONE
        finally:
            self._busy.release()

    def _set_pace(self, step: _Step, end_s: float) -> None:
        """How many steps to take together from now on, by how long the GPU takes for one."""
        before_s, self._ended_s = self._ended_s, end_s
        if not step.clean or before_s is None:
            return
        step_s = (end_s - before_s) / step.count
        self._step_s = step_s if self._step_s is None else self._step_s + 0.1 * (step_s - self._step_s)
        self._pace = max(1, min(_MOST_TOGETHER, int(TOGETHER_S / max(self._step_s, 1e-6))))

    def _write(
        self,
        kind: MarkKind,
        name: str = "",
        work: float = 0.0,
        clean: bool = True,
        time_s: float | None = None,
        clock: Clock = Clock.HOST,
    ) -> None:
        if self._sink is None:
            self._open()
        if self._sink is not None:
            now_s = time.monotonic() if time_s is None else time_s
            self._sink.write(Mark(now_s, kind, self._own_rank(), work, name, clean, clock))

    def _open(self) -> None:
        if self._directory is None or _in_loader_worker():
            self._broken = True
            return
        self._sink = Ring(self._directory, local_rank=_number("LOCAL_RANK"), world=_number("WORLD_SIZE"))
        atexit.unregister(self.bye)  # a forked child has its parent's
        atexit.register(self.bye)

    def _own_rank(self) -> int:
        if self._rank is None:
            self._rank = process_rank()
        return self._rank

    def fail(self) -> None:
        """Mark nothing more."""
        self._broken = True


class _Quietly:
    """Whatever goes wrong in marking ends the marking, and is no business of the job. Interrupts are."""

    __slots__ = ("_marker",)

    def __init__(self, marker: Marker) -> None:
        self._marker = marker

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._marker.fail()
        return True


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() and len(text) < 10 else 0


def process_rank() -> int:
    """This process's rank, by torch or by its environment; UNKNOWN_RANK where neither says."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if os.environ.get(name, "").isdigit():
            return _number(name)
    return UNKNOWN_RANK


def _in_loader_worker() -> bool:
    """Whether this is a worker of a DataLoader: a copy of the job that does none of its steps."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
