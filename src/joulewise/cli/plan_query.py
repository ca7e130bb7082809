"""``joulewise plan query``: the point of a plan for a deadline, an energy or a power."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli.plan_amounts import joules, seconds, watts
from joulewise.core.errors import BadSpec

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, as 'joulewise plan solve --out' wrote it.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")]


def query(
    plan: PlanFile,
    deadline: Annotated[str | None, typer.Option(metavar="9.5s", help="Least energy within this time.")] = None,
    energy: Annotated[str | None, typer.Option(metavar="3.2MJ", help="Least time within this energy.")] = None,
    power: Annotated[str | None, typer.Option(metavar="20kW", help="Least time within this mean power.")] = None,
    as_json: AsJson = False,
) -> None:
    """The plan for a deadline, an energy budget or a power cap of one iteration.

    Energy and power are of all GPUs together. A straggler is a deadline: what
    need not be ready earlier may be slower. With --json the answer has every
    rank's operations in their order, each with its setting.

      joulewise plan query plan.json --deadline 9.5s
      joulewise plan query plan.json --power 20kW --json
    """
    from joulewise.cli import plan_views
    from joulewise.plan import plan_files

    asked = [flag for flag in (deadline, energy, power) if flag is not None]
    if len(asked) != 1:
        raise BadSpec("ask for one of --deadline, --energy and --power")
    read = plan_files.read(plan)
    if deadline is not None:
        point = read.by_deadline(seconds("--deadline", deadline))
    elif energy is not None:
        point = read.by_energy(joules("--energy", energy))
    else:
        assert power is not None
        point = read.by_power(watts("--power", power))
    if as_json:
        print(plan_views.dumped(plan_views.point_json(read, point) | {"ranks": plan_views.steps_json(read, point)}))
        return
    plan_views.print_page(plan_views.answer(read, point))
