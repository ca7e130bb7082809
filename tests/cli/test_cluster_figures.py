"""Figures of simulated policies: one horizon for all, and nothing said that flatters; labels that can be read."""

from __future__ import annotations

import pytest

from joulewise.cli.cluster_figures import figures
from joulewise.cli.cluster_plot import labels
from joulewise.cli.cluster_policies import named
from joulewise.cli.cluster_scene import Limits, Result
from joulewise.cluster.outcome import JobOutcome, Moment, Outcome, Parts

HOUR_S, DAY_S = 3600.0, 86_400.0


def result(ended_s: float, *, done: bool = True, watts: float = 1000.0, tail_w: float = 10.0) -> Result:
    """Two jobs from 0 on, the second of which may never end; ``watts`` until ``ended_s``, then ``tail_w``."""
    jobs = (
        JobOutcome("a", 0.0, 0.0, HOUR_S, 0.0, 0.0, 0),
        JobOutcome("b", 0.0, 0.0, ended_s if done else None, 0.0, 0.0, 0),
    )
    series = (Moment(0.0, 8, 1, watts), Moment(ended_s, 0, 1, tail_w))
    outcome = Outcome(jobs, Parts(jobs=watts * ended_s), 0.0, ended_s, 3, 0, tail_w, series, ())
    return Result(named("fifo"), outcome, 0.0, 0.0)


def test_the_horizon_is_the_end_of_the_slowest_that_did_all_its_jobs() -> None:
    quick, slow, stuck = figures(
        [result(2 * HOUR_S), result(4 * HOUR_S), result(7 * DAY_S, done=False, watts=100.0)], Limits()
    )
    assert quick.after_j == pytest.approx(10.0 * 2 * HOUR_S)
    assert slow.after_j == 0
    assert stuck.energy_j == pytest.approx(100.0 * 4 * HOUR_S)
    assert (stuck.parts, stuck.after_j) == (None, None)


def test_where_no_policy_did_all_its_jobs_the_last_end_of_any_is_the_horizon() -> None:
    first, last = figures([result(DAY_S, done=False), result(2 * DAY_S, done=False)], Limits())
    assert first.after_j == pytest.approx(10.0 * DAY_S)
    assert last.parts is not None


def test_times_of_some_jobs_alone_are_not_given() -> None:
    done, stuck = figures([result(3 * HOUR_S), result(DAY_S, done=False)], Limits())
    assert done.mean_s == 2 * HOUR_S
    assert (stuck.mean_s, stuck.median_s, stuck.p99_s, stuck.unfinished) == (None, None, None, 1)


def test_a_tail_that_passes_budget_or_cap_is_said_to() -> None:
    # 100 W for a while, then 300 W until the other ends two days later: 7.2 kWh a day where 6 are allowed.
    limits = Limits(energy_j=6 * 3.6e6, period_s=DAY_S, power_w=250.0)
    quick, slow = figures([result(HOUR_S, watts=100.0, tail_w=300.0), result(3 * DAY_S, watts=100.0)], limits)
    assert quick.over_budget == pytest.approx(0.2)
    assert quick.over_cap == pytest.approx(0.2)
    assert quick.over_cap_s == pytest.approx(3 * DAY_S - HOUR_S)
    assert (slow.over_budget, slow.over_cap, slow.over_cap_s) == (0, 0, 0)
    (alone,) = figures([result(HOUR_S, watts=100.0)], limits)
    assert (alone.over_budget, alone.over_cap) == (0, 0)


def test_policies_at_one_spot_share_a_label_at_the_rightmost() -> None:
    place = {"powerflow": (10.1, 5.0), "priced": (10.0, 5.01), "fifo": (20.0, 9.0), "tiresias": (10.0, 9.0)}
    assert labels(place) == {"powerflow": "priced, powerflow", "priced": "", "fifo": "fifo", "tiresias": "tiresias"}
    assert labels({"a": (1.0, 1.0), "b": (1.0, 1.0)}) == {"a": "", "b": "a, b"}
    assert labels({}) == {}
