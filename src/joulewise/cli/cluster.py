"""``joulewise cluster``: GPUs and joules shared among the jobs of a cluster, so far of a simulated one.

One file a verb: ``simulate`` plays a trace under policies, ``explain`` says why a job runs as it does.
"""

from __future__ import annotations

import typer

from joulewise.cli import cluster_explain, cluster_simulate

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    help="Share the GPUs and joules of a cluster among its jobs (simulated).\n\n"
    "  joulewise cluster simulate trace.csv --gpu 'sim:a100*64' --policy priced --policy tiresias\n\n"
    "  joulewise cluster explain night-7 --trace trace.csv --gpu 'sim:a100*64' --at 2h",
)

app.command("simulate")(cluster_simulate.simulate)
app.command("explain")(cluster_explain.explain)
