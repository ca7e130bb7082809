import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.measurement import EnergyReading, Reading, Source
from joulewise.core.timeline import VirtualTime, WallTime
from joulewise.device.node import spawn
from joulewise.device.nvml_library import virtual
from joulewise.serve.live import LiveGpus
from joulewise.serve.watched import POINTS, thinned
from tests.monitor.played import NO_COUNTER, SLOW_COUNTER, PlayedGpu, constant, square
from tests.serve.face_toys import until

EPOCH_S = 1.8e9


def watching(*gpus: PlayedGpu, **more: object) -> LiveGpus:
    """Watched in the GPUs' own virtual time."""
    time = gpus[0].time
    return LiveGpus(gpus, now=time.now_s, unix=lambda: EPOCH_S + time.now_s(), node="node7", **more)


def watch(live: LiveGpus, time: VirtualTime, for_s: float, *, every_s: float = 1.0) -> None:
    until_s = time.now_s() + for_s
    while time.now_s() < until_s - 1e-9:
        live.look()
        time.sleep(every_s)


def test_a_gpu_is_shown_as_it_was_last_read() -> None:
    time = VirtualTime()
    live = watching(PlayedGpu(constant(312.0), time=time), why="one for the test")
    assert live.gpus()[0].power_w is None
    assert live.gpus()[0].reason == "not read yet"
    watch(live, time, 3.0)
    (gpu,) = live.gpus()
    assert (gpu.name, gpu.node, gpu.virtual, gpu.reason) == ("Played", "node7", True, None)
    assert gpu.power_w == pytest.approx(312.0)
    assert gpu.utilization == 1.0
    assert (gpu.sm_mhz, gpu.temperature_c, gpu.throttle, gpu.processes) == (None, None, None, None)
    assert live.power_w == pytest.approx(312.0)
    assert gpu.history is None


def test_joules_are_those_of_the_gpus_own_counter() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(0.7, 120.0, 600.0), time=time)
    live = watching(gpu)
    live.look()
    before_j, shown_j = gpu.truth_j(), live.counted()[gpu.info.uuid].energy_j
    watch(live, time, 120.0)
    used_j = gpu.truth_j() - before_j
    assert live.gpus()[0].energy_j == pytest.approx(used_j, rel=0.02)
    counted = live.counted()[gpu.info.uuid]
    assert counted.source is Source.COUNTER
    assert counted.energy_j - shown_j == pytest.approx(used_j, rel=0.02)


def test_a_counter_that_is_dear_is_looked_at_rarely_unless_somebody_asks() -> None:
    time = VirtualTime()
    gpus = [PlayedGpu(constant(300.0), time=time, sensors=SLOW_COUNTER, seed=seed) for seed in range(8)]
    watch(watching(*gpus), time, 600.0)
    calls_s = sum(gpu.calls.energy for gpu in gpus) * SLOW_COUNTER.counter_call_s
    assert all(gpu.calls.energy >= 10 for gpu in gpus)
    assert calls_s <= 0.0012 * 600.0


def test_after_a_driver_reload_the_counter_begins_anew_and_the_sum_since_the_start_goes_on() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    live = watching(gpu)
    watch(live, time, 20.0)
    gpu.reload_driver()
    watch(live, time, 20.0)
    live.look()
    assert live.counted()[gpu.info.uuid].energy_j == pytest.approx(300.0 * 20.0, rel=0.06)
    assert live.gpus()[0].energy_j == pytest.approx(300.0 * 40.0, rel=0.06)


def test_without_a_counter_power_is_summed_from_the_start() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(3.1, 120.0, 600.0), time=time, sensors=NO_COUNTER)
    live = watching(gpu)
    live.look()
    before_j = gpu.truth_j()
    watch(live, time, 60.0, every_s=0.1)
    live.look()
    counted = live.counted()[gpu.info.uuid]
    assert counted.source is Source.INTEGRATED
    assert counted.energy_j == pytest.approx(gpu.truth_j() - before_j, rel=0.02)
    assert len(live.gpus(history=True)[0].history.time_s) == pytest.approx(60, abs=7)  # one point a second all the same


