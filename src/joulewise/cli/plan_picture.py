"""A plan as a picture in a file: the pipeline before and after, coloured by clock, and the frontier.

Needs the extra ``plot``; ``cli.plot.check`` says so before anything is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joulewise.core.units import format_energy, si_prefix
from joulewise.plan.plan import Plan, PlanPoint
from joulewise.report.plan_colours import Scale, hue
from joulewise.report.plan_words import about, headline, time
from joulewise.report.plot import FAINT, HUES, INK, STYLE

_EDGES = 600
"""Operations up to which each has an edge of its own; more of them would be all edge."""


def draw(path: Path, plan: Plan, point: PlanPoint) -> None:
    """Write the picture to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    scale = Scale(each.setting for options in plan.profile.options.values() for each in options)
    end_s = max(plan.baseline.time_s, point.time_s)
    height = max(1.1, 0.16 * plan.schedule.ranks + 0.5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 2 * height + 4.4), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
        before, after, frontier = figure.subplots(3, 1, height_ratios=(height, height, 2.6))
        for axes, shown, name in ((before, plan.baseline, "nothing set"), (after, point, "planned")):
            _pipeline(axes, plan, shown, scale)
            axes.set_xlim(0, end_s)
            axes.set_title(f"{name}: {time(shown)}, {format_energy(shown.energy_j)}", loc="left", fontsize=10, pad=4)
        after.set_xlabel("time (s)")
        colours = ListedColormap([hue(step / 255) for step in range(256)])
        bar = figure.colorbar(ScalarMappable(Normalize(scale.low, scale.high), colours), ax=[before, after], pad=0.01)
        bar.set_label("power limit (W)" if scale.knob == "power_limit_w" else "clock (MHz)")
        bar.outline.set_visible(False)
        _frontier(frontier, plan, point)
        figure.suptitle(headline(plan), x=0.01, ha="left", fontsize=12.5, fontweight="bold")
        frontier.annotate(
            about(plan),
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 6),
            textcoords="offset points",
            color="#616e7c",
            fontsize=8.5,
            parse_math=False,
        )
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def _pipeline(axes: Any, plan: Plan, point: PlanPoint, scale: Scale) -> None:
    steps = [step for row in plan.steps(point) for step in row]
    times = plan.times_s(point)
    ranks: dict[int, list[int]] = {}
    for at, operation in enumerate(plan.schedule.dag.operations):
        ranks.setdefault(operation.rank, []).append(at)
    edge = {"edgecolors": "white", "linewidth": 0.4} if len(steps) <= _EDGES else {"linewidth": 0}
    for rank, places in ranks.items():
        axes.broken_barh(
            [(times[at][0], times[at][1] - times[at][0]) for at in places],
            (rank - 0.42, 0.84),
            facecolors=[scale.colour(steps[at].setting) for at in places],
            **edge,
        )
    axes.set_ylim(plan.schedule.ranks - 0.4, -0.6)
    axes.set_yticks(range(plan.schedule.ranks) if plan.schedule.ranks <= 16 else range(0, plan.schedule.ranks, 4))
    axes.set_ylabel("rank")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _frontier(axes: Any, plan: Plan, point: PlanPoint) -> None:
    unit, prefix = si_prefix(plan.baseline.energy_j)
    bound = [(each.time_s, each.bound_j / unit) for each in plan.points if each.bound_j is not None]
    if bound:
        axes.plot(
            *zip(*bound, strict=True), color=FAINT, linewidth=1, linestyle=(0, (4, 3)), label="no plan can do better"
        )
    times = [each.time_s for each in plan.points]
    axes.plot(
        times,
        [each.energy_j / unit for each in plan.points],
        "o-",
        color=HUES[0],
        markersize=3.2,
        linewidth=1.2,
        label="plans",
    )
    axes.plot([plan.baseline.time_s], [plan.baseline.energy_j / unit], "s", color=HUES[1], label="nothing set")
    axes.plot(
        [point.time_s], [point.energy_j / unit], "o", color=INK, markersize=7, fillstyle="none", label="shown above"
    )
    axes.set_xlabel("iteration time (s)")
    axes.set_ylabel(f"energy of all GPUs ({prefix}J)")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5)
