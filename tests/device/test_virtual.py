from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec, GpuLost, NotPermitted, OutOfRange, Unsupported
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.measurement import Throttle
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.gpu import Gpu
from joulewise.device.operating import Demand
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, physics, workloads
from joulewise.model.physics import Chip, Load, Operation
from joulewise.model.truth import RichLaw

H200 = catalog.load("h200")
LIGHT = Load(gpu_s=0.1, sm_share=0.9, dynamic_w=300.0)  # far below the limit
HEAVY = Load(gpu_s=0.1, sm_share=0.9, dynamic_w=900.0)  # far above it


@dataclass(frozen=True)
class Repeated:
    """A workload of one load, over and over."""

    load: Load
    ends_step: bool = True

    def phases(self) -> Iterator[Repeated]:
        return itertools.repeat(self)


def made(time: VirtualTime, **arguments: object) -> VirtualGpu:
    return VirtualGpu(H200, time=time, gain=1.0, **arguments)  # type: ignore[arg-type]


def warm(gpu: VirtualGpu) -> float:
    """The temperature as the law sees it."""
    return round(gpu.board.state.temperature_c, 1)


def test_it_is_a_gpu() -> None:
    gpu = made(VirtualTime())
    assert isinstance(gpu, Gpu)
    assert gpu.info.name == "NVIDIA H200"
    assert gpu.info.backend == "virtual"


def test_a_load_takes_the_laws_time_and_draws_the_laws_power() -> None:
    time = VirtualTime()
    gpu = made(time)
    job = gpu.submit(LIGHT)
    law = physics.operate(H200.chip, LIGHT, limit_w=700.0, temperature_c=warm(gpu))
    finished_s = time.run(gpu.finish(job))
    assert finished_s - 0.0 == pytest.approx(law.step_s, rel=1e-9)
    assert job.energy_j == pytest.approx(law.energy_j, rel=1e-9)
    assert gpu.board.trace.mean_w(0.0, finished_s) == pytest.approx(law.average_power_w, rel=1e-9)


def test_jobs_run_one_after_another_without_a_gap() -> None:
    time = VirtualTime()
    gpu = made(time)
    jobs = [gpu.submit(LIGHT, pid=pid) for pid in (11, 12, 11)]
    time.sleep(1.0)
    gpu.advance()
    assert jobs[1].started_s == jobs[0].finished_s
    assert jobs[2].started_s == jobs[1].finished_s
    assert jobs[2].finished_s == pytest.approx(0.3)


def test_work_for_later_waits_for_its_moment() -> None:
    time = VirtualTime()
    gpu = made(time)
    job = gpu.submit(LIGHT, start_s=5.0)
    assert gpu.board.expected_s(job) == pytest.approx(5.1)
    assert time.run(gpu.finish(job)) == pytest.approx(5.1)
    assert job.started_s == 5.0


def test_several_loads_in_one_job_take_the_sum_of_their_times() -> None:
    time = VirtualTime()
    gpu = made(time)
    waiting = Load(gpu_s=0.0, sm_share=0.0, dynamic_w=0.0, host_s=0.25)
    job = gpu.submit([LIGHT, waiting, LIGHT])
    assert time.run(gpu.finish(job)) == pytest.approx(0.45)


def test_a_clock_change_in_mid_phase_slows_only_what_remains() -> None:
    time = VirtualTime()
    gpu = made(time)
    load = replace(LIGHT, gpu_s=1.0)
    job = gpu.submit(load)
    time.sleep(0.4)
    gpu.apply(Setting(sm_mhz=990.0))
    arrives_s = gpu.board.arrival_s
    finished_s = time.run(gpu.finish(job))
    slow_s = physics.step_s(H200.chip, load, 0.5)
    assert arrives_s > 0.4
    assert finished_s == pytest.approx(arrives_s + (1.0 - arrives_s) * slow_s, rel=1e-6)


