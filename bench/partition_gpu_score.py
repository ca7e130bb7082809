"""What a grid that ``bench.partition_gpu`` measured says: how soon a search finds its frontier, what schedules save.

    python -m bench.partition_gpu_score [FILE.json] [--seeds 20] [--json]

For each partition at each clock: the exhaustive frontier; evaluations that ``tune/pareto`` and random choice need for
99 % of its hypervolume (medians over seeds, one random repeat an evaluation, scored on the means, a seed that does not
arrive counts the whole table); the fastest and the thriftiest schedule against sequential ones and plain overlap. The
best of many is flattered by luck, so a schedule is chosen by the first repeat and judged by the others, beside the same
repeats of what it is compared with. Then stacks of layers over the sum of their partitions, what splitting costs, and
which schedules the lower clock slows more. Errors are one standard error: the larger of what windows state and of how
far repeats of the same values and part are apart.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.partition_gpu_cells import FEW_BLOCKS, NOWHERE, SEQUENTIAL, SLOTS, VALUES, Cell, Launch, Row
from bench.partition_table import Table
from joulewise.core.errors import BadSpec
from joulewise.tune.pareto import Column, ParetoSearch

FILE = Path(__file__).parent / "results" / "h200" / "partition.json"
COLUMNS = (Column("slot", "category"), Column("blocks", "log"))
Figures = dict[str, float | int | str | None]
OBJECTIVES = (("time", "time_s", "time_error_s"), ("energy", "energy_j", "energy_error_j"))
PLAIN_BLOCKS = (16, 24, 32, 64)
"""Plain overlap as NCCL has it with in-switch sums, with rings, as the stacks here ran it, and with many SMs."""


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Provenance and rows. BadSpec where the file is something else."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        return whole["provenance"], [Row.read(row) for row in whole["cells"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadSpec(f"{path} is no result of bench.partition_gpu: {error!r}") from error


def table(rows: Sequence[Row], values: str, part: str) -> tuple[Table, list[Launch]] | None:
    """All schedules of a partition that have every repeat; None of none."""
    found: dict[Launch, dict[int, Row]] = {}
    for row in rows:
        launch = row.cell.launches[0]
        if (row.cell.values, row.cell.part) == (values, part) and row.cell.split and launch.slot != NOWHERE:
            found.setdefault(launch, {})[row.repeat] = row
    repeats = min(map(len, found.values()), default=0)
    if not repeats:
        return None
    launches, slots = list(found), (*SLOTS[part], SEQUENTIAL)
    seen = [[found[launch][repeat].measured for repeat in sorted(found[launch])[:repeats]] for launch in launches]
    return Table(
        f"{values} {part}",
        ("slot", "blocks"),
        tuple((float(slots.index(launch.slot)), float(launch.blocks)) for launch in launches),
        (0,),
        np.array([[one.time_s for one in each] for each in seen]),
        np.array([[one.energy_j for one in each] for each in seen]),
    ), launches


def ours(grid: Table, launches: Sequence[Launch], seed: int) -> list[int]:
    """Candidates in the order in which our search asks for them, until it stops by itself."""
    random, order = np.random.default_rng([seed, 1]), list[int]()
    search = ParetoSearch(COLUMNS, [(launch.slot, launch.blocks) for launch in launches], seed=seed)
    while len(order) < 2 * len(grid) and (asked := search.ask()) is not None:
        order.append(asked.setting)
        search.tell(asked.setting, *grid.look(asked.setting, random))
    return order


def chance(grid: Table, seed: int) -> list[int]:
    """Candidates in a random order."""
    return [int(row) for row in np.random.default_rng([seed, 3]).permutation(len(grid))]


class Mean:
    """Means of cells' repeats and their errors."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: dict[Cell, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row.cell, []).append(row)
        self.scatter = {name: self._scatter(value) for name, value, _ in OBJECTIVES}
        """Relative standard deviation of one repeat, pooled over all cells; None where nothing was repeated."""
        kinds = {(cell.values, cell.part) for cell in self._rows}
        self._of_kind = {(kind, name): self._scatter(value, kind) for kind in kinds for name, value, _ in OBJECTIVES}
        self.stated = {name: self._stated(value, error) for name, value, error in OBJECTIVES}

    def of(
        self, cell: Cell, objective: int, repeats: Callable[[int], bool] = lambda _: True
    ) -> tuple[float, float] | None:
        """Mean and one standard error, over the repeats that ``repeats`` allows; None of none."""
        name, value, error = OBJECTIVES[objective]
        seen = [row.measured for row in self._rows.get(cell, []) if repeats(row.repeat)]
        if not seen:
            return None
        mean = statistics.fmean(getattr(one, value) for one in seen)
        stated = math.sqrt(sum(getattr(one, error) ** 2 for one in seen)) / len(seen)
        scatter = self._of_kind[(cell.values, cell.part), name]
        return mean, max(stated, mean * (scatter or 0.0) / math.sqrt(len(seen)))

    def cells(self) -> Iterable[Cell]:
        """All that were measured."""
        return self._rows

    def _scatter(self, value: str, kind: tuple[str, str] | None = None) -> float | None:
        squares, freedom = 0.0, 0
        for cell, rows in self._rows.items():
            if kind not in (None, (cell.values, cell.part)):
                continue
            seen = [getattr(row.measured, value) for row in rows]
            mean = statistics.fmean(seen)
            squares += sum((one / mean - 1.0) ** 2 for one in seen)
            freedom += len(seen) - 1
        return math.sqrt(squares / freedom) if freedom else None

    def _stated(self, value: str, error: str) -> float:
        seen = [row.measured for rows in self._rows.values() for row in rows]
        return float(statistics.median(getattr(one, error) / getattr(one, value) for one in seen))


