"""How far can a measured joule be trusted, and what does measuring cost?

Windows of 50 ms to 30 s over loads with a known truth, through the real Monitor in virtual time, for sensors that
tick every 20 or 100 ms and look all or a quarter of the time, and for those of an H200. Every run draws its loads,
phases and windows anew from a seed. The baseline, on the very same windows, is Zeus's rule: the counter's difference
as it is.

``coverage_2se`` share of windows with the truth within two stated standard errors; ``sharpness`` median over cells
(load × window × sensor) of the median stated error over the actual rms error; ``short_error_ratio`` median absolute
error of windows below 1 s over that of the baseline; ``sampler_cpu_share`` CPU seconds per second of sampling eight
GPUs at 10 Hz on a thread with a window open, ``…_slow_counter`` the same with a counter call that burns 3.45 ms;
``window_pair_us`` one begin and end, ``window_report_us`` working up its report.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, NamedTuple

from bench.measure_loads import FAMILIES, IDLE_W, LIMIT_W, Segment
from joulewise.core.errors import JoulewiseError
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import Loop, TimeSource, VirtualTime, WallTime
from joulewise.device.gpu import Gpu, GpuInfo
from joulewise.device.power_trace import PowerTrace
from joulewise.device.sensors import Sensors
from joulewise.monitor import Monitor, Sampler

WINDOWS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0, 30.0)
REPEATS = (5, 5, 4, 4, 3, 2, 1, 1)
SLOW_CALL_S = 0.00345  # measured on an H200
SENSORS = {
    "exact, 100 ms": SensorTiming(),
    "exact, 20 ms": SensorTiming(power_update_s=0.02, power_window_s=0.02, counter_update_s=0.02),
    "quarter, 100 ms": SensorTiming(power_window_s=0.025, counter_window_s=0.025),
    "quarter, 20 ms": SensorTiming(
        power_update_s=0.02, power_window_s=0.005, counter_update_s=0.02, counter_window_s=0.005
    ),
    # Power looks a quarter of the time, the counter all of it, and a look at the counter is dear: what an H200 shows.
    "H200": SensorTiming(power_window_s=0.025, counter_call_s=SLOW_CALL_S),
}


class PlayedGpu:
    """A GPU that draws the power of a load and shows it through virtual sensors; the truth is known."""

    def __init__(self, load: Iterator[Segment], timing: SensorTiming, time_source: TimeSource, seed: int) -> None:
        self.time = time_source
        self.info = GpuInfo(
            f"GPU-{seed}", "played", 0, "virtual", sensors=timing, idle_power_w=IDLE_W, default_limit_w=LIMIT_W
        )
        self._load = load
        self._trace = PowerTrace(start_s=time_source.now_s() - 2.0)
        self._sensors = Sensors(timing, self._trace, seed=seed)

    def _now_s(self) -> float:
        now_s = self.time.now_s()
        while self._trace.end_s <= now_s:
            segment = next(self._load)
            self._trace.append(self._trace.end_s + segment.duration_s, segment.power_w, segment.busy)
        return now_s

    def read(self) -> Reading:
        """What the sensors show."""
        now_s = self._now_s()
        return Reading(now_s, power_w=self._sensors.power_w(now_s), utilization=self._sensors.utilization(now_s))

    def energy(self) -> EnergyReading:
        """What the counter shows."""
        now_s = self._now_s()
        return EnergyReading(now_s, self._sensors.counter_j(now_s) or 0.0)

    def processes(self) -> None:
        """Nobody can tell."""

    def truth_j(self) -> float:
        """Joules up to now."""
        now_s = self._now_s()
        return self._trace.energy_j(now_s)


class Seen(NamedTuple):
    """One window: what was measured and what is true."""

    load: str
    sensor: str
    window_s: float
    truth_j: float
    energy_j: float
    error_j: float
    plain_j: float
    source: str


def run(load: str, sensor: str, seed: str) -> Iterator[Seen]:
    """One job under one Monitor: all window lengths in random order, with pauses between them."""
    draw = random.Random(f"{seed} {load} {sensor}")
    virtual = VirtualTime()
    timing = replace(SENSORS[sensor], utilization_update_s=draw.choice([0.167, 0.2, 1.0]))
    gpu = PlayedGpu(FAMILIES[load](random.Random(draw.random())), timing, virtual, draw.getrandbits(32))
    monitor = Monitor(sampler=Sampler([gpu], seed=draw.getrandbits(32)))
    lengths_s = [length_s for length_s, repeat in zip(WINDOWS_S, REPEATS, strict=True) for _ in range(repeat)]
    draw.shuffle(lengths_s)
    seen: list[Seen] = []

    def job() -> Loop[None]:
        yield draw.uniform(0.2, 4.0)
        for length_s in lengths_s:
            yield draw.uniform(0.0, 1.0)
            with monitor.window(f"{length_s} s") as window:
                true_j, plain_j = gpu.truth_j(), gpu.energy().energy_j
                # Jobs do not take whole multiples of a sensor's period, for which no edge matters to the baseline.
                yield length_s * math.exp(draw.uniform(-0.2, 0.2))
                true_j, plain_j = gpu.truth_j() - true_j, gpu.energy().energy_j - plain_j
            found = window.report.total
            seen.append(Seen(load, sensor, length_s, true_j, found.energy_j, found.error_j, plain_j, found.source))

    virtual.run(job())
    monitor.close()
    yield from seen


class BurningGpu:
    """A GPU whose counter call burns CPU time, as the driver's does."""

    def __init__(self, gpu: Gpu, call_s: float) -> None:
        self._gpu, self._call_s = gpu, call_s
        self.info, self.time = gpu.info, gpu.time

    def read(self) -> Reading:
        """As the GPU behind it."""
        return self._gpu.read()

    def energy(self) -> EnergyReading:
        """As the GPU behind it, after ``call_s`` of CPU time."""
        begun_s = self.time.now_s()
        until_s = time.thread_time() + self._call_s
        while time.thread_time() < until_s:
            pass
        return EnergyReading(begun_s, self._gpu.energy().energy_j, self.time.now_s() - begun_s)

    def processes(self) -> tuple[int, ...] | None:
        """As the GPU behind it."""
        return self._gpu.processes()


