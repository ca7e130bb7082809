"""What happens to a GPU's knobs without our doing, as far as it can be seen: the keeper's eyes.

A limit can be read, so somebody else's is seen for sure. A driver that was started anew is known by an energy counter
that shows less than before. Locked clocks cannot be read: that somebody has changed them is inferred from the clock
under load, and called so. Nothing is written here.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final

from joulewise.core.errors import GpuError
from joulewise.core.measurement import Throttle
from joulewise.device.controls import LIMIT, Controls
from joulewise.device.lease import Notice
from joulewise.device.saved import Entry

_COUNTER_SLACK_J: Final = 1.0
"""A counter may be read twice within one of its ticks, but it does not go back by a joule unless started anew."""
_COUNTER_SHARE: Final = 1 / 3000
"""Of its time a GPU's thread may spend on routine looks at the counter: a look burns 3.8 ms of processor on an H200."""
_BUSY: Final = 0.9
"""Utilisation above which a clock says what holds it."""
_FAR_BELOW: Final = 0.95
"""Under load, a clock below this share of the highest is held down by something."""
_SETTLED_S: Final = 1.0
"""Clocks switch within 0.5 s; before that, one above its ceiling says nothing."""
_STEP_MHZ: Final = 15.0
"""NVIDIA's usual step between clocks; readings are rounded by less."""
_HELD_DOWN: Final = frozenset({Throttle.POWER_CAP, Throttle.HEAT, Throttle.HARDWARE, Throttle.SYNC, Throttle.DISPLAY})


class Watch:
    """Looks at one GPU. Each thing is told once."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self.counter_j: float | None = None
        """The energy counter when it was last read."""
        self._counter_due_s = -math.inf
        self._told: dict[str, float] = {}
        self._above = 0
        self._locked_s = -math.inf

    def wrote(self, knob: str) -> None:
        """We have just written ``knob``: what was seen of it before counts no more."""
        self._told.pop(knob, None)
        if knob != LIMIT:
            self._above, self._locked_s = 0, self._controls.time.now_s()

    def forget(self) -> None:
        """A new lease, or a new driver: tell everything again."""
        self._told.clear()
        self._above = 0

    def reloaded(self) -> bool:
        """Whether the driver was started anew since this was last asked. What cannot be read has not been."""
        last_j = self.counter_j
        try:
            energy = self._controls.energy()
        except GpuError:
            return False
        self.counter_j = energy.energy_j
        self._counter_due_s = energy.time_s + energy.call_s / _COUNTER_SHARE
        return last_j is not None and self.counter_j < last_j - _COUNTER_SLACK_J

    def counter_is_due(self) -> bool:
        """Whether it is time for a routine look at the counter; what looks odd is reason enough without."""
        return self._controls.time.now_s() >= self._counter_due_s

    def outdates(self, entry: Entry) -> bool:
        """Whether the counter, when last read, showed that the driver is younger than ``entry``."""
        return (
            entry.counter_j is not None
            and self.counter_j is not None
            and self.counter_j < entry.counter_j - _COUNTER_SLACK_J
        )

    def foreign_limit(self, entry: Entry) -> list[Notice]:
        """Somebody else's limit, where we have ours or have left it as it was. Raises GpuLost."""
        found = self._controls.value(LIMIT)
        expected = entry.wrote[-1] if entry.wrote else entry.before
        if found is None or found == expected:
            self._told.pop(LIMIT, None)
            return []
        if self._told.get(LIMIT) == found:
            return []
        self._told[LIMIT] = found
        says = f"somebody else has set {found:g} W on {self._name}, where we had {expected:g} W; it stays when we end"
        return [Notice("foreign", says, self._controls.uuid, LIMIT, expected, found)]

    def lifted(self, ceiling_mhz: float) -> list[Notice]:
        """The SM clock over our ceiling, under load, seen twice: somebody has lifted our lock. Raises GpuLost."""
        reading = self._controls.read()
        step_mhz = self._controls.space.knobs["sm_mhz"].step or _STEP_MHZ
        over = (
            reading.sm_mhz is not None
            and reading.sm_mhz > ceiling_mhz + step_mhz
            and (reading.utilization or 0.0) >= _BUSY / 2
            and self._controls.time.now_s() >= self._locked_s + _SETTLED_S
        )
        self._above = self._above + 1 if over else 0
        if self._above < 2 or self._told.get("sm_mhz") == ceiling_mhz:
            return []
        self._told["sm_mhz"] = ceiling_mhz
        says = (
            f"{self._name} runs at {reading.sm_mhz:g} MHz, over our ceiling of {ceiling_mhz:g} MHz: somebody else has "
            "changed its locked clocks (inferred)"
        )
        return [Notice("inferred", says, self._controls.uuid, "sm_mhz", ceiling_mhz, reading.sm_mhz)]

    def locked_by_others(self) -> Notice | None:
        """Where no lock is ours: one that a clock under load gives away; None if nothing does."""
        choices = self._controls.space.knobs.get("sm_mhz")
        if choices is None:
            return None
        with suppress(GpuError):
            reading = self._controls.read()
            throttle = reading.throttle or frozenset()
            if (
                reading.sm_mhz is not None
                and (reading.utilization or 0.0) >= _BUSY
                and reading.sm_mhz < _FAR_BELOW * choices.high
                and Throttle.LOCKED in throttle
                and not throttle & _HELD_DOWN
            ):
                says = (
                    f"{self._name} runs at {reading.sm_mhz:g} of {choices.high:g} MHz under load, held by locked "
                    "clocks that are not ours (inferred); a lease on sm_mhz cannot bring them back"
                )
                return Notice("inferred", says, self._controls.uuid, "sm_mhz", None, reading.sm_mhz)
        return None

    @property
    def _name(self) -> str:
        return f"{self._controls.uuid} ({self._controls.name})"
