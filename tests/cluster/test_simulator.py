"""A simulated cluster: exact times, every joule counted, the same again, and nothing that is not there matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.limits import Limits
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import Submission, simulate
from joulewise.cluster.state import Allocation, Budget, Costs, Job, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.event import Limited
from joulewise.core.knob import Setting
from tests.cluster.toys import TOY, ToyBelief, ToyTruth, first_come, toy_job, toy_ways

COSTS = Costs()


def as_asked(jobs: list[Submission], **kind: float) -> Outcome:
    return simulate(jobs, [replace(TOY, **kind)], Round(first_come), costs=COSTS)


def test_a_job_alone_ends_when_its_work_at_the_true_speed_is_done_and_its_start_is_paid() -> None:
    # Comes at 30 s, starts at the next round (60 s), 4 s to start on one GPU, 1,000 units at 1.5 s each.
    job = toy_job("one", 30.0, 1000.0, truth=ToyTruth(slower=1.5, hungrier=1.1))
    out = as_asked([job])
    (came,) = out.jobs
    assert (came.started_s, came.ended_s) == (60.0, 60.0 + 4.0 + 1500.0)
    assert came.jct_s == out.jct_s == 1534.0
    assert came.gpu_s == 1504.0
    assert came.energy_j == pytest.approx(1500.0 * 330.0 + 4.0 * 50.0 + 1504.0 * 100.0)
    assert out.energy_j.jobs == pytest.approx(1500.0 * 330.0)
    assert out.energy_j.starts == pytest.approx(4.0 * 50.0)
    assert out.energy_j.hosts == pytest.approx((out.ended_s - 30.0) * 4 * 800.0)
    assert out.tail_w == pytest.approx(4 * (800.0 + 8 * 50.0))
    assert out.energy_until_j(out.ended_s + 10.0) == pytest.approx(out.energy_j.whole + 10.0 * out.tail_w)


def test_rounds_fall_on_multiples_of_the_period_and_only_when_something_happened() -> None:
    seen: list[float] = []

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        seen.append(snapshot.now_s)

    jobs = [toy_job("a", 10.0, 5000.0), toy_job("b", 15.0, 50.0)]
    simulate(jobs, [TOY], Round(first_come), watch=watch)
    assert seen == [60.0, 120.0, 5100.0]  # both came; b ended at 114 s; a ended at 5,064 s


def test_a_policy_that_asks_to_be_called_again_is() -> None:
    seen: list[float] = []

    def restless(snapshot: Snapshot, budget: Budget) -> Allocation:
        seen.append(snapshot.now_s)
        return replace(first_come(snapshot, budget), again_s=snapshot.now_s + 90.0 if snapshot.jobs else None)

    simulate([toy_job("a", 0.0, 500.0)], [TOY], Round(restless))
    assert seen == [0.0, 120.0, 240.0, 360.0, 480.0, 540.0]


def test_a_resize_costs_a_restart_and_a_change_of_clock_costs_nothing() -> None:
    menu = toy_ways((1, 2))
    fast, slow, two = menu[0], menu[2], menu[3]
    plan = {0.0: fast, 120.0: slow, 180.0: two}

    def scripted(snapshot: Snapshot, budget: Budget) -> Allocation:
        way = [way for at_s, way in plan.items() if at_s <= snapshot.now_s][-1]
        return Allocation({job.name: way for job in snapshot.jobs}, again_s=snapshot.now_s + 60.0)

    out = simulate([toy_job("a", 0.0, 300.0, menu=menu)], [TOY], Round(scripted), seen_s=1e9)
    spans = [(span.from_s, span.to_s, span.gpus, span.setting, span.start_s) for span in out.spans]
    # 116 units in 120 s, 30 at half the clock, the other 154 on two GPUs after 33 s of restart.
    end_s = 180.0 + 33.0 + 154.0 * two.unit_s
    assert spans == [
        (0.0, 120.0, 1, Setting(sm_mhz=1400), 4.0),
        (120.0, 180.0, 1, Setting(sm_mhz=700), 0.0),
        (180.0, pytest.approx(end_s), 2, Setting(sm_mhz=1400), 33.0),
    ]
    assert out.jobs[0].restarts == 1


def test_a_preempted_job_keeps_its_work_and_pays_a_restart() -> None:
    def on_and_off(snapshot: Snapshot, budget: Budget) -> Allocation:
        pause = 120.0 <= snapshot.now_s < 600.0
        return Allocation(
            {} if pause else {job.name: job.ways[0] for job in snapshot.jobs}, again_s=snapshot.now_s + 60
        )

    out = simulate([toy_job("a", 0.0, 300.0)], [TOY], Round(on_and_off))
    assert out.jobs[0].ended_s == pytest.approx(600.0 + 31.0 + (300.0 - 116.0))
    assert [(span.from_s, span.to_s) for span in out.spans] == [(0.0, 120.0), (600.0, pytest.approx(815.0))]


def test_a_belief_is_told_the_true_time_and_energy_once_a_way_and_place_and_news_call_a_round() -> None:
    rounds: list[float] = []

    class Learner(ToyBelief):
        def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
            super().tell(way, nodes, unit_s, unit_j)
            self.menu = tuple(replace(way, unit_s=2 * way.unit_s) for way in self.menu)

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        rounds.append(snapshot.now_s)
        for job in snapshot.jobs:
            assert job.way is None or job.way in job.ways  # as believed now, not as believed when it started

    belief = Learner(toy_ways((16,)), 1000.0)
    job = Submission("wide", 0.0, 10_000.0, 16, ToyTruth(slower=2.0), belief)
    simulate([job], [TOY], Round(first_come), watch=watch)
    (way, nodes, unit_s, unit_j) = belief.told[0]
    assert len(belief.told) == 1
    assert (way.gpus, nodes) == (16, 2)
    assert unit_s == pytest.approx(toy_ways((16,))[0].unit_s * 2.0 * 1.1)
    assert unit_j == pytest.approx(unit_s * 16 * 300.0)
    assert rounds[:2] == [0.0, 120.0]  # works from 12 s on, seen at 72 s


def test_a_job_that_asks_for_more_than_there_is_is_refused_by_name_with_both_numbers() -> None:
    with pytest.raises(BadSpec, match=r"'huge' asks for 64 GPUs, but the cluster has 32 of toy"):
        simulate([toy_job("huge", 0.0, 1.0, 64)], [TOY], Round(first_come))


def test_ways_that_do_not_fit_in_the_cluster_are_not_shown() -> None:
    def watch(snapshot: Snapshot, decision: Decision) -> None:
        for job in snapshot.jobs:
            assert {way.gpus for way in job.ways} == {1, 2, 4, 8}

    simulate([toy_job("a", 0.0, 10.0)], [replace(TOY, nodes=1)], Round(first_come), watch=watch)


def test_a_policy_that_gives_more_than_there_is_is_caught() -> None:
    def greedy(snapshot: Snapshot, budget: Budget) -> Allocation:
        return Allocation({job.name: job.ways[-1] for job in snapshot.jobs})

    jobs = [toy_job(name, 0.0, 100.0) for name in "abc"]
    with pytest.raises(ValueError, match="gave 48 GPUs of toy where there are 32"):
        simulate(jobs, [TOY], Round(greedy))


def test_who_is_never_let_in_is_given_up_and_named() -> None:
    def nobody(snapshot: Snapshot, budget: Budget) -> Allocation:
        return Allocation({}, again_s=snapshot.now_s + 3600.0)

    out = simulate([toy_job("a", 0.0, 10.0)], [TOY], Round(nobody), patience_s=86_400.0)
    assert out.unfinished == ("a",)
    assert out.ended_s <= 86_400.0 + 3600.0


def capped(jobs: list[Submission], signals: list[Limited], limits: Limits | None = None) -> Outcome:
    round_ = Round(first_come, purse=Purse())
    return simulate(jobs, [TOY], round_, limits=limits or Limits(), signals=signals)


def watts_at(out: Outcome, time_s: float) -> float:
    return [moment.watts for moment in out.series if moment.time_s <= time_s][-1]


def test_a_cap_that_is_cut_lowers_clocks_in_the_same_moment_and_nothing_else() -> None:
    jobs = [toy_job(f"j{at}", 0.0, 40_000.0, 8) for at in range(4)]
    free = as_asked(jobs)
    full_w = watts_at(free, 1000.0)
    cap_w = 0.8 * full_w
    out = capped(jobs, [Limits().cap(1000.5, cap_w, for_s=3600.0)])
    assert watts_at(out, 1000.4) == full_w
    assert all(moment.watts <= cap_w for moment in out.series if 1000.5 <= moment.time_s < 4600.5)
    assert {span.from_s for span in out.spans} >= {0.0, 1000.5}
    assert all(job.restarts == 0 for job in out.jobs)  # nobody was stopped or resized
    assert watts_at(out, 4681.0) == full_w  # and faster again at the first round after
    assert out.jct_s > free.jct_s


def test_a_cap_that_clocks_cannot_keep_calls_a_round_at_once() -> None:
    jobs = [toy_job(f"j{at}", 0.0, 40_000.0, 8) for at in range(4)]
    cap_w = 4 * TOY.empty_node_w + 2000.0  # all clocks at their lowest still draw more
    out = capped(jobs, [Limits().cap(1000.5, cap_w)])
    assert all(moment.watts <= cap_w for moment in out.series if moment.time_s >= 1000.5)
    assert any(span.to_s == 1000.5 for span in out.spans)
    assert not out.unfinished


def test_on_a_ramp_the_cap_is_never_passed() -> None:
    limits = Limits(most_w=4 * (800.0 + 8 * 300.0))
    signal = limits.cap(600.0, 8000.0, for_s=1800.0, ramp_w_per_s=5.0)
    out = capped([toy_job(f"j{at}", 0.0, 40_000.0, 8) for at in range(4)], [signal], limits)
    for moment in out.series:
        cap_w = limits.at(moment.time_s).cap_w
        assert moment.time_s < 600.0 or cap_w is None or moment.watts <= cap_w + 1e-6
    assert watts_at(out, 1700.0) <= 8000.0 < watts_at(out, 800.0)


def test_a_signal_after_the_last_job_does_not_prolong_the_simulation() -> None:
    jobs = [toy_job("a", 0.0, 100.0)]
    out = capped(jobs, [Limits().cap(1e6, 9000.0)])
    assert out.ended_s == as_asked(jobs).ended_s


def test_a_cap_that_changes_needs_a_purse() -> None:
    with pytest.raises(BadSpec, match="needs a purse"):
        simulate([toy_job("a", 0.0, 100.0)], [TOY], Round(first_come), limits=Limits())


JOBS = st.lists(
    st.tuples(
        st.floats(0.0, 5000.0),
        st.floats(1.0, 5000.0),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.floats(0.8, 1.2),
        st.floats(0.8, 1.2),
    ),
    min_size=1,
    max_size=12,
)
Drawn = list[tuple[float, float, int, float, float]]


def made(drawn: Drawn) -> list[Submission]:
    return [
        toy_job(f"j{at}", submitted_s, work, gpus, truth=ToyTruth(slower, hungrier))
        for at, (submitted_s, work, gpus, slower, hungrier) in enumerate(drawn)
    ]


def hopping(snapshot: Snapshot, budget: Budget) -> Allocation:
    """Changes its mind at every round: sizes and clocks by a hash of time and place in the queue; some wait."""
    left = dict(snapshot.gpus)
    ways: dict[str, Way] = {}
    for at, job in enumerate(snapshot.jobs):
        way = _pick(job, int(snapshot.now_s // 60) * 7 + at * 13)
        if way is not None and way.gpus <= left[way.kind]:
            left[way.kind] -= way.gpus
            ways[job.name] = way
    return Allocation(ways, again_s=snapshot.now_s + 300.0 if snapshot.jobs else None)


def _pick(job: Job, number: int) -> Way | None:
    at = number % (len(job.ways) + 1)
    return job.ways[at] if at < len(job.ways) else None


def run(drawn: Drawn, *, sleeping: bool = True) -> Outcome:
    return simulate(made(drawn), [TOY], Round(hopping, nodes=NodePower() if sleeping else None))


@settings(max_examples=40, deadline=None)
@given(JOBS, st.booleans())
def test_the_parts_of_energy_add_up_to_the_whole_and_jobs_have_their_share_of_it(drawn: Drawn, sleeping: bool) -> None:
    out = run(drawn, sleeping=sleeping)
    assert not out.unfinished
    assert out.energy_j.whole == pytest.approx(out.energy_between_j(out.begun_s, out.ended_s), rel=1e-9)
    assert all(joules >= 0 for joules in out.energy_j.as_dict().values())
    held_s = sum(span.gpus * (span.to_s - span.from_s) for span in out.spans)
    assert sum(job.gpu_s for job in out.jobs) == pytest.approx(held_s)
    shares = sum(job.energy_j for job in out.jobs)
    assert shares == pytest.approx(out.energy_j.jobs + out.energy_j.starts + held_s * TOY.slot_w, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(JOBS)
def test_the_same_again_gives_the_same_to_the_last_bit(drawn: Drawn) -> None:
    one, two = run(drawn), run(drawn)
    assert one.jobs == two.jobs
    assert one.series == two.series
    assert one.spans == two.spans


@settings(max_examples=20, deadline=None)
@given(JOBS, st.lists(st.floats(0.0, 6000.0), min_size=1, max_size=4))
def test_a_job_with_nothing_to_do_changes_nothing(drawn: Drawn, idle_s: list[float]) -> None:
    jobs = made(drawn)
    first_s = min(job.submitted_s for job in jobs)
    nothing = [toy_job(f"idle{at}", first_s + at_s, 0.0) for at, at_s in enumerate(idle_s)]
    alone = run(drawn)
    beside = simulate([*nothing, *made(drawn)], [TOY], Round(hopping, nodes=NodePower()))
    assert [job for job in beside.jobs if not job.name.startswith("idle")] == list(alone.jobs)
    assert beside.spans == alone.spans
    assert beside.rounds == alone.rounds
    assert all(job.energy_j == 0 for job in beside.jobs if job.name.startswith("idle"))


@settings(max_examples=40, deadline=None)
@given(JOBS, st.booleans())
def test_no_more_gpus_are_held_than_there_are_powered_and_every_job_does_exactly_its_work(
    drawn: Drawn, sleeping: bool
) -> None:
    out = run(drawn, sleeping=sleeping)
    assert all(moment.gpus <= moment.nodes * TOY.gpus_per_node for moment in out.series)
    truths = {job.name: job for job in made(drawn)}
    done = dict.fromkeys(truths, 0.0)
    for span in out.spans:
        way = next(w for w in toy_ways() if w.gpus == span.gpus and w.setting == span.setting)
        unit_s, _ = truths[span.job].truth.unit(way, span.nodes)
        done[span.job] += (span.to_s - span.from_s - span.start_s) / unit_s
    for name, job in truths.items():
        assert done[name] == pytest.approx(job.work, rel=1e-9)