@contextmanager
def eight_gpus() -> Iterator[Sequence[Gpu]]:
    """Eight H200 behind the virtual NVML, or else in this process; stderr says which."""
    try:
        from joulewise.device.node import spawn
        from joulewise.device.nvml import NvmlGpu, use_virtual

        with spawn("sim:h200*8", load="transformer") as node:
            use_virtual(node.directory)
            print("sampling over the virtual NVML", file=sys.stderr)
            yield NvmlGpu.all()
    except (ImportError, JoulewiseError, OSError) as error:
        print(f"sampling GPUs in this process, their simulation included: {error}", file=sys.stderr)
        wall = WallTime()
        draw = random.Random(0)
        loads = [FAMILIES["training"](random.Random(draw.random())) for _ in range(8)]
        yield [PlayedGpu(load, SENSORS["quarter, 100 ms"], wall, seed) for seed, load in enumerate(loads)]


def cpu_share(gpus: Sequence[Gpu], length_s: float) -> float:
    """CPU seconds per second that sampling costs, with one window open."""
    with Monitor(gpus) as monitor:
        used_s, begun_s = time.process_time(), time.monotonic()
        with monitor.window("all"):
            time.sleep(length_s)
        return (time.process_time() - used_s) / (time.monotonic() - begun_s)


