"""An engine in virtual time: what is aimed at comes true once, under one id, whatever is said twice or killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.engine import DONE, Engine, JobSeen, Order
from joulewise.cluster.engines.simulated import SimulatedEngine, SimulatedSite, order_of
from joulewise.cluster.life import Submission
from joulewise.cluster.round import Round
from joulewise.cluster.simulator import simulate
from joulewise.core.errors import BadSpec, EngineLost, Fenced
from joulewise.core.knob import Setting
from joulewise.testing import EngineConformance, EngineStage
from tests.cluster.toys import TOY, ToyTruth, first_come, toy_job


def engine(*jobs: Submission, save_s: float = 0.0, checkpoint_s: float = 600.0) -> SimulatedEngine:
    """With its jobs handed in at once, and led."""
    site = SimulatedSite([TOY], jobs, save_s=save_s, checkpoint_s=checkpoint_s)
    made = SimulatedEngine(site)
    made.take(1)
    made.wait(0.0)
    return made


def seen(there: SimulatedEngine, name: str) -> JobSeen:
    return next(job for job in there.jobs() if job.name == name)


def told(there: SimulatedEngine, longest_s: float = 1e6) -> list[tuple[float, str, str]]:
    return [(news.time_s, news.what, news.about) for news in there.wait(longest_s)]


class Stage:
    """A site of toys, whose jobs run for weeks unless they shall end soon."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._site = SimulatedSite([TOY], known=self._known, save_s=5.0, exits=lambda order: self._ends[order.name])
        self.engine: Engine = SimulatedEngine(self._site)
        self.engine.take(1)
        self.longest_s = 400.0  # a boot takes 300

    def _known(self, order: Order) -> Submission:
        return toy_job(order.name, order.submitted_s, 10.0 if order.name in self._ends else 1e7, order.gpus)

    def other(self) -> SimulatedEngine:
        return SimulatedEngine(self._site)

    def next_epoch(self) -> int:
        return self._site.epoch + 1

    def order(self, name: str, *, gpus: int, elastic: bool = True, ends: int | None = None) -> Order:
        if ends is not None:
            self._ends[name] = ends
        return Order(name, ("train",), gpus, checkpoint="/checkpoints" if elastic else None)


class TestSimulatedEngine(EngineConformance):
    @pytest.fixture
    def stage(self) -> EngineStage:
        return Stage()


def test_its_nodes_are_called_by_kind_and_number() -> None:
    there: Engine = engine()
    assert [node.name for node in there.nodes()] == ["toy-0", "toy-1", "toy-2", "toy-3"]
    assert {node.gpus for node in there.nodes()} == {8}


def test_a_job_comes_by_itself_waits_to_be_started_and_ends_after_its_start_and_its_work() -> None:
    there = engine(toy_job("a", 30.0, 1000.0, truth=ToyTruth(slower=1.5)))
    assert told(there) == [(30.0, "submitted", "a")]
    assert told(there, 1000.0) == []  # nobody starts it
    assert there.now() == 1030.0
    there.start("a", {"toy-1": 1})
    assert seen(there, "a").state == "starting"
    assert told(there) == [(1034.0, "started", "a")]
    assert told(there) == [(2534.0, "ended", "a")]
    job = seen(there, "a")
    assert (job.state, job.exit_code, job.starts, job.place) == ("ended", 0, 1, {})


def test_a_job_started_as_the_simulator_does_ends_when_the_simulator_says_and_draws_as_much() -> None:
    jobs = [toy_job(f"j{at}", 60.0 * at, 500.0 + 300.0 * at, 8, truth=ToyTruth(1.1, 0.9)) for at in range(4)]
    out = simulate(jobs, [TOY], Round(first_come))
    there = engine(*jobs)
    for at in range(4):
        there.site.advance(60.0 * at)
        there.start(f"j{at}", {f"toy-{at}": 8})
    there.site.advance(out.ended_s)
    ends = {news.about: news.time_s for news in there.site.heard if news.what == "ended"}
    assert ends == {job.name: job.ended_s for job in out.jobs}
    assert there.site.world.meter.joules.whole == pytest.approx(out.energy_j.whole)
    for job in out.jobs:
        assert there.site.energy_j(job.name) == pytest.approx(job.energy_j)


def test_a_resize_saves_stops_and_runs_elsewhere_under_the_same_id() -> None:
    there = engine(toy_job("a", 0.0, 1000.0), save_s=10.0)
    there.start("a", {"toy-0": 1})
    before = seen(there, "a").id
    there.site.advance(104.0)  # 100 units done
    there.wait(0.0)
    for _ in range(2):  # said twice, it is done once
        there.resize("a", {"toy-1": 2})
    assert seen(there, "a").state == "leaving"
    assert seen(there, "a").place == {"toy-0": 1}
    assert told(there) == [(114.0, "stopped", "a")]
    job = seen(there, "a")
    assert (job.state, job.place, job.id, job.starts) == ("starting", {"toy-1": 2}, before, 2)
    # 27 + 2 + 4 s to restart on two GPUs; 900 units are left.
    assert told(there) == [(147.0, "started", "a")]
    ((ended_s, what, _),) = told(there)
    assert (what, ended_s) == ("ended", pytest.approx(147.0 + 900.0 / 2**0.8))


