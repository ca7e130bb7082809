"""The suite must fail on GPUs that are wrong in the ways in which GPUs have been wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from joulewise.core.errors import Unsupported
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource, VirtualTime
from joulewise.device.gpu import GpuInfo
from joulewise.testing import GpuConformance, LostGpuConformance

Suite = Callable[["MadeUpGpu"], None]
suite = GpuConformance()

INFO = GpuInfo(
    uuid="GPU-1",
    name="Made up",
    index=0,
    backend="virtual",
    space=Space({"power_limit_w": Choices(100, 500), "sm_mhz": Choices(200, 1500, 15)}),
    idle_power_w=40.0,
    default_limit_w=500.0,
    memory_bytes=2**34,
)


class MadeUpGpu:
    """300 W for ever, and right in everything; made wrong by replacing a part."""

    def __init__(self) -> None:
        self.clock = VirtualTime(10.0)
        self.told_info = INFO
        self.spoil_reading: Callable[[Reading], Reading] = lambda reading: reading
        self.spoil_energy: Callable[[EnergyReading], EnergyReading] = lambda energy: energy
        self.pids: tuple[int, ...] | None = (4711,)

    @property
    def info(self) -> GpuInfo:
        return self.told_info

    @property
    def time(self) -> TimeSource:
        return self.clock

    def read(self) -> Reading:
        return self.spoil_reading(
            Reading(
                self.clock.now_s(),
                power_w=300.0,
                sm_mhz=1200.0,
                utilization=0.9,
                temperature_c=60.0,
                memory_used_bytes=2**30,
                throttle=frozenset(),
            )
        )

    def energy(self) -> EnergyReading:
        if self.told_info.sensors.counter_update_s is None:
            raise Unsupported("none")
        now_s = self.clock.now_s()
        return self.spoil_energy(EnergyReading(now_s, 300.0 * now_s))

    def processes(self) -> tuple[int, ...] | None:
        return self.pids


class TestMadeUpGpu(GpuConformance):
    @pytest.fixture
    def gpu(self) -> MadeUpGpu:
        return MadeUpGpu()


class TestMadeUpGpuWithoutCounter(GpuConformance):
    @pytest.fixture
    def gpu(self) -> MadeUpGpu:
        gpu = MadeUpGpu()
        gpu.told_info = replace(INFO, sensors=SensorTiming(counter_update_s=None))
        return gpu


def refused(test: Callable[..., None], gpu: MadeUpGpu) -> None:
    with pytest.raises(AssertionError):
        test(gpu)


@pytest.mark.parametrize(
    "wrong",
    [
        {"power_w": 300_000.0},  # milliwatts
        {"power_w": 0.0},  # unknown as zero
        {"power_w": math.nan},
        {"power_w": -1.0},
        {"power_limit_w": 4294967.295},  # NVML's "not available", divided by 1000
        {"average_power_w": math.inf},
        {"utilization": 90.0},  # percent
        {"utilization": -0.1},
        {"sm_mhz": 1.2e9},  # hertz
        {"temperature_c": 60_000.0},  # thousandths
        {"memory_used_bytes": 2**40},
        {"throttle": frozenset({"power cap of the month"})},
    ],
)
def test_a_reading_with_a_wrong_unit_or_a_false_zero_fails(wrong: dict[str, object]) -> None:
    gpu = MadeUpGpu()
    gpu.spoil_reading = lambda reading: replace(reading, **wrong)  # type: ignore[arg-type]
    refused(suite.test_a_reading_is_finite_or_none_and_in_its_units, gpu)


def test_readings_that_stand_still_or_come_from_another_clock_fail() -> None:
    gpu = MadeUpGpu()
    gpu.spoil_reading = lambda reading: replace(reading, time_s=10.0)
    refused(suite.test_readings_are_stamped_with_the_time_of_the_call, gpu)
    gpu.spoil_reading = lambda reading: replace(reading, time_s=reading.time_s + 1.7e9)
    refused(suite.test_readings_are_stamped_with_the_time_of_the_call, gpu)


def test_a_counter_that_goes_back_fails() -> None:
    gpu = MadeUpGpu()
    gpu.spoil_energy = lambda energy: replace(energy, energy_j=1000 - energy.energy_j / 1000)
    refused(suite.test_the_counter_never_goes_back, gpu)


def test_a_counter_in_another_unit_than_power_fails() -> None:
    gpu = MadeUpGpu()
    for factor in (1e-3, 0.8, 1.3, 1e3):
        gpu.spoil_energy = lambda energy, factor=factor: replace(  # type: ignore[misc]
            energy, energy_j=energy.energy_j * factor
        )
        refused(suite.test_counter_and_power_tell_the_same_energy, gpu)


def test_a_frozen_counter_fails() -> None:
    gpu = MadeUpGpu()
    gpu.spoil_energy = lambda energy: replace(energy, energy_j=5.0)
    refused(suite.test_counter_and_power_tell_the_same_energy, gpu)


def test_a_missing_counter_that_was_promised_fails() -> None:
    gpu = MadeUpGpu()

    def none(energy: EnergyReading) -> EnergyReading:
        raise Unsupported("none")

    gpu.spoil_energy = none
    with pytest.raises(Unsupported):
        suite.test_the_counter_is_there_exactly_if_its_timing_says_so(gpu)


@pytest.mark.parametrize(
    ("test", "info"),
    [
        (suite.test_its_info_names_it, replace(INFO, uuid="")),
        (suite.test_its_info_names_it, replace(INFO, name=" padded ")),
        (suite.test_its_info_names_it, replace(INFO, backend="homemade")),
        (suite.test_its_notes_are_one_line_each, replace(INFO, notes=("two\nlines",))),
        (suite.test_its_powers_and_memory_are_in_watts_and_bytes, replace(INFO, default_limit_w=500_000.0)),
        (suite.test_its_powers_and_memory_are_in_watts_and_bytes, replace(INFO, memory_bytes=16)),
        (
            suite.test_its_space_holds_known_knobs_with_sane_ranges,
            replace(INFO, space=Space({"fan_rpm": Choices(1, 2)})),
        ),
        (
            suite.test_its_space_holds_known_knobs_with_sane_ranges,
            replace(INFO, space=Space({"power_limit_w": Choices(100, 400)})),
        ),
        (suite.test_its_sensor_timing_is_in_seconds, replace(INFO, sensors=SensorTiming(power_update_s=100.0))),
    ],
)
def test_an_info_that_makes_no_sense_fails(test: Suite, info: GpuInfo) -> None:
    gpu = MadeUpGpu()
    gpu.told_info = info
    refused(test, gpu)


def test_an_info_that_changes_fails() -> None:
    gpu = MadeUpGpu()

    def drift(reading: Reading) -> Reading:
        gpu.told_info = replace(gpu.told_info, index=gpu.told_info.index + 1)
        return reading

    gpu.spoil_reading = drift
    refused(suite.test_its_info_does_not_change, gpu)


def test_pids_that_are_none_fail() -> None:
    gpu = MadeUpGpu()
    gpu.pids = (0,)
    refused(suite.test_processes_are_pids_or_unknown, gpu)


def test_a_lost_gpu_that_shows_frozen_values_fails() -> None:
    with pytest.raises(pytest.fail.Exception):
        LostGpuConformance().test_reading_a_lost_gpu_says_so_every_time(MadeUpGpu())
    with pytest.raises(pytest.fail.Exception):
        LostGpuConformance().test_the_counter_of_a_lost_gpu_says_so_every_time(MadeUpGpu())
