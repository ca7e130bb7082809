"""Measure the stages of ``train_pipe.py`` for ``joulewise plan solve``: each operation at a few clocks, by itself.

joulewise sim --gpu 'sim:a100-sxm*8' --speed 20 -- python examples/demo_cluster/profile_pipe.py profile.csv

Writes a row for each stage, kind and clock: seconds and joules of one operation, as the GPU's energy counter says over
several of them. Prints what a GPU draws while it waits. Needs the right to set clocks (root, or the daemon).
"""

import argparse
import csv
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train_pipe import LOADS, STAGES, load_of

from joulewise.core.errors import JoulewiseError
from joulewise.core.knob import Setting
from joulewise.device.discover import find
from joulewise.device.gpu import Gpu
from joulewise.device.hold import hold
from joulewise.device.work import Link, current

CLOCKS = (1410, 1305, 1200, 1095, 990, 885, 780, 675)
LONG_S = 2.0  # of the GPU's time, for each row: its counter counts in steps
WAITS = 10


def main() -> None:
    """Every stage on its GPU, clock after clock."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("profile", type=Path)
    chosen = options.parse_args()
    link, gpus = current(), find("nvml:all")
    if len(gpus) < STAGES:
        raise SystemExit(f"profile_pipe: {STAGES} stages need as many GPUs; there are {len(gpus)}")
    rows = []
    held = tempfile.TemporaryDirectory(prefix="profile")
    with held as state, hold(gpus[:STAGES], ["sm_mhz"], reason="profile of a pipeline", state=Path(state)) as lease:
        for clock in CLOCKS:
            lease.apply(Setting(sm_mhz=clock))
            for kind in LOADS:
                rows += [(stage, kind, clock, *measured(link, gpus[stage], stage, kind)) for stage in range(STAGES)]
            print(f"{clock} MHz: measured", file=sys.stderr, flush=True)
    with chosen.profile.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("stage", "instruction", "frequency", "time", "energy"))
        table.writerows(rows)
    print(f"{waiting_w(link, gpus[0]):.1f}")


def measured(link: Link, gpu: Gpu, stage: int, kind: str) -> tuple[float, float]:
    """Seconds and joules of one operation."""
    count = max(2, round(LONG_S / LOADS[kind][0]))
    link.work(load_of(stage, kind), stage)  # at its clock, and warm
    before_j = gpu.energy().energy_j
    done = link.work([load_of(stage, kind)] * count, stage)
    return (done.finished_s - done.started_s) / count, (gpu.energy().energy_j - before_j) / count


def waiting_w(link: Link, gpu: Gpu) -> float:
    """Watts of a GPU that has just worked and waits for more."""
    took_s, drawn_j = 0.0, 0.0
    for _ in range(WAITS):
        link.work((0.2, 0.7, 250.0), 0)
        before = gpu.energy()
        time.sleep(0.5 / link.speed)
        after = gpu.energy()
        took_s += after.time_s - before.time_s
        drawn_j += after.energy_j - before.energy_j
    return drawn_j / took_s


if __name__ == "__main__":
    try:
        main()
    except JoulewiseError as error:
        raise SystemExit(f"profile_pipe: {error}") from None
