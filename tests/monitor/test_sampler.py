"""One poller, in virtual time and on a thread."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec, NoGpu
from joulewise.core.measurement import EnergyReading, SensorTiming
from joulewise.core.timeline import VirtualTime, WallTime
from joulewise.monitor import Sampler
from joulewise.monitor.allowance import Allowance
from joulewise.monitor.owner import Ownership
from joulewise.monitor.sampler import COUNTER_SHARE
from tests.monitor.played import EXACT_20, EXACT_100, NO_COUNTER, SLOW_COUNTER, PlayedGpu, constant, square


def sampled(gpu: PlayedGpu, time: VirtualTime, *, until_s: float) -> Sampler:
    sampler = Sampler([gpu], seed=1)
    sampler.start()
    time.run_until(until_s)
    return sampler


def test_power_is_polled_ten_times_a_second() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(0.7, 120.0, 600.0), time=time)
    sampled(gpu, time, until_s=60.0)
    before = gpu.calls.read
    time.run_until(120.0)
    assert 590 <= gpu.calls.read - before <= 680  # a look for ticks now and then


def test_every_update_of_the_sensor_is_seen_once() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(itertools.cycle([(0.013, 200.0), (0.017, 500.0), (0.0234, 350.0)]), time=time)
    sampler = sampled(gpu, time, until_s=60.0)
    readings = sampler.tracks[0].readings(since_s=20.0)
    gaps_s = [b.time_s - a.time_s for a, b in itertools.pairwise(readings)]
    assert statistics.mean(gaps_s) == pytest.approx(0.1, rel=0.03)
    assert max(gaps_s) < 0.16


def test_a_fast_sensor_is_polled_at_uneven_times() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(0.1, 120.0, 600.0), time=time, sensors=EXACT_20)
    sampler = sampled(gpu, time, until_s=60.0)
    powers_w = [reading.power_w for reading in sampler.tracks[0].readings(since_s=30.0) if reading.power_w]
    assert statistics.pstdev(powers_w) > 150.0  # in step with the poller it would look steady


def test_the_counter_is_looked_at_rarely_while_no_window_is_open_and_once_a_second_while_one_is() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(0.7, 120.0, 600.0), time=time)
    sampler = sampled(gpu, time, until_s=100.0)
    quiet = gpu.calls.energy
    time.run_until(200.0)
    assert gpu.calls.energy - quiet <= 40
    sampler.opened()
    quiet = gpu.calls.energy
    time.run_until(300.0)
    assert 90 <= gpu.calls.energy - quiet <= 130
    sampler.closed()


def test_a_counter_that_an_edge_needs_is_owed_until_it_has_been_looked_at() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(0.7, 120.0, 600.0), time=time, sensors=SLOW_COUNTER)
    sampler = sampled(gpu, time, until_s=30.0)
    assert not sampler.owes_counters
    before = gpu.calls.energy
    sampler.want_counter(sampler.tracks[0])
    assert sampler.owes_counters
    time.run_until(31.0)
    assert gpu.calls.energy > before
    assert not sampler.owes_counters


@pytest.mark.parametrize("window_open", [False, True])
def test_a_slow_counter_is_looked_at_within_its_budget(window_open: bool) -> None:
    time = VirtualTime()
    gpus = [PlayedGpu(square(0.7, 120.0, 600.0), time=time, sensors=SLOW_COUNTER, seed=i) for i in range(8)]
    sampler = Sampler(gpus, seed=1)
    if window_open:
        sampler.opened()
    sampler.start()
    time.run_until(150.0)
    spent_s = sum(gpu.calls.energy for gpu in gpus) * SLOW_COUNTER.counter_call_s
    assert spent_s < 150.0 * COUNTER_SHARE + 0.1
    if window_open:
        assert all(gpu.calls.energy >= 3 for gpu in gpus)


@pytest.mark.parametrize("sensors", [EXACT_100, EXACT_20, SLOW_COUNTER], ids=["100 ms", "20 ms", "slow"])
def test_the_ticks_of_both_sensors_are_found_soon(sensors: SensorTiming) -> None:
    time = VirtualTime(100.0)
    gpu = PlayedGpu(square(0.0437, 120.0, 600.0), time=time, sensors=sensors, phase_s=0.004)
    track = sampled(gpu, time, until_s=120.0).tracks[0]
    assert track.counter_ticks is not None
    for ticks in (track.power_ticks.ticks(), track.counter_ticks.ticks()):
        assert ticks.known_at(120.0)
        off_s = math.remainder(ticks.last_s(120.0) - 0.004, sensors.power_update_s)
        assert abs(off_s) < 3.0 * ticks.error_at_s(120.0)


def test_a_constant_load_tells_the_counters_ticks_but_not_those_of_power() -> None:
    time = VirtualTime()
    sampler = sampled(PlayedGpu(constant(300.0), time=time), time, until_s=20.0)
    counter = sampler.tracks[0].counter_ticks
    assert counter is not None
    assert counter.ticks().known_at(20.0)
    assert not sampler.tracks[0].power_ticks.ticks().known_at(20.0)


def test_a_gpu_without_a_counter_is_asked_for_it_once() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time, sensors=NO_COUNTER)
    sampled(gpu, time, until_s=30.0)
    assert gpu.calls.energy == 0


def test_a_lost_gpu_is_left_alone_and_the_others_go_on() -> None:
    time = VirtualTime()
    gone, fine = (PlayedGpu(constant(300.0), time=time, seed=i) for i in range(2))
    sampler = Sampler([gone, fine], seed=1)
    sampler.start()
    time.run_until(5.0)
    gone.lost = True
    time.run_until(10.0)
    before = fine.calls.read
    time.run_until(20.0)
    assert sampler.tracks[0].lost is not None
    assert fine.calls.read - before >= 95
    assert sampler.tracks[0].seen_s == pytest.approx(5.0, abs=0.2)


def test_a_call_that_fails_is_counted_as_a_reading_lost() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    sampler = sampled(gpu, time, until_s=5.0)
    gpu.failing = True
    time.run_until(5.5)
    gpu.failing = False
    time.run_until(10.0)
    assert 3 <= len(sampler.tracks[0].missed_s) <= 12
    assert sampler.tracks[0].lost is None
    assert sampler.latest() is not None


def test_a_gpu_that_another_process_polls_is_read_once_a_second_and_taken_over_later(tmp_path: Path) -> None:
    time = VirtualTime()
    other = Ownership("GPU-shared", directory=tmp_path, environ={})
    assert other.take()
    gpu = PlayedGpu(square(0.7, 120.0, 600.0), time=time, backend="nvml", uuid="GPU-shared")
    sampler = Sampler([gpu], seed=1, lock_directory=tmp_path)
    sampler.start()
    sampler.opened()
    time.run_until(60.0)
    before = gpu.calls.read
    time.run_until(120.0)
    assert gpu.calls.read - before < 150
    assert sampler.owned == []
    other.leave()
    time.run_until(125.0)
    before = gpu.calls.read
    time.run_until(135.0)
    assert sampler.owned == sampler.tracks
    assert gpu.calls.read - before >= 95
    sampler.stop()
    assert other.take()
    other.leave()


def test_other_ranks_leave_the_lock_to_local_rank_zero_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time, backend="nvml", uuid="GPU-rank")
    sampler = Sampler([gpu], seed=1, lock_directory=tmp_path)
    sampler.start()
    time.run_until(0.5)
    assert sampler.owned == []
    time.run_until(1.5)
    assert sampler.owned == sampler.tracks
    sampler.stop()


def test_on_wall_time_it_runs_on_a_thread_that_ends_with_it() -> None:
    polled = threading.Event()

    class Telling(PlayedGpu):
        def read(self):  # type: ignore[no-untyped-def]
            if self.calls.read >= 3:
                polled.set()
            return super().read()

    gpu = Telling(square(0.7, 120.0, 600.0), time=WallTime())
    with Sampler([gpu]) as sampler:
        assert polled.wait(30.0)
        assert sampler.latest() is not None
        assert any(thread.name == "joulewise sampler" for thread in threading.enumerate())
    assert not any(thread.name == "joulewise sampler" for thread in threading.enumerate())


def test_nothing_to_sample_and_nonsense_are_refused() -> None:
    time = VirtualTime()
    with pytest.raises(NoGpu, match=r"doctor.* joulewise\.gpus\('sim:h200'\) gives a virtual one"):
        Sampler([])
    with pytest.raises(BadSpec, match="interval_s=0"):
        Sampler([PlayedGpu(constant(1.0), time=time)], interval_s=0)
    with pytest.raises(BadSpec, match="different times"):
        Sampler([PlayedGpu(constant(1.0), time=time), PlayedGpu(constant(1.0), time=WallTime())])


class HeldUpGpu(PlayedGpu):
    """Its counter's third call takes a second, since the machine does something else meanwhile."""

    def energy(self) -> EnergyReading:
        shown = super().energy()
        return replace(shown, call_s=1.0) if self.calls.energy == 3 else shown


