"""``joulewise plan xray``: what a plan could save, said from profiler traces alone. Needs no rights and no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import say
from joulewise.cli.one_thread import load_numpy
from joulewise.cli.plan_drawings import Plot, Report, check_drawings
from joulewise.cli.plan_query import AsJson

_LARGE = 64 << 20  # bytes: some seconds to read


def xray(
    ctx: typer.Context,
    traces: Annotated[
        list[Path], typer.Argument(metavar="TRACE…", help="What torch.profiler wrote, .json or .json.gz; one a rank.")
    ],
    gpu: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Believe in this GPU. Default: the one the trace names.")
    ] = None,
    sm_mhz: Annotated[float | None, typer.Option(metavar="MHZ", help="Mean SM clock seen in that job.")] = None,
    power_w: Annotated[float | None, typer.Option(metavar="W", help="Mean power of one GPU seen in that job.")] = None,
    max_slowdown: Annotated[
        list[str] | None, typer.Option(metavar="1%", help="Slower by so much at most; repeatable. Default: 0, 1, 3 %.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draws.", min=0)] = 0,
    report: Report = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """What a plan could save in a training job, and where, from its traces.

    Reads what torch.profiler wrote of some training steps (FSDP, tensor
    parallel, any), finds who waits for whom, and says what lower clocks could
    save at 0, 1 and 3 % slowdown. A trace holds neither clock nor power: both
    are believed by the laws of the GPU model, and the interval says how
    little is known. No GPU is touched. A trace without a GPU is taken as if
    its operators were kernels.

      joulewise plan xray rank0.json.gz rank1.json.gz --report xray.html
      joulewise plan xray trace.json --gpu h200 --power-w 610 --plot xray.png
    """
    load_numpy()
    from joulewise.cli import plan_xray_page, plan_xray_plot, plan_xray_views
    from joulewise.cli.objectives import slowdown
    from joulewise.plan import trace
    from joulewise.plan.xray import SLOWDOWNS, look

    check_drawings({f"TRACE {path}": path for path in traces}, report, plot)
    slowdowns = sorted({slowdown(each) for each in max_slowdown}) if max_slowdown else SLOWDOWNS
    read = []
    for path in traces:
        if path.is_file() and path.stat().st_size > _LARGE:
            say(ctx, f"reading {path}, {path.stat().st_size / (1 << 20):.0f} MiB")
        read.append(trace.read(path))
    seen: dict[str, Any] = {"sm_mhz": sm_mhz, "power_w": power_w}
    found = look(read, gpu=gpu, **seen, slowdowns=slowdowns, seed=seed, progress=lambda words: say(ctx, words))
    if report is not None:
        report.write_text(plan_xray_page.page(found), encoding="utf-8")
    if plot is not None:
        plan_xray_plot.draw(plot, found)
    if as_json:
        print(plan_xray_views.dumped(found))
        return
    plan_xray_views.print_page(found)
