"""The figures of a report: power and clock over time, the settings that were tried, the saving so far.

Pure: a story in, a ``<figure>`` out, or nothing where there is nothing to show. How they look is ``report_style``'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from html import escape

from joulewise.core.block import Role
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.units import format_duration
from joulewise.report import knobs
from joulewise.report.chart import Chart, span
from joulewise.report.claim import STANDARD_ERRORS, Claim, percent
from joulewise.report.history import Series
from joulewise.report.story import Story, Stretch, Tried, stretches, tried
from joulewise.report.words import named, plainly

_MOST_POINTS = 600  # a curve has no more points than a screen has pixels to show them
_CURVE_POINTS = 40  # of the saving so far: each is a proof of its own

_Curve = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Beyond:
    """What a report shows and the journal does not hold; the page carries it, so that it can be drawn again.

    Curves are points (seconds since the run began, value), NaN where nothing was read.
    """

    power: _Curve = field(default_factory=list)
    clock: _Curve = field(default_factory=list)
    low: _Curve = field(default_factory=list)
    high: _Curve = field(default_factory=list)
    expected: _Curve = field(default_factory=list)
    """The job's frontier as the tuner believes it: (time change, energy change)."""

    @classmethod
    def of(cls, story: Story, series: Sequence[Series] = (), expected: Sequence[tuple[float, float]] = ()) -> Beyond:
        """From the GPUs' readings, in the journal's time."""
        known = [line for line in series if line.start_s is not None and line.bins]
        curves: Sequence[_Curve] = _read(story, known) if known else ([], [], [], [])
        # A tenth of a watt and of a second is finer than the picture.
        power, clock, low, high = ([(round(x, 1), round(y, 1)) for x, y in curve] for curve in curves)
        return cls(power, clock, low, high, [(round(t, 6), round(e, 6)) for t, e in expected])

    def to_json(self) -> dict[str, list[list[float | None]]]:
        """Plain values, null for NaN."""
        return {
            each.name: [[x, None if math.isnan(y) else y] for x, y in getattr(self, each.name)] for each in fields(self)
        }

    @classmethod
    def from_json(cls, values: object) -> Beyond:
        """What ``to_json`` wrote; ValueError for anything else."""
        try:
            return cls(
                **{
                    each.name: [(float(x), math.nan if y is None else float(y)) for x, y in values[each.name]]  # type: ignore[index]
                    for each in fields(cls)
                }
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"its curves cannot be read: {error}") from error


def power(story: Story, beyond: Beyond) -> str:
    """Power and clock over time, what was run when along the top, and where another setting was held."""
    until_s = max(story.span_s, 1e-3)
    watts, clock, low, high = curves(story, beyond)
    if not watts:
        return ""
    unit_s, unit = (60.0, "min") if until_s > 180 else (1.0, "s")
    axis = (0.0, until_s / unit_s)
    top_w = max((y for _, y in (*watts, *high) if math.isfinite(y)), default=1.0)
    chart = Chart(axis, (0.0, top_w * 1.1), height=235)
    scaled = [[(x / unit_s, y) for x, y in curve] for curve in (watts, clock, low, high)]
    chart.axes("", "power (W)")
    chart.band(scaled[2], scaled[3], "power")
    chart.line(scaled[0], "power")
    below = Chart(axis, span([0.0, *(y for _, y in clock)], room=0.04), height=150)
    below.axes(f"time ({unit})", "SM clock (MHz)")
    below.line(scaled[1], "clock")
    for each in story.seen:
        kind = stripe(each.role)
        start, end = story.since_s(each.block.start_s), story.since_s(each.block.end_s)
        says = f"{KINDS[kind]}: {named(each.block.setting)}, {format_duration(end - start)}"
        chart.stripe(start / unit_s, end / unit_s, kind, says=says)
    marked = turns(story)
    for chapter in marked:
        says = f"{format_duration(chapter.start_s)}: {named(chapter.setting)}. {plainly(chapter.reason)}"
        for panel in (chart, below):
            panel.upright(chapter.start_s / unit_s, "turn", says=says)
    for change in story.changes:
        for panel in (chart, below):
            at = story.since_s(change.time_s) / unit_s
            panel.upright(at, "shift", says=f"the job changed: {plainly(change.says)}")
    key = _key(*KINDS.items()) if story.seen else ""
    marks = "dashed: another setting is held from here on; hover for why. " if marked else ""
    marks += "The curve is the meter’s own and not in the journal." if beyond.power else ""
    return _figure(
        chart.svg("Power over time, with what was run when") + below.svg("SM clock over time"),
        f'{key}<div class="small key">{marks}</div>',
    )


