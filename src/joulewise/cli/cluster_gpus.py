"""``--gpu 'sim:a100*512,h200*64'`` as the nodes of a simulated cluster, and what they are assumed to draw and to do.

A GPU's idle power, clocks and limits are the catalogue's. What a node draws besides, how long it boots and how fast
one GPU model is against another is in no catalogue: it is assumed here, and said in every output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel

HOST_W = 125.0
"""Of a host for each GPU: an 8-GPU server of Acme's (InternLM, NSDI'24) draws about 1.5 kW idle, its GPUs 63 W each."""
OFF_W = 15.0
"""Of a node that sleeps: its management controller (assumed)."""
BOOT_S = 300.0
"""Five minutes from off to ready (assumed), at what a node draws with nothing on it."""
PER_NODE = 8

# Peak of dense half-precision matrix products, Tflop/s, as on the vendor's data sheets (Pascal: of its plain pipes).
# Written down from memory; nothing of it was measured.
_TFLOPS = {
    "a100": 312.0,
    "a100-sxm": 312.0,
    "a40": 150.0,
    "b300": 2250.0,
    "h200": 989.0,
    "p100": 19.0,
    "rtx6000": 130.0,
    "rtx8000": 130.0,
    "rtxpro6000": 500.0,
    "titanx": 11.0,
    "v100": 112.0,
}
_ENTRY = re.compile(r"([^*]+?)\s*(?:\*\s*([1-9]\d{0,5}))?")


@dataclass(frozen=True, slots=True)
class Rack:
    """All nodes with one GPU model. ``speed``: how fast it computes, an A100 being 1."""

    model: GpuModel
    kind: Kind
    speed: float


def racks(spec: str, *, per_node: int | None = None, host_w: float | None = None) -> tuple[Rack, ...]:
    """Of ``sim:MODEL*N,…``; ``host_w``: what a node draws besides its GPUs. BadSpec for what cannot be understood."""
    scheme, _, rest = spec.partition(":")
    if scheme.strip() != "sim" or not rest.strip():
        raise BadSpec(
            f"--gpu {spec!r}: a simulated cluster is made of virtual GPUs; write 'sim:a100*64' or 'sim:a100*64,h200*8'"
        )
    found = []
    for entry in rest.split(","):
        words = _ENTRY.fullmatch(entry.strip())
        if words is None:
            raise BadSpec(f"{entry.strip()!r} in --gpu {spec!r} is no model with a count; write 'sim:a100*64'")
        found.append(_rack(catalog.load(words[1]), int(words[2] or 1), per_node, host_w))
    names = [rack.kind.name for rack in found]
    if len(set(names)) < len(names):
        raise BadSpec(f"--gpu {spec!r} names a model twice; name each once, with its whole number")
    return tuple(found)


def _rack(model: GpuModel, gpus: int, per_node: int | None, host_w: float | None) -> Rack:
    each = per_node or min(PER_NODE, gpus)
    if gpus % each:
        raise BadSpec(
            f"{gpus} GPUs of {model.key} are no whole number of nodes with {each}; give a multiple, or --gpus-per-node"
        )
    idle_w = model.chip.deep_idle_w
    node_w = each * HOST_W if host_w is None else host_w
    boot_w, top_mhz = node_w + each * idle_w, model.chip.sm_max_mhz
    kind = Kind(model.key, gpus // each, each, idle_w, node_w, OFF_W, BOOT_S, boot_w, top_mhz)
    return Rack(model, kind, _TFLOPS.get(model.key, _TFLOPS["a100"]) / _TFLOPS["a100"])


def assumed(found: tuple[Rack, ...]) -> list[str]:
    """What was assumed about these nodes, a line each."""
    lines = [_words(rack.kind) for rack in found]
    if len(found) > 1:
        said = ", ".join(f"{rack.kind.name} {rack.speed:.3g}" for rack in found)
        lines.append(f"speed by data-sheet peaks of half-precision products, not measured, an A100 being 1: {said}")
    return lines


def _words(kind: Kind) -> str:
    watts = f"idle GPU {kind.idle_gpu_w:g} W, host {kind.host_w:g} W, asleep {kind.off_w:g} W"
    return f"{kind.name}: {kind.nodes} nodes × {kind.gpus_per_node} GPUs; {watts}, boot {kind.boot_s:g} s"
