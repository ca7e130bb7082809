# ruff: noqa: D102 (the names of the tests are their sentences)
"""What every ``Gpu`` must do, as tests: inherit ``GpuConformance`` and give it a ``gpu`` fixture.

The suite reads only and waits on the GPU's own time, so that a virtual GPU passes in milliseconds and a real one
in seconds. ``LostGpuConformance`` is apart because not every GPU can be lost on demand.
"""

from __future__ import annotations

import math
import threading
from dataclasses import fields

import pytest

from joulewise.core.errors import GpuLost, Unsupported
from joulewise.core.knob import KNOBS
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming, Throttle
from joulewise.device.gpu import Gpu, GpuInfo

BACKENDS = ("nvml", "amd", "virtual", "replay", "remote")

# Wide on purpose: a value outside is in a wrong unit, not from an unusual GPU.
MOST_POWER_W = 5_000.0
MOST_CLOCK_MHZ = 20_000.0
MOST_TEMPERATURE_C = 150.0


class GpuConformance:
    """Inherit and override ``gpu``. The two numbers may be widened where an instrument is known to be coarse."""

    window_s = 4.0
    """How long counter and power are compared, in the GPU's time."""
    agreement = 0.10
    """How far counter and summed power may be apart over that window, beyond what their timing explains."""

    @pytest.fixture
    def gpu(self) -> Gpu:
        """The GPU under test, up and readable."""
        raise NotImplementedError("override the fixture 'gpu'")

    def test_it_is_a_gpu(self, gpu: Gpu) -> None:
        assert isinstance(gpu, Gpu)
        assert isinstance(gpu.info, GpuInfo)

    def test_its_info_names_it(self, gpu: Gpu) -> None:
        info = gpu.info
        assert isinstance(info.uuid, str)
        assert info.uuid == info.uuid.strip() != ""
        assert info.name == info.name.strip() != ""
        assert info.index >= 0
        assert info.backend in BACKENDS

    def test_its_info_does_not_change(self, gpu: Gpu) -> None:
        before = gpu.info
        gpu.read()
        gpu.time.sleep(0.05)
        gpu.read()
        assert gpu.info == before

    def test_its_notes_are_one_line_each(self, gpu: Gpu) -> None:
        for note in gpu.info.notes:
            assert note.strip()
            assert "\n" not in note

    def test_its_powers_and_memory_are_in_watts_and_bytes(self, gpu: Gpu) -> None:
        info = gpu.info
        for power_w in (info.idle_power_w, info.default_limit_w):
            assert power_w is None or 0 < power_w < MOST_POWER_W
        if info.idle_power_w is not None and info.default_limit_w is not None:
            assert info.idle_power_w < info.default_limit_w
        assert info.memory_bytes is None or info.memory_bytes > 2**28

    def test_its_space_holds_known_knobs_with_sane_ranges(self, gpu: Gpu) -> None:
        info = gpu.info
        assert set(info.space.knobs) <= {knob.name for knob in KNOBS}
        for name, choices in info.space.knobs.items():
            assert 0 < choices.low <= choices.high
            assert choices.high < (MOST_POWER_W if name.endswith("_w") else MOST_CLOCK_MHZ)
            assert choices.snap(choices.high) == choices.high
            assert choices.low in choices
        limits = info.space.knobs.get("power_limit_w")
        if limits is not None and info.default_limit_w is not None:
            assert limits.low <= info.default_limit_w <= limits.high

    def test_its_sensor_timing_is_in_seconds(self, gpu: Gpu) -> None:
        sensors = gpu.info.sensors
        assert isinstance(sensors, SensorTiming)
        for field in fields(sensors):
            value = getattr(sensors, field.name)
            assert value is None or (math.isfinite(value) and 0 <= value <= 10), field.name
        assert sensors.power_update_s > 0
        assert 0 < sensors.power_duty <= 1

    def test_a_reading_is_finite_or_none_and_in_its_units(self, gpu: Gpu) -> None:
        for _ in range(5):
            check_reading(gpu.read(), gpu.info)
            gpu.time.sleep(0.02)

    def test_there_is_power_or_a_counter(self, gpu: Gpu) -> None:
        if gpu.read().power_w is None:
            assert gpu.energy().energy_j >= 0

    def test_readings_are_stamped_with_the_time_of_the_call(self, gpu: Gpu) -> None:
        last_s = -math.inf
        for _ in range(20):
            before_s = gpu.time.now_s()
            reading = gpu.read()
            after_s = gpu.time.now_s()
            assert before_s <= reading.time_s <= after_s
            assert reading.time_s >= last_s
            last_s = reading.time_s
            gpu.time.sleep(0.003)

    def test_the_counter_is_there_exactly_if_its_timing_says_so(self, gpu: Gpu) -> None:
        if gpu.info.sensors.counter_update_s is None:
            with pytest.raises(Unsupported):
                gpu.energy()
        else:
            assert isinstance(gpu.energy(), EnergyReading)

    def test_the_counter_never_goes_back(self, gpu: Gpu) -> None:
        _need_counter(gpu)
        last = gpu.energy()
        for _ in range(15):
            gpu.time.sleep(0.03)
            before_s = gpu.time.now_s()
            energy = gpu.energy()
            assert before_s <= energy.time_s <= gpu.time.now_s()
            assert 0 <= energy.call_s < 10
            assert math.isfinite(energy.energy_j)
            assert energy.energy_j >= last.energy_j >= 0
            last = energy

    def test_counter_and_power_tell_the_same_energy(self, gpu: Gpu) -> None:
        _need_counter(gpu)
        first = reading = gpu.read()
        if reading.power_w is None:
            pytest.skip("there is no power to compare the counter with")
        start = gpu.energy()
        summed_j = peak_w = 0.0
        while gpu.time.now_s() < first.time_s + self.window_s:
            gpu.time.sleep(gpu.info.sensors.power_update_s / 2)
            now = gpu.read()
            assert reading.power_w is not None
            summed_j += reading.power_w * (now.time_s - reading.time_s)
            peak_w = max(peak_w, reading.power_w)
            reading = now
        end = gpu.energy()
        sensors = gpu.info.sensors
        # Each edge can be off by one tick of either instrument, and by the length of the counter's call.
        edges_s = 2 * ((sensors.counter_update_s or 0) + sensors.power_update_s + start.call_s + end.call_s)
        counted_j = end.energy_j - start.energy_j
        assert abs(counted_j - summed_j) <= edges_s * peak_w + self.agreement * summed_j

    def test_processes_are_pids_or_unknown(self, gpu: Gpu) -> None:
        processes = gpu.processes()
        assert processes is None or all(isinstance(pid, int) and pid > 0 for pid in processes)

    def test_it_can_be_read_from_another_thread(self, gpu: Gpu) -> None:
        seen: list[Reading] = []
        thread = threading.Thread(target=lambda: seen.append(gpu.read()))
        thread.start()
        thread.join(timeout=30)
        (reading,) = seen
        check_reading(reading, gpu.info)


