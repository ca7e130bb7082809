"""What does a real NVIDIA GPU do, seen from reading alone? Sensors, windows, and a clock sweep that sets nothing.

Questions: how often do power, counter, clock and utilisation move, and what does a read cost; does the counter
agree with integrated instant power; how repeatable are windows of 1, 3 and 10 s; and how do time and power follow
the clock. The last needs no rights: under its power limit a GPU lowers its clock by itself, as far as the load makes
it. The *values* in the tensors (zeros toggle few wires) and short rests between steps both move the load's power, so
the share of non-zero values and the share of busy time sweep the clock without setting anything.

Needs PyTorch with CUDA and a GPU that nobody else is using. Writes nothing to the GPU's settings.

    python -m bench.real_gpu --out DIR [--only sensors,agree,windows,sweep] [--json]

``sweep.csv`` in DIR is what was measured, ``points.csv`` what ``joulewise model fit`` reads of it; ``real_gpu.json``
holds every figure. bench/results/h200 is such a DIR.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from joulewise.core.measurement import EnergyReading, Reading
from joulewise.device.discover import find
from joulewise.device.gpu import Gpu

Step = Callable[[], None]
"""Queues one step of GPU work and returns at once."""

DENSITIES = (1.0, 0.3, 0.05, 0.0)
"""Shares of non-zero values: power rises fastest at the low end."""
DUTIES = (1.0, 0.93, 0.86, 0.78, 0.68, 0.5, 0.3)
"""Shares of busy time. The limiter acts on the average, so the same kernels run at a higher clock with more rest."""


@dataclass
class Sampled:
    """What a background thread read while something ran."""

    readings: list[Reading] = field(default_factory=list)
    energies: list[EnergyReading] = field(default_factory=list)


@contextmanager
def sampling(gpu: Gpu, interval_s: float, *, energy: bool = False) -> Iterator[Sampled]:
    """Read the GPU every ``interval_s`` seconds in a thread."""
    sampled, stop = Sampled(), threading.Event()

    def loop() -> None:
        while not stop.wait(interval_s):
            sampled.readings.append(gpu.read())
            if energy:
                sampled.energies.append(gpu.energy())

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield sampled
    finally:
        stop.set()
        thread.join()


def repeat(step: Step, duration_s: float) -> list[float]:
    """Run ``step`` without a pause for ``duration_s``; seconds of each step by CUDA events."""
    import torch

    times: list[float] = []
    queue: list[tuple[Any, Any]] = []
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        stop.record()
        queue.append((start, stop))
        if len(queue) >= 4:  # a few steps in the queue: the GPU never waits for us
            first = queue.pop(0)
            first[1].synchronize()
            times.append(first[0].elapsed_time(first[1]) / 1e3)
    torch.cuda.synchronize()
    return times + [a.elapsed_time(b) / 1e3 for a, b in queue]


def burst(step: Step, duration_s: float, *, burst_s: float, rest_s: float) -> list[float]:
    """Work for about ``burst_s`` (at least one step), rest, and again, for ``duration_s``; seconds of each step."""
    import torch

    times: list[float] = []
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        events = [torch.cuda.Event(enable_timing=True)]
        events[0].record()
        began = time.monotonic()
        while True:
            step()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            if len(events) > 3:  # two steps in the queue: the GPU never waits for us inside a burst
                events[-3].synchronize()
            if time.monotonic() - began >= burst_s:
                break
        events[-1].synchronize()
        times += [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]
        time.sleep(rest_s)
    return times


def workloads() -> dict[str, Callable[[float], Step]]:
    """Name → a function from the density of non-zero values to a step."""
    import torch
    from torch import nn

    device = torch.device("cuda")
    torch.manual_seed(1)

    def values(*shape: int, density: float, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        dense = torch.randn(*shape, device=device, dtype=dtype)
        return dense * (torch.rand(*shape, device=device) < density).to(dtype)

    def thin(module: nn.Module, density: float) -> None:
        with torch.no_grad():
            for p in module.parameters():
                p.mul_((torch.rand_like(p, dtype=torch.float32) < density).to(p.dtype))

    def gemm(density: float) -> Step:
        a, b = values(8192, 8192, density=density), values(8192, 8192, density=density)
        out = torch.empty(8192, 8192, device=device, dtype=torch.bfloat16)

        return lambda: void(torch.matmul(a, b, out=out))

    def gemm_fp32(density: float) -> Step:
        a = values(6144, 6144, density=density, dtype=torch.float32)
        b = values(6144, 6144, density=density, dtype=torch.float32)
        return lambda: void(torch.matmul(a, b))

    def copy(density: float) -> Step:
        a = values(1 << 30, density=density)
        out = torch.empty_like(a)

        def step() -> None:
            for _ in range(8):
                out.copy_(a)

        return step

    def elementwise(density: float) -> Step:
        a = values(1 << 28, density=density)
        return lambda: void(torch.nn.functional.gelu(torch.nn.functional.gelu(a)))

    def transformer(density: float) -> Step:
        layer = nn.TransformerEncoderLayer(2048, 16, 8192, dropout=0.0, batch_first=True, norm_first=True)
        model = nn.Sequential(*[layer.to(device, torch.bfloat16)])
        thin(model, density)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
        x = values(16, 2048, 2048, density=density)
        grad = values(16, 2048, 2048, density=density)

        def step() -> None:
            model(x).backward(grad)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def convolution(density: float) -> Step:
        def block(channels: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()
            )

        model = nn.Sequential(*[block(256) for _ in range(6)]).to(device, torch.bfloat16)
        model = model.to(memory_format=torch.channels_last)
        thin(model, density)
        x = values(256, 256, 28, 28, density=density).to(memory_format=torch.channels_last)
        grad = values(256, 256, 28, 28, density=density).to(memory_format=torch.channels_last)

        def step() -> None:
            model(x).backward(grad)
            model.zero_grad(set_to_none=True)

        return step

    def void(_: Any) -> None:
        return None

    return {
        "gemm_bf16": gemm,
        "gemm_fp32": gemm_fp32,
        "transformer_step": transformer,
        "convolution_step": convolution,
        "elementwise": elementwise,
        "copy": copy,
    }


def moves(times_s: list[float], values: list[float | None]) -> dict[str, float]:
    """Median and spread of the time between changes of a polled value, and how finely it was polled."""
    changes = [t for t, a, b in zip(times_s[1:], values, values[1:], strict=False) if a != b]
    gaps = sorted(b - a for a, b in pairwise(changes))
    polled = statistics.median(b - a for a, b in pairwise(times_s))
    if len(gaps) < 3:
        return {"changes": len(changes), "poll_s": polled}
    return {
        "changes": len(changes),
        "median_s": statistics.median(gaps),
        "p10_s": gaps[len(gaps) // 10],
        "p90_s": gaps[9 * len(gaps) // 10],
        "poll_s": polled,
    }


def call_cost(call: Callable[[], object], count: int) -> dict[str, float]:
    """Median wall seconds and mean CPU seconds of one call."""
    walls = []
    cpu = time.thread_time()
    for _ in range(count):
        start = time.perf_counter()
        call()
        walls.append(time.perf_counter() - start)
    walls.sort()
    return {
        "wall_s": statistics.median(walls),
        "wall_p99_s": walls[int(0.99 * count)],
        "cpu_s": (time.thread_time() - cpu) / count,
    }


def driver_calls(index: int) -> dict[str, dict[str, float]]:
    """What single calls into the driver cost."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    calls: dict[str, Callable[[], object]] = {
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "field_values_2": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [186, 185]),
        "sm_clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, 1),
        "utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "throttle_reasons": lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        "enforced_limit": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        "processes": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        "energy": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "field_energy": lambda: pynvml.nvmlDeviceGetFieldValues(handle, [83]),
    }
    return {name: call_cost(call, 100) for name, call in calls.items()}


