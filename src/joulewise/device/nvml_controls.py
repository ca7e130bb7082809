"""An NVIDIA GPU's knobs through NVML. Root only: the driver refuses others (NotPermitted).

Standard library and the binding, so that the privileged daemon can load it. Locked clocks have no getter in NVML; a
power limit has two, for what was requested and for what is in force.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from joulewise.core.errors import GpuError, OutOfRange, Unsupported
from joulewise.core.knob import Space
from joulewise.core.units import milliwatts_from_watts, watts_from_milliwatts
from joulewise.device import locks
from joulewise.device import nvml_library as library
from joulewise.device.controls import LIMIT
from joulewise.device.nvml_reads import NvmlReads
from joulewise.device.nvml_space import notes_on, or_none, space_of

_INVALID_ARGUMENT: Final = 2  # nvml.h, nvmlReturn_t: a setter's word for "outside the range"


class NvmlControls(NvmlReads):
    """One NVIDIA GPU, by its UUID, to be turned by one thread at a time."""

    name: str
    space: Space
    default_limit_w: float | None
    notes: tuple[str, ...]
    index: int
    driver: str | None

    def _describe(self, nvml: ModuleType, handle: Any) -> None:
        self.name = nvml.nvmlDeviceGetName(handle)
        self.index = nvml.nvmlDeviceGetIndex(handle)
        self.driver = or_none(nvml, nvml.nvmlSystemGetDriverVersion)
        self.space = space_of(nvml, handle, or_none(nvml, nvml.nvmlDeviceGetArchitecture, handle))
        default_mw = or_none(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        self.default_limit_w = watts_from_milliwatts(default_mw) if default_mw else None
        self.notes = tuple(notes_on(nvml, handle))

    @property
    def uuid(self) -> str:
        """The GPU's name for good."""
        return self._uuid

    @property
    def locks(self) -> Path | None:
        """One place for this machine's GPUs, another for a simulator's."""
        return locks.folder()

    def value(self, knob: str) -> float | None:
        """The requested limit; None for clocks, and where there is no limit to read."""
        if knob != LIMIT:
            return None
        nvml, handle = self.session()
        try:
            return watts_from_milliwatts(nvml.nvmlDeviceGetPowerManagementLimit(handle))
        except nvml.NVMLError as error:
            if error.value in library.UNSUPPORTED:
                return None
            raise library.translated(error.value, "power limit", self._uuid) from None

    def exact(self, knob: str, value: float) -> float:
        """Limits are whole milliwatts to NVML, clocks whole megahertz."""
        return watts_from_milliwatts(milliwatts_from_watts(value)) if knob == LIMIT else float(round(value))

    def enforced_limit_w(self) -> float | None:
        """The limit in force: the lowest of everybody's."""
        nvml, handle = self.session()
        try:
            return watts_from_milliwatts(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) or None
        except nvml.NVMLError as error:
            if error.value in library.LOST:
                raise library.translated(error.value, "power limit in force", self._uuid) from None
            return None

    def write(self, knob: str, value: float) -> None:
        """Set the limit, or lock a clock into [lowest supported, value]."""
        nvml, handle = self.session()
        choices = self.space.knobs.get(knob)
        if choices is None:
            raise Unsupported(f"{knob} cannot be set on {self._uuid} ({self.name}); see 'joulewise doctor'")
        try:
            if knob == LIMIT:
                nvml.nvmlDeviceSetPowerManagementLimit(handle, milliwatts_from_watts(value))
            elif knob == "sm_mhz":
                nvml.nvmlDeviceSetGpuLockedClocks(handle, round(choices.low), round(value))
            else:
                nvml.nvmlDeviceSetMemoryLockedClocks(handle, round(choices.low), round(value))
        except nvml.NVMLError as error:
            raise self._refused(error.value, knob, value) from None

    def reset(self, knob: str) -> None:
        """The limit to the vendor's default, a clock to no lock."""
        if knob == LIMIT:
            if self.default_limit_w is None:
                raise Unsupported(f"{self._uuid} tells no default power limit; set the one you want")
            self.write(LIMIT, self.default_limit_w)
            return
        nvml, handle = self.session()
        calls: dict[str, Callable[[Any], None]] = {
            "sm_mhz": nvml.nvmlDeviceResetGpuLockedClocks,
            "memory_mhz": nvml.nvmlDeviceResetMemoryLockedClocks,
        }
        try:
            calls[knob](handle)
        except nvml.NVMLError as error:
            raise library.translated(error.value, f"reset of {knob}", self._uuid) from None

    def set_persistence(self, on: bool) -> None:
        """Let the driver stay loaded while nobody uses the GPU, or not."""
        nvml, handle = self.session()
        try:
            nvml.nvmlDeviceSetPersistenceMode(handle, int(on))
        except nvml.NVMLError as error:
            raise library.translated(error.value, "persistence mode", self._uuid) from None

    def _refused(self, code: int, knob: str, value: float) -> GpuError:
        if code == _INVALID_ARGUMENT:
            choices = self.space.knobs[knob]
            return OutOfRange(f"the driver refuses {knob}={value:g} on {self._uuid}, which it says is {choices}")
        return library.translated(code, f"setting of {knob}", self._uuid)