def test_clocks_arrive_late_by_a_lognormal_time_around_the_models_median() -> None:
    time = VirtualTime()
    gpu = made(time, seed=3)
    waits_s = []
    for number in range(200):
        gpu.apply(Setting(sm_mhz=990.0 if number % 2 else 1980.0))
        waits_s.append(gpu.board.arrival_s - time.now_s())
        time.sleep(1.0)
        gpu.advance()
    assert statistics.median(waits_s) == pytest.approx(H200.switching.clock_switch_s, rel=0.05)
    spread = statistics.pstdev(map(math.log, waits_s))
    assert spread == pytest.approx(H200.switching.clock_switch_spread, rel=0.2)


def test_half_the_clock_gives_the_laws_step_time_and_power() -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.apply(Setting(sm_mhz=990.0))
    ends_s: list[float] = []
    gpu.play(Repeated(LIGHT), on_step=ends_s.append)
    time.sleep(30.0)
    reading = gpu.read()
    law = physics.operate(H200.chip, LIGHT, lock_mhz=990.0, limit_w=700.0, temperature_c=warm(gpu))
    assert statistics.fmean(b - a for a, b in itertools.pairwise(ends_s[10:])) == pytest.approx(law.step_s, rel=1e-6)
    assert reading.power_w == pytest.approx(law.average_power_w, rel=0.005)
    assert reading.sm_mhz == 990.0
    assert reading.throttle == frozenset({Throttle.LOCKED})
    assert reading.utilization == 1.0


@pytest.mark.parametrize("limit_w", [200.0, 400.0, 700.0])
def test_the_limiter_holds_the_limit_once_its_average_gets_there(limit_w: float) -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.apply(Setting(power_limit_w=limit_w))
    gpu.play(Repeated(HEAVY))
    time.sleep(0.01)
    first_w = gpu.truth().power_w
    assert limit_w < first_w <= 1.42 * H200.chip.limiter_gain * limit_w + 1e-6, "above the limit, but within bounds"
    time.sleep(20.0)
    reading, truth = gpu.read(), gpu.truth()
    law = physics.operate(H200.chip, HEAVY, limit_w=limit_w, temperature_c=warm(gpu))
    assert reading.power_w == pytest.approx(H200.chip.limiter_gain * limit_w, rel=0.005)
    assert truth.sm_mhz == pytest.approx(law.sm_mhz)
    assert reading.throttle == frozenset({Throttle.POWER_CAP})
    assert reading.power_limit_w == limit_w


def test_short_bursts_pass_the_limiter_but_the_average_does_not() -> None:
    time = VirtualTime()
    gpu = made(time)
    burst, pause = replace(HEAVY, gpu_s=0.05), Load(0.0, 0.0, 0.0, host_s=0.05)
    gpu.play(_InTurn((burst, pause)))
    time.sleep(20.0)
    gpu.advance()
    trace = gpu.board.trace
    limit_w = H200.chip.limiter_gain * 700.0
    bursts_w = [trace.mean_w(at_s / 1000, at_s / 1000 + 0.001) for at_s in range(18_000, 19_000)]
    assert max(bursts_w) > 1.1 * limit_w
    assert trace.mean_w(17.0, 20.0) < limit_w


@dataclass(frozen=True)
class _InTurn:
    loads: tuple[Load, ...]

    def phases(self) -> Iterator[Repeated]:
        return (Repeated(load) for load in itertools.cycle(self.loads))


def test_a_hot_gpu_throttles_and_says_so() -> None:
    hot = replace(H200, chip=replace(H200.chip, heat=replace(H200.chip.heat, resistance_k_per_w=0.2)))
    time = VirtualTime()
    gpu = VirtualGpu(hot, time=time, gain=1.0)
    gpu.play(Repeated(LIGHT))
    time.sleep(5.0)
    assert Throttle.HEAT not in (gpu.read().throttle or ())
    time.sleep(900.0)
    reading = gpu.read()
    assert reading.throttle == frozenset({Throttle.HEAT})
    assert reading.temperature_c == pytest.approx(hot.chip.heat.throttle_c + 2.5, abs=2.5)
    assert (reading.sm_mhz or 0) < 1980.0
    assert gpu.board.throttled_s[1] > 100.0


