"""Simulated policies as a picture in a file: completion time against energy, where the energy went, GPUs and watts over
time, and who ran when under the first policy. Needs the extra ``plot``; ``cli.plot.check`` says so beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from joulewise.cli.cluster_figures import Figures, curves, shown_until_s
from joulewise.cli.cluster_gantt import LOWEST, lanes
from joulewise.cli.cluster_scene import Result, Scene
from joulewise.cli.cluster_table import PARTS, headline
from joulewise.core.units import kwh_from_joules, si_prefix
from joulewise.report.chart import time_unit
from joulewise.report.plan_colours import hue
from joulewise.report.plot import FAINT, HUES, INK, STYLE

_MOST_LANES = 120
_BINS = 400
_MARKS = "osD^vP*X"
_NEAR = (0.15, 0.08)
"""Of all that is spanned: a short name is about so wide, and a line so high."""


def draw(path: Path, scene: Scene, results: Sequence[Result], found: Sequence[Figures]) -> None:
    """Write the picture to ``path``. OSError as writing goes."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    end_s = shown_until_s(results)
    span_s = end_s - results[0].outcome.begun_s
    shown = lanes(scene, results[0].outcome, _MOST_LANES, span_s)
    tall = max(1.6, 0.045 * len(shown) + 0.6)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7.6 + tall), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
        grid = figure.add_gridspec(4, 2, height_ratios=(3.0, 1.7, 1.7, tall))
        _trade(figure.add_subplot(grid[0, 0]), found)
        _parts(figure.add_subplot(grid[0, 1]), found)
        gpus = figure.add_subplot(grid[1, :])
        watts = figure.add_subplot(grid[2, :], sharex=gpus)
        _over_time(gpus, watts, scene, results, end_s)
        gantt = figure.add_subplot(grid[3, :])
        _gantt(gantt, shown, span_s)
        some = "" if len(shown) == len(scene.jobs) else f", {len(shown)} of {len(scene.jobs)} jobs"
        _title(gantt, f"who ran when under {results[0].policy.name}{some}; grey is waiting, height the number of GPUs")
        colours = ListedColormap([hue(step / 255) for step in range(256)])
        bar = figure.colorbar(ScalarMappable(Normalize(100 * LOWEST, 100), colours), ax=gantt, pad=0.01)
        bar.set_label("clock (% of the highest)")
        bar.outline.set_visible(False)
        figure.suptitle(headline(found).replace(". ", ".\n"), x=0.01, ha="left", fontsize=12, fontweight="bold")
        kind = path.suffix.lstrip(".").lower()
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)


def families(found: Sequence[Figures]) -> list[list[Figures]]:
    """Policies that differ in their knob only, together and by energy: the points of one curve."""
    sorts: dict[str, list[Figures]] = {}
    for each in found:
        sorts.setdefault(each.family, []).append(each)
    return [sorted(each, key=lambda one: one.energy_j) for each in sorts.values()]


def labels(place: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """What to write beside each point: its name, or all names of those too near for a label each, at the last from the
    left, and nothing at the others."""
    wide, high = (max(values) - min(values) for values in zip(*place.values(), strict=True)) if place else (0.0, 0.0)
    together: list[list[str]] = []
    for name in sorted(place, key=lambda name: place[name]):
        x, y = place[name]
        for group in together:
            first_x, first_y = place[group[0]]
            if x - first_x <= _NEAR[0] * wide and abs(y - first_y) <= _NEAR[1] * high:
                group.append(name)
                break
        else:
            together.append([name])
    return dict.fromkeys(place, "") | {group[-1]: ", ".join(group) for group in together}


def _trade(axes: Any, found: Sequence[Figures]) -> None:
    """Mean completion time against energy; a line where one policy was tried with several knobs."""
    unit_s, unit = time_unit(max(each.mean_s or 0.0 for each in found))
    place = {
        each.policy: (kwh_from_joules(each.energy_j), each.mean_s / unit_s) for each in found if each.mean_s is not None
    }
    for points in families([each for each in found if each.policy in place]):
        axes.plot(*zip(*(place[each.policy] for each in points), strict=True), color=FAINT, linewidth=1, zorder=1)
    words = labels(place)
    for at, each in enumerate(found):
        if each.policy not in place:
            continue
        colour = HUES[at % len(HUES)]
        axes.plot(*place[each.policy], color=colour, marker=_MARKS[at % len(_MARKS)], markersize=6, linestyle="")
        near = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 8.5}
        if label := words[each.policy]:
            axes.annotate(
                label, place[each.policy], color=colour if label == each.policy else INK, parse_math=False, **near
            )
    axes.margins(0.18)
    axes.set_xlabel("energy of the whole cluster (kWh)")
    axes.set_ylabel(f"mean completion time ({unit})")
    _title(axes, "left and below is better")
    _quiet(axes)


