"""``joulewise cluster up``: the scheduler of a live cluster, in the foreground, with its server.

Started again after a kill it goes on where it was: all that must not be lost is in the journal and in the engine.
"""

from __future__ import annotations

import grp
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import INTERRUPTED, cluster_flags, say, talk
from joulewise.cli.cluster_amounts import energy_budget as read_energy_budget
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.plan_amounts import watts
from joulewise.cli.recur_desk import DatabaseFlag
from joulewise.cli.recur_terms import seconds
from joulewise.cli.serve import known_tokens
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec
from joulewise.serve import tokens
from joulewise.serve.cluster_messages import PORT, STARTS
from joulewise.serve.local_paths import cluster_socket

if TYPE_CHECKING:
    import socket as sockets

    from joulewise.cli.cluster_live_setup import Plant
    from joulewise.cluster.fairness import Weights
    from joulewise.cluster.scheduler import Scheduler
    from joulewise.cluster.scheduler_status import Status
    from joulewise.cluster.state import Costs
    from joulewise.core.event import Event

_SPENT, _SIM, _ASKS = "What it may spend", "With --engine sim", "Who may ask"
_PASS_S = 0.25
"""Wall seconds of the longest pass of a simulated cluster."""


def up(
    ctx: typer.Context,
    engine: Annotated[str, typer.Option(metavar="slurm|sim", help="Where jobs run; sim: nowhere, to try it out.")],
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Of Slurm. Default: all nodes.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of the nodes: a100-sxm; TYPE=MODEL,…; with sim 'sim:a100-sxm*32'."),
    ] = None,
    host_watts: cluster_flags.HostWatts = None,
    power_off: cluster_flags.PowerOff = True,
    warm: cluster_flags.Warm = 1,
    policy: Annotated[str, typer.Option(metavar="NAME", help="As 'cluster simulate' names it.")] = "priced",
    grace: Annotated[str, typer.Option(metavar="60s", help="For a script to save, before it is stopped.")] = "60s",
    round_every: Annotated[
        str | None, typer.Option("--round", metavar="10s", help="Between two decisions, at least.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="4s", help="From a start until a job works. Default: more with more GPUs.")
    ] = None,
    restart: Annotated[str, typer.Option(metavar="27s", help="What a stop and another start cost beyond.")] = "27s",
    power_cap: Annotated[
        str | None,
        typer.Option(metavar="20kW", help="Until 'cluster cap' says another.", rich_help_panel=_SPENT),
    ] = None,
    energy_budget: Annotated[
        str | None,
        typer.Option(metavar="500kWh/day", help="Until 'cluster budget' says another.", rich_help_panel=_SPENT),
    ] = None,
    tariff: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="g/kWh or EUR/MWh by the hour; weighs the budget.", rich_help_panel=_SPENT),
    ] = None,
    cap_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='A signal to follow: {"cap_w": 20000, …}.', rich_help_panel=_SPENT),
    ] = None,
    cap_safe: Annotated[
        str | None, typer.Option(metavar="15kW", help="While that signal is lost.", rich_help_panel=_SPENT)
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Users' weights; /etc/joulewise/cluster.toml."),
    ] = None,
    database: DatabaseFlag = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            readable=False,
            help="Unix socket for this machine's users. Default: /run/joulewise/cluster.sock for root, else yours.",
            rich_help_panel=_ASKS,
        ),
    ] = None,
    operators_group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its members may do there what root may.", rich_help_panel=_ASKS),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Where it listens for tokens.", rich_help_panel=_ASKS)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="PORT", min=0, max=65535, help="0 takes any that is free.", rich_help_panel=_ASKS),
    ] = PORT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            readable=False,
            help="The tokens' hashes. Default: as of 'serve'.",
            rich_help_panel=_ASKS,
        ),
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="GPUs of a node; 8.", rich_help_panel=_SIM)
    ] = None,
    speed: Annotated[
        float, typer.Option(metavar="K", help="Its seconds in one of yours.", rich_help_panel=_SIM)
    ] = 60.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of what jobs really do.", rich_help_panel=_SIM)] = 0,
) -> None:
    """Share the GPUs and joules of a cluster among its jobs, until SIGTERM.

      joulewise cluster up --engine sim --power-cap 14kW
      joulewise cluster up --engine slurm --partition train --gpu a100-sxm \\
          --power-cap 20kW --energy-budget 400kWh/day --host 0.0.0.0

    Jobs, and what nodes are told, outlive it: kill it and start it again. One started elsewhere takes over.
    """
    if engine not in ("slurm", "sim"):
        raise BadSpec(f"--engine {engine!r}: there are slurm and sim")
    if not 0 < speed <= 10_000:
        raise BadSpec(f"--speed {speed:g} is outside 0 to 10000; 60 makes an hour a minute")
    cap_w = None if power_cap is None else watts("--power-cap", power_cap)
    safe_w = None if cap_safe is None else watts("--cap-safe", cap_safe)
    if safe_w is not None and cap_file is None:
        raise BadSpec("--cap-safe is for a signal that is lost; name its --cap-file")
    spent = None if energy_budget is None else read_energy_budget("--energy-budget", energy_budget)
    known = known_tokens(token_file)
    if known is None and not tokens.is_loopback(host):
        raise BadSpec(
            f"--host {host}: nobody can ask there without a token; make some with 'joulewise serve token "
            "--scope write' (operators) and '--scope agent --name NODE' (each node)"
        )
    guard = tokens.Guard(known, users=True, operators_gid=_group(operators_group))
    path = cluster_socket() if socket is None else socket.absolute()
    # A cluster of Slurm's has many users; the kernel says who each of them is, and the folder who gets there.
    mode = 0o666 if os.geteuid() == 0 or engine == "slurm" else 0o600
    grace_s = seconds("--grace", grace)
    round_s = None if round_every is None else seconds("--round", round_every)
    start_s = None if start is None else seconds("--start", start)
    restart_s = seconds("--restart", restart)
    load_numpy()
    from joulewise.cli import cluster_live_setup as setup
    from joulewise.cluster import fairness
    from joulewise.serve import listen

    weights = fairness.load(site)
    _refuse_without_server()

    plant: AbstractContextManager[Plant]
    if engine == "sim":
        _refuse_slurms(partition)
        plant = setup.simulated(gpu, gpus_per_node, host_watts, database, speed=speed, seed=seed)
    else:
        plant = setup.on_slurm(partition, gpu, host_watts, database, grace_s=grace_s)
    at = listen.bound_at(path, mode, makes_folder=socket is None)
    with at as here, listen.bound(host, port) as listening, plant as there:
        # Only now: another scheduler at this address must not be fenced by one that cannot serve.
        weights, left_aside = weights.enforced(there.enforces)
        for line in filter(None, (*there.says, left_aside)):
            say(ctx, line)
        tell = (lambda _: None) if talk(ctx).quiet else _tell
        scheduler = _scheduler(
            there,
            policy,
            warm if power_off else None,
            tariff,
            cap_file,
            safe_w,
            tell,
            _costs(start_s, restart_s),
            round_s,
            weights,
        )
        _begin(ctx, scheduler, cap_w, spent)
        flag = "" if socket is None else f" --server unix:{path}"
        says = f"scheduling on unix:{path} and, with tokens, {listen.url_of(listening)}"
        say_ready = partial(say, ctx, f"{says}; 'joulewise cluster status{flag}' shows it")
        _serve(ctx, scheduler, there, guard, (here, listening), say_ready)


