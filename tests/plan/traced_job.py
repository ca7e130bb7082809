"""Jobs whose truth is known, and the traces that a profiler would write of them.

A job is kernels and collectives with loads of the law, on streams, with what waits for what. ``Truth`` runs it on a
card of ``model/truth``, which our belief cannot represent: clocks, times and watts of every kernel are known, and so is
what the best plan saves. ``kineto`` writes what the profiler would: names, times, launches; no clocks, no watts.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from joulewise.model.catalog import GpuModel
from joulewise.model.physics import Load, Operation
from joulewise.model.truth import RichLaw

GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
ATTENTION = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>(pytorch_flash::Flash_fwd_params)"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>()"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMPUTE_STREAM, LINK_STREAM = 7, 23


@dataclass(frozen=True)
class Kernel:
    name: str
    stream: int
    load: Load
    waits: tuple[int, ...] = ()  # indexes of kernels on other streams


def fsdp(seed: int, model: GpuModel, *, layers: int = 4) -> list[Kernel]:
    """A step of sharded training: weights of the next layer are gathered beside the present one's work."""
    draw = random.Random(f"job {seed}")
    room_w = model.default_limit_w - model.chip.static_w
    size_s = draw.uniform(0.5e-3, 3e-3)
    talk = draw.uniform(0.3, 1.4)  # of the forward pass's compute time
    kernels: list[Kernel] = []

    def load(kind: str, gpu_s: float) -> Load:
        kappa, intensity = {
            "compute": (draw.uniform(0.78, 1.0), draw.uniform(0.9, 1.9)),
            "memory": (0.02 * 20.0 ** draw.random(), draw.uniform(0.5, 0.9)),
            "link": (draw.uniform(0.0, 0.15), draw.uniform(0.2, 0.5)),
        }[kind]
        return Load(gpu_s=gpu_s, sm_share=kappa, dynamic_w=intensity * room_w)

    loads = {
        "gemm": load("compute", size_s),
        "attention": load("compute", 0.4 * size_s),
        "norm": load("memory", 0.15 * size_s),
        "adam": load("memory", 0.5 * size_s),
        "gather": load("link", talk * 1.5 * size_s),
        "scatter": load("link", talk * 2.0 * size_s),
    }

    def add(name: str, of: str, stream: int, *waits: int, times: float = 1.0) -> int:
        one = loads[of]
        scaled = Load(gpu_s=one.gpu_s * times, sm_share=one.sm_share, dynamic_w=one.dynamic_w)
        kernels.append(Kernel(name, stream, scaled, waits))
        return len(kernels) - 1

    gathered = add(GATHER, "gather", LINK_STREAM)
    for layer in range(layers):
        ready = gathered
        if layer + 1 < layers:
            gathered = add(GATHER, "gather", LINK_STREAM)
        add(NORM, "norm", COMPUTE_STREAM, ready)
        add(ATTENTION, "attention", COMPUTE_STREAM)
        add(GEMM, "gemm", COMPUTE_STREAM)
    for layer in range(layers):
        add(NORM, "norm", COMPUTE_STREAM, times=2.0)
        add(ATTENTION, "attention", COMPUTE_STREAM, times=2.2)
        last = add(GEMM, "gemm", COMPUTE_STREAM, times=2.0)
        scattered = add(SCATTER, "scatter", LINK_STREAM, last)
        del layer
    add(ADAM, "adam", COMPUTE_STREAM, scattered)
    return kernels


