"""From ideal durations to measured settings: options that end in time, then slack repair.

Without a switch cost every operation takes the cheapest option that ends by its planned end, given when those before it
really end: what one leaves over because no option fits exactly, the next may use. With one, lanes take their cheapest
sequences (``plan.switching``) at prices of time that are moved towards whatever makes the plan late. Repair (compiled:
native/flow/repair.cpp) then slows what has slack, most energy saved a second first. The deadline is always kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.plan import flow_native
from joulewise.plan.execution import knobs
from joulewise.plan.flow_native import Lists, WholeDag, WholePlan
from joulewise.plan.options import Floats, Units
from joulewise.plan.problem import Problem
from joulewise.plan.switching import Choice, Lanes

S = TypeVar("S")

_ROUNDS = 60
"""Moves of the prices of time. On a pipeline of 8 × 24 the best plan appeared after 14 to 59 of them."""
_SOONER = 3.0
"""Power of (time / deadline) by which the price of the iteration's time follows it: 1 % late, 3 % dearer."""


@dataclass(frozen=True, slots=True)
class Switch:
    """What one change of setting within a lane costs. Nothing by default."""

    duration_s: float = 0.0
    energy_j: float = 0.0
    """Beyond what the lane draws while it waits."""

    def __post_init__(self) -> None:
        if not (0 <= self.duration_s < np.inf and 0 <= self.energy_j < np.inf):
            raise BadSpec(f"a switch cannot cost {self.duration_s:g} s and {self.energy_j:g} J; both are 0 or more")

    @property
    def free(self) -> bool:
        """Whether it costs nothing."""
        return self.duration_s == 0.0 and self.energy_j == 0.0


class Rounding(Generic[S]):
    """Rounds plans of one problem."""

    def __init__(self, problem: Problem[S], dag: WholeDag, units: Units) -> None:
        self._problem, self._dag, self._units = problem, dag, units
        names: dict[object, int] = {}
        self._lists = Lists(
            start=np.concatenate([[0], np.cumsum([len(curve.options) for curve in problem.curves])]).astype(np.int32),
            duration=np.array([units.up(t) for curve in problem.curves for t in curve.time_s.tolist()], np.int64),
            energy_j=np.concatenate([curve.effective_j for curve in problem.curves]),
            setting=np.array(
                [names.setdefault(knobs(p.setting), len(names)) for curve in problem.curves for p in curve.options],
                np.int32,
            ),
        )
        self._time_s = np.concatenate([curve.time_s for curve in problem.curves])
        self._first = self._lists.start[dag.hull]
        self._lanes: Lanes[S] | None = None

    def round(self, plan: WholePlan, switch: Switch) -> Choice | None:
        """A choice that ends by the plan's time; None where changes of setting make every choice late."""
        if switch.free:
            fitting = flow_native.fit(self._lists, self._dag, plan.end)
            return None if fitting is None else self._repaired(fitting, plan.time, switch)
        return min(self._sequences(plan, switch), key=lambda choice: self.effective_j(choice, switch), default=None)

    def durations_s(self, choice: Choice, switch: Switch) -> Floats:
        """How long each operation takes, with the change of setting before it."""
        return np.asarray(self._time_s[self._first + choice] + switch.duration_s * self.switched(choice))

    def effective_j(self, choice: Choice, switch: Switch) -> float:
        """What all cost together beyond waiting, with their changes of setting."""
        switches = int(self.switched(choice).sum())
        return float(self._lists.energy_j[self._first + choice].sum()) + switch.energy_j * switches

    def switched(self, choice: Choice) -> NDArray[np.bool_]:
        """Which operations begin with a change of setting."""
        setting = self._lists.setting[self._first + choice]
        previous = self._problem.previous
        return np.asarray((previous >= 0) & (setting != setting[previous]))

    def _repaired(self, choice: Choice, deadline: int, switch: Switch) -> Choice | None:
        previous = None if switch.free else self._problem.previous
        ticks = self._units.up(switch.duration_s)
        return flow_native.repair(self._lists, self._dag, choice, deadline, previous, ticks, switch.energy_j)

    def _sequences(self, plan: WholePlan, switch: Switch) -> Iterator[Choice]:
        """Choices that keep the deadline, found at prices of time that follow a subgradient: less for all, more for
        what a late plan waits for; the whole price grows where the plan is late and falls where it is early."""
        if self._lanes is None:
            self._lanes = Lanes(self._problem.curves, self._dag.hull, self._problem.previous)
        steepest_w = max(1.0, *(curve.steepest_w for curve in self._problem.curves))
        worth_w = plan.worth / self._units.per_w
        # All flow enters through operations that wait for none.
        first = np.setdiff1d(np.arange(self._problem.operations), self._problem.after)
        whole_w = max(float(worth_w[first].sum()), 0.01 * steepest_w)
        deadline_s = plan.time / self._units.per_s
        fitting = flow_native.fit(self._lists, self._dag, plan.end)
        better = None if fitting is None else self._repaired(fitting, plan.time, switch)
        found = better is not None
        if better is not None:
            yield better
        for turn in range(_ROUNDS):
            choice = self._lanes.cheapest(worth_w, switch.duration_s, switch.energy_j)
            end_s, path = self._problem.critical(self.durations_s(choice, switch).tolist())
            better = self._repaired(choice, plan.time, switch) if end_s <= deadline_s else None
            if better is not None:
                found = True
                yield better
            share = 2.0 / (turn + 8.0)
            late = end_s / deadline_s if deadline_s > 0 else 1.0
            whole_w *= min(max(late, 0.5), 2.0) ** _SOONER
            worth_w = (1.0 - share) * worth_w
            worth_w[path] += share * whole_w
        # Time at any price: as few changes as the fastest options allow.
        for times in (1.0, 10.0, 1e3, 1e6):
            if not found:
                dear_w = np.full(self._problem.operations, times * steepest_w)
                choice = self._lanes.cheapest(dear_w, switch.duration_s, switch.energy_j)
                better = self._repaired(choice, plan.time, switch)
                if better is not None:
                    found = True
                    yield better
