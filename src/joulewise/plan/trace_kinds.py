"""What kind of work a kernel, operator or collective is, told by its name.

The kind decides how its time and power follow the clock (``plan/xray_law``): dense arithmetic follows it, streaming
does not, a collective waits for a link. Names are those of CUDA libraries, PyTorch, Triton and the collective
libraries; a name that nothing matches is taken for streaming, which most unnamed kernels are (elementwise, reductions,
norms, optimisers).
"""

from __future__ import annotations

import re
from enum import StrEnum


class Kind(StrEnum):
    """What bounds a piece of work."""

    COMPUTE = "compute"
    """Dense arithmetic: matrix products, convolutions, attention. Follows the SM clock."""
    MEMORY = "memory"
    """Streams through the GPU's memory: elementwise, norms, reductions, optimisers, copies on the device."""
    COPY = "copy"
    """Between host and device: the bus sets the pace."""
    COMMUNICATION = "communication"
    """A collective or a transfer between ranks: the link and the other ranks set the pace."""


LINKS = (Kind.COMMUNICATION, Kind.COPY)
"""Kinds that run at the pace of a wire, beside kernels."""

_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|nvshmem|deep_?ep|gloo:|mpi:|ucc:|(one|two)_shot_all_?reduce|multimem_(all|one|two)|symm_mem",
    re.IGNORECASE,
)
_COMPUTE = re.compile(
    r"gemm|cutlass|cublas|xmma|wgmma|\bmma|nvjet|conv(?!ert)|fprop|dgrad|wgrad|winograd|flash|fmha|attention|sdpa"
    r"|triton_tem|\baten::(_?addmm\w*|mm|bmm|baddbmm|matmul|linear|_scaled_mm|einsum|lstm\w*|_thnn\w*)$|rnn",
    re.IGNORECASE,
)
_STREAMING = re.compile(
    r"triton_(poi|red|per)|elementwise|layer_?norm|softmax|foreach|memset|gemv|dot_kernel|split_?k_?reduce",
    re.IGNORECASE,
)
_ON_BUS = re.compile(r"HtoD|DtoH|Host ?-> ?Device|Device ?-> ?Host|Pageable|Pinned", re.IGNORECASE)
_TEMPLATE = re.compile(r"<[^<>]*>")
_WORK = re.compile(r"[\w.]+::?\w")  # of a library: aten::mm, fsdp::chunk_cat, gloo:all_reduce
_WAITING = re.compile(r"_?c10d|autograd::|torch::|profiler::")


def kind_of(name: str, category: str = "kernel") -> Kind:
    """The kind of the event ``name`` of the trace's ``category`` (``kernel``, ``gpu_memcpy``, ``cpu_op`` …)."""
    if category in ("gpu_memcpy", "gpu_memset"):
        return Kind.COPY if _ON_BUS.search(name) else Kind.MEMORY
    if _COMMUNICATION.search(name):
        return Kind.COMMUNICATION
    if _STREAMING.search(name):
        return Kind.MEMORY
    return Kind.COMPUTE if _COMPUTE.search(name) else Kind.MEMORY


def is_work(operator: str) -> bool:
    """Whether a CPU operator computes, or is a collective: ``aten::mm``, not the engine that calls it or a wait."""
    return bool(_WORK.match(operator)) and not _WAITING.match(operator)


def short_name(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters, to be read by people."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    while (bare := _TEMPLATE.sub("", plain)) != plain:
        plain = bare
    plain = plain.partition("(")[0].strip()
    for prefix in ("at::native::", "cudnn_generated_fort_native_"):
        plain = plain.removeprefix(prefix)
    return plain or name
