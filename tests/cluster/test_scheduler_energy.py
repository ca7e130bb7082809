"""The cluster's meter and its parts: what jobs and nobody took is what nodes drew, asleep, woken or after a kill."""

from __future__ import annotations

import pytest

from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, first_come, toy_job, toy_ways


def looks(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.look()


def long_jobs() -> Rig:
    menu = toy_ways((8,))
    return Rig([TOY], [toy_job(f"j{at}", 0.0, 20_000.0, 8, menu=menu) for at in range(2)], first_come, period_s=10.0)


def parts_j(rig: Rig) -> float:
    status = rig.scheduler.status()
    return status.idle_j + sum(job.energy_j for job in status.jobs)


def test_nodes_that_sleep_wake_and_outlive_their_scheduler_are_counted_with_what_they_drew() -> None:
    jobs = [toy_job("a", 0.0, 300.0, 8), toy_job("z", 20_000.0, 300.0, 8)]
    rig = Rig([TOY], jobs, first_come, period_s=10.0, power_off=True, watch_s=5.0)
    shown_j = []
    for until_s in (19_990.0, 22_000.0):
        while rig.site.now() < until_s:
            rig.look()
            shown_j.append(rig.scheduler.status().energy_j)
        drawn_j = sum(agent.node_j for agent in rig.agents.values())
        assert shown_j[-1] == pytest.approx(drawn_j, rel=0.01)
    rig.fresh().lead()
    for _ in range(5):
        rig.look()
        shown_j.append(rig.scheduler.status().energy_j)
    drawn_j = sum(agent.node_j for agent in rig.agents.values())
    assert shown_j[-1] == pytest.approx(drawn_j, rel=0.01)
    assert parts_j(rig) == pytest.approx(drawn_j, rel=0.01)
    assert shown_j == sorted(shown_j)


@pytest.mark.parametrize("at", [5, 59, 100])
def test_after_a_kill_the_cluster_has_drawn_what_its_jobs_and_nobody_have(at: int) -> None:
    rig = long_jobs()
    looks(rig, at)
    rig.fresh().lead()
    looks(rig, 100)
    assert rig.scheduler.status().energy_j == pytest.approx(parts_j(rig), rel=0.03)


def test_what_agents_counted_before_any_scheduler_heard_of_them_is_in_no_part() -> None:
    rig = long_jobs()
    for agent in rig.agents.values():
        agent.node_j = agent.idle_j = 9e6
    looks(rig, 100)
    assert rig.scheduler.status().energy_j == pytest.approx(parts_j(rig), rel=0.03)
    assert rig.scheduler.status().energy_j < 9e6