def ratio(above: tuple[float, float] | None, below: tuple[float, float] | None) -> tuple[float, float] | None:
    """One mean over another, with its error."""
    if above is None or below is None:
        return None
    value = above[0] / below[0]
    return value, value * math.hypot(above[1] / above[0], below[1] / below[0])


def times(factor: float, parts: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    """``factor`` × the sum of means, with its error; None where one is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return factor * sum(mean for mean, _ in known), factor * math.hypot(*(error for _, error in known))


def searched(grid: Table, launches: Sequence[Launch], seeds: int) -> Figures:
    """The frontier, and what it takes to find it."""
    orders = [ours(grid, launches, seed) for seed in range(seeds)]
    by_chance = [chance(grid, seed) for seed in range(seeds)]
    ours_needs = statistics.median(map(grid.evaluations, orders))
    chance_needs = statistics.median(map(grid.evaluations, by_chance))
    return {
        "candidates": len(grid),
        "repeats": grid.time_s.shape[1],
        "frontier": " ".join(f"{launches[i].slot}×{launches[i].blocks}" for i in grid.frontier),
        "hypervolume_js": grid.hypervolume,
        "time_spread": float(grid.means[:, 0].max() / grid.means[:, 0].min()),
        "energy_spread": float(grid.means[:, 1].max() / grid.means[:, 1].min()),
        "ours_evaluations": ours_needs,
        "random_evaluations": chance_needs,
        "ours_over_random": ours_needs / chance_needs,
        "ours_stopped_after": statistics.median(map(len, orders)),
        "ours_share_when_stopped": statistics.median(grid.share(sorted(set(order))) for order in orders),
    }


def compared(mean: Mean, values: str, part: str, launches: Sequence[Launch]) -> Figures:
    """Best schedules against sequential ones and plain overlap; chosen by the first repeat, judged by the others."""
    found: Figures = {}

    def cell(launch: Launch) -> Cell:
        return Cell(values, part, (launch,))

    def chosen(among: Iterable[Launch], objective: int) -> Launch | None:
        seen = {one: at for one in among if (at := mean.of(cell(one), objective, lambda repeat: repeat == 1))}
        return min(seen, key=lambda one: seen[one][0]) if seen else None

    for objective, what in enumerate(("fastest", "thriftiest")):
        best = chosen(launches, objective)
        after = chosen((launch for launch in launches if launch.slot == SEQUENTIAL), objective)
        if best is None or after is None:
            continue
        found[what] = f"{best.slot}×{best.blocks}"
        others = {"sequential": cell(after)}
        others |= {f"plain_{blocks}": cell(Launch(SLOTS[part][0], blocks)) for blocks in PLAIN_BLOCKS}
        for index, (name, _, _) in enumerate(OBJECTIVES):
            judged = mean.of(cell(best), index, _later)
            for other, its_cell in others.items():
                _put(found, f"{what}_{name}_over_{other}", ratio(judged, mean.of(its_cell, index, _later)))
            halves = [row for row in mean.cells() if (row.values, row.part, row.split) == (values, part, False)]
            whole = next((row for row in halves if row.launches[0].slot == SEQUENTIAL), None)
            if whole is not None:
                unsplit = times(0.5, [mean.of(whole, index, _later)])
                _put(found, f"{what}_{name}_over_unsplit_sequential", ratio(judged, unsplit))
    return found


def added(mean: Mean, layers: int) -> Figures:
    """Stacks over the sum of their partitions measured apart."""
    found: Figures = {}
    for stack in [cell for cell in mean.cells() if cell.part == "stack"]:
        parts = [
            Cell(stack.values, part, (launch,), stack.split) for part, launch in zip(SLOTS, stack.launches, strict=True)
        ]
        schedule = "+".join(f"{launch.slot}×{launch.blocks}" for launch in stack.launches)
        name = f"{stack.values}.stack.{'split' if stack.split else 'unsplit'}.{schedule}"
        for index, (what, _, _) in enumerate(OBJECTIVES):
            # Stacks run what was fastest in the first repeat: that luck would pass for a gap.
            apart = times(layers * (2 if stack.split else 1), [mean.of(part, index, _later) for part in parts])
            _put(found, f"{name}.{what}_over_sum", ratio(mean.of(stack, index, _later), apart))
            _put(found, f"{name}.{what}", mean.of(stack, index))
    return found


def split(mean: Mean, values: str, part: str) -> Figures:
    """Two halves over the whole, compute alone."""
    found: Figures = {}
    alone = (Launch(NOWHERE, 0),)
    for index, (what, _, _) in enumerate(OBJECTIVES):
        halves = times(2.0, [mean.of(Cell(values, part, alone), index)])
        _put(found, f"split_{what}_over_whole", ratio(halves, mean.of(Cell(values, part, alone, False), index)))
    return found


def slowed(mean: Mean, part: str) -> Figures:
    """How much more the lower clock (random numbers over zeros) slows a schedule one slot later, or of double blocks.

    A plane through the logarithms of all overlapped schedules that both have; its errors are by what it leaves over.
    """
    rows, seen = list[tuple[float, float, float]](), list[float]()
    for place, slot in enumerate(SLOTS[part]):
        for blocks in FEW_BLOCKS:
            both = [mean.of(Cell(values, part, (Launch(slot, blocks),)), 0) for values in VALUES]
            if (slower := ratio(*both)) is not None:
                rows.append((1.0, place, math.log2(blocks)))
                seen.append(math.log(slower[0]))
    where = np.array(rows)
    if len(rows) < 4 or np.linalg.matrix_rank(where) < 3:
        return {}
    slopes = np.linalg.lstsq(where, np.array(seen))[0]
    left = np.array(seen) - where @ slopes
    errors = np.sqrt(np.diag(np.linalg.inv(where.T @ where)) * (left @ left) / (len(rows) - 3))
    found: Figures = {f"{part}.slowed": math.exp(statistics.fmean(seen))}
    for index, name in ((1, "slot"), (2, "doubling")):
        _put(found, f"{part}.slowed_per_{name}", (float(slopes[index]), float(errors[index])))
    return found


def held(rows: Sequence[Row], values: str, part: str) -> Figures:
    """What clock and power the grid ran at."""
    seen = [row.measured for row in rows if (row.cell.values, row.cell.part, row.cell.split) == (values, part, True)]
    found: Figures = {"power_w": statistics.fmean(one.power_w for one in seen)}
    for name in ("sm_mhz", "capped_share", "temperature_c"):
        known = [value for one in seen if (value := getattr(one, name)) is not None]
        found[name] = statistics.fmean(known) if known else None
    return found


def figures(provenance: dict[str, Any], rows: Sequence[Row], seeds: int) -> Figures:
    """Every figure that the rows allow, by name."""
    mean, found = Mean(rows), Figures()
    for name in ("time", "energy"):
        found |= {f"repeat_scatter_{name}": mean.scatter[name], f"stated_error_{name}": mean.stated[name]}
    for values in dict.fromkeys(row.cell.values for row in rows):
        for part in SLOTS:
            made = table(rows, values, part)
            if made is not None:
                grid, launches = made
                some = searched(grid, launches, seeds) | compared(mean, values, part, launches)
                some |= split(mean, values, part) | held(rows, values, part)
                found |= {f"{values}.{part}.{name}": value for name, value in some.items()}
    for part in SLOTS:
        found |= slowed(mean, part)
    return found | added(mean, int(provenance["shape"]["layers"]))


def _later(repeat: int) -> bool:
    """Repeats that chose nothing."""
    return repeat > 1


def _put(found: Figures, name: str, value: tuple[float, float] | None) -> None:
    if value is not None:
        found[name], found[f"{name}_error"] = value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args(arguments)
    provenance, rows = read(options.file)
    found = figures(provenance, rows, options.seeds)
    if options.json:
        print(json.dumps({"figures": found}))
        return
    for name, value in found.items():
        if not name.endswith("_error"):
            error = found.get(f"{name}_error")
            beside = "" if error is None else f" ± {error:.2g}"
            print(f"{name:66s} {value if isinstance(value, str | None) else format(value, '.5g')}{beside}")


if __name__ == "__main__":
    main()
