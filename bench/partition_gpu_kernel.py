"""The communication-like kernel of ``bench.partition_gpu``: k thread blocks that reduce and copy at a link's pace.

What it is: out = mine + theirs, chunk by chunk, by k persistent blocks of 1024 threads, no faster together than
``LINK_BYTES_PER_S``. An all-reduce sends more bytes over a link than its tensor has, so chunks go round until
``chunks`` are done; the result is the same, the traffic is the collective's. A byte on the link is two bytes read and
one written here. What it is not: a collective. Nothing leaves the GPU, and nobody is waited for.

Imports triton, so only the stage on a GPU imports this.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

LINK_BYTES_PER_S = 450e9
"""NVLink 4 of an H100 or H200: 18 links of 25 GB/s in each direction."""
CHUNK = 32768
"""Elements that a block moves at once: 64 KiB of bf16, 32 elements a thread."""
_WARPS = 32  # 1024 threads of 42 registers: no second block fits on the SM


@triton.jit(do_not_specialize=["chunks", "tensor_chunks", "chunk_ns"])  # type: ignore[untyped-decorator,unused-ignore]
def _reduce_copy(mine, theirs, out, chunks, tensor_chunks, chunk_ns, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    due = tl.extra.cuda.globaltimer()
    for chunk in range(tl.program_id(0), chunks, tl.num_programs(0)):
        places = (chunk % tensor_chunks).to(tl.int64) * CHUNK + tl.arange(0, CHUNK)
        tl.store(out + places, tl.load(mine + places) + tl.load(theirs + places))
        due += chunk_ns  # since the beginning, so that late chunks catch up
        now = tl.extra.cuda.globaltimer()
        while now < due:
            now = tl.extra.cuda.globaltimer()


def reduce_copy(mine: Any, theirs: Any, out: Any, *, blocks: int, link_bytes: int) -> Any:
    """Queue it on the current stream; ``link_bytes`` as the link would carry, rounded up to whole chunks.

    bf16 tensors of one size, whole chunks. Gives triton's compiled kernel. ValueError for other tensors.
    """
    tensor_chunks, rest = divmod(mine.numel(), CHUNK)
    if rest or mine.numel() != theirs.numel() or mine.numel() != out.numel() or mine.element_size() != 2:
        raise ValueError(f"{mine.numel()}, {theirs.numel()} and {out.numel()} elements: not alike in chunks of {CHUNK}")
    chunk_bytes = 2 * CHUNK
    chunks = max(-(-link_bytes // chunk_bytes), tensor_chunks)
    chunk_ns = round(1e9 * chunk_bytes * blocks / LINK_BYTES_PER_S)
    return _reduce_copy[(blocks,)](mine, theirs, out, chunks, tensor_chunks, chunk_ns, CHUNK=CHUNK, num_warps=_WARPS)