def window_cost_us(gpu: Gpu, pairs: int) -> tuple[float, float]:
    """Median cost of a begin/end pair on one GPU, and of working up its report."""
    pair_s, report_s = [], []
    with Monitor([gpu]) as monitor:
        time.sleep(2.0)
        for _ in range(pairs):
            begun_s = time.perf_counter()
            monitor.begin("pair")
            report = monitor.end("pair")
            ended_s = time.perf_counter()
            _ = report.total
            pair_s.append(ended_s - begun_s)
            report_s.append(time.perf_counter() - ended_s)
            time.sleep(0.002)
    return 1e6 * statistics.median(pair_s), 1e6 * statistics.median(report_s)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def score(seen: Sequence[Seen]) -> tuple[dict[str, float], dict[tuple[str, str, float], tuple[float, float, float]]]:
    """The figures, and coverage, sharpness and relative rms error of every cell."""
    cells: dict[tuple[str, str, float], list[Seen]] = defaultdict(list)
    for each in seen:
        cells[each.load, each.sensor, each.window_s].append(each)
    table = {}
    for key, members in cells.items():
        errors = [each.energy_j - each.truth_j for each in members]
        covered = sum(abs(e) <= 2.0 * each.error_j for e, each in zip(errors, members, strict=True)) / len(members)
        actual_j = _rms(errors)
        sharp = statistics.median(each.error_j for each in members) / actual_j if actual_j else math.inf
        table[key] = (covered, sharp, actual_j / statistics.mean(each.truth_j for each in members))
    short = [each for each in seen if each.window_s < 1.0]
    ours_j = statistics.median(abs(each.energy_j - each.truth_j) for each in short)
    plain_j = statistics.median(abs(each.plain_j - each.truth_j) for each in short)
    return {
        "coverage_2se": sum(abs(each.energy_j - each.truth_j) <= 2.0 * each.error_j for each in seen) / len(seen),
        "sharpness": statistics.median(sharp for _, sharp, _ in table.values()),
        "short_error_ratio": ours_j / plain_j,
    }, table


def show(table: dict[tuple[str, str, float], tuple[float, float, float]], out: IO[str]) -> None:
    """The cells: coverage in percent / stated over actual error / actual error in percent of the energy."""
    loads, sensors = dict.fromkeys(key[0] for key in table), dict.fromkeys(key[1] for key in table)
    for sensor in sensors:
        heads = " ".join(f"{format(window_s, 'g') + ' s':>15}" for window_s in WINDOWS_S)
        print(f"\n{sensor:<17}{heads}", file=out)
        for load in loads:
            cells = (table[load, sensor, window_s] for window_s in WINDOWS_S)
            row = " ".join(f"{100 * c:4.0f}/{min(s, 99):4.1f}/{100 * e:5.1f}" for c, s, e in cells)
            print(f"{load:<17}{row}", file=out)
    print("\ncovered by ±2 stated errors, % / stated over actual error / actual rms error, % of energy", file=out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", default="1", help="draws loads, phases and windows")
    parser.add_argument("--runs", type=int, default=40, help="jobs for each load and sensor")
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="how long to sample for the CPU share; 0 = not")
    parser.add_argument("--decisions", metavar="FILE", type=Path, help="write every window as one JSON line")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    costs: dict[str, float] = {}
    if options.cpu_seconds > 0:  # first, while there is nothing else in this process to disturb it
        with eight_gpus() as gpus:
            costs["sampler_cpu_share"] = cpu_share(gpus, options.cpu_seconds)
            slow = [BurningGpu(gpu, SLOW_CALL_S) for gpu in gpus]
            costs["sampler_cpu_share_slow_counter"] = cpu_share(slow, options.cpu_seconds)
            costs["window_pair_us"], costs["window_report_us"] = window_cost_us(gpus[0], 500)
    seen: list[Seen] = []
    for load in FAMILIES:
        for sensor in SENSORS:
            for index in range(options.runs):
                seen += run(load, sensor, f"{options.seed}/{index}")
        print(f"{load}: {len(seen)} windows so far, {time.process_time():.0f} CPU s", file=sys.stderr)
    if options.decisions:
        options.decisions.write_text("".join(json.dumps(each._asdict()) + "\n" for each in seen), encoding="utf-8")
    figures, table = score(seen)
    figures |= costs
    show(table, sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"figures": figures}))
    else:
        for name, value in figures.items():
            print(f"{name:<32}{value:.4g}")


if __name__ == "__main__":
    main()
