"""``joulewise cluster submit`` and ``cluster cancel``: hand a job in, and end one.

On Slurm a job is handed in to Slurm itself, by its user and with the scheduler up or down; any other engine has no
queue of its own, so the scheduler is asked.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import say
from joulewise.cli.cluster_live import AsJson, Server, Token, scheduler
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.recur_terms import seconds
from joulewise.cluster import fairness, orders
from joulewise.cluster.engine import Order
from joulewise.cluster.engines.slurm_view import user_name
from joulewise.core.errors import BadSpec

_ELASTIC, _KNOWN, _WHERE = "If it can be stopped and go on", "What is known of it", "Where to"


def submit(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments, after --.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What it is called; no other job may be, while it lives.")],
    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="What it asks for.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it saves; makes it elastic.", rich_help_panel=_ELASTIC),
    ] = None,
    least: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Never fewer GPUs; 1.", rich_help_panel=_ELASTIC)
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Never more. Default: as far as helps.", rich_help_panel=_ELASTIC),
    ] = None,
    steps: Annotated[
        float | None, typer.Option(metavar="N", help="Steps that it takes.", rich_help_panel=_KNOWN)
    ] = None,
    frontier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FROM",
            help="Its time and energy by clock: run:ID, recur:JOB, or a plan's file; repeatable.",
            rich_help_panel=_KNOWN,
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(metavar="WORD", help="Your jobs with the same one learn alike.", rich_help_panel=_KNOWN),
    ] = "",
    batch: Annotated[
        int | None, typer.Option(metavar="SIZE", min=1, help="Its global batch size.", rich_help_panel=_KNOWN)
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="6h", help="When it should be done, from now.", rich_help_panel=_KNOWN)
    ] = None,
    weight: Annotated[
        float,
        typer.Option(metavar="1.0", help="What its time counts; 1 at most by default.", rich_help_panel=_KNOWN),
    ] = 1.0,
    limit: Annotated[
        str | None, typer.Option(metavar="2d", help="It is ended after so long a run.", rich_help_panel=_KNOWN)
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="slurm|sim", help="Default: slurm where there is an sbatch.", rich_help_panel=_WHERE),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm's; its default one.", rich_help_panel=_WHERE)
    ] = None,
    server: Server = None,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """Hand a job in; the scheduler starts it, sets its clocks, resizes it.

      joulewise cluster submit --name night-7 --gpus 8 -- python train.py
      joulewise cluster submit --name night-8 --gpus 8 --checkpoint ckpt \\
          --least 2 --most 16 --steps 10000 -- python train.py

    Without --checkpoint it is rigid: it gets its GPUs and clocks, and is
    stopped only where a power cap leaves no other way, losing its work.
    On Slurm this is an sbatch of your own; it works with the scheduler down.
    """
    on_slurm = _on_slurm(engine)
    if not on_slurm and partition is not None:
        raise BadSpec("--partition is Slurm's; leave it out, or say --engine slurm")
    order = ordered(
        name,
        command,
        gpus,
        checkpoint=checkpoint,
        least=least,
        most=most,
        steps=steps,
        brought=_brought(frontier or (), steps),
        workload=workload,
        batch=batch,
        deadline_s=None if deadline is None else seconds("--deadline", deadline),
        weight=weight,
        limit_s=None if limit is None else seconds("--limit", limit),
    )
    if on_slurm:
        from joulewise.cluster.engines.slurm import SlurmEngine

        id_ = SlurmEngine(partition=partition).submit(order)
        where = f"Slurm has it as job {id_}, held until the scheduler starts it"
    else:
        client = scheduler(server, token_file)
        id_ = client.submit(order).id
        where = f"the scheduler at {client.url} has it as {id_}"
    typer.echo(json.dumps({"job": name, "id": id_, "engine": "slurm" if on_slurm else "sim"}) if as_json else id_)
    if weight > 1:
        say(ctx, _weighs(weight, name, on_slurm=on_slurm))
    say(ctx, f"{where}; 'joulewise cluster explain {name}' says how it fares")


def cancel(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name.", show_default=False)],
    server: Server = None,
    token_file: Token = None,
    as_json: AsJson = False,
) -> None:
    """End a job for good, whether it runs or waits.

      joulewise cluster cancel night-7

    On Slurm its user may as well say scancel.
    """
    scheduler(server, token_file).cancel(job)
    if as_json:
        typer.echo(json.dumps({"cancelled": job}))
    else:
        say(ctx, f"{job} has been told to end")


def ordered(
    name: str,
    command: Sequence[str],
    gpus: int,
    *,
    checkpoint: Path | None,
    least: int | None,
    most: int | None,
    steps: float | None,
    brought: Mapping[str, Any] | None,
    workload: str,
    batch: int | None,
    deadline_s: float | None,
    weight: float,
    limit_s: float | None,
) -> Order:
    """An order out of the flags. BadSpec for what contradicts itself. ``deadline_s`` is from now."""
    if checkpoint is None and (least is not None or most is not None):
        raise BadSpec("--least and --most are for a job that can be stopped and go on; name its --checkpoint folder")
    least_gpus = 1 if least is None else least
    if least_gpus > gpus:
        raise BadSpec(f"--least {least_gpus} is more than --gpus {gpus}; ask for at least as many")
    if most is not None and most < gpus:
        raise BadSpec(f"--most {most} is fewer than --gpus {gpus}; ask for at most as many")
    if steps is not None and not 0 < steps < 1e15:
        raise BadSpec(f"--steps {steps:g} makes no sense; give how many steps the whole training takes")
    if not 0 < weight <= 1e6:
        raise BadSpec(f"--weight {weight:g} makes no sense; 1 is usual, 2 counts twice")
    now_s = time.time()
    order = Order(
        name,
        tuple(command),
        gpus,
        submitted_s=now_s,
        checkpoint=None if checkpoint is None else str(checkpoint.absolute()),
        least_gpus=least_gpus,
        most_gpus=most,
        work=steps,
        brought=brought,
        workload=workload,
        batch=batch,
        deadline_s=None if deadline_s is None else now_s + deadline_s,
        weight=weight,
        directory=str(Path.cwd()),
        limit_s=limit_s,
    )
    orders.check(order)
    if brought is not None:
        from joulewise.cluster.brought import refuse_unfit

        refuse_unfit(order)
    return order


def _weighs(weight: float, name: str, *, on_slurm: bool) -> str:
    """What a weight above the usual counts, as far as it can be known here: the scheduler has the last word."""
    if on_slurm:
        with suppress(BadSpec):
            site = fairness.load()
            # An account or a QOS is known to Slurm only once the job is there.
            if not (site.accounts or site.qos) and (said := site.clipped(weight, user_name(os.geteuid()))):
                return said
    return f"a weight above 1 counts as far as the site allows; 'joulewise cluster explain {name}' says how far"


def _on_slurm(engine: str | None) -> bool:
    if engine not in (None, "slurm", "sim"):
        raise BadSpec(f"--engine {engine!r}: there are slurm and sim")
    return engine == "slurm" if engine is not None else shutil.which("sbatch", path=os.environ.get("PATH")) is not None


def _brought(sources: Sequence[str], steps: float | None) -> Mapping[str, Any] | None:
    """What ``--frontier`` names, as an order carries it. BadSpec where it is not there or says something else."""
    if not sources:
        return None
    load_numpy()
    from joulewise.cluster import brought, brought_sources

    return brought.joined(*(brought_sources.read(source, steps=steps) for source in sources))
