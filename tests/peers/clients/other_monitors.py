"""GPU 0 measured by Zeus, CodeCarbon and Weights & Biases at once, each used as its documentation says.

Runs in the peers' environment. Says "ready", measures from the line "go" to the line "stop" on standard input, then
prints what each tool says the window took, with the window's edges on the machine's monotonic clock.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import wandb
from codecarbon import OfflineEmissionsTracker
from zeus.monitor import ZeusMonitor

WANDB_INTERVAL_S = 0.5


def tracker() -> Any:
    """CodeCarbon, offline and quiet. It measures every 5 s here instead of 15 s, so several times in a window."""
    return OfflineEmissionsTracker(
        country_iso_code="DEU",
        measure_power_secs=5,
        save_to_file=False,
        log_level="critical",
        allow_multiple_runs=True,
        gpu_ids=[0],
    )


def wandb_joules(run: Any, begun_s: float, ended_s: float) -> float:
    """What its energy curve rose by between two moments of the monotonic clock."""
    to_monotonic_s = time.monotonic() - time.time()
    curve = run._system_metrics["gpu.0.energyJoules"]
    times_s = [moment.timestamp() + to_monotonic_s for moment, _ in curve]
    assert times_s[0] <= begun_s, "the curve begins after the window"
    assert times_s[-1] >= ended_s, "the curve ends before the window"
    begun_j, ended_j = np.interp([begun_s, ended_s], times_s, [joules for _, joules in curve])
    return float(ended_j - begun_j)


def main(directory: str) -> None:
    """Measure once."""
    zeus = ZeusMonitor(gpu_indices=[0], cpu_indices=[])
    warm = tracker()  # the first one of a process looks for hardware for more than a second
    warm.start()
    warm.stop()
    codecarbon = tracker()
    run = wandb.init(
        project="joules",
        dir=directory,
        settings=wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            x_stats_sampling_interval=WANDB_INTERVAL_S,
            x_stats_buffer_size=1000,
        ),
    )
    time.sleep(3 * WANDB_INTERVAL_S)  # so that the curve of W&B has begun

    print("ready", flush=True)
    assert sys.stdin.readline() == "go\n"
    begun_s = {"zeus": time.monotonic()}
    zeus.begin_window("window", sync_execution=False)
    begun_s["codecarbon"] = time.monotonic()
    codecarbon.start()
    begun_s["wandb"] = time.monotonic()
    assert sys.stdin.readline() == "stop\n"
    ended_s = {"zeus": time.monotonic()}
    joules = {"zeus": zeus.end_window("window", sync_execution=False).gpu_energy[0]}
    ended_s["codecarbon"] = time.monotonic()
    codecarbon.stop()
    ended_s["wandb"] = time.monotonic()

    joules["codecarbon"] = codecarbon.final_emissions_data.gpu_energy * 3.6e6  # from kWh
    time.sleep(3 * WANDB_INTERVAL_S)
    joules["wandb"] = wandb_joules(run, begun_s["wandb"], ended_s["wandb"])
    run.finish()
    print(json.dumps({name: [begun_s[name], ended_s[name], joules[name]] for name in joules}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
