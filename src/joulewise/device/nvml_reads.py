"""Reading an NVIDIA GPU through NVML with nothing but the binding; ``NvmlGpu`` and ``NvmlControls`` build on it.

``read`` is hot (ten times a second for every GPU of a node): it asks for as little as it can, in calls of about a
microsecond, and for what moves slowly or is only shown (throttle reasons, memory clock, temperature, power limit,
memory in use) once a second. What a GPU or driver lacks is asked for once, then left out: the value is None. The
energy counter is apart, since one call took 3.5 ms on an H200. NVML's milliwatts and millijoules end here.

It knows nothing that NVML does not tell (sensor timing, the catalogue): so it loads only the standard library and
the binding, and the privileged daemon can use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, Literal, Self, TypeVar

from joulewise.core.errors import GpuError, GpuLost, NoGpu, Unsupported
from joulewise.core.measurement import EnergyReading, Reading, Throttle
from joulewise.core.timeline import TimeSource
from joulewise.core.units import joules_from_millijoules, watts_from_milliwatts
from joulewise.device import nvml_library as library
from joulewise.device.nvml_space import AMPERE, or_none
from joulewise.device.vnvml_structs import Group

_log = logging.getLogger("joulewise")

PowerKind = Literal["instant", "plain", "average"]
""""instant": instant and average power apart; "plain": one power, instant; "average": only a 1 s average."""

SLOW_S: Final = 1.0
"""How often ``read`` looks at what moves slowly."""

# nvml.h, nvmlClocksEventReason*. Application clocks (0x2) is also what locked clocks show as.
_THROTTLE: Final = (
    (0x001, Throttle.IDLE),
    (0x002, Throttle.LOCKED),
    (0x004, Throttle.POWER_CAP),
    (0x008, Throttle.HARDWARE),
    (0x010, Throttle.SYNC),
    (0x020, Throttle.HEAT),
    (0x040, Throttle.HEAT),
    (0x080, Throttle.HARDWARE),
    (0x100, Throttle.DISPLAY),
)

_INSTANT_POWER: Final = 186  # NVML_FI_DEV_POWER_INSTANT
_INSTANT_AND_AVERAGE: Final = (_INSTANT_POWER, 185)  # … and NVML_FI_DEV_POWER_AVERAGE
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_UNKNOWN_32 = 0xFFFF_FFFF  # NVML_VALUE_NOT_AVAILABLE
_UNKNOWN_64 = 0xFFFF_FFFF_FFFF_FFFF

Values = dict[str, Any]
_Ask = Callable[[ModuleType, Any], Values]
T = TypeVar("T")


def _watts(power_mw: int) -> float | None:
    """None for the driver's sentinel, and for 0: a GPU that is on draws something."""
    return None if power_mw in (0, _UNKNOWN_32) else watts_from_milliwatts(power_mw)


def _both_powers(nvml: ModuleType, handle: Any) -> Values:
    powers_w: list[float | None] = []
    for field in nvml.nvmlDeviceGetFieldValues(handle, _INSTANT_AND_AVERAGE):
        if field.nvmlReturn in library.LOST:
            raise nvml.NVMLError(field.nvmlReturn)
        powers_w.append(None if field.nvmlReturn else _watts(field.value.uiVal))
    return {"power_w": powers_w[0], "average_power_w": powers_w[1]}


def _plain_power(nvml: ModuleType, handle: Any) -> Values:
    return {"power_w": _watts(nvml.nvmlDeviceGetPowerUsage(handle))}


def _plain_average(nvml: ModuleType, handle: Any) -> Values:
    power_w = _watts(nvml.nvmlDeviceGetPowerUsage(handle))
    return {"power_w": power_w, "average_power_w": power_w}


