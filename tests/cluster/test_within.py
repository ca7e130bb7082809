"""Under a cap: lower clocks first, then fewer jobs, then none; what is within it is left as it is."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.state import Allocation, Job, Snapshot, Way, cluster_power_w
from joulewise.cluster.within import clocks_only, keep_within
from tests.cluster.toys import TOY, toy_ways

MENU = toy_ways()


def cluster(runs: str = "") -> tuple[Snapshot, Allocation]:
    """Four jobs of eight GPUs at the top clock: all four nodes and 9.6 kW for the GPUs, 3.2 kW for the hosts."""
    top = next(way for way in MENU if way.gpus == 8)
    jobs = tuple(Job(name, 0.0, 1.0, MENU, 8, top if name in runs else None) for name in "abcd")
    return Snapshot(0.0, (TOY,), jobs), Allocation(dict.fromkeys("abcd", top))


def clocks(allocation: Allocation) -> dict[str, float]:
    return {name: way.setting["sm_mhz"] for name, way in allocation.ways.items()}


def test_what_is_within_the_cap_is_left_as_it_is() -> None:
    snapshot, allocation = cluster()
    assert keep_within(snapshot, allocation, 12_800.0) is allocation


def test_clocks_fall_before_anybody_has_to_wait() -> None:
    snapshot, allocation = cluster()
    cut = keep_within(snapshot, allocation, 12_000.0)
    assert set(cut.ways) == set("abcd")
    assert cluster_power_w(snapshot, cut) <= 12_000.0
    assert min(clocks(cut).values()) < 1400


def test_then_fewer_run_those_who_would_start_leave_first_and_the_rest_is_as_fast_as_it_may() -> None:
    snapshot, allocation = cluster(runs="cd")
    # At 700 MHz four need 3,200 + 4·1,000 W; three, with one node asleep, 5,420 W.
    cut = keep_within(snapshot, allocation, 7000.0)
    assert set(cut.ways) == {"a", "c", "d"}
    assert cluster_power_w(snapshot, cut) <= 7000.0
    assert max(clocks(cut).values()) > 700


def test_then_none() -> None:
    snapshot, allocation = cluster(runs="ab")
    assert keep_within(snapshot, allocation, 500.0).ways == {}


@given(
    st.lists(st.tuples(st.sampled_from(MENU), st.booleans()), max_size=8),
    st.floats(0.0, 15_000.0),
)
def test_the_cap_is_never_passed_unless_nothing_runs_and_nobody_gets_other_gpus(
    wanted: list[tuple[Way, bool]], power_w: float
) -> None:
    left = TOY.gpus
    ways = {}
    jobs = []
    for at, (way, runs) in enumerate(wanted):
        jobs.append(Job(f"j{at}", 0.0, 1.0, MENU, way.gpus, way if runs else None))
        if way.gpus <= left:
            ways[f"j{at}"] = way
            left -= way.gpus
    snapshot = Snapshot(0.0, (TOY,), tuple(jobs))
    cut = keep_within(snapshot, Allocation(ways), power_w)
    assert not cut.ways or cluster_power_w(snapshot, cut) <= power_w
    for name, way in cut.ways.items():
        assert way.gpus == ways[name].gpus
        assert way.power_w <= ways[name].power_w


@settings(max_examples=60, deadline=None)
@given(st.floats(0.0, 12_000.0), st.floats(0.0, 3000.0))
def test_clocks_alone_keep_a_cap_or_say_that_they_cannot(power_w: float, others_w: float) -> None:
    menu = toy_ways((8,))
    jobs = tuple(Job(f"j{at}", 0.0, 100.0, menu, 8, way=menu[at % 2]) for at in range(4))
    snapshot = Snapshot(0.0, (TOY,), jobs)
    lowest_w = others_w + 4 * min(way.power_w for way in menu)
    slowed = clocks_only(snapshot, power_w, others_w)
    if slowed is None:
        assert lowest_w > power_w
        return
    assert others_w + slowed.power_w <= power_w
    for job in jobs:
        assert job.way is not None
        assert slowed.ways[job.name].gpus == job.way.gpus
        assert slowed.ways[job.name].unit_s >= job.way.unit_s  # nobody gets faster


def test_where_enough_is_left_clocks_stay_as_they_are() -> None:
    menu = toy_ways((8,))
    snapshot = Snapshot(0.0, (TOY,), (Job("a", 0.0, 100.0, menu, 8, way=menu[1]), Job("b", 0.0, 100.0, menu, 8)))
    slowed = clocks_only(snapshot, 1e6, 0.0)
    assert slowed is not None
    assert slowed.ways == {"a": menu[1]}
