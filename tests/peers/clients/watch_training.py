"""Starts a training program and watches what it does to virtual GPU 0; locks the clock once it has done some steps.

    watch_training.py REPORT LOCK_AT_STEP LOCK_MHZ COMMAND…

Runs under `joulewise sim --couple torch`, in our own environment, because it asks the simulator how many steps it was
given. Everything else it sees and sets through NVML, as anybody would. Writes REPORT as JSON; ends as COMMAND ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml

from joulewise.device.node import NodeClient
from joulewise.device.work import ENVIRONMENT

LOOK_S = 0.01
FORGET_S = 2.0  # the process list is brought up to date when a sensor is, some ten times a second


def pids(gpu: Any) -> set[int]:
    """Who works on ``gpu`` now, by NVML."""
    return {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}


def main(report: str, lock_at_step: str, lock_mhz: str, *command: str) -> int:
    """Run, watch, report."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    simulator = NodeClient(os.environ[ENVIRONMENT])
    locked = False
    seen: set[int] = set()
    submitted_s: list[float] = []  # when the simulator was first seen to have each step
    before = simulator.truth()
    child = subprocess.Popen(command)
    while child.poll() is None:
        status = simulator.status()
        submitted_s += [status["now_s"]] * (status["coupled"]["steps"] - len(submitted_s))
        seen |= pids(gpu)
        if not locked and len(submitted_s) >= int(lock_at_step):
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu, int(lock_mhz), int(lock_mhz))
            locked = True
        time.sleep(LOOK_S)
    status, after = simulator.status(), simulator.truth()
    forgotten_by_s = time.monotonic() + FORGET_S
    while (left := pids(gpu)) and time.monotonic() < forgotten_by_s:
        time.sleep(LOOK_S)
    Path(report).write_text(
        json.dumps(
            {
                "pid": child.pid,
                "pids_seen": sorted(seen),
                "pids_after": sorted(left),
                "coupled": status["coupled"],
                "submitted_s": submitted_s,
                "energy_j": after.energy_j - before.energy_j,
                "duration_s": after.time_s - before.time_s,
            }
        )
    )
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
