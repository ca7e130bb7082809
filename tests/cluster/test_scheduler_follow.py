"""The book follows jobs by ids: those that blink, come back, are handed in again, or leave their name to another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from joulewise.cluster.engine import DONE, JobSeen
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.core.event import Turned
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, first_come, toy_job, toy_ways

EIGHT = toy_ways((8,))


class Blinking(SimulatedEngine):
    """An engine that does not show some of its jobs, and shows others under another id."""

    blind: tuple[str, ...] = ()
    renamed: dict[str, str] = {}  # noqa: RUF012 (never changed in place)

    def jobs(self) -> tuple[JobSeen, ...]:
        shown = (job for job in super().jobs() if job.name not in self.blind)
        return tuple(replace(job, id=self.renamed.get(job.id, job.id)) for job in shown)

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        back = {new: old for old, new in self.renamed.items()}
        super().account(name, energy_j, back.get(id, id))


def blinking(rig: Rig) -> Blinking:
    engine = Blinking(rig.site)
    rig.scheduler._sight.engine = engine
    rig.scheduler.lead()
    return engine


def looks(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.look()


def turned(rig: Rig, name: str) -> list[str]:
    words = (event for _, event in rig.journal.read() if isinstance(event, Turned) and event.name == name)
    return [event.what for event in words if event.what != "measured"]


def test_a_job_that_the_engine_does_not_show_for_some_looks_runs_on_and_keeps_its_place_in_the_plan() -> None:
    rig = Rig([TOY], [toy_job(f"j{at}", 0.0, 3000.0, 8, menu=EIGHT) for at in range(5)], first_come, period_s=5.0)
    engine = blinking(rig)
    looks(rig, 20)
    engine.blind = ("j0", "j4")  # one runs, one waits
    looks(rig, 20)
    assert rig.site.jobs["j4"].state == "waiting"
    assert [job.state for job in rig.scheduler.status().jobs] == ["running"] * 4 + ["waiting"]
    engine.blind = ()
    rig.play()
    assert [job.starts for job in rig.site.jobs.values()] == [1] * 5
    assert turned(rig, "j0") == turned(rig, "j4") == ["started", "ended"]


def test_a_job_that_the_engine_has_not_shown_for_half_a_minute_is_lost_and_found_when_it_is_there_again() -> None:
    rig = Rig([TOY], [toy_job("a", 0.0, 3000.0, 8, menu=EIGHT)], first_come, period_s=5.0)
    engine = blinking(rig)
    looks(rig, 20)
    engine.blind = ("a",)
    looks(rig, 29)
    assert not rig.scheduler.book.jobs["a"].over
    looks(rig, 60)
    kept = rig.scheduler.book.jobs["a"]
    assert (kept.state, kept.lost, kept.why, kept.settled) == ("failed", True, "the engine no longer knows it", True)
    engine.blind = ()
    looks(rig, 5)
    assert rig.scheduler.status().jobs[0].state == "running"
    rig.play()
    assert turned(rig, "a") == ["started", "lost", "found", "started", "ended"]
    assert rig.site.jobs["a"].starts == 1
    # What the agent had forgotten with the first account is still in the second.
    kept = rig.scheduler.book.jobs["a"]
    assert sum(kept.energy_j.values()) == pytest.approx(rig.site.jobs["a"].account_j)
    drawn_j = sum(agent.node_j - agent.idle_j for agent in rig.agents.values())
    assert 0.8 * drawn_j < sum(kept.energy_j.values()) < 1.01 * drawn_j


def test_a_scheduler_that_begins_while_the_engine_does_not_show_a_job_gives_it_time_as_well() -> None:
    rig = Rig([TOY], [toy_job("a", 0.0, 3000.0, 8, menu=EIGHT)], first_come, period_s=5.0)
    looks(rig, 20)
    rig.fresh()
    engine = blinking(rig)
    engine.blind = ("a",)
    looks(rig, 20)
    engine.blind = ()
    rig.play()
    assert turned(rig, "a") == ["started", "ended"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_name_used_again_between_two_looks_or_two_schedulers_is_another_job(killed: bool) -> None:
    rig = Rig([TOY], [toy_job("a", 0.0, 500.0, 8, menu=EIGHT)], first_come, period_s=5.0)
    looks(rig, 30)
    before = rig.site.jobs["a"]
    assert before.state == "running"
    rig.scheduler._sight.engine.stop("a", "done")
    order = replace(rig.scheduler.book.jobs["a"].order, submitted_s=rig.site.now() + 1.0)
    rig.scheduler._sight.engine.submit(order)
    if killed:
        rig.fresh().lead()
    looks(rig, 30)
    kept = rig.scheduler.book.jobs["a"]
    assert kept.id == rig.site.jobs["a"].id != before.id
    assert {share.id for agent in rig.agents.values() if agent.held for share in agent.held.shares} == {kept.id}
    rig.play()
    assert turned(rig, "a") == ["started", "lost", "started", "ended"]
    assert rig.site.jobs["a"].state == "ended"
    drawn_j = sum(agent.node_j - agent.idle_j for agent in rig.agents.values())
    assert before.account_j + rig.site.jobs["a"].account_j == pytest.approx(drawn_j, rel=0.01)
    assert min(before.account_j, rig.site.jobs["a"].account_j) > 0


def test_the_same_order_under_another_id_is_the_same_job_and_its_account_goes_on() -> None:
    rig = Rig([TOY], [toy_job("a", 5.0, 1000.0, 8, menu=EIGHT)], first_come, period_s=5.0)
    engine = blinking(rig)
    looks(rig, 60)
    before_j = rig.scheduler.status().jobs[0].energy_j
    id_ = rig.site.jobs["a"].id
    engine.renamed = {id_: "77"}
    for agent in rig.agents.values():
        _begin_anew(agent, {id_: "77"})
    looks(rig, 2)
    kept = rig.scheduler.book.jobs["a"]
    assert (kept.id, kept.over, sum(kept.before_j.values())) == ("77", False, pytest.approx(before_j, rel=0.05))
    rig.play()
    assert turned(rig, "a") == ["started", "ended"]
    drawn_j = sum(agent.node_j - agent.idle_j for agent in rig.agents.values())
    assert rig.site.jobs["a"].account_j == pytest.approx(drawn_j, rel=0.01)


def _begin_anew(agent: Any, ids: dict[str, str]) -> None:
    """The agent knows a job by another id from now on, and counts it from nothing."""
    agent.measure()
    there = agent.there
    agent.there = lambda: {ids.get(id_, id_): name for id_, name in there().items()}


@pytest.mark.parametrize("killed", [False, True])
def test_a_name_used_again_at_once_does_not_cost_the_first_job_its_account(killed: bool) -> None:
    rig = Rig([TOY], [toy_job("a", 0.0, 40.0, 8, menu=EIGHT)], first_come, period_s=5.0)
    looks(rig, 1)
    while rig.scheduler.look() and rig.site.jobs["a"].state not in DONE:
        for agent in rig.agents.values():
            assert rig.desk is not None
            agent.look(rig.desk)
    old = rig.site.jobs["a"]
    assert old.account_j == 0.0
    rig.scheduler.submit(replace(rig.scheduler.book.jobs["a"].order, submitted_s=rig.site.now()))
    rig.scheduler.look()  # before any agent has said its last word on the first
    assert list(rig.scheduler.book.former) == [old.id]
    if killed:
        rig.fresh().lead()  # the book alone has to remember it
    rig.play()
    new = rig.site.jobs["a"]
    assert new.id != old.id
    assert old.account_j == pytest.approx(new.account_j, rel=0.1)
    assert old.account_j + new.account_j == pytest.approx(
        sum(agent.node_j - agent.idle_j for agent in rig.agents.values()), rel=0.01
    )
    assert not rig.scheduler.book.former
    looks(rig, 2)
    assert all(not agent.energy for agent in rig.agents.values())
