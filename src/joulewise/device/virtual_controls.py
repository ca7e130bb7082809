"""A ``VirtualGpu``'s knobs, in this process and in its own time: the lease engine's other hardware."""

from __future__ import annotations

import weakref
from typing import Final

from joulewise.core.errors import Unsupported
from joulewise.core.knob import Setting, Space
from joulewise.core.measurement import EnergyReading, Reading
from joulewise.core.timeline import TimeSource
from joulewise.device.controls import LIMIT
from joulewise.device.virtual import VirtualGpu


class VirtualControls:
    """One virtual GPU to be turned; ``of`` gives the same object for the same GPU."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu

    @classmethod
    def of(cls, gpu: VirtualGpu) -> VirtualControls:
        """The controls of ``gpu``: whoever asks gets the same ones, so that leases on one GPU see each other."""
        controls = _made.get(id(gpu))
        if controls is None:
            controls = _made[id(gpu)] = cls(gpu)
        return controls

    @property
    def uuid(self) -> str:
        """The GPU's name."""
        return self._gpu.info.uuid

    @property
    def name(self) -> str:
        """Its model."""
        return self._gpu.info.name

    @property
    def space(self) -> Space:
        """What can be set."""
        return self._gpu.info.space

    @property
    def default_limit_w(self) -> float | None:
        """The model's own limit."""
        return self._gpu.info.default_limit_w

    @property
    def notes(self) -> tuple[str, ...]:
        """As the GPU's info has them."""
        return self._gpu.info.notes

    @property
    def time(self) -> TimeSource:
        """The GPU's own time."""
        return self._gpu.time

    @property
    def locks(self) -> None:
        """Of no other process."""

    def value(self, knob: str) -> float | None:
        """The requested limit; None for clocks, as with real hardware."""
        if knob != LIMIT:
            return None
        self._gpu.read()  # raises where the GPU does not answer
        return self._gpu.asked_limit_w

    def exact(self, knob: str, value: float) -> float:  # noqa: ARG002 (the protocol's)
        """A virtual GPU keeps any float."""
        return float(value)

    def enforced_limit_w(self) -> float | None:
        """The limit in force."""
        return self._gpu.read().power_limit_w

    def write(self, knob: str, value: float) -> None:
        """Set the limit, or the ceiling of a clock; what else is set stays."""
        self._gpu.apply(self.asked().with_(**{knob: value}))

    def reset(self, knob: str) -> None:
        """The limit to the default, a clock to no lock."""
        if knob not in self.space.knobs:
            raise Unsupported(f"{knob} cannot be set on {self._gpu}; see 'joulewise doctor'")
        self._gpu.apply(Setting(**{each: value for each, value in self.asked().items() if each != knob}))

    def asked(self) -> Setting:
        """What is set now, clocks too: only a virtual GPU can tell, and no lease asks it."""
        demand = self._gpu.board.state.asked
        values = {
            "sm_mhz": demand.sm_mhz and demand.sm_mhz[1],
            "memory_mhz": demand.memory_mhz and demand.memory_mhz[1],
            LIMIT: demand.limit_w,
        }
        return Setting(**{knob: value for knob, value in values.items() if value is not None})

    def read(self) -> Reading:
        """As the GPU reads."""
        return self._gpu.read()

    def energy(self) -> EnergyReading:
        """As the GPU counts."""
        return self._gpu.energy()

    def processes(self) -> tuple[int, ...] | None:
        """As the GPU lists them."""
        return self._gpu.processes()

    def persistence(self) -> bool | None:
        """Without meaning: there is no driver that could be unloaded."""
        return None

    def set_persistence(self, on: bool) -> None:
        """Always refused."""
        raise Unsupported(f"{self._gpu} has no driver, and so no persistence mode to turn {'on' if on else 'off'}")


# By the GPU's id, which is nobody else's as long as its controls live: they hold it.
_made: Final[weakref.WeakValueDictionary[int, VirtualControls]] = weakref.WeakValueDictionary()
