"""A picture of a recurring job: what is believed about each batch size, and what each recurrence cost. Needs the extra
``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulewise.core.measurement import Outcome
from joulewise.core.series import Platform, Recurring
from joulewise.report.plot import FAINT, HUES, INK, STYLE
from joulewise.tune.series import SeriesSummary, SizeBelief, TrialRecord
from joulewise.tune.series_terms import objective

_MOST_LABELS = 40  # recurrences whose batch sizes can be written side by side


def draw(
    path: Path,
    job: Recurring,
    platform: Platform,
    summary: SeriesSummary,
    beliefs: Sequence[SizeBelief],
    trials: Sequence[TrialRecord],
) -> None:
    """Write the picture to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 6.4), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
        belief, cost = figure.subplots(2, 1)
        _beliefs(belief, job, summary, beliefs)
        _costs(cost, [trial for trial in trials if trial.asked.platform == platform])
        cost.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in (belief, cost):
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(length=3)
        title = f"{job.name} on {platform.key}: {job.target}"
        belief.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=22, parse_math=False)
        under = f"{objective(job)} · bars: where the mean lies, 95 % · grey: expected, never run"
        belief.annotate(
            under, (0, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset points", color="#616e7c"
        )
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def _beliefs(axes: Any, job: Recurring, summary: SeriesSummary, beliefs: Sequence[SizeBelief]) -> None:
    """The cost of a whole run by batch size, with its interval; the best and the default by name."""
    money = job.objective.get("what") == "money"
    unit = 1.0 if money else 1000.0
    for place, each in enumerate(beliefs):
        if each.cost is None:
            continue
        hue = HUES[0] if each.runs else FAINT
        low = each.cost if each.cost_low is None else each.cost_low
        high = each.cost if each.cost_high is None else each.cost_high
        axes.plot([place, place], [low / unit, high / unit], color=hue, linewidth=3, alpha=0.35, solid_capstyle="round")
        axes.plot([place], [each.cost / unit], "o", color=HUES[1] if each.batch_size == summary.best else hue)
    axes.set_xticks(range(len(beliefs)), [str(each.batch_size) + _mark(each, job, summary) for each in beliefs])
    axes.set_xlim(-0.5, len(beliefs) - 0.5)
    axes.set_ylabel("cost of a whole run" + ("" if money else " (kJ)"))
    axes.set_xlabel("batch size")


def _mark(belief: SizeBelief, job: Recurring, summary: SeriesSummary) -> str:
    words = [
        word
        for word, is_so in (("best", belief.batch_size == summary.best), ("default", belief.batch_size == job.default))
        if is_so
    ]
    return f"\n{', '.join(words)}" if words else ""


def _costs(axes: Any, trials: Sequence[TrialRecord]) -> None:
    """The energy of each recurrence, stacked by trial: what reached the target, and what was spent on learning."""
    order = {name: at for at, name in enumerate(dict.fromkeys(trial.asked.recurrence for trial in trials), start=1)}
    height = dict.fromkeys(order.values(), 0.0)
    named: set[str] = set()
    for trial in trials:
        if trial.told is None:
            continue
        at, energy_kj = order[trial.asked.recurrence], trial.told.energy_j / 1000.0
        reached = trial.told.outcome is Outcome.REACHED
        label = "reached the target" if reached else "did not reach it"
        axes.bar(
            [at],
            [energy_kj],
            bottom=height[at],
            width=0.7,
            color=HUES[0] if reached else HUES[4],
            label=None if label in named else label,
        )
        named.add(label)
        height[at] += energy_kj
        if reached and len(order) <= _MOST_LABELS:
            axes.annotate(
                str(trial.asked.batch_size),
                (at, height[at]),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color=INK,
            )
    axes.set_xlim(0.4, max(1, len(order)) + 0.6)
    axes.set_xlabel("recurrence (with its batch size)")
    axes.set_ylabel("energy (kJ)")
    if len(named) > 1:
        # Above the axes: bars and their labels may be anywhere within.
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=2)
