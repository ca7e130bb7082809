"""Watts under a cap: sensors that cannot be right, and nodes that others use before our agent is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cluster.engine import NodeSeen, NodeState
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.core.event import Aimed
from tests.cluster.toy_engine import MOST_GPU_W, Rig, ToyAgent
from tests.cluster.toys import TOY, first_come, toy_job, toy_ways

TOP_W = 4 * (800.0 + 8 * 300.0)
MOST_W = 800.0 + 8 * MOST_GPU_W


def full(jobs: int = 4) -> Rig:
    menu = toy_ways((8,))
    return Rig([TOY], [toy_job(f"j{at}", 0.0, 20_000.0, 8, menu=menu) for at in range(jobs)], first_come, period_s=10.0)


def looks(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.look()


def says(agent: ToyAgent, power_w: float | None) -> None:
    """From now on its sensor says this."""
    plain = ToyAgent.report
    agent.report = lambda: replace(plain(agent), power_w=power_w)  # type: ignore[method-assign]


def test_one_sensor_that_says_more_than_its_node_can_draw_stops_nobody() -> None:
    rig = full()
    looks(rig, 80)
    rig.scheduler.cap(0.8 * TOP_W)
    looks(rig, 100)
    says(rig.agents["toy-1"], 1e6)
    before_j = rig.scheduler.status().energy_j
    looks(rig, 12)
    status = rig.scheduler.status()
    node = next(node for node in status.nodes if node.name == "toy-1")
    assert (node.power_w, node.counted_w) == (1e6, MOST_W)
    assert "its sensors say 1,000,000 W, more than it can draw; counted with 4,000 W" in node.says
    assert status.energy_j - before_j < 13 * 4 * MOST_W
    del rig.agents["toy-1"].report
    looks(rig, 60)
    assert [event for _, event in rig.journal.read() if isinstance(event, Aimed) and event.what == "preempt"] == []


def test_a_node_that_does_not_say_what_it_draws_counts_as_believed() -> None:
    rig = full()
    looks(rig, 30)
    for agent in rig.agents.values():
        agent.refuses = lambda _: True  # nothing helps but stopping somebody
    says(rig.agents["toy-3"], None)
    rig.scheduler.cap(0.8 * TOP_W)
    looks(rig, 80)
    assert rig.site.power_w() <= 0.8 * TOP_W


class Strangers(SimulatedEngine):
    """An engine whose last node boots, and is then used by others alone."""

    state: NodeState = "booting"

    def nodes(self) -> tuple[NodeSeen, ...]:
        *rest, last = super().nodes()
        return (*rest, replace(last, state=self.state, foreign_gpus=8 if self.state == "up" else 0))


def test_a_node_that_has_booted_counts_with_its_strangers_before_its_agent_is_there_and_as_silent_if_none_comes() -> (
    None
):
    rig = full(3)
    looks(rig, 30)
    engine = Strangers(rig.site)
    rig.scheduler._sight.engine = engine
    rig.scheduler.lead()
    rig.agents["toy-3"].silent = True
    looks(rig, 20)
    engine.state = "up"
    cap_w = 0.8 * TOP_W
    rig.scheduler.cap(cap_w)
    seen = set()
    for _ in range(330):
        rig.look()
        assert rig.desk is not None
        ours_w = sum(rig.desk.ceiling_w(node) or 0.0 for node in ("toy-0", "toy-1", "toy-2"))
        assert 0.0 < ours_w <= cap_w - MOST_W + 1e-6
        seen.add("toy-3" in rig.scheduler._sight.silent)
    # Its agent had the time of a boot to come.
    assert seen == {False, True}
    last = rig.scheduler.status().nodes[-1]
    assert last.counted_w == pytest.approx(MOST_W)
    assert any("its agent is silent" in said for said in last.says)
