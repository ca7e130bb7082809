"""A pipeline that plans itself: found, agreed, played, checked; made anew when stages drift; nothing set otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from joulewise.core.knob import DEFAULT
from joulewise.plan import plan_files
from joulewise.plan.execution import Execution, Launch
from joulewise.plan.plan import Plan
from joulewise.plan.profile import Profile
from joulewise.tune.follow import CALM, REPLANS, Doing
from joulewise.tune.follow_agenda import at, enough, in_turn
from tests.tune.played_pipeline import Pipeline, asked_for

FOUND = 40
"""Iterations that it takes at most to find a plan and compare it."""


@pytest.fixture(scope="module")
def played() -> Iterator[Pipeline]:
    """A pipeline that has found its plan and plays it."""
    pipeline = Pipeline()
    pipeline.until(lambda: Doing.PLAY in pipeline.doing or Doing.OFF in pipeline.doing, most=FOUND)
    for _ in range(3):
        pipeline.run()
    yield pipeline
    pipeline.close()


def known(played: Pipeline) -> Plan:
    plan = played.sessions[0].plan
    assert plan is not None
    return plan


def test_all_ranks_play_one_plan_and_its_promise_is_kept(played: Pipeline) -> None:
    assert played.doing == {Doing.PLAY}, played.sessions[0].why
    plans = {plan_files.to_json(known(played))["identity"]["parallelism"]["sha256"] for _ in played.sessions}
    assert len(plans) == 1
    assert len({session.point for session in played.sessions}) == 1
    verdicts = {session.verdict for session in played.sessions}
    assert len(verdicts) == 1
    verdict = played.sessions[0].verdict
    assert verdict is not None
    assert verdict.kept
    assert verdict.promised_saving > 0.05


def test_what_was_measured_is_what_was_true_within_two_points(played: Pipeline) -> None:
    verdict = played.sessions[0].verdict
    assert verdict is not None
    with_ = [each for each in played.took if each[0] == "play"]
    without = [each for each in played.took if each[0] in ("report", "plan", "vote")]
    true_saving = 1.0 - (with_[-1][2] / without[-1][2])
    assert verdict.saving == pytest.approx(true_saving, abs=0.01)
    assert verdict.promised_saving == pytest.approx(true_saving, abs=0.02)
    assert with_[-1][1] == pytest.approx(without[-1][1], rel=0.01)


def test_a_change_of_clock_was_measured_on_every_rank(played: Pipeline) -> None:
    for session in played.sessions:
        assert session.rank.switch_s == pytest.approx(0.025, rel=0.5)


def test_the_last_stage_is_never_slowed_where_all_wait_for_it(played: Pipeline) -> None:
    """1F1B of unequal stages: the slow ones are on the longest path."""
    slowest = max(range(3), key=lambda rank: played.sessions[rank].rank.span_s(3, 4) or 0.0)
    settings = [set(asked_for(session)) for session in played.sessions]
    assert any(setting != {DEFAULT} for setting in settings)
    assert DEFAULT in settings[slowest]


def test_a_plan_that_was_made_before_is_played_at_once(played: Pipeline) -> None:
    again = Pipeline(plan=known(played))
    again.until(lambda: Doing.PLAY in again.doing or Doing.OFF in again.doing, most=16)
    assert again.doing == {Doing.PLAY}, again.sessions[0].why
    verdict = again.sessions[0].verdict
    assert verdict is not None
    assert verdict.kept
    assert "measure" not in {doing for doing, _, _ in again.took}
    again.close()
    assert again.locked_mhz == [None] * 3
    assert not any(lease is not None and lease.alive for lease in again.leases)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"gpu": "NVIDIA A100"}, "for the gpu NVIDIA H200"),
        ({"driver": "999"}, "for the driver 580.1"),
        ({"model": "another"}, "for the model parameters"),
    ],
)
def test_a_plan_for_something_else_is_refused_by_all_and_nothing_is_taken(
    played: Pipeline, facts: dict[str, Any], says: str
) -> None:
    other = Pipeline(plan=known(played), facts=[{}, facts, {}])
    other.run()
    assert other.doing == {Doing.OFF}
    assert all("the plan is refused: " in session.why and says in session.why for session in other.sessions)
    assert other.leases == [None] * 3


def test_a_plan_for_another_schedule_is_refused(played: Pipeline) -> None:
    other = Pipeline(plan=known(played), microbatches=5)
    other.run()
    assert other.doing == {Doing.OFF}
    assert "for the parallelism" in other.sessions[2].why


def test_a_plan_that_launches_communication_is_refused_since_only_clocks_are_played(played: Pipeline) -> None:
    plan = known(played)
    key, points = next(iter(plan.profile.options.items()))
    launched = tuple(replace(each, setting=Execution([Launch("mlp", "norm", 6)], **each.setting)) for each in points)
    other = Pipeline(plan=replace(plan, profile=Profile({**plan.profile.options, key: launched})))
    other.run()
    assert other.doing == {Doing.OFF}
    assert all("on how many SMs, which nothing here can set" in session.why for session in other.sessions)
    assert other.leases == [None] * 3


def test_a_plan_that_asks_for_what_may_not_be_set_is_voted_down(played: Pipeline) -> None:
    other = Pipeline(plan=known(played))
    space = other.gpus[1].info.space
    narrow = replace(space, knobs={**space.knobs, "sm_mhz": space.knobs["sm_mhz"].within(1900.0, 1980.0)})
    other.gpus[1]._info = replace(other.gpus[1].info, space=narrow)
    other.until(lambda: Doing.OFF in other.doing, most=6)
    assert other.doing == {Doing.OFF}
    assert other.sessions[0].why.startswith("rank 1: sm_mhz=")
    assert other.locked_mhz == [None] * 3


def test_only_measured_means_no_plan_and_nothing_set() -> None:
    pipeline = Pipeline(only_measure=True)
    pipeline.until(lambda: Doing.OFF in pipeline.doing, most=FOUND)
    assert pipeline.doing == {Doing.OFF}
    assert pipeline.locked_mhz == [None] * 3
    measured = pipeline.sessions[1].measured
    assert measured is not None
    assert measured.profile.stages == 3
    assert 100.0 < measured.blocking_w < 200.0
    assert measured.transfer_s(pipeline.schedule) < 0.003
    assert pipeline.sessions[0].plan is None


def test_a_stage_that_takes_longer_than_planned_makes_the_plan_another_one(played: Pipeline) -> None:
    pipeline = Pipeline(plan=known(played))
    pipeline.slower[1] = 1.12
    pipeline.until(lambda: Doing.PLAY in pipeline.doing or Doing.OFF in pipeline.doing, most=FOUND)
    assert pipeline.doing == {Doing.PLAY}, pipeline.sessions[0].why
    anew, before = pipeline.sessions[2].plan, known(played)
    assert anew is not None
    ratio = anew.profile.options[1, "forward"][0].time_s / before.profile.options[1, "forward"][0].time_s
    assert ratio == pytest.approx(1.12, rel=0.02)
    assert anew.profile.options[0, "forward"] == before.profile.options[0, "forward"]
    assert pipeline.sessions[0].replanned == 0  # it holds
    # It drifts on while the plan is played, which is seen at the next look.
    pipeline.slower[1] = 1.0
    pipeline.until(lambda: Doing.PLAN in pipeline.doing, most=CALM + 2)
    pipeline.close()


def test_drift_that_a_new_plan_does_not_answer_ends_with_nothing_set_anywhere(played: Pipeline) -> None:
    pipeline = Pipeline(plan=known(played))
    drifts = iter([1.1, 1.25, 1.4, 1.6, 1.8])
    planned = 0
    for _ in range(120):
        if Doing.COMPARE in pipeline.doing and planned != pipeline.sessions[0].replanned + 1:
            planned = pipeline.sessions[0].replanned + 1
            pipeline.slower[0] = next(drifts)
        if Doing.OFF in pipeline.doing:
            break
        pipeline.run()
    assert pipeline.doing == {Doing.OFF}
    assert f"anew {REPLANS} times did not answer that" in pipeline.sessions[1].why
    assert len({session.why for session in pipeline.sessions}) == 1
    assert pipeline.locked_mhz == [None] * 3
    before = len(pipeline.took)
    pipeline.run()
    assert len(pipeline.took) == before + 1  # training goes on


def test_a_rank_that_loses_its_lease_takes_all_back(played: Pipeline) -> None:
    pipeline = Pipeline(plan=known(played))
    pipeline.until(lambda: Doing.COMPARE in pipeline.doing, most=10)
    lost = pipeline.leases[1]
    assert lost is not None
    lost.release()
    pipeline.until(lambda: Doing.OFF in pipeline.doing, most=CALM)
    assert pipeline.doing == {Doing.OFF}
    assert pipeline.sessions[0].why.startswith("rank 1: ")
    assert pipeline.locked_mhz == [None] * 3


def test_a_schedule_that_runs_otherwise_than_it_says_is_not_followed(played: Pipeline) -> None:
    pipeline = Pipeline(plan=known(played))
    pipeline.until(lambda: Doing.COMPARE in pipeline.doing, most=10)
    first, second, third, *rest = pipeline.sessions[2].rank.order
    pipeline.ran[2] = [first, third, second, *rest]
    pipeline.until(lambda: Doing.OFF in pipeline.doing, most=CALM)
    assert pipeline.doing == {Doing.OFF}
    said = (
        "rank 2: the schedule ran the forward of stage 2, microbatch 1 where the backward of stage 2, microbatch 0 was"
    )
    assert pipeline.sessions[0].why.startswith(said)
    assert pipeline.locked_mhz == [None] * 3


def test_ranks_that_cannot_talk_any_more_set_nothing(played: Pipeline) -> None:
    pipeline = Pipeline(plan=known(played), ranks=3)
    pipeline.until(lambda: Doing.COMPARE in pipeline.doing, most=10)
    for session in pipeline.sessions:
        session._talk_at = 0

    def broken(_: object) -> list[Any]:
        raise RuntimeError("connection reset by peer")

    assert not any(session.turn(pipeline.iteration, broken) for session in pipeline.sessions)
    assert "RuntimeError: connection reset by peer" in pipeline.sessions[0].why
    assert pipeline.locked_mhz == [None] * 3


def test_stretches_follow_each_other_and_are_long_enough() -> None:
    assert enough(0.5) == 5
    assert enough(30.0) == 2
    stretches = in_turn(7, 3, [DEFAULT, None])
    assert [(each.first, each.last, each.planned) for each in stretches] == [(7, 9, False), (10, 13, True)]
    assert at(stretches, 12).planned
    assert not at(stretches, 14).planned
