"""Partitions to microbatches: every choice is weighed, additivity is measured or refused."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.compose import PLAIN_SUM, Additivity, Part, additivity, compose

MEASURED = Additivity(1.1, 0.01, 1.05, 0.02, 3)
points = st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(10.0, 500.0)), min_size=1, max_size=4)


def options(rows: list[tuple[float, float]], error: float = 0.0) -> list[Point[str]]:
    return [Point(t, e, f"{t:g}/{e:g}/{i}", error * t, error * e) for i, (t, e) in enumerate(rows)]


@given(st.dictionaries(st.sampled_from([900.0, 1410.0]), st.tuples(points, points), min_size=1))
def test_no_choice_of_schedules_beats_what_is_handed_over(
    clocks: dict[float, tuple[list[tuple[float, float]], list[tuple[float, float]]]],
) -> None:
    parts = [Part(name, 3, {c: options(both[i]) for c, both in clocks.items()}) for i, name in enumerate("ab")]
    found = compose(parts, additivity=MEASURED, blocking_w=50.0)
    for first, second in clocks.values():
        for (t1, e1), (t2, e2) in itertools.product(first, second):
            time, energy = 1.1 * 3 * (t1 + t2), 1.05 * 3 * (e1 + e2)
            assert any(
                p.time_s <= time * (1 + 1e-9) and p.energy_j - 50.0 * p.time_s <= energy - 50.0 * time + 1e-6
                for p in found
            )
    assert [p.time_s for p in found] == sorted(p.time_s for p in found)


def test_sequential_and_overlapped_are_chosen_by_clock() -> None:
    parts = [Part("attention", 2, {1410.0: options([(1.0, 100.0)]), 900.0: options([(2.0, 90.0)])})]
    whole = {1410.0: options([(2.1, 250.0)]), 900.0: options([(3.5, 120.0)])}
    found = compose(parts, additivity=PLAIN_SUM, blocking_w=10.0, sequential=whole)
    assert [(p.setting.sm_mhz, p.setting.overlapped) for p in found] == [(1410.0, True), (900.0, False)]
    assert "not measured" in str(found[0].setting)
    assert str(found[1].setting) == "900 MHz: sequential"


def test_parts_outside_are_added_and_not_stretched() -> None:
    parts = [Part("attention", 2, {1410.0: options([(1.0, 100.0)], error=0.01)})]
    head = Part("head", 1, {1410.0: options([(0.5, 60.0)])})
    (found,) = compose(parts, additivity=MEASURED, blocking_w=0.0, outside=[head])
    assert found.time_s == pytest.approx(1.1 * 2.0 + 0.5)
    assert found.energy_j == pytest.approx(1.05 * 200.0 + 60.0)
    assert found.time_error_s == pytest.approx(math.hypot(0.02 * 1.1, 2.0 * 0.01))
    assert found.setting.schedules == (("attention", "1/100/0"),)


def test_without_a_measured_additivity_nothing_is_composed() -> None:
    parts = [Part("attention", 2, {1410.0: options([(1.0, 100.0)])})]
    with pytest.raises(BadSpec, match="not measured"):
        compose(parts, additivity=None, blocking_w=10.0)
    with pytest.raises(BadSpec, match="not measured"):
        additivity([])
    with pytest.raises(BadSpec, match="repeat it"):
        additivity([(Point(1.0, 1.0, None), Point(1.0, 1.0, None))])


def test_additivity_is_the_mean_ratio_with_the_larger_of_stated_and_seen_error() -> None:
    pairs = [(Point(t, 1.0, None, 1e-3, 1e-3), Point(1.0, 1.0, None)) for t in (1.1, 1.2, 1.15)]
    found = additivity(pairs)
    assert found.time_ratio == pytest.approx((1.1 * 1.2 * 1.15) ** (1 / 3))
    assert found.time_error == pytest.approx(0.0290, rel=0.02)  # scatter of the three over √3
    assert found.energy_ratio == pytest.approx(1.0)
    assert found.energy_error == pytest.approx(1e-3 / math.sqrt(3), rel=1e-6)
    assert found.measured


def test_parts_measured_at_different_clocks_are_refused() -> None:
    parts = [Part("a", 1, {1410.0: options([(1, 1)])}), Part("b", 1, {900.0: options([(1, 1)])})]
    with pytest.raises(BadSpec, match="no clock"):
        compose(parts, additivity=PLAIN_SUM, blocking_w=1.0)
    with pytest.raises(BadSpec, match="needs an option"):
        compose([Part("a", 1, {900.0: []})], additivity=PLAIN_SUM, blocking_w=1.0)
