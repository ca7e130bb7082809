"""The vocabulary of the cluster floor: ways, jobs, kinds, costs, allocations."""

from __future__ import annotations

import pytest

from joulewise.cluster.state import Allocation, Costs, Job, Kind, Snapshot, Way, cluster_power_w
from joulewise.core.errors import BadSpec

A100 = Kind("a100", nodes=4, gpus_per_node=8, idle_gpu_w=60.0, host_w=1000.0, off_w=20.0)


def test_a_ways_power_is_its_joules_over_its_seconds_and_its_point_carries_it() -> None:
    way = Way(gpus=4, unit_s=0.5, unit_j=600.0)
    assert way.power_w == 1200.0
    assert (way.point.time_s, way.point.energy_j, way.point.setting) == (0.5, 600.0, way)


def test_a_job_without_a_way_or_without_work_is_refused_by_name() -> None:
    with pytest.raises(BadSpec, match="'night' has no way to run"):
        Job("night", 0.0, 10.0, (), gpus_asked=1)
    with pytest.raises(BadSpec, match=r"'night' has 0.0 units of work left"):
        Job("night", 0.0, 0.0, (Way(1, 1.0, 1.0),), gpus_asked=1)


def test_a_start_costs_more_with_more_gpus_and_a_restart_more_than_a_start() -> None:
    # The published simulator: 2 s + 2·(log2 n + 1) s, and 27 s more where processes restart (8 GPUs: 10 and 37 s).
    costs = Costs()
    assert [costs.of(gpus, again=False) for gpus in (1, 2, 8)] == [4.0, 6.0, 10.0]
    assert costs.of(8, again=True) == 37.0


def test_a_clusters_power_is_jobs_hosts_idle_gpus_and_sleeping_nodes() -> None:
    snapshot = Snapshot(0.0, (A100,), ())
    nothing = Allocation({})
    assert cluster_power_w(snapshot, nothing) == 4 * 20.0
    assert cluster_power_w(snapshot, nothing, warm_nodes=1) == A100.empty_node_w + 3 * 20.0
    ten = Allocation({"a": Way(8, 1.0, 2400.0, kind="a100"), "b": Way(2, 1.0, 500.0, kind="a100")})
    assert ten.gpus() == ten.gpus("a100") == 10
    assert cluster_power_w(snapshot, ten) == 2900.0 + 2 * 1000.0 + 6 * 60.0 + 2 * 20.0
    assert cluster_power_w(snapshot, ten, warm_nodes=9) == 2900.0 + 4 * 1000.0 + 22 * 60.0
