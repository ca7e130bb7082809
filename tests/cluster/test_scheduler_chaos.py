"""Whatever dies and whenever: every job ends once, with all its work done, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.cluster.simulator import Submission
from joulewise.core.event import Ordered, Turned
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, toy_job
from tests.tiers import sample


class Killed(BaseException):
    """As a kill -9 would end it."""


def jobs(dice: random.Random) -> list[Submission]:
    made = []
    for at in range(6):
        one = toy_job(f"j{at}", dice.uniform(0, 1000), dice.uniform(300, 4000), dice.choice([1, 2, 4, 8]))
        made.append(replace(one, elastic=dice.random() < 0.7))
    return made


def disturbed(seed: int) -> Rig:
    """A run in which the scheduler, nodes, agents and the engine die and come back, and the cap moves."""
    dice = random.Random(seed)
    rig = Rig(
        [replace(TOY, boot_s=60.0)],
        jobs(dice),
        priced(),
        power_off=dice.random() < 0.5,
        period_s=20.0,
        watch_s=10.0,
        save_s=dice.choice([0.0, 5.0, 30.0]),
        checkpoint_s=60.0,
    )

    def step(_: str) -> None:
        if rig.site.now() < 4000.0 and dice.random() < 0.02:
            raise Killed

    rig.step = step
    for _ in range(20_000):
        if rig.over:
            rig.step = lambda _: None
            return rig
        try:
            rig.look()
            if rig.site.now() < 4000.0:
                _strike(rig, dice)
            else:
                _heal(rig)
        except Killed:
            rig.step = lambda _: None
            rig.fresh().lead()
            rig.step = step
    raise AssertionError(f"not over at {rig.site.now()} s: {rig.scheduler.status()}")


def _strike(rig: Rig, dice: random.Random) -> None:
    node = dice.choice(list(rig.agents))
    rack = rig.site.rack(node)
    engine = rig.scheduler._sight.engine
    assert isinstance(engine, SimulatedEngine)
    engine.lost = dice.random() < (0.6 if engine.lost else 0.02)
    if engine.lost:
        rig.site.advance(rig.site.now() + 10.0)
    match dice.randrange(40):
        case 0 if rack.states[node] == "up":
            rig.site.kill(node)
        case 1 | 2 if rack.states[node] == "down":
            rig.site.revive(node)
        case 3:
            rig.agents[node].silent = True
        case 4 | 5:
            rig.agents[node].silent = False
        case 6:
            rig.scheduler.cap(dice.choice([None, 12_000.0, 9000.0, 7000.0]))
        case _:
            pass


def _heal(rig: Rig) -> None:
    engine = rig.scheduler._sight.engine
    assert isinstance(engine, SimulatedEngine)
    engine.lost = False
    for name, agent in rig.agents.items():
        agent.silent = False
        if rig.site.rack(name).states[name] == "down":
            rig.site.revive(name)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", sample(range(8), 2, of="chaos"))
def test_every_job_ends_once_with_all_its_work_done(seed: int) -> None:
    rig = disturbed(seed)
    events = [event for _, event in rig.journal.read()]
    assert Counter(e.name for e in events if isinstance(e, Ordered)) == Counter(list(rig.submissions))
    ends = Counter(e.name for e in events if isinstance(e, Turned) and e.what == "ended")
    assert ends == Counter(list(rig.submissions))
    for name, one in rig.submissions.items():
        assert rig.site.jobs[name].state == "ended"
        assert rig.site.jobs[name].life.done == pytest.approx(one.work)
    assert sorted(said.about for said in rig.site.heard if said.what == "ended") == sorted(rig.submissions)
    _heal(rig)
    for _ in range(12):
        rig.look()
    assert rig.site.power_w() <= 4 * TOY.empty_node_w + 1e-6
    cap_w = rig.scheduler.status().cap_w
    assert cap_w is None or rig.scheduler.status().power_w <= cap_w
