"""One check for every order, whoever wrote it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster import orders
from joulewise.cluster.engine import Order
from joulewise.core.errors import BadSpec
from joulewise.core.plain import built, plain

WHOLE = Order(
    "night-7",
    ("python", "train.py"),
    8,
    submitted_s=1.8e9,
    checkpoint="/scratch/n",
    least_gpus=2,
    most_gpus=16,
    work=10_000,
    brought={"gpu": "a100-sxm", "gpus": {"8": [{"time_s": 0.2, "energy_j": 290.0, "setting": {"sm_mhz": 1200}}]}},
    workload="gpt2",
    batch=64,
    deadline_s=1.9e9,
    weight=2.0,
    tenant="physics",
    directory="/home/a",
    environ={"A_1": "x\ny"},
    limit_s=86400.0,
)


def test_an_order_that_makes_sense_passes_with_and_without_what_it_may_lack() -> None:
    orders.check(WHOLE)
    orders.check(Order("a", (), 1))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../x"},
        {"name": "a" * 65},
        {"name": 5},
        {"gpus": True},
        {"gpus": 0},
        {"gpus": 10**400},
        {"least_gpus": "x"},
        {"least_gpus": -3},
        {"least_gpus": None},
        {"most_gpus": 1.0},
        {"batch": 0},
        {"work": -5.0},
        {"work": 0.0},
        {"work": float("nan")},
        {"work": 10**400},
        {"weight": float("nan")},
        {"weight": -1.0},
        {"weight": float("inf")},
        {"weight": None},
        {"submitted_s": float("nan")},
        {"submitted_s": -1.0},
        {"deadline_s": float("nan")},
        {"limit_s": "x"},
        {"limit_s": 0},
        {"checkpoint": 5},
        {"checkpoint": ""},
        {"checkpoint": "a\0b"},
        {"checkpoint": "/\ud800"},
        {"workload": {}},
        {"tenant": []},
        {"tenant": "x" * 201},
        {"directory": "a\0"},
        {"command": ["x"]},
        {"command": ("x", 5)},
        {"command": ("\0",)},
        {"environ": [1]},
        {"environ": {"a b": "x"}},
        {"environ": {"a": "\0"}},
        {"environ": {"a": 1}},
        {"brought": [1]},
        {"brought": "x"},
        {"brought": {"gpu": {1}}},
        {"brought": {"\ud800": 1}},
    ],
    ids=lambda change: ascii(change)[:40],
)
def test_what_makes_no_sense_is_refused_in_one_line_with_the_field_and_the_way_out(change: dict[str, Any]) -> None:
    with pytest.raises(BadSpec, match=r"it must be|rename") as caught:
        orders.check(replace(WHOLE, **change))
    (field,) = change
    assert field in str(caught.value) or field == "environ"
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_brought_values_are_neither_deep_nor_many() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for brought in ({"gpus": deep}, {"gpus": [0] * 300_000}):
        with pytest.raises(BadSpec, match="brought is a dict"):
            orders.check(replace(WHOLE, brought=brought))


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.sampled_from([field.name for field in fields(Order)]), ANY | st.dictionaries(st.text(), ANY, max_size=3))
def test_what_passes_can_be_written_down_and_comes_back(field: str, value: Any) -> None:
    order = replace(WHOLE, **{field: value})
    try:
        orders.check(order)
    except BadSpec:
        return
    text = json.dumps(plain(order), ensure_ascii=False).encode()
    again = built(Order, json.loads(text))
    orders.check(again)
    if field != "brought":  # its numbers may be infinite here, and are looked at where they are used
        assert again == order
