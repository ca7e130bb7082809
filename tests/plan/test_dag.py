"""A Dag is checked when it is made, and knows when each operation starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.plan.dag import Dag, Edge, Operation

THREE = tuple(Operation(0, 0, "forward", number) for number in range(3))


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ([Edge(0, 3)], "0 → 3 leaves the 3 operations"),
        ([Edge(-1, 0)], "-1 → 0 leaves"),
        ([Edge(0, 1, -0.5)], "lag of -0.5 s"),
        ([Edge(0, 1, float("nan"))], "lag of nan s"),
        ([Edge(1, 1)], "in a circle: forward of stage 0, microbatch 1"),
        (
            [Edge(0, 1), Edge(1, 2), Edge(2, 1)],
            "microbatch 1 after forward of stage 0, microbatch 2|microbatch 2 after ",
        ),
    ],
)
def test_edges_that_cannot_be_are_refused(edges: list[Edge], why: str) -> None:
    with pytest.raises(BadSpec, match=why):
        Dag(THREE, tuple(edges), 1)


def test_an_operation_of_no_rank_is_refused() -> None:
    with pytest.raises(BadSpec, match=r"rank 0, but there are ranks 0…-1"):
        Dag(THREE, (), 0)


def test_a_cycle_is_named_without_those_that_only_wait_for_it() -> None:
    with pytest.raises(BadSpec, match="in a circle") as refused:
        Dag(THREE, (Edge(1, 2), Edge(2, 1), Edge(1, 0)), 1)
    assert "microbatch 0" not in str(refused.value)


def test_a_long_cycle_is_named_in_short() -> None:
    many = tuple(Operation(0, 0, "forward", number) for number in range(500))
    with pytest.raises(BadSpec, match="and 495 more"):
        Dag(many, tuple(Edge(number, (number + 1) % 500) for number in range(500)), 1)


def test_an_operation_starts_when_the_last_of_those_before_it_has_arrived() -> None:
    dag = Dag(THREE, (Edge(0, 2, 0.5), Edge(1, 2)), 1)
    assert dag.starts_s([1.0, 1.25, 9.0]) == [0.0, 0.0, 1.5]
    with pytest.raises(BadSpec, match="2 durations were given for 3 operations"):
        dag.starts_s([1.0, 1.0])


@given(st.data())
def test_any_edges_that_run_one_way_make_a_dag_whose_order_keeps_them(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    names = data.draw(st.permutations(range(count)))
    pairs = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    edges = tuple(Edge(names[min(pair)], names[max(pair)]) for pair in pairs if pair[0] != pair[1])
    dag = Dag(tuple(Operation(0, 0, "forward", number) for number in range(count)), edges, 1)
    place = {index: at for at, index in enumerate(dag.order)}
    assert sorted(place) == list(range(count))
    assert all(place[edge.before] < place[edge.after] for edge in edges)