def test_it_warms_up_to_where_its_power_takes_it_and_leaks_more() -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.play(Repeated(LIGHT))
    time.sleep(2.0)
    cold = gpu.truth()
    time.sleep(10 * H200.chip.heat.time_constant_s)
    settled = gpu.truth()
    assert settled.temperature_c == pytest.approx(physics.settled_c(H200.chip, settled.power_w), abs=0.2)
    assert settled.power_w > cold.power_w


def test_an_empty_gpu_idles_deep_and_a_resident_process_keeps_its_clocks_up() -> None:
    time = VirtualTime()
    gpu = made(time)
    time.sleep(2.0)
    empty = gpu.truth()
    gpu.attach(4242)
    time.sleep(2.0)
    resident, reading = gpu.truth(), gpu.read()
    assert empty.sm_mhz == 345.0
    assert resident.sm_mhz == 1980.0
    assert resident.power_w == pytest.approx(physics.idle_power_w(H200.chip, 1.0, 1.0, warm(gpu)), rel=1e-6)
    assert empty.power_w < 0.7 * resident.power_w
    assert reading.throttle == frozenset({Throttle.IDLE})
    assert gpu.processes() == (4242,)
    gpu.detach(4242)
    assert gpu.processes() == ()
    assert gpu.truth().sm_mhz == 345.0


def test_a_clock_setting_is_a_ceiling_below_which_an_empty_gpu_still_rests() -> None:
    time = VirtualTime()
    gpu = made(time)
    time.sleep(2.0)
    free = gpu.truth()
    gpu.apply(Setting(sm_mhz=1200.0))
    time.sleep(2.0)
    assert gpu.truth().sm_mhz == 345.0
    assert gpu.truth().power_w == pytest.approx(free.power_w, rel=0.01)
    gpu.attach(4242)
    assert gpu.truth().sm_mhz == 1200.0
    time.run(gpu.finish(gpu.submit(LIGHT)))
    assert gpu.truth().sm_mhz == 1200.0


def test_a_lock_from_above_holds_the_clocks_of_an_empty_gpu_up() -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.ask(Demand(sm_mhz=(1200.0, 1980.0)))
    time.sleep(2.0)
    assert gpu.truth().sm_mhz == 1200.0
    assert gpu.truth().power_w > H200.chip.deep_idle_w


def test_a_board_controllers_limit_holds_whatever_is_asked_and_outlives_the_driver() -> None:
    time = VirtualTime()
    gpu = made(time)
    heavy = Load(gpu_s=0.05, sm_share=0.9, dynamic_w=900.0)

    def settled_w() -> float:
        time.run(gpu.finish(gpu.submit([heavy] * 100)))
        before = gpu.truth()
        time.run(gpu.finish(gpu.submit([heavy] * 20)))
        after = gpu.truth()
        return (after.energy_j - before.energy_j) / (after.time_s - before.time_s)

    gpu.hold_below(300.0)
    assert (gpu.asked_limit_w, gpu.read().power_limit_w) == (700.0, 300.0)
    assert settled_w() == pytest.approx(300.0 * H200.chip.limiter_gain, rel=0.02)
    gpu.apply(Setting(power_limit_w=250.0))
    assert (gpu.asked_limit_w, gpu.read().power_limit_w) == (250.0, 250.0)
    gpu.apply(Setting(power_limit_w=400.0))
    assert (gpu.asked_limit_w, gpu.read().power_limit_w) == (400.0, 300.0)
    gpu.reload_driver()
    assert (gpu.asked_limit_w, gpu.read().power_limit_w) == (700.0, 300.0)
    gpu.hold_below(None)
    assert gpu.read().power_limit_w == 700.0
    assert settled_w() > 400.0
    with pytest.raises(BadSpec, match="is no power limit"):
        gpu.hold_below(-1.0)


def test_work_of_a_process_that_is_gone_is_gone_too() -> None:
    time = VirtualTime()
    gpu = made(time)
    lost, kept = gpu.submit(LIGHT, pid=7), gpu.submit(LIGHT, pid=8)
    time.sleep(0.05)
    gpu.detach(7)
    assert time.run(gpu.finish(kept)) == pytest.approx(0.15)
    assert lost.finished_s is None
    with pytest.raises(BadSpec, match="no such work any more"):
        time.run(gpu.finish(lost))


