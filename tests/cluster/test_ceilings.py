"""Ceilings: they sum to no more than there is, and spare watts go where jobs are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.ceilings import Need, ceilings

watts = st.floats(0.0, 20_000.0, allow_subnormal=False)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Need]:
    found = {}
    for number in range(draw(st.integers(1, 6))):
        least, more, most = draw(watts), draw(watts), draw(watts)
        found[f"n{number}"] = Need(least, least + more, least + more + most)
    return found


@given(room_w=st.floats(0.0, 200_000.0, allow_subnormal=False), needs=nodes())
def test_they_never_sum_to_more_than_the_room_and_no_node_gets_more_than_it_can_draw(
    room_w: float, needs: dict[str, Need]
) -> None:
    given_w = ceilings(room_w, needs)
    assert given_w.keys() == needs.keys()
    assert sum(given_w.values()) <= room_w
    for node, need in needs.items():
        assert -1e-6 <= given_w[node] <= need.most_w + 1e-6


@given(room_w=st.floats(0.0, 200_000.0, allow_subnormal=False), needs=nodes())
def test_everybody_gets_what_is_believed_where_the_room_is_enough_and_the_least_where_it_is_enough_for_that(
    room_w: float, needs: dict[str, Need]
) -> None:
    given_w = ceilings(room_w, needs)
    for node, need in needs.items():
        if room_w >= sum(each.believed_w for each in needs.values()) + 1e-3:
            assert given_w[node] >= need.believed_w - 1e-3
        if room_w >= sum(each.least_w for each in needs.values()) + 1e-3:
            assert given_w[node] >= need.least_w - 1e-3


def test_what_is_spare_goes_to_nodes_with_jobs_before_empty_ones() -> None:
    needs = {"busy": Need(1000, 3000, 4000), "empty": Need(1000, 1000, 4000)}
    assert ceilings(4500, needs) == pytest.approx({"busy": 3500, "empty": 1000})
    assert ceilings(6000, needs) == pytest.approx({"busy": 4000, "empty": 2000})
    assert ceilings(50_000, needs) == pytest.approx({"busy": 4000, "empty": 4000})


def test_a_cap_below_what_is_believed_takes_the_same_part_above_their_least_from_all() -> None:
    needs = {"a": Need(1000, 3000, 4000), "b": Need(1000, 2000, 4000)}
    assert ceilings(3500, needs) == pytest.approx({"a": 2000, "b": 1500})
    assert ceilings(1000, needs) == pytest.approx({"a": 500, "b": 500})
    assert ceilings(-5.0, needs) == {"a": 0.0, "b": 0.0}
    assert ceilings(1000, {}) == {}
