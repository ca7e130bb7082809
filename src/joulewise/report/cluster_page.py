"""A live cluster's story as a page: one HTML file with everything in it, which opens anywhere and asks for nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from joulewise.cluster.response import smoothed
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.core.errors import BadSpec
from joulewise.core.units import format_duration, format_si, kwh_from_joules, si_prefix
from joulewise.model import catalog
from joulewise.report import frame
from joulewise.report.chart import Chart, time_unit
from joulewise.report.cluster_facts import Story, caps
from joulewise.report.cluster_news import dated
from joulewise.report.cluster_tables import COLOURS, jobs, names, proofs
from joulewise.report.cluster_words import conclusions, cut_words, headline, known, tiles
from joulewise.report.plot import HUES

_MOST_POINTS = 1500
_COLOURS = HUES[:COLOURS]
_OWN = "".join(
    f".line.p{at} {{ stroke: {colour}; }} .key .p{at} {{ background: {colour}; }} .job.p{at} {{ color: {colour}; }}\n"
    for at, colour in enumerate(_COLOURS)
)
_OWN += """
.line.cap { stroke: var(--bad); stroke-width: 1.8; } .key .cap { background: var(--bad); }
.line.step { stroke-width: 2.4; } table { margin-bottom: .6rem; }
.job { font-weight: 600; } td.off { color: var(--bad); } .mark.cut line { stroke: var(--bad); }
.mark.lift line { stroke: var(--good); }
.note.lift { fill: var(--good) !important; } .note.cut { fill: var(--bad) !important; }
.news { font-size: .87rem; columns: 1; list-style: none; padding: 0; } .news li { padding: .08rem 0; }
.news code { color: var(--quiet); margin-right: .6rem; } details summary { cursor: pointer; color: var(--quiet); }
"""


def page(story: Story) -> str:
    """The whole file."""
    title = headline(story)
    sections = [
        f'<header><h1>{frame.text(title)}</h1><p class="small">{escape(_about(story))}</p></header>',
        frame.tiles(tiles(story)),
        frame.section("Power of the whole cluster, and its cap", _power(story)),
        frame.section("GPUs of each job", _of_jobs(story, lambda job: float(job.gpus), "GPUs") + _key(story)),
        frame.section("SM clock that each job is limited to", _clocks(story) + _key(story)),
        frame.section("What scarce things cost", _prices(story)),
        frame.section("Jobs", jobs(story)),
        frame.section("Promised and measured", proofs(story)),
        frame.section("What to conclude", _list(conclusions(story))),
        frame.section("What happened", _news(story)),
        frame.section("What is measured here, and what is believed", _list(known(story))),
    ]
    return frame.page(title, sections, style=_OWN)


def _about(story: Story) -> str:
    status = story.last
    gpus = sum(node.gpus for node in status.nodes)
    kinds = ", ".join(sorted({node.kind for node in status.nodes}))
    took = format_duration(status.time_s - story.begun_s)
    jobs = len(names(story))
    return f"{len(status.nodes)} nodes, {gpus} GPUs ({kinds}); {jobs} jobs, watched for {took}; {status.rounds} rounds"


def _unit(story: Story) -> tuple[float, str]:
    """What the axes count in."""
    return time_unit(max(1.0, story.last.time_s - story.begun_s))


def _at(story: Story, time_s: float) -> float:
    """Where a time is on the axes."""
    return (time_s - story.begun_s) / _unit(story)[0]


def _chart(story: Story, y: tuple[float, float], name: str, *, height: float) -> Chart:
    """Over all that was watched."""
    chart = Chart((0.0, _at(story, max(story.last.time_s, story.begun_s + 1.0))), y, height=height)
    return chart.axes(f"time ({_unit(story)[1]})", name)


def _power(story: Story) -> str:
    mean = _thinned(smoothed(story.power, 1.0))
    limits = caps(story.watched)
    high = max([watts for _, watts in mean] + [cap for _, cap in limits if math.isfinite(cap)])
    factor, prefix = si_prefix(high)
    chart = _chart(story, (0.0, 1.12 * high / factor), f"power ({prefix}W)", height=280)
    chart.line([(_at(story, time_s), watts / factor) for time_s, watts in mean], "power", says="mean over a second")
    chart.line(_steps([(_at(story, time_s), cap / factor) for time_s, cap in limits]), "cap", says="power cap")
    for cut in story.cuts:
        chart.upright(_at(story, cut.time_s), "cut", says=cut_words(cut), label=f"cap {format_si(cut.cap_w, 'W')}")
    for before, after in pairwise(limits):
        if math.isfinite(before[1]) and not math.isfinite(after[1]):
            chart.upright(_at(story, after[0]), "lift", label="lifted")
    by = "a meter of its own" if story.metered else "the nodes' agents"
    says = "".join(f'<p class="say">{escape(cut_words(cut))}</p>' for cut in story.cuts)
    key = f'<div class="key"><span><i class="power"></i>drawn, by {by}, mean over a second</span>'
    key += '<span><i class="cap"></i>power cap</span></div>'
    return f'<figure class="wide">{chart.svg("power of the cluster and its cap over time")}{key}</figure>{says}'


def _of_jobs(
    story: Story, value: Callable[[JobStatus], float], name: str, *, low: float = 0.0, top: float = 0.0
) -> str:
    lines = {job: _line(story, job, value) for job in names(story)}
    high = max([top, *(y for line in lines.values() for _, y in line if math.isfinite(y))])
    chart = _chart(story, (low, low + 1.1 * max(high - low, 1.0)), name, height=200)
    for cut in story.cuts:
        chart.upright(_at(story, cut.time_s), "cut", says=cut_words(cut))
    for at, (job, line) in enumerate(lines.items()):
        chart.line(_steps(line), f"step p{at % len(_COLOURS)}", says=job)
    return f'<figure class="wide">{chart.svg(f"{name} of each job over time")}</figure>'


def _line(story: Story, name: str, value: Callable[[JobStatus], float]) -> list[tuple[float, float]]:
    found = []
    for status in story.watched:
        job = next((job for job in status.jobs if job.name == name), None)
        runs = job is not None and job.state == "running"
        found.append((_at(story, status.time_s), value(job) if job is not None and runs else math.nan))
    return found


def _clocks(story: Story) -> str:
    highest = _highest_mhz(story.last)

    def clock(job: JobStatus) -> float:
        return float(job.setting.get("sm_mhz", highest))

    seen = [clock(job) for status in story.watched for job in status.jobs if job.state == "running"]
    low = 100.0 * math.floor(min(seen, default=highest) / 100.0 - 1.0)
    drawn = _of_jobs(story, clock, "MHz", low=max(0.0, low), top=highest)
    return drawn + '<p class="small">Nothing set is drawn at the highest clock; a power limit is not drawn.</p>'


def _highest_mhz(status: Status) -> float:
    for node in status.nodes:
        try:
            return catalog.load(node.kind).chip.sm_max_mhz
        except BadSpec:
            continue
    return max((job.setting.get("sm_mhz", 0.0) for job in status.jobs), default=0.0) or 1.0


def _prices(story: Story) -> str:
    watt = [(_at(story, status.time_s), 1000.0 * status.prices.watt_s) for status in story.watched]
    joule = [(_at(story, status.time_s), status.prices.joule_s / kwh_from_joules(1.0)) for status in story.watched]
    gpu = [(_at(story, status.time_s), max(status.prices.gpu_s.values(), default=0.0)) for status in story.watched]
    shown = []
    for values, name, about in (
        (watt, "s per kW·s", "a kilowatt for a second, now"),
        (gpu, "s per GPU·s", "a GPU for a second"),
        (joule, "s per kWh", "a kWh, of the energy budget"),
    ):
        high = max(value for _, value in values)
        if high <= 0:
            continue
        chart = _chart(story, (0.0, 1.15 * high), name, height=150)
        for cut in story.cuts:
            chart.upright(_at(story, cut.time_s), "cut", says=cut_words(cut))
        chart.line(_steps(values), "clock step", says=about)
        shown.append(f'<figure class="wide">{chart.svg(f"price of {about}")}</figure><p class="small">{about}</p>')
    if not shown:
        return '<p class="say">Nothing was scarce: all prices stayed at nothing.</p>'
    why = "In seconds of somebody's completion time: what one more of it would save the jobs as a whole."
    return f'<p class="say">{why}</p>' + "".join(shown)


def _news(story: Story) -> str:
    lines = [said.split("  ", 1) for event in story.events if (said := dated(event)) is not None]
    if not lines:
        return ""
    items = "".join(f"<li><code>{escape(when)}</code> {escape(what)}</li>" for when, what in lines)
    says = f"{len(lines)} lines of the journal, times in UTC"
    return f'<details open><summary>{says}</summary><ul class="news">{items}</ul></details>'


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in lines) + "</ul>" if lines else ""


def _key(story: Story) -> str:
    shown = (f'<span><i class="p{at % COLOURS}"></i>{escape(name)}</span>' for at, name in enumerate(names(story)))
    return f'<div class="key">{"".join(shown)}</div>'


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A step function's corners; where nothing changes there are none."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        before = found[-1][1] if found else math.nan
        if math.isfinite(y) and math.isfinite(before) and y != before:
            found.append((x, before))
        if len(found) > 1 and before == y and found[-2][1] == y:
            found.pop()
        found.append((x, y))
    return found


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    every = max(1, len(points) // _MOST_POINTS)
    return list(points[::every])
