"""Every schedule of a transformer layer's partitions on a real GPU, in real joules: the ground truth for a search.

A partition is the compute of one nanobatch's attention or MLP part (bf16, forward) beside the other nanobatch's
communication: a kernel of k thread blocks that moves an all-reduce's bytes at a link's pace
(``partition_gpu_kernel``). All launch slots × k are measured, with sequential schedules, unsplit work, each alone, and
stacks of layers against the sum of their partitions; each twice, in drawn order, at the two clocks that the power cap
leaves for random numbers and for zeros. Nothing is set on the GPU. ``bench.partition_gpu_score`` reads the result.

    python -m bench.partition_gpu --check
    python -m bench.partition_gpu --out FILE.json [--minutes 8] [--window 1.0] [--repeats 2] [--values random,zeros]

FILE.json is written anew after every cell; what time did not allow for is under ``left_out``. Needs PyTorch with CUDA,
triton, and a GPU that nobody else uses.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.partition_gpu_cells import BLOCKS, FEW_BLOCKS, SLOTS, VALUES, Cell, Row, beside, grid
from bench.partition_gpu_stage import GpuStage, Stage

LEAD_S = 0.5
"""Before a window: the power limiter settles, and the counter's last movement before this cell is over."""
_BETWEEN_S = 0.5  # a tick at each end, capturing the graph


@dataclass
class Result:
    """What has been measured so far, and the file that holds it."""

    provenance: dict[str, Any]
    out: Path | None
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Replace the file, never by half a one."""
        if self.out is None:
            return
        head = json.dumps({"provenance": self.provenance, "left_out": self.left_out}, allow_nan=False)
        lines = ",\n".join(json.dumps(row.plain(), allow_nan=False) for row in self.rows)
        beside_it = self.out.with_suffix(".part")
        beside_it.write_text(f'{head[:-1]},\n"cells": [\n{lines}\n]}}\n', encoding="utf-8")
        beside_it.replace(self.out)


def say(line: str) -> None:
    """To whoever watches."""
    print(line, file=sys.stderr, flush=True)


def cells(values: Sequence[str], repeats: int, seen: Sequence[Row]) -> Iterator[tuple[int, Cell]]:
    """All to be measured, in order; ``seen`` grows meanwhile and says which schedules are worth a stack.

    The first repeat of everything comes before the second of anything, and each grid in an order of its own.
    """
    for repeat in range(1, repeats + 1):
        for kind in values:
            blocks = BLOCKS if kind == VALUES[0] else FEW_BLOCKS
            every = [cell for part in SLOTS for cell in grid(kind, part, blocks)]
            random.Random(f"{kind} {repeat}").shuffle(every)
            yield from ((repeat, cell) for cell in every)
            first = [row for row in seen if row.repeat == 1]  # so that both repeats are of the same stacks
            yield from ((repeat, cell) for cell in beside(kind, first))


def measured(
    stage: Stage, result: Result, *, values: Sequence[str] = VALUES, repeats: int = 2, window_s: float = 1.0
) -> None:
    """Every cell as far as the time allows; ``result`` says what was left out."""
    left_out = 0
    longest_s = LEAD_S + window_s + _BETWEEN_S
    for repeat, cell in cells(values, repeats, result.rows):
        if stage.left_s < longest_s:
            left_out += 1
            continue
        row = Row(cell, repeat, stage.measure(cell, lead_s=LEAD_S, window_s=window_s))
        result.rows.append(row)
        result.write()
        say(in_short(row, stage.left_s))
    if left_out:
        result.left_out.append(f"{left_out} of {left_out + len(result.rows)} cells: the time was over")
    result.write()


def in_short(row: Row, left_s: float) -> str:
    """One line on a cell."""
    cell, seen = row.cell, row.measured
    launches = " ".join(f"{launch.slot}×{launch.blocks}" for launch in cell.launches)
    what = f"{cell.values} {cell.part}{'' if cell.split else ' unsplit'} {launches}"
    clock = "" if seen.sm_mhz is None else f"{seen.sm_mhz:5.0f} MHz"
    return (
        f"{row.repeat} {what:44s} {1e3 * seen.time_s:8.4f} ± {1e3 * seen.time_error_s:.4f} ms  {seen.energy_j:7.4f} ± "
        f"{seen.energy_error_j:.4f} J  {seen.power_w:4.0f} W {clock}  drift {seen.drift:.3f}  {left_s:.0f} s left"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    begun_s = time.monotonic()
    said = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the result goes, after every cell")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all of it; what does not fit is left out")
    parser.add_argument("--window", type=float, default=1.0, help="seconds of a window, at least")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--values", default=",".join(VALUES), help="what tensors hold; power, so clock, goes with it")
    parser.add_argument("--check", action="store_true", help="only check that all is right, in half a minute")
    options = parser.parse_args(said)
    values = options.values.split(",")
    if not set(values) <= set(VALUES):
        parser.error(f"--values are of {', '.join(VALUES)}, not {options.values}")
    if options.out is None and not options.check:
        parser.error("--out FILE.json says where the result goes")
    stage = GpuStage(ends_s=begun_s + 60.0 * options.minutes)
    if options.check:
        from bench.partition_gpu_check import check

        check(stage)
        return
    provenance = {
        **stage.provenance(),
        "command": " ".join(("python -m bench.partition_gpu", *said)),
        "date": datetime.now(UTC).date().isoformat(),
        "shape": asdict(stage.shape),
        "link_bytes": stage.shape.link_bytes(stage.shape.sequences),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    result = Result(provenance, options.out)
    measured(stage, result, values=values, repeats=options.repeats, window_s=options.window)
    for line in result.left_out:
        say(f"left out: {line}")


if __name__ == "__main__":
    main()
