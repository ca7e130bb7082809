"""Simulated policies as a page: one HTML file with everything in it, which opens anywhere and asks for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from joulewise.cli.cluster_figures import Figures, curves, shown_until_s
from joulewise.cli.cluster_gantt import LOWEST, Lane, lanes
from joulewise.cli.cluster_plot import families, labels
from joulewise.cli.cluster_scene import Result, Scene
from joulewise.cli.cluster_table import columns, duration, energy_columns, headline, kwh
from joulewise.core.units import format_duration, kwh_from_joules, si_prefix
from joulewise.report import frame
from joulewise.report.chart import Chart, span, ticks, time_unit
from joulewise.report.plan_colours import hue
from joulewise.report.plot import HUES

_WIDTH, _NAME, _ROW = 860.0, 96.0, 11.0
_MOST_LANES = 80
_BINS = 300
_COLOURS = (*HUES[:7], "var(--ink)")
_OWN = "".join(
    f".line.p{at} {{ stroke: {colour}; }} .dot.p{at} circle, .key .p{at} {{ fill: {colour}; background: {colour}; }}\n"
    for at, colour in enumerate(_COLOURS)
)
_OWN += """
.line.family { stroke: var(--base); stroke-width: 1; } table { margin-bottom: 1rem; }
.gantt .wait { stroke: var(--base); stroke-width: .8; opacity: .6; } .gantt text { font-size: 8.5px; }
.ramp { display: inline-block; width: 180px; height: 10px; border-radius: 2px; margin: 0 .4rem; }
"""


def page(scene: Scene, results: Sequence[Result], found: Sequence[Figures]) -> str:
    """The whole file."""
    sections = [
        f'<header><h1>{escape(headline(found))}</h1><p class="small">{escape(scene.about())}</p></header>',
        frame.section("Policies", _table(columns(found)) + _table(energy_columns(found))),
        frame.section("Mean completion time against energy: left and below is better", _trade(found)),
        frame.section("GPUs in use", _over_time(scene, results, "gpus") + _key(results)),
        frame.section("Power of the whole cluster", _over_time(scene, results, "watts") + _key(results)),
        *(frame.section(f"Who ran when: {result.policy.name}", _gantt(scene, result, results)) for result in results),
        frame.section("Assumed", "".join(f"<p>{escape(each)}</p>" for each in scene.assumptions())),
    ]
    return frame.page(headline(found), sections, style=_OWN)


def _table(shown: Sequence[tuple[str, list[str]]]) -> str:
    heads = "".join(f"<th{_number(at)}>{escape(title)}</th>" for at, (title, _) in enumerate(shown))
    rows = "".join(
        "<tr>" + "".join(f"<td{_number(at)}>{escape(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in zip(*(cells for _, cells in shown), strict=True)
    )
    return f'<div class="wide"><table><tr>{heads}</tr>{rows}</table></div>'


def _number(at: int) -> str:
    return ' class="n"' if at else ""


def _trade(found: Sequence[Figures]) -> str:
    known = [each for each in found if each.mean_s is not None]
    if not known:
        return ""
    unit_s, unit = time_unit(max(each.mean_s or 0.0 for each in known))
    chart = Chart(
        span([kwh_from_joules(each.energy_j) for each in known], room=0.2, least=1e-3),
        span([(each.mean_s or 0.0) / unit_s for each in known], room=0.2, least=1e-3),
        height=300,
    ).axes("energy of the whole cluster (kWh)", f"mean completion time ({unit})")
    place = {each.policy: (kwh_from_joules(each.energy_j), (each.mean_s or 0.0) / unit_s) for each in known}
    words = labels(place)
    for points in families(known):
        chart.line([place[each.policy] for each in points], "family")
    for at, each in enumerate(found):
        if each.policy in place:
            says = f"{each.policy}: {duration(each.mean_s)}, {kwh(each.energy_j)} kWh"
            chart.dot(*place[each.policy], f"p{at % len(_COLOURS)}", says=says, label=words[each.policy])
    return f'<figure class="wide">{chart.svg("mean completion time of each policy against its energy")}</figure>'


def _over_time(scene: Scene, results: Sequence[Result], what: str) -> str:
    end_s = shown_until_s(results)
    unit_s, unit = time_unit(end_s - results[0].outcome.begun_s)
    lines = []
    for result in results:
        hours, gpus, watts = curves(result.outcome, end_s, _BINS)
        lines.append((hours * 3600.0 / unit_s, gpus if what == "gpus" else watts))
    limit = float(scene.gpus) if what == "gpus" else scene.limits.power_w
    highest = max([*(float(values.max()) for _, values in lines), *([] if limit is None else [limit])])
    factor, prefix = (1.0, "") if what == "gpus" else si_prefix(highest)
    chart = Chart((0.0, (end_s - results[0].outcome.begun_s) / unit_s), (0.0, 1.08 * highest / factor))
    chart.axes(f"time ({unit})", "GPUs" if what == "gpus" else f"power ({prefix}W)")
    for at, (times, values) in enumerate(lines):
        chart.line([*zip(times.tolist(), (values / factor).tolist(), strict=True)], f"p{at % len(_COLOURS)}")
    if limit is not None:
        chart.level(limit / factor, "limit", label="all there are" if what == "gpus" else "power cap")
    return f'<figure class="wide">{chart.svg(f"{what} of the cluster over time")}</figure>'


def _key(results: Sequence[Result]) -> str:
    names = "".join(
        f'<span><i class="p{at % len(_COLOURS)}"></i>{escape(result.policy.name)}</span>'
        for at, result in enumerate(results)
    )
    return f'<div class="key">{names}</div>'


def _gantt(scene: Scene, result: Result, results: Sequence[Result]) -> str:
    """A lane a job, the same time axis for every policy."""
    end_s = shown_until_s(results) - result.outcome.begun_s
    shown = lanes(scene, result.outcome, _MOST_LANES, end_s)
    unit_s, unit = time_unit(end_s)
    room = _WIDTH - _NAME - 8
    parts = [_lane(row, lane, end_s, room) for row, lane in enumerate(shown)]
    for value in ticks(0.0, end_s / unit_s, most=8):
        at = _NAME + value * unit_s / end_s * room
        parts.append(f'<text x="{at:.1f}" y="{len(shown) * _ROW + 14:g}" class="tick middle">{value:g}</text>')
    height = len(shown) * _ROW + 22
    says = escape(f"when each job ran under {result.policy.name}, coloured by clock")
    some = "" if len(shown) == len(scene.jobs) else f"{len(shown)} of {len(scene.jobs)} jobs; "
    stops = ", ".join(hue(step / 8) for step in range(9))
    ramp = f'<span class="ramp" style="background: linear-gradient(90deg, {stops})"></span>'
    return (
        f'<figure class="wide"><svg class="gantt" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{says}">'
        f'{"".join(parts)}</svg></figure><p class="small">{some}time in {unit}, a thin line is waiting, '
        f"height the number of GPUs; clock {LOWEST * 100:.0f} %{ramp}100 % of the highest</p>"
    )


def _lane(row: int, lane: Lane, end_s: float, room: float) -> str:
    middle = row * _ROW + _ROW / 2

    def x(time_s: float) -> float:
        return _NAME + time_s / end_s * room

    name = lane.job if len(lane.job) <= 18 else lane.job[:17] + "…"
    until_s = end_s if lane.ended_s is None else lane.ended_s
    waited = format_duration(lane.bars[0].from_s - lane.submitted_s) if lane.bars else "for ever"
    about = f"{lane.job}, asked for {lane.gpus_asked} GPUs, waited {waited} for its start"
    place = f'x="{_NAME - 6:g}" y="{middle + 3:.1f}"'
    parts = [
        f'<text {place} class="tick end">{escape(name)}<title>{escape(about)}</title></text>',
        f'<path class="wait" d="M{x(lane.submitted_s):.1f} {middle:.1f} H{x(until_s):.1f}"/>',
    ]
    for bar in lane.bars:
        high = min(_ROW - 1, 2.5 + 1.6 * bar.gpus.bit_length())
        width = max(0.4, x(bar.to_s) - x(bar.from_s))
        parts.append(
            f'<rect x="{x(bar.from_s):.1f}" y="{middle - high / 2:.1f}" width="{width:.1f}" height="{high:.1f}" '
            f'fill="{bar.colour}"><title>{escape(f"{lane.job}: {bar.says}")}</title></rect>'
        )
    return "".join(parts)
