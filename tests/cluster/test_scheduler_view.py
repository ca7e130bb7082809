"""What a round may decide on: nodes that are there, GPUs that are free, everybody where the engine shows them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.engine import NodeSeen
from joulewise.cluster.scheduler_track import JobRun
from joulewise.cluster.scheduler_view import floors, ground
from joulewise.cluster.state import Budget, Job, Snapshot
from tests.cluster.toys import TOY, toy_ways

KINDS = {"toy": TOY}
EIGHT, TWO = toy_ways((8,))[0], toy_ways((2,))[0]


def node(name: str, *, state: str = "up", gpus: int = 8, foreign: int = 0) -> NodeSeen:
    return NodeSeen(name, gpus, state, "toy", foreign)  # type: ignore[arg-type]


def test_nodes_that_are_down_or_silent_and_empty_are_left_out() -> None:
    there = ground([node("a"), node("b", state="down"), node("c"), node("d")], KINDS, silent={"c", "d"}, held={"d": 2})
    assert there.names == {"toy": ("a", "d")}
    assert there.blocked == {"d": 6}
    assert (there.kinds[0].nodes, there.kinds[0].gpus) == (2, 10)


def test_gpus_of_others_and_of_smaller_nodes_are_blocked() -> None:
    there = ground([node("a", foreign=3), node("b", gpus=4), node("c")], KINDS)
    assert there.blocked == {"a": 3, "b": 4}
    made, _ = floors(there, {}, ())
    assert made["toy"].free == 24 - 7 == there.kinds[0].gpus


def test_everybody_is_where_the_engine_shows_them_and_those_on_their_way_take_what_is_left() -> None:
    there = ground([node("a"), node("b"), node("c", state="off"), node("d", state="booting")], KINDS)
    runs = {
        "sure": JobRun(EIGHT, {"a": 8}, sure=True),
        "coming": JobRun(TWO, {"b": 2}),
        "late": JobRun(EIGHT, {"a": 8}),
        "lost": JobRun(EIGHT, {"x": 8}),
        "waits": JobRun(),
    }
    made, homeless = floors(there, runs, {"sure"})
    assert made["toy"].places == {"sure": ((0, 8),), "coming": ((1, 2),)}
    assert sorted(homeless) == ["late", "lost"]
    assert (made["toy"].off, made["toy"].booting) == ({2}, {3})
    assert there.named("toy", ((1, 2),)) == {"b": 2}


def test_nothing_is_there_where_all_nodes_are_down_or_of_no_known_kind() -> None:
    assert ground([node("a", state="down")], KINDS).kinds == ()
    assert ground([NodeSeen("a", 8, "up", "strange")], KINDS).kinds == ()


@pytest.mark.parametrize("taken", range(8))
def test_a_policy_that_fills_nodes_gives_out_nothing_that_others_hold(taken: int) -> None:
    kind = replace(TOY, nodes=2, taken=taken)
    jobs = tuple(Job(f"j{at}", 0.0, 1000.0 * (at + 1), toy_ways(), 4) for at in range(5))
    for power_w in (None, 4000.0):
        given = priced()(Snapshot(0.0, (kind,), jobs), Budget(power_w=power_w, joule_s=1e-3))
        assert given.gpus() <= 16 - taken
