"""The scheduler on a site in virtual time, with agents: jobs end as the simulator says, caps hold, nodes may die."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.engine import NodeSeen, Order, Place
from joulewise.cluster.engines.simulated import SimulatedEngine
from joulewise.cluster.life import Belief
from joulewise.cluster.round import Round
from joulewise.cluster.scheduler import Scheduler
from joulewise.cluster.simulator import Submission, simulate
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec, EngineLost, Fenced, NotPermitted
from joulewise.core.event import Aimed, Limited, Ordered, Turned
from joulewise.core.knob import DEFAULT
from tests.cluster.toy_engine import MOST_GPU_W, Rig
from tests.cluster.toys import TOY, ToyTruth, first_come, toy_job, toy_ways

TOP_W = 4 * (800.0 + 8 * 300.0)
"""The toy cluster with every GPU at its top clock."""


def ten_jobs() -> list[Submission]:
    dice = random.Random(3)
    return [toy_job(f"j{at}", 200.0 * at, dice.uniform(500, 6000), dice.choice([1, 2, 4, 8])) for at in range(10)]


def long_jobs(count: int = 4, work: float = 20_000.0) -> list[Submission]:
    """Enough to fill the cluster for a while; eight GPUs and no other number."""
    menu = toy_ways((8,))
    return [toy_job(f"j{at}", 0.0, work, 8, menu=menu) for at in range(count)]


def rigid(name: str, submitted_s: float, work: float, gpus: int) -> Submission:
    return replace(toy_job(name, submitted_s, work, gpus), elastic=False)


def aims(rig: Rig, what: str) -> list[Aimed]:
    return [event for _, event in rig.journal.read() if isinstance(event, Aimed) and event.what == what]


def looks(rig: Rig, count: int) -> None:
    for _ in range(count):
        rig.look()


def _look_on(scheduler: Scheduler) -> None:
    for _ in range(200):
        scheduler.look()


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_jobs_take_as_long_as_the_simulator_says(seed: int) -> None:
    def jobs() -> list[Submission]:
        dice = random.Random(seed)
        truth = ToyTruth(slower=1.1, hungrier=1.05)
        return [
            toy_job(
                f"j{at}", at * dice.uniform(50, 200), dice.uniform(500, 6000), dice.choice([1, 2, 4, 8]), truth=truth
            )
            for at in range(10)
        ]

    rig = Rig([TOY], jobs(), priced(), period_s=5.0, watch_s=5.0)
    rig.play()
    # The simulator's rounds fall on multiples of its period, ours come at once: its period must be short.
    said = simulate(jobs(), [TOY], Round(priced()), period_s=1.0)
    took = fmean(rig.ends()[name] - one.submitted_s for name, one in rig.submissions.items())
    assert took == pytest.approx(said.jct_s, rel=0.01)
    assert all(kept.state == "ended" for kept in rig.scheduler.book.jobs.values())


def test_the_energy_of_jobs_and_of_nobody_is_the_energy_of_the_nodes_and_reaches_the_accounting() -> None:
    rig = Rig([TOY], ten_jobs(), priced(), period_s=10.0, watch_s=1.0)
    rig.play()
    rig.scheduler.look()
    status = rig.scheduler.status()
    jobs_j = sum(job.energy_j for job in status.jobs)
    nodes_j = sum(agent.node_j for agent in rig.agents.values())
    assert jobs_j + status.idle_j == pytest.approx(nodes_j, rel=1e-6)
    assert status.energy_j == pytest.approx(nodes_j, rel=0.02)
    for name, job in rig.site.jobs.items():
        assert job.account_j == pytest.approx(sum(rig.scheduler.book.jobs[name].energy_j.values()))
        assert job.account_j > 0
    looks(rig, 2)
    assert all(not agent.energy for agent in rig.agents.values())  # they were told that they may forget


def test_a_cap_that_falls_by_a_fifth_is_met_by_clocks_within_two_exchanges_and_stops_nobody() -> None:
    rig = Rig([TOY], long_jobs(), first_come, period_s=60.0)
    looks(rig, 80)
    assert rig.site.power_w() == pytest.approx(TOP_W)
    cap_w = 0.8 * TOP_W
    rig.scheduler.cap(cap_w)
    assert rig.desk is not None
    # Ceilings are lower before the next pass has even begun.
    assert sum(rig.desk.ceiling_w(node) or 0.0 for node in rig.agents) <= cap_w
    looks(rig, 2)
    assert rig.site.power_w() <= cap_w
    status = rig.scheduler.status()
    assert status.cap_w == cap_w
    looks(rig, 70)
    assert rig.scheduler.status().compliant
    assert {job.state for job in rig.scheduler.status().jobs} == {"running"}
    assert not aims(rig, "preempt")
    assert {aim.reason for aim in aims(rig, "retune")} >= {"the cap fell to 10,200 W"}
    assert Counter(job.starts for job in rig.site.jobs.values()) == {1: 4}


def test_a_cap_that_clocks_cannot_meet_stops_some_and_lets_them_go_on_when_it_is_lifted() -> None:
    rig = Rig([TOY], long_jobs(), first_come, period_s=60.0, watch_s=5.0)
    looks(rig, 20)
    rig.scheduler.cap(0.45 * TOP_W)
    looks(rig, 6)
    assert rig.site.power_w() <= 0.45 * TOP_W
    assert aims(rig, "preempt")
    rig.scheduler.cap(None)
    rig.play()
    assert all(job.state == "ended" for job in rig.site.jobs.values())


def test_a_cap_for_a_while_ends_by_itself() -> None:
    rig = Rig([TOY], long_jobs(), first_come, period_s=10.0)
    looks(rig, 20)
    rig.scheduler.cap(0.7 * TOP_W, for_s=100.0)
    looks(rig, 30)
    assert rig.site.power_w() <= 0.7 * TOP_W
    looks(rig, 130)
    assert rig.scheduler.status().cap_w is None
    assert rig.site.power_w() == pytest.approx(TOP_W)


def test_a_cap_below_idle_power_is_refused_and_the_old_one_stays() -> None:
    rig = Rig([TOY], long_jobs(1), first_come, cap_w=9000.0)
    looks(rig, 5)
    with pytest.raises(BadSpec, match="below the 4,800 W that the cluster draws with nothing to do"):
        rig.scheduler.cap(4000.0)
    looks(rig, 2)
    assert rig.scheduler.status().cap_w == 9000.0


def test_a_silent_node_counts_with_its_most_so_that_the_others_make_room() -> None:
    cap_w = 9800.0
    rig = Rig([TOY], long_jobs(), first_come, cap_w=cap_w, period_s=10.0)
    looks(rig, 30)
    before_w = rig.site.power_w()
    rig.agents["toy-2"].silent = True
    looks(rig, 30)
    assert rig.site.power_w() < before_w - 500.0
    most_w = TOY.host_w + 8 * MOST_GPU_W
    others_w = sum(agent.power_w() for name, agent in rig.agents.items() if name != "toy-2")
    assert others_w + most_w <= cap_w
    node = next(node for node in rig.scheduler.status().nodes if node.name == "toy-2")
    assert node.counted_w == most_w
    assert "silent" in node.says[0]
    rig.agents["toy-2"].silent = False
    looks(rig, 30)
    assert rig.site.power_w() == before_w
    assert Counter(job.starts for job in rig.site.jobs.values()) == {1: 4}


def test_ten_jobs_a_cap_step_and_a_node_that_dies() -> None:
    rig = Rig([TOY], ten_jobs(), priced(), period_s=10.0, watch_s=5.0, checkpoint_s=50.0)
    while rig.site.now() < 500.0:
        rig.look()
    rig.scheduler.cap(9000.0)
    while rig.site.now() < 700.0:
        rig.look()
    busy = next(node.name for node in rig.scheduler.status().nodes if node.used_gpus)
    rig.site.kill(busy)
    while rig.site.now() < 900.0:
        rig.look()
    assert rig.scheduler.status().power_w <= 9000.0
    assert rig.site.power_w() > 4 * TOY.host_w  # the others work on
    rig.site.revive(busy)
    rig.play()
    ends = Counter(e.name for _, e in rig.journal.read() if isinstance(e, Turned) and e.what == "ended")
    assert ends == Counter(list(rig.submissions))
    for name, one in rig.submissions.items():
        assert rig.site.jobs[name].life.done == pytest.approx(one.work)


def test_while_the_engine_is_lost_caps_hold_and_what_ended_meanwhile_is_noted_once_after() -> None:
    rig = Rig([TOY], long_jobs(2, work=2000.0), first_come, period_s=10.0)
    looks(rig, 20)
    engine = rig.scheduler._sight.engine
    assert isinstance(engine, SimulatedEngine)
    engine.lost = True
    rig.scheduler.cap(6000.0)
    for _ in range(5):
        rig.look()
        rig.site.advance(rig.site.now() + 1.0)
    assert "does not answer" in rig.scheduler.status().engine
    assert rig.site.power_w() <= 6000.0
    for _ in range(60):
        rig.look()
        rig.site.advance(rig.site.now() + 60.0)
    assert all(job.state == "ended" for job in rig.site.jobs.values())
    assert not any(kept.over for kept in rig.scheduler.book.jobs.values())
    engine.lost = False
    rig.play()
    assert rig.scheduler.status().engine == ""
    ended = [e.name for _, e in rig.journal.read() if isinstance(e, Turned) and e.what == "ended"]
    assert sorted(ended) == ["j0", "j1"]


def test_an_engine_that_is_lost_when_the_scheduler_begins_is_taken_when_it_answers() -> None:
    rig = Rig([TOY], long_jobs(1, work=500.0), first_come)
    again = rig.fresh()
    engine = again._sight.engine
    assert isinstance(engine, SimulatedEngine)
    engine.lost = True
    again.lead()
    looks(rig, 3)
    assert again.status().engine
    engine.lost = False
    rig.play()
    assert rig.site.jobs["j0"].state == "ended"


def test_the_scheduler_before_is_fenced_by_the_journal_and_by_the_agents() -> None:
    rig = Rig([TOY], ten_jobs()[:3], priced(), watch_s=5.0)
    old = rig.scheduler
    looks(rig, 3)
    rig.fresh().lead()
    with pytest.raises(Fenced):
        _look_on(old)
    with pytest.raises(Fenced):
        old.cap(9000.0)
    rig.play()
    assert all(job.state == "ended" for job in rig.site.jobs.values())


def test_what_came_and_ended_while_nobody_led_is_noted_once() -> None:
    rig = Rig([TOY], [toy_job("first", 0.0, 100.0), toy_job("second", 50.0, 100.0)], first_come)
    looks(rig, 5)
    rig.site.advance(40.0)
    rig.site.advance(3000.0)  # first ends, second comes; nobody looks
    rig.fresh().lead()
    rig.play()
    assert [kept.ended_s is not None for kept in rig.scheduler.book.jobs.values()] == [True, True]
    assert rig.scheduler.book.jobs["first"].ended_s == rig.ends()["first"] < 2000.0


def test_a_rigid_job_is_never_resized_nor_stopped_for_others_but_its_clock_falls_under_a_cap() -> None:
    jobs = [rigid("stiff", 0.0, 10_000.0, 8), *(toy_job(f"j{at}", 100.0, 2000.0, 4) for at in range(6))]
    rig = Rig([TOY], jobs, priced(), period_s=20.0, watch_s=20.0)
    while rig.site.now() < 400.0:
        rig.look()
    rig.scheduler.cap(6000.0)
    while rig.site.now() < 600.0:
        rig.look()
    assert rig.site.jobs["stiff"].setting["sm_mhz"] < 1400
    rig.play()
    assert rig.site.jobs["stiff"].starts == 1
    assert [aim for aim in aims(rig, "resize") + aims(rig, "preempt") if aim.name == "stiff"] == []


def test_a_rigid_job_is_stopped_as_the_last_where_the_cap_cannot_be_kept_otherwise() -> None:
    jobs = [rigid("stiff", 0.0, 5000.0, 8), rigid("stiffer", 0.0, 5000.0, 8)]
    rig = Rig([TOY], jobs, first_come, period_s=10.0)
    looks(rig, 20)
    rig.scheduler.cap(4 * TOY.empty_node_w + 700.0)
    looks(rig, 20)
    assert rig.site.power_w() <= 4 * TOY.empty_node_w + 700.0
    assert [aim.name for aim in aims(rig, "preempt")] == ["stiffer"]


def test_refused_clocks_are_said_and_not_tried_again_at_once() -> None:
    rig = Rig([TOY], long_jobs(1), first_come, period_s=10.0)
    rig.agents["toy-0"].refuses = lambda setting: setting != DEFAULT
    looks(rig, 90)
    assert any("refused its setting: clocks are refused here" in said for said in rig.scheduler.status().troubles)
    assert "refused its setting" in rig.scheduler.explain("j0")
    assert len(aims(rig, "retune")) <= 3


def test_a_job_that_runs_where_nobody_has_claimed_gpus_for_it_is_told_to_the_operator_until_it_is_claimed() -> None:
    rig = Rig([TOY], long_jobs(1), first_come, period_s=10.0)
    for agent in rig.agents.values():
        agent.unclaimed = True
    looks(rig, 10)
    assert not rig.scheduler.status().troubles
    looks(rig, 60)
    (said,) = rig.scheduler.status().troubles
    assert "job j0 runs on toy-0 and its GPUs are not claimed there" in said
    for agent in rig.agents.values():
        agent.unclaimed = False
    looks(rig, 10)
    assert not rig.scheduler.status().troubles


def test_where_clocks_are_refused_and_no_ceiling_helps_jobs_are_stopped_until_the_cap_is_kept() -> None:
    rig = Rig([TOY], long_jobs(), first_come, period_s=10.0)
    for agent in rig.agents.values():
        agent.refuses = lambda setting: setting != DEFAULT
    looks(rig, 30)
    rig.scheduler.cap(0.8 * TOP_W)
    looks(rig, 60)
    assert rig.site.power_w() <= 0.8 * TOP_W
    running = [job.name for job in rig.scheduler.status().jobs if job.state == "running"]
    assert 0 < len(running) < 4
    assert any("above the cap" in said for said in rig.scheduler.status().troubles)


class Jammed(SimulatedEngine):
    """An engine that takes a start for one node and never brings it about."""

    def start(self, name: str, place: Place) -> None:
        if "toy-0" not in place:
            super().start(name, place)


def test_a_start_that_never_comes_true_is_decided_anew() -> None:
    rig = Rig([TOY], long_jobs(2), first_come, period_s=10.0, watch_s=10.0)
    rig.scheduler._sight.engine = Jammed(rig.site)
    rig.scheduler.lead()
    looks(rig, 80)
    assert "did not start within 300 s" in aims(rig, "preempt")[0].reason
    assert rig.site.jobs["j1"].state == "running"


def test_a_job_that_the_engine_moved_is_taken_as_it_is() -> None:
    rig = Rig([TOY], long_jobs(1), first_come, period_s=10.0)
    looks(rig, 20)
    assert rig.site.jobs["j0"].place == {"toy-0": 8}
    rig.site.want("j0", {"toy-3": 8})
    looks(rig, 60)
    assert rig.site.jobs["j0"].place == {"toy-3": 8}
    kept = rig.scheduler.book.jobs["j0"]
    assert kept.aim is not None
    assert (kept.aim.place, kept.aim.reason) == ({"toy-3": 8}, "the engine runs it there")


class Shared(SimulatedEngine):
    """An engine where others hold GPUs of the first node."""

    foreign = 4

    def nodes(self) -> tuple[NodeSeen, ...]:
        first, *rest = super().nodes()
        return (replace(first, foreign_gpus=self.foreign), *rest)


def test_gpus_that_others_hold_are_not_given_out() -> None:
    rig = Rig([TOY], long_jobs(4), first_come, period_s=10.0)
    rig.scheduler._sight.engine = Shared(rig.site)
    rig.scheduler.lead()
    looks(rig, 30)
    assert sorted(node for job in rig.site.jobs.values() for node in job.place) == ["toy-1", "toy-2", "toy-3"]
    waits = next(job for job in rig.scheduler.status().jobs if job.state == "waiting")
    assert waits.name in rig.scheduler.explain(waits.name)


def test_nodes_sleep_and_wake_by_need_and_a_node_is_used_once_its_agent_is_there() -> None:
    kind = replace(TOY, boot_s=60.0, boot_w=900.0)
    jobs = [toy_job("early", 0.0, 500.0, 8), toy_job("late", 3000.0, 60_000.0, 32, menu=toy_ways((32,)))]
    rig = Rig([kind], jobs, first_come, power_off=True, period_s=10.0, watch_s=10.0)
    while rig.site.now() < 2900.0:
        rig.look()
    nodes = rig.scheduler.status().nodes
    assert Counter(node.state for node in nodes)["off"] >= 3
    assert {(node.power_w, node.counted_w) for node in nodes if node.state == "off"} == {(None, kind.off_w)}
    rig.play()
    assert rig.site.jobs["late"].state == "ended"


def test_submit_cancel_status_and_explain() -> None:
    rig = Rig([TOY], [], priced(), period_s=10.0)
    looks(rig, 2)
    one = toy_job("bert", 0.0, 50_000.0, 8)
    rig.submissions["bert"] = one
    order = Order("bert", ("train",), 8, checkpoint="/checkpoints/bert", work=50_000.0)
    assert rig.scheduler.submit(order) == "1"
    looks(rig, 60)
    assert rig.scheduler.submit(order) == "1"
    with pytest.raises(BadSpec, match="there already"):
        rig.scheduler.submit(replace(order, gpus=4))
    with pytest.raises(BadSpec, match="asks for 12 GPUs, which no place here has: 1 to 8 on one node"):
        rig.scheduler.submit(replace(order, name="odd", gpus=12))
    (job,) = rig.scheduler.status().jobs
    assert (job.name, job.state, job.aim) == ("bert", "running", "")
    assert job.gpus == sum(job.place.values()) > 0
    assert job.eta_s is not None
    assert job.eta_s > rig.site.now()
    assert rig.scheduler.explain("bert").startswith("bert runs on")
    with pytest.raises(BadSpec, match="no job here is called 'gpt'"):
        rig.scheduler.explain("gpt")
    with pytest.raises(NotPermitted, match="'bert' is not yours"):
        rig.scheduler.cancel("bert", by=Caller(uid=1001))
    with pytest.raises(NotPermitted, match="'bert' is not yours"):  # nor a bearer's of a token that may only read
        rig.scheduler.cancel("bert", by=Caller(token="wall"))
    rig.scheduler.cancel("bert", by=Caller(token="ci", operator=True))
    looks(rig, 20)
    assert rig.scheduler.book.jobs["bert"].state == "cancelled"
    assert rig.scheduler.explain("bert") == "bert is over: cancelled (cancelled by token ci)."
    with pytest.raises(BadSpec, match="could be cancelled"):
        rig.scheduler.cancel("bert", by=Caller(token="ci", operator=True))


def test_who_did_it_is_written_down_and_a_job_is_its_user_s_as_the_engine_says() -> None:
    rig = Rig([TOY], [], priced(), period_s=10.0)
    looks(rig, 2)
    alice, bob = Caller(uid=4_000_001), Caller(uid=4_000_002)
    for name in ("a", "b"):
        rig.submissions[name] = toy_job(name, 0.0, 50_000.0, 8)
        # The order's own word on whose it is counts for nothing.
        order = Order(name, ("train",), 8, checkpoint=f"/c/{name}", work=50_000.0, tenant="bob")
        rig.scheduler.submit(order, by=alice)
    looks(rig, 10)
    with pytest.raises(NotPermitted, match="'a' is not yours"):
        rig.scheduler.cancel("a", by=bob)
    rig.scheduler.cancel("a", by=alice)
    rig.scheduler.cancel("b", by=Caller(uid=4_000_003, operator=True))
    rig.scheduler.cap(20_000.0, by=Caller(token="ci", operator=True))
    rig.scheduler.budget(1e12, by=Caller(token="", operator=True))
    looks(rig, 10)
    found = [event for _, event in rig.journal.read()]
    ordered = [event.facts["by"] for event in found if isinstance(event, Ordered)]
    assert ordered == [{"uid": 4_000_001}, {"uid": 4_000_001}]
    stops = [(event.name, event.reason, event.facts["by"]) for event in found if getattr(event, "what", "") == "stop"]
    assert stops == [
        ("a", "cancelled by its user", {"uid": 4_000_001}),
        ("b", "cancelled by uid 4000003", {"uid": 4_000_003}),
    ]
    assert [event.facts["by"] for event in found if isinstance(event, Limited)] == [{"token": "ci"}, {"token": ""}]
    assert rig.scheduler.explain("b") == "b is over: cancelled (cancelled by uid 4000003)."


def test_beliefs_are_told_what_jobs_really_take() -> None:
    job = toy_job("slow", 0.0, 3000.0, 8, truth=ToyTruth(slower=1.5, hungrier=1.2), menu=toy_ways((8,)))
    rig = Rig([TOY], [job], first_come, period_s=10.0)
    rig.play()
    told = job.belief.told  # type: ignore[attr-defined]
    assert told
    way, nodes, unit_s, unit_j = told[0]
    assert nodes == 1
    assert unit_s == pytest.approx(1.5 * way.unit_s, rel=0.03)
    assert unit_j / unit_s == pytest.approx(1.2 * way.power_w, rel=0.03)


def test_a_budget_of_energy_is_kept_through_restarts_of_the_scheduler() -> None:
    rig = Rig([TOY], long_jobs(4, work=200_000.0), priced(), period_s=60.0, watch_s=60.0)
    period_s = 4 * 3600.0
    budget_j = 9000.0 * period_s
    looks(rig, 3)
    rig.scheduler.budget(budget_j, period_s)
    begun_s, begun_j = rig.site.now(), rig.site.world.meter.joules.whole
    for part in (0.3, 0.6, 0.8, 1.0):
        while rig.site.now() < begun_s + part * period_s:
            rig.look()
        assert rig.scheduler.status().budget_j == budget_j
        drawn_j = rig.site.world.meter.joules.whole - begun_j
        rig.fresh().lead()
    assert 0.9 * budget_j <= drawn_j <= budget_j


def test_a_job_that_cannot_be_understood_waits_and_keeps_nobody_else_from_running() -> None:
    rig = Rig([TOY], [toy_job("odd", 0.0, 100.0), toy_job("even", 0.0, 100.0)], first_come, period_s=10.0)
    believe = rig.believe

    def strict(order: Order) -> Belief:
        if order.name == "odd":
            raise BadSpec("its frontier has no points")
        return believe(order)

    rig.believe = strict  # type: ignore[method-assign]
    rig.fresh().lead()
    looks(rig, 300)
    assert rig.site.jobs["even"].state == "ended"
    assert rig.site.jobs["odd"].state == "waiting"
    assert "its frontier has no points" in rig.scheduler.explain("odd")


def test_it_runs_until_it_is_told_to_stop() -> None:
    rig = Rig([TOY], [], first_come)
    stop = threading.Event()
    passes = 0

    def step(what: str) -> None:
        nonlocal passes
        passes += what == "before declare"
        if passes == 3:
            stop.set()

    rig.step = step
    rig.scheduler.run(stop)
    assert passes == 3


class Broken(SimulatedEngine):
    """An engine whose accounting is lost, and which then answers again."""

    times = 0

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        self.times += 1
        if self.times < 3:
            raise EngineLost("the accounting does not answer")
        super().account(name, energy_j, id)


def test_energy_that_could_not_be_accounted_is_accounted_later() -> None:
    rig = Rig([TOY], [toy_job("one", 0.0, 300.0, 8)], first_come, period_s=10.0)
    rig.scheduler._sight.engine = Broken(rig.site)
    rig.scheduler.lead()
    rig.play()
    assert rig.site.jobs["one"].account_j > 0
