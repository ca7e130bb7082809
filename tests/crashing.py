"""Die at a chosen line: SIGKILL to oneself at the n-th line that runs in certain files. For tests of crash points.

As a program, for a daemon or a client in a process of its own::

    python -m tests.crashing N [--file NAME]... [--after FILE:FUNCTION] [--visits K] [--report PATH] -- MODULE ARGS...

runs ``MODULE`` as ``python -m MODULE ARGS`` would, and kills the process before the N-th line counted runs. Counted
are lines of the files named (ends of paths, such as ``device/keeper.py``; default: the lease engine's), in all threads,
from the first call of ``FUNCTION`` in ``FILE`` on (default: ``device/keeper.py:take``), each line at most ``K`` times
(default 1: distinct lines; 0: every time). With N = 0 it never dies. ``PATH`` then gets one line "count FILE:LINE" for
each that counted, as it happens, so that a test knows how many points there are and where each one lies.

Inside a process (after a fork, say)::

    with Crash(n): ...           # counts from here on; ``Crash(0)`` only counts

It traces Python lines and nothing else: a death inside one write to a file is not among them.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

_MODULES = ("saved", "keeper", "undo", "watch", "standing", "local", "rescue", "nvml_controls")
ENGINE = tuple(f"device/{name}.py" for name in _MODULES)
"""Where every step between "save" and "give back" is."""


class Crash:
    """Counts lines while the context lasts, and dies at the ``at``-th. ``count`` is how many there were."""

    def __init__(
        self,
        at: int,
        *,
        files: Sequence[str] = ENGINE,
        after: str | None = None,
        visits: int = 1,
        report: str | None = None,
    ) -> None:
        self.count = 0
        self.points: list[str] = []
        """Where each counted line lies."""
        self._at = at
        self._files = tuple(files)
        self._after = None if after is None else after.rsplit(":", 1)
        self._visits = visits
        self._seen: Counter[tuple[str, int]] = Counter()
        self._ours: dict[str, bool] = {}
        self._report = None if report is None else os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __enter__(self) -> Self:
        threading.settrace(self._call)
        sys.settrace(self._call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(None)
        threading.settrace(None)  # ends it, as with sys.settrace

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if self._after is not None:
            file, function = self._after
            if not (name.endswith(file) and frame.f_code.co_name == function):
                return None
            self._after = None
        ours = self._ours.get(name)
        if ours is None:
            ours = self._ours[name] = name.endswith(self._files)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            where = (frame.f_code.co_filename, frame.f_lineno)
            self._seen[where] += 1
            if not self._visits or self._seen[where] <= self._visits:
                self.count += 1
                self.points.append(f"{where[0].rpartition('/')[2]}:{where[1]}")
                if self._report is not None:
                    os.write(self._report, f"{self.count} {self.points[-1]}\n".encode())
                if self.count == self._at:
                    os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def main() -> None:
    """The program: see above."""
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, rest = sys.argv[1:cut], sys.argv[cut + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.crashing")
    parser.add_argument("at", type=int)
    parser.add_argument("--file", action="append", dest="files")
    parser.add_argument("--after", default="device/keeper.py:take")
    parser.add_argument("--visits", type=int, default=1)
    parser.add_argument("--report")
    options = parser.parse_args(arguments)
    if not rest:
        parser.error("name a module to run after --")
    sys.argv = rest
    crash = Crash(
        options.at,
        files=options.files or ENGINE,
        after=options.after or None,
        visits=options.visits,
        report=options.report,
    )
    with crash:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
