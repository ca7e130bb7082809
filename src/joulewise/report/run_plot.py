"""A run as a picture for a paper: power, clock below, and what was decided when along the top.

The same curves as in the report (``report.figures``), by matplotlib (extra ``plot``; ``report.plot.check`` says so
before any work).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from joulewise.report import figures
from joulewise.report.figures import Beyond
from joulewise.report.plot import FAINT, HUES, STYLE
from joulewise.report.story import Story

_COLOURS = {"baseline": "#7f7f7f", "probe": "#e69f00", "verify": "#cc79a7", "hold": "#009e73", "proof": "#000000"}
_MOST_STRIPES = 4000


def draw(path: Path, story: Story, beyond: Beyond, *, title: str, subtitle: str = "", gpus: int = 1) -> None:
    """Write the picture to ``path``, whose ending says what it is. OSError as writing goes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    watts, clocks, low, high = figures.curves(story, beyond)
    until_s = max(story.span_s, 1e-3)
    unit_s, unit = (60.0, "min") if until_s > 180 else (1.0, "s")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.8), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.08))
        power, clock = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        if low and high:
            power.fill_between(_at(low, unit_s), _of(low), _of(high), color=HUES[0], alpha=0.18, linewidth=0)
        power.plot(_at(watts, unit_s), _of(watts), linewidth=1.3, color=HUES[0])
        clock.plot(_at(clocks, unit_s), _of(clocks), linewidth=1.2, color=HUES[1])
        if not watts:
            power.text(0.5, 0.5, "no readings were kept", transform=power.transAxes, ha="center", color=FAINT)
        _stripes(power, story, unit_s)
        for turn in figures.turns(story):
            for axes in (power, clock):
                axes.axvline(turn.start_s / unit_s, color="#1f2933", linewidth=0.8, linestyle=(0, (2, 3)))
        for change in story.changes:
            for axes in (power, clock):
                axes.axvline(story.since_s(change.time_s) / unit_s, color=HUES[3], linewidth=0.8, linestyle=":")
        clock.set_xlim(0, until_s / unit_s)
        power.set_ylabel("power (W)" if gpus == 1 else f"power of {gpus} GPUs (W)")
        clock.set_ylabel("SM clock (MHz)")
        clock.set_xlabel(f"time ({unit})")
        for axes, curve in ((power, [*watts, *high]), (clock, clocks)):
            top = max((y for _, y in curve if math.isfinite(y)), default=1.0)
            axes.set_ylim(0, max(top, 1.0) * 1.12)
            axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=3)
        words = {"fontsize": 9, "color": "#616e7c", "parse_math": False}
        figure.suptitle(_text(title), x=0.01, ha="left", fontsize=12.5, fontweight="bold", parse_math=False, wrap=True)
        power.set_title(_text(subtitle), loc="left", **words)
        if power.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8.5)
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=200, metadata={"Date": None} if kind == "svg" else None)


def _stripes(power: Any, story: Story, unit_s: float) -> None:
    """What was run when, along the top edge."""
    for kind, words in figures.KINDS.items():
        spans = [
            (story.since_s(each.block.start_s) / unit_s, (each.block.end_s - each.block.start_s) / unit_s)
            for each in story.seen[:_MOST_STRIPES]
            if figures.stripe(each.role) == kind
        ]
        if spans:
            power.broken_barh(
                spans,
                (0.965, 0.035),
                transform=power.get_xaxis_transform(),
                facecolors=_COLOURS[kind],
                linewidth=0,
                label=words,
            )


def _at(curve: list[tuple[float, float]], unit_s: float) -> list[float]:
    return [x / unit_s for x, _ in curve]


def _of(curve: list[tuple[float, float]]) -> list[float]:
    return [y for _, y in curve]


def _text(words: str) -> str:
    """A command may hold bytes that are no text, and more of it than a picture has room for."""
    clean = words.encode(errors="replace").decode().replace("\n", " ")
    return clean if len(clean) <= 110 else clean[:109] + "…"
