"""What do a GPU's sensors show while training steps whose ends are known go by? Records it, for period detectors.

Each workload of ``bench.step_workloads`` runs in a process of its own; this one polls the GPU ten times a second, as a
tuner would: power, clocks, utilisation, the energy counter and, where the GPU has them, GPM's activity counters. Reads
only. Needs PyTorch with CUDA and a GPU that nobody else is using.

    python -m bench.record_steps --out DIR [--seconds 62] [--photos FILE.npz] [--only resnet50,gcn]

DIR gets ``NAME.samples.csv.gz`` and ``NAME.steps.csv.gz`` for each, both on the machine's monotonic clock.
bench/results/h200/steps is such a DIR; its README says what is in it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import subprocess
import sys
import time
from pathlib import Path

from joulewise.core.errors import JoulewiseError
from joulewise.device.gpm import Gpm
from joulewise.device.nvml import NvmlGpu

INTERVAL_S = 0.1
NAMES = (  # of bench.step_workloads, which needs PyTorch and is therefore not imported here
    "resnet50", "resnet18_host", "vit_shift", "gpt2_accumulate", "llama_recompute", "bert_buckets", "gcn", "dlrm",
    "lstm", "unet_ema", "gan", "ppo", "ncf", "moe", "shrinking",
)  # fmt: skip
ACTIVITIES = ("graphics", "sm", "occupancy", "tensor", "dram", "fp32", "fp16", "integer", "pcie_in_bytes_per_s")
READINGS = ("power_w", "average_power_w", "sm_mhz", "memory_mhz", "utilization", "memory_utilization", "temperature_c")
COLUMNS = ("time_s", *READINGS, "throttle", "energy_s", "energy_j", "energy_call_s", *ACTIVITIES)


def sample(gpu: NvmlGpu, gpm: Gpm | None) -> list[str]:
    """One row; what could not be read is empty."""
    reading, energy = gpu.read(), gpu.energy()
    activity = gpm.read() if gpm is not None else None
    row: list[object] = [f"{reading.time_s:.6f}", *(_short(getattr(reading, name)) for name in READINGS)]
    row.append("|".join(sorted(reading.throttle or ())))
    row += [f"{energy.time_s:.6f}", f"{energy.energy_j:.3f}", f"{energy.call_s:.6f}"]
    row += [_short(activity.values.get(name)) if activity is not None else "" for name in ACTIVITIES]
    return [str(value) for value in row]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def record(gpu: NvmlGpu, name: str, options: argparse.Namespace) -> str:
    """Run one workload and poll the GPU until it ends. A line on how it went."""
    plain = options.out / f"{name}.steps.csv"
    command = [sys.executable, "-m", "bench.step_workloads", name, "--seconds", str(options.seconds)]
    command += ["--out", str(plain)] + (["--photos", str(options.photos)] if options.photos else [])
    try:
        gpm: Gpm | None = Gpm(gpu)
    except JoulewiseError:
        gpm = None
    rows = 0
    with gzip.open(options.out / f"{name}.samples.csv.gz", "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        due_s = time.monotonic()
        while child.poll() is None:
            table.writerow(sample(gpu, gpm))
            rows += 1
            due_s = max(due_s + INTERVAL_S, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))
    if gpm is not None:
        gpm.close()
    assert child.stderr is not None
    complaint = child.stderr.read().strip().splitlines()
    if child.returncode:
        return f"{name}: failed with {child.returncode}: {complaint[-1] if complaint else ''}"
    steps = plain.read_text()
    with gzip.open(plain.with_suffix(".csv.gz"), "wt") as packed:
        packed.write(steps)
    plain.unlink()
    return f"{name}: {rows} samples, {steps.count(',step')} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=62.0)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--only", default=",".join(NAMES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    gpu = NvmlGpu.all()[0]
    for name in options.only.split(","):
        print(record(gpu, name, options), flush=True)


if __name__ == "__main__":
    main()