def test_what_was_drawn_while_nothing_could_be_read_is_not_made_up() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time, sensors=NO_COUNTER)
    live = watching(gpu)
    watch(live, time, 5.0, every_s=0.1)
    time.sleep(1000.0)
    watch(live, time, 5.0, every_s=0.1)
    assert live.counted()[gpu.info.uuid].energy_j == pytest.approx(300.0 * 10.0, rel=0.05)


def test_a_lost_gpu_is_unknown_at_once_with_its_reason_and_is_asked_again_later() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    live = watching(gpu, PlayedGpu(constant(200.0), time=time, seed=1))
    watch(live, time, 5.0)
    gpu.lost = True
    live.look()
    shown, other = live.gpus(history=True)
    assert shown.power_w is None
    assert "fell off the bus" in shown.reason
    assert shown.history.power_w[-1] is None
    assert live.counted().keys() == {other.uuid}
    assert live.power_w == pytest.approx(200.0)
    assert [line.partition(": ")[2] for line in live.troubles] == [shown.reason]
    gpu.lost = False
    watch(live, time, 40.0)
    assert live.gpus()[0].power_w == pytest.approx(300.0)
    assert live.troubles == ()
    assert gpu.info.uuid in live.counted()


def test_one_look_that_fails_is_no_news_and_silence_is() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    live = watching(gpu)
    watch(live, time, 5.0)
    gpu.failing = True
    watch(live, time, 3.0)
    assert live.gpus()[0].power_w == pytest.approx(300.0)
    watch(live, time, 10.0)
    (shown,) = live.gpus()
    assert shown.power_w is None
    assert "did not answer" in shown.reason
    assert live.counted() == {}


def test_ten_minutes_are_remembered_in_few_points() -> None:
    time = VirtualTime()
    live = watching(PlayedGpu(constant(300.0), time=time))
    watch(live, time, 900.0)
    history = live.gpus(history=True)[0].history
    assert len(history.time_s) == POINTS == len(history.power_w) == len(history.sm_mhz)
    assert history.time_s[-1] == pytest.approx(EPOCH_S + 899.0)
    assert history.time_s[0] == pytest.approx(EPOCH_S + 301.0)
    assert set(history.sm_mhz) == {None}


def test_no_line_is_drawn_across_a_time_in_which_nothing_was_read() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    live = watching(gpu)
    watch(live, time, 300.0)
    gpu.failing = True
    watch(live, time, 120.0)
    gpu.failing = False
    watch(live, time, 60.0)
    history = live.gpus(history=True)[0].history
    (hole,) = [place for place, power_w in enumerate(history.power_w) if power_w is None]
    assert history.time_s[hole] == pytest.approx(EPOCH_S + 420.0, abs=3.0)
    time.sleep(400.0)
    live.look()
    assert live.gpus(history=True)[0].history.time_s[0] >= EPOCH_S + 280.0  # ten minutes, whatever was read in them


known = st.none() | st.floats(0.0, 1000.0)


@given(st.lists(st.tuples(known, known), max_size=200), st.integers(1, 50))
def test_a_thinned_curve_keeps_the_mean_and_the_order(past: list[tuple[float | None, float | None]], most: int) -> None:
    curve = thinned([(float(number), *values) for number, values in enumerate(past)], most)
    assert len(curve.time_s) == len(curve.power_w) == len(curve.sm_mhz) <= most
    assert list(curve.time_s) == sorted(curve.time_s)
    if past:
        assert curve.time_s[-1] == len(past) - 1
    for shown, values in ((curve.power_w, [power for power, _ in past]), (curve.sm_mhz, [clock for _, clock in past])):
        there = [value for value in values if value is not None]
        assert all(min(there) - 1e-9 <= each <= max(there) + 1e-9 for each in shown if each is not None)
        if (None, None) not in past:
            assert any(each is not None for each in shown) is bool(there)


