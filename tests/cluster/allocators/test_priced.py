"""Ours: laws that hold whatever the jobs, and what prices make of small cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.allocators.powerflow import powerflow
from joulewise.cluster.allocators.priced import Terms, priced
from joulewise.cluster.state import Allocation, Allocator, Budget, Job, Kind, Snapshot, Way, cluster_power_w
from tests.cluster.allocators.snapshots import job, snapshot, snapshots
from tests.cluster.toys import TOY, toy_ways
from tests.tiers import examples

OURS: dict[str, Allocator] = {
    "priced": priced(),
    "priced, fair": priced(Terms(fairness=1.0)),
    "priced, polished": priced(Terms(enough=0.0, polish_s=2.0)),
    "powerflow": powerflow(),
    "powerflow, half": powerflow(share=0.5, queue="shortest"),
    "powerflow, threshold": powerflow(threshold=1.0, queue="attained", sticky=False),
}
budgets = st.builds(
    Budget,
    energy_j=st.none() | st.floats(0.0, 1e9),
    power_w=st.none() | st.floats(0.0, 2e4),
    joule_s=st.sampled_from([0.0, 1e-3, 1.0]),
)


def energy_j(seen: Snapshot, said: Allocation) -> float:
    slot_w = {kind.name: kind.slot_w for kind in seen.kinds}
    work = {each.name: each.work_left for each in seen.jobs}
    return sum(work[name] * (way.unit_j + way.unit_s * way.gpus * slot_w[way.kind]) for name, way in said.ways.items())


@pytest.mark.sampled
@given(seen=snapshots(), budget=budgets)
@settings(max_examples=examples(50), deadline=None)
def test_no_more_gpus_watts_or_joules_are_given_than_there_are_and_only_ways_that_jobs_have(
    seen: Snapshot, budget: Budget
) -> None:
    for name, allocate in OURS.items():
        said = allocate(seen, budget)
        for kind, there in seen.gpus.items():
            assert said.gpus(kind) <= there, name
        assert all(said.ways[each.name] in each.ways for each in seen.jobs if each.name in said.ways), name
        assert set(said.ways) <= {each.name for each in seen.jobs}, name
        if budget.power_w is not None and said.ways:
            assert cluster_power_w(seen, said) <= budget.power_w * (1 + 1e-9), name
        if budget.energy_j is not None:
            assert energy_j(seen, said) <= budget.energy_j * (1 + 1e-9), name
        assert said.gap is None or 0.0 <= said.gap < math.inf, name


@pytest.mark.sampled
@given(seen=snapshots(), budget=budgets)
@settings(max_examples=examples(25), deadline=None)
def test_the_same_snapshot_gives_the_same_allocation_whatever_was_asked_between(seen: Snapshot, budget: Budget) -> None:
    for name, allocate in OURS.items():
        first = allocate(seen, budget)
        allocate(Snapshot(seen.now_s, seen.kinds, seen.jobs[::-1]), Budget(joule_s=0.01))
        assert allocate(seen, budget) == first, name


@pytest.mark.sampled
@given(seen=snapshots(), budget=budgets, at=st.integers(0, 12))
@settings(max_examples=examples(20), deadline=None)
def test_a_job_without_weight_or_without_a_way_that_fits_changes_nothing(
    seen: Snapshot, budget: Budget, at: int
) -> None:
    idle = Job("idle", 50.0, 1e4, toy_ways(), gpus_asked=1, weight=0.0)
    huge = Job("huge", 60.0, 1e4, toy_ways((4096,)), gpus_asked=4096)
    more = replace(seen, jobs=(*seen.jobs[:at], idle, huge, *seen.jobs[at:]))
    allocate = priced()
    assert allocate(more, budget) == allocate(seen, budget)


@pytest.mark.sampled
@given(seen=snapshots(), joule_s=st.sampled_from([0.0, 1e-3]))
@settings(max_examples=examples(20), deadline=None)
def test_the_polish_closes_the_gap(seen: Snapshot, joule_s: float) -> None:
    budget = Budget(joule_s=joule_s)
    rough, fine = (
        priced(Terms(fill=False))(seen, budget),
        priced(Terms(fill=False, enough=0.0, polish_s=2.0))(seen, budget),
    )
    assert rough.gap is not None
    assert fine.gap is not None
    assert fine.gap <= rough.gap + 1e-9
    assert fine.gap <= 1e-3


def test_a_job_alone_takes_what_is_fastest_while_joules_are_free_and_less_the_dearer_they_are() -> None:
    seen = snapshot(job("a"), nodes=4)
    allocate = priced(Terms(fill=False))
    assert allocate(seen, Budget()).ways["a"].gpus == 16
    gpus = [allocate(seen, Budget(joule_s=price)).ways["a"].gpus for price in (1e-5, 1e-4, 1e-3, 1e-2)]
    assert gpus == sorted(gpus, reverse=True)
    assert gpus[0] > gpus[-1]


def test_the_short_one_gets_the_gpus_when_not_all_can_run() -> None:
    seen = snapshot(*(job(f"long-{n}", work=1e6) for n in range(12)), job("short", work=2000.0), nodes=1)
    said = priced()(seen, Budget())
    assert said.gpus() == 8
    assert said.ways["short"].gpus == max(way.gpus for way in said.ways.values())
    assert len(said.ways) < 13
    assert said.prices.gpu_s["toy"] > 0


def test_a_heavier_job_comes_before_an_equal_one_and_gpus_left_over_have_no_price() -> None:
    jobs = [job(f"job-{n}", work=1e5) for n in range(20)]
    seen = snapshot(*jobs[:-1], replace(jobs[-1], weight=50.0), nodes=1)
    assert "job-19" in priced()(seen, Budget()).ways
    one = snapshot(job("a", ways=toy_ways((1,))), nodes=1)
    assert priced()(one, Budget()).prices.gpu_s == {"toy": 0.0}


def test_a_change_of_gpu_count_must_pay_for_its_restart() -> None:
    nearly_done = snapshot(job("a", work=40.0, running=4), nodes=2)
    assert priced()(nearly_done, Budget()).ways["a"].gpus == 4  # 13 s to go, and a restart takes 37
    at_first = snapshot(job("a", work=40_000.0, running=4), nodes=2)
    assert priced()(at_first, Budget()).ways["a"].gpus == 16


def test_gpus_that_idle_in_a_node_in_use_are_given_for_the_watts_they_add() -> None:
    # Two GPUs do a little less work for a joule than one; but a host that is on for one alone costs more than that.
    seen = snapshot(job("a", work=1e5), nodes=1)
    price = Budget(joule_s=0.02)
    assert priced(Terms(fill=False))(seen, price).ways["a"].gpus < priced()(seen, price).ways["a"].gpus
    # Where nodes never sleep, which the round says by what they draw when off, one that is in use costs nothing more.
    awake = replace(seen, kinds=(replace(seen.kinds[0], off_w=seen.kinds[0].empty_node_w),))
    assert priced()(awake, price) == priced(Terms(fill=False))(awake, price)


def test_a_deadline_that_can_still_be_met_is_met_where_it_would_not_be_without() -> None:
    others = [job(f"job-{n}", work=2000.0) for n in range(16)]
    late = job("late", work=20_000.0)
    without = priced()(snapshot(*others, late, nodes=1), Budget())
    assert "late" not in without.ways
    slack_s = 1.1 * 20_000.0 / 4**0.8  # four GPUs from now on would do
    due = replace(late, deadline_s=slack_s)
    way = priced()(snapshot(*others, due, nodes=1), Budget()).ways["late"]
    assert 20_000.0 * way.unit_s <= slack_s
    lost = replace(late, deadline_s=0.5 * 20_000.0 / 8**0.8)
    assert priced()(snapshot(*others, lost, nodes=1), Budget()).ways == without.ways


def test_fairness_lets_the_one_run_that_has_waited_longest() -> None:
    news = [job(f"new-{n}", submitted_s=99_000.0, work=1000.0) for n in range(16)]
    old = job("old", submitted_s=0.0, work=20_000.0)
    seen = snapshot(old, *news, nodes=1, now_s=100_000.0)
    assert "old" not in priced()(seen, Budget()).ways
    assert "old" in priced(Terms(fairness=2.0))(seen, Budget()).ways


def test_a_job_takes_the_kind_that_serves_it_best_at_the_prices() -> None:
    fast = Kind("fast", 1, 8, idle_gpu_w=50.0, host_w=800.0)
    both = [
        # One job gains four times from the fast kind, the other a tenth.
        Job("gains", 0.0, 1e5, (Way(8, 1.0, 2000.0, kind="toy"), Way(8, 0.25, 600.0, kind="fast")), gpus_asked=8),
        Job("hardly", 0.0, 1e5, (Way(8, 1.0, 2000.0, kind="toy"), Way(8, 0.9, 1800.0, kind="fast")), gpus_asked=8),
    ]
    seen = Snapshot(0.0, (replace(TOY, nodes=1), fast), tuple(both))
    said = priced()(seen, Budget())
    assert {name: way.kind for name, way in said.ways.items()} == {"gains": "fast", "hardly": "toy"}


def test_less_energy_buys_lower_clocks_or_fewer_gpus_and_the_price_of_a_joule_is_told() -> None:
    seen = snapshot(*(job(f"job-{n}", work=1000.0 * (n + 1)) for n in range(6)), nodes=2)
    free = priced()(seen, Budget())
    assert free.prices.joule_s == 0.0
    whole_j = sum(each.work_left * min(w.unit_j + w.unit_s * w.gpus * 100.0 for w in each.ways) for each in seen.jobs)
    said = priced()(seen, Budget(energy_j=1.05 * whole_j))
    assert said.prices.joule_s > 0
    assert len(said.ways) == 6
    assert energy_j(seen, said) <= 1.05 * whole_j


@pytest.mark.parametrize("share", [0.95, 0.7, 0.4])
def test_a_power_cap_is_kept_and_nearly_used(share: float) -> None:
    seen = snapshot(*(job(f"job-{n}", work=1000.0 * (n + 1)) for n in range(30)), nodes=4)
    cap_w = share * cluster_power_w(seen, priced()(seen, Budget()))
    said = priced()(seen, Budget(power_w=cap_w))
    assert 0.93 * cap_w < cluster_power_w(seen, said) <= cap_w
    assert said.prices.watt_s > 0
    assert said.gap is not None
    assert said.gap < 0.05


def _one_that_runs_on_all(left_s: float, waited_s: float) -> Snapshot:
    """A job on all 16 GPUs for so long yet, and one of ten seconds that came ``waited_s`` ago and has never run."""
    ways = toy_ways((1, 2, 4, 8, 16))
    full = max(ways, key=lambda way: (way.gpus, way.setting["sm_mhz"]))
    large = Job("large", 0.0, left_s / full.unit_s, ways, 16, way=full, attained_gpu_s=1e4)
    small = Job("small", 1000.0 - waited_s, 10.0, toy_ways((1,)), 1)
    return Snapshot(1000.0, (replace(TOY, nodes=2),), (large, small))


def test_a_short_job_gets_in_at_once_where_it_would_wait_for_much_longer_than_a_restart_takes() -> None:
    said = priced()(_one_that_runs_on_all(10_000.0, waited_s=1.0), Budget())
    assert said.ways["small"].gpus == 1
    assert said.ways["large"].gpus == 8


def test_where_room_comes_soon_a_short_job_gets_in_when_its_wait_would_have_paid_for_the_restart() -> None:
    asks = [priced()(_one_that_runs_on_all(60.0, waited_s), Budget()) for waited_s in (1.0, 10.0, 30.0, 100.0)]
    waits = ["small" not in said.ways for said in asks]
    assert waits == sorted(waits, reverse=True)
    assert waits[0]
    assert not waits[-1]
    # It says when it wants to be asked again, and then lets it in.
    again_s = asks[0].again_s
    assert again_s is not None
    assert "small" in priced()(_one_that_runs_on_all(60.0, again_s - 999.0), Budget()).ways


def test_one_that_has_run_already_pays_for_its_own_changes_however_long_it_waits() -> None:
    seen = _one_that_runs_on_all(60.0, waited_s=900.0)
    stopped = replace(seen.jobs[1], attained_gpu_s=5.0, restarts=1)
    said = priced()(replace(seen, jobs=(seen.jobs[0], stopped)), Budget())
    assert "small" not in said.ways
