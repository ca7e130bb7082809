"""Activity counters: what share of the time the units of a GPU were at work, from NVML's GPM or a virtual board.

They cost a driver call each, so nobody collects them all the time: a tuner reads them at the start of a job, after a
shift, and where the job has no period and they are the only measure of its pace. What it is not: a poller; whoever
wants a mean over a stretch reads at its two ends.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from joulewise.core.errors import GpuError
from joulewise.device.gpu import Gpu

if TYPE_CHECKING:
    from joulewise.device.gpm import Gpm
    from joulewise.device.virtual import VirtualGpu

_log = logging.getLogger("joulewise")

_SHARES = ("sm", "occupancy", "tensor", "dram", "fp64", "fp32", "fp16", "integer")
_HOPPER = 9  # NVML_DEVICE_ARCH_HOPPER: GPM came with it
_LEAST_S = 0.09  # GPM samples closer than 100 ms often give 0 or NaN on an H200 (device/gpm)


@dataclass(frozen=True, slots=True)
class Activity:
    """Mean shares of time, 0 to 1, between two moments; None where the GPU does not say."""

    start_s: float
    end_s: float
    sm: float | None = None
    """Some warp resident on an SM, mean over SMs."""
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    """Of the memory's peak bandwidth at its present clock."""
    fp64: float | None = None
    fp32: float | None = None
    fp16: float | None = None
    integer: float | None = None

    @property
    def duration_s(self) -> float:
        """Between the two moments."""
        return self.end_s - self.start_s

    def known(self) -> dict[str, float]:
        """The shares that were read, by name."""
        return {name: value for name in _SHARES if (value := getattr(self, name)) is not None}

    def work_rate(self, sm_mhz: float | None, memory_mhz: float | None, *, waits: bool = False) -> float | None:
        """Work a second in units of the counters: instructions ∝ share × SM clock, bytes ∝ share × memory clock.

        The sum over the arithmetic pipes and memory, each normalised by its own clock in GHz: whatever the job's
        mix, it is proportional to how fast the same work goes, as long as the mix stays. None without counters. A GPU
        that ``waits`` for others does it by polling, in integers: they are no work then.
        """
        shares = (self.tensor, self.fp64, self.fp32, self.fp16, None if waits else self.integer)
        pipes = [share for share in shares if share is not None]
        rate = sum(pipes) * sm_mhz / 1e3 if pipes and sm_mhz is not None else 0.0
        if self.dram is not None and memory_mhz is not None:
            rate += self.dram * memory_mhz / 1e3
        return rate if rate > 0 else None


class CounterSource(Protocol):
    """Counters of one GPU."""

    def read(self) -> Activity | None:
        """The mean since the last call; None the first time, too soon after the last, or where nothing was read."""
        ...


def counters(gpu: Gpu) -> CounterSource | None:
    """The counters of a GPU, or None where it has none, or none for us."""
    if gpu.info.backend == "virtual":
        from joulewise.device.virtual import VirtualGpu

        return VirtualCounters(gpu) if isinstance(gpu, VirtualGpu) and gpu.model.architecture >= _HOPPER else None
    if gpu.info.backend != "nvml":
        return None
    from joulewise.device.gpm import Gpm
    from joulewise.device.nvml import NvmlGpu

    if not isinstance(gpu, NvmlGpu):
        return None
    try:
        return GpmCounters(Gpm(gpu))
    except GpuError as error:
        _log.debug("no activity counters: %s", error)
        return None


class GpmCounters:
    """NVML's GPM as Activity."""

    def __init__(self, gpm: Gpm) -> None:
        self._gpm = gpm

    def read(self) -> Activity | None:
        """The mean since the last call, or None; a GPU that fails gives no reading."""
        try:
            seen = self._gpm.read()
        except GpuError as error:
            _log.debug("no activity reading: %s", error)
            return None
        if seen is None:
            return None
        return Activity(seen.start_s, seen.end_s, **{name: seen.values.get(name) for name in _SHARES})


class VirtualCounters:
    """A virtual board's own seconds of activity, as the virtual NVML shows them (``device/shown``)."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._then: tuple[float, tuple[float, ...]] | None = None

    def read(self) -> Activity | None:
        """The mean since the last call, or None."""
        try:
            self._gpu.read()
        except GpuError:
            return None
        board = self._gpu.board
        now_s, seconds = board.time_s, tuple(board.activity_s)
        if self._then is not None and now_s - self._then[0] < _LEAST_S:
            return None
        then, self._then = self._then, (now_s, seconds)
        if then is None:
            return None
        shares = [min(1.0, (b - a) / (now_s - then[0])) for a, b in zip(then[1], seconds, strict=True)]
        busy, sm_bound, memory_bound = shares
        return Activity(then[0], now_s, sm=busy, tensor=sm_bound, dram=memory_bound)
