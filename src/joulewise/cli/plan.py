"""``joulewise plan``: which clock every operation of a pipeline runs at, so that nobody waits at full power.

One file a verb: ``solve`` makes a plan, ``show`` and ``query`` look at it, ``check`` says whether it is for here,
``xray`` what a plan could save, from traces, ``profile`` measures the stages of a job, and ``partitions`` looks at
measured ways to overlap communication with computing.
"""

from __future__ import annotations

from joulewise.cli import plan_check, plan_partitions, plan_profile, plan_query, plan_show, plan_solve, plan_xray
from joulewise.cli.help import VerbFamily

app = VerbFamily(
    help="Plan the clocks of one training iteration: less energy at the same speed.\n\n"
    "  joulewise plan solve profile.csv --schedule 1f1b --stages 8 \\\n"
    "      --microbatches 96 --blocking-w 84 -o plan.json\n"
    "  joulewise plan show plan.json --report plan.html",
)

app.command("solve")(plan_solve.solve)
app.command("show")(plan_show.show)
app.command("query")(plan_query.query)
app.command("check")(plan_check.check)
app.command("xray")(plan_xray.xray)
app.command("partitions")(plan_partitions.partitions)
app.command("profile", context_settings={"allow_interspersed_args": False})(plan_profile.profile)
