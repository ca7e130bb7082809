"""Metrics found in what a command prints."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulewise.cli.recur_pattern import Patterns
from joulewise.core.errors import BadSpec

USUAL = r"epoch (?P<epoch>\d+) .*val_acc=(?P<val_acc>[0-9.]+)"
GREEDY = r"(?P<epoch>\S+)[ =](?P<loss>\S+)"
"""Takes anything for a number, as a hasty user writes it."""


def told(patterns: Patterns, *lines: str) -> list[tuple[float, dict[str, float]]]:
    return [(metric.epoch, dict(metric.values)) for line in lines for metric in patterns.find(line)]


# Laws.


@example("a{99999999999999999999}")
@example("[[a](?P<x>b)")
@example("(" * 5000)
@given(st.text() | st.from_regex(r"[()\[\]{}?P<x>*+|\\^$0-9-]*", fullmatch=True))
def test_any_text_is_a_pattern_or_is_refused_in_one_line(text):
    said = "--metric-pattern"
    try:
        Patterns([text]).find("epoch 1 val_acc=0.5")
    except BadSpec as error:
        said = str(error)
    assert said.startswith("--metric-pattern")
    assert said.isprintable()


@example("inf 1", "0 0")
@example("1e999 nan", "-1 2")
@given(st.text(), st.text())
def test_any_line_is_searched_and_every_epoch_that_comes_of_it_can_be_counted(one, other):
    for pattern in (USUAL, GREEDY):
        for epoch, values in told(Patterns([pattern]), one, other):
            assert 0 <= epoch < math.inf
            assert all(isinstance(value, float) for value in values.values())


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 1e6)), min_size=1))
def test_what_is_printed_is_found_as_it_was(epochs):
    lines = [f"[{at}] epoch={epoch} loss={loss!r}, ok" for at, (epoch, loss) in enumerate(epochs)]
    found = told(Patterns([r"epoch=(?P<epoch>\d+) loss=(?P<loss>[0-9.e+-]+)"]), *lines)
    assert found == [(epoch, {"loss": loss}) for epoch, loss in epochs]


@given(st.integers(1, 20))
def test_without_an_epoch_the_matches_are_counted(number):
    found = told(Patterns([r"val_acc=(?P<val_acc>\S+)"]), *(["nothing", "val_acc=0.5"] * number))
    assert [epoch for epoch, _ in found] == list(range(1, number + 1))


# What it promises besides.


def test_a_script_that_counts_from_0_has_done_one_epoch_when_it_tells_of_epoch_0():
    lines = [f"epoch {number} of 9 val_acc=0.5" for number in range(3)]
    assert [epoch for epoch, _ in told(Patterns([USUAL]), *lines)] == [1, 2, 3]
    assert [epoch for epoch, _ in told(Patterns([USUAL]), *lines[1:])] == [1, 2]


def test_colours_and_cursor_movements_are_not_part_of_a_line():
    assert told(Patterns([USUAL]), "\x1b[2K\x1b[1;32mepoch \x1b[0m3 \x1b[?25lval_acc=0.5") == [(3, {"val_acc": 0.5})]


def test_several_patterns_count_each_for_itself():
    patterns = Patterns([r"loss=(?P<loss>\S+)", r"acc=(?P<acc>\S+)"])
    assert told(patterns, "loss=3 acc=0.1", "loss=2") == [(1, {"loss": 3.0}), (1, {"acc": 0.1}), (2, {"loss": 2.0})]


def test_a_value_that_is_no_number_is_left_out_and_nan_is_one():
    patterns = Patterns([r"loss=(?P<loss>\S+)"])
    assert told(patterns, "loss=none") == []
    ((epoch, values),) = told(patterns, "loss=nan")
    assert epoch == 1
    assert math.isnan(values["loss"])


@pytest.mark.parametrize("pattern", ["val_acc=([0-9.]+)", r"epoch (?P<epoch>\d+)", ""])
def test_a_pattern_that_names_no_metric_is_refused_with_one_that_does(pattern):
    with pytest.raises(BadSpec, match="names no metric; write a group such as") as refused:
        Patterns([pattern])
    written = re.search(r"such as '(.*)'$", str(refused.value))
    assert told(Patterns([written[1]]), "val_acc=0.25") == [(1, {"val_acc": 0.25})]


def test_without_patterns_nothing_is_looked_for():
    assert not Patterns([])
    assert Patterns([]).find("val_acc=0.5") == []
