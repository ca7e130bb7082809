"""The PowerFlow-style greedy: the steps it takes, in their order, and what was decided in its favour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cluster.allocators.powerflow import powerflow
from joulewise.cluster.state import Budget, Way
from joulewise.core.knob import Setting
from tests.cluster.allocators.snapshots import job, snapshot

SLOW, FAST = Setting(sm_mhz=700), Setting(sm_mhz=1400)


def ways(two: float, fast: float) -> tuple[Way, ...]:
    """One GPU takes 1 s and 100 J; ``two``: joules of two GPUs, in 0.5 s; ``fast``: joules at the fast clock, 0.8 s.
    The host's share of a slot is 100 W (on a toy node)."""
    return (
        Way(1, 1.0, 100.0, SLOW, "toy"),
        Way(1, 0.8, fast, FAST, "toy"),
        Way(2, 0.5, two, SLOW, "toy"),
        Way(2, 0.4, 2 * fast * two / 200.0, FAST, "toy"),
    )


def test_the_step_with_the_largest_cut_for_its_energy_comes_first_whatever_the_size_of_the_job() -> None:
    # Both may double for half their time. It costs the first 50 %, the second 20 % more: budget for one of them only.
    seen = snapshot(job("dear", work=1.0, ways=ways(200.0, 500.0)), job("cheap", work=1.0, ways=ways(140.0, 500.0)))
    least_j = 2 * 200.0
    said = powerflow()(seen, Budget(energy_j=least_j + 45.0)).ways
    assert (said["dear"].gpus, said["cheap"].gpus) == (1, 2)
    # Blind to sizes: a thousand times the work changes nothing but the scale.
    large = snapshot(*(replace(each, work_left=1000.0) for each in seen.jobs))
    assert powerflow()(large, Budget(energy_j=1000.0 * (least_j + 45.0))).ways == said


def test_a_step_that_costs_no_energy_is_taken_whatever_the_budget() -> None:
    seen = snapshot(job("a", work=1.0, ways=ways(90.0, 500.0)))
    assert powerflow()(seen, Budget(energy_j=200.0)).ways["a"].gpus == 2


def test_it_stops_at_a_threshold_of_cut_over_rise() -> None:
    seen = snapshot(job("a", work=1.0, ways=ways(200.0, 200.0)))  # doubling: 0.5 / 0.5; then the clock: 0.2 / 0.6
    assert powerflow()(seen, Budget()).ways["a"] == seen.jobs[0].ways[3]
    assert powerflow(threshold=0.5)(seen, Budget()).ways["a"] == seen.jobs[0].ways[2]
    assert powerflow(threshold=2.0)(seen, Budget()).ways["a"] == seen.jobs[0].ways[0]


def test_a_share_of_none_is_the_least_energy_and_of_all_is_no_bound() -> None:
    seen = snapshot(*(job(f"job-{n}") for n in range(3)))
    assert all(
        way == way_0
        for way, way_0 in zip(
            powerflow(share=0.0)(seen, Budget()).ways.values(),
            [powerflow(threshold=1e9)(seen, Budget()).ways["job-0"]] * 3,
            strict=True,
        )
    )
    assert powerflow(share=1.0)(seen, Budget()).ways == powerflow()(seen, Budget()).ways


@pytest.mark.parametrize(("queue", "first"), [("arrival", "old"), ("shortest", "short"), ("attained", "fresh")])
def test_the_queue_decides_who_gets_the_last_gpu(queue: str, first: str) -> None:
    only = ways(200.0, 500.0)[:1]
    jobs = (
        job("old", submitted_s=0.0, work=50.0, attained_gpu_s=90.0, ways=only),
        job("short", submitted_s=1.0, work=5.0, attained_gpu_s=90.0, ways=only),
        job("fresh", submitted_s=2.0, work=50.0, attained_gpu_s=0.0, ways=only),
    )
    seen = replace(snapshot(*jobs), kinds=(replace(snapshot().kinds[0], gpus_per_node=1),))
    assert list(powerflow(queue=queue)(seen, Budget()).ways) == [first]  # type: ignore[arg-type]


def test_a_count_stays_where_a_change_would_not_pay_for_the_restart() -> None:
    soon = snapshot(job("a", work=20.0, running=4), nodes=2)
    assert powerflow()(soon, Budget()).ways["a"].gpus == 4
    assert powerflow(sticky=False)(soon, Budget()).ways["a"].gpus == 16
    later = snapshot(job("a", work=20_000.0, running=4), nodes=2)
    assert powerflow()(later, Budget()).ways["a"].gpus == 16
