"""Where the GPUs of a job are: buddy blocks inside nodes, whole nodes above, and the few moves that make room.

What it is: the book of one kind's nodes: which GPUs of which powered node belong to which job. A count is cut into
whole nodes and then into its binary pieces (6 is 4 + 2); a piece lies on a multiple of its own size (a *buddy*), so
that freed pieces merge again. Packing comes first: as few nodes a job as possible, the smallest hole that fits, full
nodes before empty ones, so that nodes empty themselves and can be switched off. With buddies, whatever fits by
number can be placed after at most one repack (``repack_for``), which moves as little as it can.
Why it exists: fragmentation costs network time and keeps hosts powered for nothing.
What it is not: a decision who runs (``allocators``), whether a move pays (``round``) or when a node sleeps (``nodes``).

``together`` is ``buddy`` for engines that cannot split a job unevenly (Slurm): what fits in one node lies on one node,
or nowhere. Two other placers are here to be compared with: ``spread`` takes GPUs from the node with most free ones
until it has enough, ``first fit`` takes the first node that has room, and else whatever is free in order.

A node's GPUs are the bits of an int: bit i is GPU i, 1 is taken. Nodes with the same bits are equally good, so they are
kept together by their bits and a choice looks at patterns, of which there are few, and not at nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from joulewise.cluster.blocks import binary, blocks_of, close_together, cut, hole_for, lowest
from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec

Place = tuple[tuple[int, int], ...]
"""Where a job is: (node, how many of its GPUs), by node."""

Placer = Literal["buddy", "together", "spread", "first fit"]

_Taken = dict[int, int]
"""Node → bits."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A floor's book at one moment; see ``Floor.saved``."""

    used: list[int]
    tenants: list[dict[str, int]]
    where: dict[str, _Taken]
    alike: dict[int, list[int]]
    free: int
    fixed: list[int]