def test_a_preempted_job_waits_with_its_work_and_a_rigid_one_loses_it() -> None:
    rigid = replace(toy_job("rigid", 0.0, 1000.0), elastic=False)
    there = engine(toy_job("elastic", 0.0, 1000.0), rigid)
    for name in ("elastic", "rigid"):
        there.start(name, {"toy-0": 1})
    there.site.advance(104.0)
    for name in ("elastic", "rigid"):
        there.preempt(name)
        there.preempt(name)
        assert seen(there, name).state == "waiting"
    assert (there.site.done("elastic"), there.site.done("rigid")) == (100.0, 0.0)
    with pytest.raises(BadSpec, match="'rigid' has no checkpoint folder and runs on 1 GPUs only, not 2"):
        there.start("rigid", {"toy-0": 2})


def test_a_start_where_no_gpu_is_free_waits_for_one() -> None:
    there = engine(toy_job("a", 0.0, 100.0, 8), toy_job("b", 0.0, 100.0, 8))
    there.start("a", {"toy-0": 8})
    there.start("b", {"toy-0": 8})
    assert seen(there, "b").state == "waiting"
    while seen(there, "a").state not in DONE:
        there.wait(1e6)
    assert seen(there, "b").state == "starting"


def test_clocks_change_at_once_cost_nothing_and_are_gone_with_the_gpus() -> None:
    there = engine(toy_job("a", 0.0, 1000.0))
    there.start("a", {"toy-0": 1})
    there.site.advance(104.0)
    full_w = there.site.power_w()
    there.site.retune("a", Setting(sm_mhz=700))
    assert there.site.power_w() == pytest.approx(full_w - 300.0 + 125.0)
    there.site.advance(304.0)
    assert there.site.done("a") == pytest.approx(100.0 + 100.0)
    there.resize("a", {"toy-1": 1})
    there.site.advance(400.0)
    assert there.site.power_w() == pytest.approx(full_w)


def test_a_node_that_dies_sends_its_jobs_back_to_their_last_checkpoint_and_can_come_back() -> None:
    there = engine(toy_job("wide", 0.0, 10_000.0, 16), toy_job("other", 0.0, 10_000.0, 1), checkpoint_s=100.0)
    there.start("wide", {"toy-0": 8, "toy-1": 8})
    there.start("other", {"toy-2": 1})
    there.site.advance(262.0)  # wide works since 12 s
    there.site.retune("wide", Setting(sm_mhz=1400))
    unit_s = 1.1 / 16**0.8
    there.wait(0.0)
    there.site.kill("toy-1")
    assert [(news.what, news.about, news.says) for news in there.wait(0.0)] == [
        ("lost", "wide", "node toy-1 went down"),
        ("down", "toy-1", ""),
    ]
    assert seen(there, "wide").state == "waiting"
    assert there.site.done("wide") == pytest.approx(200.0 / unit_s)
    assert seen(there, "other").state == "running"
    assert {node.name: node.state for node in there.nodes()}["toy-1"] == "down"
    there.start("wide", {"toy-0": 8, "toy-1": 8})
    assert seen(there, "wide").state == "waiting"  # a place that is down
    there.site.revive("toy-1")
    assert seen(there, "wide").state == "starting"


def test_a_node_that_dies_while_a_job_saves_loses_what_was_not_yet_saved() -> None:
    there = engine(toy_job("a", 0.0, 1000.0), save_s=30.0, checkpoint_s=100.0)
    there.start("a", {"toy-0": 1})
    there.site.advance(254.0)
    there.preempt("a")
    there.site.advance(260.0)
    assert there.site.done("a") == 250.0
    there.site.kill("toy-0")
    assert there.site.done("a") == pytest.approx(200.0)


def test_nodes_sleep_and_boot_and_one_with_a_job_does_not_sleep() -> None:
    there = engine(toy_job("a", 0.0, 1e6))
    there.start("a", {"toy-0": 1})
    with pytest.raises(BadSpec, match="toy-0 has a job on it"):
        there.power("toy-0", on=False)
    full_w = there.site.power_w()
    there.power("toy-3", on=False)
    there.power("toy-3", on=False)
    assert there.site.power_w() == pytest.approx(full_w - 1200.0 + 20.0)
    there.wait(0.0)
    there.site.advance(100.0)
    there.wait(0.0)
    there.power("toy-3", on=True)
    assert told(there) == [(400.0, "up", "toy-3")]