KINDS = {
    "baseline": "default, measured",
    "probe": "tried",
    "verify": "compared with default in pairs",
    "hold": "held",
    "proof": "default for a moment, for the proof",
}
"""What the stripes along the top of a picture mean."""


def _figure(drawn: str, below: str) -> str:
    """Charts that scroll where the screen is narrow, and what explains them."""
    return f'<figure><div class="wide">{drawn}</div>{below}</figure>'


def stripe(role: Role) -> str:
    """Which of ``KINDS`` a block is."""
    return {Role.CANDIDATE: "verify", Role.REFERENCE: "verify"}.get(role, role.value)


def turns(story: Story) -> list[Stretch]:
    """The moments at which another setting began to be held."""
    found: list[Stretch] = []
    last: dict[str, Setting] = {}
    for chapter in stretches(story):
        if chapter.kind == "hold" and last.get(chapter.phase) != chapter.setting:
            found.append(chapter)
            last[chapter.phase] = chapter.setting
    # A job whose phases take turns is told in the table; hundreds of marks tell nothing.
    return found if len(found) <= 40 else []


def curves(story: Story, beyond: Beyond) -> tuple[_Curve, _Curve, _Curve, _Curve]:
    """Power, clock, and the lowest and highest power over time since the run began, summed over GPUs."""
    if beyond.power:
        return beyond.power, beyond.clock, beyond.low, beyond.high
    power: _Curve = []
    clock: _Curve = []
    for each in story.seen:
        start, end = story.since_s(each.block.start_s), story.since_s(each.block.end_s)
        power += [(start, each.block.power_w), (end, each.block.power_w)]
        mhz = math.nan if each.block.sm_mhz is None else each.block.sm_mhz
        clock += [(start, mhz), (end, mhz)]
    return power, clock, [], []


def _read(story: Story, series: Sequence[Series]) -> tuple[_Curve, _Curve, _Curve, _Curve]:
    width_s = max(line.width_s for line in series)
    start_s = min(line.start_s for line in series if line.start_s is not None)
    end_s = max(line.end_s for line in series)
    step_s = max(width_s, (end_s - start_s) / _MOST_POINTS)
    curves: tuple[_Curve, _Curve, _Curve, _Curve] = ([], [], [], [])
    for place in range(max(1, round((end_s - start_s) / step_s))):
        from_s, to_s = start_s + place * step_s, start_s + (place + 1) * step_s
        at_s = story.since_s((from_s + to_s) / 2)
        if not 0 <= at_s <= story.span_s:  # before the tuner began, and after its end
            continue
        totals = [[_within(line, from_s, to_s, part) for line in series] for part in range(4)]
        for part, (curve, values) in enumerate(zip(curves, totals, strict=True)):
            found = [value for value in values if value is not None]
            whole = sum(found) / (len(found) if part == 1 else 1) if len(found) == len(series) else math.nan
            curve.append((at_s, whole))
    return curves


def _within(line: Series, from_s: float, to_s: float, part: int) -> float | None:
    """Mean power, mean clock, lowest or highest power of the bins whose middle lies in a stretch."""
    first = max(0, math.ceil((from_s - (line.start_s or 0.0)) / line.width_s - 0.5))
    last = max(0, math.ceil((to_s - (line.start_s or 0.0)) / line.width_s - 0.5))
    bins = [each for each in line.bins[first:last] if (each.clock_samples if part == 1 else each.samples)]
    if not bins:
        return None
    if part == 0:
        return sum(each.power_w_sum for each in bins) / sum(each.samples for each in bins)
    if part == 1:
        return sum(each.sm_mhz_sum for each in bins) / sum(each.clock_samples for each in bins)
    return min(each.low_w for each in bins) if part == 2 else max(each.high_w for each in bins)


