"""A picture of a run: power over time with its limit, the clock below, the result as its title.

Needs the extra ``plot``; ``check`` says so before a command is started, not after hours of work.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.report.history import Series

FORMATS = ("svg", "png", "pdf")

INK, FAINT = "#1f2933", "#9aa5b1"
# Eight hues that stay apart for colour-blind readers too (Okabe and Ito, 2008), the dark ones first.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
STYLE: Any = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "svg.hashsalt": "joulewise",  # the same run gives the same file
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
"""Of all our pictures."""


def check(path: Path, flag: str = "--plot") -> None:
    """Raise BadSpec or MissingPart when ``path``, which ``flag`` names, could not be drawn later."""
    if path.suffix.lstrip(".").lower() not in FORMATS:
        raise BadSpec(f"{flag} {path}: the name must end in {', '.join('.' + name for name in FORMATS)}")
    try:
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where it caches is no news to our user
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingPart("--plot needs matplotlib: pip install 'joulewise[plot]'") from None


def draw(path: Path, series: Sequence[tuple[str, Series]], *, title: str, subtitle: str = "") -> None:
    """Write the picture of ``series`` (a name and its readings per GPU) to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 4.6), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.08))
        power, clock = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        clock.yaxis.set_major_locator(MaxNLocator(4))
        starts = [line.start_s for _, line in series if line.start_s is not None]
        origin_s = min(starts, default=0.0)
        for place, (name, line) in enumerate(series):
            look = {"color": HUES[place % len(HUES)], "linestyle": "-" if place < len(HUES) else "--"}
            _add(power, clock, name, line, look, origin_s, alone=len(series) == 1)
        for limit_w in sorted({part.limit_w for _, line in series for part in line.bins if part.limit_w}):
            power.axhline(limit_w, color=FAINT, linewidth=1, linestyle=(0, (5, 3)), zorder=1)
            power.annotate(
                f"limit {limit_w:g} W",
                (1, limit_w),
                xycoords=("axes fraction", "data"),
                xytext=(-3, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8.5,
                color="#616e7c",
            )
        clock.set_xlim(0, max((line.end_s - origin_s for _, line in series), default=0.0) or 1.0)
        power.set_ylabel("power (W)")
        clock.set_ylabel("SM clock (MHz)")
        clock.set_xlabel("time (s)")
        for axes in (power, clock):
            axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], axes.dataLim.y1) * 1.06)
            axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=3)
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=min(4, len(series)), frameon=False)
        power.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=22 if subtitle else 8, parse_math=False)
        if subtitle:
            power.annotate(
                subtitle.encode(errors="replace").decode(),  # a command may hold bytes that are no text
                (0, 1),
                xycoords="axes fraction",
                xytext=(0, 8),
                textcoords="offset points",
                fontsize=9,
                color="#616e7c",
                parse_math=False,  # a $ of a shell is no formula
            )
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def _add(
    power: Any, clock: Any, name: str, line: Series, look: dict[str, str], origin_s: float, *, alone: bool
) -> None:
    """One GPU's curves: mean power, its clock, and behind a lone GPU the span of its readings."""
    offset_s = (line.start_s or 0.0) - origin_s
    middles = [offset_s + (place + 0.5) * line.width_s for place in range(len(line.bins))]
    known = [(time_s, part) for time_s, part in zip(middles, line.bins, strict=True) if part.samples]
    times = [time_s for time_s, _ in known]
    mean_w = [part.power_w for _, part in known]
    if alone:
        low_w, high_w = [part.low_w for _, part in known], [part.high_w for _, part in known]
        power.fill_between(times, mean_w, color=look["color"], alpha=0.10, linewidth=0)
        power.fill_between(times, low_w, high_w, color=look["color"], alpha=0.18, linewidth=0)
    power.plot(times, mean_w, linewidth=1.4, label=name, solid_joinstyle="round", **look)
    clocks = [(time_s, part.sm_mhz) for time_s, part in zip(middles, line.bins, strict=True) if part.clock_samples]
    clock.plot([at for at, _ in clocks], [mhz for _, mhz in clocks], linewidth=1.2, drawstyle="steps-mid", **look)