def sensors(gpu: Gpu, step: Step) -> dict[str, Any]:
    """How often each value moves under load, and what a read costs."""
    result: dict[str, Any] = {
        "read_call": call_cost(gpu.read, 2000),
        "energy_call": call_cost(gpu.energy, 200),
    }
    result |= {f"call_{name}": cost for name, cost in driver_calls(gpu.info.index).items()}
    readings: list[Reading] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            readings.append(gpu.read())
            time.sleep(0.001)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    burst(step, 8.0, burst_s=0.31, rest_s=0.17)
    done.set()
    thread.join()
    times = [r.time_s for r in readings]
    for name in ("power_w", "average_power_w", "sm_mhz", "utilization", "temperature_c"):
        result[name] = moves(times, [getattr(r, name) for r in readings])
    energies: list[EnergyReading] = []
    done.clear()

    def poll_energy() -> None:
        while not done.is_set():
            energies.append(gpu.energy())

    thread = threading.Thread(target=poll_energy, daemon=True)
    thread.start()
    repeat(step, 6.0)
    done.set()
    thread.join()
    result["counter"] = moves([e.time_s for e in energies], [e.energy_j for e in energies])
    result["counter"]["call_under_load_s"] = statistics.median(e.call_s for e in energies)
    return result


def integrate(readings: list[Reading], start_s: float, end_s: float) -> float:
    """Joules of held power samples between two times."""
    energy_j, last = 0.0, None
    for reading in readings:
        if last is not None and last.power_w is not None:
            a, b = max(last.time_s, start_s), min(reading.time_s, end_s)
            energy_j += last.power_w * max(0.0, b - a)
        last = reading
    return energy_j


