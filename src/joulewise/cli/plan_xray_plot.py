"""A picture of an x-ray: one step as it ran, the same coloured by the clock it could have, and what that saves.

Needs the extra ``plot``; ``cli.plot.check`` says so before anything is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joulewise.cli.plan_xray_views import LETTERS, PLAN_NAMES, WORDS, about, headline, saving, share, slowdowns
from joulewise.plan.xray import PLANS, Findings
from joulewise.plan.xray_piece import RUN
from joulewise.plan.xray_where import Bar
from joulewise.report.plan_colours import hue
from joulewise.report.plot import FAINT, HUES, STYLE

LOWEST = 0.5
"""The clock at the cold end of the colours, against the one seen."""
_MOST_LANES = 16


def draw(path: Path, found: Findings) -> None:
    """Write the picture to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    lanes = sorted({bar.lane for bar in found.bars})[:_MOST_LANES]
    height = max(1.0, 0.42 * len(lanes) + 0.5)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 2 * height + 3.8), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
        seen, clocks, saved = figure.subplots(3, 1, height_ratios=(height, height, 2.4))
        _lanes(seen, found, lanes, lambda bar: LETTERS[bar.kind][1])
        _lanes(clocks, found, lanes, lambda bar: hue((bar.clock - LOWEST) / (1.0 - LOWEST)))
        kinds = [kind for kind in LETTERS if any(bar.kind == kind for bar in found.bars)]
        handles = [Patch(color=LETTERS[kind][1], label=WORDS[kind]) for kind in kinds]
        place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0, "ncols": 4}
        seen.legend(handles=handles, frameon=False, fontsize=8.5, **place)
        seen.set_title("as it ran; white is standing still", loc="left", fontsize=10, pad=4)
        above = f"by the clock each could have at {share(found.where_slowdown)} slowdown"
        clocks.set_title(above, loc="left", fontsize=10, pad=4)
        clocks.set_xlabel("time within the step (ms)")
        colours = ListedColormap([hue(step / 255) for step in range(256)])
        scale = ScalarMappable(Normalize(100 * LOWEST, 100), colours)
        bar = figure.colorbar(scale, ax=[seen, clocks], pad=0.01)
        bar.set_label("clock (% of that seen)")
        bar.outline.set_visible(False)
        _savings(saved, found)
        title = headline(found).replace("; ", ";\n")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        saved.set_title(about(found), loc="left", fontsize=8.5, color="#616e7c", pad=6, parse_math=False)
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def _lanes(axes: Any, found: Findings, lanes: list[int], colour: Any) -> None:
    """Kernels of each GPU as a broad bar, links as a narrow one below."""
    for row, lane in enumerate(lanes):
        for wanted, low, high in ((True, -0.42, 0.50), (False, 0.12, 0.26)):
            bars: list[Bar] = [bar for bar in found.bars if bar.lane == lane and (bar.what == RUN) == wanted]
            axes.broken_barh(
                [(1e3 * bar.start_s, 1e3 * bar.duration_s) for bar in bars],
                (row + low, high),
                facecolors=[colour(bar) for bar in bars],
                linewidth=0,
            )
    axes.set_ylim(len(lanes) - 0.5, -0.6)
    axes.set_xlim(0, 1e3 * max(bar.start_s + bar.duration_s for bar in found.bars))
    axes.set_yticks(range(len(lanes)), [f"GPU {lane}" for lane in lanes])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _savings(axes: Any, found: Findings) -> None:
    """Every plan at every slowdown, with its interval."""
    asked = slowdowns(found)
    for place, plan in enumerate(PLANS):
        rows = [saving(found, plan, slowdown).saving for slowdown in asked]
        at = [index + 0.16 * (place - 1) for index in range(len(asked))]
        look = {"color": FAINT if plan == "each_run" else HUES[place], "linewidth": 5, "alpha": 0.45}
        axes.vlines(at, [100 * each.low for each in rows], [100 * each.high for each in rows], **look)
        axes.plot(at, [100 * each.middle for each in rows], "o", color=look["color"], label=PLAN_NAMES[plan])
    axes.set_xticks(range(len(asked)), [f"{share(slowdown)} slower" for slowdown in asked])
    axes.set_xlim(-0.5, len(asked) - 0.5)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_ylabel("energy saved (%)")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
