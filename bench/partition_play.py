"""One search on one table, by name: ours, Kareus', Kareus' with ordered positions, random. Every choice is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench import partition_kareus
from bench.partition_table import REACHED, Table
from joulewise.tune.pareto import Column, ParetoSearch
from joulewise.tune.pareto_gain import non_dominated

SEARCHES = ("ours", "kareus", "kareus_ordered", "random")


@dataclass(frozen=True, slots=True)
class Choice:
    """One evaluation: which candidate, what was seen, and why."""

    candidate: int
    time_s: float
    energy_j: float
    why: str


@dataclass(frozen=True, slots=True)
class Played:
    """One run of one search: its choices in order, and those that it hands over as its frontier."""

    search: str
    table: str
    seed: int
    choices: tuple[Choice, ...]
    chosen: tuple[int, ...]
    evaluations: int  # until 99 % of the table's hypervolume were evaluated; the whole table where never
    share: float  # of the hypervolume, by everything evaluated
    chosen_share: float  # by the frontier handed over

    def lines(self, table: Table) -> Iterator[dict[str, Any]]:
        """Every choice as one JSON object, then the outcome."""
        for number, choice in enumerate(self.choices, start=1):
            yield {
                "search": self.search,
                "table": self.table,
                "seed": self.seed,
                "evaluation": number,
                "candidate": dict(zip(table.columns, table.values[choice.candidate], strict=True)),
                "seen_time_s": choice.time_s,
                "seen_energy_j": choice.energy_j,
                "why": choice.why,
            }
        yield {
            "search": self.search,
            "table": self.table,
            "seed": self.seed,
            "outcome": {
                "evaluations_to_99": self.evaluations,
                "asked": len(self.choices),
                "share": self.share,
                "frontier": [dict(zip(table.columns, table.values[i], strict=True)) for i in self.chosen],
                "frontier_share": self.chosen_share,
            },
        }


def columns(table: Table) -> tuple[Column, ...]:
    """How our search is told the columns: slots and block sizes as categories, SM counts by logarithm, clocks."""
    kinds = {"comm_sm_number": "log", "sms": "log", "sm_mhz": "linear"}
    return tuple(Column(name, kinds.get(name, "category")) for name in table.columns)  # type: ignore[arg-type]


def play(table: Table, search: str, seed: int, *, whole: bool = True) -> Played:
    """Run one search to its own end, or (not ``whole``) until it has reached what is counted."""
    made: list[Choice] = []
    chosen: list[int] | None = None
    if search == "ours":
        ours = ParetoSearch(columns(table), table.values, seed=seed)
        random = np.random.default_rng([seed, 1])
        while (decision := ours.ask()) is not None:
            seen = table.look(decision.setting, random)
            ours.tell(decision.setting, *seen)
            made.append(Choice(decision.setting, *seen, decision.reason))
            if len(made) >= 2 * len(table) or (not whole and _reached(table, made)):
                break
        chosen = [point.setting for point in ours.frontier()]
    elif search in ("kareus", "kareus_ordered"):
        run = partition_kareus.search(table, seed, ordered=search == "kareus_ordered")
        made = [Choice(candidate, time_s, energy_j, why) for candidate, time_s, energy_j, why in run]
    else:
        random = np.random.default_rng([seed, 3])
        for candidate in random.permutation(len(table)):
            made.append(Choice(int(candidate), *table.look(int(candidate), random), "random"))
            if _reached(table, made):
                break
    order = [choice.candidate for choice in made]
    if chosen is None:  # what these hand over: the frontier of what they saw
        best = np.array([(choice.time_s, choice.energy_j) for choice in made])
        chosen = [order[i] for i in non_dominated(best)]
    return Played(
        search,
        table.name,
        seed,
        tuple(made),
        tuple(chosen),
        table.evaluations(order),
        table.share(order),
        table.share(chosen),
    )


def _reached(table: Table, made: list[Choice]) -> bool:
    return table.share([choice.candidate for choice in made]) >= REACHED
