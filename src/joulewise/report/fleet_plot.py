"""A picture of an estimate: what the fleet takes a day by GPU model, and what tuning would save of it, by job.

Needs the extra ``plot``; ``report.plot.check`` says so before anything is done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joulewise.report import fleet_words as words
from joulewise.report.fleet import Findings
from joulewise.report.plot import FAINT, HUES, STYLE

_MOST_MODELS = 8


def draw(path: Path, found: Findings) -> None:
    """Write the picture to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    models, jobs = found.models[:_MOST_MODELS], found.jobs[: words.MOST_JOBS]
    heights = (0.4 * max(len(models), 1) + 0.9, 0.3 * max(len(jobs), 1) + 0.8)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, sum(heights) + 0.9), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
        taken, saved = figure.subplots(2, 1, height_ratios=heights)
        _taken(taken, found)
        _saved(saved, found)
        title = words.headline(found).replace(" of what", "\nof what")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold", parse_math=False)
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def _taken(axes: Any, found: Findings) -> None:
    """Bars of what each GPU model takes: busy, busy but split, idle with a job, idle with none."""
    models = found.models[:_MOST_MODELS]
    left = [0.0] * len(models)
    parts = [
        ("busy", [model.saving.kwh for model in models], HUES[0]),
        ("idle, held by a job", [model.held_kwh for model in models], HUES[4]),
        ("idle, nobody's", [model.free_kwh for model in models], FAINT),
    ]
    if found.split_kwh > 0.0:
        parts.insert(1, ("busy, split by MIG", [model.split_kwh for model in models], HUES[5]))
    for name, widths, colour in parts:
        axes.barh(range(len(models)), widths, left=left, color=colour, height=0.6, label=name)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(models)), [model.gpu_name or "no model name" for model in models], parse_math=False)
    axes.invert_yaxis()
    _quiet(axes, "kWh a day taken")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")


def _saved(axes: Any, found: Findings) -> None:
    """What each job would save, with its interval."""
    jobs = found.jobs[: words.MOST_JOBS]
    rows = range(len(jobs))
    saved = [job.saving.reached for job in jobs]
    axes.hlines(rows, [max(0.0, s.low) for s in saved], [s.high for s in saved], color=HUES[2], alpha=0.4, linewidth=6)
    axes.plot([s.mean for s in saved], list(rows), "o", color=HUES[2])
    axes.set_yticks(rows, [job.job if len(job.job) <= 40 else f"{job.job[:39]}…" for job in jobs], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    _quiet(axes, "kWh a day saved, with its 95 % interval")


def _quiet(axes: Any, name: str) -> None:
    axes.set_xlabel(name)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