def test_who_holds_a_gpu_is_asked_now_and_then_and_unknown_where_nobody_can_tell() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time)
    asked: Iterator[dict[str, str] | None] = iter([None, {gpu.info.uuid: "uid 1000 pid 7 (train)"}, {}])
    live = watching(gpu, holders=lambda: next(asked))
    watch(live, time, 1.0)
    assert (live.held, live.gpus()[0].held_by) == (None, None)
    watch(live, time, 6.0)
    assert live.gpus()[0].held_by == "uid 1000 pid 7 (train)"
    watch(live, time, 6.0)
    assert (live.held, live.gpus()[0].held_by) == ({}, None)


def test_no_gpu_is_no_fault() -> None:
    with LiveGpus(why="none here") as live:
        assert (len(live), live.gpus(), live.power_w, live.counted(), live.troubles) == (0, (), None, {}, ())
        assert not live.refresh()
        assert live.why == "none here"


@pytest.mark.parametrize("interval_s", [0.0, -1.0, 0.05, 61.0, math.nan, math.inf])
def test_an_interval_that_makes_no_sense_is_refused(interval_s: float) -> None:
    with pytest.raises(BadSpec, match=r"outside 0\.1 to 60 seconds"):
        LiveGpus(interval_s=interval_s)


class HangingGpu(PlayedGpu):
    """Answers twice, then hangs until it is let go."""

    def __init__(self) -> None:
        super().__init__(constant(300.0), time=WallTime())
        self.let_go, self.hangs, self._reads = threading.Event(), threading.Event(), itertools.count()

    def read(self) -> Reading:
        if next(self._reads) >= 2:
            self.hangs.set()
            self.let_go.wait(60.0)
        return super().read()


def test_a_driver_that_hangs_holds_up_nobody() -> None:
    gpu = HangingGpu()
    try:
        with LiveGpus([gpu], interval_s=0.1) as live:
            assert gpu.hangs.wait(30.0)
            assert live.gpus()[0].power_w == pytest.approx(300.0)
            assert not live.refresh(within_s=0.05)
            live.stale_s = 0.0
            assert live.gpus()[0].power_w is None
            assert "the driver may hang" in live.gpus()[0].reason
    finally:
        gpu.let_go.set()


def test_joules_move_with_each_reading_though_the_counter_is_looked_at_rarely_and_never_fall() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(square(7.0, 120.0, 600.0), time=time, sensors=SLOW_COUNTER)
    gpu.info = replace(gpu.info, sensors=replace(SLOW_COUNTER, counter_call_s=0.03))  # due every half minute
    live = watching(gpu)
    live.look()
    before_j, shown = gpu.truth_j(), []
    for _ in range(300):
        time.sleep(1.0)
        live.look()
        shown.append(live.gpus()[0].energy_j)
    assert gpu.calls.energy < 20
    assert all(later > earlier for earlier, later in itertools.pairwise(shown))
    assert shown[-1] == pytest.approx(gpu.truth_j() - before_j, rel=0.02)


def test_a_gpu_that_is_lost_keeps_the_joules_that_were_seen_of_it() -> None:
    time = VirtualTime()
    gpu = PlayedGpu(constant(300.0), time=time, sensors=SLOW_COUNTER)
    gpu.info = replace(gpu.info, sensors=replace(SLOW_COUNTER, counter_call_s=60.0))
    live = watching(gpu)
    watch(live, time, 11.0)
    gpu.lost = True
    watch(live, time, 2.0)
    gpu.lost = False
    watch(live, time, 40.0)
    assert live.gpus()[0].energy_j >= 300.0 * 10.0 * 0.99


def test_a_call_that_hangs_costs_its_own_gpu_and_no_other(virtual_nvml: None) -> None:
    """Against the driver's own interface, as several GPUs of one machine are."""
    from joulewise.device.discover import find

    with ExitStack() as stack:
        node = stack.enter_context(spawn("sim:h200*3", load="transformer"))
        stack.enter_context(virtual(node.directory))
        client = stack.enter_context(node.client())
        live = stack.enter_context(LiveGpus(find("nvml:all"), interval_s=0.1))
        until(lambda: all(gpu.power_w is not None for gpu in live.gpus()))
        client.fault(1, "hung")
        live.stale_s = 2.0
        until(lambda: live.gpus()[1].power_w is None)
        first, hung, third = live.gpus()
        assert (first.reason, third.reason) == (None, None)
        assert "the driver may hang" in hung.reason
        assert len(live.troubles) == 1
        assert not live.refresh(within_s=1.0)  # not of all of them
        assert live.counted().keys() == {first.uuid, third.uuid}
        until(lambda: live.gpus()[0].energy_j > first.energy_j)
        client.clear(1)
        until(lambda: live.gpus()[1].power_w is not None)
        assert live.troubles == ()


