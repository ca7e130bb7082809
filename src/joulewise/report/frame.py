"""What every page that we write is in: one HTML file, complete in itself, that loads nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from joulewise.report.style import STYLE

_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?(?:W|J|Wh|B|iB|Hz)|ms|s|min|h|GPUs?)(?![\w]))|(?<=±) (?=\d)")


def page(title: str, parts: Iterable[str], *, style: str = "", after: str = "") -> str:
    """``parts`` below one another; empty ones are left out. ``style``: rules of this page's own; ``after``: what
    follows what is shown."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, parts))
        + f"\n</main>\n{after}</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """A part under its title; nothing where there is nothing to show."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def text(words: str) -> str:
    """Words as HTML, in which no line ends between a number and its unit or its sign."""
    return _UNIT.sub("&nbsp;", escape(words))


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """Figures to see first, each with what it is."""
    shown = (f'<div class="tile"><b>{text(figure)}</b><span>{text(about)}</span></div>' for figure, about in pairs)
    return f'<div class="tiles">{"".join(shown)}</div>'
