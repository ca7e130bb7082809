"""``joulewise cluster``: GPUs and joules shared among the jobs of a cluster, a real one or a simulated one.

One file a verb: ``up`` schedules a live cluster, ``submit``, ``status``, ``cap``, ``budget``, ``explain`` and
``cancel`` ask it, ``agent`` runs on its nodes, ``report`` tells what it did; ``simulate`` plays a trace under policies.
"""

from __future__ import annotations

from joulewise.cli import (
    cluster_agent,
    cluster_cap,
    cluster_explain,
    cluster_report,
    cluster_simulate,
    cluster_status,
    cluster_submit,
    cluster_up,
)
from joulewise.cli.help import VerbFamily

app = VerbFamily(
    help="Share the GPUs and joules of a cluster among its jobs.\n\n"
    "  joulewise cluster up --engine sim --gpu 'sim:a100-sxm*32'\n"
    "  joulewise cluster submit --name night-7 --gpus 8 -- python train.py\n"
    "  joulewise cluster cap 20kW\n"
    "  joulewise cluster simulate trace.csv --gpu 'sim:a100*64' --policy tiresias",
)

app.command("up")(cluster_up.up)
app.command("submit", context_settings={"allow_interspersed_args": False})(cluster_submit.submit)
app.command("status")(cluster_status.status)
app.command("cap")(cluster_cap.cap)
app.command("budget")(cluster_cap.budget)
app.command("explain")(cluster_explain.explain)
app.command("cancel")(cluster_submit.cancel)
app.command("report")(cluster_report.report)
app.command("agent")(cluster_agent.agent)
app.command("simulate")(cluster_simulate.simulate)
