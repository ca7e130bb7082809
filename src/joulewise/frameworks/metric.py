"""``joulewise.metric`` and ``joulewise.should_stop``: what a training script of a recurring job says and asks.

    for epoch in range(1, epochs + 1):
        train()
        joulewise.metric(epoch=epoch, val_acc=evaluate())
        if joulewise.should_stop():
            save(); break

Under ``joulewise recur run`` the environment names a directory, and what is told goes into a file there
(``core/metric``); anywhere else both cost a function call and do nothing. They never print and never raise. Plain
Python from 3.9 on, standard library only: it runs in whatever Python the job has.
"""

# ruff: noqa: PTH110, PTH118, PTH123 (pathlib is slow to load)

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from joulewise.core import metric as lines
from joulewise.core.marks import Clock, start_of
from joulewise.frameworks.marker import process_rank

ANSWER_S = 1.0
"""How long ``should_stop`` waits for the answer to what was told before it: the reader looks twenty times a second,
and asks a server at times. An epoch that goes on for nothing costs more."""
_LOOK_S = 0.005


def metric(*, epoch: float, **values: Any) -> None:
    """``epoch`` epochs are done (0: training begins), and these are the values: ``metric(epoch=3, val_acc=0.81)``.

    Numbers, or anything that ``float`` takes, such as a tensor of one element. Only rank 0 of a distributed job is
    heard, so that every rank may call it.
    """
    tell(epoch, values)


def tell(epoch: float, values: Mapping[str, Any]) -> None:
    """The same for a callback, whose framework chooses the names of its values."""
    if _teller is not None:
        _teller.tell(epoch, values)


def should_stop() -> bool:
    """Whether the run should end now, in order, because it has reached its target or cannot win any more.

    Ask right after ``metric``, and save before you stop. In a distributed job (torch.distributed) every rank asks at
    the same place, and all get rank 0's answer.
    """
    # Asked of the other ranks even where nobody asked us: a rank on another node may not know of the directory.
    return _agreed(_teller is not None and _teller.should_stop())


class Teller:
    """What this process tells in ``directory``. Whatever goes wrong ends the telling, and is no business of the job."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pid = 0
        self._stem = ""
        self._file: int | None = None
        self._bytes = 0
        self._asks = self._unanswered = self._broken = False

    def tell(self, epoch: float, values: Mapping[str, Any]) -> None:
        """One line, if this process is the one that counts."""
        if self._broken:
            return
        try:
            if process_rank() > 0:
                return
            known = {name: number for name, value in values.items() if (number := _number(value)) is not None}
            time_s, clock = _now()
            told = lines.line(lines.Metric(time_s, float(epoch), known, clock))
            if len(told) <= lines.LONGEST_LINE:
                self._bytes += os.write(self._opened(), told)
        except (TypeError, ValueError):  # an epoch that is no number
            return
        except Exception:
            self._broken = True

    def should_stop(self) -> bool:
        """The answer to what was told last, or what is known of it after ``ANSWER_S``."""
        if self._broken:
            return False
        try:
            if process_rank() > 0:
                return os.path.exists(os.path.join(self._directory, lines.STOP))
            self._opened()
            if not self._asks:
                self._asks = True
                open(self._stem + lines.ASKS, "w").close()
            self._await_answer()
            return os.path.exists(os.path.join(self._directory, lines.STOP))
        except Exception:
            self._broken = True
            return False

    def _await_answer(self) -> None:
        until_s = time.monotonic() + (0.0 if self._unanswered else ANSWER_S)
        while self._answered() < self._bytes:
            if time.monotonic() >= until_s:
                self._unanswered = True  # nobody reads: not waited for again until somebody does
                return
            time.sleep(_LOOK_S)
        self._unanswered = False

    def _answered(self) -> int:
        try:
            with open(self._stem + lines.ANSWERED) as file:
                return int(file.read() or 0)
        except (OSError, ValueError):
            return 0

    def _opened(self) -> int:
        """This process's file; a forked child makes its own."""
        pid = os.getpid()
        if self._file is None or pid != self._pid:
            self._pid, self._bytes, self._asks = pid, 0, False
            self._stem = os.path.join(self._directory, f"{pid}-{start_of(pid) or 0}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._stem + lines.SUFFIX, flags, 0o600)
            self._bytes = os.fstat(self._file).st_size  # a program that replaced itself (exec) goes on in its file
        return self._file


def _now() -> tuple[float, Clock]:
    """The time on the clock that the job's steps are stamped by: a virtual GPU's own, where it has done work on one."""
    virtual = sys.modules.get("joulewise.device.work")
    sent = virtual.last_sent() if virtual is not None else None
    if sent is not None and sent.done is not None:
        return float(sent.done.finished_s), Clock.SIMULATED
    return time.monotonic(), Clock.HOST


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except Exception:  # a tensor of several, a name: not a metric
        return None


def _agreed(own: bool) -> bool:
    """Rank 0's answer on every rank: ranks that stop at different epochs would wait for each other for ever."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return own
        if distributed.get_world_size() < 2:
            return own
        answer = [own]
        distributed.broadcast_object_list(answer, src=0)
        return bool(answer[0])
    except Exception:
        return False


def _by_environment() -> Teller | None:
    directory = os.environ.get(lines.ENVIRONMENT)
    return Teller(directory) if directory else None


_teller = _by_environment()