def _parts(axes: Any, found: Sequence[Figures]) -> None:
    """Where each policy's energy went."""
    left = [0.0] * len(found)
    rows = [{} if each.parts is None else each.parts.as_dict() for each in found]
    places = range(len(found))
    named = [*PARTS.items(), ("", "after")]
    for (part, words), colour in zip(named, (*HUES[:6], FAINT), strict=True):
        values = [
            kwh_from_joules((row.get(part) if part else each.after_j) or 0.0)
            for row, each in zip(rows, found, strict=True)
        ]
        if sum(values) > 0.002 * sum(kwh_from_joules(each.energy_j) for each in found):
            axes.barh(places, values, left=left, color=colour, height=0.62, label=words)
        left = [a + b for a, b in zip(left, values, strict=True)]
    undone = [f", {each.unfinished} not done" if each.unfinished else "" for each in found]
    axes.set_yticks(places, [each.policy + left for each, left in zip(found, undone, strict=True)])
    axes.invert_yaxis()
    axes.set_xlabel("energy (kWh)")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def _over_time(gpus: Any, watts: Any, scene: Scene, results: Sequence[Result], end_s: float) -> None:
    unit_s, unit = time_unit(end_s - results[0].outcome.begun_s)
    drawn = [curves(result.outcome, end_s, _BINS) for result in results]
    factor, prefix = si_prefix(max(float(line.max()) for _, _, line in drawn))
    for at, (result, (hours, used, power)) in enumerate(zip(results, drawn, strict=True)):
        look = {"color": HUES[at % len(HUES)], "linewidth": 1.1}
        gpus.plot(hours * 3600.0 / unit_s, used, label=result.policy.name, **look)
        watts.plot(hours * 3600.0 / unit_s, power / factor, **look)
    gpus.axhline(scene.gpus, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    if scene.limits.power_w is not None:
        watts.axhline(scene.limits.power_w / factor, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    for axes, name in ((gpus, "GPUs in use"), (watts, f"whole cluster ({prefix}W)")):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(name)
        _quiet(axes)
    gpus.tick_params(labelbottom=False)
    gpus.set_xlim(0, (end_s - results[0].outcome.begun_s) / unit_s)
    watts.set_xlabel(f"time ({unit})")
    gpus.legend(frameon=False, fontsize=8.5, ncols=6, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1)


def _gantt(axes: Any, shown: Sequence[Any], end_s: float) -> None:
    unit_s, unit = time_unit(end_s)
    widest = max((bar.gpus for lane in shown for bar in lane.bars), default=1)
    for row, lane in enumerate(shown):
        until_s = end_s if lane.ended_s is None else lane.ended_s
        axes.plot([lane.submitted_s / unit_s, until_s / unit_s], [row, row], color="#d5dbe1", linewidth=0.7, zorder=1)
        for bar in lane.bars:
            high = 0.25 + 0.7 * (bar.gpus.bit_length() / max(1, widest.bit_length()))
            axes.broken_barh(
                [(bar.from_s / unit_s, (bar.to_s - bar.from_s) / unit_s)],
                (row - high / 2, high),
                facecolors=bar.colour,
                linewidth=0,
                zorder=2,
            )
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, end_s / unit_s)
    axes.set_yticks([])
    axes.set_ylabel("jobs by submission")
    axes.set_xlabel(f"time ({unit})")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _title(axes: Any, words: str) -> None:
    axes.set_title(words, loc="left", fontsize=9.5, color="#616e7c", pad=5, parse_math=False)


def _quiet(axes: Any) -> None:
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3)
