"""From what Slurm shows of a job to the next thing to do, without Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.engines import slurm_energy
from joulewise.cluster.engines.slurm_steps import AGAIN_S, PAUSE_S, Aim, Step, as_asked, next_step
from joulewise.cluster.engines.slurm_text import SlurmJob

RUNS = SlurmJob(
    id=7,
    name="a",
    partition="train",
    word="RUNNING",
    state="running",
    comment="",
    admin_comment="",
    place={"n1": 2},
    asked={"nodes": 1, "required": ("n1",), "gpus": 2},
    held=False,
    held_by_user=False,
    restarts=0,
    uid=0,
    submit_s=0.0,
    begin_s=0.0,
    start_s=10.0,
    end_s=None,
    exit_code=None,
    reason="",
)
HELD = replace(RUNS, word="PENDING", state="waiting", place={}, held=True, start_s=None)


def step(job: SlurmJob, aim: Aim, now_s: float = 100.0, **more: object) -> Step:
    given = {"now_s": now_s, "unix_s": 1000.0, "saves": True, "saved": False, "grace_s": 60.0, **more}
    return next_step(job, aim, **given)  # type: ignore[arg-type]


def test_a_running_job_is_asked_to_save_and_asked_again_until_it_has_or_its_time_is_up() -> None:
    aim = Aim({"n2": 4})
    assert step(RUNS, aim) is Step.SIGNAL
    aim.asked_s = aim.last_asked_s = 100.0
    assert step(RUNS, aim, 100.0 + AGAIN_S / 2) is Step.LATER
    assert step(RUNS, aim, 100.0 + AGAIN_S) is Step.SIGNAL
    assert step(RUNS, aim, 101.0, saved=True) is Step.REQUEUE
    assert step(RUNS, aim, 160.0) is Step.REQUEUE


def test_a_job_that_was_asked_to_save_and_shall_stay_after_all_is_started_again_there() -> None:
    stays = Aim({"n1": 2})
    assert step(RUNS, stays) is Step.REACHED
    assert step(RUNS, stays, saved=True) is Step.REQUEUE  # asked by a scheduler before this one: it pauses
    stays.asked_s = stays.last_asked_s = 99.5
    assert step(RUNS, stays) is Step.LATER
    assert step(RUNS, stays, saved=True) is Step.REQUEUE
    assert step(RUNS, stays, 160.0) is Step.REQUEUE


def test_a_script_that_does_not_save_or_has_not_begun_is_requeued_at_once() -> None:
    assert step(RUNS, Aim(None), saves=False) is Step.REQUEUE
    assert step(replace(RUNS, word="CONFIGURING", state="starting"), Aim(None)) is Step.REQUEUE


def test_a_job_whose_command_has_not_begun_is_asked_for_nothing_and_requeued_when_its_time_is_up() -> None:
    aim = Aim({"n2": 4}, running_s=100.0)
    assert step(RUNS, aim, 101.0, listens=False) is Step.LATER
    assert step(RUNS, aim, 102.0) is Step.SIGNAL
    assert step(RUNS, aim, 160.0, listens=False) is Step.REQUEUE
    assert step(RUNS, aim, 101.0, listens=False, saves=False) is Step.REQUEUE


def test_a_job_that_was_requeued_is_not_released_in_the_same_second() -> None:
    again = replace(HELD, restarts=1)
    assert step(again, Aim({"n2": 4}, waiting_s=100.0), 100.0 + PAUSE_S / 2) is Step.LATER
    assert step(again, Aim({"n2": 4}, waiting_s=100.0), 100.01 + PAUSE_S) is Step.RELEASE
    assert step(HELD, Aim({"n2": 4}, waiting_s=100.0)) is Step.RELEASE  # it never ran


def test_a_start_that_slurm_put_off_is_said_anew() -> None:
    off = replace(HELD, held=False, begin_s=1120.0)
    assert step(off, Aim({"n1": 2})) is Step.HOLD
    assert step(replace(off, begin_s=990.0), Aim({"n1": 2})) is Step.LATER
    assert step(replace(off, begin_s=990.0), Aim({"n1": 1})) is Step.HOLD


def test_nothing_is_released_while_an_earlier_start_may_still_run() -> None:
    assert step(HELD, Aim({"n2": 4}), sure=False) is Step.LATER


def test_a_users_hold_is_not_enough_for_a_job_that_shall_wait() -> None:
    assert step(replace(HELD, held_by_user=True), Aim(None)) is Step.HOLD
    assert step(HELD, Aim(None)) is Step.REACHED


def test_what_is_as_wanted_or_over_is_left_alone() -> None:
    assert step(RUNS, Aim({"n1": 2})) is Step.REACHED
    assert step(replace(RUNS, word="COMPLETED", state="ended"), Aim({"n2": 1})) is Step.REACHED
    assert step(replace(RUNS, word="COMPLETING", state="leaving"), Aim({"n2": 1})) is Step.LATER
    assert as_asked(RUNS, {"n1": 2})
    assert not as_asked(RUNS, {"n2": 2})


@pytest.mark.parametrize("others", ["", "kept by the site"])
def test_a_comment_keeps_energy_reason_and_what_others_wrote(others: str) -> None:
    said = slurm_energy.comment(others, energy_j=1234.5)
    assert slurm_energy.energy(said) == 1234.5
    both = slurm_energy.comment(said, why="the cap")
    assert both.startswith(others)
    assert both.endswith("joulewise energy_j=1234.5; the cap")
    assert (slurm_energy.why(both), slurm_energy.why(said), slurm_energy.why(others)) == ("the cap", "", "")
    assert slurm_energy.comment(both, energy_j=2000.0).endswith("joulewise energy_j=2000.0; the cap")
    first = slurm_energy.comment(others, why="the cap")
    assert slurm_energy.why(first) == "the cap"
    assert slurm_energy.comment(first, energy_j=1.0).split() == f"{others} joulewise energy_j=1.0; the cap".split()


@given(st.floats(0, 1e12))
def test_an_energy_written_twice_is_written_once(energy_j: float) -> None:
    once = slurm_energy.comment("", energy_j=energy_j)
    assert slurm_energy.comment(once, energy_j=energy_j) == once
    read = slurm_energy.energy(once)
    assert read is not None
    assert read == pytest.approx(energy_j, abs=0.06)
