"""Tables on terminals of any width: what has no room is left out, column by column. A number is never cut: ``36…`` may
be 36 or 3,600."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from joulewise.cli.console import Console

_UNBOUNDED = 1000
_SHORTEST = 4  # of what is left of a name


def fitted(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str]) -> Table:
    """A table for this console: names in the first column, numbers in the others.

    Where it has no room for all, the columns called ``spare`` go, in that order; then names are shortened, and at last
    numbers are broken into lines.
    """
    shown = list(range(len(heads)))
    for name in spare:
        if _excess(console, _table(heads, rows, shown)) <= 0:
            break
        shown.remove(heads.index(name))
    excess = _excess(console, _table(heads, rows, shown))
    if excess > 0:
        longest = max(_SHORTEST, max(len(row[0]) for row in (heads, *rows)) - excess)
        heads, rows = _shortened(heads, longest), [_shortened(row, longest) for row in rows]
    return _table(heads, rows, shown)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
    for place in shown:
        if place == 0:
            table.add_column(heads[0], no_wrap=True)
        else:
            table.add_column(heads[place], justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[place]) for place in shown))  # a name is somebody's label, and no markup
    return table


def _excess(console: Console, table: Table) -> int:
    """Columns that it takes more than there are, where nothing is broken or cut."""
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), table).maximum - console.width


def _shortened(row: Sequence[str], longest: int) -> list[str]:
    name, *numbers = row
    return [name if len(name) <= longest else f"{name[: longest - 1]}…", *numbers]
