"""What can be set on a GPU, a choice of values, and the space of what may be chosen.

A knob that a Setting does not name is left to the driver: an empty Setting is the default state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from joulewise.core.errors import OutOfRange, Unsupported


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that can be set. ``name`` ends in its unit and is the same in code, flag, JSON and metric."""

    name: str
    switch_s: float
    """How long a change takes to act; what one change costs before it pays."""

    def __str__(self) -> str:
        return self.name


# Clock switches: 25 ms median on a V100 over 19,000 transitions, 1 to 500 ms over GPUs; a limit acts
# through the driver's own averaging of 0.1 to 1 s.
SM_MHZ = Knob("sm_mhz", switch_s=0.025)
MEMORY_MHZ = Knob("memory_mhz", switch_s=0.025)
POWER_LIMIT_W = Knob("power_limit_w", switch_s=0.5)
KNOBS = (SM_MHZ, MEMORY_MHZ, POWER_LIMIT_W)
_BY_NAME = {knob.name: knob for knob in KNOBS}


class Setting(Mapping[str, float]):
    """An immutable, hashable choice: knob name → value. Compares and hashes by value.

    >>> Setting(sm_mhz=1710, power_limit_w=600)
    Setting(sm_mhz=1710, power_limit_w=600)
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, **values: float) -> None:
        for name in values:
            if name not in _BY_NAME:
                raise Unsupported(f"no knob is called {name!r}; knobs are {', '.join(_BY_NAME)}")
        ordered = {knob.name: values[knob.name] for knob in KNOBS if knob.name in values}
        self._values: Mapping[str, float] = MappingProxyType(ordered)
        self._hash = hash(tuple(ordered.items()))

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self._values == other._values

    def __repr__(self) -> str:
        return f"Setting({', '.join(f'{name}={value:g}' for name, value in self._values.items())})"

    def __reduce__(self) -> tuple[Callable[[dict[str, float]], Setting], tuple[dict[str, float]]]:
        return _setting_of, (dict(self._values),)

    def with_(self, **values: float) -> Setting:
        """This setting with some values replaced."""
        return Setting(**{**self._values, **values})


def _setting_of(values: dict[str, float]) -> Setting:
    """A Setting from a plain dict; what pickle calls, since slots and a proxy do not travel."""
    return Setting(**values)


DEFAULT = Setting()
"""Nothing set: the driver decides."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The values one knob may take: a range with a step, or a list. Bounds are inclusive."""

    low: float
    high: float
    step: float | None = None
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: tuple[float, ...] | list[float]) -> Choices:
        """Exactly these values."""
        ordered = tuple(sorted(set(values)))
        if not ordered:
            raise ValueError("a knob needs at least one value")
        return cls(ordered[0], ordered[-1], None, ordered)

    def snap(self, value: float) -> float:
        """The nearest value that may be set; the lower one in a tie."""
        if self.values:
            return min(self.values, key=lambda choice: (abs(choice - value), choice))
        clipped = min(max(value, self.low), self.high)
        if self.step is None:
            return clipped
        steps = math.ceil((clipped - self.low) / self.step - 0.5)
        below = self.low + max(0, min(steps, self._below_high(self.step) - 1)) * self.step
        return self.high if self.high - clipped < abs(clipped - below) else below

    def at_most(self, value: float) -> float:
        """The highest value that may be set and is not above ``value``; the lowest of all if every one is."""
        near = self.snap(value)
        if near <= value or near == self.low:
            return near
        if self.values:
            return self.values[self.values.index(near) - 1]
        if self.step is None:
            return value
        # ``high`` need not lie on a step.
        steps = math.ceil((near - self.low) / self.step - 1e-9) - 1
        return self.low + max(0, steps) * self.step

    def within(self, low: float, high: float) -> Choices | None:
        """Those from ``low`` to ``high``; None if there are none."""
        if self.values:
            kept = tuple(value for value in self.values if low <= value <= high)
            return Choices.of(kept) if kept else None
        low, high = max(low, self.low), min(high, self.high)
        if self.step is not None and low < self.high:
            low = min(self.high, self.low + math.ceil((low - self.low) / self.step - 1e-9) * self.step)
        return Choices(low, self.at_most(high), self.step) if low <= high else None

    def all(self) -> tuple[float, ...]:
        """Every value, lowest first; for a range without a step, its two ends."""
        if self.values:
            return self.values
        if self.step is None:
            return (self.low, self.high) if self.high > self.low else (self.low,)
        return (*(self.low + i * self.step for i in range(self._below_high(self.step))), self.high)

    def _below_high(self, step: float) -> int:
        """How many steps lie below ``high``, which may be set whether a step ends there or not."""
        return math.ceil((self.high - self.low) / step - 1e-9)

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, (int, float)):
            return False
        if self.values:
            return value in self.values
        return self.low <= value <= self.high and self.snap(value) == value

    def __str__(self) -> str:
        if self.values:
            return ", ".join(f"{value:g}" for value in self.values)
        return f"{self.low:g}–{self.high:g}" + (f" step {self.step:g}" if self.step else "")


@dataclass(frozen=True, slots=True)
class Space:
    """What may be set on one GPU: knob name → Choices. A knob that is absent cannot be set."""

    knobs: Mapping[str, Choices] = field(default_factory=dict)

    def check(self, setting: Setting, *, gpu: str = "this GPU") -> None:
        """Raise Unsupported or OutOfRange, naming the value and the limit, unless ``setting`` may be set."""
        for name, value in setting.items():
            choices = self.knobs.get(name)
            if choices is None:
                raise Unsupported(f"{name} cannot be set on {gpu}; see 'joulewise doctor'")
            if value not in choices:
                raise OutOfRange(f"{name}={value:g} on {gpu} is outside {choices}; see 'joulewise doctor'")

    def snap(self, setting: Setting) -> Setting:
        """The nearest setting that may be set; knobs that cannot be set are dropped."""
        return Setting(**{n: self.knobs[n].snap(v) for n, v in setting.items() if n in self.knobs})
