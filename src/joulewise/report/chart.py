"""Charts as inline SVG, drawn by hand: a page that needs no library, no script and no request, in light and dark.

A ``Chart`` maps data to one panel; colours are CSS classes, so that the page decides them. Small on purpose: lines,
bands, dots with error bars, marks and ticks are all that a report needs. For pictures as files see ``plot``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

Pairs = Sequence[tuple[float, float]]

_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 14.0, 10.0, 40.0
_LETTER, _LINE = 6.3, 12.0
"""About how wide a letter and how high a line of a note is."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within ``low`` to ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    # Counted, not summed: 0.1 + 0.2 is no label.
    return [round(number * step, 12) + 0.0 for number in range(first, math.floor(high / step + 1e-9) + 1)]


def span(values: Iterable[float], *, room: float = 0.08, least: float = 0.0) -> tuple[float, float]:
    """From the lowest to the highest value with some room, at least ``least`` wide."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    width = max(high - low, least, 1e-9)
    middle = (low + high) / 2
    return middle - width * (0.5 + room), middle + width * (0.5 + room)


class Chart:
    """One panel of ``width`` × ``height`` that shows ``x`` and ``y``, each from low to high."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float], *, width: float = 860, height: float = 220):
        self._x, self._y = x, y
        self._width, self._height = width, height
        self._parts: list[str] = []
        self._taken: list[Box] = []

    def x(self, value: float) -> float:
        """Where a value lies from the left."""
        return _LEFT + (value - self._x[0]) / (self._x[1] - self._x[0]) * (self._width - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Where a value lies from the top."""
        share = (value - self._y[0]) / (self._y[1] - self._y[0])
        return self._height - _BOTTOM - share * (self._height - _TOP - _BOTTOM)

    def axes(self, x_name: str, y_name: str, *, x_format: str = "{:g}", y_format: str = "{:g}") -> Chart:
        """Ticks, a quiet grid, and the names with their units."""
        left, right, bottom = self.x(self._x[0]), self.x(self._x[1]), self.y(self._y[0])
        for value in ticks(*self._y, most=5):
            at = self.y(value)
            self._add(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
            self.text(left - 7, at + 4, _label(y_format, value), "tick end")
        for value in ticks(*self._x, most=8):
            self.text(self.x(value), bottom + 16, _label(x_format, value), "tick middle")
        self._add(f'<line class="axis" x1="{left:.1f}" x2="{right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>')
        if x_name:
            self.text(right, bottom + 32, x_name, "name end")
        turned = f'transform="rotate(-90)" x="{-(self.y(self._y[1])):.1f}" y="13"'
        self._add(f'<text class="name end" {turned}>{escape(y_name)}</text>')
        return self

    def line(self, points: Pairs, kind: str, *, says: str = "") -> Chart:
        """A curve through ``points``; NaN breaks it."""
        drawn = " ".join(
            f"{'M' if start else 'L'}{self.x(x):.1f} {self.y(self._inside(y)):.1f}" for x, y, start in _pieces(points)
        )
        if drawn:
            self._add(f'<path class="line {kind}" d="{drawn}">{_title(says)}</path>')
        return self

    def band(self, low: Pairs, high: Pairs, kind: str) -> Chart:
        """What lies between two curves over the same x; NaN breaks it."""
        run: list[tuple[float, float, float]] = []
        for (x, below), (_, above) in zip([*low, (math.nan, math.nan)], [*high, (math.nan, math.nan)], strict=True):
            if math.isfinite(x) and math.isfinite(below) and math.isfinite(above):
                run.append((x, self._inside(below), self._inside(above)))
            elif run:
                edge = [f"{self.x(x):.1f} {self.y(up):.1f}" for x, _, up in run]
                edge += [f"{self.x(x):.1f} {self.y(down):.1f}" for x, down, _ in reversed(run)]
                self._add(f'<path class="band {kind}" d="M{" L".join(edge)} Z"/>')
                run = []
        return self

    def stripe(self, start: float, end: float, kind: str, *, says: str = "", thick: float = 6.0) -> Chart:
        """A stretch of x marked along the top edge."""
        left, width = self.x(start), max(0.8, self.x(end) - self.x(start))
        self._add(
            f'<rect class="stripe {kind}" x="{left:.1f}" y="{_TOP - thick:.1f}" width="{width:.1f}" '
            f'height="{thick:.1f}">{_title(says)}</rect>'
        )
        return self

    def upright(self, x: float, kind: str, *, says: str = "", label: str = "") -> Chart:
        """A vertical mark through the panel."""
        at = self.x(x)
        top, bottom = self.y(self._y[1]), self.y(self._y[0])
        self._add(
            f'<g class="mark {kind}"><line x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
            f'<line class="touch" x1="{at:.1f}" x2="{at:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>{_title(says)}</g>'
        )
        if label:
            self._note(at + 4, top + 11, label, kind)
        return self

    def level(self, y: float, kind: str, *, label: str = "") -> Chart:
        """A horizontal mark through the panel."""
        at, left, right = self.y(y), self.x(self._x[0]), self.x(self._x[1])
        self._add(f'<line class="level {kind}" x1="{left:.1f}" x2="{right:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        if label:
            self.text(right - 3, at - 4, label, f"note end {kind}")
        return self

    def dot(
        self,
        x: float,
        y: float,
        kind: str,
        *,
        x_error: float = 0.0,
        y_error: float = 0.0,
        size: float = 4.5,
        says: str = "",
        label: str = "",
    ) -> Chart:
        """A point with its error bars."""
        at_x, at_y = self.x(x), self.y(y)
        left, right = (self.x(min(max(x + sign * x_error, self._x[0]), self._x[1])) for sign in (-1, 1))
        low, high = (self.y(self._inside(y + sign * y_error)) for sign in (-1, 1))
        self._add(
            f'<g class="dot {kind}"><path class="bar" d="M{left:.1f} {at_y:.1f} H{right:.1f} '
            f'M{at_x:.1f} {low:.1f} V{high:.1f}"/>'
            f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size:g}"/>{_title(says)}</g>'
        )
        self._taken.append((at_x - size, at_y - size, at_x + size, at_y + size))
        if label:
            near_right = at_x > self._width * 0.72
            self._note(at_x + (-9 if near_right else 9), at_y - 7, label, kind, end=near_right)
        return self

    def names(self, points: Iterable[tuple[float, float, str]], kind: str) -> Chart:
        """Names beside points that were drawn before; one for which there is no room is left out."""
        left, right = self.x(self._x[0]), self.x(self._x[1])
        for x, y, words in points:
            for across, down, end in ((8, -6, False), (8, 14, False), (-8, -6, True), (-8, 14, True)):
                at = (self.x(x) + across, self.y(y) + down)
                box = _box(*at, words, end=end)
                inside = left <= box[0] and box[2] <= right and box[1] >= _TOP and box[3] <= self.y(self._y[0])
                if inside and not any(_meet(box, other) for other in self._taken):
                    self._note(*at, words, kind, end=end)
                    break
        return self

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        """Words at a place of the picture, not of the data."""
        self._add(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>')

    def _note(self, x: float, y: float, words: str, kind: str, *, end: bool = False) -> None:
        """Words that nothing else should cover."""
        self._taken.append(_box(x, y, words, end=end))
        self.text(x, y, words, f"note {kind}" + (" end" if end else ""))

    def svg(self, says: str) -> str:
        """The picture; ``says`` is what somebody who cannot see it is told."""
        body = "\n".join(self._parts)
        size = f'viewBox="0 0 {self._width:g} {self._height:g}"'
        return f'<svg {size} role="img" aria-label="{escape(says)}">\n{body}\n</svg>'

    def _inside(self, y: float) -> float:
        """A value beyond the panel's edge is drawn at the edge."""
        return min(max(y, self._y[0]), self._y[1])

    def _add(self, part: str) -> None:
        self._parts.append(part)


def _box(x: float, y: float, words: str, *, end: bool) -> Box:
    """About what a note at this place covers."""
    wide = _LETTER * len(words)
    return (x - wide if end else x, y - _LINE + 2, x if end else x + wide, y + 2)


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _pieces(points: Pairs) -> Iterable[tuple[float, float, bool]]:
    """Finite points, and whether each begins a new piece."""
    start = True
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            yield x, y, start
            start = False
        else:
            start = True


def _label(pattern: str, value: float) -> str:
    """A number on an axis; nothing has no sign."""
    return pattern.format(value).replace("-", "−") if value else "0"


def _title(says: str) -> str:
    return f"<title>{escape(says)}</title>" if says else ""


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds and name of the unit in which people read such a span."""
    if span_s > 4 * 86_400:
        return 86_400.0, "days"
    return (3600.0, "hours") if span_s > 2 * 3600 else (60.0, "minutes")
