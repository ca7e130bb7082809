"""Plans as files: JSON with a format and a version, read back exactly, refused where it is anything else.

The shape, versions 1 and 2::

    identity     what it is for: model, parallelism, gpu, driver, each {says, sha256} or null
    schedule     name, transfer_s, rows: one text a rank, actions as torch.distributed.pipelining writes them
    options      what was measured: stage, kind, setting, time_s, energy_j (of one GPU) and their errors;
                 in version 2 also launches: of each kind of partition its slot and SMs (``plan/execution``)
    costs        of one GPU that waits (blocking_w) or changes its setting (switch_s, switch_j); gpus_per_rank
    points       time_s, energy_j (of all GPUs), bound_j, ranks: per rank, in its order, the number of each operation's
                 option among those of its stage and kind, counted from 0

Both versions are read; a plan without launches is written as version 1.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.plan import plan_fields
from joulewise.plan.plan import Costs, Plan, PlanPoint
from joulewise.plan.plan_fields import Fields
from joulewise.plan.plan_identity import Identity, parallelism
from joulewise.plan.profile import averaged
from joulewise.plan.profile_files import options_from, options_json, version_of
from joulewise.plan.schedules import Schedule, read_actions

FORMAT, VERSIONS = "joulewise-plan", (1, 2)
_FIELDS = ("format", "version", "identity", "schedule", "costs", "assumptions", "options", "points")


def to_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    lengths = _lengths(plan.schedule)
    return {
        "format": FORMAT,
        "version": version_of(plan.profile),
        "identity": plan.identity.to_json(),
        "schedule": {
            "name": plan.schedule.name,
            "transfer_s": plan.schedule.transfer_s,
            "rows": [" ".join(map(str, row)) for row in plan.schedule.rows],
        },
        "costs": asdict(plan.costs),
        "assumptions": list(plan.assumptions),
        "options": options_json(plan.profile.options),
        "points": [
            {
                "time_s": point.time_s,
                "energy_j": point.energy_j,
                "bound_j": point.bound_j,
                "ranks": [list(part) for part in _cut(point.choice, lengths)],
            }
            for point in plan.points
        ],
    }


def from_json(value: Any, place: str = "the plan") -> Plan:
    """The reverse. BadSpec says which part is not a plan of this version, or breaks its own promise."""
    fields = plan_fields.known(value, place, format=FORMAT, versions=VERSIONS).only(*_FIELDS)
    try:
        profile = averaged(options_from(fields.several("options"), fields.whole("version")))
        schedule = _schedule(fields.one("schedule"))
        costs = _costs(fields.one("costs"))
        identity = Identity.read(fields.one("identity"))
        made = parallelism(schedule, costs.gpus_per_rank)
        if identity.parallelism is None or identity.parallelism.sha256 != made.sha256:
            raise BadSpec("its parallelism is not the hash of its own schedule; it was changed by hand, or damaged")
        return Plan(
            schedule,
            profile,
            costs,
            tuple(_point(point, _lengths(schedule)) for point in fields.several("points")),
            identity,
            tuple(_text(fields, at, text) for at, text in enumerate(fields.items("assumptions"))),
        )
    except BadSpec as problem:
        raise BadSpec(str(problem) if str(problem).startswith(place) else f"{place}: {problem}") from None


def read(path: Path) -> Plan:
    """A plan from a file. BadSpec, with the file's name, where it is none."""
    fields = plan_fields.read(path, format=FORMAT, versions=VERSIONS)
    return from_json(fields.values, fields.place)


def write(plan: Plan, path: Path) -> None:
    """Write a plan. OSError as writing goes."""
    value = to_json(plan)
    # Lists of numbers on one line each: some ten thousand of them are no reading.
    parts = [f" {json.dumps(name)}: {_written(part)}" for name, part in value.items()]
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _written(part: Any) -> str:
    if isinstance(part, list) and part:
        return "[\n  " + ",\n  ".join(json.dumps(one, allow_nan=False) for one in part) + "\n ]"
    return json.dumps(part, allow_nan=False)


def _schedule(fields: Fields) -> Schedule:
    fields.only("name", "transfer_s", "rows")
    rows = fields.items("rows")
    for at, row in enumerate(rows):
        if not isinstance(row, str):
            raise BadSpec(f"{fields.place}: rows[{at}] is not a text")
    return read_actions(
        [row.split() for row in rows], name=fields.text("name"), transfer_s=fields.number("transfer_s", least=0.0)
    )


def _costs(fields: Fields) -> Costs:
    fields.only("blocking_w", "gpus_per_rank", "switch_s", "switch_j")
    numbers = {name: fields.number(name, least=0.0) for name in ("blocking_w", "switch_s", "switch_j")}
    return Costs(gpus_per_rank=fields.whole("gpus_per_rank", least=1), **numbers)


def _point(fields: Fields, lengths: list[int]) -> PlanPoint:
    fields.only("time_s", "energy_j", "bound_j", "ranks")
    ranks = fields.items("ranks")
    if len(ranks) != len(lengths):
        raise BadSpec(f"{fields.place} has {len(ranks)} ranks; the schedule has {len(lengths)}")
    for rank, (choices, length) in enumerate(zip(ranks, lengths, strict=True)):
        if not isinstance(choices, list) or len(choices) != length:
            found = len(choices) if isinstance(choices, list) else "no list of"
            raise BadSpec(f"{fields.place}: rank {rank} has {found} choices for {length} operations")
        if not all(type(choice) is int for choice in choices):
            raise BadSpec(f"{fields.place}: rank {rank} has a choice that is not a whole number")
    return PlanPoint(
        fields.number("time_s"),
        fields.number("energy_j"),
        tuple(itertools.chain.from_iterable(ranks)),
        fields.number("bound_j", least=0.0) if fields.has("bound_j") else None,
    )


def _text(fields: Fields, at: int, text: Any) -> str:
    if not isinstance(text, str) or len(text) > 500:
        raise BadSpec(f"{fields.place}: assumptions[{at}] is not a short text")
    return text


def _lengths(schedule: Schedule) -> list[int]:
    """Operations of each rank; a Dag of a schedule has them rank by rank."""
    return [sum(len(action.computes) for action in row) for row in schedule.rows]


def _cut(choice: tuple[int, ...], lengths: list[int]) -> list[tuple[int, ...]]:
    ends = list(itertools.accumulate(lengths))
    return [choice[end - length : end] for length, end in zip(lengths, ends, strict=True)]
