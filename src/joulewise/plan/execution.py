"""A setting that also says how partitions run under it: where communication is launched, and on how many SMs.

An operation whose partitions were profiled (``plan/compose``) has several ways to run at one clock. They are told apart
here, kept in plans of version 2 (``plan_files``), and shown. A clock is set by a lease; launches are done by whoever
runs the kernels, and nothing in joulewise does: a plan that has them is refused where only clocks can be played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting

S = TypeVar("S")

SEQUENTIAL = "sequential"
"""The slot of communication that runs beside nothing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Where the communication of one kind of partition starts, and the SMs (thread blocks) that it gets."""

    part: str
    slot: str
    sms: int

    def __post_init__(self) -> None:
        if not (self.part and self.slot and self.sms >= 1):
            raise BadSpec(f"a launch needs a partition, a slot and one SM or more, not {self}")

    @classmethod
    def read(cls, part: str, how: str) -> Launch:
        """Of ``"rope×15"``, as ``str`` gives it without the part. BadSpec where it is not that."""
        slot, times, sms = how.rpartition("×")
        if not (times and slot and sms.isdecimal()):
            raise BadSpec(f"the schedule {how[:40]!r} of {part!r} is not SLOT×SMS, such as rope×15")
        return cls(part, slot, int(sms))

    def __str__(self) -> str:
        return f"{self.part} {self.slot}×{self.sms}"


class Execution(Setting):
    """Knobs and launches. It differs from a bare Setting, and from one with other launches."""

    __slots__ = ("launches",)

    def __init__(self, launches: Iterable[Launch], **values: float) -> None:
        super().__init__(**values)
        self.launches = tuple(sorted(launches, key=lambda launch: launch.part))
        if len({launch.part for launch in self.launches}) < len(self.launches) or not self.launches:
            raise BadSpec(f"an execution launches each kind of partition in one way: {', '.join(map(str, launches))}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Execution) and self.launches == other.launches and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self.launches, super().__hash__()))

    def __repr__(self) -> str:
        knobs = ", ".join(f"{name}={value:g}" for name, value in self.items())
        return f"Execution({', '.join(map(str, self.launches))}{'; ' if knobs else ''}{knobs})"

    def __reduce__(self) -> tuple[Callable[..., Execution], tuple[Any, ...]]:
        return _execution, (self.launches, dict(self))

    def with_(self, **values: float) -> Execution:
        """The same launches with some knobs replaced."""
        return Execution(self.launches, **{**self, **values})


def launches(setting: Setting) -> tuple[Launch, ...]:
    """What is launched where; nothing of a bare setting."""
    return setting.launches if isinstance(setting, Execution) else ()


def overlapped(setting: Setting) -> bool:
    """Whether any communication runs beside computing."""
    return any(launch.slot != SEQUENTIAL for launch in launches(setting))


def knobs(setting: S) -> S | Setting:
    """What has to be set, without launches: only that takes a change of clock."""
    return Setting(**setting) if isinstance(setting, Execution) else setting


def _execution(launches: tuple[Launch, ...], values: dict[str, float]) -> Execution:
    """What pickle calls."""
    return Execution(launches, **values)
