"""Where ``bench.partition_gpu`` measures: one GPU, the layer's tensors on it, one cell after another. Reads only.

Work is captured once into a CUDA graph, so that the host's launching is no part of it, and replayed without a pause
while a thread watches the energy counter. Time is by CUDA events, joules are power between movements of the counter
(``partition_gpu_ticks``) times that time. Communication runs on a stream of its own with a higher priority, behind an
event before its slot; the partition's end waits for both.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from itertools import pairwise
from typing import Any, Protocol

from bench.partition_gpu_cells import NOWHERE, SEQUENTIAL, SLOTS, Cell, Launch, Measured
from bench.partition_gpu_layer import Batch, Layer, Operation, Shape
from bench.partition_gpu_ticks import Watch
from joulewise.device.discover import find

_REPEATED = {"attention": 10, "mlp": 6, "communication": 20, "stack": 1}
"""Times that a graph holds the work, so that one replay takes about 10 ms or more."""
_AHEAD = 4  # replays queued ahead: 40 ms or more in which the host may be late


class Stage(Protocol):
    """What the bench needs of a place to measure."""

    def measure(self, cell: Cell, *, lead_s: float, window_s: float) -> Measured:
        """Repeat the cell until its window is over."""
        ...

    def provenance(self) -> dict[str, Any]:
        """Where, and with what."""
        ...

    @property
    def left_s(self) -> float:
        """What is left of the time."""
        ...


class GpuStage:
    """See the module. SystemExit without a GPU."""

    def __init__(self, *, ends_s: float, shape: Shape | None = None) -> None:
        """``ends_s``: when the time is over, by the monotonic clock."""
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("bench.partition_gpu: PyTorch sees no GPU here")
        from bench.partition_gpu_kernel import reduce_copy

        torch.manual_seed(1)
        self._torch, self._ends_s, self.shape = torch, ends_s, shape or Shape()
        self._reduce_copy = reduce_copy
        self.gpu = find("nvml")[0]
        self._side = torch.cuda.Stream(priority=-1)
        self._capturing = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()  # graphs are replayed one at a time, so they share their memory
        self._graphs: dict[Cell, Any] = {}
        self._layers: dict[str, list[Layer]] = {}
        self._batches: dict[tuple[str, bool], list[Batch]] = {}
        self.compiled: Any = None

    @property
    def left_s(self) -> float:
        """What is left of the time."""
        return self._ends_s - time.monotonic()

    def measure(self, cell: Cell, *, lead_s: float, window_s: float) -> Measured:
        """Repeat the cell's graph until the window is over. Raises what CUDA, triton or NVML raise."""
        torch, graph = self._torch, self.graph(cell)
        events: list[Any] = []
        watch = Watch(self.gpu, lead_s, window_s).start()
        lead_ends_s, first = time.monotonic() + lead_s, 0
        while not watch.done:
            graph.replay()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            if len(events) > _AHEAD:
                events[-1 - _AHEAD].synchronize()
            if time.monotonic() < lead_ends_s:
                first = len(events) - 1
        torch.cuda.synchronize()
        seen = watch.result()
        times = [a.elapsed_time(b) / 1e3 / _REPEATED[cell.part] for a, b in pairwise(events[first:])]
        time_s = statistics.fmean(times)
        time_error_s = statistics.stdev(times) / math.sqrt(len(times))
        energy_j = seen.power_w * time_s
        return Measured(
            time_s=time_s,
            time_error_s=time_error_s,
            energy_j=energy_j,
            energy_error_j=energy_j * math.hypot(seen.error_w / seen.power_w, time_error_s / time_s),
            power_w=seen.power_w,
            drift=seen.drift,
            sm_mhz=watch.mean("sm_mhz"),
            sm_mhz_spread=watch.spread("sm_mhz"),
            temperature_c=watch.mean("temperature_c"),
            capped_share=watch.capped_share(),
            window_s=seen.duration_s,
        )

    def graph(self, cell: Cell) -> Any:
        """The cell's work as a CUDA graph, captured on first use after running it once, which compiles and warms up."""
        if cell not in self._graphs:
            torch = self._torch
            torch.cuda.synchronize()
            with torch.cuda.stream(self._capturing):
                self.once(cell)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._capturing):
                for _ in range(_REPEATED[cell.part]):
                    self.once(cell)
            self._graphs[cell] = graph
        return self._graphs[cell]

    def once(self, cell: Cell) -> None:
        """Queue the cell's work once, on the current stream and the communication's."""
        layers, batches = self.layers(cell.values), self.batches(cell.values, split=cell.split)
        for batch in batches:
            batch.residual = batch.start
        if cell.part == "communication":
            self._communicate(batches[0], cell.launches[0].blocks)
        elif cell.part == "stack":
            # NB0 computes beside NB1's communication of the part before, then NB1 beside NB0's of this one. The first
            # partition takes the last one's of the stack before, so that every partition has its communication.
            for layer in layers:
                for part, launch in zip(SLOTS, cell.launches, strict=True):
                    for batch, other in zip(batches, batches[::-1], strict=True):
                        self._partition(part, layer.operations(part, batch), other, launch)
        else:
            operations = layers[0].operations(cell.part, batches[0])
            self._partition(cell.part, operations, batches[-1], cell.launches[0])

    def _partition(self, part: str, operations: list[Operation], other: Batch, launch: Launch) -> None:
        """One batch's operations beside the other's communication; unsplit work has one batch, which is the other."""
        main = self._torch.cuda.current_stream()
        for name, operation in zip(SLOTS[part], operations, strict=True):
            if name == launch.slot:
                self._side.wait_stream(main)
                with self._torch.cuda.stream(self._side):
                    self._communicate(other, launch.blocks)
            operation()
        if launch.slot == SEQUENTIAL:
            self._communicate(other, launch.blocks)
        elif launch.slot != NOWHERE:
            main.wait_stream(self._side)

    def _communicate(self, batch: Batch, blocks: int) -> None:
        link_bytes = self.shape.link_bytes(batch.sequences)
        self.compiled = self._reduce_copy(
            batch.partial, batch.theirs, batch.reduced, blocks=blocks, link_bytes=link_bytes
        )

    def layers(self, values: str) -> list[Layer]:
        """A stack's layers, each with weights of its own."""
        if values not in self._layers:
            self._layers[values] = [Layer(self._torch, self.shape, values, "cuda") for _ in range(self.shape.layers)]
        return self._layers[values]

    def batches(self, values: str, *, split: bool) -> list[Batch]:
        """Two nanobatches, or one whole microbatch."""
        if (values, split) not in self._batches:
            count, sequences = (2, self.shape.sequences) if split else (1, 2 * self.shape.sequences)
            made = [Batch(self._torch, self.shape, sequences, values, "cuda") for _ in range(count)]
            self._batches[values, split] = made
        return self._batches[values, split]

    def provenance(self) -> dict[str, Any]:
        """Where, and with what."""
        import triton  # type: ignore[import-not-found,unused-ignore]

        reading = self.gpu.read()
        return {
            "gpu": self.gpu.info.name,
            "driver": self.gpu.info.driver,
            "power_limit_w": reading.power_limit_w,
            "sms": self._torch.cuda.get_device_properties(0).multi_processor_count,
            "torch": str(self._torch.__version__),
            "cuda": self._torch.version.cuda,
            "triton": str(triton.__version__),
            "python": platform.python_version(),
        }
