"""``joulewise recur``: a training that returns every night, and gets cheaper while it does.

``run`` is one recurrence: it asks for a batch size, runs the command with it, stops it where it cannot win any more,
and tells what it cost. The rest look at what has been learnt.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Annotated

import typer

from joulewise.cli import outputs, recur_look, recur_terms, say, talk
from joulewise.cli.child import look_for, signals_held
from joulewise.cli.gpus import HELP, opened
from joulewise.cli.help import VerbFamily
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.recur_desk import DatabaseFlag, ServerFlag, TokenFlag, opened_desk
from joulewise.cli.recur_pattern import Patterns
from joulewise.cli.run import a_shells_exit_code
from joulewise.core.errors import BadSpec
from joulewise.core.series import Recurring

app = VerbFamily(
    help="Learn the best batch size and power setting of a training that returns.\n\n"
    "  joulewise recur run --job nightly --batch-sizes 8..256 --default 32 \\\n"
    "      --target 'val_acc>=0.84' --max-epochs 10 \\\n"
    "      -- python train.py --batch-size {batch_size}\n"
    "  joulewise recur status nightly",
)
_AIM, _COMMAND = "What for", "The command"


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments, after --.")],
    job: Annotated[str, typer.Option(metavar="NAME", help="What the job is called, this time and the next.")],
    batch_sizes: Annotated[str, typer.Option(metavar="8..256", help="To choose from: 8..256 (doubling) or 8,16,32.")],
    default: Annotated[int, typer.Option(metavar="SIZE", help="What runs when nobody tunes.")],
    target: Annotated[str, typer.Option(metavar="'val_acc>=0.84'", help="When a run has done its work.")],
    max_epochs: Annotated[int, typer.Option(metavar="N", help="A run that needs more has failed.")],
    eta: Annotated[
        float | None, typer.Option(metavar="0…1", help="Weight of energy against time; 0.5.", rich_help_panel=_AIM)
    ] = None,
    objective: Annotated[
        str | None, typer.Option(metavar="WHAT", help="zeus[:ETA], energy or money.", rich_help_panel=_AIM)
    ] = None,
    max_slowdown: Annotated[
        str | None,
        typer.Option(metavar="10%", help="Least energy, and so much slower at most.", rich_help_panel=_AIM),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="2h", help="Least energy, and done by then.", rich_help_panel=_AIM)
    ] = None,
    gpu_hour_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of one GPU for one hour.", rich_help_panel=_AIM)
    ] = None,
    kwh_price: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of one kWh of electricity.", rich_help_panel=_AIM)
    ] = None,
    host_watts: Annotated[
        float | None, typer.Option(metavar="W", help="What the node draws besides its GPUs.", rich_help_panel=_AIM)
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="At the default batch size, for {learning_rate}.", rich_help_panel=_COMMAND),
    ] = None,
    lr_rule: Annotated[
        str | None,
        typer.Option(
            metavar="RULE", help="sqrt for Adam and its kind, linear for SGD, none.", rich_help_panel=_COMMAND
        ),
    ] = None,
    metric_pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Finds metrics in what it prints.", rich_help_panel=_COMMAND),
    ] = None,
    stop_at_target: Annotated[
        bool,
        typer.Option(
            "--stop-at-target/--no-stop-at-target", help="Stop it when it is there.", rich_help_panel=_COMMAND
        ),
    ] = True,
    grace: Annotated[
        str, typer.Option(metavar="60s", help="To end in order, before it is killed.", rich_help_panel=_COMMAND)
    ] = "60s",
    gpu: Annotated[str | None, typer.Option(metavar="SPEC", help=HELP)] = None,
    speed: Annotated[
        float, typer.Option(metavar="K", help="With --gpu sim:…: seconds that it lives per second.")
    ] = 1.0,
    tune: Annotated[bool, typer.Option("--tune/--no-tune", help="Tune clocks and limit within the run, too.")] = True,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the draws within a run; without it one is drawn.")
    ] = None,
    recurrence: Annotated[
        str | None, typer.Option(metavar="ID", help="What this time is called. Default: the time.")
    ] = None,
    database: DatabaseFlag = None,
    server: ServerFlag = None,
    token_file: TokenFlag = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - is stdout, its last line.")
    ] = None,
) -> None:
    """One recurrence of a job: choose a batch size, run, measure, learn.

    The command tells its metrics once an epoch: joulewise.metric(epoch=3, val_acc=0.81) in the script, or
    --metric-pattern on what it prints. It is stopped (joulewise.should_stop(), else SIGTERM) where it has reached its
    target or cannot win any more. A trial that did not get there is followed by a safe one. {batch_size},
    {learning_rate} and {epochs} are filled in; a brace that is meant is written twice.

      joulewise recur run --job nightly --batch-sizes 8..256 --default 32 \\
          --target 'val_acc>=0.84' --max-epochs 10 --lr 0.001 \\
          -- python train.py --batch-size {batch_size} --lr {learning_rate}
    """
    wanted = recur_terms.Target.of(target)
    aim, within = recur_terms.objective(
        objective,
        max_slowdown,
        deadline,
        eta=eta,
        gpu_hour_price=gpu_hour_price,
        kwh_price=kwh_price,
        host_watts=host_watts,
    )
    rate = recur_terms.Rate.of(lr, lr_rule, default)
    recur_terms.refuse_unfit(command, rate)
    patterns = tuple(metric_pattern or ())
    Patterns(patterns)
    try:
        known = Recurring(job, recur_terms.batch_sizes(batch_sizes), default, max_epochs, str(wanted), aim)
    except ValueError as error:
        raise BadSpec(str(error)) from None
    grace_s = recur_terms.seconds("--grace", grace)
    name = recurrence or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"  # two may begin at once
    with ExitStack() as stack:
        # First of all: whatever starts threads below must inherit what is held.
        mask = stack.enter_context(signals_held())
        with a_shells_exit_code(command[0]):
            look_for(command[0])
        file = outputs.JsonFile(json) if json is not None else None
        outputs.refuse_words_of(command, {"--json": file.path if file is not None else None})
        load_numpy()
        desk = stack.enter_context(opened_desk(job, database, server, token_file))
        desk.register(known)
        found = stack.enter_context(opened(gpu, speed=speed))
        from joulewise.cli import recur_loop, recur_words
        from joulewise.cli.recur_trial import Terms

        terms = Terms(
            known,
            wanted,
            found,
            mask,
            within if tune else None,
            patterns=patterns,
            grace_s=grace_s,
            stop_at_target=stop_at_target,
            seed=seed,
            database=database,
        )
        platform = recur_loop.platform_of(found.gpus)
        with a_shells_exit_code(command[0]):
            done = recur_loop.recurred(name, command, rate, terms, desk, platform, lambda line: say(ctx, line))
        recur_words.tell(done, known, desk, platform, file, quiet=talk(ctx).quiet, virtual=found.virtual)
    raise typer.Exit(done.exit_code)


app.command("status")(recur_look.status)
app.command("history")(recur_look.history)
app.command("frontier")(recur_look.frontier)
app.command("plot")(recur_look.plot)
app.command("list")(recur_look.jobs)
