"""Runs one command and answers for everything that comes of it: when the ward ends, nothing of it is left.

What it is: a program of its own, started by path with nothing but the standard library, so that it is there in
milliseconds. Orphans of its command become its children (Linux: child subreaper), also those that made a session of
their own, as Slurm's steps do. It ends all of them by SIGKILL when its input closes (its starter ended, in whatever
way), when it is told to (SIGTERM), or when the command itself has ended; so ending it is what a crash is to a node.

What it is not: a supervisor; nothing is started again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_SET_CHILD_SUBREAPER = 36  # prctl(2)
_SET_PDEATHSIG = 1
_LOOK_S = 0.1


def ward(command: list[str]) -> int:
    """Run ``command`` until it ends, until standard input closes, or SIGTERM; then end all that it left."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        del frame
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    code = None
    while not told and code is None:
        with contextlib.suppress(InterruptedError):
            if select.select([0], [], [], _LOOK_S)[0] and not os.read(0, 4096):
                break
        code = _reaped(child.pid)
    _end_all()
    return code if code is not None else 0


def _reaped(wanted: int) -> int | None:
    """Collect whoever has ended; the exit code of ``wanted`` if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                code = os.waitstatus_to_exitcode(status)
    return code


def _end_all() -> None:
    """SIGKILL every descendant, again until there is none: one may fork while we look."""
    while found := _descendants(os.getpid()):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
        _reaped(0)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if not each.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; the state and the parent follow the last one.
            state, parent = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z" or int(parent) == root:
                children.setdefault(int(parent), []).append(int(each.name))
    found, ahead = [], [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


if __name__ == "__main__":
    sys.exit(ward(sys.argv[1:]))
