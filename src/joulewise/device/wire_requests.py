"""What may be asked of the daemon: one class an op. Plain data; ``wire`` reads it from lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from joulewise.core.knob import Setting


@dataclass(frozen=True, slots=True)
class Hello:
    """Who am I to you, and what have you got?"""

    id: int


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs and what may be set on them; ``after`` goes on where an answer was cut."""

    id: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """One reading."""

    id: int
    gpu: str


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy counter."""

    id: int
    gpu: str


@dataclass(frozen=True, slots=True)
class Together:
    """A party of leases: none may act until ``size`` have joined, and all end with the first that ends."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Take:
    """Take a lease on ``knobs`` of ``gpus``, all or none."""

    id: int
    gpus: tuple[str, ...]
    knobs: frozenset[str]
    ttl_s: float
    reason: str = ""
    together: Together | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Set exactly ``setting`` on the lease's GPUs, or on some of them."""

    id: int
    lease: str
    setting: Setting
    gpus: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Beat:
    """The owner of ``lease`` lives."""

    id: int
    lease: str


@dataclass(frozen=True, slots=True)
class Release:
    """End ``lease``; answered when everything is back."""

    id: int
    lease: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """No write on ``gpus`` for so long; 0 ends it."""

    id: int
    gpus: tuple[str, ...]
    for_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Leases:
    """Who holds what; ``after`` goes on where an answer was cut."""

    id: int
    after: str | None = None


@dataclass(frozen=True, slots=True)
class May:
    """How far may I set what on ``gpus``?"""

    id: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Root ends somebody's lease."""

    id: int
    lease: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stand:
    """Root declares clocks that outlive every lease; None ends one."""

    id: int
    gpus: tuple[str, ...]
    setting: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Status:
    """Root asks how the daemon is."""

    id: int


Request: TypeAlias = (
    Hello | Gpus | Read | Energy | Take | Apply | Beat | Release | Quiet | Leases | May | End | Stand | Status
)
