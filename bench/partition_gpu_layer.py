"""One transformer layer's forward pass as the partitions of ``bench.partition_gpu``, in PyTorch.

The shape is Llama 3.3 70B's under tensor parallelism over eight GPUs: one GPU's eighth of the heads and of the MLP.
Each part ends in a sum over the GPUs, so a nanobatch's part begins with what communication left in ``reduced`` and ends
in ``partial``, which communication reads. Eager kernels as PyTorch has them; nothing is fused by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.partition_gpu_cells import SLOTS

Operation = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a layer on one GPU, and of a nanobatch."""

    hidden: int = 8192
    heads: int = 8
    """Of 64 query heads over eight GPUs; with one of eight key and value heads."""
    head: int = 128
    ffn: int = 3584
    """Of 28,672 over eight GPUs."""
    ranks: int = 8
    sequence: int = 4096
    sequences: int = 2
    """In a nanobatch; a microbatch has twice as many."""
    layers: int = 4
    """In a stack."""

    def link_bytes(self, sequences: int) -> int:
        """What a ring all-reduce of one partial sum in bf16 sends over each GPU's link."""
        return 2 * (self.ranks - 1) * (2 * sequences * self.sequence * self.hidden) // self.ranks


class Batch:
    """The tensors of one nanobatch (or of a whole microbatch) on its way through the layers."""

    def __init__(self, torch: Any, shape: Shape, sequences: int, values: str, device: str) -> None:
        size = (sequences * shape.sequence, shape.hidden)
        self.sequences = sequences
        self.start = filled(torch, size, 1.0, values, device)
        """What the residual is set to when work begins anew, so that values never drift."""
        self.residual = self.start
        self.reduced = filled(torch, size, 1.0, values, device)
        self.partial = filled(torch, size, 1.0, values, device)
        self.theirs = filled(torch, size, 1.0, values, device)
        """What the other GPUs would have sent."""
        self.flowing: Any = None


def filled(torch: Any, size: tuple[int, ...], deviation: float, values: str, device: str) -> Any:
    """A bf16 tensor of normal numbers, or of zeros."""
    if values == "zeros":
        return torch.zeros(size, dtype=torch.bfloat16, device=device)
    return (torch.randn(size, device=device) * deviation).to(torch.bfloat16)


class Layer:
    """Weights of one layer, and its operations on a batch."""

    def __init__(self, torch: Any, shape: Shape, values: str, device: str) -> None:
        def weight(outputs: int, inputs: int) -> Any:
            return filled(torch, (outputs, inputs), inputs**-0.5, values, device)

        self._torch, self._shape = torch, shape
        self._norm = torch.ones(shape.hidden, dtype=torch.bfloat16, device=device)
        self._qkv = weight((shape.heads + 2) * shape.head, shape.hidden)
        self._projection = weight(shape.hidden, shape.heads * shape.head)
        self._gate_up = weight(2 * shape.ffn, shape.hidden)
        self._down = weight(shape.hidden, shape.ffn)
        half = 500000.0 ** (-torch.arange(0, shape.head, 2, device=device) / shape.head)  # Llama 3's base
        angles = torch.outer(torch.arange(shape.sequence, device=device), half).repeat(1, 2)[:, None, :]
        self._cos, self._sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)

    def operations(self, part: str, batch: Batch) -> list[Operation]:
        """In the order of ``SLOTS[part]``; each queues its kernels on the current stream."""
        named: dict[str, Callable[[Batch], None]] = {
            "norm": self._normed,
            "linear": self._queries,
            "rope": self._rotated,
            "attention": self._attended,
            "projection": self._projected,
            "linear1": self._widened,
            "activation": self._activated,
            "linear2": self._narrowed,
        }
        return [lambda name=name: named[name](batch) for name in SLOTS[part]]  # type: ignore[misc]

    def _normed(self, batch: Batch) -> None:
        batch.residual = batch.residual + batch.reduced
        hidden = (self._shape.hidden,)
        batch.flowing = self._torch.nn.functional.rms_norm(batch.residual, hidden, self._norm, 1e-5)

    def _queries(self, batch: Batch) -> None:
        batch.flowing = self._torch.mm(batch.flowing, self._qkv.t())

    def _rotated(self, batch: Batch) -> None:
        shape, torch = self._shape, self._torch
        seen = batch.flowing.view(batch.sequences, shape.sequence, shape.heads + 2, shape.head)
        turning, value = seen[:, :, :-1], seen[:, :, -1:]
        first, second = turning.chunk(2, dim=-1)
        turned = turning * self._cos + torch.cat((-second, first), dim=-1) * self._sin
        query, key = turned[:, :, :-1], turned[:, :, -1:]
        batch.flowing = tuple(each.transpose(1, 2) for each in (query, key, value))

    def _attended(self, batch: Batch) -> None:
        query, key, value = batch.flowing
        key, value = key.expand_as(query), value.expand_as(query)
        attended = self._torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        batch.flowing = attended.transpose(1, 2).reshape(batch.partial.shape[0], -1)

    def _projected(self, batch: Batch) -> None:
        self._torch.mm(batch.flowing, self._projection.t(), out=batch.partial)

    def _widened(self, batch: Batch) -> None:
        batch.flowing = self._torch.mm(batch.flowing, self._gate_up.t())

    def _activated(self, batch: Batch) -> None:
        gate, up = batch.flowing.chunk(2, dim=-1)
        batch.flowing = self._torch.nn.functional.silu(gate) * up

    def _narrowed(self, batch: Batch) -> None:
        self._torch.mm(batch.flowing, self._down.t(), out=batch.partial)
