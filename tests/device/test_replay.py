from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadRecording, GpuLost, Unsupported
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.core.timeline import VirtualTime
from joulewise.device.gpu import Gpu
from joulewise.device.recording import Recorder, Recording, load
from joulewise.device.replay import ReplayGpu
from joulewise.testing import GpuConformance, LostGpuConformance
from tests.device import recorded


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    path = tmp_path_factory.mktemp("replay") / "run.jsonl"
    recorded.write(path)
    return load(path)


class TestReplayGpu(GpuConformance):
    @pytest.fixture
    def gpu(self, recording: Recording) -> Gpu:
        return ReplayGpu(recording, 1, time=VirtualTime(50.0))


class TestReplayGpuWithoutCounter(GpuConformance):
    @pytest.fixture
    def gpu(self, tmp_path: Path) -> Gpu:
        recorded.write(tmp_path / "run.jsonl", counter=False)
        return ReplayGpu(load(tmp_path / "run.jsonl"), 0, time=VirtualTime())


class TestReplayGpuAfterTheEnd(LostGpuConformance):
    @pytest.fixture
    def lost_gpu(self, recording: Recording) -> Gpu:
        time = VirtualTime()
        gpu = ReplayGpu(recording, 0, time=time)
        time.sleep(10.5)
        return gpu


def test_it_shows_what_was_recorded_when_it_was_recorded(recording: Recording) -> None:
    time = VirtualTime(7.0)
    gpu = ReplayGpu(recording, 0, time=time)
    assert gpu.ends_s == pytest.approx(17.0)
    for expected_w in (200.0, 200.0, 500.0, 500.0, 200.0):
        assert gpu.read().power_w == expected_w
        assert gpu.read().time_s == time.now_s()
        time.sleep(1.0)


def test_its_counter_is_the_recorded_one_and_follows_power_in_between(recording: Recording) -> None:
    time = VirtualTime()
    gpu = ReplayGpu(recording, 0, time=time)
    for _ in range(99):
        assert gpu.energy().energy_j == pytest.approx(recorded.energy_j(0, time.now_s()), abs=0.5)
        time.sleep(0.1)


def test_gpus_of_one_recording_can_start_as_one(recording: Recording) -> None:
    time = VirtualTime()
    first = ReplayGpu(recording, 0, time=time, started_s=0.0)
    time.sleep(3.0)
    second = ReplayGpu(recording, 1, time=time, started_s=0.0)
    assert first.read().power_w == 500.0
    assert second.read().power_w == 550.0


def test_it_says_that_it_is_a_replay(recording: Recording) -> None:
    info = ReplayGpu(recording, 0, time=VirtualTime()).info
    assert info.backend == "replay"
    assert info.uuid == "GPU-aaaa"
    assert info.notes[-1] == "replay of run.jsonl, recorded through nvml"


def save(path: Path, readings: list[Reading], energies: list[EnergyReading]) -> Recording:
    with Recorder(path, recorded.gpus()) as recorder:
        for reading in readings:
            recorder.reading(0, reading)
        for energy in energies:
            recorder.energy(0, energy)
    return load(path)


def test_a_hole_in_the_recording_is_no_reading(tmp_path: Path) -> None:
    times = [0.1 * i for i in range(10)] + [9.0, 9.1]
    time = VirtualTime()
    gpu = ReplayGpu(save(tmp_path / "r.jsonl", [Reading(t, power_w=300.0) for t in times], []), 0, time=time)
    time.sleep(1.5)
    assert gpu.read().power_w == 300.0
    time.sleep(3.0)
    assert gpu.read() == Reading(4.5)
    time.sleep(4.55)
    assert gpu.read().power_w == 300.0


def test_a_counter_that_went_back_goes_back_at_once(tmp_path: Path) -> None:
    readings = [Reading(float(t), power_w=100.0) for t in range(6)]
    looks = [
        EnergyReading(0.0, 5000.0),
        EnergyReading(2.0, 5200.0),
        EnergyReading(3.0, 50.0),
        EnergyReading(5.0, 250.0),
    ]
    time = VirtualTime()
    gpu = ReplayGpu(save(tmp_path / "r.jsonl", readings, looks), 0, time=time)
    seen = []
    for _ in range(10):
        seen.append(gpu.energy().energy_j)
        time.sleep(0.5)
    assert seen == [5000, 5050, 5100, 5150, 5200, 5200, 50, 100, 150, 200]


@given(
    powers_w=st.lists(st.floats(1, 700), min_size=2, max_size=30),
    looks=st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1e4)), min_size=1, max_size=6),
)
def test_the_counter_never_goes_back_where_the_recorded_one_did_not(
    powers_w: list[float], looks: list[tuple[float, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    times_s = sorted(time_s for time_s, _ in looks)
    values_j = sorted(energy_j for _, energy_j in looks)
    energies = [EnergyReading(t, e) for t, e in zip(times_s, values_j, strict=True)]
    readings = [Reading(float(i), power_w=power_w) for i, power_w in enumerate(powers_w)]
    time = VirtualTime()
    path = tmp_path_factory.mktemp("replay") / "r.jsonl"
    gpu = ReplayGpu(save(path, readings, energies), 0, time=time)
    last_j = 0.0
    while time.now_s() <= gpu.ends_s:
        energy_j = gpu.energy().energy_j
        assert energy_j >= last_j - 1e-6
        last_j = energy_j
        time.sleep(0.37)


def test_without_a_recorded_counter_there_is_none(tmp_path: Path) -> None:
    gpu = ReplayGpu(save(tmp_path / "r.jsonl", [Reading(0.0, power_w=1.0)], []), 0, time=VirtualTime())
    assert gpu.info.sensors.counter_update_s is None
    with pytest.raises(Unsupported):
        gpu.energy()


def test_a_gpu_that_is_not_in_the_recording_is_an_error(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="none with number 2"):
        ReplayGpu(recording, 2, time=VirtualTime())
    with pytest.raises(BadRecording, match="no reading of GPU 0"):
        ReplayGpu(save(tmp_path / "r.jsonl", [], []), 0, time=VirtualTime())


def test_the_end_is_an_end(recording: Recording) -> None:
    time = VirtualTime()
    gpu = ReplayGpu(recording, 0, time=time)
    time.run_until(gpu.ends_s)
    assert gpu.read().power_w == 500.0
    time.sleep(0.001)
    with pytest.raises(GpuLost, match="is over"):
        gpu.read()
