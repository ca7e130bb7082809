"""How many measurements does a partition's frontier cost, and how well is a partition simulated?

    python -m bench.partition [--json] [--data FILE] [--seeds 20] [--decisions FILE]
    python -m bench.partition --made 6 [--seeds 5]       tables that nothing was developed on
    python -m bench.partition --ablation                 Kareus' ablation in the simulator

The measured A100 schedules as a table (``bench.partition_table``): every search sees one random repeat an evaluation
and is scored on the means. Counted: evaluations until those evaluated reach 99 % of the table's hypervolume, the whole
table for a seed that never does; medians over seeds. Searches (``bench.partition_play``): ours, Kareus' (96 + 4 × 32),
Kareus' told the positions of its slots, random. Then the simulator on rows that it was not fitted to
(``bench.partition_sim``). ``JOULEWISE_DATA`` names the folder of public data; ``--data`` another table of the same
columns. Tables go to stderr under ``--json``, which ends with one object ``{"figures": {…}}``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

# Before anything loads numpy: workers side by side must not spin for each other's cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bench import partition_sim
from bench.partition_made import made
from bench.partition_play import SEARCHES, Played, play
from bench.partition_table import KAREUS_FILE, Table, read_kareus
from bench.pool import processes
from joulewise.core.errors import BadSpec, JoulewiseError


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, metavar="FILE", help="a measured table (default: in JOULEWISE_DATA)")
    options.add_argument("--seeds", type=int, default=20, help="runs of each search (default: %(default)s)")
    options.add_argument("--made", type=int, default=0, metavar="N", help="play on N made-up tables instead")
    options.add_argument("--ablation", action="store_true", help="the ablation in the simulator instead")
    options.add_argument("--no-simulator", action="store_true", help="leave out the simulator's fits")
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument(
        "--decisions", type=Path, metavar="FILE", help="every choice and outcome, a JSON object a line"
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; 2 where the input cannot be used."""
    options = parser().parse_args(arguments)
    if options.seeds < 1 or options.made < 0:
        parser().error("--seeds is 1 or more, --made 0 or more")
    out: Callable[[str], None] = partial(print, file=sys.stderr) if options.json else print
    try:
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(processes())
            figures = _figures(options, pool, out)
    except (JoulewiseError, OSError) as error:
        print(f"bench.partition: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"figures": figures}))
    else:
        print("\n".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return 0


def _figures(options: argparse.Namespace, pool: ProcessPoolExecutor, out: Callable[[str], None]) -> dict[str, float]:
    folder = Path(os.environ.get("JOULEWISE_DATA", "."))
    stage = folder / partition_sim.STAGE_FILE
    if options.made:
        return _searched([made(seed) for seed in range(options.made)], options, pool, out)
    table = read_kareus(options.data or folder / KAREUS_FILE)
    if options.ablation:
        from bench import partition_ablation

        return partition_ablation.figures(table, partition_sim.clocked(_there(stage)), out)
    figures = _searched([table], options, pool, out)
    if not options.no_simulator:
        clocks = partition_sim.clocked(_there(stage))
        figures |= partition_sim.figures(table, clocks, lambda work, tasks: list(pool.map(work, tasks)), out)
    return figures


def _there(path: Path) -> Path:
    if not path.is_file():
        raise BadSpec(f"{path} is not there; set JOULEWISE_DATA to the folder of public data")
    return path


def _searched(
    tables: Sequence[Table], options: argparse.Namespace, pool: ProcessPoolExecutor, out: Callable[[str], None]
) -> dict[str, float]:
    """Play every search on every table; medians over seeds, then over tables."""
    tasks = [(table, search, seed) for table in tables for search in SEARCHES for seed in range(options.seeds)]
    found: list[Played] = []
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(options.decisions.open("w", encoding="utf-8")) if options.decisions else None
        for (table, _, _), played in zip(tasks, pool.map(play, *zip(*tasks, strict=True)), strict=True):
            found.append(played)
            if file:
                file.writelines(json.dumps(line) + "\n" for line in played.lines(table))
    figures: dict[str, float] = {}
    for search in SEARCHES:
        rows = []
        for table in tables:
            runs = [played for played in found if (played.search, played.table) == (search, table.name)]
            rows.append(_summary(runs))
            counts = sorted(played.evaluations for played in runs)
            out(f"{table.name} ({len(table)}), {search}: {counts} evaluations; {rows[-1]}")
        name = {"ours": "", "kareus": "kareus_", "kareus_ordered": "kareus_ordered_", "random": "random_"}[search]
        for key in rows[0]:
            figures[name + key] = float(np.median([row[key] for row in rows]))
    return figures


def _summary(runs: Sequence[Played]) -> dict[str, Any]:
    def median(pick: Callable[[Played], float]) -> float:
        return round(float(np.median([pick(played) for played in runs])), 4)

    return {
        "evaluations": median(lambda played: played.evaluations),
        "asked": median(lambda played: len(played.choices)),
        "share": median(lambda played: played.share),
        "frontier_share": median(lambda played: played.chosen_share),
    }


if __name__ == "__main__":
    sys.exit(main())