def agree(gpu: Gpu, step: Step) -> dict[str, Any]:
    """Counter against integrated instant power: steady, and on bursts whose period beats with the sensor's.

    If the counter saw only part of the time, one-second windows of a load of nearly the sensor's period would swing.
    """
    result: dict[str, Any] = {}
    for name, duration_s, burst_s, rest_s in (
        ("steady", 20.0, None, 0.0),
        ("bursts_400_200_ms", 20.0, 0.4, 0.2),
        ("bursts_near_100_ms", 24.0, 0.045, 0.054),
    ):
        with sampling(gpu, 0.02, energy=True) as seen:
            repeat(step, duration_s) if burst_s is None else burst(step, duration_s, burst_s=burst_s, rest_s=rest_s)
        energies = [e for e in seen.energies if e.time_s > seen.energies[0].time_s + 2.0]
        start, end = energies[0], energies[-1]
        counter_j = end.energy_j - start.energy_j
        integrated_j = integrate(seen.readings, start.time_s, end.time_s)
        seconds: list[float] = []
        powers: list[float] = []
        mark = start
        for e in energies:
            if e.time_s - mark.time_s >= 1.0:
                seconds.append((e.energy_j - mark.energy_j) / (e.time_s - mark.time_s))
                powers.append(integrate(seen.readings, mark.time_s, e.time_s) / (e.time_s - mark.time_s))
                mark = e
        result[name] = {
            "counter_w": counter_j / (end.time_s - start.time_s),
            "integrated_over_counter": integrated_j / counter_j,
            "counter_1s_windows_sd": statistics.pstdev(seconds) / statistics.fmean(seconds),
            "integrated_1s_windows_sd": statistics.pstdev(powers) / statistics.fmean(powers),
        }
    return result


def windows(gpu: Gpu, step: Step) -> dict[str, Any]:
    """Repeatability of windows of 1, 3 and 10 s over the same steady load: relative deviation, trend removed."""
    from joulewise.monitor.window import Monitor

    result: dict[str, Any] = {}
    repeat(step, 8.0)  # warm
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            repeat(step, 0.5)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        with Monitor([gpu]) as monitor:
            time.sleep(2.0)
            for length_s, count in ((1.0, 12), (3.0, 6), (10.0, 4)):
                seen = []
                for i in range(count):
                    monitor.begin(f"w{i}")
                    time.sleep(length_s)
                    seen.append(monitor.end(f"w{i}").total)
                watts = [m.power_w for m in seen]
                steps = [b - a for a, b in pairwise(watts)]
                result[f"{length_s:g}_s"] = {
                    "power_w": statistics.fmean(watts),
                    "spread": statistics.pstdev(watts) / statistics.fmean(watts),
                    "spread_without_trend": statistics.pstdev(steps) / 2**0.5 / statistics.fmean(watts),
                    "stated_error": statistics.median(m.error_j / m.energy_j for m in seen),
                }
    finally:
        stop.set()
        thread.join()
    return result


