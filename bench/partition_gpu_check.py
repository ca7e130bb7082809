"""Is what ``bench.partition_gpu`` runs on a GPU right? Half a minute, before minutes are spent on it.

The communication kernel sums and keeps its pace; splitting a batch changes no result; a graph with communication on its
second stream computes what the same work gives one by one. Then one short cell of each kind. Raises AssertionError.
"""

from __future__ import annotations

from typing import Any

from bench.partition_gpu_cells import NOWHERE, SEQUENTIAL, Cell, Launch
from bench.partition_gpu_kernel import LINK_BYTES_PER_S, reduce_copy
from bench.partition_gpu_stage import GpuStage

_CLOSE = 0.02  # relative norm; bf16 keeps 8 bits, and products of other shapes may sum in another order


def check(stage: GpuStage) -> None:
    """All of it; prints as it goes."""
    import torch

    print(stage.provenance(), flush=True)
    _sums(torch, stage)
    _splits(torch, stage)
    _overlaps(torch, stage)
    attention, mlp = Launch("rope", 16), Launch("linear1", 16)
    for cell in (
        Cell("random", "communication", (Launch(NOWHERE, 32),)),
        Cell("random", "attention", (Launch(NOWHERE, 0),)),
        Cell("random", "attention", (Launch(NOWHERE, 0),), False),
        Cell("random", "attention", (Launch(SEQUENTIAL, 32),)),
        Cell("random", "attention", (attention,)),
        Cell("random", "mlp", (mlp,)),
        Cell("zeros", "mlp", (mlp,)),
        Cell("random", "stack", (attention, mlp)),
        Cell("random", "stack", (Launch(SEQUENTIAL, 32), Launch(SEQUENTIAL, 32)), False),
    ):
        print(cell, stage.measure(cell, lead_s=0.2, window_s=0.5), sep="\n    ", flush=True)
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most; {stage.left_s:.0f} s left")


def _far(seen: Any, right: Any) -> float:
    """Relative norm of the difference; NaN where anything is."""
    return float((seen.float() - right.float()).norm() / right.float().norm())


def _sums(torch: Any, stage: GpuStage) -> None:
    batch = stage.batches("random", split=True)[0]
    link_bytes = stage.shape.link_bytes(batch.sequences)
    mine, theirs = torch.randn_like(batch.partial), torch.randn_like(batch.partial)
    for blocks in (4, 12, 32, 64, 132):
        out = torch.full_like(mine, float("nan"))
        compiled = reduce_copy(mine, theirs, out, blocks=blocks, link_bytes=link_bytes)
        far = _far(out, mine + theirs)
        assert far < 1e-3, f"{blocks} blocks: the sum is off by {far}"
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        for _ in range(5):
            reduce_copy(mine, theirs, out, blocks=blocks, link_bytes=link_bytes)
        ended.record()
        ended.synchronize()
        pace = 5 * link_bytes / (begun.elapsed_time(ended) / 1e3)
        print(f"{blocks} blocks: right within {far:.1e}; {pace / 1e9:.0f} GB/s of link; registers "
              f"{getattr(compiled, 'n_regs', None)}", flush=True)  # fmt: skip
        assert pace < 1.03 * LINK_BYTES_PER_S, f"{blocks} blocks: faster than the link, {pace / 1e9:.0f} GB/s"


def _splits(torch: Any, stage: GpuStage) -> None:
    layer, halves = stage.layers("random")[0], stage.batches("random", split=True)
    whole = stage.batches("random", split=False)[0]
    kept = [(each.start, each.reduced) for each in halves]
    for part in ("attention", "mlp"):
        whole.residual = whole.start
        for half, start, reduced in zip(halves, whole.start.chunk(2), whole.reduced.chunk(2), strict=True):
            half.residual, half.reduced = start, reduced
        for batch in (whole, *halves):
            for operation in layer.operations(part, batch):
                operation()
        far = _far(torch.cat([half.partial for half in halves]), whole.partial)
        assert far < _CLOSE, f"{part}: split work is off by {far}"
        print(f"{part}: split as unsplit within {far:.1e}; norm {float(whole.partial.float().norm()):.4g}", flush=True)
    for half, (start, reduced) in zip(halves, kept, strict=True):
        half.residual, half.reduced = start, reduced


def _overlaps(torch: Any, stage: GpuStage) -> None:
    for part, slot in (("attention", "rope"), ("mlp", "norm")):
        cell = Cell("random", part, (Launch(slot, 16),))
        computed, communicated = stage.batches("random", split=True)
        stage.once(Cell("random", part, (Launch(SEQUENTIAL, 16),)))
        right = computed.partial.clone(), communicated.reduced.clone()
        graph = stage.graph(cell)
        computed.partial.fill_(float("nan"))
        communicated.reduced.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        far = max(_far(computed.partial, right[0]), _far(communicated.reduced, right[1]))
        assert far < 1e-3, f"{cell}: overlapped work is off by {far}"
        print(f"{part} with communication at {slot}: as one after the other within {far:.1e}", flush=True)
