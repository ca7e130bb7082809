"""A running job as something to set and to observe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from joulewise.core.block import Block, Move, Role, Rung
from joulewise.core.decision import Decision
from joulewise.core.errors import GpuError, NotNow
from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.device.hold import hold
from joulewise.monitor.ruler import Ruler
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.spent import Spent
from joulewise.tune.subject import JobSubject, Observation, common_space, retry_s
from tests.tune.jobs import COMPUTE, STREAM, Played

SLOW = Setting(sm_mhz=1200)


def move(setting: Setting = DEFAULT, *, work: float = 10.0, least_s: float = 2.0, phase: str = "") -> Move:
    return Move(Decision(setting, "a test"), Role.PROBE, phase, work, least_s, most_s=30.0)


def subject_of(job: Played) -> JobSubject:
    sampler = Sampler([job.gpu], seed=1)
    sampler.start()
    sampler.opened()
    ruler = Ruler(sampler, job.feed, [])
    subject = JobSubject(ruler, hold([job.gpu]), job.gpu.info.space)
    for _ in range(40):
        job.time.sleep(0.25)
        ruler.read()
    assert ruler.rung is Rung.STEPS
    return subject


def observed(job: Played, subject: JobSubject, wanted: Move) -> Block:
    block = job.time.run(subject.observe(wanted))
    assert block is not None
    return block


def test_a_block_waits_for_the_counter_at_its_end_however_late_the_sampler_is() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01)
    subject = subject_of(job)
    sampler = subject.ruler.sampler
    sampler.interval_s = 0.37  # a poll takes as long as on a machine that has no processor to spare
    (track,) = sampler.tracks
    for _ in range(8):
        block = observed(job, subject, move(work=5.0, least_s=1.0))
        looks_s = [look.time_s for look in track.extract(block.end_s, block.end_s).counter]
        assert min(abs(look_s - block.end_s) for look_s in looks_s) < 0.25


def test_a_block_tells_the_truth_of_its_setting() -> None:
    job = Played.steady(step_s=0.2, jitter=0.01)
    subject = subject_of(job)
    base = observed(job, subject, move(work=50.0))
    slow = observed(job, subject, move(SLOW, work=50.0))
    (base_s, base_j), (slow_s, slow_j) = job.truth(), job.truth(SLOW)
    assert slow.setting == SLOW
    assert slow.unit_s / base.unit_s == pytest.approx(slow_s / base_s, rel=0.02)
    assert slow.unit_j / base.unit_j == pytest.approx(slow_j / base_j, rel=0.02)
    assert slow.sm_mhz == pytest.approx(1200.0, abs=5.0)
    assert slow.power_capped is False
    assert slow.work >= 50.0
    assert slow.duration_s >= 2.0
    assert slow.rung is Rung.STEPS


def test_the_step_of_the_switch_is_in_no_block() -> None:
    job = Played.steady(step_s=0.2)
    subject = subject_of(job)
    block = observed(job, subject, move(SLOW))
    assert block.unit_s == pytest.approx(job.truth(SLOW)[0], rel=1e-3)
    assert block.left_out_s < 0.5


@pytest.mark.parametrize("model", ["a100-sxm", "rtx6000"])
def test_a_block_right_after_a_switch_is_measured_as_well_as_one_long_after(model: str) -> None:
    """What was read on the other side of the switch once leaked into the edge of the block: up to half a per cent of a
    window of two seconds, always away from the setting before."""
    job = Played.steady(step_s=0.19, jitter=0.01)
    job.model = model
    job.__post_init__()
    subject = subject_of(job)
    off = []
    for number in range(16):
        block = observed(job, subject, move(SLOW if number % 2 else DEFAULT))
        energy_j = job.gpu.board.trace.energy_j
        true_j = energy_j(block.end_s) - energy_j(block.end_s - block.duration_s)
        off.append(block.energy_j / true_j - 1.0)
    assert abs(sum(off[4::2]) / 6 - sum(off[5::2]) / 6) < 0.001


def test_blocks_of_one_setting_follow_each_other_without_a_hole() -> None:
    job = Played.steady(step_s=0.7)
    subject = subject_of(job)
    first = observed(job, subject, move())
    second = observed(job, subject, move())
    assert second.start_s == pytest.approx(first.end_s)


def test_nothing_is_written_where_nothing_changes() -> None:
    job = Played.steady()
    subject = subject_of(job)
    subject.apply(SLOW)
    subject.apply(SLOW)
    assert subject.switches == 1
    assert subject.setting_at(job.time.now_s()) == SLOW
    assert subject.setting_at(job.time.now_s() - 1.0) == DEFAULT


def test_without_a_lease_nothing_is_set() -> None:
    job = Played.steady()
    subject = subject_of(job)
    subject.lease = None
    assert observed(job, subject, move(SLOW)).sm_mhz == pytest.approx(1980.0, abs=20.0)


def test_what_the_lease_refuses_leaves_the_setting_as_it_was() -> None:
    job = Played.steady()
    subject = subject_of(job)
    assert subject.lease is not None
    subject.lease.quiet(5.0, "graph capture")
    with pytest.raises(NotNow) as refused:
        subject.apply(SLOW)
    assert subject.setting == DEFAULT
    assert 0.1 <= retry_s(refused.value) <= 5.0
    with pytest.raises(GpuError):
        subject.apply(DEFAULT, {"GPU-nobody": SLOW})
    assert subject.own == {}


def test_a_move_is_observed_over_several_visits_of_its_phase() -> None:
    job = Played.alternating(("a", COMPUTE, 0.1, 20), ("b", STREAM, 0.1, 20))
    subject = subject_of(job)
    wanted = move(work=45.0, phase="a")
    observation = Observation(wanted)

    def visits() -> object:
        while not observation.done:
            if subject.ruler.phase == "a":
                yield from subject.gather(observation)
            subject.ruler.read()
            yield 0.1

    job.time.run(visits())  # type: ignore[arg-type]
    block = subject.block(observation)
    assert block is not None
    assert len(observation.visits) >= 3
    assert block.work >= 45.0
    assert block.unit_s == pytest.approx(job.truth(order=[COMPUTE])[0] * 0.1, rel=0.02)
    assert block.left_out_s > 4.0


def test_a_job_that_stands_still_gives_no_block() -> None:
    job = Played.steady()
    subject = subject_of(job)
    job.gpu.detach(77)
    assert job.time.run(subject.observe(move())) is None


def test_rest_and_rouse_put_back_what_was_asked_for_meanwhile() -> None:
    job = Played.steady()
    subject = subject_of(job)
    subject.rest(Setting(sm_mhz=345))
    subject.apply(SLOW)
    job.time.sleep(1.0)
    assert job.gpu.read().sm_mhz == 345.0
    subject.rouse()
    job.time.sleep(1.0)
    assert job.gpu.read().sm_mhz == 1200.0
    assert subject.asleep is None


def test_only_what_all_gpus_and_the_lease_have_in_common_may_be_set() -> None:
    one = Space({"sm_mhz": Choices(100, 1000, 15), "power_limit_w": Choices(100, 300)})
    other = Space({"sm_mhz": Choices(100, 1000, 15), "power_limit_w": Choices(100, 400)})
    assert set(common_space([one, one], frozenset({"sm_mhz"})).knobs) == {"sm_mhz"}
    assert set(common_space([one, other], frozenset(one.knobs)).knobs) == {"sm_mhz"}


def test_a_lease_that_refuses_to_wake_leaves_it_asleep() -> None:
    job = Played.steady()
    subject = subject_of(job)
    subject.rest(Setting(sm_mhz=345))
    assert subject.lease is not None
    subject.lease.quiet(2.0, "graph capture")
    with pytest.raises(NotNow):
        subject.rouse()
    assert subject.asleep == Setting(sm_mhz=345)
    job.time.sleep(3.0)
    subject.rouse()
    job.time.sleep(1.0)
    assert job.gpu.read().sm_mhz == 1980.0


def test_work_while_asleep_is_in_no_block() -> None:
    job = Played.steady(step_s=0.2)
    subject = subject_of(job)
    from_s = job.time.now_s()
    subject.rest(Setting(sm_mhz=345))
    for _ in range(20):
        job.time.sleep(0.2)
        subject.ruler.read()
    subject.rouse()
    for _ in range(20):
        job.time.sleep(0.2)
        subject.ruler.read()
    clean = subject.ruler.clean(from_s, job.time.now_s())
    assert clean is not None
    assert clean.duration_s / clean.work == pytest.approx(job.truth()[0], rel=0.01)
    assert clean.left_out["asleep"] > 2.5


def test_long_steps_are_waited_for() -> None:
    job = Played.steady(step_s=50.0)
    job.model = "v100"
    job.__post_init__()
    sampler = Sampler([job.gpu], seed=1)
    sampler.start()
    sampler.opened()
    subject = JobSubject(Ruler(sampler, job.feed, []), hold([job.gpu]), job.gpu.info.space)
    for _ in range(600):
        job.time.sleep(1.0)
        subject.ruler.read()
    block = observed(job, subject, move(work=10.0))  # which says that 30 s are enough to wait
    assert block.work >= 3.0


def test_energies_that_disagree_more_than_they_claim_are_said_to_err_by_more() -> None:
    job = Played.steady(step_s=0.2)
    subject = subject_of(job)
    calm = [observed(job, subject, move(work=20.0)) for _ in range(6)][-1]
    spent, sign = subject.ruler.spent, iter([1.08, 0.92] * 20)

    def shaken(intervals: Sequence[tuple[float, float]]) -> Spent | None:
        found = spent(intervals)
        return None if found is None else replace(found, energy_j=found.energy_j * next(sign))

    subject.ruler.spent = shaken  # type: ignore[method-assign]
    loud = [observed(job, subject, move(work=20.0)) for _ in range(20)][-1]
    assert calm.power_error < 0.02
    assert loud.power_error > 0.05


def test_in_faster_time_blocks_are_longer() -> None:
    job = Played.steady(step_s=0.2)
    subject = subject_of(job)
    assert observed(job, subject, move(work=5.0, least_s=1.0)).duration_s < 2.0
    job.time.speed = 30.0  # type: ignore[attr-defined]
    assert observed(job, subject, move(work=5.0, least_s=1.0)).duration_s >= 3.0
