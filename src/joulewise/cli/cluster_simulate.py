"""``joulewise cluster simulate``: a trace on a cluster that is not there, under one policy or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import INTERRUPTED, complain, outputs, talk
from joulewise.cli import cluster_flags as flags

if TYPE_CHECKING:
    from joulewise.cli.cluster_decisions import DecisionsFile
    from joulewise.cli.cluster_policies import Policy
    from joulewise.cli.cluster_scene import Result, Scene


def simulate(
    ctx: typer.Context,
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Jobs as CSV.", show_default=False)],
    gpu: flags.Gpu,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Repeat it to compare; priced.", show_default=False)
    ] = None,
    energy_budget: flags.EnergyBudget = None,
    power_cap: flags.PowerCap = None,
    tariff: flags.Tariff = None,
    fairness: flags.Fairness = 0.0,
    load: flags.Load = None,
    jobs: flags.Jobs = None,
    tenant: flags.Tenant = None,
    size_error: flags.SizeError = 0.5,
    seed: flags.Seed = 0,
    gpus_per_node: flags.PerNode = None,
    host_watts: flags.HostWatts = None,
    power_off: flags.PowerOff = True,
    warm: flags.Warm = 1,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="All of it as a page.")] = None,
    decisions: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write every round, for 'explain'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON, every number in full.")] = False,
) -> None:
    """Completion times and energy of a trace's jobs under each policy.

      joulewise cluster simulate trace.csv --gpu 'sim:a100*64' \\
          --policy priced --policy tiresias --energy-budget 900kWh/day

    TRACE is Philly's, ElasticFlow's or Pollux', or has our columns (.gz too):

      name,submitted_s,gpus,duration_s,model,deadline_s,tenant,weight
      night-7,0,8,5400,bert,,vision,1

    Policies: priced (ours), powerflow, fifo, srtf, tiresias, optimus, gandiva, pollux; the last six also NAME+zeus. A
    knob stands behind @: priced@30m (what a kWh is worth), powerflow@0.5 (least dJ/dE), tiresias@0.8 (clock).
    """
    from joulewise.report.plot import check

    outputs.refuse_one_for_two({"TRACE": trace, "--plot": plot, "--out": out, "--decisions": decisions})
    if plot is not None:
        check(plot)
    if out is not None:
        outputs.refuse_no_html("--out", out)
    for flag, path in (("--plot", plot), ("--out", out), ("--decisions", decisions)):
        if path is not None:
            outputs.refuse_unwritable(flag, path)
    scene = flags.scene(
        trace,
        gpu,
        gpus_per_node,
        host_watts,
        power_off,
        warm,
        load,
        jobs,
        tenant,
        size_error,
        seed,
        energy_budget,
        power_cap,
        tariff,
    )
    from joulewise.cli import cluster_page, cluster_plot, cluster_table
    from joulewise.cli.cluster_decisions import DecisionsFile
    from joulewise.cli.cluster_figures import figures
    from joulewise.cli.cluster_policies import flat_besides, several
    from joulewise.cli.plan_views import dumped, print_page

    policies = several(policy or ["priced"], fairness=fairness)
    if scene.tariff is not None and scene.limits.energy_j is not None:
        policies = flat_besides(policies)
    with ExitStack() as stack:
        book = (
            None if decisions is None else stack.enter_context(DecisionsFile(decisions, scene.jobs[0].job.submitted_s))
        )
        results, interrupted = _played(scene, policies, book, quiet=talk(ctx).quiet)
    found = figures(results, scene.limits, scene.tariff)
    if results and plot is not None:
        cluster_plot.draw(plot, scene, results, found)
    if results and out is not None:
        out.write_text(cluster_page.page(scene, results, found), encoding="utf-8")
    if as_json:
        print(dumped(cluster_table.as_json(scene, found, interrupted)))
    else:
        print_page(cluster_table.page(scene, found))
    if interrupted is not None:
        complain(interrupted)
        raise typer.Exit(INTERRUPTED)


def _played(
    scene: Scene, policies: list[Policy], book: DecisionsFile | None, *, quiet: bool
) -> tuple[list[Result], str | None]:
    """What came of each policy until somebody pressed Ctrl-C, and how far the one was that it struck."""
    from joulewise.cluster.round import Decision
    from joulewise.cluster.state import Snapshot
    from joulewise.core.units import format_duration, kwh_from_joules

    results: list[Result] = []
    ended, last = 0, (0.0, 0.0)
    now: Policy = policies[0]

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        nonlocal last
        last = (snapshot.now_s, snapshot.energy_j or 0.0)
        if book is not None:
            book.round(now, snapshot, decision)

    try:
        with _bar(quiet=quiet) as show:
            for now in policies:
                ended = 0

                def progress(done: int, of: int, name: str = now.name) -> None:
                    nonlocal ended
                    ended = done
                    show(name, done, of)

                progress(0, len(scene.jobs))
                results.append(scene.play(now, flat=now.flat, progress=progress, watch=watch))
                if book is not None:
                    book.end(now.name, results[-1].outcome)
    except KeyboardInterrupt:
        since_s = max(0.0, last[0] - scene.jobs[0].job.submitted_s)
        return results, (
            f"interrupted: {now.name} had got to {format_duration(since_s)} of the trace, "
            f"{ended} of {len(scene.jobs)} jobs ended, {kwh_from_joules(last[1]):.4g} kWh; only what was done is shown"
        )
    return results, None


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar a policy on stderr while the context lasts; nothing where nobody watches."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from joulewise.cli.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda name, done, of: None  # noqa: ARG005
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, object] = {}

        def show(name: str, done: int, of: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=of)
            bars.update(tasks[name], completed=done)  # type: ignore[arg-type]

        yield show
