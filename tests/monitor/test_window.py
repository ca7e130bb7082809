"""Windows of work: what users hold."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.core.errors import GpuLost, NoReading, WindowError
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome, SensorTiming, Source
from joulewise.core.timeline import Loop, VirtualTime, WallTime
from joulewise.device.recording import Recorder, load
from joulewise.monitor import Monitor, Sampler
from tests.monitor.played import (
    EXACT_20,
    EXACT_100,
    NO_COUNTER,
    QUARTER_100,
    SLOW_COUNTER,
    PlayedGpu,
    constant,
    square,
)


def monitor_of(*gpus: PlayedGpu, warm_s: float = 5.0) -> Monitor:
    """A monitor that has watched for a while, in virtual time."""
    monitor = Monitor(sampler=Sampler(gpus, seed=1))
    monitor.time.sleep(warm_s)
    return monitor


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def gpu(time: VirtualTime) -> PlayedGpu:
    return PlayedGpu(square(0.37, 120.0, 600.0), time=time)


def test_a_window_is_a_context_manager_with_a_measurement_per_gpu_and_a_total(time: VirtualTime) -> None:
    gpus = [PlayedGpu(constant(power_w), time=time, seed=i) for i, power_w in enumerate((200.0, 300.0))]
    monitor = monitor_of(*gpus)
    with monitor.window("epoch", work=100.0, setting=Setting(sm_mhz=1410)) as window:
        time.sleep(4.0)
    report = window.report
    assert [round(part.energy_j) for part in report.gpus.values()] == [800, 1200]
    assert report.total.energy_j == pytest.approx(2000.0, rel=1e-3)
    assert report.energy_j == report.total.energy_j
    assert report.error_j == report.total.error_j > 0.0
    assert report.total.work == 100.0
    assert report.total.setting == Setting(sm_mhz=1410)
    assert report.total.source is Source.COUNTER
    assert report.total.gain_error == pytest.approx(0.03 * (800**2 + 1200**2) ** 0.5 / 2000, rel=1e-3)
    assert report.duration_s == pytest.approx(4.0)
    assert not report.missing


def test_windows_nest_and_overlap(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    truth = {}
    monitor.begin("outer")
    truth["outer"] = gpu.truth_j()
    time.sleep(1.0)
    monitor.begin("late")
    truth["late"] = gpu.truth_j()
    with monitor.window("inner") as inner:
        inner_j = gpu.truth_j()
        time.sleep(1.3)
        inner_j = gpu.truth_j() - inner_j
    outer = monitor.end("outer")
    outer_j = gpu.truth_j() - truth["outer"]
    time.sleep(2.0)
    late = monitor.end("late")
    late_j = gpu.truth_j() - truth["late"]
    for report, truth_j in ((inner.report, inner_j), (outer, outer_j), (late, late_j)):
        assert abs(report.energy_j - truth_j) < 2.5 * report.error_j
    assert outer.from_s < late.from_s < outer.to_s < late.to_s


def test_a_decorated_function_is_measured_at_every_call(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)

    @monitor.measured(work=8.0)
    def step(length_s: float) -> str:
        """One step."""
        time.sleep(length_s)
        return "done"

    assert step(1.0) == "done"
    assert step(2.0) == "done"
    assert step.__doc__ == "One step."
    assert [round(report.duration_s) for report in monitor.reports] == [1, 2]
    assert monitor.last("step").duration_s == pytest.approx(2.0)
    assert monitor.last("step").total.work == 8.0


def test_an_open_window_can_be_read(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    window = monitor.begin("run")
    seen = []
    for _ in range(3):
        time.sleep(1.0)
        seen.append(window.so_far().energy_j)
    assert window.open
    assert seen == sorted(seen)
    assert monitor.end("run").energy_j == pytest.approx(seen[-1], abs=1e-6)


@pytest.mark.parametrize("settle", [False, True])
def test_ending_returns_at_once_unless_told_to_settle(gpu: PlayedGpu, time: VirtualTime, settle: bool) -> None:
    monitor = monitor_of(gpu)
    with monitor.window("short", settle=settle) as window:
        time.sleep(0.25)
        ended_s = time.now_s()
    assert window.report.duration_s == pytest.approx(0.25)
    assert (time.now_s() == ended_s) is not settle
    assert time.now_s() - ended_s < 0.12


def test_settling_makes_short_windows_sharper(time: VirtualTime) -> None:
    errors: dict[bool, list[float]] = {False: [], True: []}
    for settle in (False, True):
        virtual = VirtualTime()
        gpu = PlayedGpu(square(0.37, 120.0, 600.0), time=virtual)
        monitor = monitor_of(gpu)
        for i in range(20):
            virtual.sleep(0.5 + 0.013 * i)
            with monitor.window("short", settle=settle) as window:
                virtual.sleep(0.2)
            errors[settle].append(window.report.error_j)
    assert sum(errors[True]) < 0.9 * sum(errors[False])


def test_the_callers_sync_runs_before_both_edges(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    waits = iter([0.5, 0.25])

    def sync() -> None:
        time.sleep(next(waits))

    begun_s = time.now_s()
    with monitor.window("step", sync=sync) as window:
        time.sleep(1.0)
    assert window.report.from_s == pytest.approx(begun_s + 0.5)
    assert window.report.duration_s == pytest.approx(1.25)


def test_misuse_is_named(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    monitor.begin("a")
    with pytest.raises(WindowError, match="'a' is open already"):
        monitor.begin("a")
    with pytest.raises(WindowError, match=r"no window 'b' is open \(open: 'a'\)"):
        monitor.end("b")
    monitor.end("a")
    with pytest.raises(WindowError, match="no window 'a' is open"):
        monitor.end("a")
    with pytest.raises(WindowError, match="no window 'c' has ended"):
        monitor.last("c")
    window = monitor.window("w")
    with pytest.raises(WindowError, match="has not begun"):
        window.end()
    with pytest.raises(WindowError, match="has not ended"):
        _ = window.report
    window.begin()
    with pytest.raises(WindowError, match="has begun before"):
        window.begin()
    window.end()
    with pytest.raises(WindowError, match="not open"):
        window.so_far()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("bad"), Outcome.FAILED),
        (MemoryError(), Outcome.OUT_OF_MEMORY),
        (type("OutOfMemoryError", (RuntimeError,), {})(), Outcome.OUT_OF_MEMORY),
        (KeyboardInterrupt(), Outcome.STOPPED_EARLY),
    ],
)
def test_work_that_raised_is_not_a_full_observation(
    gpu: PlayedGpu, time: VirtualTime, error: BaseException, outcome: Outcome
) -> None:
    monitor = monitor_of(gpu)

    @monitor.measured("run")
    def work() -> None:
        time.sleep(1.0)
        raise error

    with pytest.raises(type(error)):
        work()
    assert monitor.last("run").total.outcome is outcome


def test_windows_in_several_threads_do_not_disturb_each_other() -> None:
    gpu = PlayedGpu(constant(300.0), time=WallTime())
    with Monitor([gpu]) as monitor:
        failures: list[BaseException] = []

        def work(name: str) -> None:
            try:
                for i in range(20):
                    monitor.begin(f"{name} {i}")
                    with monitor.window(name):
                        pass
                    monitor.end(f"{name} {i}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(monitor.reports) == 100
    assert all(report.energy_j >= 0.0 for report in monitor.reports)


# What goes wrong with a GPU.


def test_a_gpu_lost_in_mid_window_is_told_once_and_what_was_seen_stays(time: VirtualTime, tmp_path: Path) -> None:
    gone, fine = (PlayedGpu(constant(200.0), time=time, seed=i) for i in range(2))
    recorder = Recorder(tmp_path / "run.jsonl", [gone, fine])
    monitor = Monitor(sampler=Sampler([gone, fine], seed=1, recorder=recorder), recorder=recorder)
    time.sleep(5.0)
    window = monitor.begin("run")
    time.sleep(4.0)
    gone.lost = True
    time.sleep(6.0)
    with pytest.raises(GpuLost, match=r"fell off the bus; window 'run' holds what was measured before"):
        monitor.end("run")
    seen = window.report.gpus[gone.info.uuid]
    assert seen.duration_s == pytest.approx(4.0, abs=0.15)
    assert seen.energy_j == pytest.approx(200.0 * seen.duration_s, rel=0.01)
    assert seen.outcome is Outcome.FAILED
    assert any("GPU lost 6" in note for note in seen.notes)
    assert window.report.gpus[fine.info.uuid].energy_j == pytest.approx(2000.0, rel=0.01)
    assert window.report.total.outcome is Outcome.FAILED
    with monitor.window("later") as later:
        time.sleep(2.0)
    assert "fell off the bus" in later.report.missing[gone.info.uuid]
    assert later.report.total.energy_j == pytest.approx(400.0, rel=0.01)
    recording = load(tmp_path / "run.jsonl")  # not closed: the job may have been killed
    assert len(recording.readings[0]) >= 80
    assert recording.readings[0][-1].time_s == pytest.approx(9.0, abs=0.2)
    assert [name for name, _ in recording.windows] == ["run", "later"]
    recorder.close()


def test_an_error_inside_says_more_than_a_lost_gpu(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)

    @monitor.measured()
    def work() -> None:
        gpu.lost = True
        time.sleep(1.0)
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        work()


def test_a_window_on_a_gpu_that_was_never_there_measures_nothing(gpu: PlayedGpu, time: VirtualTime) -> None:
    gpu.lost = True
    monitor = Monitor(sampler=Sampler([gpu], seed=1))
    window = monitor.begin("first")
    time.sleep(1.0)
    with pytest.raises(GpuLost):
        monitor.end("first")
    with pytest.raises(NoReading, match="fell off the bus"):
        _ = window.report.total
    assert "no reading" in str(window.report)
    assert "energy_j" not in window.report.as_json()


@pytest.mark.parametrize("sensors", [EXACT_100, EXACT_20, SLOW_COUNTER])
def test_a_driver_reload_in_mid_window_is_flagged_and_never_negative(time: VirtualTime, sensors: SensorTiming) -> None:
    gpu = PlayedGpu(square(0.37, 120.0, 600.0), time=time, sensors=sensors)
    monitor = monitor_of(gpu, warm_s=30.0)
    with monitor.window("run") as window:
        truth_j = gpu.truth_j()
        time.sleep(5.3)
        gpu.reload_driver()
        time.sleep(14.7)
        truth_j = gpu.truth_j() - truth_j
    found = window.report.total
    assert "counter reset" in found.notes
    assert abs(found.energy_j - truth_j) < 2.5 * found.error_j
    assert found.error_j < 0.05 * truth_j
    with monitor.window("after") as after:
        time.sleep(2.0)
    assert "counter reset" not in after.report.total.notes


def test_readings_lost_are_counted_in_the_notes(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    with monitor.window("run") as window:
        time.sleep(2.0)
        gpu.failing = True
        time.sleep(1.0)
        gpu.failing = False
        time.sleep(2.0)
    assert any("readings lost" in note for note in window.report.total.notes)


# Long windows, slow counters, no counters.


@pytest.mark.parametrize("sensors", [EXACT_100, NO_COUNTER, QUARTER_100, SLOW_COUNTER])
def test_a_window_longer_than_the_memory_is_measured_all_the_same(time: VirtualTime, sensors: SensorTiming) -> None:
    gpu = PlayedGpu(square(0.37, 120.0, 600.0), time=time, sensors=sensors)
    monitor = monitor_of(gpu)
    with monitor.window("hour") as window:
        truth_j = gpu.truth_j()
        time.sleep(600.0)
        truth_j = gpu.truth_j() - truth_j
    found = window.report.total
    assert abs(found.energy_j - truth_j) < 2.5 * found.error_j
    assert found.error_j < (0.03 if sensors is QUARTER_100 else 0.01) * truth_j
    assert found.source is (Source.INTEGRATED if sensors is NO_COUNTER else Source.COUNTER)


def test_a_slow_counter_is_not_looked_at_by_the_thread_that_is_measured(time: VirtualTime) -> None:
    gpu = PlayedGpu(square(0.37, 120.0, 600.0), time=time, sensors=SLOW_COUNTER)
    monitor = monitor_of(gpu, warm_s=30.0)
    before = gpu.calls.energy
    window = monitor.window("step").begin()
    assert gpu.calls.energy == before
    time.sleep(0.5)
    by_sampler = gpu.calls.energy
    window.end()
    assert gpu.calls.energy == by_sampler
    window = monitor.window("epoch").begin()
    time.sleep(30.0)
    by_sampler = gpu.calls.energy
    window.end()
    assert gpu.calls.energy == by_sampler + 1  # 3.45 ms are less than a thousandth of it


def test_a_gpu_without_a_counter_is_integrated(time: VirtualTime) -> None:
    gpu = PlayedGpu(square(0.37, 120.0, 600.0), time=time, sensors=NO_COUNTER)
    monitor = monitor_of(gpu)
    with monitor.window("run") as window:
        truth_j = gpu.truth_j()
        time.sleep(10.0)
        truth_j = gpu.truth_j() - truth_j
    assert window.report.total.source is Source.INTEGRATED
    assert abs(window.report.energy_j - truth_j) < 2.5 * window.report.error_j


def test_joules_agree_with_the_truth_within_one_percent_over_thirty_seconds(time: VirtualTime) -> None:
    from joulewise.device.virtual import VirtualGpu
    from joulewise.model import catalog
    from joulewise.model.physics import Load

    for name in ("h200", "v100", "a40"):
        gpu = VirtualGpu(catalog.load(name), time=time, gain=1.0, seed=3)
        monitor = Monitor(sampler=Sampler([gpu], seed=1))

        def job(gpu: VirtualGpu = gpu) -> Loop[None]:
            for _ in range(200):
                done = gpu.submit(Load(gpu_s=0.13, host_s=0.06, sm_share=0.8, dynamic_w=250.0))
                while done.finished_s is None or done.finished_s > time.now_s():
                    yield 0.01
                    gpu.advance()

        time.spawn(job())
        time.sleep(2.0)
        with monitor.window("run") as window:
            truth_j = gpu.truth().energy_j
            time.sleep(30.0)
            truth_j = gpu.truth().energy_j - truth_j
        monitor.close()
        assert window.report.energy_j == pytest.approx(truth_j, rel=0.01), name


# What is said about it.


def test_a_report_reads_as_one_line_and_as_json(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    with monitor.window("epoch") as window:
        time.sleep(8.2)
    report = window.report
    assert str(report).startswith("epoch: ")
    assert "±" in str(report)
    assert str(report).endswith("in 8.20 s (counter)")
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["energy_j"] == report.energy_j
    assert plain["gpus"][gpu.info.uuid]["source"] == "counter"
    assert plain["outcome"] == "reached"


def test_a_report_does_not_change_after_it_was_made(gpu: PlayedGpu, time: VirtualTime) -> None:
    monitor = monitor_of(gpu)
    twins = [monitor.window(name).begin() for name in ("read now", "read later")]
    time.sleep(1.23)
    now, later = (window.end() for window in twins)
    energy_j = now.energy_j
    time.sleep(30.0)
    assert later.energy_j == pytest.approx(energy_j, abs=1e-9)


def test_readings_and_windows_are_recorded(gpu: PlayedGpu, time: VirtualTime, tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.jsonl", [gpu]) as recorder:
        with Monitor([gpu], recorder=recorder) as monitor:
            time.sleep(2.0)
            with monitor.window("epoch"):
                time.sleep(3.0)
        energy_j = monitor.last("epoch").energy_j
    recording = load(tmp_path / "run.jsonl")
    assert len(recording.readings[0]) >= 45
    assert len(recording.energies[0]) >= 4
    (name, values), *_ = recording.windows
    assert name == "epoch"
    assert values["energy_j"] == pytest.approx(energy_j)


def test_a_stranger_reading_of_the_same_gpu_does_not_shorten_what_is_remembered(
    gpu: PlayedGpu, time: VirtualTime
) -> None:
    """Many tiny windows read the GPU far more often than it has news."""
    monitor = monitor_of(gpu, warm_s=20.0)

    def tiny() -> Iterator[float]:
        for _ in itertools.repeat(None, 500):
            with monitor.window("tiny"):
                pass
            yield 0.001

    for wait_s in tiny():
        time.sleep(wait_s)
    readings = monitor.sampler.tracks[0].readings()
    assert readings[0].time_s < 1.0