@pytest.mark.parametrize("name", ["transformer", "cnn"])
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_energy_is_conserved_whatever_happens(name: str, seed: int) -> None:
    """∫ power = truth's energy = what the counter shows, under random settings at random moments."""
    time, draw = VirtualTime(), random.Random(seed)
    gpu = VirtualGpu(H200, time=time, seed=seed, gain=1.0)
    gpu.play(workloads.get(name, gpu=H200, seed=seed))
    start, integral_j = gpu.truth(), 0.0
    for _ in range(300):
        before = gpu.board.now
        step_s = draw.uniform(0.0, 1.0) * min(0.5, before.end_s - time.now_s())
        time.sleep(max(step_s, 1e-9))
        now_s = gpu.advance()
        integral_j += before.power_w * min(max(step_s, 1e-9), now_s)
        if draw.random() < 0.05:
            gpu.apply(
                draw.choice([DEFAULT, Setting(sm_mhz=990.0), Setting(sm_mhz=1500.0), Setting(power_limit_w=300.0)])
            )
        if draw.random() < 0.5:
            time.sleep(gpu.board.now.end_s - time.now_s())
            integral_j += gpu.board.now.power_w * (time.now_s() - now_s)
            gpu.advance()
    end = gpu.truth()
    assert end.energy_j - start.energy_j == pytest.approx(integral_j, rel=1e-9)
    counted_j = gpu.sensors.counter_j(end.time_s)
    assert counted_j == pytest.approx(end.energy_j, abs=0.1 * 1500.0)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_reading_changes_nothing(seed: int) -> None:
    draw = random.Random(seed)
    watched_time, alone_time = VirtualTime(), VirtualTime()
    watched, alone = (VirtualGpu(H200, time=time, seed=seed) for time in (watched_time, alone_time))
    for gpu in (watched, alone):
        gpu.play(workloads.get("cnn", gpu=H200, seed=seed))
        gpu.apply(Setting(power_limit_w=350.0))
    while watched_time.now_s() < 10.0:
        watched_time.sleep(draw.uniform(0.0, 0.2))
        watched.read()
        watched.energy()
    alone_time.sleep(watched_time.now_s())
    assert alone.truth().energy_j == pytest.approx(watched.truth().energy_j, rel=1e-12)
    assert alone.truth().temperature_c == pytest.approx(watched.truth().temperature_c, rel=1e-12)
    assert alone.board.state.steps == watched.board.state.steps


def test_a_workload_that_was_run_to_its_end_does_not_go_on_beside_later_work() -> None:
    time = VirtualTime()
    gpu = made(time)
    time.run(gpu.run(Repeated(HEAVY), steps=3))
    time.run(gpu.finish(gpu.submit(LIGHT)))
    time.sleep(5.0)
    assert gpu.board.state.steps == 3
    assert gpu.truth().power_w < 0.5 * H200.default_limit_w


def test_a_run_counts_a_step_once_however_often_it_is_lived() -> None:
    time = VirtualTime()
    gpu = made(time, rewind_s=1.0)

    def late_news() -> Loop[None]:
        while True:
            yield 0.2
            gpu.ask(Demand(limit_w=400.0), time.now_s() - 0.5)

    time.spawn(late_news())
    time.run(gpu.run(Repeated(LIGHT), steps=20))
    assert gpu.board.state.steps == 20


def test_a_clock_asked_for_longer_ago_than_can_be_taken_back_is_there_at_once() -> None:
    time = VirtualTime()
    gpu = made(time, rewind_s=1.0)
    gpu.play(Repeated(LIGHT))
    time.sleep(20.0)
    gpu.ask(Demand(sm_mhz=(345.0, 990.0)), time.now_s() - 10.0)
    assert gpu.truth().sm_mhz == 990.0
    time.sleep(1.0)
    assert gpu.truth().sm_mhz == 990.0


