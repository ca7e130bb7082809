"""What an epoch costs, batch size by batch size on each platform, and in which currency.

The currency is the job's objective: Zeus's weighted cost, joules within a time, or money. All are sums over time and
energy, so a run costs its epochs times what one costs. A size that was never run on a platform is guessed from those
that were, and from what the sizes cost on other platforms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.objective import Money, Weighted
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.model.curves import Array, Belief, Family, cost_family, doubt, octaves

_BUMP_SD, _REACH = 0.12, 2.0
"""The cost of an epoch is within 12 % of a fixed part per step and a part per sample."""
_ELSEWHERE_SD = 0.15
"""Sizes compare on one GPU as on another to within 15 % an octave or two."""
_LEAST_ERROR = 0.005
"""No epoch is measured better than this."""
_NEWEST = 0.3
"""Weight of the newest measurement once there are some: the machine may change."""


class Price:
    """The currency of a job. BadSpec for an objective that is none."""

    def __init__(self, job: Recurring) -> None:
        objective = dict(job.objective)
        self.what = str(objective.pop("what", "zeus"))
        self.eta, self.max_slowdown, self.deadline_s = 1.0, None, None
        self._money: Money | None = None
        try:
            match self.what:
                case "zeus":
                    self.eta = float(objective.pop("eta", 0.5))
                    Weighted(self.eta, 1.0)
                case "energy":
                    self.max_slowdown = _number(objective.pop("max_slowdown", None))
                    self.deadline_s = _number(objective.pop("deadline_s", None))
                case "money":
                    prices = [float(objective.pop(name, 0.0)) for name in ("gpu_hour_price", "kwh_price", "host_w")]
                    self._money = Money(prices[0], prices[1], prices[2])
                    if not self._money.gpu_hour_price + self._money.kwh_price > 0:
                        raise ValueError("a price above 0 is missing: gpu_hour_price, kwh_price")
                case _:
                    raise ValueError("it is zeus, energy or money")
            if objective:
                raise ValueError(f"nothing is called {', '.join(map(repr, objective))} there")
        except (TypeError, ValueError) as error:
            raise BadSpec(f"{dict(job.objective)} is no objective of a recurring job: {error}") from None

    def of(self, epoch: EpochCost, platform: Platform) -> float:
        """What one epoch costs, in joules or money."""
        point = Point(epoch.duration_s, epoch.energy_j, None)
        if self._money is not None:
            gpus = Money(self._money.gpu_hour_price, self._money.kwh_price, self._money.host_w, platform.gpus)
            return gpus.cost(point, point)
        if self.eta < 1.0 and not platform.max_power_w > 0:
            raise BadSpec(f"the highest power of {platform.key} is unknown; give max_power_w, or use eta 1")
        return Weighted(self.eta, platform.max_power_w or 1.0).cost(point, point)

    def weighs(self, epoch: EpochCost) -> bool:
        """Whether it has a price at all: 0 J is no reading, and where only joules count nothing is left."""
        paid_by_time = self.eta < 1.0 or (self._money is not None and self._money.gpu_hour_price > 0)
        return epoch.energy_j > 0 or paid_by_time

    def most_s(self, default_s: float) -> float:
        """How long a run may take, where it takes ``default_s`` untuned."""
        slower = math.inf if self.max_slowdown is None else default_s * (1.0 + self.max_slowdown)
        return min(slower, self.deadline_s if self.deadline_s is not None else math.inf)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} must be 0 or more")
    return number


class Costs:
    """What epochs cost on one platform, by size and setting."""

    def __init__(self, sizes: tuple[int, ...], default: int, price: Price, platform: Platform) -> None:
        self.platform, self.price = platform, price
        self._default = sizes.index(default)
        x = octaves(sizes, default)
        self._family = cost_family(x, bump_sd=_BUMP_SD, reach=_REACH)
        self._like = doubt(x, level_sd=2.0, slope_sd=_ELSEWHERE_SD / 2, bump_sd=_ELSEWHERE_SD, reach=_REACH)
        self.profiles: list[dict[Setting, EpochCost]] = [{} for _ in sizes]
        self.too_large: int | None = None
        """The smallest place that ran out of memory here."""

    @property
    def known(self) -> list[int]:
        """Places of the sizes that were measured here."""
        return [place for place, profile in enumerate(self.profiles) if profile]

    def learn(self, place: int, profile: Iterable[EpochCost]) -> None:
        """What epochs of this size cost."""
        kept = self.profiles[place]
        for epoch in profile:
            if not self.price.weighs(epoch):
                continue
            before = kept.get(epoch.setting)
            kept[epoch.setting] = epoch if before is None else _between(before, epoch)

    def cheapest(self, place: int, epochs: float, most_s: float, profile: Sequence[EpochCost] = ()) -> EpochCost | None:
        """The epoch of least cost with which a run of so many ends in time; None where none does, or none is known."""
        kept = list(profile) or list(self.profiles[place].values())
        fit = [epoch for epoch in kept if epoch.duration_s * epochs <= most_s]
        return min(fit, key=lambda epoch: self.price.of(epoch, self.platform)) if fit else None

    def untuned(self, place: int) -> EpochCost | None:
        """An epoch with nothing set: as measured, else the fastest; None where none is known."""
        kept = self.profiles[place]
        return kept.get(DEFAULT) or min(kept.values(), key=lambda epoch: epoch.duration_s, default=None)

    def surcharge(self) -> float:
        """What trying out settings adds to the first epoch of a size, as a share of an epoch."""
        for place in (self._default, *self.known):
            costs = [self.price.of(epoch, self.platform) for epoch in self.profiles[place].values()]
            if costs:
                return sum(costs) / len(costs) / min(costs) - 1.0
        return 0.0

    def belief(self, cheapest: Mapping[int, EpochCost], elsewhere: Array | None) -> Belief:
        """Of the logarithm of an epoch's cost at each size, from the sizes that were measured, and their shape on
        another platform where there is one. Without any measured size only ratios mean something."""
        places = sorted(cheapest)
        family = self._family
        if elsewhere is not None:  # its shape alone: what it costs at large there says nothing here
            family = Family((elsewhere - elsewhere[places or [self._default]].mean())[None, :], self._like)
        if not places:
            return family.given([self._default], [0.0], [1e-6])
        values = [math.log(self.price.of(cheapest[place], self.platform)) for place in places]
        base = sum(values) / len(values)
        errors = [_LEAST_ERROR**2 + _relative_error(cheapest[place]) ** 2 for place in places]
        found = family.given(places, [value - base for value in values], errors)
        return Belief(found.mean + base, found.cov)

    def to_json(self) -> dict[str, Any]:
        """In plain values."""
        return {
            "platform": [self.platform.gpu_name, self.platform.gpus, self.platform.max_power_w],
            "too_large": self.too_large,
            "profiles": [
                [
                    [dict(each.setting), each.duration_s, each.energy_j, each.error_s, each.error_j]
                    for each in kept.values()
                ]
                for kept in self.profiles
            ],
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """What ``to_json`` gave, of the same sizes."""
        self.too_large = kept["too_large"]
        for profile, rows in zip(self.profiles, kept["profiles"], strict=True):
            for setting, duration_s, energy_j, error_s, error_j in rows:
                epoch = EpochCost(duration_s, energy_j, Setting(**setting), error_s, error_j)
                profile[epoch.setting] = epoch


def _between(before: EpochCost, new: EpochCost) -> EpochCost:
    def mixed(name: str) -> float:
        return (1.0 - _NEWEST) * float(getattr(before, name)) + _NEWEST * float(getattr(new, name))

    return EpochCost(mixed("duration_s"), mixed("energy_j"), new.setting, mixed("error_s"), mixed("error_j"))


def _relative_error(epoch: EpochCost) -> float:
    energy = epoch.error_j / epoch.energy_j if epoch.energy_j > 0 else 0.0
    return float(np.hypot(energy, epoch.error_s / epoch.duration_s))
