"""What ``bench.partition_gpu`` measures: cells, which of them there are, and what was measured of one. No GPU here.

A cell is one piece of work under one schedule: a partition (the compute of one nanobatch's attention or MLP part beside
the other nanobatch's communication), communication alone, or a stack of layers of both partitions. ``grid`` lists every
schedule of a partition; ``beside`` lists what the grid is compared with. Where communication starts is a slot: the
name of the operation before which it is launched, ``SEQUENTIAL`` (after the last one, beside nothing) or ``NOWHERE``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

SLOTS = {
    "attention": ("norm", "linear", "rope", "attention", "projection"),
    "mlp": ("norm", "linear1", "activation", "linear2"),
}
"""Operations of each partition in their order; memory-bound neighbours are one (Kareus, OSDI'26)."""
SEQUENTIAL, NOWHERE = "sequential", "nowhere"
BLOCKS = (4, 8, 12, 16, 24, 32, 48, 64)
FEW_BLOCKS = (8, 16, 32, 64)
"""For the second clock: half the counts, so that all fits into the time."""
SEQUENTIAL_BLOCKS = (16, 32, 64)
PLAIN_BLOCKS = 32
"""Plain overlap is a launch before the first operation; a stack runs it with this many blocks, which is our choice. For
an all-reduce over eight H100 on NVLink NCCL takes 16 channels (in-switch sums) or 24 (rings): both are in the grid."""
VALUES = ("random", "zeros")
"""What the tensors hold. It decides power, and so the clock that the power cap leaves."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Where communication starts, and how many thread blocks (one an SM) it gets."""

    slot: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of work. ``launches``: one of a partition or of communication, (attention's, MLP's) of a stack.

    ``split``: one nanobatch of two (in a stack: both, in turns); else the whole microbatch at once.
    """

    values: str
    part: str
    launches: tuple[Launch, ...]
    split: bool = True


@dataclass(frozen=True, slots=True)
class Measured:
    """One window over a cell repeated without a pause. Seconds and joules are of the cell's work done once."""

    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    """One standard error of when the counter moved; the sensor's gain cancels on one card."""
    power_w: float
    drift: float
    """Power in the second half of the window over that in the first."""
    sm_mhz: float | None
    sm_mhz_spread: float | None
    temperature_c: float | None
    capped_share: float | None
    """Share of readings that name the power cap as what holds the clock down."""
    window_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """A cell, which repeat of it, and what was measured."""

    cell: Cell
    repeat: int
    measured: Measured

    def plain(self) -> dict[str, object]:
        """As JSON."""
        cell, seen = self.cell, self.measured
        launches = [{"slot": launch.slot, "blocks": launch.blocks} for launch in cell.launches]
        what = {"values": cell.values, "part": cell.part, "split": cell.split, "launches": launches}
        read = {each.name: getattr(seen, each.name) for each in fields(seen)}
        short = {name: value if value is None else float(f"{value:.6g}") for name, value in read.items()}
        return what | {"repeat": self.repeat} | short

    @classmethod
    def read(cls, plain: dict[str, object]) -> Row:
        """Of what ``plain`` gave. KeyError or TypeError where it is something else."""
        rest = dict(plain)
        launches = rest.pop("launches")
        if not isinstance(launches, list):
            raise TypeError(f"launches are {launches!r}, no list")
        what = tuple(Launch(**launch) for launch in launches)
        cell = Cell(str(rest.pop("values")), str(rest.pop("part")), what, bool(rest.pop("split")))
        return cls(cell, int(str(rest.pop("repeat"))), Measured(**rest))  # type: ignore[arg-type]


def grid(values: str, part: str, blocks: Sequence[int]) -> list[Cell]:
    """Every schedule of a partition: all slots × blocks, and sequential ones."""
    launches = [Launch(slot, count) for slot in SLOTS[part] for count in blocks]
    launches += [Launch(SEQUENTIAL, count) for count in SEQUENTIAL_BLOCKS]
    return [Cell(values, part, (launch,)) for launch in launches]


def plain_overlap(part: str) -> Launch:
    """The schedule of a program that overlaps and chooses nothing."""
    return Launch(SLOTS[part][0], PLAIN_BLOCKS)


def fastest(seen: Sequence[Row], values: str, part: str, *, only: str | None = None) -> Launch | None:
    """The launch of least mean time among split partitions measured so far (``only`` of one slot); None of none."""
    times: dict[Launch, list[float]] = {}
    for row in seen:
        launch = row.cell.launches[0]
        schedule = row.cell.split and launch.slot != NOWHERE and only in (None, launch.slot)
        if (row.cell.values, row.cell.part) == (values, part) and schedule:
            times.setdefault(launch, []).append(row.measured.time_s)
    return min(times, key=lambda launch: statistics.fmean(times[launch])) if times else None


def beside(values: str, seen: Sequence[Row]) -> list[Cell]:
    """What the grid is compared with: compute alone and communication alone, unsplit work, and stacks of layers.

    Stacks run the fastest, the plain and the fastest sequential schedule of those in ``seen``, split, and the
    sequential one unsplit, which is what training without nanobatches does.
    """
    cells = [Cell(values, part, (Launch(NOWHERE, 0),), split) for part in SLOTS for split in (True, False)]
    best = [fastest(seen, values, part) for part in SLOTS]
    plain: list[Launch | None] = [plain_overlap(part) for part in SLOTS]
    after = [fastest(seen, values, part, only=SEQUENTIAL) for part in SLOTS]
    cells += [Cell(values, part, (launch,), False) for part, launch in zip(SLOTS, after, strict=True) if launch]
    stacks = [(best, True), (plain, True), (after, True), (after, False)]
    for pair, split in stacks:
        cell = Cell(values, "stack", tuple(launch for launch in pair if launch is not None), split)
        if len(cell.launches) == len(SLOTS) and cell not in cells:
            cells.append(cell)
    if values == VALUES[0]:  # how fast k blocks are does not hang on values
        cells += [Cell(values, "communication", (Launch(NOWHERE, count),)) for count in BLOCKS]
    return cells
