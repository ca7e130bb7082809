"""``joulewise plan solve``: from measured stages and a schedule to a plan."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import outputs, say
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.plan_amounts import joules, seconds
from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.plan.plan_identity import Identity
    from joulewise.plan.schedules import Schedule

_PIPELINE, _COSTS, _FOR = "The pipeline", "What was measured, and what waiting costs", "What the plan is for"
_LARGE = 20_000
"""Operations beyond which it may take long enough to say so."""
_MOST_WORDS = 6  # in one line
_MANY = 1000
"""The same where changes of clock cost: then every point is a search of its own."""


def solve(
    ctx: typer.Context,
    profile: Annotated[
        Path, typer.Argument(metavar="PROFILE", help="Measured stages: .csv or .json.", show_default=False)
    ],
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE.csv",
            help="1f1b, gpipe, interleaved, zero-bubble, …; or its action lists.",
            rich_help_panel=_PIPELINE,
        ),
    ],
    blocking_w: Annotated[
        float, typer.Option(metavar="W", help="What a GPU draws while it waits to receive.", rich_help_panel=_COSTS)
    ],
    stages: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stages of the model. Default: the profile's.", rich_help_panel=_PIPELINE),
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", help="Microbatches of an iteration.", rich_help_panel=_PIPELINE)
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="R", help="Ranks, if they have several stages each.", rich_help_panel=_PIPELINE),
    ] = None,
    transfer: Annotated[
        str | None, typer.Option(metavar="1ms", help="What a transfer between ranks takes.", rich_help_panel=_PIPELINE)
    ] = None,
    gpus_per_rank: Annotated[
        int, typer.Option(metavar="G", help="GPUs in lockstep: tensor × data parallel.", rich_help_panel=_PIPELINE)
    ] = 1,
    scale_time: Annotated[
        float, typer.Option(metavar="X", help="A stage takes so many times longer.", rich_help_panel=_COSTS)
    ] = 1.0,
    scale_energy: Annotated[
        float, typer.Option(metavar="X", help="A GPU needs so many times the energy.", rich_help_panel=_COSTS)
    ] = 1.0,
    split_backward: Annotated[
        float | None,
        typer.Option(metavar="0…1", help="Share of input_grad in a backward, if not measured.", rich_help_panel=_COSTS),
    ] = None,
    switch_time: Annotated[
        str | None, typer.Option(metavar="25ms", help="What a change of clock takes.", rich_help_panel=_COSTS)
    ] = None,
    switch_energy: Annotated[
        str | None, typer.Option(metavar="J", help="What it costs a GPU beyond waiting.", rich_help_panel=_COSTS)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The model, by any name.", rich_help_panel=_FOR)
    ] = None,
    gpu_name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The GPU, as its driver calls it.", rich_help_panel=_FOR)
    ] = None,
    driver: Annotated[str | None, typer.Option(metavar="VERSION", help="Its driver.", rich_help_panel=_FOR)] = None,
    points: Annotated[int, typer.Option(metavar="N", help="How many plans to keep along the frontier.", min=1)] = 33,
    slope_grid: Annotated[
        float | None, typer.Option(metavar="W", help="Round slopes: quicker for very large pipelines.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, every number in full.")] = False,
) -> None:
    """Find the clocks of every operation of a pipeline, for every iteration time.

    PROFILE has a row for each stage, kind of operation (forward, backward, input_grad, weight_grad) and clock: MHz,
    seconds and joules of one GPU. Repeated rows are averaged; five clocks are a start:

      stage,instruction,frequency,time,energy
      0,forward,1410,0.0502,23.8

      joulewise plan solve profile.csv --schedule 1f1b --stages 8 \\
          --microbatches 96 --blocking-w 83.64 --out plan.json
      joulewise plan solve profile.csv --schedule order.csv --blocking-w 84

    A schedule's CSV is what torch.distributed.pipelining dumps, one row a rank.
    """
    from joulewise.plan.plan import Costs

    outputs.refuse_one_for_two({"PROFILE": profile, "--schedule": Path(schedule), "--out": out})
    if out is not None:
        outputs.refuse_unwritable("--out", out)
    costs = Costs(
        blocking_w,
        gpus_per_rank,
        0.0 if switch_time is None else seconds("--switch-time", switch_time),
        0.0 if switch_energy is None else joules("--switch-energy", switch_energy),
    )
    load_numpy()
    from joulewise.cli import plan_views
    from joulewise.plan import plan_files, profile_files
    from joulewise.plan.plan_making import make

    measured = profile_files.read(profile).scaled(time=scale_time, energy=scale_energy)
    for remark in measured.remarks():
        say(ctx, f"{profile}: {remark}")
    assumptions = []
    if split_backward is not None:
        measured = measured.with_split_backward(split_backward)
        assumptions.append(f"input_grad is {split_backward:g} of a backward that was measured whole")
    lag_s = 0.0 if transfer is None else seconds("--transfer", transfer)
    order = _order(schedule, measured.stages if stages is None else stages, microbatches, ranks, lag_s)
    if order.unknown:
        words = ", ".join(order.unknown[:_MOST_WORDS]) + (", …" if len(order.unknown) > _MOST_WORDS else "")
        say(ctx, f"{schedule} has actions that are not known here ({words}); taken for no computation and passed over")
    if stages is None and order.stages < measured.stages:
        say(ctx, f"{schedule} has {order.stages} stages and {profile} {measured.stages}: the others are not planned")
    operations = len(order.dag.operations)
    if operations > _LARGE:
        say(ctx, f"{operations} operations: this may take a while; --slope-grid 1 is quicker")
    if (switch_time or switch_energy) and operations > _MANY:
        say(ctx, f"{operations} operations whose changes of clock cost: this takes some seconds; fewer --points less")
    began = time.process_time()
    made = make(
        order,
        measured,
        costs,
        points=points,
        slope_grid_w=slope_grid,
        identity=_identity(model, gpu_name, driver),
        assumptions=assumptions,
    )
    say(
        ctx,
        f"{operations} operations, {len(made.frontier)} corners of the frontier, {time.process_time() - began:.2f} s",
    )
    if out is not None:
        plan_files.write(made.plan, out)
    if as_json:
        print(plan_views.dumped(plan_views.summary_json(made.plan) | {"file": None if out is None else f"{out}"}))
        return
    plan_views.print_page(plan_views.summary(made.plan))
    say(ctx, f"'joulewise plan show {out}' draws it" if out else "nothing was kept; --out FILE keeps the plan")


def _order(name: str, stages: int, microbatches: int | None, ranks: int | None, transfer_s: float) -> Schedule:
    from joulewise.plan.schedules import read_csv
    from joulewise.plan.schedules_named import NAMES, named

    if name not in NAMES:
        path = Path(name)
        if path.suffix.lower() != ".csv" and not path.exists():
            raise BadSpec(f"--schedule {name}: names are {', '.join(NAMES)}; or give the CSV of its action lists")
        found = read_csv(path, transfer_s=transfer_s)
        for flag, wanted, there in (
            ("--microbatches", microbatches, found.microbatches),
            ("--ranks", ranks, found.ranks),
        ):
            if wanted is not None and wanted != there:
                raise BadSpec(f"{flag} {wanted}: the schedule {name} has {there}; leave it out")
        return found
    if microbatches is None:
        raise BadSpec(f"--schedule {name} needs --microbatches")
    return named(name, stages=stages, microbatches=microbatches, ranks=ranks, transfer_s=transfer_s)


def _identity(model: str | None, gpu_name: str | None, driver: str | None) -> Identity:
    from joulewise.plan.plan_identity import Fact, Identity

    model_, gpu, driver_ = (None if text is None else Fact.of(text) for text in (model, gpu_name, driver))
    return Identity(model=model_, gpu=gpu, driver=driver_)