class LostGpuConformance:
    """What a GPU that is gone must do. Inherit and override ``lost_gpu``."""

    @pytest.fixture
    def lost_gpu(self) -> Gpu:
        """A GPU that was up and is gone: fell off the bus, driver unloaded, simulator dead, recording over."""
        raise NotImplementedError("override the fixture 'lost_gpu'")

    def test_reading_a_lost_gpu_says_so_every_time(self, lost_gpu: Gpu) -> None:
        for _ in range(3):
            with pytest.raises(GpuLost) as caught:
                lost_gpu.read()
            assert "\n" not in str(caught.value)

    def test_the_counter_of_a_lost_gpu_says_so_every_time(self, lost_gpu: Gpu) -> None:
        if lost_gpu.info.sensors.counter_update_s is None:
            pytest.skip("this GPU has no energy counter")
        for _ in range(3):
            with pytest.raises(GpuLost):
                lost_gpu.energy()

    def test_a_lost_gpu_still_has_a_name(self, lost_gpu: Gpu) -> None:
        assert lost_gpu.info.uuid


def check_reading(reading: Reading, info: GpuInfo) -> None:
    """Assert that every value is finite and in its unit, or None."""
    for field in fields(reading):
        value = getattr(reading, field.name)
        if isinstance(value, (int, float)):
            assert math.isfinite(value), field.name
    # A GPU that is on draws something: 0 W would be an unknown in disguise.
    for power_w in (reading.power_w, reading.average_power_w, reading.power_limit_w):
        assert power_w is None or 0 < power_w < MOST_POWER_W
    for clock_mhz in (reading.sm_mhz, reading.memory_mhz):
        assert clock_mhz is None or 0 <= clock_mhz < MOST_CLOCK_MHZ
    for share in (reading.utilization, reading.memory_utilization):
        assert share is None or 0 <= share <= 1
    assert reading.temperature_c is None or -50 < reading.temperature_c < MOST_TEMPERATURE_C
    if reading.memory_used_bytes is not None and info.memory_bytes is not None:
        assert 0 <= reading.memory_used_bytes <= info.memory_bytes
    assert reading.throttle is None or all(isinstance(reason, Throttle) for reason in reading.throttle)


def _need_counter(gpu: Gpu) -> None:
    if gpu.info.sensors.counter_update_s is None:
        pytest.skip("this GPU has no energy counter")