def test_the_same_seed_is_the_same_card_and_another_is_another() -> None:
    time = VirtualTime()
    one, same, other = (VirtualGpu(H200, time=time, seed=seed) for seed in (1, 1, 2))
    assert one.info.uuid == same.info.uuid != other.info.uuid
    assert one.sensors.gain == same.sensors.gain != other.sensors.gain
    gains = [VirtualGpu(H200, time=time, seed=seed).sensors.gain for seed in range(200)]
    assert statistics.fmean(gains) == pytest.approx(1.0, abs=0.01)
    assert statistics.pstdev(gains) == pytest.approx(H200.sensors.gain_error, rel=0.25)


def test_another_law_can_be_the_truth() -> None:
    class Slower:
        def operate(
            self,
            chip: Chip,
            load: Load,
            *,
            lock_mhz: float | None = None,
            memory_mhz: float | None = None,
            limit_w: float | None = None,
            temperature_c: float | None = None,
        ) -> Operation:
            settled = physics.operate(
                chip, load, lock_mhz=lock_mhz, memory_mhz=memory_mhz, limit_w=limit_w, temperature_c=temperature_c
            )
            return replace(settled, step_s=2 * settled.step_s)

    time = VirtualTime()
    gpu = made(time, law=Slower())
    assert time.run(gpu.finish(gpu.submit(LIGHT))) == pytest.approx(0.2)


def test_a_card_of_the_richer_truth_works_under_every_setting() -> None:
    law = RichLaw(H200.chip, seed=7)
    time = VirtualTime()
    gpu = VirtualGpu(replace(H200, chip=law.card), time=time, law=law, gain=law.gain)
    ends_s: list[float] = []
    gpu.play(Repeated(HEAVY), on_step=ends_s.append)
    for setting in (DEFAULT, Setting(power_limit_w=300.0), Setting(sm_mhz=990.0)):
        gpu.apply(setting)
        time.sleep(20.0)
        gpu.advance()
        settled = law.operate(
            law.card,
            HEAVY,
            lock_mhz=setting.get("sm_mhz"),
            limit_w=setting.get("power_limit_w", 700.0),
            temperature_c=warm(gpu),
        )
        assert ends_s[-1] - ends_s[-2] == pytest.approx(settled.step_s, rel=1e-3)
        assert gpu.truth().power_w == pytest.approx(settled.average_power_w, rel=1e-3)


def test_a_loop_plays_a_workload_for_so_many_steps() -> None:
    time = VirtualTime()
    gpu = made(time)
    time.run(gpu.run(Repeated(LIGHT), steps=10, pid=5))
    assert time.now_s() == pytest.approx(1.0)
    assert gpu.processes() == ()


def test_loops_share_one_virtual_time() -> None:
    time = VirtualTime()
    gpus = [made(time, index=index, seed=index) for index in range(4)]
    for gpu in gpus:
        time.spawn(gpu.run(Repeated(LIGHT)))

    def watch() -> Loop[list[float]]:
        yield 60.0
        return [gpu.read().power_w or 0.0 for gpu in gpus]

    law = physics.operate(H200.chip, LIGHT, temperature_c=warm(gpus[0]))
    assert time.run(watch()) == pytest.approx([law.average_power_w] * 4, rel=0.05)


def test_a_setting_outside_the_models_range_is_refused_and_nothing_changes() -> None:
    gpu = made(VirtualTime())
    with pytest.raises(OutOfRange, match=r"sm_mhz=2100 on GPU-\w+ \(NVIDIA H200\) is outside 345–1980"):
        gpu.apply(Setting(sm_mhz=2100.0))
    with pytest.raises(OutOfRange, match="power_limit_w=100"):
        gpu.apply(Setting(power_limit_w=100.0))
    assert gpu.read().power_limit_w == 700.0


def test_an_empty_setting_gives_everything_back_to_the_driver() -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.attach(1)
    gpu.apply(Setting(sm_mhz=990.0, power_limit_w=300.0))
    time.sleep(1.0)
    assert (gpu.read().sm_mhz, gpu.read().power_limit_w) == (990.0, 300.0)
    gpu.apply(DEFAULT)
    time.sleep(1.0)
    assert (gpu.read().sm_mhz, gpu.read().power_limit_w) == (1980.0, 700.0)