def test_a_job_stopped_ends_for_good_and_says_why() -> None:
    there = engine(toy_job("a", 0.0, 1e6))
    there.start("a", {"toy-0": 1})
    there.stop("a", "its user changed her mind")
    there.stop("a", "again")
    with pytest.raises(BadSpec, match="'a' is over"):
        there.start("a", {"toy-0": 1})
    job = seen(there, "a")
    assert (job.state, job.why, job.place) == ("cancelled", "its user changed her mind", {})


def test_the_same_order_twice_is_one_job_and_another_under_its_name_is_refused() -> None:
    job = toy_job("a", 0.0, 100.0)
    site = SimulatedSite([TOY], known=lambda order: job)
    there = SimulatedEngine(site)
    order = order_of(job)
    assert there.submit(order) == there.submit(order)
    assert len(there.jobs()) == 1
    with pytest.raises(BadSpec, match="called 'a' is there already"):
        there.submit(replace(order, gpus=2))
    with pytest.raises(BadSpec, match="asks for 64 GPUs, but the cluster has 32"):
        there.submit(replace(order, name="b", gpus=64))
    with pytest.raises(BadSpec, match="nothing is known of what 'a' would do"):
        SimulatedEngine(SimulatedSite([TOY])).submit(order)


@pytest.mark.parametrize("place", [{}, {"toy-9": 1}, {"toy-0": 9}, {"toy-0": 0}])
def test_a_place_that_can_never_be_is_refused(place: dict[str, int]) -> None:
    there = engine(toy_job("a", 0.0, 100.0))
    with pytest.raises(BadSpec):
        there.start("a", place)
    with pytest.raises(BadSpec, match="no job is called 'b'"):
        there.start("b", {"toy-0": 1})


def test_a_later_scheduler_fences_an_earlier_one_which_may_still_look() -> None:
    old = engine(toy_job("a", 0.0, 100.0))
    new = SimulatedEngine(old.site)
    with pytest.raises(Fenced):
        new.start("a", {"toy-0": 1})  # it has taken nothing yet
    new.take(2)
    new.start("a", {"toy-0": 1})
    with pytest.raises(Fenced, match="epoch 2 has taken this cluster over"):
        old.preempt("a")
    with pytest.raises(Fenced):
        old.take(1)
    assert seen(old, "a").state == "starting"


def test_an_engine_that_does_not_answer_says_so_and_answers_again_later() -> None:
    there = engine(toy_job("a", 0.0, 100.0))
    there.lost = True
    for ask in (there.jobs, there.nodes, lambda: there.wait(1.0), lambda: there.preempt("a")):
        with pytest.raises(EngineLost):
            ask()
    there.lost = False
    assert seen(there, "a").state == "waiting"


def test_energy_written_down_is_kept_with_the_job() -> None:
    there = engine(toy_job("a", 0.0, 100.0))
    there.account("a", 12.5)
    assert there.site.job("a").account_j == 12.5


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "resize", "preempt", "wait", "retune", "kill", "revive"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from([1, 2, 4, 8]),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(ACTS, st.sampled_from([0.0, 20.0]))
def test_whatever_is_said_no_gpu_is_held_twice_and_every_job_ends_once(
    acts: list[tuple[str, int, int, int]], save_s: float
) -> None:
    there = engine(*(toy_job(f"j{at}", 0.0, 500.0 * (at + 1), 1) for at in range(4)), save_s=save_s)

    def aimed(name: str, place: dict[str, int] | None) -> None:
        if seen(there, name).state in DONE:
            with pytest.raises(BadSpec, match="is over"):
                there.preempt(name)
        elif place is None:
            there.preempt(name)
        else:
            there.start(name, place)

    def check() -> None:
        held = dict.fromkeys((node.name for node in there.nodes()), 0)
        for job in there.jobs():
            for node, gpus in job.place.items():
                held[node] += gpus
        for rack in there.site.racks:
            for name in rack.names:
                assert held[name] + rack.free_on[name] == 8
        assert there.site.power_w() > 0

    for what, job, node, gpus in acts:
        if what in ("start", "resize"):
            aimed(f"j{job}", {f"toy-{node}": gpus})
        elif what == "preempt":
            aimed(f"j{job}", None)
        elif what == "wait":
            there.wait(50.0 * gpus)
        elif what == "retune":
            there.site.retune(f"j{job}", Setting(sm_mhz=[700, 1000, 1400][gpus % 3]))
        elif what == "kill":
            there.site.kill(f"toy-{node}")
        else:
            there.site.revive(f"toy-{node}")
        check()
    for node in range(4):
        there.site.revive(f"toy-{node}")
    for _ in range(60):
        for job in range(4):
            aimed(f"j{job}", {f"toy-{job}": 8})
        there.wait(1e5)
        check()
    assert {job.state for job in there.jobs()} == {"ended"}
    ends = [news.about for news in there.site.heard if news.what == "ended"]
    assert sorted(ends) == ["j0", "j1", "j2", "j3"]