def _scheduler(
    there: Plant,
    policy: str,
    warm: int | None,
    tariff: Path | None,
    cap_file: Path | None,
    safe_w: float | None,
    tell: Callable[[Event], None],
    costs: Costs,
    round_s: float | None,
    weights: Weights,
) -> Scheduler:
    from joulewise.cli.cluster_policies import named
    from joulewise.cluster.cap_feed import CapFeed
    from joulewise.cluster.limits import Limits
    from joulewise.cluster.nodes import NodePower
    from joulewise.cluster.purse import Purse
    from joulewise.cluster.round import Round
    from joulewise.cluster.scheduler import Scheduler
    from joulewise.cluster.tariff import read_tariff
    from joulewise.report.cluster_news import Overheard

    feed = None if cap_file is None else CapFeed(cap_file, safe_w=safe_w)
    if feed is not None:
        feed.look(there.now(), None)  # one that is silent from the start, with no safe cap, is refused here
    period_s = max(10.0, there.pace) if round_s is None else round_s
    purse = Purse(weight=None if tariff is None else read_tariff(tariff), round_s=period_s)
    nodes = None if warm is None else NodePower(warm=warm)
    return Scheduler(
        there.engine,
        Round(named(policy).make(), nodes=nodes, purse=purse, calm=True),
        kinds=there.kinds,
        most_gpu_w=there.most_gpu_w,
        journal=Overheard(there.journal, tell),
        believe=there.believe(),
        plain=there.believe_plain(),
        weights=weights,
        now=there.now,
        agents=there.desk,
        limits=Limits(idle_w=there.idle_w(sleeps=nodes is not None), most_w=there.most_w, feed=feed),
        purse=purse,
        costs=costs,
        period_s=period_s,
        watch_s=max(1.0, _PASS_S * there.pace),
        progress=there.progress,
    )


