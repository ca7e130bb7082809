"""What is learnt of a job and of a card, as plain numbers that can be stored, shown, and believed again.

What it is: `LoadPrior`, what is expected of a load before any probe; `Learnt`, what a belief knows at its end, with
``to_json`` and ``from_json``. What it is not: a belief (``model/dvfs``) or a store.

Unknowns are named as in ``model/dvfs``. Their spreads are in the unit in which a belief thinks: logarithms of what is
only positive, logits of what lies between two bounds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from joulewise.core.errors import BadSpec, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.parsing import json_value


@dataclass(frozen=True, slots=True)
class LoadPrior:
    """What is expected of a load: values and spreads by the name of the unknown. A name that is absent: as usual."""

    mean: Mapping[str, float]
    """In the unknown's own unit: ``sm_share`` 0.8."""
    spread: Mapping[str, float]
    """One standard deviation, in logarithms or logits."""
    says: str = ""
    """Where it comes from, in a sentence."""


@dataclass(frozen=True, slots=True)
class LearntPoint:
    """One setting as it was measured: relative to the default of that run. Ratios and relative standard errors."""

    setting: Setting
    time: float
    time_error: float
    power: float
    power_error: float
    sm_mhz: float | None = None
    capped: bool = False


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a belief knows: the measured points of one job, the card it saw them on, and the load in plain numbers."""

    power_w: float | None = None
    """Average power of one GPU at the default; None where it was not seen."""
    points: tuple[LearntPoint, ...] = ()
    """Settings of this job, the default among them; empty: only the card is known."""
    card: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """How this card differs from its model: unknown → (value, spread)."""
    load: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """What the job is made of: unknown → (value, spread). For people and schedulers; a belief uses the points."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """The activity counters at the default, where they were read."""

    def of_card(self) -> Learnt:
        """What holds for other jobs on the same card."""
        return Learnt(card=self.card)

    def to_json(self) -> str:
        """One line of JSON."""
        plain = asdict(self)
        plain["points"] = [{**asdict(point), "setting": dict(point.setting)} for point in self.points]
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Learnt:
        """What ``to_json`` wrote; BadSpec, naming the fault, for anything else."""
        try:
            plain: dict[str, Any] = {**json_value(text)}
            points = tuple(LearntPoint(**{**p, "setting": Setting(**p["setting"])}) for p in plain.pop("points", ()))
            card, load = (
                {str(k): (float(v), float(s)) for k, (v, s) in plain.pop(kind, {}).items()} for kind in ("card", "load")
            )
            learnt = cls(points=points, card=card, load=load, **plain)
            numbers = [n for p in points for n in (p.time, p.power, p.time_error, p.power_error)]
            if not all(0.0 <= n < math.inf for n in numbers):
                raise ValueError("a ratio or an error is not a positive number")
        except (ValueError, TypeError, KeyError, AttributeError, Unsupported) as fault:
            raise BadSpec(f"not what a belief learnt: {text[:80]!r} ({type(fault).__name__}: {fault})") from fault
        return learnt
