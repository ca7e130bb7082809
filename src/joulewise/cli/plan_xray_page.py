"""An x-ray as a page: one HTML file with everything in it, which opens anywhere and asks nobody for anything."""

from __future__ import annotations

from html import escape

from joulewise.cli.plan_xray_plot import LOWEST
from joulewise.cli.plan_xray_views import (
    LETTERS,
    PLAN_NAMES,
    WORDS,
    about,
    assumptions,
    figures,
    headline,
    percent,
    saving,
    share,
    slowdowns,
    span,
    waits,
)
from joulewise.plan.xray import PLANS, Findings
from joulewise.plan.xray_piece import RUN
from joulewise.plan.xray_where import Bar
from joulewise.report import frame
from joulewise.report.chart import ticks
from joulewise.report.plan_colours import hue

_WIDTH, _NAME, _ROW = 860.0, 52.0, 26.0
_MOST_LANES = 16
_OWN = ".pipe .lane { fill: var(--grid); } .key i { width: 14px; }"


def page(found: Findings) -> str:
    """The whole file."""
    said = f'<h1>{frame.text(headline(found))}</h1><p class="small">{escape(about(found))}</p>'
    sections = [
        f"<header>{said}{frame.tiles(figures(found))}</header>",
        frame.section("A step as it ran", _timeline(found, by_clock=False) + _kinds_key(found)),
        frame.section(
            f"The clock each could have at {share(found.where_slowdown)} slowdown",
            _timeline(found, by_clock=True) + _clock_key(),
        ),
        frame.section("What could be saved", _savings(found)),
        frame.section("Where", f"<p>{escape(waits(found))}</p>" + _where(found)),
        frame.section("Assumed", "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in assumptions(found)) + "</ul>"),
    ]
    return frame.page(headline(found), sections, style=_OWN)


def _timeline(found: Findings, *, by_clock: bool) -> str:
    lanes = sorted({bar.lane for bar in found.bars})[:_MOST_LANES]
    end_s = max(bar.start_s + bar.duration_s for bar in found.bars)
    room = _WIDTH - _NAME - 8
    parts = []
    for row, lane in enumerate(lanes):
        top = row * _ROW
        parts.append(f'<rect class="lane" x="{_NAME}" y="{top + 1:g}" width="{room:g}" height="{_ROW - 4:g}"/>')
        parts.append(f'<text x="{_NAME - 6:g}" y="{top + 15:g}" class="tick end">GPU {lane}</text>')
        mine = (bar for bar in found.bars if bar.lane == lane)
        parts += [_rect(bar, top, room / end_s, by_clock=by_clock) for bar in mine]
    bottom = len(lanes) * _ROW
    for value in ticks(0.0, 1e3 * end_s, most=8):
        at = _NAME + value / (1e3 * end_s) * room
        parts.append(f'<text x="{at:.1f}" y="{bottom + 13:g}" class="tick middle">{value:g} ms</text>')
    says = "what each GPU does within a step, by clock" if by_clock else "what each GPU does within a step, by kind"
    about_it = f'class="pipe" viewBox="0 0 {_WIDTH:g} {bottom + 24:g}" role="img" aria-label="{says}"'
    return f'<figure class="wide"><svg {about_it}>{"".join(parts)}</svg></figure>'


def _rect(bar: Bar, top: float, scale: float, *, by_clock: bool) -> str:
    """Kernels in the upper part of the lane, links in the lower."""
    y, height = (top + 1, 0.58 * _ROW) if bar.what == RUN else (top + 1 + 0.60 * _ROW, 0.25 * _ROW)
    fill = hue((bar.clock - LOWEST) / (1.0 - LOWEST)) if by_clock else LETTERS[bar.kind][1]
    words = f"{bar.name}: {1e3 * bar.duration_s:.4g} ms, {WORDS[bar.kind]}, clock {percent(bar.clock)}"
    return (
        f'<rect x="{_NAME + bar.start_s * scale:.2f}" y="{y:.1f}" width="{max(0.3, bar.duration_s * scale):.2f}" '
        f'height="{height:.1f}" fill="{fill}"><title>{escape(words)}</title></rect>'
    )


def _kinds_key(found: Findings) -> str:
    kinds = [kind for kind in LETTERS if any(bar.kind == kind for bar in found.bars)]
    parts = "".join(f'<span><i style="background: {LETTERS[kind][1]}"></i>{WORDS[kind]}</span>' for kind in kinds)
    return f'<div class="key">{parts}<span>a bar is a run of kernels, by what it mostly does</span></div>'


def _clock_key() -> str:
    parts = "".join(
        f'<span><i style="background: {hue((clock - LOWEST) / (1.0 - LOWEST))}"></i>{percent(clock)}</span>'
        for clock in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    )
    return f'<div class="key">{parts}<span>of the clock it ran at; the mean of the draws</span></div>'


def _savings(found: Findings) -> str:
    heads = "".join(f'<th class="n">{PLAN_NAMES[plan]}</th>' for plan in PLANS)
    rows = "".join(
        f'<tr><td class="n">{share(slowdown)}</td>'
        + "".join(f'<td class="n">{span(saving(found, plan, slowdown).saving)}</td>' for plan in PLANS)
        + "</tr>"
        for slowdown in slowdowns(found)
    )
    return f'<div class="wide"><table><tr><th class="n">slower by</th>{heads}</tr>{rows}</table></div>'


def _where(found: Findings) -> str:
    heads = "".join(f'<th class="n">{name}</th>' for name in ("time", "energy", "saved", "clock"))
    rows = []
    for place in found.where:
        name = WORDS[place.kind] if not place.name else f"<code>{escape(place.name)}</code>"
        clock = "" if place.clock is None else percent(place.clock)
        values = (percent(place.time), percent(place.energy), percent(place.saved), clock)
        cells = "".join(f'<td class="n">{each}</td>' for each in values)
        look = "" if place.name else ' class="held"'
        rows.append(f"<tr{look}><td>{name}</td>{cells}</tr>")
    return f'<div class="wide"><table><tr><th></th>{heads}</tr>{"".join(rows)}</table></div>'
