"""Steps from marks: which of them may be compared, and why the others may not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.marks import Mark, MarkKind
from joulewise.monitor.steplog import STALL, TOGETHER_S, StepLog


def steps(log: StepLog, count: int, unit_s: float, from_s: float, rank: int = 0, pid: int = 1) -> float:
    """``count`` steps of ``unit_s`` each after ``from_s``; when the last one ends."""
    for _ in range(count):
        from_s += unit_s
        log.take([Mark(from_s, MarkKind.STEP, rank, 1.0, pid=pid)])
    return from_s


def warm(unit_s: float = 0.1, count: int = 20) -> tuple[StepLog, float]:
    log = StepLog()
    return log, steps(log, count, unit_s, 0.0)


def dirt(log: StepLog, from_s: float) -> list[str]:
    return [step.dirt for step in log.steps(from_s, 1e9)]


def test_a_job_is_clean_once_its_steps_are_even() -> None:
    log = StepLog()
    end_s = 0.0
    for unit_s in (8.0, 3.0, 0.9, *(0.1 for _ in range(12))):
        end_s = steps(log, 1, unit_s, end_s)
    reasons = dirt(log, 0.0)
    assert reasons[0] == "warm-up"
    assert reasons[-1] == ""
    assert log.usual_s("") == pytest.approx(0.1)


def test_an_uneven_job_does_not_warm_up_for_ever() -> None:
    log = StepLog()
    end_s = 0.0
    for number in range(80):
        end_s = steps(log, 1, 1.0 if number % 2 else 0.3, end_s)
    assert dirt(log, 0.0)[-1] == ""


def test_a_stall_is_left_out_and_a_new_pace_is_not() -> None:
    log, end_s = warm()
    end_s = steps(log, 1, 0.1 * STALL * 1.5, end_s)
    assert dirt(log, end_s - 0.46) == ["stall"]
    end_s = steps(log, 10, 0.5, end_s)
    assert dirt(log, 0.0)[-1] == ""


def test_in_an_even_job_a_step_half_as_long_again_is_a_stall() -> None:
    log, end_s = warm()
    steps(log, 1, 0.15, end_s)
    assert dirt(log, end_s - 1e-6) == ["stall"]


def test_a_slower_setting_is_no_stall() -> None:
    log, end_s = warm()
    log.switched(end_s, end_s + 0.01, "slow")
    slow_s = steps(log, 10, 0.16, end_s)
    assert dirt(log, end_s - 1e-6) == ["switch", *[""] * 9]
    log.switched(slow_s, slow_s + 0.01, None)
    steps(log, 2, 0.1, slow_s)
    assert dirt(log, slow_s - 1e-6) == ["switch", ""]


def test_the_step_in_which_a_switch_falls_is_left_out() -> None:
    log, end_s = warm()
    log.switched(end_s + 0.05, end_s + 0.12)
    last_s = steps(log, 4, 0.1, end_s)
    assert dirt(log, end_s - 1e-6) == ["switch", "switch", "", ""]
    assert last_s > end_s


def test_a_switch_of_a_hundredth_of_a_step_spoils_nothing() -> None:
    log, end_s = warm(unit_s=20.0)
    log.switched(end_s, end_s + 0.1)
    steps(log, 1, 20.0, end_s)
    assert dirt(log, end_s - 1e-6) == [""]


def test_evaluation_and_checkpoint_are_left_out_by_their_names() -> None:
    log, end_s = warm()
    log.take([Mark(end_s + 0.01, MarkKind.PAUSE, name="evaluation", pid=1), Mark(end_s + 0.2, MarkKind.RESUME, pid=1)])
    assert log.paused == ""
    steps(log, 1, 0.3, end_s)
    assert dirt(log, end_s - 1e-6) == ["evaluation"]


def test_a_step_that_a_hook_calls_unclean_is_left_out() -> None:
    log, end_s = warm()
    log.take([Mark(end_s + 0.1, MarkKind.STEP, 0, 1.0, clean=False, pid=1)])
    assert dirt(log, end_s - 1e-6) == ["pause"]


def test_a_pause_without_a_resume_ends_with_the_next_step() -> None:
    log, end_s = warm()
    log.take([Mark(end_s, MarkKind.PAUSE, name="checkpoint", pid=1)])
    assert log.paused == "checkpoint"
    end_s = steps(log, 1, 0.1, end_s)
    assert log.paused == ""
    steps(log, 1, 0.1, end_s)
    assert dirt(log, end_s - 1e-6) == [""]


@given(st.floats(1e-4, 0.9 * TOGETHER_S), st.integers(100, 400))
def test_short_steps_are_taken_together_and_none_is_lost(unit_s: float, count: int) -> None:
    log = StepLog()
    end_s = steps(log, count, unit_s, 0.0)
    seen = log.steps(0.0, end_s + 1.0)
    assert sum(step.work for step in seen) == count - 1  # the first has no beginning
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(seen))
    assert len(seen) <= 2 + (end_s / TOGETHER_S)


def test_only_the_leading_rank_tells_the_pace() -> None:
    log = StepLog()
    for number in range(1, 30):
        log.take([Mark(0.1 * number + 0.01 * rank, MarkKind.STEP, rank, 1.0, pid=10 + rank) for rank in (0, 1, 2)])
    assert log.usual_s("") == pytest.approx(0.1, rel=0.01)
    assert set(log.ranks) == {0, 1, 2}


def test_another_process_leads_when_the_first_falls_silent() -> None:
    log, end_s = warm()
    steps(log, 60, 0.2, end_s + 5.0, rank=0, pid=2)
    assert log.usual_s("") == pytest.approx(0.2, rel=0.01)


def test_steps_belong_to_the_phase_that_was_entered() -> None:
    log, end_s = warm()
    log.take([Mark(end_s, MarkKind.PHASE, name="rollout", pid=1)])
    assert log.phase == "rollout"
    assert log.marks_phases
    end_s = steps(log, 20, 0.5, end_s)
    log.take([Mark(end_s, MarkKind.PHASE, name="train", pid=1)])
    end_s = steps(log, 20, 0.1, end_s)
    assert log.usual_s("rollout") == pytest.approx(0.5)
    assert log.usual_s("train") == pytest.approx(0.1)
    assert len(log.steps(0.0, end_s, "rollout")) == 20


def test_phases_too_short_to_switch_for_are_part_of_their_neighbour() -> None:
    log, end_s = warm()
    for _ in range(6):
        log.take([Mark(end_s, MarkKind.PHASE, name="train", pid=1)])
        end_s = steps(log, 20, 0.1, end_s)
        log.take([Mark(end_s, MarkKind.PHASE, name="log", pid=1)])
        end_s = steps(log, 2, 0.1, end_s)
    assert log.phase == "train"


def test_a_visit_is_the_unit_of_a_phase_without_steps() -> None:
    log, end_s = warm()
    for _ in range(8):
        log.take([Mark(end_s, MarkKind.PHASE, name="rollout", pid=1)])
        assert log.phase == "rollout"
        end_s += 20.0
        log.take([Mark(end_s, MarkKind.PHASE, name="train", pid=1)])
        end_s = steps(log, 20, 0.1, end_s)
    assert log.stepless("rollout", end_s)
    assert not log.stepless("train", end_s)
    visits = log.steps(0.0, end_s, "rollout")
    assert [visit.duration_s for visit in visits] == pytest.approx([20.0] * len(visits))


def test_old_steps_are_forgotten() -> None:
    log, end_s = warm()
    end_s = steps(log, 6000, 0.1, end_s)
    assert log.steps(0.0, 100.0) == []
    assert log.steps(end_s - 10.0, end_s) != []


@pytest.mark.parametrize(("ratio", "every"), [(1.45, 4), (2.0, 10), (5.0, 25)])
def test_a_slow_kind_of_step_that_keeps_coming_is_work(ratio: float, every: int) -> None:
    log, end_s = warm()
    for number in range(400):
        end_s = steps(log, 1, 0.1 * (ratio if number % every == every - 1 else 1.0), end_s)
    late = log.steps(end_s - 20.0, end_s)
    assert [step.dirt for step in late] == [""] * len(late)
    assert any(step.slow for step in late)
    assert not all(step.slow for step in late)


def test_a_slow_kind_is_work_under_a_new_setting_from_its_first_step() -> None:
    log, end_s = warm()
    for number in range(100):
        end_s = steps(log, 1, 0.2 if number % 5 == 4 else 0.1, end_s)
    log.switched(end_s, end_s + 0.01, "slow")
    from_s = end_s
    for number in range(20):
        end_s = steps(log, 1, 0.22 if number % 5 == 4 else 0.11, end_s)
    assert set(dirt(log, from_s + 0.2)) == {""}


def test_a_stall_in_a_hundred_steps_stays_one() -> None:
    log, end_s = warm()
    for number in range(400):
        end_s = steps(log, 1, 0.5 if number % 100 == 99 else 0.1, end_s)
    stalls = [step for step in log.steps(0.0, end_s) if step.dirt]
    assert [step.dirt for step in stalls[-4:]] == ["stall"] * 4
    assert all(step.whole for step in stalls[-4:])


def test_what_ran_while_the_gpu_was_clocked_down_is_no_measure() -> None:
    log, end_s = warm()
    log.rested(end_s)
    end_s = steps(log, 5, 0.1, end_s)
    log.rested(end_s - 0.5, end_s)
    steps(log, 2, 0.1, end_s)
    assert dirt(log, end_s - 0.5 - 1e-6) == [*["asleep"] * 5, "", ""]


def test_a_step_that_holds_a_wait_is_told_from_a_stall_also_when_its_mark_comes_late() -> None:
    log, end_s = warm()
    for _ in range(10):
        for late_s in (1.0, 2.0, 3.05):  # the last look is after the end of a step whose mark has not come yet
            log.seen_idle(end_s + late_s)
        waited_s = end_s
        end_s = steps(log, 1, 3.0, end_s)
        end_s = steps(log, 9, 0.1, end_s)
    assert dirt(log, waited_s - 1e-6)[0] == "idle"
    assert {step.dirt for step in log.steps(10.0, end_s) if step.duration_s > 1.0} == {"idle"}
    assert not any(step.whole for step in log.steps(10.0, end_s) if step.duration_s > 1.0)


def test_long_steps_are_remembered_however_long_they_are() -> None:
    log, end_s = warm(unit_s=150.0, count=40)
    assert len(log.steps(0.0, end_s)) >= 20
