"""How well does the partition simulator predict schedules on the H200 that it was not fitted to?

    python -m bench.partition_gpu_sim [FILE.json]

``model/partition`` is fitted to a partition's measured schedules with one launch slot held out, each slot in turn, and
asked for that slot. Beside it, as what a prediction is worth at least: the mean of the other slots with as many blocks.
Random numbers only, since zeros have fewer schedules than the fit wants. The fit knows no power cap, and all
but the sparsest of these schedules ran at it: what the cap does to the clock is in the errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.partition_gpu_cells import SEQUENTIAL, SLOTS, VALUES, Launch
from bench.partition_gpu_score import FILE, read, table
from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.model.partition import SEQUENTIAL as FIRST
from joulewise.model.partition import Schedule
from joulewise.model.partition_fit import Measured, errors, fit

_THREADS = 1024  # of a block of the communication kernel


def schedule(part: str, launch: Launch) -> Schedule:
    """A launch as the simulator has it; a partition's end always waits for its communication."""
    if launch.slot == SEQUENTIAL:
        return Schedule(FIRST, FIRST, launch.blocks, _THREADS)
    return Schedule(SLOTS[part].index(launch.slot), len(SLOTS[part]) - 1, launch.blocks, _THREADS)


def by_neighbours(launches: Sequence[Launch], means: np.ndarray, slot: str) -> np.ndarray:
    """Relative errors (time, energy) of a slot's schedules if they were the mean of the other slots' of like blocks."""
    found = []
    for launch, mean in zip(launches, means, strict=True):
        if launch.slot == slot:
            others = [
                its
                for one, its in zip(launches, means, strict=True)
                if one.blocks == launch.blocks and one.slot not in (slot, SEQUENTIAL)
            ]
            found.append(np.mean(others, axis=0) / mean - 1.0)
    return np.array(found).T


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    provenance, rows = read(parser.parse_args(arguments).file)
    chip = catalog.load("h200").chip
    for part in SLOTS:
        made = table(rows, VALUES[0], part)
        if made is None:
            raise BadSpec(f"no schedules of {part} with {VALUES[0]} numbers; nothing to fit to")
        grid, launches = made
        seen = [
            Measured(schedule(part, launch), float(time_s), float(energy_j))
            for launch, (time_s, energy_j) in zip(launches, grid.means, strict=True)
        ]
        fitted, guessed = [], []
        for slot in SLOTS[part]:
            kept = [one for one, launch in zip(seen, launches, strict=True) if launch.slot != slot]
            out = [one for one, launch in zip(seen, launches, strict=True) if launch.slot == slot]
            partition = fit(kept, SLOTS[part], sms=provenance["sms"], chip=chip, static_w=chip.idle_w)
            fitted.append(np.array(errors(partition, out)))
            guessed.append(by_neighbours(launches, grid.means, slot))
            time, energy = 100.0 * np.abs(fitted[-1]).mean(axis=1)
            print(f"{part}, {slot} held out: time {time:.2f} %, energy {energy:.2f} %", flush=True)
        for name, each in (("simulator", fitted), ("other slots' mean", guessed)):
            time, energy = 100.0 * np.abs(np.concatenate(each, axis=1)).mean(axis=1)
            worst = 100.0 * np.abs(np.concatenate(each, axis=1)).max(axis=1)
            print(f"{part}, {name}: time {time:.2f} % (worst {worst[0]:.1f}), energy {energy:.2f} % ({worst[1]:.1f})")


if __name__ == "__main__":
    main()