def test_counters_of_other_gpus_are_told_at_once_when_one_is_known_to_hang() -> None:
    hanging, well = HangingGpu(), CountingGpu(constant(300.0), time=WallTime(), seed=1)
    try:
        with LiveGpus([hanging, well], interval_s=0.1) as live:
            assert hanging.hangs.wait(30.0)
            until(lambda: live._watches[0].hangs(0.05))
            before_j = live.counted()[well.info.uuid].energy_j
            live._fresh_s = -math.inf
            # Were it waited for, this would be false only after the test has long been given up.
            assert not live.refresh(within_s=0.05)
            assert live._fresh_s > 0.0
            assert live.counted()[well.info.uuid].energy_j > before_j
            hanging.let_go.set()
    finally:
        hanging.let_go.set()


def test_a_watch_that_was_left_behind_ends_when_it_is_let_go_though_another_was_begun() -> None:
    gpu = HangingGpu()
    live = LiveGpus([gpu], interval_s=0.1)
    live.start()
    assert gpu.hangs.wait(30.0)
    (left,) = [each for each in threading.enumerate() if gpu.info.uuid in each.name]
    live._watches[0].stop()
    live._watches[0].join(0.01)
    live._watches[0].start()
    gpu.let_go.set()
    left.join(30.0)
    assert not left.is_alive()
    live.stop()
    assert [each for each in threading.enumerate() if gpu.info.uuid in each.name] == []


class CountingGpu(PlayedGpu):
    """Shows how often its counter was looked at, and that it takes long."""

    def energy(self) -> EnergyReading:
        return replace(super().energy(), energy_j=float(self.calls.energy))


def test_whoever_asks_gets_a_counter_of_now_however_dear() -> None:
    gpu = CountingGpu(constant(300.0), time=WallTime(), sensors=SLOW_COUNTER)
    gpu.info = replace(gpu.info, sensors=replace(SLOW_COUNTER, counter_call_s=60.0))  # never looked at unasked but once
    with LiveGpus([gpu], interval_s=60.0) as live:
        seen = []
        for _ in range(3):
            assert live.refresh(within_s=30.0)
            seen.append(live.counted()[gpu.info.uuid].energy_j)
            live._fresh_s = -math.inf  # as if time had passed
        assert seen == sorted(set(seen))


def test_it_leaves_the_gpus_locks_to_runs_that_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with LiveGpus([PlayedGpu(constant(300.0), time=WallTime(), backend="nvml")], interval_s=0.1) as live:
        assert live.refresh(within_s=30.0)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_behind_the_driver_is_back_when_it_is_back(virtual_nvml: None) -> None:
    from joulewise.device.discover import find

    clock = itertools.count(0.0, 31.0)
    with spawn("sim:h200", load="transformer") as node, virtual(node.directory), node.client() as client:
        (gpu,) = find("nvml:all")
        live = LiveGpus([gpu], now=lambda: next(clock))
        live.stale_s = math.inf
        looks: list[Callable[[], None]] = [lambda: client.fault(0, "lost"), lambda: client.clear(0), lambda: None]
        reasons = []
        for happens in looks:
            live.look()
            reasons.append(live.gpus()[0].reason)
            happens()
        assert reasons[0] is None
        assert "is lost" in reasons[1]
        assert reasons[2] is None
        shown = live.gpus()[0]
        assert shown.sm_max_mhz == 1980.0
        assert [process.name for process in shown.processes or ()] != []
        assert shown.throttle is not None