def frontier(story: Story, beyond: Beyond) -> str:
    """Every setting that was tried, against default; the one held last, the bound, and what the law expects."""
    points = tried(story.seen)
    if len(points) < 2:
        return ""
    bound = story.facts.get("bound")
    bound = float(bound) if isinstance(bound, (int, float)) and 0 <= bound < 1 else None
    x = span([0.0, *(100 * p.time_change for p in points)] + ([100 * bound] if bound else []), least=2.0)
    y = span([0.0, *(100 * p.energy_change for p in points)], least=2.0)
    chart = Chart(x, y, height=300)
    chart.axes("time, against default (%)", "energy, against default (%)", x_format="{:+g}", y_format="{:+g}")
    chart.level(0.0, "zero")
    if bound is not None:
        chart.upright(100 * bound, "limit", label=f"bound +{100 * bound:g} %", says="the slowdown that was allowed")
    inside = [
        (100 * t, 100 * e) for t, e in sorted(beyond.expected) if x[0] <= 100 * t <= x[1] and y[0] <= 100 * e <= y[1]
    ]
    chart.line(inside, "frontier", says="what the fitted law expects")
    chosen = story.held()
    for point in sorted(points, key=lambda p: p.held):
        kind = "default" if point.setting == DEFAULT else "held" if point.held else "tried"
        label = named(point.setting) if point.setting in (DEFAULT, chosen) else ""
        chart.dot(
            100 * point.time_change,
            100 * point.energy_change,
            kind,
            x_error=100 * STANDARD_ERRORS * point.time_error,
            y_error=100 * STANDARD_ERRORS * point.energy_error,
            size=6 if point.setting == chosen else 4.5,
            says=_tried_words(point),
            label=label,
        )
    others = [point for point in points if point.setting not in (DEFAULT, chosen)]
    chart.names([(100 * p.time_change, 100 * p.energy_change, knobs.brief(p.setting)) for p in others], "quiet")
    key = _key(("default", "default"), ("tried", "tried"), ("held", "held"))
    law = "dashed: what the fitted law expects; " if inside else ""
    law = f'<div class="small key">{law}bars are 95 % of the blocks’ spread</div>'
    return _figure(chart.svg("Energy against time of every setting tried"), key + law)


def _tried_words(point: Tried) -> str:
    phase = f" ({point.phase})" if point.phase else ""
    energy = percent(point.energy_change, STANDARD_ERRORS * point.energy_error, sign=True)
    time = percent(point.time_change, STANDARD_ERRORS * point.time_error, sign=True)
    worked = format_duration(point.seconds)
    return f"{named(point.setting)}{phase}: {energy} energy, {time} time, {worked} of clean work"


def saving(story: Story) -> str:
    """The saving as it could be claimed at each time of the run, with its interval."""
    seen = story.seen
    points: list[tuple[float, float, float]] = []
    for number in sorted({round((place + 1) * len(seen) / _CURVE_POINTS) for place in range(_CURVE_POINTS)} - {0}):
        claim = Claim.of(story.until(number))
        if claim.energy_change is not None:
            at_s = story.since_s(seen[number - 1].block.end_s)
            points.append((at_s, -100 * claim.energy_change, 100 * (claim.energy_half or 0.0)))
    if len(points) < 2:
        return ""
    until_s = max(story.span_s, points[-1][0], 1e-3)
    unit_s, unit = (60.0, "min") if until_s > 180 else (1.0, "s")
    # Early intervals are wide; the scale is that of what is known later.
    later = points[len(points) // 3 :]
    y = span([0.0, *(v - h for _, v, h in later), *(v + h for _, v, h in later)])
    chart = Chart((0.0, until_s / unit_s), y, height=210).axes(f"time ({unit})", "energy saved (%)", y_format="{:+g}")
    chart.level(0.0, "zero")
    chart.band([(t / unit_s, v - h) for t, v, h in points], [(t / unit_s, v + h) for t, v, h in points], "saving")
    chart.line([(t / unit_s, v) for t, v, _ in points], "saving")
    key = _key(("saving", "saved against default, with its 95 % interval, as it could be claimed at that time"))
    return _figure(chart.svg("Energy saved so far, with its interval"), key)


def _key(*names: tuple[str, str]) -> str:
    items = "".join(f'<span><i class="{kind}"></i>{escape(words)}</span>' for kind, words in names)
    return f'<div class="key">{items}</div>'
