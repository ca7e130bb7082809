"""A plain nvidia-ml-py script: sets what its arguments say on GPU 0, waits, and prints what NVML shows.

    set_and_read.py [lock=990] [limit=200] [reset] [for=2.5]

Runs in the peers' environment. `for` watches the power for so many seconds.
"""

import json
import sys
import time
from statistics import mean, median

import pynvml

WATCH_S = 0.1


def main(arguments: list[str]) -> None:
    """Set, then read."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    watched_s = 0.0
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "lock":
            pynvml.nvmlDeviceSetGpuLockedClocks(gpu, int(value), int(value))
        elif name == "limit":
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu, int(value) * 1000)
        elif name == "reset":
            pynvml.nvmlDeviceResetGpuLockedClocks(gpu)
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu, pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu))
        elif name == "for":
            watched_s = float(value)
        else:
            raise SystemExit(f"what is {argument!r}?")

    begun_s = time.monotonic()
    begun_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    shown_w, clocks_mhz = [], []
    while (left_s := begun_s + watched_s - time.monotonic()) > 0:
        time.sleep(min(WATCH_S, left_s))
        shown_w.append(pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000)
        clocks_mhz.append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
    ended_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    ended_s = time.monotonic()

    low_mw, high_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
    print(
        json.dumps(
            {
                "name": pynvml.nvmlDeviceGetName(gpu),
                "uuid": pynvml.nvmlDeviceGetUUID(gpu),
                "limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
                "limits_w": [low_mw / 1000, high_mw / 1000],
                "sm_max_mhz": pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                "sm_mhz": median(clocks_mhz) if clocks_mhz else None,
                "shown_w": mean(shown_w) if shown_w else None,
                "counted_w": (ended_mj - begun_mj) / 1000 / (ended_s - begun_s) if watched_s else None,
                "reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
                "pids": [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)],
            }
        )
    )
    pynvml.nvmlShutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
