"""The purse: the budget of a day is kept and used with models that are wrong, caps hold, bad budgets are named."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster.nodes import NodePower
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import Submission, simulate
from joulewise.cluster.state import Allocator, Budget, Kind, Snapshot
from joulewise.cluster.tariff import Tariff
from joulewise.core.errors import BadSpec
from tests.cluster.toys import TOY, ToyTruth, first_come, thrifty, toy_job
from tests.tiers import examples

PERIOD_S = 21_600.0
FULL_W = TOY.nodes * (TOY.host_w + 8 * 300.0)


def queue(seed: int, wrong: tuple[float, float], *, jobs: int = 60, every_s: float = 600.0) -> list[Submission]:
    """More work than the budget feeds: jobs of half an hour to hours, whose truths differ from what is believed."""
    draw = random.Random(seed)
    at_s = 0.0
    made = []
    for number in range(jobs):
        at_s += draw.expovariate(1 / every_s)
        truth = ToyTruth(draw.uniform(0.8, 1.2), draw.uniform(*wrong))
        work = draw.lognormvariate(8.8, 0.8)
        made.append(toy_job(f"j{number}", at_s, work, draw.choice([1, 2, 4, 8, 16]), truth=truth))
    return made


def shares(out: Outcome, budget_j: float, period_s: float) -> list[float]:
    """Used of the budget, in each whole period before the last job ended."""
    first_s = math.ceil(out.begun_s / 60.0) * 60.0
    periods = int((out.begun_s + out.makespan_s - first_s) // period_s)
    return [
        out.energy_between_j(first_s + at * period_s, first_s + (at + 1) * period_s) / budget_j for at in range(periods)
    ]


@pytest.mark.parametrize("wrong", [(0.8, 1.2), (1.2, 1.2), (0.8, 0.8)])
@pytest.mark.parametrize("policy", [first_come, thrifty])
@pytest.mark.parametrize("sleeping", [True, False])
def test_with_models_wrong_by_a_fifth_the_budget_is_never_passed_and_used_while_work_waits(
    wrong: tuple[float, float], policy: Allocator, sleeping: bool
) -> None:
    idle_w = TOY.nodes * (TOY.off_w if sleeping else TOY.empty_node_w)
    budget_j = PERIOD_S * (idle_w + 0.3 * (FULL_W - idle_w))
    waiting: list[tuple[float, bool]] = []

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        waiting.append((snapshot.now_s, len(decision.allocation.ways) < len(snapshot.jobs)))

    round_ = Round(policy, nodes=NodePower() if sleeping else None, purse=Purse(energy_j=budget_j, period_s=PERIOD_S))
    out = simulate(queue(1, wrong), [TOY], round_, watch=watch)
    used = shares(out, budget_j, PERIOD_S)
    assert len(used) >= 2
    assert max(used) <= 1.0
    # From the second half of the first period on somebody waits until the queue is used up.
    queued_s = next((time_s for time_s, waits in waiting if time_s > PERIOD_S / 2 and not waits), math.inf)
    under_load = [share for at, share in enumerate(used) if (at + 1) * PERIOD_S + waiting[0][0] <= queued_s]
    assert under_load
    assert min(under_load) >= 0.97
    assert not out.unfinished


@pytest.mark.sampled
@settings(max_examples=examples(25), deadline=None)
@given(
    st.floats(300.0, 2000.0),
    st.lists(st.tuples(st.floats(0.0, 3 * PERIOD_S), st.floats(100.0, 5000.0)), min_size=2, max_size=4),
)
def test_the_budget_is_kept_while_no_job_is_there(mean_w: float, gaps: list[tuple[float, float]]) -> None:
    """A warm node draws 1.2 kW, for which not every budget has the watts until the next job comes."""
    at_s, jobs = 0.0, []
    for number, (gap_s, work) in enumerate(gaps):
        jobs.append(toy_job(f"j{number}", at_s, work))
        at_s += gap_s
    budget_j = mean_w * PERIOD_S
    round_ = Round(thrifty, nodes=NodePower(), purse=Purse(energy_j=budget_j, period_s=PERIOD_S))
    assert max(shares(simulate(jobs, [TOY], round_), budget_j, PERIOD_S), default=0.0) <= 1.0


@pytest.mark.parametrize(("kwh_a_day", "nodes_on"), [(20.0, 0), (40.0, 1)])
def test_between_jobs_days_apart_a_warm_node_stays_on_only_if_the_budget_lasts(kwh_a_day: float, nodes_on: int) -> None:
    budget_j = kwh_a_day * 3.6e6
    jobs = [toy_job("a", 0.0, 900.0), toy_job("b", 5 * 86_400.0, 900.0)]
    out = simulate(jobs, [TOY], Round(first_come, nodes=NodePower(), purse=Purse(energy_j=budget_j)))
    assert not out.unfinished
    assert max(shares(out, budget_j, 86_400.0)) <= 1.0
    assert [moment.nodes for moment in out.series if moment.time_s < 86_400.0][-1] == nodes_on
    assert out.rounds < 40  # of 7,200 minutes


NIGHT = Tariff([60.0] * 8 + [160.0] * 8 + [80.0] * 8)


@pytest.mark.parametrize("wrong", [(0.8, 1.2), (1.2, 1.2)])
@pytest.mark.parametrize("policy", [first_come, thrifty])
@pytest.mark.parametrize("sleeping", [True, False])
def test_with_a_tariff_the_budget_of_grams_is_never_passed_and_more_is_done_in_cheap_hours(
    wrong: tuple[float, float], policy: Allocator, sleeping: bool
) -> None:
    idle_w = TOY.nodes * (TOY.off_w if sleeping else TOY.empty_node_w)
    budget_j = 86_400.0 * (idle_w + 0.3 * (FULL_W - idle_w))
    jobs = queue(1, wrong, jobs=120, every_s=1200.0)
    used, cheap = {}, {}
    for name, weight in (("even", None), ("grams", NIGHT)):
        purse = Purse(energy_j=budget_j, weight=weight)
        out = simulate(jobs, [TOY], Round(policy, nodes=NodePower() if sleeping else None, purse=purse))
        assert not out.unfinished
        moments = [(moment.time_s, moment.watts) for moment in out.series]
        first_s = math.ceil(out.begun_s / 60.0) * 60.0
        days = int((out.begun_s + out.makespan_s - first_s) // 86_400.0)
        assert days >= 1
        grams = [NIGHT.of(moments, first_s + (at + 1) * 86_400.0) for at in range(-1, days)]
        used[name] = max(two - one for one, two in pairwise(grams)) / NIGHT.amount(budget_j)
        whole = out.energy_between_j(first_s, first_s + 86_400.0)
        dear = out.energy_between_j(first_s + 28_800.0, first_s + 57_600.0)
        cheap[name] = 1.0 - dear / whole
    assert 0.9 < used["grams"] <= 1.0
    assert cheap["grams"] > cheap["even"]


def test_another_budget_in_the_middle_of_a_period_counts_what_was_drawn() -> None:
    purse = Purse(energy_j=8.64e7, swing=1.0)
    kinds = (replace(TOY, off_w=0.0),)
    purse.budget(Snapshot(0.0, kinds, (), energy_j=0.0))
    purse.rebudget(4.32e7, 86_400.0)
    assert purse.budget(Snapshot(43_200.0, kinds, (), energy_j=2.16e7)).power_w == pytest.approx((0.995 - 0.5) * 1000.0)
    purse.rebudget(3.6e6, 3600.0)
    assert purse.budget(Snapshot(43_260.0, kinds, (), energy_j=2.16e7)).power_w == pytest.approx(995.0)
    purse.rebudget(None, 3600.0)
    assert purse.budget(Snapshot(43_320.0, kinds, (), energy_j=2.16e7)) == Budget()


def test_a_model_wrong_by_twice_does_not_pass_the_budget_either() -> None:
    budget_j = PERIOD_S * 0.3 * FULL_W
    round_ = Round(first_come, nodes=NodePower(), purse=Purse(energy_j=budget_j, period_s=PERIOD_S))
    used = shares(simulate(queue(2, (2.0, 2.0), jobs=40), [TOY], round_), budget_j, PERIOD_S)
    assert max(used) <= 1.01


@pytest.mark.sampled
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10_000), st.floats(0.15, 1.0), st.booleans(), st.sampled_from([1000.0, 1200.0, 2000.0]))
def test_a_cap_of_watts_is_never_passed_where_power_is_known(
    seed: int, share: float, sleeping: bool, boot_w: float
) -> None:
    kind: Kind = replace(TOY, boot_w=boot_w)
    idle_w = kind.nodes * (kind.off_w if sleeping else kind.empty_node_w)
    cap_w = idle_w + share * (FULL_W - idle_w)
    round_ = Round(first_come, nodes=NodePower() if sleeping else None, purse=Purse(power_w=cap_w))
    out = simulate(queue(seed, (1.0, 1.0), jobs=12), [kind], round_)
    first_round_s = math.ceil(out.begun_s / 60.0) * 60.0
    assert max(moment.watts for moment in out.series if moment.time_s >= first_round_s) <= cap_w * (1 + 1e-9)


def test_where_jobs_draw_more_than_believed_a_cap_is_kept_once_that_was_metered() -> None:
    cap_w = 0.6 * FULL_W
    jobs = [toy_job(f"j{at}", 0.0, 20_000.0, 8, truth=ToyTruth(hungrier=1.2)) for at in range(4)]
    out = simulate(jobs, [TOY], Round(first_come, purse=Purse(power_w=cap_w)))
    assert max(moment.watts for moment in out.series if moment.time_s < 60.0) > cap_w
    assert max(moment.watts for moment in out.series if moment.time_s >= 180.0) <= cap_w


def test_the_price_of_a_joule_rises_while_too_much_is_drawn_and_falls_to_nothing_while_it_is_not() -> None:
    def price_after(drawn: float) -> float:
        purse = Purse(energy_j=8.64e7)  # 1 kW on average
        for at in range(200):
            purse.budget(Snapshot(300.0 * at, (replace(TOY, off_w=0.0),), (), energy_j=300.0 * at * 1000.0 * drawn))
        return purse.price

    assert price_after(0.5) == 0.0
    assert price_after(0.99) < price_after(1.05) < price_after(1.3)


def test_towards_the_end_of_a_period_a_price_that_leaves_joules_over_falls_and_is_as_before_in_the_next() -> None:
    purse = Purse(energy_j=8.64e7)  # 1 kW on average
    kinds = (replace(TOY, off_w=0.0),)
    prices: dict[float, float] = {}
    drawn_j = 0.0
    for at in range(289 + 12):
        time_s = 300.0 * at
        purse.budget(Snapshot(time_s, kinds, (), energy_j=drawn_j))
        prices[time_s / 3600.0] = purse.price
        drawn_j += 300.0 * (1300.0 if at < 72 else 850.0)  # a busy morning; then 4 % would be left over
    assert prices[6.0] > prices[0.0]
    assert prices[23.0] < 0.8 * prices[20.0] < prices[6.0]
    assert prices[24.0] > prices[23.0]


def test_what_is_left_at_the_end_of_a_period_is_not_carried_over_and_the_next_begins_full() -> None:
    purse = Purse(energy_j=8.64e7, swing=1.0)
    kinds = (replace(TOY, off_w=0.0),)
    assert purse.budget(Snapshot(0.0, kinds, (), energy_j=0.0)).power_w == pytest.approx(995.0)
    spent = purse.budget(Snapshot(43_200.0, kinds, (), energy_j=0.75 * 8.64e7)).power_w
    assert spent == pytest.approx((0.995 - 0.75) * 2000.0)
    assert purse.again_s(86_300.0) == 86_400.0
    # Two days later; nothing was looked at in between, and little was drawn.
    later = purse.budget(Snapshot(2 * 86_400.0, kinds, (), energy_j=0.75 * 8.64e7)).power_w
    assert later == pytest.approx(995.0)


def test_without_an_energy_budget_joules_cost_nothing() -> None:
    purse = Purse(power_w=5000.0)
    assert purse.budget(Snapshot(0.0, (TOY,), ())) == Budget(power_w=5000.0)


def test_a_budget_below_what_an_idle_cluster_draws_is_refused_with_both_numbers() -> None:
    snapshot = Snapshot(0.0, (TOY,), (), energy_j=0.0)
    with pytest.raises(
        BadSpec, match=r"budget of 0\.2778 kWh for 24 h 00 min is below the 1\.92 kWh that the cluster draws"
    ):
        Purse(energy_j=1e6).budget(snapshot)
    with pytest.raises(BadSpec, match=r"cap of 50\.0 W is below the 80\.0 W that the cluster draws"):
        Purse(power_w=50.0).budget(snapshot)
    with pytest.raises(BadSpec, match=r"115\.2 kWh"):  # the same where nodes are never switched off: 4 · 1,200 W
        simulate([toy_job("a", 0.0, 1.0)], [TOY], Round(first_come, purse=Purse(energy_j=1e8)))


def test_an_energy_budget_without_a_meter_is_refused() -> None:
    with pytest.raises(BadSpec, match="without a meter"):
        Purse(energy_j=1e9).budget(Snapshot(0.0, (TOY,), ()))


@pytest.mark.parametrize("bad", [{"energy_j": -1.0}, {"power_w": 0.0}, {"energy_j": 1.0, "swing": 0.5}])
def test_numbers_that_make_no_sense_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadSpec):
        Purse(**bad)  # type: ignore[arg-type]
