"""Clocks as colours and digits: one scale for a plan's picture in the terminal, on its page and in a file.

Cool is slow, warm is fast; digits 1 to 9 say the same where there are no colours. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from joulewise.core.knob import KNOBS, Setting

_RAMP = ((29, 78, 137), (0, 155, 190), (125, 207, 182), (251, 209, 162), (240, 120, 60))
IDLE = "·"
_UNITS = {"sm_mhz": "MHz", "memory_mhz": "MHz", "power_limit_w": "W"}


class Scale:
    """From the lowest to the highest value of the first knob that settings differ in; nothing set is the highest."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        known = set(settings)
        self.knob = next((knob.name for knob in KNOBS if len({each.get(knob.name) for each in known}) > 1), "sm_mhz")
        values = [each[self.knob] for each in known if self.knob in each]
        self.low, self.high = min(values, default=0.0), max(values, default=0.0)

    def share(self, setting: Setting) -> float:
        """0 for the lowest, 1 for the highest."""
        width = self.high - self.low
        return (setting.get(self.knob, self.high) - self.low) / width if width else 1.0

    def digit(self, setting: Setting) -> str:
        """1 for the lowest, 9 for the highest."""
        return str(1 + round(8 * self.share(setting)))

    def colour(self, setting: Setting) -> str:
        """As #rrggbb."""
        return hue(self.share(setting))

    def named(self, share: float) -> str:
        """The value at a place of the scale: ``"1410 MHz"``."""
        return f"{self.low + share * (self.high - self.low):.0f} {_UNITS[self.knob]}"


def hue(share: float) -> str:
    """The colour at a place of the ramp, from 0 to 1."""
    place = min(max(share, 0.0), 1.0) * (len(_RAMP) - 1)
    at = min(int(place), len(_RAMP) - 2)
    mixed = (round(a + (b - a) * (place - at)) for a, b in zip(_RAMP[at], _RAMP[at + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def ink_on(share: float) -> str:
    """What can be read on it."""
    return "#ffffff" if share < 0.3 else "#10202b"
