"""Buddy blocks as arithmetic on bits: where in a node a number of GPUs goes, and what it is made of.

A node's GPUs are the bits of an int: bit i is GPU i, 1 is taken. A block of 2^k GPUs lies on a multiple of 2^k; its
*buddy* is the other half of the block of twice its size. Results depend on the bits alone, so they are remembered: a
node of eight GPUs has 256 patterns. What it is not: the book of who is where (``placement``).
"""

from __future__ import annotations

from functools import cache


def binary(count: int) -> tuple[int, ...]:
    """A count as powers of two, the largest first: 6 is 4 and 2."""
    return tuple(1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1)


def cut(gpus: int, width: int) -> list[int]:
    """A count as whole nodes and binary pieces of the rest."""
    whole, rest = divmod(gpus, width)
    return [width] * whole + list(binary(rest))


@cache
def hole_for(used: int, pieces: tuple[int, ...], width: int) -> tuple[int, int] | None:
    """Where pieces (largest first) go in a node with ``used`` bits: the size of the hole that the first one breaks up
    (its own size is best), and their bits. None if they do not fit."""
    broken = 0
    taken = 0
    for piece in pieces:
        hole = _smallest_hole(used | taken, piece, width)
        if hole is None:
            return None
        size, first = hole
        broken = broken or size
        taken |= ((1 << piece) - 1) << first
    return broken, taken


def _smallest_hole(used: int, piece: int, width: int) -> tuple[int, int] | None:
    """The smallest free buddy that a piece fits in, as (size, first GPU): one whose own buddy is not free too."""
    size = piece
    while size <= width:
        for first in range(0, width - size + 1, size):
            if not used >> first & ((1 << size) - 1):
                pair = first // (2 * size) * 2 * size
                if pair + 2 * size > width or used >> pair & ((1 << 2 * size) - 1):
                    return size, first
        size *= 2
    return None


@cache
def blocks_of(bits: int, width: int) -> tuple[tuple[int, int], ...]:
    """Bits as the fewest aligned blocks: (first GPU, how many), the largest first; a whole node is one block."""
    if bits == (1 << width) - 1:
        return ((0, width),)
    pieces = []
    size = 1 << width.bit_length() - 1
    while bits:
        block = (1 << size) - 1
        for first in range(0, width - size + 1, size):
            if bits >> first & block == block:
                pieces.append((first, size))
                bits &= ~(block << first)
        size //= 2
    return tuple(pieces)


def lowest(bits: int, count: int) -> int:
    """The lowest ``count`` of the bits that are set, or all."""
    kept = 0
    while bits and count:
        low = bits & -bits
        kept |= low
        bits ^= low
        count -= 1
    return kept


def close_together(nodes: list[int], count: int) -> list[int]:
    """``count`` of the nodes, which are in order, that lie closest together: neighbours share switches."""
    if not count:
        return []
    start = min(range(len(nodes) - count + 1), key=lambda i: (nodes[i + count - 1] - nodes[i], i))
    return nodes[start : start + count]
