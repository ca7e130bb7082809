"""Daemons that die at a chosen line, forked from one process that has loaded everything: a start costs milliseconds.

``python -m tests.scenarios.crasher`` reads lines ``{"at": N, "after": …, "arguments": […], "report": PATH}``; each
forks a daemon (``joulewise.daemon`` with those arguments) that SIGKILLs itself before the N-th distinct line of
``FILES`` that it runs from the first call of ``after`` (FILE:FUNCTION) on; N = 0 never dies. It answers with the
child's pid, and with how it ended once it has.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import json
import os
import signal
import sys

from joulewise.daemon.__main__ import main as serve
from tests.crashing import Crash

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
FILES = (
    "daemon/audit.py",
    "daemon/book.py",
    "daemon/rights.py",
    "daemon/server.py",
    "daemon/service.py",
    "daemon/station.py",
    "daemon/tenure.py",
    "daemon/worker.py",
    "device/keeper.py",
    "device/nvml_controls.py",
    "device/saved.py",
    "device/watch.py",
)
"""Every step between "save" and "acknowledge", and between "release" and its answer."""


def main() -> None:
    # What a daemon would load when it starts, and what its first look at the heap would find.
    importlib.import_module("pynvml")
    importlib.metadata.version("joulewise")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            # It ends with us, however a test ends: a daemon left behind would be nobody's.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            devnull = os.open(os.devnull, os.O_RDWR)
            os.dup2(devnull, 0)
            os.dup2(devnull, 2)
            crash = Crash(order["at"], files=FILES, after=order["after"], report=order["report"])
            with crash:
                code = serve(order["arguments"])
            os._exit(code)
        print(json.dumps({"pid": child}), flush=True)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps({"killed": killed, "status": status}), flush=True)


if __name__ == "__main__":
    main()