def _costs(start_s: float | None, restart_s: float) -> Costs:
    from joulewise.cluster.state import Costs

    if start_s is None:
        return Costs(restart_s=restart_s)
    return Costs(start_s, 0.0, restart_s)


def _begin(ctx: typer.Context, scheduler: Scheduler, cap_w: float | None, spent: tuple[float, float] | None) -> None:
    """Take over, look once, and say the limits of the flags, unless an operator has said others since."""
    # Limits that cannot be kept are refused before another scheduler is fenced for them.
    if cap_w is not None:
        scheduler.limits.cap(0.0, cap_w)
    if spent is not None:
        scheduler.limits.budget(0.0, *spent)
    scheduler.lead()
    scheduler.look()
    said = {event.what for event in scheduler.book.limits if event.facts.get("source", "operator") == "operator"}
    for what, flag, given in (("cap", "--power-cap", cap_w), ("budget", "--energy-budget", spent)):
        if given is not None and what in said:
            say(ctx, f"{flag} is left aside: what was said last holds; 'joulewise cluster {what} …' changes it")
    started_by = Caller(uid=os.geteuid(), operator=True)
    if cap_w is not None and "cap" not in said:
        scheduler.cap(cap_w, by=started_by)
    if spent is not None and "budget" not in said:
        scheduler.budget(*spent, by=started_by)


def _serve(
    ctx: typer.Context,
    scheduler: Scheduler,
    there: Plant,
    guard: tokens.Guard,
    listening: tuple[sockets.socket, ...],
    say_ready: Callable[[], None],
) -> None:
    # All that a pass needs is loaded before anybody can connect: later there may be no descriptor for it.
    from joulewise.cli.cluster_live_table import troubles
    from joulewise.serve import listen
    from joulewise.serve.cluster import make_cluster_app

    app = make_cluster_app(scheduler, there.desk, guard, takes_jobs=not there.lasts, now=there.now)
    stop = threading.Event()
    struck: list[int] = []

    def end(number: int, _: object) -> None:
        struck.append(number)
        stop.set()
        # A second one does not wait: jobs and journal can stand it.
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with listen.serving(app, *listening):
        say_ready()
        _run(ctx, scheduler, stop, troubles)
    left = sum(1 for job in scheduler.status().jobs if job.place)
    if there.lasts:
        say(ctx, f"stopped; jobs that run ({left}) go on, and nodes keep what they were told: start it again any time")
    else:
        say(ctx, "stopped; the simulated cluster ends with it")
    if signal.SIGINT in struck:
        raise typer.Exit(INTERRUPTED)


def _run(
    ctx: typer.Context, scheduler: Scheduler, stop: threading.Event, troubles: Callable[[Status], Iterable[str]]
) -> None:
    """Pass after pass; what goes wrong is said when it begins, and when it is over."""
    told: frozenset[str] = frozenset()
    while not stop.is_set():
        wait_s = scheduler.look()
        status = scheduler.status()
        now = frozenset(troubles(status))
        for line in sorted(now - told):
            say(ctx, line)
        for line in sorted(told - now):
            say(ctx, f"no longer so: {line}")
        told = now
        if status.engine:
            stop.wait(min(wait_s, 1.0))


def _tell(event: Event) -> None:
    from joulewise.report.cluster_news import line

    said = line(event)
    if said is not None:
        with suppress(OSError):
            print(said, file=sys.stderr, flush=True)


def _refuse_without_server() -> None:
    """MissingPart before anything is taken over, where the server's packages are not installed."""
    from joulewise.serve import listen

    try:
        import uvicorn  # noqa: F401

        from joulewise.serve import cluster  # noqa: F401
    except ImportError as error:
        raise listen.missing(error, STARTS) from error


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadSpec(f"--operators-group {name!r} is no group of this machine; see 'getent group'") from None


def _refuse_slurms(partition: str | None) -> None:
    if partition is not None:
        raise BadSpec("--partition is Slurm's; leave it out with --engine sim")
