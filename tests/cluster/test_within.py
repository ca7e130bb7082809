"""Under a cap: lower clocks first, then fewer jobs, then none; what is within it is left as it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.state import Allocation, Job, Snapshot, Way, cluster_power_w
from joulewise.cluster.within import keep_within
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
