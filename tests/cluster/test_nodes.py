"""Nodes sleep when that pays, enough of them stay warm, and no more boot than are called for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.nodes import NodePower, break_even_s
from joulewise.cluster.placement import Floor
from joulewise.core.errors import BadSpec
from tests.cluster.toys import TOY

WAIT_S = 300.0 * 1200.0 / (1200.0 - 20.0)


def apply(floor: Floor, power: NodePower, now_s: float, waiting_gpus: int = 0, *, boot: bool = True) -> float | None:
    """Look and do as told, with boots that take no time."""
    switching = power.look(now_s, floor, waiting_gpus)
    for node in switching.off:
        floor.shut(node)
    for node in switching.on:
        floor.boot(node)
        if boot:
            floor.booted(node)
    return switching.again_s


def test_a_node_must_stay_off_for_as_long_as_its_boot_would_feed_it() -> None:
    assert break_even_s(TOY) == pytest.approx(WAIT_S)
    assert break_even_s(replace(TOY, off_w=TOY.empty_node_w)) == float("inf")


def test_empty_nodes_beyond_the_reserve_go_off_after_the_break_even_time_and_it_asks_to_be_called_then() -> None:
    floor, power = Floor(TOY), NodePower(warm=1)
    floor.place("a", 8)
    assert apply(floor, power, 0.0) == pytest.approx(WAIT_S)
    assert floor.on == 4
    assert apply(floor, power, WAIT_S) is None
    assert floor.on == 2  # the one in use and a warm one
    assert floor.off == {2, 3}


def test_a_level_whose_gaps_were_long_goes_off_at_once() -> None:
    floor, power = Floor(TOY), NodePower(warm=0)
    now_s = 0.0
    for _ in range(3):
        apply(floor, power, now_s, 32)
        floor.place("a", 32)
        apply(floor, power, now_s)
        floor.release("a")
        apply(floor, power, now_s)
        now_s += 10 * WAIT_S
        apply(floor, power, now_s)
        assert floor.on == 0
        now_s += 10 * WAIT_S
    apply(floor, power, now_s, 32)
    floor.place("a", 32)
    apply(floor, power, now_s)
    floor.release("a")
    assert floor.on == 4
    apply(floor, power, now_s + 1.0)
    assert floor.on == 0


def test_short_gaps_are_waited_out() -> None:
    floor, power = Floor(TOY), NodePower(warm=0)
    for at in range(20):
        floor.place("a", 32)
        apply(floor, power, 200.0 * at)
        floor.release("a")
        apply(floor, power, 200.0 * at + 100.0)
        assert floor.on == 4


def test_nodes_that_there_are_no_watts_for_go_off_at_once_and_do_not_boot() -> None:
    floor, power = Floor(TOY), NodePower(warm=2)
    assert power.look(0.0, floor, 0, room=3).off == (3,)
    assert power.look(0.0, floor, 0, room=0).off == (0, 1, 2, 3)
    for node in range(4):
        floor.shut(node)
    assert power.look(1.0, floor, 24, room=2).on == (0, 1)
    assert power.look(2.0, floor, 24, room=0).on == ()


def test_boots_are_spread_over_the_nodes() -> None:
    floor, power = Floor(TOY), NodePower(warm=0)
    for node in range(4):
        floor.shut(node)
    booted = []
    for at in range(4):
        (node,) = power.look(1e4 * at, floor, 8).on
        booted.append(node)
    assert sorted(booted) == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 32), st.floats(1.0, 2000.0)), max_size=30), st.integers(0, 3))
def test_no_more_nodes_boot_than_the_waiting_and_the_reserve_need_and_none_in_use_is_shut(
    course: list[tuple[int, float]], warm: int
) -> None:
    floor, power = Floor(TOY), NodePower(warm=warm)
    now_s = 0.0
    for gpus, later_s in course:
        floor.release("a")
        waiting = 0
        if gpus and floor.repack_for("a", gpus) is None:
            waiting = gpus - floor.free
        switching = power.look(now_s, floor, waiting)
        assert not (switching.on and switching.off)
        called = min(4, floor.busy + -(-waiting // 8) + warm)
        assert floor.on + len(switching.on) == called or not switching.on
        assert floor.on - len(switching.off) >= called or not switching.off
        for node in switching.off:
            floor.shut(node)  # raises if somebody is on it
        for node in switching.on:
            floor.boot(node)
            floor.booted(node)
        now_s += later_s


def test_a_reserve_below_nothing_is_refused() -> None:
    with pytest.raises(BadSpec, match="warm reserve of -1"):
        NodePower(warm=-1)


def test_nodes_that_die_and_come_change_nothing_for_the_others() -> None:
    power = NodePower(warm=0)
    for nodes in (4, 2, 5):
        kind = replace(TOY, nodes=nodes)
        floor = Floor(kind)
        assert power.look(0.0, floor, 0).off == ()
    said = power.look(break_even_s(TOY) + 1.0, Floor(replace(TOY, nodes=5)), 0)
    assert len(said.off) == 5
    assert power.look(break_even_s(TOY) + 2.0, Floor(replace(TOY, nodes=3)), 0).off == (0, 1, 2)