def _sm_clock(nvml: ModuleType, handle: Any) -> Values:
    return {"sm_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, _SM))}


def _memory_clock(nvml: ModuleType, handle: Any) -> Values:
    return {"memory_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, _MEMORY))}


def _utilization(nvml: ModuleType, handle: Any) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization": min(rates.gpu, 100) / 100, "memory_utilization": min(rates.memory, 100) / 100}


def _temperature(nvml: ModuleType, handle: Any) -> Values:
    return {"temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, _GPU_SENSOR))}


def _throttle(nvml: ModuleType, handle: Any) -> Values:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError_FunctionNotFound:  # drivers before 535 call them throttle reasons
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle": frozenset(reason for bit, reason in _THROTTLE if bits & bit)}


def _limit(nvml: ModuleType, handle: Any) -> Values:
    return {"power_limit_w": _watts(nvml.nvmlDeviceGetEnforcedPowerLimit(handle))}


def _memory(nvml: ModuleType, handle: Any) -> Values:
    return {"memory_used_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).used}


_POWER: Final[Mapping[PowerKind, _Ask]] = {
    "instant": _both_powers,
    "plain": _plain_power,
    "average": _plain_average,
}
_FAST: Final[Mapping[str, _Ask]] = {
    "SM clock": _sm_clock,
    "utilisation": _utilization,
}
_SLOW: Final[Mapping[str, _Ask]] = {
    "throttle reasons": _throttle,
    "memory clock": _memory_clock,
    "temperature": _temperature,
    "power limit": _limit,
    "memory in use": _memory,
}


class NvmlReads:
    """What NVML shows of one GPU, by its UUID. Safe to read from several threads; works on after a fork."""

    def __init__(self, uuid: str) -> None:
        """NoGpu if no GPU has this UUID; NoGpu or MissingPart if there is no NVML."""
        nvml = library.nvml()
        self._nvml = nvml
        self._uuid = uuid
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError as error:
            if error.value in library.LOST:
                raise library.translated(error.value, "handle", uuid) from None
            raise NoGpu(f"no NVIDIA GPU is called {uuid}; see 'joulewise doctor'") from None
        self._handle: Any = handle
        self._generation = library.generation()
        self._time = library.time_source()
        try:
            self._looks = library.looks(nvml.nvmlDeviceGetIndex(handle))
            self.power_kind: PowerKind = power_kind(nvml, handle)
            """How good this GPU's power readings are."""
            self._describe(nvml, handle)
        except nvml.NVMLError as error:
            raise library.translated(error.value, "description", uuid) from None
        self._fast: dict[str, _Ask] = {"power": _POWER[self.power_kind], **_FAST}
        self._slow: dict[str, _Ask] = dict(_SLOW)
        self._slow_values: Values = {}
        self._slow_due_s = -float("inf")

    def _describe(self, nvml: ModuleType, handle: Any) -> None:
        """For those who build on this: ask once what does not change."""

    @classmethod
    def all(cls) -> list[Self]:
        """Every NVIDIA GPU of the machine, in the driver's order; a lost one is left out, and logged.

        NoGpu if there is none, or no driver; MissingPart if the binding is missing.
        """
        nvml = library.nvml()
        gpus: list[Self] = []
        reason = "the driver lists none; in a container, start it with '--gpus all'"
        for index in range(count(nvml)):
            try:
                gpus.append(cls(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))))
            except (GpuError, nvml.NVMLError) as error:
                code = getattr(error, "value", None)
                reason = str(error if code is None else library.translated(code, "name", f"GPU {index}"))
                _log.warning("GPU %d is left out: %s", index, reason)
        if not gpus:
            raise NoGpu(f"NVIDIA: no GPU ({reason})")
        return gpus

    @property
    def time(self) -> TimeSource:
        """Wall time, or the simulator's."""
        return self._time

    def read(self) -> Reading:
        """Power, clocks, utilisation, temperature, throttle reasons; about ten calls of a microsecond.

        GpuLost if the GPU or its driver went away, or if nothing at all can be read.
        """
        nvml, handle = self.session()
        if not self._fast:
            raise GpuLost(f"{self._uuid} gives no values at all; see 'joulewise doctor'")
        values, time_s, _ = self.dated(lambda: self._ask(nvml, handle, self._fast))
        if not values:
            raise GpuLost(f"{self._uuid} answers every question with an error; see 'nvidia-smi'")
        now_s = self._time.now_s()  # what a simulator that is late has shown may be older
        if now_s >= self._slow_due_s:
            self._slow_values = self._ask(nvml, handle, self._slow)
            self._slow_due_s = now_s + SLOW_S
        return Reading(time_s, **values, **self._slow_values)

    def energy(self) -> EnergyReading:
        """The energy counter since the driver was loaded. Unsupported before Volta, GpuLost if it is gone."""
        nvml, handle = self.session()
        try:
            energy_mj, from_s, to_s = self.dated(
                lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle), Group.ENERGY_COUNTER
            )
        except nvml.NVMLError as error:
            raise library.translated(error.value, "energy counter", self._uuid) from None
        if energy_mj == _UNKNOWN_64:
            raise Unsupported(f"the energy counter of {self._uuid} shows nothing; joulewise integrates its power")
        return EnergyReading(from_s, joules_from_millijoules(energy_mj), to_s - from_s)

    def dated(self, ask: Callable[[], T], cost: Group | None = None) -> tuple[T, float, float]:
        """What ``ask`` reads of this GPU, and from when to when: the call's begin and end by the machine's clock, or in
        simulated time the moment that was seen (``vnvml_looks``)."""
        if self._looks is not None:
            return self._looks.dated(ask, cost)
        from_s = self._time.now_s()
        value = ask()
        return value, from_s, self._time.now_s()

    def processes(self) -> tuple[int, ...] | None:
        """Pids with a context on this GPU; None where the driver cannot tell. Takes milliseconds."""
        nvml, handle = self.session()
        pids: set[int] = set()
        try:
            for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
                pids.update(process.pid for process in ask(handle))
        except nvml.NVMLError as error:
            if error.value in library.LOST:
                raise library.translated(error.value, "process list", self._uuid) from None
            return None
        return tuple(sorted(pids))

    def persistence(self) -> bool | None:
        """Whether the driver stays loaded, and settings with it, while nobody uses the GPU; None if unknown."""
        nvml, handle = self.session()
        try:
            return bool(nvml.nvmlDeviceGetPersistenceMode(handle))
        except nvml.NVMLError:
            return None

    def session(self) -> tuple[ModuleType, Any]:
        """The binding and this GPU's handle, both good in this process. GpuLost if they cannot be had any more."""
        if self._generation == library.generation():
            return self._nvml, self._handle
        try:
            nvml = library.nvml()
        except NoGpu as error:
            raise GpuLost(f"{self._uuid} is lost: {error}") from None
        try:
            self._handle = nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except nvml.NVMLError:
            raise GpuLost(f"{self._uuid} is lost: the driver does not list it any more") from None
        self._nvml, self._generation = nvml, library.generation()
        return nvml, self._handle

    def _ask(self, nvml: ModuleType, handle: Any, asks: dict[str, _Ask]) -> Values:
        """Everything that answers now. What is unsupported is dropped from ``asks`` for good."""
        values: Values = {}
        for name, ask in list(asks.items()):
            try:
                values.update(ask(nvml, handle))
            except nvml.NVMLError as error:
                if error.value in library.LOST:
                    raise library.translated(error.value, name, self._uuid) from None
                if error.value in library.UNSUPPORTED:
                    asks.pop(name, None)
        return values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._uuid!r})"


def count(nvml: ModuleType) -> int:
    """How many GPUs the driver lists. GpuLost if it does not answer."""
    try:
        return int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        raise library.translated(error.value, "number of GPUs", "the machine") from None


def power_kind(nvml: ModuleType, handle: Any) -> PowerKind:
    """The best power that the driver gives of this GPU."""
    fields = or_none(nvml, nvml.nvmlDeviceGetFieldValues, handle, [_INSTANT_POWER])
    if fields is not None and fields[0].nvmlReturn == 0:
        return "instant"
    architecture = or_none(nvml, nvml.nvmlDeviceGetArchitecture, handle)
    # nvml.h on nvmlDeviceGetPowerUsage: a 1 s average since Ampere, except on GA100.
    if architecture is not None and architecture >= AMPERE and not is_ga100(nvml.nvmlDeviceGetName(handle)):
        return "average"
    return "plain"


def is_ga100(name: str) -> bool:
    """Whether a GPU of this name has the GA100 chip, whose plain power is instant."""
    return any(model in name for model in ("A100", "A30", "A800"))
