"""The ruler: rungs, clean work, and joules with honest errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from joulewise.core.block import Rung
from joulewise.core.marks import MarkKind
from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Load
from joulewise.model.workloads import Phase, stretched
from joulewise.monitor.counters import Activity, counters
from joulewise.monitor.ruler import ENOUGH_STEPS, Ruler, merged
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.steps import MemoryFeed
from tests.tune.jobs import COMPUTE, Played, Silent


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


def ruled(job: Played, *, hooks: bool = True, counted: bool = True) -> Ruler:
    sampler = Sampler([job.gpu], seed=1)
    sampler.start()
    sampler.opened()
    return Ruler(sampler, job.feed if hooks else None, [counters(job.gpu)] if counted else [])


def follow(job: Played, ruler: Ruler, duration_s: float) -> None:
    for _ in range(round(duration_s / 0.25)):
        job.time.sleep(0.25)
        ruler.read()


def test_steps_told_by_hooks_are_the_first_rung() -> None:
    job = Played.steady(step_s=0.2)
    ruler = ruled(job)
    assert ruler.rung is Rung.UNKNOWN
    follow(job, ruler, 0.2 * (ENOUGH_STEPS + 8))
    assert ruler.rung is Rung.STEPS
    assert ruler.usual_s() == pytest.approx(job.truth()[0], rel=0.01)
    assert "told by hooks" in ruler.says


def test_clean_work_has_the_true_pace_and_the_true_joules() -> None:
    job = Played.steady(step_s=0.2, jitter=0.02)
    ruler = ruled(job)
    follow(job, ruler, 60.0)
    now_s = job.time.now_s()
    clean = ruler.clean(now_s - 40.0, now_s)
    assert clean is not None
    spent = ruler.spent(clean.intervals)
    assert spent is not None
    first, last = clean.intervals[0][0], clean.intervals[-1][1]
    assert clean.duration_s == pytest.approx(last - first)
    true_j = (job.joules_at(last) - job.joules_at(first)) * job.gpu.sensors.gain
    assert abs(spent.energy_j - true_j) < 4.0 * spent.error_j + 0.5
    assert clean.work == pytest.approx(len([end for end in job.ends_s if first < end <= last + 1e-9]), abs=1)
    unit_s = clean.duration_s / clean.work
    assert abs(unit_s / job.truth()[0] - 1.0) < 4.0 * clean.time_error


def test_what_is_left_out_is_named() -> None:
    job = Played.steady(step_s=0.2)
    ruler = ruled(job)
    follow(job, ruler, 10.0)
    from_s = job.time.now_s()
    ruler.switched(from_s + 1.0, from_s + 1.1)
    job.feed.mark(MarkKind.PAUSE, name="checkpoint")
    follow(job, ruler, 0.5)
    job.feed.mark(MarkKind.RESUME)
    follow(job, ruler, 10.0)
    clean = ruler.clean(from_s, job.time.now_s())
    assert clean is not None
    assert set(clean.left_out) == {"switch", "checkpoint"}
    assert len(clean.intervals) >= 2


def test_without_hooks_a_period_is_found_and_measures_the_same() -> None:
    job = Played.two_parts(step_s=1.3)
    ruler = ruled(job, hooks=False)
    follow(job, ruler, 60.0)
    assert ruler.rung is Rung.PERIOD, ruler.says
    now_s = job.time.now_s()
    clean = ruler.clean(now_s - 30.0, now_s)
    assert clean is not None
    unit_s = clean.duration_s / clean.work
    multiple = round(unit_s / job.truth()[0])
    assert 1 <= multiple <= 3
    assert unit_s / multiple == pytest.approx(job.truth()[0], rel=max(0.01, 4.0 * clean.time_error))
    assert ruler.resolution(30.0) < ruler.resolution(5.0) < 0.2


def test_without_hooks_or_period_the_work_rate_of_counters_serves() -> None:
    job = Played.aperiodic()
    ruler = ruled(job, hooks=False)
    follow(job, ruler, 150.0)
    assert ruler.rung is Rung.ACTIVITY, ruler.says
    follow(job, ruler, 60.0)
    now_s = job.time.now_s()
    fast = ruler.clean(now_s - 60.0, now_s)
    assert fast is not None
    job.gpu.apply(job.gpu.info.space.snap(job.slow))
    follow(job, ruler, 62.0)
    now_s = job.time.now_s()
    slow = ruler.clean(now_s - 60.0, now_s)
    assert slow is not None
    told = (slow.duration_s / slow.work) / (fast.duration_s / fast.work)
    true = job.truth(job.slow)[0] / job.truth()[0]
    assert abs(told / true - 1.0) < 4.0 * math.hypot(fast.time_error, slow.time_error) + 0.01


def test_without_hooks_period_or_counters_the_pace_is_unknown() -> None:
    job = Played.aperiodic()
    ruler = ruled(job, hooks=False, counted=False)
    follow(job, ruler, 150.0)
    assert ruler.rung is Rung.UNKNOWN
    assert "unknown" in ruler.says
    assert ruler.clean(0.0, job.time.now_s()) is None
    assert ruler.resolution(60.0) == math.inf


def test_a_lost_gpu_gives_no_energy() -> None:
    job = Played.steady(step_s=0.2)
    ruler = ruled(job)
    follow(job, ruler, 10.0)
    job.gpu.fault(lost=True)
    follow(job, ruler, 2.0)
    now_s = job.time.now_s()
    assert ruler.spent([(now_s - 1.5, now_s)]) is None


def test_touching_intervals_are_one() -> None:
    assert merged([(0.0, 1.0), (1.0, 2.0), (3.0, 4.0)]) == ((0.0, 2.0), (3.0, 4.0))


def test_counters_of_a_virtual_hopper_follow_its_load_and_older_ones_have_none(time: VirtualTime) -> None:
    model = catalog.load("h200")
    gpu = VirtualGpu(model, time=time)
    source = counters(gpu)
    assert source is not None
    load = Load(0.1, sm_share=0.8, dynamic_w=300.0, dram_share=0.2)
    gpu.board.play(iter(lambda: Phase("work", load, True), None), time.now_s())
    assert source.read() is None
    time.sleep(0.05)
    assert source.read() is None  # too soon after the last
    time.sleep(1.0)
    seen = source.read()
    assert seen is not None
    assert seen.sm == pytest.approx(1.0)
    assert seen.tensor == pytest.approx(0.8, abs=0.05)
    assert set(seen.known()) == {"sm", "tensor", "dram"}
    assert counters(VirtualGpu(catalog.load("v100"), time=time)) is None
    gpu.fault(lost=True)
    assert source.read() is None


def test_a_work_rate_needs_counters_and_clocks() -> None:
    some = Activity(0.0, 1.0, tensor=0.5, dram=0.4)
    assert some.work_rate(1000.0, 2000.0) == pytest.approx(0.5 + 0.8)
    assert some.work_rate(None, None) is None
    assert replace(some, tensor=None).work_rate(1000.0, 2000.0) == pytest.approx(0.8)
    assert Activity(0.0, 1.0).work_rate(1000.0, 2000.0) is None


def test_memory_feed_and_ruler_share_the_time(time: VirtualTime) -> None:
    feed = MemoryFeed(time)
    feed.mark()
    assert feed.read()[0].time_s == time.now_s()


def test_steps_that_come_are_work_whatever_utilisation_shows() -> None:
    job = Played.steady(step_s=1.0, load=Load(0.003, 0.5, 200.0, host_s=0.197))
    ruler = ruled(job)
    follow(job, ruler, 10.0)
    seen = []
    for _ in range(100):
        job.time.sleep(0.1)
        ruler.read()
        seen.append(ruler.busy)
    assert all(seen)
    job.gpu.detach(77)
    follow(job, ruler, 3.0)
    assert not ruler.busy


def test_work_without_steps_is_noticed_and_another_ruler_looked_for() -> None:
    job = Silent.steady(step_s=0.2)
    assert isinstance(job, Silent)
    job.until_s, job.again_s = 20.0, 70.0
    ruler = ruled(job)
    follow(job, ruler, 25.0)
    assert ruler.unmarked == ""  # a short silence is nothing
    follow(job, ruler, 8.0)
    assert "without a step" in ruler.unmarked
    assert str(ruler.rung) == Rung.STEPS
    follow(job, ruler, 22.0)
    assert str(ruler.rung) == Rung.UNKNOWN
    assert ruler.unmarked == ""
    follow(job, ruler, 25.0)
    assert str(ruler.rung) == Rung.STEPS  # they have come back


def test_an_idle_job_is_not_at_unmarked_work() -> None:
    job = Played.with_gaps(step_s=0.1, steps=50, gap_s=20.0)
    ruler = ruled(job)
    said = set()
    for _ in range(400):
        job.time.sleep(0.25)
        ruler.read()
        said.add(ruler.unmarked)
    assert said == {""}
    assert ruler.rung is Rung.STEPS


def test_a_marked_pause_is_other_work_once_it_lasts() -> None:
    job = Silent.steady(step_s=0.2)
    assert isinstance(job, Silent)
    job.until_s = 20.0
    ruler = ruled(job)
    follow(job, ruler, 20.0)
    job.feed.mark(MarkKind.PAUSE, name="evaluation")
    follow(job, ruler, 1.0)
    assert ruler.unmarked == ""
    follow(job, ruler, 3.0)
    assert ruler.unmarked.startswith("evaluation")
    follow(job, ruler, 60.0)
    assert ruler.rung is Rung.STEPS  # the job has said that steps come back


@pytest.mark.parametrize("model", ["h200", "v100"])
def test_what_may_be_an_alias_is_no_period(model: str) -> None:
    order = (stretched(COMPUTE, 0.0378, 0.0), Load(0.0063, 0.2, 60.0, host_s=0.0189))

    def phases() -> Iterator[Phase]:
        for factor in Jitter(spread=0.002, tail=4.0).factors("two"):
            for i, load in enumerate(order):
                yield Phase("work", stretched(load, factor, factor), i == 1)

    job = Played(phases, order, model=model)
    ruler = ruled(job, hooks=False)
    follow(job, ruler, 45.0)
    assert ruler.rung is Rung.UNKNOWN, ruler.says
    assert "would look like" in ruler.says


def test_counters_err_by_their_own_scatter_and_not_by_the_settings_tried() -> None:
    job = Played.aperiodic()
    ruler = ruled(job, hooks=False)
    follow(job, ruler, 150.0)
    now_s = job.time.now_s()
    assert ruler.clean(now_s - 20.0, now_s) is not None
    before = ruler.resolution(10.0)
    job.gpu.apply(job.gpu.info.space.snap(job.slow))
    for _ in range(20):
        follow(job, ruler, 1.0)
        assert ruler.resolution(10.0) == before


def test_long_steps_have_joules_though_the_tracks_have_forgotten_their_beginning() -> None:
    job = Played.steady(step_s=150.0)
    job.model = "v100"  # without counters: hooks are the only ruler
    job.__post_init__()
    ruler = ruled(job)
    follow(job, ruler, 150.0 * 13)
    assert ruler.rung is Rung.STEPS
    clean = ruler.clean(job.ends_s[-4] - 1.0, job.ends_s[-1] + 1.0)
    assert clean is not None
    assert clean.work == 3
    spent = ruler.spent(clean.intervals)
    assert spent is not None
    true_j = job.ends_j[-1] - job.ends_j[-4]
    assert abs(spent.energy_j - true_j) < 4.0 * spent.error_j + 0.002 * true_j


def test_counters_are_kept_where_steps_are_too_long_to_compare_settings_by() -> None:
    job = Played.steady(step_s=70.0)
    ruler = ruled(job)
    follow(job, ruler, 70.0 * 14)
    assert ruler.rung is Rung.ACTIVITY, ruler.says
    assert "too long" in ruler.says
    assert ruler.least_s() > 60.0


def test_integers_are_no_work_where_a_gpu_waits_for_others() -> None:
    some = Activity(0.0, 1.0, tensor=0.5, integer=0.3)
    assert some.work_rate(1000.0, None) == pytest.approx(0.8)
    assert some.work_rate(1000.0, None, waits=True) == pytest.approx(0.5)