def test_a_lost_gpu_fails_every_call_until_it_is_back() -> None:
    gpu = made(VirtualTime())
    gpu.fault(lost=True)
    for call in (gpu.read, gpu.energy, gpu.processes, lambda: gpu.apply(DEFAULT)):
        with pytest.raises(GpuLost, match="fell off the bus"):
            call()
    gpu.clear()
    assert gpu.read().power_limit_w == 700.0


def test_a_hung_driver_reads_as_lost() -> None:
    gpu = made(VirtualTime())
    gpu.fault(hung=True)
    with pytest.raises(GpuLost, match="does not answer"):
        gpu.read()


def test_without_permission_reading_goes_on_and_setting_does_not() -> None:
    gpu = made(VirtualTime())
    gpu.fault(no_permission=True)
    with pytest.raises(NotPermitted):
        gpu.apply(Setting(sm_mhz=990.0))
    assert gpu.read().power_w is not None


def test_what_is_not_supported_is_none_or_refused_never_zero() -> None:
    gpu = made(VirtualTime())
    gpu.fault(unsupported=frozenset({"power", "energy_counter", "sm_clock_set", "processes"}))
    assert gpu.read().power_w is None
    assert gpu.processes() is None
    with pytest.raises(Unsupported, match="no energy counter"):
        gpu.energy()
    with pytest.raises(Unsupported, match="sm_mhz cannot be set"):
        gpu.apply(Setting(sm_mhz=990.0))
    gpu.apply(Setting(power_limit_w=300.0))


def test_a_slow_counter_says_what_its_call_costs() -> None:
    gpu = made(VirtualTime())
    assert gpu.energy().call_s == H200.sensors.counter_call_s
    gpu.fault(slow_s=0.5)
    assert gpu.energy().call_s == H200.sensors.counter_call_s + 0.5


def test_a_driver_reload_resets_the_counter_and_every_setting() -> None:
    time = VirtualTime()
    gpu = made(time)
    gpu.apply(Setting(sm_mhz=990.0, power_limit_w=300.0))
    gpu.play(Repeated(LIGHT))
    time.sleep(10.0)
    before_j = gpu.energy().energy_j
    truth_j = gpu.truth().energy_j
    gpu.reload_driver()
    assert gpu.energy().energy_j == 0.0
    assert gpu.read().power_limit_w == 700.0
    time.sleep(10.0)
    assert before_j > 1000.0
    assert gpu.energy().energy_j == pytest.approx(gpu.truth().energy_j - truth_j, rel=0.02)
    assert gpu.truth().sm_mhz == 1980.0


@pytest.mark.parametrize(
    "load",
    [
        Load(gpu_s=0.0, sm_share=0.5, dynamic_w=100.0),
        Load(gpu_s=-1.0, sm_share=0.5, dynamic_w=100.0, host_s=2.0),
        Load(gpu_s=1.0, sm_share=0.8, dynamic_w=100.0, dram_share=0.3),
        Load(gpu_s=math.nan, sm_share=0.5, dynamic_w=100.0),
        Load(gpu_s=math.inf, sm_share=0.5, dynamic_w=100.0),
        Load(gpu_s=1.0, sm_share=0.5, dynamic_w=1e300),
        Load(gpu_s=1.0, sm_share=0.5, dynamic_w=100.0, sharpness=1e9),
    ],
)
def test_what_is_no_work_is_refused(load: Load) -> None:
    gpu = made(VirtualTime())
    with pytest.raises(BadSpec, match="is no work"):
        gpu.submit(load)
    with pytest.raises(BadSpec, match="at least one load"):
        gpu.submit([])


def test_activity_follows_the_load() -> None:
    time = VirtualTime()
    shares = []
    for load in (Load(0.1, 1.0, 300.0), Load(0.1, 0.1, 300.0, dram_share=0.8), Load(0.1, 0.5, 300.0, host_s=0.4)):
        gpu = made(time)
        gpu.play(Repeated(load))
        start_s = time.now_s()
        time.sleep(10.0)
        gpu.advance()
        shares.append([total / (time.now_s() - start_s) for total in gpu.board.activity_s])
    compute, memory, waiting = shares
    assert compute == pytest.approx([1.0, 1.0, 0.0])
    assert memory == pytest.approx([1.0, 0.1, 0.9])
    assert waiting[0] < 0.5
