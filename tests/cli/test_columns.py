"""Tables that fit: columns go before names are cut, and a number is whole or not there."""

import io

import pytest
from rich.console import Console

from joulewise.cli.columns import fitted

HEADS = ("name", "kWh/day", "idle", "saved (95 %)")
ROWS = [("a-very-long-name-of-a-job", "36,123", "5.0 %", "41 (25 to 66)"), ("b", "3", "0", "0.1 (0.0 to 0.2)")]


def shown(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(fitted(console, HEADS, ROWS, spare=("idle", "kWh/day")))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", range(26, 100))
def test_a_number_is_whole_or_its_column_is_not_there(width):
    head, _, first, second = (line.rstrip() for line in shown(width))
    assert first.endswith("41 (25 to 66)")
    assert second.endswith("0.1 (0.0 to 0.2)")
    for name, number in (("kWh/day", "36,123"), ("idle", "5.0 %")):
        assert (name in head) == (number in first)
    assert max(map(len, (head, first, second))) <= width


def test_columns_go_in_the_order_that_is_said_and_names_are_cut_last():
    assert "idle" in shown(80)[0]
    without = next(width for width in range(80, 20, -1) if "idle" not in shown(width)[0])
    assert "kWh/day" in shown(without)[0]
    assert all("…" not in "".join(shown(width)) for width in range(without, 80))
    narrow = next(width for width in range(80, 20, -1) if "…" in "".join(shown(width)))
    assert "kWh/day" not in shown(narrow)[0]


def test_where_not_even_the_last_number_has_room_it_is_broken_not_cut():
    digits = "".join(line[5:].replace(" ", "") for line in shown(14))
    assert "41(25to66)" in digits
    assert "…" not in digits


def test_a_name_is_no_markup_whatever_its_label_holds():
    console = Console(file=io.StringIO(), width=80)
    console.print(fitted(console, HEADS, [("train[gpu]x[/]y", "1", "2", "3")], spare=()))
    assert isinstance(console.file, io.StringIO)
    assert "train[gpu]x[/]y" in console.file.getvalue()
