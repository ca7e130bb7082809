"""A plan as a page: one HTML file with everything in it, which opens anywhere and asks nobody for anything."""

from __future__ import annotations

from html import escape

from joulewise.cli.plan_views import shown_points
from joulewise.core.units import format_energy, format_percent, si_prefix
from joulewise.plan.execution import launches
from joulewise.plan.plan import Plan, PlanPoint
from joulewise.report import frame
from joulewise.report.chart import Chart, span, ticks
from joulewise.report.plan_colours import Scale, hue
from joulewise.report.plan_words import about, as_fast, headline, power, time

_WIDTH, _NAME, _ROW = 860.0, 52.0, 17.0
_GAPS = 600
"""Operations up to which each stands apart; more of them would be all gap."""
_OWN = """
.dot.plans circle { fill: var(--power); } .pipe .lane { fill: var(--grid); }
.ramp { display: inline-block; width: 180px; height: 10px; border-radius: 2px; margin: 0 .4rem; }
.line.bound { stroke: var(--base); stroke-dasharray: 5 4; } .key .bound { background: var(--base); }
.key .plans { background: var(--power); } .line.plans { stroke: var(--power); }
"""


def page(plan: Plan, point: PlanPoint) -> str:
    """The whole file; ``point`` is the one whose pipeline is drawn."""
    scale = Scale(each.setting for options in plan.profile.options.values() for each in options)
    end_s = max(plan.baseline.time_s, point.time_s)
    sections = [
        _head(plan, point),
        frame.section(f"Nothing set: {_words(plan.baseline)}", _pipeline(plan, plan.baseline, scale, end_s)),
        frame.section(f"Planned: {_words(point)}", _pipeline(plan, point, scale, end_s) + _key(scale)),
        frame.section("Every iteration time", _frontier(plan, point)),
        frame.section("Points", _table(plan)),
        frame.section("Assumed", "".join(f"<p>{escape(each)}</p>" for each in plan.assumptions)),
    ]
    return frame.page(headline(plan), sections, style=_OWN)


def _head(plan: Plan, point: PlanPoint) -> str:
    said = f'<h1>{frame.text(headline(plan))}</h1><p class="small">{escape(about(plan))}</p>'
    return f"<header>{said}{_tiles(plan, point)}</header>"


def _tiles(plan: Plan, point: PlanPoint) -> str:
    base = plan.baseline
    tiles = (
        (format_percent(1 - point.energy_j / base.energy_j, digits=3), "less energy than with nothing set"),
        (time(point), f"an iteration, {time(base)} with nothing set"),
        (format_energy(point.energy_j), f"an iteration, {format_energy(base.energy_j)} with nothing set"),
        (power(point), f"on average, {power(base)} with nothing set"),
    )
    return frame.tiles(tiles)


def _pipeline(plan: Plan, point: PlanPoint, scale: Scale, end_s: float) -> str:
    ranks = plan.schedule.ranks
    height = ranks * _ROW + 26
    room = _WIDTH - _NAME - 8
    parts = []
    for rank in range(ranks):
        top = rank * _ROW
        parts.append(f'<rect class="lane" x="{_NAME}" y="{top + 1:g}" width="{room:g}" height="{_ROW - 3:g}"/>')
        parts.append(f'<text x="{_NAME - 6:g}" y="{top + 12:g}" class="tick end">rank {rank}</text>')
    steps = [step for row in plan.steps(point) for step in row]
    gap = 0.7 if len(steps) <= _GAPS else 0.0
    for operation, step, (start_s, stop_s) in zip(
        plan.schedule.dag.operations, steps, plan.times_s(point), strict=True
    ):
        left, right = (_NAME + at / end_s * room for at in (start_s, stop_s))
        named = [f"{knob}={value:g}" for knob, value in step.setting.items()]
        said = escape(", ".join([*named, *map(str, launches(step.setting))]) or "nothing set")
        parts.append(
            f'<rect x="{left:.2f}" y="{operation.rank * _ROW + 1:g}" width="{max(0.3, right - left - gap):.2f}" '
            f'height="{_ROW - 3:g}" fill="{scale.colour(step.setting)}"><title>{step.kind} of stage {step.stage}, '
            f"microbatch {step.microbatch}: {said}, {step.time_s * 1000:.4g} ms</title></rect>"
        )
    for value in ticks(0.0, end_s, most=8):
        at = _NAME + value / end_s * room
        parts.append(f'<text x="{at:.1f}" y="{ranks * _ROW + 14:g}" class="tick middle">{value:g} s</text>')
    says = escape(f"when each rank computes, coloured by clock; {_words(point)}")
    about_it = f'class="pipe" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{says}"'
    return f'<figure class="wide"><svg {about_it}>{"".join(parts)}</svg></figure>'


def _key(scale: Scale) -> str:
    stops = ", ".join(hue(step / 8) for step in range(9))
    ramp = f'<span class="ramp" style="background: linear-gradient(90deg, {stops})"></span>'
    return f'<p class="small">{scale.named(0.0)}{ramp}{scale.named(1.0)}; grey is waiting</p>'


def _frontier(plan: Plan, point: PlanPoint) -> str:
    unit, prefix = si_prefix(plan.baseline.energy_j)
    shown = [*plan.points, plan.baseline]
    bound = [(each.time_s, each.bound_j / unit) for each in plan.points if each.bound_j is not None]
    chart = Chart(
        span([each.time_s for each in shown]),
        span([each.energy_j / unit for each in shown] + [energy for _, energy in bound]),
        height=280,
    ).axes("iteration time (s)", f"energy ({prefix}J)")
    chart.line(bound, "bound", says="no plan can do better")
    chart.line([(each.time_s, each.energy_j / unit) for each in plan.points], "plans")
    for each in plan.points:
        chart.dot(each.time_s, each.energy_j / unit, "plans", size=2.5, says=_words(each))
    chart.dot(
        plan.baseline.time_s, plan.baseline.energy_j / unit, "tried", says=_words(plan.baseline), label="nothing set"
    )
    chart.dot(point.time_s, point.energy_j / unit, "held", says=_words(point), label="planned")
    names = (("plans", "plans"), ("bound", "no plan can do better"))
    key = "".join(f'<span><i class="{kind}"></i>{name}</span>' for kind, name in names)
    return (
        f'<figure class="wide">{chart.svg("energy of an iteration by its time")}<div class="key">{key}</div></figure>'
    )


def _table(plan: Plan) -> str:
    rows = [(plan.baseline, "nothing set")]
    rows += [(each, "as fast as nothing set" if each is as_fast(plan) else "") for each in shown_points(plan, 33)]
    cells = "".join(
        f'<tr><td class="n">{time(each)}</td><td class="n">{format_energy(each.energy_j)}</td>'
        f'<td class="n">{power(each)}</td>'
        f'<td class="n">{_change(each.time_s / plan.baseline.time_s)}</td>'
        f'<td class="n">{_change(each.energy_j / plan.baseline.energy_j)}</td><td>{said}</td></tr>'
        for each, said in rows
    )
    heads = "".join(f'<th class="n">{name}</th>' for name in ("iteration", "energy", "mean power", "time", "energy"))
    return f'<div class="wide"><table><tr>{heads}<th></th></tr>{cells}</table></div>'


def _change(ratio: float) -> str:
    said = f"{(ratio - 1) * 100:+.1f} %".replace("-", "−")
    return "0.0 %" if said.endswith("0.0 %") and len(said) == 6 else said


def _words(point: PlanPoint) -> str:
    return f"{time(point)}, {format_energy(point.energy_j)}"