def sweep(gpu: Gpu, *, seconds: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every workload at every density and duty, and the GPU at rest. Power is the average, rests included."""
    import torch

    def measured(step: Step, duty: float, burst_s: float) -> dict[str, float]:
        def work(duration_s: float) -> list[float]:
            rest_s = burst_s * (1 / duty - 1)
            return repeat(step, duration_s) if duty == 1.0 else burst(step, duration_s, burst_s=burst_s, rest_s=rest_s)

        work(0.8)  # let the limiter settle
        with sampling(gpu, 0.04, energy=True) as seen:
            began = time.monotonic()
            times = work(seconds)
            duration_s = time.monotonic() - began
        clocks = [r.sm_mhz for r in seen.readings if r.sm_mhz is not None]
        return {
            "sm_mhz": statistics.fmean(clocks),
            "sm_mhz_sd": statistics.pstdev(clocks),
            "step_s": statistics.fmean(times),
            "busy_share": sum(times) / duration_s,
            "power_w": counter_power_w(seen.energies, gpu.info.sensors.counter_update_s or 0.1),
            "temperature_c": statistics.fmean(r.temperature_c for r in seen.readings if r.temperature_c is not None),
        }

    rows = []
    limit_w = gpu.read().power_limit_w
    for name, build in workloads().items():
        for density in DENSITIES:
            step = build(density)
            repeat(step, 0.3)
            step_s = statistics.median(repeat(step, 0.3))
            burst_s = max(step_s, round(0.02 / step_s) * step_s)
            for duty in DUTIES if density >= 0.3 else (1.0, 0.5, 0.3):
                row: dict[str, Any] = {"workload": name, "density": density, "duty": duty, "limit_w": limit_w}
                row |= {key: float(f"{value:.6g}") for key, value in measured(step, duty, burst_s).items()}
                rows.append(row)
                progress(
                    f"{name:17s} density {density:4.2f} duty {duty:4.2f} {row['sm_mhz']:6.0f} MHz "
                    f"{row['power_w']:6.1f} W {1e3 * row['step_s']:8.3f} ms busy {row['busy_share']:.3f}"
                )
            del step
            torch.cuda.empty_cache()
    for wait_s in (0.5, 4.0):
        time.sleep(wait_s)
        with sampling(gpu, 0.04, energy=True) as seen:
            time.sleep(3.0)
        row = {"workload": "rest", "density": 0.0, "duty": 0.0, "limit_w": limit_w, "busy_share": 0.0}
        row["sm_mhz"] = statistics.fmean(r.sm_mhz for r in seen.readings if r.sm_mhz is not None)
        row["power_w"] = counter_power_w(seen.energies, gpu.info.sensors.counter_update_s or 0.1)
        row["temperature_c"] = statistics.fmean(r.temperature_c for r in seen.readings if r.temperature_c is not None)
        rows.append(row)
        progress(f"rest, {wait_s:g} s after work: {row['sm_mhz']:.0f} MHz {row['power_w']:.1f} W")
    return rows


def points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sweep as ``joulewise model fit`` reads it: busy time and busy power against the clock, one series a load.

    Rests are taken out of power with the power measured at rest. The clock that the driver shows holds for steady
    work only; in bursts it is a mix of work and rest, so there the clock is the one at which the same steps, steady,
    take that long (where steady work has shown more than one clock).
    """
    rest_w = statistics.fmean(row["power_w"] for row in rows if row["workload"] == "rest")
    top_mhz = max(row["sm_mhz"] for row in rows)
    found = []
    for name in dict.fromkeys(row["workload"] for row in rows if row["workload"] != "rest"):
        steady = [row for row in rows if row["workload"] == name and row["duty"] == 1.0]
        slowness = [top_mhz / row["sm_mhz"] for row in steady]
        told = max(slowness) - min(slowness) > 0.03
        if told:
            scaling_s, fixed_s = statistics.linear_regression(slowness, [row["step_s"] for row in steady])
        for row in (row for row in rows if row["workload"] == name):
            sm_mhz = row["sm_mhz"]
            if row["duty"] < 1.0 and told:
                sm_mhz = min(top_mhz, top_mhz * scaling_s / (row["step_s"] - fixed_s))
            busy = row["busy_share"]
            found.append(
                {
                    "series": f"{name}@{row['density']:g}",
                    "sm_mhz": round(sm_mhz, 1),
                    "limit_w": row["limit_w"] if row["duty"] == 1.0 else "",
                    "time_s": row["step_s"],
                    "power_w": round((row["power_w"] - (1 - busy) * rest_w) / busy, 2),
                }
            )
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A CSV file with the columns of the first row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def counter_power_w(energies: list[EnergyReading], period_s: float) -> float:
    """Average power between the first and the last movement of the counter, which fall on whole periods."""
    moved = [b for a, b in pairwise(energies) if b.energy_j != a.energy_j]
    first, last = moved[0], moved[-1]
    periods = round((last.time_s - first.time_s) / period_s)
    return (last.energy_j - first.energy_j) / (periods * period_s)


def main() -> int:
    """Run what was asked for; figures to ``--out``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for real_gpu.json and sweep.csv")
    parser.add_argument("--only", default="sensors,agree,windows,sweep", help="parts, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per point of the sweep")
    parser.add_argument("--json", action="store_true", help="end with one object {'figures': …}")
    arguments = parser.parse_args()

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    parts = set(arguments.only.split(","))
    gpu = find("nvml")[0]
    step = workloads()["gemm_bf16"](1.0)  # short, so that bursts end where they should
    repeat(step, 3.0)
    found: dict[str, Any] = {"gpu": gpu.info.name, "driver": gpu.info.driver}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, run in (("sensors", sensors), ("agree", agree), ("windows", windows)):
        if name in parts:
            found[name] = run(gpu, step)
            progress(f"{name}: {json.dumps(found[name], indent=1)}")
    if "sweep" in parts:
        rows = sweep(gpu, seconds=arguments.seconds, progress=progress)
        write(arguments.out / "sweep.csv", rows)
        write(arguments.out / "points.csv", points(rows))
        found["sweep_points"] = len(rows)
    (arguments.out / "real_gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    if arguments.json:
        figures = {
            f"{part}.{key}.{name}": value
            for part in ("sensors", "agree", "windows")
            for key, values in found.get(part, {}).items()
            for name, value in values.items()
        }
        print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
