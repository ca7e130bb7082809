"""What a tuner decides, with its reason in words, and what a guard made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a decision promises, relative to the baseline: 0.04 more time is +4 %."""

    time_change: float | None = None
    energy_change: float | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[S]):
    """One choice. ``reason`` is a sentence that a user can read; there is no decision without one."""

    setting: S
    reason: str
    expected: Expectation = Expectation()

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("a decision needs a reason")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether what was seen kept what was promised. ``kept`` is None while it cannot be judged."""

    kept: bool | None
    reason: str
