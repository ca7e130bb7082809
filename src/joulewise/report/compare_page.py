"""A comparison of two runs in words: as lines for a terminal, and as one HTML file that asks nobody for anything."""

from __future__ import annotations

import math
from html import escape

from joulewise.core.units import format_duration, format_energy
from joulewise.report import frame
from joulewise.report.claim import INTERVAL, percent
from joulewise.report.compare import Comparison, Difference, Side
from joulewise.report.worth import Amount, grams


def headline(found: Comparison) -> str:
    """``"20260314-1015: −8.1 % ± 0.6 % energy, +0.8 % time against 20260313-0900"``."""
    said = [
        f"{_percent(each)} {each.name.split()[0]}"
        for each in found.differences[:2]
        if each.ratio is not None and each.name.endswith("of the run")
    ]
    first = ", ".join(said) or "nothing was measured of both"
    return f"{found.b.summary.name}: {first} against {found.a.summary.name}"


def lines(found: Comparison) -> list[str]:
    """For a terminal: the answer, the warnings, the table, the remarks."""
    said = [headline(found)]
    said += [f"  not comparable: {each}" for each in found.warnings]
    rows = [("", "A", "B", "B - A", "B against A"), *(_cells(each) for each in found.differences)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows if found.differences else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        said.append(f"  {'  '.join(cells)}".rstrip())
    said += [f"  A is {found.a.summary.name}, B {found.b.summary.name}; {INTERVAL}"]
    return said + [f"  {each}" for each in found.remarks]


def page(found: Comparison) -> str:
    """The whole file."""
    title = headline(found)
    warned = "".join(f"<li>{escape(each)}</li>" for each in found.warnings)
    rows = "\n".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td class=n>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, *cells in map(_cells, found.differences)
    )
    table = (
        '<div class="wide"><table><thead><tr><th></th><th class="n">A</th><th class="n">B</th><th class="n">B − A</th>'
        f'<th class="n">B against A</th></tr></thead><tbody>\n{rows}\n</tbody></table></div>'
        if rows
        else '<p class="say">Nothing was measured of both.</p>'
    )
    kept = "".join(f"<li>{escape(each)}</li>" for each in found.remarks)
    parts = [
        f'<header><h1>{frame.text(title)}</h1>\n<div class="small">{INTERVAL}.</div></header>',
        frame.section("Not comparable", f"<ul>{warned}</ul>" if warned else ""),
        frame.section("Differences", table),
        frame.section("The two runs", _sides(found)),
        frame.section("What to keep in mind", f"<ul>{kept}</ul>"),
    ]
    return frame.page(title, parts)


def _sides(found: Comparison) -> str:
    told = [(letter, _about(side)) for letter, side in (("A", found.a), ("B", found.b))]
    heads = "".join(f"<th>{letter}</th>" for letter, _ in told)
    rows = "\n".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{escape(about[name])}</td>' for _, about in told)}</tr>"
        for name in told[0][1]
    )
    return f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _about(side: Side) -> dict[str, str]:
    summary = side.summary
    return {
        "run": summary.name,
        "result": summary.headline,
        "command": summary.command,
        "GPUs": ", ".join(summary.gpus) + (" (virtual)" if summary.virtual else ""),
        "asked for": side.wanted or "nothing set, only measured",
        "steps measured": "not known" if side.steps is None else f"{side.steps:g}",
    }


def _cells(each: Difference) -> tuple[str, str, str, str, str]:
    sign = "+" if each.change >= 0 else "−"
    ratio = _percent(each)
    return (
        each.name,
        _amount(each.a, each.a_half, each.unit),
        _amount(each.b, each.b_half, each.unit),
        sign + _amount(abs(each.change), each.change_half, each.unit),
        "the same" if each.change == 0 else ratio + (" (cannot be told from nothing)" if each.told is False else ""),
    )


def _percent(each: Difference) -> str:
    """B against A; without ± where there is none, as of the times of whole runs, known to the millisecond."""
    if each.ratio is None:
        return ""
    if not each.ratio_half:
        return f"{100 * each.ratio:+.1f} %".replace("-", "−")
    return percent(each.ratio, each.ratio_half, sign=True)


def _amount(value: float, half: float | None, unit: str) -> str:
    if unit == "J":
        return format_energy(value, half)
    if unit == "g":
        return grams(Amount(value, half or 0.0))
    if not half:
        return format_duration(value)
    decimals = min(6, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:,.{decimals}f} ± {half:,.{decimals}f} {unit}"
