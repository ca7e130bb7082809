"""``joulewise plan show``: what a plan does, as a table, as a picture in the terminal, as a page and as a file."""

from __future__ import annotations

from typing import Annotated

import typer

from joulewise.cli.plan_amounts import seconds
from joulewise.cli.plan_drawings import Plot, Report, check_drawings
from joulewise.cli.plan_query import AsJson, PlanFile


def show(
    plan: PlanFile,
    deadline: Annotated[
        str | None, typer.Option(metavar="9.5s", help="Show the plan for this time. Default: as fast as nothing set.")
    ] = None,
    report: Report = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """What a plan saves, and the pipeline before and after, coloured by clock.

    joulewise plan show plan.json
    joulewise plan show plan.json --deadline 9.5s --report plan.html
    joulewise plan show plan.json --plot plan.png
    """
    from joulewise.cli import plan_page, plan_picture, plan_views
    from joulewise.plan import plan_files
    from joulewise.report import plan_words

    check_drawings({"PLAN": plan}, report, plot)
    read = plan_files.read(plan)
    wanted_s = None if deadline is None else seconds("--deadline", deadline)
    point = plan_words.as_fast(read) if wanted_s is None else read.by_deadline(wanted_s)
    if report is not None:
        report.write_text(plan_page.page(read, point), encoding="utf-8")
    if plot is not None:
        plan_picture.draw(plot, read, point)
    if as_json:
        print(plan_views.dumped(plan_views.summary_json(read) | {"shown": plan_views.point_json(read, point)}))
        return
    plan_views.print_page(plan_views.whole(read, point))
