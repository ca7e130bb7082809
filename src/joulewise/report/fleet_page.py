"""An estimate of a fleet as a page: one HTML file with everything in it, which opens anywhere and asks nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from joulewise.core.units import format_percent
from joulewise.report import fleet_words as words
from joulewise.report import frame
from joulewise.report.chart import ticks
from joulewise.report.fleet import Findings, JobSaving
from joulewise.report.worth import Carbon

_WIDTH, _NAME, _ROW = 860.0, 230.0, 24.0
_OWN = ".span { stroke: var(--good); stroke-width: 7; opacity: .35; } .mean { fill: var(--good); }"
_MOST = 200


def page(found: Findings, kwh_price: float | None = None, carbon: Carbon | None = None) -> str:
    """The whole file."""
    title = words.headline(found)
    said = f'<h1>{frame.text(title)}</h1><p class="small">{escape(words.about(found))}</p>'
    worth = _list(words.worth(found, kwh_price, carbon))
    sections = [
        f"<header>{said}{frame.tiles(_figures(found))}{worth}</header>",
        frame.section("How much", _paragraphs((*words.savings(found), *words.idle(found)))),
        frame.section("By GPU model", _models(found)),
    ]
    if found.jobs:
        body = _picture(found.jobs[: words.MOST_JOBS]) + _jobs(found) + _paragraphs([words.starts(found)])
        sections.append(frame.section("By job", body))
    sections.append(frame.section("What it rests on", _list(words.rests_on(found))))
    sections.append(frame.section("What it cannot know", _list(words.unknowns())))
    return frame.page(title, sections, style=_OWN)


def _figures(found: Findings) -> list[tuple[str, str]]:
    idle_kwh = found.held_kwh + found.free_kwh
    return [
        (words.amount(found.kwh), "kWh a day, all GPUs"),
        (words.amount(found.saving.reached.mean), "kWh a day that tuning would save"),
        (f"{100 * found.share.mean:.1f} %", "of all, expected"),
        (words.amount(idle_kwh), "kWh a day taken while idle"),
    ]


def _models(found: Findings) -> str:
    heads = ("GPUs", "kWh/day", "idle", "saved kWh/day (95 %)", "of busy energy")
    rows = []
    for model in found.models:
        resting = (model.held_kwh + model.free_kwh) / model.kwh if model.kwh > 0.0 else 0.0
        cells = (
            str(model.gpus),
            words.amount(model.kwh),
            format_percent(resting) if resting > 0.0 else "0",
            words.between(model.saving.reached),
            words.percents(model.saving.share),
        )
        rows.append((model.gpu_name or "no model name", cells))
    return _table("GPU model", heads, rows)


def _jobs(found: Findings) -> str:
    heads = ("GPU-hours", "W a GPU", "kWh/day", "clock", "saved kWh/day (95 %)", "share")
    rows = [
        (
            f"{job.job} · {job.gpu_name}",
            (
                words.amount(job.gpu_hours),
                f"{job.mean_w:.0f}",
                words.amount(job.saving.kwh),
                words.clock(job),
                words.between(job.saving.reached),
                words.percents(job.saving.share),
            ),
        )
        for job in found.jobs[:_MOST]
    ]
    return _table("job", heads, rows)


def _picture(jobs: Sequence[JobSaving]) -> str:
    """What each job would save, with its interval."""
    most = max(job.saving.reached.high for job in jobs) or 1.0
    room = _WIDTH - _NAME - 20

    def at(kwh: float) -> float:
        return _NAME + max(0.0, kwh) / most * room

    parts = []
    for row, job in enumerate(jobs):
        y, saved = row * _ROW + 12, job.saving.reached
        name = job.job if len(job.job) <= 32 else f"{job.job[:31]}…"
        says = escape(f"{job.job}, {job.gpu_name}: {words.between(saved)} kWh a day")
        parts.append(f'<text class="tick end" x="{_NAME - 8:g}" y="{y + 4:g}">{escape(name)}</text>')
        span = f'x1="{at(saved.low):.1f}" x2="{at(saved.high):.1f}" y1="{y:g}" y2="{y:g}"'
        parts.append(f'<g><line class="span" {span}/><circle class="mean" cx="{at(saved.mean):.1f}" cy="{y:g}" r="4"/>')
        parts.append(f"<title>{says}</title></g>")
    bottom = len(jobs) * _ROW
    parts += [
        f'<text class="tick middle" x="{at(value):.1f}" y="{bottom + 14:g}">{value:g}</text>'
        for value in ticks(0.0, most)
    ]
    label = "kWh a day that each job would save, with its 95 % interval"
    parts.append(f'<text class="name end" x="{_WIDTH - 20:g}" y="{bottom + 30:g}">{label}</text>')
    size = f'viewBox="0 0 {_WIDTH:g} {bottom + 36:g}"'
    return f'<figure class="wide"><svg {size} role="img" aria-label="{label}">{"".join(parts)}</svg></figure>'


def _table(first: str, heads: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    top = "".join(f'<th class="n">{escape(head)}</th>' for head in heads)
    body = "".join(
        f"<tr><td>{escape(name)}</td>" + "".join(f'<td class="n">{escape(cell)}</td>' for cell in cells) + "</tr>"
        for name, cells in rows
    )
    return f'<div class="wide"><table><tr><th>{escape(first)}</th>{top}</tr>{body}</table></div>'


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines if line)


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