class Floor:
    """All nodes of one kind, and who is where on them. Only powered nodes are given out; all are powered at first."""

    def __init__(self, kind: Kind, *, placer: Placer = "buddy") -> None:
        if placer not in get_args(Placer):
            raise BadSpec(f"no placer is called {placer!r}; there are {', '.join(get_args(Placer))}")
        self.kind = kind
        self.free = kind.nodes * kind.gpus_per_node
        """Free GPUs of powered nodes."""
        self.off: set[int] = set()
        self.booting: set[int] = set()
        self._width = kind.gpus_per_node
        self._whole = (1 << self._width) - 1
        self._used = [0] * kind.nodes
        self._tenants: list[dict[str, int]] = [{} for _ in range(kind.nodes)]
        self._where: dict[str, _Taken] = {}
        self._alike: dict[int, list[int]] = {0: list(range(kind.nodes))}
        self._fixed = [0] * kind.nodes  # bits that nobody may move
        self._together = placer == "together"
        self.strict = self._together
        """Whether there may be no place for a job though there are enough free GPUs, even after a repack."""
        self._choose: Callable[[int], _Taken | None] = {
            "buddy": self._buddies,
            "together": self._buddies,
            "spread": self._spread,
            "first fit": self._first_fit,
        }[placer]

    # What there is.

    @property
    def on(self) -> int:
        """Powered nodes, booting ones not counted."""
        return self.kind.nodes - len(self.off) - len(self.booting)

    @property
    def used(self) -> int:
        """GPUs that jobs hold."""
        return self.on * self._width - self.free

    @property
    def empty(self) -> tuple[int, ...]:
        """Powered nodes with nothing on them, in order."""
        return tuple(self._alike.get(0, ()))

    @property
    def busy(self) -> int:
        """Nodes with a job on them."""
        return self.on - len(self._alike.get(0, ()))

    @property
    def places(self) -> Mapping[str, Place]:
        """Where every job is that is here."""
        return {job: self.place_of(job) for job in self._where}

    def place_of(self, job: str) -> Place:
        """Where a job is; empty if it is not here."""
        return tuple((node, bits.bit_count()) for node, bits in sorted(self._where.get(job, {}).items()))

    def blocks(self, job: str) -> tuple[tuple[int, int, int], ...]:
        """The blocks of a job: (node, first GPU, how many)."""
        return tuple(
            (node, first, size)
            for node, bits in sorted(self._where.get(job, {}).items())
            for first, size in blocks_of(bits, self._width)
        )

    def on_node(self, node: int) -> Mapping[str, int]:
        """Jobs of a node and how many of its GPUs they hold."""
        return {job: bits.bit_count() for job, bits in self._tenants[node].items()}

    def least_used(self) -> list[int]:
        """Nodes that are neither empty nor full, nobody on them fixed, those with fewest used GPUs first."""
        partly = [bits for bits in self._alike if 0 < bits < self._whole]
        by_use = [node for bits in sorted(partly, key=lambda b: (b.bit_count(), b)) for node in self._alike[bits]]
        return [node for node in by_use if not self._fixed[node]]

    # Jobs come and go.

    def place(self, job: str, gpus: int) -> Place | None:
        """Give a job that is not here ``gpus`` GPUs without moving anyone; None, and nothing changed, if that fails."""
        if gpus > self.free:
            return None
        taken = self._choose(gpus)
        if taken is None:
            return None
        self._take(job, taken)
        return self.place_of(job)

    def adopt(self, job: str, held: Mapping[int, int], *, fixed: bool = False) -> bool:
        """Put a job that is not here down where it already is: ``held`` is node → how many GPUs.

        Which GPUs of a node they are is not known and does not matter: jobs are laid out as buddies, so adopt the
        largest first. ``fixed``: it is never moved to make room. False, and nothing changed, where there is no such
        room (a node that sleeps, boots, or is taken).
        """
        taken: _Taken = {}
        for node, count in held.items():
            free = self._whole & ~self._used[node]
            if node in self.off or node in self.booting or free.bit_count() < count:
                return False
            hole = hole_for(self._used[node], binary(count), self._width)
            taken[node] = lowest(free, count) if hole is None else hole[1]
        self._take(job, taken)
        if fixed:
            self.strict = True
            for node, bits in taken.items():
                self._fixed[node] |= bits
        return True

    def release(self, job: str) -> None:
        """Take back all that a job holds; nothing if it is not here."""
        for node, bits in self._where.pop(job, {}).items():
            del self._tenants[node][job]
            self._fixed[node] &= ~bits
            self._set(node, self._used[node] & ~bits)
            self.free += bits.bit_count()

    def repack_for(self, job: str, gpus: int) -> tuple[str, ...] | None:
        """Place a job that is not here, moving others as little as that needs; who was moved, in order.

        None, and nothing changed, if there are not so many free GPUs. Always succeeds otherwise, unless some jobs are
        fixed or jobs must lie together.
        """
        if self.place(job, gpus) is not None:
            return ()
        if gpus > self.free:
            return None
        before = self.saved() if self.strict else None
        moved: dict[str, None] = {}
        for size in cut(gpus, self._width):
            self._press(job, size, moved)
        moved.pop(job, None)
        if before is not None and not self._sound((job, *moved)):
            self.restore(before)
            return None
        return tuple(moved)

    def vacate(self, node: int) -> tuple[str, ...] | None:
        """Move all jobs of a node onto other nodes that are in use; who was moved. None, and nothing changed, if
        they do not all fit there."""
        if self._fixed[node]:
            return None
        before = self.saved()
        tenants = sorted(self._tenants[node].items(), key=lambda item: (-item[1].bit_count(), item[0]))
        for job, bits in tenants:
            self._give_back(job, node, bits)
        # Neither the node itself nor an empty one may take them: opening one would save nothing.
        hidden = self._alike.pop(0)
        for job, bits in tenants:
            taken = self._choose(bits.bit_count())
            if taken is None:
                self.restore(before)
                return None
            self._take(job, taken)
        self._alike[0] = hidden
        return tuple(job for job, _ in tenants)

    def saved(self) -> Saved:
        """The book as it is, for ``restore``; nodes' power is not part of it."""
        return Saved(
            self._used[:],
            [dict(tenants) for tenants in self._tenants],
            {job: dict(taken) for job, taken in self._where.items()},
            {bits: nodes[:] for bits, nodes in self._alike.items()},
            self.free,
            self._fixed[:],
        )

    def restore(self, saved: Saved) -> None:
        """The book as it was; no node's power may have changed since. ``saved`` is used up."""
        self._used, self._tenants, self._where = saved.used, saved.tenants, saved.where
        self._alike, self.free, self._fixed = saved.alike, saved.free, saved.fixed

    # Nodes come and go.

    def shut(self, node: int) -> None:
        """An empty powered node is switched off."""
        if node in self.off or node in self.booting or self._used[node]:
            raise ValueError(f"node {node} of {self.kind.name} is not powered and empty, so it cannot be switched off")
        self._alike[0].remove(node)
        self.off.add(node)
        self.free -= self._width

    def boot(self, node: int) -> None:
        """A sleeping node begins to boot; it cannot be used before ``booted``."""
        self.off.remove(node)
        self.booting.add(node)

    def booted(self, node: int) -> None:
        """A node that was booting can be used."""
        self.booting.remove(node)
        insort(self._alike.setdefault(0, []), node)
        self.free += self._width

    # How it is done.

    def _set(self, node: int, bits: int) -> None:
        old = self._alike[self._used[node]]
        del old[bisect_left(old, node)]
        if not old:
            del self._alike[self._used[node]]
        self._used[node] = bits
        insort(self._alike.setdefault(bits, []), node)

    def _take(self, job: str, taken: Mapping[int, int]) -> None:
        mine = self._where.setdefault(job, {})
        for node, bits in taken.items():
            mine[node] = mine.get(node, 0) | bits
            self._tenants[node][job] = mine[node]
            self._set(node, self._used[node] | bits)
            self.free -= bits.bit_count()

    def _give_back(self, job: str, node: int, bits: int) -> None:
        """Some of what a job holds on one node; a job left with nothing is forgotten."""
        mine = self._where[job]
        if mine[node] == bits:
            del mine[node], self._tenants[node][job]
        else:
            mine[node] &= ~bits
            self._tenants[node][job] = mine[node]
        if not mine:
            del self._where[job]
        self._set(node, self._used[node] & ~bits)
        self.free += bits.bit_count()

    def _buddies(self, gpus: int) -> _Taken | None:
        whole, rest = divmod(gpus, self._width)
        empty = self._alike.get(0, [])
        if whole > len(empty):
            return None
        taken = dict.fromkeys(close_together(empty, whole), self._whole)
        if not rest:
            return taken
        pieces = binary(rest)
        together = self._best(pieces, taken)
        if together is not None:
            node, bits = together
            return {**taken, node: bits}
        if len(pieces) == 1 or self._together:
            return None
        for piece in pieces:  # on more nodes than one: still better than waiting
            alone = self._best((piece,), taken)
            if alone is None:
                return None
            node, bits = alone
            taken[node] = taken.get(node, 0) | bits
        return taken

    def _sound(self, jobs: Iterable[str]) -> bool:
        """After a repack: nobody fixed lost a GPU, and nobody lies on more nodes than must be, where that matters."""
        for node, bits in enumerate(self._fixed):
            if bits & ~self._used[node] or any(self._tenants[node].get(job, 0) & bits for job in jobs):
                return False
        if not self._together:
            return True
        return all(
            len(taken) == -(-sum(bits.bit_count() for bits in taken.values()) // self._width)
            for job in jobs
            if (taken := self._where.get(job))
        )

    def _best(self, pieces: tuple[int, ...], taken: Mapping[int, int]) -> tuple[int, int] | None:
        """The node, and its bits, that all pieces fit in with the least harm; ``taken``: what is promised already."""
        best: tuple[tuple[int, int, int], int, int] | None = None
        for used, nodes in self._alike.items():
            for node in nodes:
                if node in taken:
                    if taken[node] == self._whole:
                        continue
                    hole = hole_for(used | taken[node], pieces, self._width)
                else:
                    hole = hole_for(used, pieces, self._width)
                if hole is not None:
                    rank = (hole[0], self._width - used.bit_count(), node)
                    if best is None or rank < best[0]:
                        best = (rank, node, hole[1])
                if node not in taken:
                    break  # the others of this pattern are no better, and later in order
        return None if best is None else best[1:]

    def _spread(self, gpus: int) -> _Taken | None:
        return self._any(gpus, sorted(self._alike, key=lambda bits: (bits.bit_count(), bits)))

    def _first_fit(self, gpus: int) -> _Taken | None:
        fits = [nodes[0] for used, nodes in self._alike.items() if nodes and self._width - used.bit_count() >= gpus]
        if fits:
            node = min(fits)
            return {node: lowest(self._whole & ~self._used[node], gpus)}
        in_order = sorted(node for nodes in self._alike.values() for node in nodes)
        return self._fill(gpus, in_order)

    def _any(self, gpus: int, patterns: Iterable[int]) -> _Taken | None:
        by_free: dict[int, list[int]] = {}
        for bits in patterns:
            by_free.setdefault(bits.bit_count(), []).extend(self._alike[bits])
        return self._fill(gpus, (node for nodes in by_free.values() for node in sorted(nodes)))

    def _fill(self, gpus: int, nodes: Iterable[int]) -> _Taken | None:
        taken: _Taken = {}
        for node in nodes:
            if not gpus:
                break
            bits = lowest(self._whole & ~self._used[node], gpus)
            if bits:
                taken[node] = bits
                gpus -= bits.bit_count()
        return None if gpus else taken

    def _press(self, job: str, size: int, moved: dict[str, None]) -> None:
        """Give a job one block, moving smaller ones out of its way, and theirs likewise: sizes fall, so it ends.

        What is moved needs no more room than what was free elsewhere: a block of ``size`` with u of it used leaves at
        least u free GPUs outside, whenever ``size`` GPUs were free at all.
        """
        taken = self._block(size)
        if taken is not None:
            self._take(job, taken)
            return
        region = self._cheapest_region(size)
        if region is None:  # only on nodes whose width is no power of two: no hole of this size can be made
            self._press(job, size // 2, moved)
            self._press(job, size - size // 2, moved)
            return
        node, bits = region
        evicted = [(tenant, held & bits) for tenant, held in self._tenants[node].items() if held & bits]
        for tenant, held in evicted:
            self._give_back(tenant, node, held)
            moved[tenant] = None
        self._take(job, {node: bits})
        sizes = [(size, tenant) for tenant, held in evicted for _, size in blocks_of(held, self._width)]
        for piece, tenant in sorted(sizes, reverse=True):
            self._press(tenant, piece, moved)

    def _block(self, size: int) -> _Taken | None:
        if size == self._width:
            empty = self._alike.get(0)
            return {empty[0]: self._whole} if empty else None
        alone = self._best((size,), {})
        return None if alone is None else {alone[0]: alone[1]}

    def _cheapest_region(self, size: int) -> tuple[int, int] | None:
        """The aligned block of ``size`` with the fewest used GPUs, then the fewest jobs to be moved."""
        best: tuple[tuple[int, int, int, int], int, int] | None = None
        for used, nodes in self._alike.items():
            for first in range(0, self._width - size + 1, size):
                bits = ((1 << size) - 1) << first
                inside = (used & bits).bit_count()
                if inside == size or (best is not None and inside > best[0][0]):
                    continue
                for node in nodes:
                    if self._fixed[node] & bits:
                        continue
                    jobs = sum(1 for held in self._tenants[node].values() if held & bits)
                    rank = (inside, jobs, node, first)
                    if best is None or rank < best[0]:
                        best = (rank, node, bits)
        return None if best is None else best[1:]