class Truth:
    """A job on one card."""

    def __init__(self, kernels: list[Kernel], model: GpuModel, seed: int) -> None:
        self.kernels, self.model = kernels, model
        self.law = RichLaw(model.chip, seed)
        self._operate = functools.cache(self._operated)  # kernels of one load are many
        last_on: dict[int, int] = {}
        self.before: list[list[int]] = []
        for index, kernel in enumerate(kernels):
            self.before.append([*kernel.waits, *([last_on[kernel.stream]] if kernel.stream in last_on else [])])
            last_on[kernel.stream] = index
        chip = model.chip
        # The limiter holds the mean power of the step; hungry kernels pull their clock down, frugal ones up.
        mean_w = sum(k.load.gpu_s * k.load.dynamic_w for k in kernels) / sum(k.load.gpu_s for k in kernels)
        agility = random.Random(f"agility {seed}").uniform(0.1, 0.3)
        self.leanings = [
            1.0 if kernel.stream == LINK_STREAM else (mean_w / kernel.load.dynamic_w) ** agility for kernel in kernels
        ]
        self.locks = [r * chip.sm_max_mhz for r in np.linspace(1.0, 0.4, 61)]
        columns = [self._held(lock) for lock in self.locks]
        first = max(i for i, column in enumerate(columns) if column[2] == columns[0][2])
        columns = [columns[0], *columns[first + 1 :]]  # locks that change nothing are none
        self.time_s = np.array([column[0] for column in columns]).T  # kernels × clocks, nothing set first
        self.power_w = np.array([column[1] for column in columns]).T
        mean_x = [float(np.mean(column[2])) / chip.sm_max_mhz for column in columns]
        self.wait_w = np.array([self.law.idle_power_w(x) for x in mean_x])
        self.x = mean_x[0]
        self.seen_s = self.time_s[:, 0]
        self.step_s, self.step_j = self.played(np.zeros(len(kernels), dtype=int))

    def _operated(self, load: Load, lock_mhz: float) -> Operation:
        return self.law.operate(self.model.chip, load, lock_mhz=lock_mhz)

    def _held(self, lock_mhz: float) -> tuple[list[float], list[float], list[float]]:
        """Seconds, watts and MHz of every kernel under a lock and the power limit."""
        low, high = self.model.chip.sm_floor, 1.0 / min(self.leanings)
        cap_w = self.law.card.limiter_gain * self.model.default_limit_w
        for _ in range(18):
            common = 0.5 * (low + high)
            clocks = [min(lock_mhz, common * lean * self.model.chip.sm_max_mhz) for lean in self.leanings]
            settled = [self._operate(kernel.load, clock) for kernel, clock in zip(self.kernels, clocks, strict=True)]
            durations = np.array([each.busy_s for each in settled])
            end_s = float((self.starts(durations) + durations).max())
            wait_w = self.law.idle_power_w(float(np.mean(clocks)) / self.model.chip.sm_max_mhz)
            joules = sum((each.busy_power_w - wait_w) * each.busy_s for each in settled) + wait_w * end_s
            low, high = (common, high) if joules / end_s <= cap_w else (low, common)
        return [each.busy_s for each in settled], [each.busy_power_w for each in settled], clocks

    def starts(self, durations_s: np.ndarray) -> np.ndarray:
        starts = np.zeros(len(durations_s))
        for index, before in enumerate(self.before):
            starts[index] = max((starts[i] + durations_s[i] for i in before), default=0.0)
        return starts

    def played(self, clock: np.ndarray) -> tuple[float, float]:
        """Seconds and joules with every kernel at its clock, waits at the first one's."""
        rows = np.arange(len(clock))
        durations = self.time_s[rows, clock]
        end_s = float((self.starts(durations) + durations).max())
        wait_w = self.wait_w[clock[0]]
        return end_s, float(((self.power_w[rows, clock] - wait_w) * durations).sum() + wait_w * end_s)

    def one_clock(self, slowdown: float) -> float:
        """What the best lock saves."""
        every = [self.played(np.full(len(self.kernels), clock)) for clock in range(len(self.wait_w))]
        return 1.0 - min(j for s, j in every if s <= self.step_s * (1 + slowdown) * (1 + 1e-9)) / self.step_j

    def each_run(self, slowdown: float) -> float:
        """What the best choice of clocks saves, by linear programming: convex mixtures of clocks, waits at the lowest.

        A collective has a clock of its own only where nothing else runs.
        """
        # Nothing set, or a clock of its own, whatever the mean power: a plan that saves energy lowers it.
        own = [[self._operate(kernel.load, lock) for lock in self.locks] for kernel in self.kernels]
        time_s = np.hstack([self.time_s[:, :1], [[each.busy_s for each in row] for row in own]])
        power_w = np.hstack([self.power_w[:, :1], [[each.busy_power_w for each in row] for row in own]])
        count, clocks = time_s.shape
        starts = self.starts(self.seen_s)
        ends = starts + self.seen_s
        alone, top = [], self.model.chip.sm_max_mhz
        others = [i for i, k in enumerate(self.kernels) if k.stream == COMPUTE_STREAM]
        for index, kernel in enumerate(self.kernels):
            beside = sum(max(0.0, min(ends[i], ends[index]) - max(starts[i], starts[index])) for i in others)
            alone.append(kernel.stream == COMPUTE_STREAM or beside <= 0.2 * self.seen_s[index])
        low_w = float(self.wait_w[-1])
        beyond_w = np.where(alone, low_w, self.wait_w[0])  # what runs beside kernels takes so much more than waiting
        cost = np.concatenate([np.zeros(count), ((power_w - beyond_w[:, None]) * time_s).ravel()])
        equal = np.zeros((count, count + count * clocks))
        for index in range(count):
            equal[index, count + index * clocks : count + (index + 1) * clocks] = 1.0
        rows, limits = [], []
        for index, before in enumerate(self.before):
            for other in before:
                row = np.zeros(count + count * clocks)
                row[other], row[index] = 1.0, -1.0
                row[count + other * clocks : count + (other + 1) * clocks] = time_s[other]
                rows.append(row)
                limits.append(0.0)
            row = np.zeros(count + count * clocks)
            row[index] = 1.0
            row[count + index * clocks : count + (index + 1) * clocks] = time_s[index]
            rows.append(row)
            limits.append(self.step_s * (1 + slowdown))
        bounds = [(0.0, None)] * count
        for index in range(count):
            bounds += [(0.0, 1.0 if clock == 0 or alone[index] else 0.0) for clock in range(clocks)]
        found = linprog(cost, A_ub=np.array(rows), b_ub=limits, A_eq=equal, b_eq=np.ones(count), bounds=bounds)
        assert found.status == 0, found.message
        energy_j = found.fun + low_w * self.step_s * (1 + slowdown)
        # What runs beside kernels takes less at their clock: each share of them at its own.
        mixed = found.x[count:].reshape(count, clocks)
        for index in np.flatnonzero(~np.array(alone)):
            beyond = power_w[index] - np.array([self.wait_w[0], *(self.law.idle_power_w(f / top) for f in self.locks)])
            for i in others:
                both_s = max(0.0, min(ends[i], ends[index]) - max(starts[i], starts[index]))
                energy_j -= both_s * float(beyond[0] - mixed[i] @ beyond)
        return 1.0 - energy_j / self.step_j

    def kineto(self, *, steps: int = 3, sync_events: bool = False, seed: int = 0, rank: int = 0) -> dict[str, Any]:
        """What the profiler writes: times in microseconds, the host 2 ms ahead, steps a little apart in length."""
        jitter = random.Random(f"jitter {seed}")
        events: list[dict[str, Any]] = []
        begin_s, correlation = 1.0, 1000
        for step in range(steps):
            durations = self.seen_s * np.array([jitter.gauss(1.0, 0.01) for _ in self.kernels])
            starts = begin_s + self.starts(durations)
            host_s = begin_s - 2e-3
            numbers: list[int] = []
            events.append(_event("user_annotation", f"ProfilerStep#{step}", 1, 1, host_s, 1.9e-3))
            for index, kernel in enumerate(self.kernels):
                for other in kernel.waits if sync_events else ():
                    correlation += 1
                    args = {"stream": kernel.stream, "correlation": correlation, "device": 0}
                    args |= {"wait_on_stream": self.kernels[other].stream}
                    args |= {"wait_on_cuda_event_record_corr_id": _just_after(numbers[other])}
                    events.append(_event("cuda_sync", "Stream Wait Event", 0, kernel.stream, host_s, 0.0, args))
                correlation += 2
                numbers.append(correlation)
                host_s += 5e-6
                events.append(
                    _event("cuda_runtime", "cudaLaunchKernel", 1, 1, host_s, 3e-6, {"correlation": correlation})
                )
                args = {"device": 0, "stream": kernel.stream, "correlation": correlation}
                if kernel.stream == LINK_STREAM:
                    args["Process Group Ranks"] = "[0, 1]"
                events.append(
                    _event("kernel", kernel.name, 0, kernel.stream, float(starts[index]), float(durations[index]), args)
                )
            begin_s = float((starts + durations).max()) + 10e-6
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.model.name}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "traceEvents": events,
        }


def _just_after(correlation: int) -> int:
    """The number of the call that records an event right after a launch."""
    return correlation + 1


def _event(
    category: str, name: str, pid: int, tid: int, start_s: float, duration_s: float, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_s * 1e6,
        "dur": duration_s * 1e6,
        "args": args or {},
    }
