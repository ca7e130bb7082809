"""The search over schedules: what it asks, when it stops, what it hands over, and that it is the same every time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.tune.pareto import Column, ParetoSearch, Prior
from joulewise.tune.pareto_gain import hypervolume, non_dominated

COLUMNS = (Column("sm_mhz", "linear"), Column("sms", "log"), Column("slot", "category"))
CANDIDATES = tuple(
    (clock, float(k), slot) for clock in (900.0, 1100.0, 1300.0) for k in (1, 2, 4, 8, 16) for slot in ("norm", "gemm")
)


def truth(row: int, *, shift: float = 1.0) -> tuple[float, float]:
    """Seconds and joules: slow and cheap at low clocks, one slot better, few SMs expose communication."""
    return _costs(*CANDIDATES[row], shift=shift)


def _costs(clock: float, k: float, slot: str, *, shift: float = 1.0) -> tuple[float, float]:
    time = shift * (1300.0 / clock + 2.0 / k + 0.02 * k + (0.3 if slot == "norm" else 0.0))
    return time, 60.0 * time + 200.0 * (clock / 1300.0) ** 2 + 2.0 * k


def played(search: ParetoSearch, *, noise: float = 0.0, shift: float = 1.0, most: int = 200) -> list[int]:
    random = np.random.default_rng(5)
    order = []
    while len(order) < most and (decision := search.ask()) is not None:
        time, energy = truth(decision.setting, shift=shift)
        search.tell(decision.setting, time, energy * math.exp(noise * random.normal()))
        order.append(decision.setting)
    return order


def true_front(shift: float = 1.0) -> set[int]:
    points = {row: truth(row, shift=shift) for row in range(len(CANDIDATES))}
    return {
        row
        for row, (time, energy) in points.items()
        if not any(t <= time and e <= energy and (t, e) != (time, energy) for t, e in points.values())
    }


def test_it_finds_the_frontier_and_stops_before_the_list_ends() -> None:
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=1, tolerance=1e-3)
    order = played(search)
    assert search.measurements == len(order)
    assert len(set(order)) < len(CANDIDATES)
    handed = {point.setting for point in search.frontier()}
    assert len(handed & true_front()) >= 0.7 * len(true_front())


def test_the_same_seed_asks_the_same_and_another_seed_asks_otherwise() -> None:
    orders = [played(ParetoSearch(COLUMNS, CANDIDATES, seed=seed), most=16) for seed in (3, 3, 4)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]


def test_noise_makes_it_look_again() -> None:
    order = played(ParetoSearch(COLUMNS, CANDIDATES, seed=2, tolerance=3e-3), noise=0.05, most=60)
    assert len(order) > len(set(order))


def test_asks_before_tells_name_different_candidates() -> None:
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=6)
    for row in played(ParetoSearch(COLUMNS, CANDIDATES, seed=6), most=12):
        search.tell(row, *truth(row))
    asked = [decision.setting for _ in range(4) if (decision := search.ask()) is not None]
    assert len(set(asked)) == len(asked) == 4


def test_a_barred_candidate_is_never_asked() -> None:
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=7)
    barred = {row for row in range(len(CANDIDATES)) if CANDIDATES[row][2] == "gemm"}
    for row in barred:
        search.bar(row)
    assert not barred & set(played(search, most=20))


def test_what_another_shape_taught_saves_measurements() -> None:
    source = ParetoSearch(COLUMNS, CANDIDATES, seed=8)
    played(source, most=25)
    prior = source.transfer(COLUMNS, CANDIDATES)
    front = true_front(shift=1.7)
    with_prior = played(ParetoSearch(COLUMNS, CANDIDATES, seed=9, prior=prior), shift=1.7, most=10)
    without = played(ParetoSearch(COLUMNS, CANDIDATES, seed=9), shift=1.7, most=10)
    assert len(front & set(with_prior)) > len(front & set(without))


def test_a_list_of_one_candidate_is_measured_and_done() -> None:
    search = ParetoSearch((Column("slot", "category"),), (("only",),), seed=0)
    decision = search.ask()
    assert decision is not None
    search.tell(decision.setting, 1.0, 2.0)
    assert search.ask() is None
    assert [point.setting for point in search.frontier()] == [0]
    assert search.frontier()[0].time_s == pytest.approx(1.0)


SIXTY = tuple(
    (clock, float(k), slot)
    for clock in (900.0, 1050.0, 1200.0, 1350.0)
    for k in (1, 2, 4, 8, 16)
    for slot in ("norm", "rope", "gemm")
)


@pytest.mark.parametrize("size", [6, 20, 60])
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.2])
def test_a_short_list_is_asked_no_more_often_than_it_is_long(size: int, noise: float) -> None:
    for seed in range(2):
        random = np.random.default_rng([size, seed])
        rows = [SIXTY[row] for row in sorted(random.permutation(60)[:size])]
        true = np.array([_costs(*row) for row in rows])
        search = ParetoSearch(COLUMNS, rows, seed=seed)
        order = []
        while (decision := search.ask()) is not None:
            order.append(decision.setting)
            search.tell(decision.setting, *(true[decision.setting] * np.exp(noise * random.normal(size=2))))
        assert len(order) <= size
        if noise < 0.1:  # above it one look at each is not enough to tell them apart
            handed = [point.setting for point in search.frontier()]
            reference = 1.1 * true[non_dominated(true)].max(axis=0)
            assert hypervolume(true[handed], reference) > 0.9 * hypervolume(true, reference)
            assert size < 60 or len(order) < size


def test_a_limit_on_measurements_is_kept_with_answers_outstanding() -> None:
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=0, most=7)
    asked = [search.ask() for _ in range(8)]
    assert None not in asked[:7]
    assert asked[7] is None
    search.tell(asked[0].setting, *truth(asked[0].setting))  # type: ignore[union-attr]
    assert search.ask() is None
    with pytest.raises(BadSpec, match="at least one measurement"):
        ParetoSearch(COLUMNS, CANDIDATES, seed=0, most=0)


@settings(max_examples=15, deadline=None)
@given(
    table=st.lists(
        st.tuples(st.floats(0.1, 10.0), st.floats(1.0, 1000.0), st.sampled_from("abc"), st.floats(1.0, 64.0)),
        min_size=2,
        max_size=9,
        unique_by=lambda row: row[2:],
    )
)
def test_any_table_is_searched_to_an_end_and_its_frontier_was_measured(
    table: list[tuple[float, float, str, float]],
) -> None:
    columns = (Column("slot", "category"), Column("sms", "log"))
    search = ParetoSearch(columns, [row[2:] for row in table], seed=0)
    asked = set()
    while (decision := search.ask()) is not None:
        asked.add(decision.setting)
        search.tell(decision.setting, *table[decision.setting][:2])
        assert search.measurements <= len(table)
    assert {point.setting for point in search.frontier()} <= asked


@pytest.mark.parametrize(
    ("columns", "candidates", "says"),
    [
        ((), (), "at least one"),
        ((Column("a", "linear"),), ((1.0, 2.0),), "2 values for 1 columns"),
        ((Column("a", "linear"),), ((1.0,), (1.0,)), "listed twice"),
        ((Column("a", "log"),), ((0.0,), (1.0,)), "has no place"),
        ((Column("a", "linear"),), (("x",), ("y",)), "has no place"),
    ],
)
def test_a_list_that_is_none_is_refused(
    columns: tuple[Column, ...], candidates: tuple[tuple[float]], says: str
) -> None:
    with pytest.raises(BadSpec, match=says):
        ParetoSearch(columns, candidates, seed=0)


def test_what_is_no_measurement_or_no_prior_is_refused() -> None:
    search = ParetoSearch(COLUMNS, CANDIDATES, seed=0)
    with pytest.raises(BadSpec, match="above 0"):
        search.tell(0, math.nan, 1.0)
    with pytest.raises(BadSpec, match="outside 0"):
        search.tell(len(CANDIDATES), 1.0, 1.0)
    with pytest.raises(BadSpec, match="first measurement"):
        search.frontier()
    with pytest.raises(BadSpec, match="prior needs"):
        ParetoSearch(COLUMNS, CANDIDATES, seed=0, prior=Prior(np.ones(2), np.ones(2)))
    with pytest.raises(BadSpec, match="no transfer"):
        search.transfer((Column("other", "linear"),), ((1.0,),))
