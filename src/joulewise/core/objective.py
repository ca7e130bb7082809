"""What the user wants: an objective turns a point into a cost, a budget says what may not be exceeded.

Each objective is a small frozen dataclass with one method, ``cost(point, baseline)``: lower is better, infinite is
not allowed. The baseline is how the work runs when nobody tunes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from joulewise.core.frontier import Point
from joulewise.core.units import kwh_from_joules


class Objective(Protocol):
    """What to minimise."""

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:
        """The cost of ``point``; ``math.inf`` when it is not allowed."""
        ...


@dataclass(frozen=True, slots=True)
class MinEnergy:
    """Least energy within a slowdown bound: 0.02 allows 2 % more time than the baseline."""

    max_slowdown: float = 0.02

    def __post_init__(self) -> None:
        if not self.max_slowdown >= 0:
            raise ValueError(f"max_slowdown must be 0 or more, not {self.max_slowdown}")

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:
        """Joules, or infinite beyond the bound."""
        return point.energy_j if point.time_s <= baseline.time_s * (1 + self.max_slowdown) else math.inf


@dataclass(frozen=True, slots=True)
class Weighted:
    """Zeus's cost, η·energy + (1−η)·max power·time (Zeus §3.1), in joules.

    ``eta`` = 1 counts energy alone, 0 time alone. ``max_power_w`` is the sum over the job's GPUs.
    """

    eta: float
    max_power_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise ValueError(f"eta must be between 0 and 1, not {self.eta}")
        if not self.max_power_w > 0:
            raise ValueError(f"max_power_w must be above 0, not {self.max_power_w}")

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:  # noqa: ARG002 - same for any baseline
        """The weighted cost in joules."""
        return self.eta * point.energy_j + (1 - self.eta) * self.max_power_w * point.time_s


@dataclass(frozen=True, slots=True)
class Edp:
    """Energy × delay."""

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:  # noqa: ARG002 - same for any baseline
        """J·s."""
        return point.energy_j * point.time_s


@dataclass(frozen=True, slots=True)
class Ed2p:
    """Energy × delay²."""

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:  # noqa: ARG002 - same for any baseline
        """J·s²."""
        return point.energy_j * point.time_s**2


@dataclass(frozen=True, slots=True)
class Money:
    """What the work costs: GPU time by the hour and electricity by the kilowatt-hour, the node's own watts included.

    A GPU hour usually costs far more than its electricity, so that a slower job rarely pays. Prices in any one
    currency; ``gpus`` is how many the point's energy is the sum of, ``host_w`` what the rest of the node draws.
    """

    gpu_hour_price: float
    kwh_price: float
    host_w: float = 0.0
    gpus: int = 1

    def __post_init__(self) -> None:
        for name in ("gpu_hour_price", "kwh_price", "host_w"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:  # noqa: ARG002 - same for any baseline
        """In the currency of the prices."""
        node_j = point.energy_j + self.host_w * point.time_s
        return self.gpus * self.gpu_hour_price * point.time_s / 3600.0 + self.kwh_price * kwh_from_joules(node_j)


@dataclass(frozen=True, slots=True)
class Budget:
    """What comes down from the floor above. None means: no limit of that kind."""

    deadline_s: float | None = None
    energy_j: float | None = None
    power_w: float | None = None

    def __post_init__(self) -> None:
        for name in ("deadline_s", "energy_j", "power_w"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"a budget's {name} must be above 0, not {value}")

    def allows(self, point: Point[Any]) -> bool:
        """Whether a point stays inside."""
        return (
            (self.deadline_s is None or point.time_s <= self.deadline_s)
            and (self.energy_j is None or point.energy_j <= self.energy_j)
            and (self.power_w is None or point.power_w <= self.power_w)
        )


@dataclass(frozen=True, slots=True)
class Within:
    """Another objective, but only among points that a budget or a slowdown bound allows."""

    objective: Objective
    budget: Budget = Budget()
    max_slowdown: float = math.inf

    def __post_init__(self) -> None:
        if not self.max_slowdown >= 0:
            raise ValueError(f"max_slowdown must be 0 or more, not {self.max_slowdown}")

    def cost(self, point: Point[Any], baseline: Point[Any]) -> float:
        """The other's cost, or infinite outside."""
        allowed = self.budget.allows(point) and point.time_s <= baseline.time_s * (1 + self.max_slowdown)
        return self.objective.cost(point, baseline) if allowed else math.inf


def slowdown_bound(objective: Objective) -> float:
    """The slowdown that an objective allows at most, as a share of the baseline's time; infinite where it sets none."""
    if isinstance(objective, Within):
        return min(objective.max_slowdown, slowdown_bound(objective.objective))
    return objective.max_slowdown if isinstance(objective, MinEnergy) else math.inf
