"""A recording made for tests: two GPUs, ten seconds, a power that steps, a counter looked at once a second."""

from __future__ import annotations

from pathlib import Path

from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming, Throttle
from joulewise.core.timeline import TimeSource, VirtualTime
from joulewise.device.gpu import Gpu, GpuInfo
from joulewise.device.recording import Recorder

INFOS = (
    GpuInfo(
        uuid="GPU-aaaa",
        name="NVIDIA H200",
        index=0,
        backend="nvml",
        space=Space({"sm_mhz": Choices(345, 1980, 15), "memory_mhz": Choices.of([2201.0, 3201.0])}),
        sensors=SensorTiming(counter_call_s=0.0035, average_window_s=None),
        default_limit_w=700.0,
        memory_bytes=150 * 2**30,
        pci_bus_id="00000000:19:00.0",
        driver="580.95.05",
        notes=("a note",),
    ),
    GpuInfo(uuid="GPU-bbbb", name="NVIDIA H200", index=1, backend="nvml"),
)


class InfoOnly:
    """A GPU that only has a name and a time; enough to open a recorder."""

    def __init__(self, info: GpuInfo, time: TimeSource | None = None) -> None:
        self._info = info
        self._time = time or VirtualTime(1000.0)

    @property
    def info(self) -> GpuInfo:
        return self._info

    @property
    def time(self) -> TimeSource:
        return self._time

    def read(self) -> Reading:
        return Reading(self._time.now_s())

    def energy(self) -> EnergyReading:
        return EnergyReading(self._time.now_s(), 0.0)

    def processes(self) -> None:
        return


def gpus() -> list[Gpu]:
    return [InfoOnly(info) for info in INFOS]


def power_w(index: int, time_s: float) -> float:
    """200 W and 500 W by turns of 2 s; the second GPU draws 50 W more."""
    return (200.0 if int(time_s / 2) % 2 == 0 else 500.0) + 50.0 * index


def energy_j(index: int, time_s: float) -> float:
    """The exact integral of ``power_w`` from 0, as if the counter started at 5 kJ."""
    whole = int(time_s / 2)
    done = sum(2 * power_w(index, 2.0 * turn) for turn in range(whole))
    return 5000.0 + done + (time_s - 2 * whole) * power_w(index, time_s)


def write(path: Path, *, duration_s: float = 10.0, counter: bool = True) -> None:
    """Readings at 10 Hz, the counter at 1 Hz, times starting at 1000 s."""
    with Recorder(path, gpus()) as recorder:
        for tick in range(round(duration_s * 10) + 1):
            time_s = tick / 10
            for index in range(2):
                if counter and tick % 10 == 0:
                    recorder.energy(index, EnergyReading(1000 + time_s, energy_j(index, time_s), 0.0035))
                recorder.reading(
                    index,
                    Reading(
                        1000 + time_s,
                        power_w=power_w(index, time_s),
                        sm_mhz=1710,
                        utilization=0.5,
                        memory_used_bytes=2**30,
                        throttle=frozenset({Throttle.POWER_CAP}),
                    ),
                )
        recorder.window("epoch", {"duration_s": duration_s, "energy_j": 3500.0})