def test_one_call_that_the_machine_held_up_does_not_make_the_counter_look_dear() -> None:
    looks = []
    for kind in (PlayedGpu, HeldUpGpu):
        time = VirtualTime()
        gpu = kind(square(0.7, 120.0, 600.0), time=time, sensors=SLOW_COUNTER)
        sampler = sampled(gpu, time, until_s=1.0)
        sampler.opened()
        for now_s in range(2, 100):
            sampler.want_counter(sampler.tracks[0])  # an edge a second
            time.run_until(float(now_s))
        looks.append(gpu.calls.energy)
    assert looks[0] > 50
    assert looks[1] > 0.8 * looks[0]


def test_a_budget_refills_with_time_and_keeps_a_reserve() -> None:
    allowance = Allowance(0.01, 0.1, left_s=0.1, now_s=0.0)
    assert allowance.take(0.06, 0.0)
    assert not allowance.take(0.06, 0.0)
    assert not allowance.take(0.03, 0.0, leave=0.5)
    assert allowance.take(0.06, 3.0)


def test_what_costs_more_than_the_whole_budget_is_granted_when_it_is_full_and_owed() -> None:
    allowance = Allowance(0.01, 0.1, left_s=0.09, now_s=0.0)
    assert not allowance.take(0.2, 0.0)
    assert allowance.take(0.2, 1.1, leave=0.5)
    assert not allowance.take(0.001, 11.0)  # 0.1 s are owed, which take 10 s
    assert allowance.take(0.001, 11.3)


@given(
    costs_s=st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 10.0), st.floats(0.0, 0.9)), max_size=50),
)
def test_a_budget_spends_its_share_of_the_time_and_what_it_holds_and_no_more_than_one_call_beyond(
    costs_s: list[tuple[float, float, float]],
) -> None:
    share, most_s = 0.01, 0.1
    allowance, now_s, spent_s, dearest_s = Allowance(share, most_s, left_s=most_s, now_s=0.0), 0.0, 0.0, 0.0
    for cost_s, wait_s, leave in costs_s:
        now_s += wait_s
        if allowance.take(cost_s, now_s, leave=leave):
            spent_s, dearest_s = spent_s + cost_s, max(dearest_s, cost_s)
    assert spent_s <= share * now_s + most_s + dearest_s + 1e-9
