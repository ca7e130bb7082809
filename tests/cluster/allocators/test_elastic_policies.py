"""Optimus and Pollux choose numbers of GPUs; Gandiva chooses turns; Zeus chooses settings for any of them."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.gandiva import gandiva
from joulewise.cluster.allocators.optimus import optimus
from joulewise.cluster.allocators.pollux import pollux
from joulewise.cluster.allocators.zeus import zeus
from joulewise.cluster.state import Allocator, Budget, Job, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from tests.cluster.allocators.snapshots import job, snapshot
from tests.cluster.toys import toy_ways


def gpus(allocate: Allocator, seen: Snapshot) -> dict[str, int]:
    return {name: way.gpus for name, way in allocate(seen, Budget()).ways.items()}


def table(*unit_s: float) -> tuple[Way, ...]:
    """Ways with 1, 2, 3, … GPUs."""
    return tuple(Way(count, each_s, 100.0, kind="toy") for count, each_s in enumerate(unit_s, 1))


def test_optimus_gives_the_next_gpu_to_the_largest_cut_of_remaining_time() -> None:
    ways = table(*(1.0 / count for count in range(1, 9)))
    seen = snapshot(job("short", work=10.0, ways=ways), job("long", work=100.0, ways=ways))
    assert gpus(optimus(), seen) == {"short": 2, "long": 6}  # 10/2 s from a second GPU, 100/30 s from a sixth


def test_optimus_stops_where_more_gpus_gain_nothing() -> None:
    assert gpus(optimus(), snapshot(job("flat", ways=table(1.0, 0.8, 0.8, 0.1)))) == {"flat": 2}


def test_optimus_serves_in_order_when_there_are_more_jobs_than_gpus() -> None:
    seen = snapshot(*(job(f"j{i}") for i in range(10)))
    assert gpus(optimus(), seen) == {f"j{i}": 1 for i in range(8)}


@given(st.lists(st.tuples(st.floats(1, 100), st.lists(st.floats(0.05, 0.95), min_size=3, max_size=3)), max_size=3))
@settings(max_examples=50, deadline=None)
def test_optimus_is_optimal_where_every_next_gpu_gains_less(drawn: list[tuple[float, list[float]]]) -> None:
    jobs = []
    for place, (work, cuts) in enumerate(drawn):
        steps = sorted(cuts, reverse=True)
        unit_s = [4.0 - sum(steps[:count]) for count in range(4)]
        jobs.append(job(f"j{place}", work=work, ways=table(*unit_s)))
    seen = snapshot(*jobs)
    held = optimus()(seen, Budget()).ways
    spent = sum(held[one.name].unit_s * one.work_left for one in jobs)
    assert spent == pytest.approx(_least(jobs, 8), rel=1e-9)


def _least(jobs: list[Job], there: int) -> float:
    choices = [ways for ways in product(*(one.ways for one in jobs)) if sum(way.gpus for way in ways) <= there]
    return min(sum(w.unit_s * one.work_left for w, one in zip(ways, jobs, strict=True)) for ways in choices)


def test_pollux_shares_by_speed_up_whatever_the_size() -> None:
    seen = snapshot(job("short", work=10.0), job("long", work=1000.0))
    assert gpus(pollux(), seen) == {"short": 4, "long": 4}


def test_pollux_gives_more_to_who_scales() -> None:
    flat = job("flat", ways=table(1.0, 0.98, 0.97, 0.96, 0.96, 0.96, 0.96))
    steep = job("steep", ways=table(*(1.0 / count for count in range(1, 8))))
    assert gpus(pollux(), snapshot(flat, steep)) == {"flat": 1, "steep": 7}


def test_pollux_leaves_a_young_job_where_it_is_and_moves_it_when_the_restart_has_become_small() -> None:
    def at(now_s: float) -> dict[str, int]:
        return gpus(pollux(), snapshot(job("a", running=4), nodes=1, now_s=now_s))

    assert at(10.0) == {"a": 4}
    assert at(100_000.0) == {"a": 8}


def test_pollux_stops_nobody_for_an_equal() -> None:
    seen = snapshot(*(job(f"j{i}", running=1 if i >= 4 else 0) for i in range(12)), now_s=1000.0)
    assert set(gpus(pollux(), seen)) == {f"j{i}" for i in range(4, 12)}


def test_gandiva_lets_two_jobs_take_turns_of_a_slice() -> None:
    allocate = gandiva(slice_s=600.0)
    attained = {"a": 0.0, "b": 0.0}
    running, turns, now_s = "", [], 0.0
    while now_s < 7200.0:
        jobs = [
            job(name, 8, running=8 if name == running else 0, attained_gpu_s=8 * ran_s)
            for name, ran_s in attained.items()
        ]
        said = allocate(snapshot(*jobs, now_s=now_s), Budget())
        (now_running,) = said.ways
        if now_running != running:
            turns.append(now_s)
        running = now_running
        assert said.again_s is not None
        attained[running] += said.again_s - now_s
        now_s = said.again_s
    lengths = [after - before for before, after in pairwise(turns[1:])]
    assert len(turns) >= 8
    assert min(lengths) >= 600.0
    assert max(lengths) <= 900.0  # it is looked at every quarter of a slice at most
    assert abs(attained["a"] - attained["b"]) <= 900.0


def test_gandiva_lets_no_large_job_starve_behind_small_ones() -> None:
    small = [job(f"s{i}", 1, submitted_s=0.0, running=1, attained_gpu_s=4000.0) for i in range(8)]
    large = job("large", 8, submitted_s=0.0)
    assert gpus(gandiva(), snapshot(*small, large, now_s=4000.0)) == {"large": 8}


def test_gandiva_refuses_a_slice_of_nothing() -> None:
    with pytest.raises(BadSpec, match="slice of 0 s"):
        gandiva(slice_s=0.0)


def test_zeus_takes_each_jobs_setting_of_least_cost_and_leaves_the_number_to_the_other() -> None:
    # 1400 MHz: 1 s, 300 W. 1000 MHz: 1.4 s, 173 W. 700 MHz: 2 s, 125 W. Energy 300, 242 and 250 J.
    seen = snapshot(job("a", 2))
    for eta, mhz in ((0.0, 1400), (0.5, 1400), (1.0, 1000)):
        way = zeus(fifo(), eta=eta)(seen, Budget()).ways["a"]
        assert (way.gpus, way.setting) == (2, Setting(sm_mhz=mhz))


def test_zeus_weighs_time_by_the_highest_limit_where_that_is_given() -> None:
    # With little power to save by being fast, time weighs less: 0.5 · 300 + 0.5 · 100 against 0.5 · 242 + 0.5 · 140.
    seen = snapshot(job("a", 1))
    way = zeus(fifo(), max_gpu_w={"toy": 100.0})(seen, Budget()).ways["a"]
    assert way.setting == Setting(sm_mhz=1000)


def test_zeus_hands_on_the_same_ways_while_nothing_changed() -> None:
    handed: list[tuple[Way, ...]] = []

    def look(seen: Snapshot, budget: Budget):  # type: ignore[no-untyped-def]
        handed.append(seen.jobs[0].ways)
        return fifo()(seen, budget)

    wrapped, ways = zeus(look), toy_ways()
    for attained in (0.0, 10.0):
        wrapped(snapshot(job("a", ways=ways, attained_gpu_s=attained)), Budget())
    assert handed[0] is handed[1]
    assert len(handed[0]) == 5


def test_zeus_refuses_a_weight_outside_its_range() -> None:
    with pytest.raises(BadSpec, match=r"eta of 1\.5"):
        zeus(fifo(), eta=1.5)
