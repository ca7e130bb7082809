"""AMD GPUs through AMD SMI, reading only. Experimental: written from its documentation, not yet run on hardware.

``amdsmi`` is imported on first use, and its manners are contained: without ROCm its import prints to stdout and raises
KeyError. ROCm's own copy is preferred to an installed wheel, since the interface drifts with each ROCm. The energy
counter is wrong on some parts; checking it against integrated power is the sampler's business.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from joulewise.core.errors import GpuLost, MissingPart, NoGpu, Unsupported
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.core.units import joules_from_microjoules
from joulewise.device.gpu import GpuInfo

EXPERIMENTAL: Final = "experimental: the AMD backend has not run on hardware yet; compare its joules with another meter"

# amdsmi.h, amdsmi_status_t: not found, not initialised, driver not loaded, restart failed.
_LOST: Final = frozenset({31, 32, 34, 54})
_UNSUPPORTED: Final = frozenset({2, 3})

Values = dict[str, Any]


@dataclass(slots=True)
class _Library:
    """AMD SMI as loaded in this process."""

    smi: ModuleType | None = None


_loaded = _Library()


class AmdGpu:
    """One AMD GPU. ``smi`` is the ``amdsmi`` module, open; ``handle`` one of its processors."""

    def __init__(self, smi: Any, handle: Any, index: int, *, time: TimeSource | None = None) -> None:
        self._smi = smi
        self._handle = handle
        self._time = time or WallTime()
        self._asks: dict[str, Callable[[], Values]] = {
            "power": self._power,
            "SM clock": lambda: {"sm_mhz": self._clock(smi.AmdSmiClkType.GFX)},
            "memory clock": lambda: {"memory_mhz": self._clock(smi.AmdSmiClkType.MEM)},
            "utilisation": self._utilization,
            "temperature": self._temperature,
            "memory": self._memory,
            "limit": self._limit,
        }
        self._info = self._describe(index)

    @classmethod
    def all(cls) -> list[AmdGpu]:
        """Every AMD GPU of the machine. MissingPart without amdsmi or ROCm, NoGpu if there is no GPU."""
        smi = _open()
        try:
            handles = smi.amdsmi_get_processor_handles()
        except smi.AmdSmiException as error:
            raise NoGpu(f"AMD: the driver lists no GPU ({_brief(error)})") from None
        if not handles:
            raise NoGpu("AMD: the driver lists no GPU")
        return [cls(smi, handle, index) for index, handle in enumerate(handles)]

    @property
    def info(self) -> GpuInfo:
        """What does not change."""
        return self._info

    @property
    def time(self) -> TimeSource:
        """Wall time."""
        return self._time

    def read(self) -> Reading:
        """Power, clocks, utilisation, temperature. GpuLost if the GPU or its driver went away."""
        time_s = self._time.now_s()
        values: Values = {}
        for name, ask in list(self._asks.items()):
            try:
                values |= ask()
            except self._smi.AmdSmiException as error:
                code = getattr(error, "err_code", None)
                if code in _LOST:
                    raise GpuLost(f"{self._info.uuid} is lost: {_brief(error)}; see 'dmesg'") from None
                if code in _UNSUPPORTED:
                    self._asks.pop(name, None)
        if not values:
            raise GpuLost(f"{self._info.uuid} answers every question with an error; see 'amd-smi'")
        return Reading(time_s, **values)

    def energy(self) -> EnergyReading:
        """The energy accumulator. Unsupported where there is none."""
        start_s = self._time.now_s()
        try:
            count = self._smi.amdsmi_get_energy_count(self._handle)
        except self._smi.AmdSmiException as error:
            if getattr(error, "err_code", None) in _LOST:
                raise GpuLost(f"{self._info.uuid} is lost: {_brief(error)}; see 'dmesg'") from None
            raise Unsupported(f"{self._info.uuid} has no energy counter ({_brief(error)})") from None
        steps = _number(count.get("energy_accumulator", count.get("power")))  # "power" before ROCm 6
        step_uj = _number(count.get("counter_resolution"))
        if steps is None or not step_uj:
            raise Unsupported(f"the energy counter of {self._info.uuid} shows nothing; joulewise integrates its power")
        return EnergyReading(start_s, joules_from_microjoules(steps * step_uj), self._time.now_s() - start_s)

    def processes(self) -> tuple[int, ...] | None:
        """Pids with work on this GPU; None where the driver cannot tell."""
        try:
            processes = self._smi.amdsmi_get_gpu_process_list(self._handle)
        except self._smi.AmdSmiException:
            return None
        return tuple(sorted({int(process["pid"]) for process in processes if process["pid"] > 0}))

    def _describe(self, index: int) -> GpuInfo:
        asic = self._or_empty("amdsmi_get_gpu_asic_info")
        caps = self._caps()
        low_w, high_w = _cap_w(caps.get("min_power_cap")), _cap_w(caps.get("max_power_cap"))
        vram = self._or_empty("amdsmi_get_gpu_vram_usage")
        knobs = {}
        if low_w and high_w and low_w <= high_w:
            knobs["power_limit_w"] = Choices(low_w, high_w)
        has_counter = bool(self._or_empty("amdsmi_get_energy_count").get("counter_resolution"))
        serial = _text(asic.get("asic_serial"))
        bus = self._bus_id()
        return GpuInfo(
            # The name that ROCR_VISIBLE_DEVICES takes: GPU- and the serial number in hexadecimal digits.
            uuid=f"GPU-{serial.removeprefix('0x').lower()}" if serial else f"AMD-{bus or index}",
            name=_text(asic.get("market_name")) or "AMD GPU",
            index=index,
            backend="amd",
            space=Space(knobs),
            sensors=SensorTiming(counter_update_s=SensorTiming().counter_update_s if has_counter else None),
            default_limit_w=_cap_w(caps.get("default_power_cap")),
            memory_bytes=_bytes(vram.get("vram_total")),
            pci_bus_id=bus,
            driver=_text(self._or_empty("amdsmi_get_gpu_driver_info").get("driver_version")),
            notes=(EXPERIMENTAL,),
        )

    def _power(self) -> Values:
        power = self._smi.amdsmi_get_power_info(self._handle)
        # MI300 and newer give current power; older cards give an average only.
        now_w, average_w = (_watts(power.get(f"{kind}_socket_power")) for kind in ("current", "average"))
        return {"power_w": now_w if now_w is not None else average_w, "average_power_w": average_w}

    def _clock(self, kind: Any) -> float | None:
        clock = self._smi.amdsmi_get_clock_info(self._handle, kind)
        return _number(clock.get("clk", clock.get("cur_clk")))  # "cur_clk" before ROCm 6

    def _utilization(self) -> Values:
        activity = self._smi.amdsmi_get_gpu_activity(self._handle)
        busy, memory = _number(activity.get("gfx_activity")), _number(activity.get("umc_activity"))
        return {
            "utilization": None if busy is None else min(busy, 100.0) / 100,
            "memory_utilization": None if memory is None else min(memory, 100.0) / 100,
        }

    def _temperature(self) -> Values:
        sensor, now = self._smi.AmdSmiTemperatureType.HOTSPOT, self._smi.AmdSmiTemperatureMetric.CURRENT
        degrees = _number(self._smi.amdsmi_get_temp_metric(self._handle, sensor, now))
        # Some releases answer in thousandths of a degree.
        return {"temperature_c": degrees / 1000 if degrees is not None and degrees > 1000 else degrees}

    def _memory(self) -> Values:
        return {"memory_used_bytes": _bytes(self._smi.amdsmi_get_gpu_vram_usage(self._handle).get("vram_used"))}

    def _limit(self) -> Values:
        return {"power_limit_w": _cap_w(self._smi.amdsmi_get_power_cap_info(self._handle).get("power_cap"))}

    def _caps(self) -> Mapping[str, Any]:
        return self._or_empty("amdsmi_get_power_cap_info")

    def _bus_id(self) -> str | None:
        try:
            return _text(self._smi.amdsmi_get_gpu_device_bdf(self._handle))
        except self._smi.AmdSmiException:
            return None

    def _or_empty(self, function: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = getattr(self._smi, function)(self._handle)
        except self._smi.AmdSmiException:
            return {}
        return answer

    def __repr__(self) -> str:
        return f"AmdGpu({self._info.uuid!r})"


def _open() -> ModuleType:
    """AMD SMI, imported and initialised once. MissingPart says what is missing."""
    if _loaded.smi is None:
        try:
            with _rocm_first(), contextlib.redirect_stdout(io.StringIO()):
                smi = importlib.import_module("amdsmi")
        except ModuleNotFoundError:
            raise MissingPart("AMD: amdsmi is not installed; with ROCm: 'pip install joulewise[amd]'") from None
        except Exception as error:  # whatever its import does without ROCm: KeyError, OSError, AttributeError
            raise MissingPart(f"AMD: amdsmi finds no ROCm library ({error!r}); install ROCm") from None
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            raise NoGpu(f"AMD: no driver here ({_brief(error)})") from None
        _loaded.smi = smi
    return _loaded.smi


@contextlib.contextmanager
def _rocm_first() -> Iterator[None]:
    """Let ROCm's own copy of the binding be found before an installed one."""
    directory = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "share" / "amd_smi"
    found = directory.is_dir()
    if found:
        sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        if found:
            sys.path.remove(str(directory))


def _number(value: object) -> float | None:
    """None for "N/A" and for all ones, in the widths that AMD SMI uses as "not available"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return None if value in (0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF) else float(value)


def _watts(value: object) -> float | None:
    """None for 0 too: a GPU that is on draws something."""
    return _number(value) or None


def _cap_w(value: object) -> float | None:
    """A power cap in W; AMD SMI gives microwatts on bare metal and watts elsewhere, and no GPU draws 10 kW."""
    number = _watts(value)
    return number / 1e6 if number is not None and number > 10_000 else number


def _bytes(megabytes: object) -> int | None:
    number = _number(megabytes)
    return None if number is None else int(number * 2**20)


def _text(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() not in ("", "N/A") else None


def _brief(error: Exception) -> str:
    """AMD SMI's words on one line."""
    return " ".join(str(error).split())
