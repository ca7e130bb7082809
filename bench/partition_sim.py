"""How well does the partition simulator predict schedules that it was not fitted to?

Fitted to the A100 table's means and to how a GPT-3 stage follows the clock (Perseus' stage profile, clocks at which
its power stays below the 400 W limit). Held out in turn: random rows, whole launch windows (one at a time), the
largest SM counts, a range of SM counts in the middle. Then, predicted for other clocks (which the table does not
have): the fastest schedule, and whether a lower clock favours later slots and fewer SMs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.partition_table import KAREUS_BLOCKING_W, Table
from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.model.partition import Partition, Schedule, simulate
from joulewise.model.partition_fit import Clocked, Measured, errors, fit

OPERATIONS = ("bias-dropout-add", "norm", "QKV linear", "QKV post", "RoPE", "attention", "projection")
A100_SMS = 108
A100_LIMIT_W = 400.0
STAGE_FILE = Path("perseus/stage_profile/gpt3-175b+a100_sxm_bf16.csv")
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Sequence[Any]]


def measured(table: Table) -> list[Measured]:
    """The table's means as schedules."""
    if table.columns != ("overlap_start", "overlap_end", "comm_sm_number", "comm_block_size"):
        raise BadSpec(f"{table.name} has columns {table.columns}: not a table that the simulator is fitted to")
    return [
        Measured(Schedule(*(int(value) for value in row)), float(time), float(energy))
        for row, (time, energy) in zip(table.values, table.means, strict=True)
    ]


def clocked(path: Path) -> tuple[Clocked, ...]:
    """Forward of a middle stage at every fourth clock whose power stays below the limit."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["stage"], row["instruction"]) == ("3", "forward")]
    found = [Clocked(float(row["frequency"]), float(row["time"]), float(row["energy"])) for row in rows]
    below = [one for one in found if one.energy_j / one.time_s < 0.98 * A100_LIMIT_W]
    return tuple(sorted(below, key=lambda one: -one.sm_mhz)[::4])


def fitted(rows: Sequence[Measured], clocks: Sequence[Clocked]) -> Partition:
    """The simulator's partition for these rows."""
    chip = catalog.load("a100-sxm").chip
    return fit(rows, OPERATIONS, sms=A100_SMS, chip=chip, static_w=KAREUS_BLOCKING_W, clocked=clocks)


def held_out(table: Table) -> list[tuple[str, np.ndarray]]:
    """Names and masks of what is held out, each of a fit of its own."""
    values = np.array(table.values)
    windows = sorted({(row[0], row[1]) for row in table.values})
    masks = [("random", np.random.default_rng(0).random(len(table)) < 0.25)]
    masks += [("sms_high", values[:, 2] >= 16), ("sms_middle", (values[:, 2] >= 7) & (values[:, 2] <= 11))]
    masks += [("window", (values[:, 0] == start) & (values[:, 1] == end)) for start, end in windows]
    return masks


def miss(task: tuple[list[Measured], tuple[Clocked, ...], list[bool]]) -> tuple[list[float], list[float]]:
    """Relative errors of held-out rows after a fit to the others."""
    rows, clocks, out = task
    partition = fitted([row for row, held in zip(rows, out, strict=True) if not held], clocks)
    time, energy = errors(partition, [row for row, held in zip(rows, out, strict=True) if held])
    return list(time), list(energy)


def figures(table: Table, clocks: tuple[Clocked, ...], mapper: Mapper, out: Callable[[str], None]) -> dict[str, float]:
    """Errors in per cent for each kind of hold-out; the headline is whole windows, each predicted without itself."""
    rows, masks = measured(table), held_out(table)
    results = mapper(miss, [(rows, clocks, [bool(held) for held in mask]) for _, mask in masks])
    found: dict[str, float] = {}
    pooled: dict[str, list[tuple[list[float], list[float]]]] = {}
    for (name, _), result in zip(masks, results, strict=True):
        pooled.setdefault(name, []).append(result)
    for name, parts in pooled.items():
        for index, objective in enumerate(("time", "energy")):
            values = 100.0 * np.abs(np.concatenate([part[index] for part in parts]))
            found[f"sim_{objective}_mape_{name}"] = float(values.mean())
            out(f"simulator, {name} held out: {objective} {values.mean():.2f} %, worst {values.max():.1f} %")
    found["sim_time_mape"], found["sim_energy_mape"] = found["sim_time_mape_window"], found["sim_energy_mape_window"]
    return found | _clock(table, fitted(rows, clocks), out)


def _clock(table: Table, partition: Partition, out: Callable[[str], None]) -> dict[str, float]:
    """The choice at full clock against the table, and what another clock is predicted to change."""
    schedules = [row.schedule for row in measured(table)]
    best: dict[float, Schedule] = {}
    for clock in (1410.0, 1100.0):
        told = simulate(partition, [Schedule(s.start, s.end, s.sms, s.block, clock) for s in schedules])
        best[clock] = schedules[int(np.argmin(told.time_s))]
        if clock == 1410.0:
            chosen = float(table.means[int(np.argmin(told.time_s)), 0])
    late, early = Schedule(5, 6, 9, 1024), Schedule(0, 6, 9, 1024)
    few, many = Schedule(2, 6, 4, 1024), Schedule(2, 6, 16, 1024)

    def ratio(a: Schedule, b: Schedule, clock: float) -> float:
        told = simulate(partition, [Schedule(s.start, s.end, s.sms, s.block, clock) for s in (a, b)])
        return float(told.time_s[0] / told.time_s[1])

    slot = ratio(late, early, 1100.0) / ratio(late, early, 1410.0) - 1.0
    sms = ratio(few, many, 1100.0) / ratio(few, many, 1410.0) - 1.0
    out(f"predicted fastest: {best[1410.0]} at 1410 MHz, {best[1100.0]} at 1100 MHz")
    out(f"1100 against 1410 MHz: a late slot gains {-slot:.2%} on an early one, 4 SMs gain {-sms:.2%} on 16")
    return {
        "sim_choice_regret_pct": 100.0 * (chosen / float(table.means[:, 0].min()) - 1.0),
        "later_slot_gain_pct_at_1100": -100.0 * slot,
        "fewer_sms_gain_pct_at_1100": -100.0 * sms,
    }
