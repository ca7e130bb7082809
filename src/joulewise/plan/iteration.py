"""The frontier of one iteration, ready to be asked: by deadline, energy, power or straggler.

Times are of the iteration, fastest first. *Effective* energy is what operations cost beyond waiting; *total* adds what
all lanes draw while they wait, lanes × blocking power × time. Relaxed figures are of the ideal plan, whose durations
may lie between measured options: a lower bound for every real one (with a slope grid: to within the grid's error). A
``Planned`` has both; its times, energies and durations are those of the options that it chose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.flow_native import Flow, WholeDag, WholePlan
from joulewise.plan.options import Floats, Ints, Units
from joulewise.plan.problem import Problem
from joulewise.plan.rounding import Rounding, Switch
from joulewise.plan.switching import Choice

S = TypeVar("S")

_TOLERANCE = 1e-9
"""Relative: what rounding to units and sums of floats may be apart."""
_TRIES = 12
"""Halvings of the time between two plans when a rounded plan just misses an energy or power: 1/4096 of it."""


@dataclass(frozen=True, slots=True)
class Planned(Generic[S]):
    """One plan: an option for every operation, and the ideal that it was rounded from."""

    time_s: float
    """When all is done with the chosen options, switches included."""
    energy_j: float
    """Total until ``until_s``."""
    durations_s: Floats
    """Of every operation as chosen, with the switch before it."""
    choice: tuple[Point[S], ...]
    switches: int
    """Changes of setting within lanes, where their order is known."""
    deadline_s: float
    """What the plan was made for: the relaxed plan's own time."""
    relaxed_energy_j: float
    """Total of the relaxed plan at its own time. No choice that ends by then has less."""
    relaxed_durations_s: Floats
    until_s: float
    """Until when waiting is charged: ``time_s``, or later where a straggler is waited for."""
    energy_error_j: float
    """One standard error of ``energy_j``, from those of options; operations that share an option share its error."""

    @property
    def power_w(self) -> float:
        """Average over the iteration; infinite where it takes no time."""
        return self.energy_j / self.until_s if self.until_s > 0 else math.inf


class IterationFrontier(Generic[S]):
    """Every vertex of the relaxed frontier, fastest first, and the plans on it. Made by ``plan.flow.solve``."""

    def __init__(self, problem: Problem[S], flow: Flow, dag: WholeDag, units: Units) -> None:
        self._problem, self._flow, self._units = problem, flow, units
        time, energy, _ = flow.vertices()
        corners = _lower_hull(time, energy)[::-1]
        self._ticks = time[corners]
        self.time_s: Floats = self._ticks / units.per_s
        self.energy_j: Floats = energy[corners] / units.per_j
        """Effective energy of every vertex."""
        self.slope_w: Floats = np.append(-np.diff(self.energy_j) / np.diff(self.time_s), 0.0)
        """From every vertex to the next slower one: what a second less costs there; 0 at the slowest."""
        self._longest = problem.each([curve.slowest_s for curve in problem.curves])
        self._fastest_s = problem.end_s(problem.each([curve.fastest_s for curve in problem.curves]).tolist())
        self._rounding = Rounding(problem, dag, units)

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def t_min_s(self) -> float:
        """The shortest iteration."""
        return float(self.time_s[0])

    @property
    def t_max_s(self) -> float:
        """Where effective energy is least: no longer plan is of use to anyone."""
        return float(self.time_s[-1])

    @property
    def t_star_s(self) -> float:
        """Where total energy is least."""
        return float(self.time_s[self._star])

    @property
    def _star(self) -> int:
        return int((self.energy_j + self._problem.waiting_w * self.time_s).argmin())

    @property
    def memory_bytes(self) -> int:
        """Held by the compiled solver."""
        return self._flow.memory_bytes

    def effective_j(self, time_s: float) -> float:
        """Least effective energy within a time; constant from ``t_max_s`` on. BadSpec below ``t_min_s``."""
        return float(np.interp(self._feasible(time_s), self.time_s, self.energy_j))

    def total_j(self, time_s: float) -> float:
        """Least total energy of an iteration that takes exactly ``time_s``: longer than ``t_star_s`` costs more."""
        return self.effective_j(time_s) + self._problem.waiting_w * time_s

    def at(self, deadline_s: float, *, switch_s: float = 0.0, switch_j: float = 0.0) -> Planned[S]:
        """The plan of least total energy that ends by the deadline.

        ``switch_s`` and ``switch_j`` are what a change of setting between two operations of a lane costs. BadSpec where
        the deadline cannot be met.
        """
        return self._planned(self._feasible(deadline_s), self._switch(switch_s, switch_j), star=True)

    def straggler(self, straggler_s: float, *, switch_s: float = 0.0, switch_j: float = 0.0) -> Planned[S]:
        """The plan for an iteration that cannot end before ``straggler_s`` because another pipeline takes so long.

        Waiting until then is charged. A straggler that is faster than ``t_min_s`` is none.
        """
        deadline_s = max(straggler_s, self.t_min_s)
        return self._planned(deadline_s, self._switch(switch_s, switch_j), star=True, until_s=straggler_s)

    def within_energy(self, energy_j: float, *, switch_s: float = 0.0, switch_j: float = 0.0) -> Planned[S]:
        """The fastest plan whose total energy is at most this. BadSpec where none is."""
        switch = self._switch(switch_s, switch_j)
        total_j = (self.energy_j + self._problem.waiting_w * self.time_s)[: self._star + 1]
        found = self._first(
            total_j - energy_j, self.time_s[: self._star + 1], switch, lambda plan: plan.energy_j - energy_j
        )
        if found is None:
            least_j = self._planned(self.t_star_s, switch).energy_j
            raise BadSpec(f"no plan needs only {energy_j:g} J: the thriftiest needs {least_j:.6g} J")
        return found

    def within_power(self, power_w: float, *, switch_s: float = 0.0, switch_j: float = 0.0) -> Planned[S]:
        """The fastest plan whose average power, of all lanes, is at most this. BadSpec where none is.

        It may be slower than ``t_star_s``, and then costs more energy than that; never slower than ``t_max_s``.
        """
        switch = self._switch(switch_s, switch_j)
        average_w = self.energy_j / np.maximum(self.time_s, 1 / self._units.per_s) + self._problem.waiting_w
        found = self._first(average_w - power_w, self.time_s, switch, lambda plan: plan.power_w - power_w)
        if found is None:
            least_w = self._planned(self.t_max_s, switch).power_w
            raise BadSpec(f"no plan draws only {power_w:g} W: the least is {least_w:.6g} W")
        return found

    def _first(
        self, over: Floats, times_s: Floats, switch: Switch, over_of: Callable[[Planned[S]], float]
    ) -> Planned[S] | None:
        """The fastest plan that is not over a limit. ``over`` is how far the relaxed vertices are; it falls."""
        within = np.flatnonzero(over <= 0)
        if not len(within):
            return None
        first = int(within[0])
        low_s = float(times_s[first])
        if first:
            # Where the line between two vertices crosses the limit (for power nearly so: halving ends it).
            share = over[first - 1] / (over[first - 1] - over[first])
            low_s = float(times_s[first - 1] + share * (times_s[first] - times_s[first - 1]))
        slack = _TOLERANCE * max(1.0, abs(float(over[first])))
        best = self._found(low_s, switch)
        if best is not None and over_of(best) <= slack:
            return best
        # Rounding and changes of setting cost a little more than the ideal: a little slower.
        high_s = float(times_s[-1])
        best = self._found(high_s, switch)
        if best is None or over_of(best) > slack:
            return None
        for _ in range(_TRIES):
            middle_s = (low_s + high_s) / 2
            tried = self._found(middle_s, switch)
            if tried is not None and over_of(tried) <= slack:
                best, high_s = tried, middle_s
            else:
                low_s = middle_s
        return best

    def _feasible(self, deadline_s: float) -> float:
        # The solver's times are rounded up to its units, so the true fastest is a little below ``t_min_s``.
        if not deadline_s >= self._fastest_s * (1 - _TOLERANCE):
            raise BadSpec(f"no plan ends within {deadline_s:g} s: the fastest takes {self.t_min_s:.6g} s")
        return max(deadline_s, self.t_min_s)

    def _switch(self, switch_s: float, switch_j: float) -> Switch:
        switch = Switch(switch_s, switch_j)
        if not switch.free and (self._problem.previous < 0).all() and self._problem.operations > 1:
            raise BadSpec("switch costs need the order of operations in each lane; give lane_order to solve()")
        return switch

    def _planned(self, deadline_s: float, switch: Switch, *, star: bool = False, until_s: float = 0.0) -> Planned[S]:
        """The plan of an iteration time; with ``star`` of least total energy within it. BadSpec where there is none."""
        found = self._found(deadline_s, switch, star=star, until_s=until_s)
        if found is None:
            raise BadSpec(
                f"no plan ends within {deadline_s:g} s if every change of setting takes {switch.duration_s:g} s; "
                "allow more time"
            )
        return found

    def _found(
        self, deadline_s: float, switch: Switch, *, star: bool = False, until_s: float = 0.0
    ) -> Planned[S] | None:
        for time_s in self._times(deadline_s, switch, star):
            ticks = self._units.down(time_s)
            relaxed = self._flow.plan(int(np.clip(ticks, self._ticks[0], self._ticks[-1])))
            choice = self._rounding.round(replace(relaxed, time=max(ticks, relaxed.time)), switch)
            if choice is not None:
                return self._made(relaxed, choice, switch, until_s)
        return None

    def _times(self, deadline_s: float, switch: Switch, star: bool) -> list[float]:
        """What to plan for, best first. Changes of setting may need more time than the thriftiest plan has."""
        best_s = min(deadline_s, self.t_star_s if star else self.t_max_s)
        if switch.free or deadline_s <= best_s:
            return [best_s]
        # No lane can need more than a change before every operation.
        most_s = min(deadline_s, self.t_max_s + self._problem.operations * switch.duration_s)
        return [best_s + share * (most_s - best_s) for share in (0.0, 0.01, 0.1, 1.0)]

    def _made(self, relaxed: WholePlan, choice: Choice, switch: Switch, until_s: float) -> Planned[S]:
        durations_s = self._rounding.durations_s(choice, switch)
        time_s = self._problem.end_s(durations_s.tolist())
        until_s = max(until_s, time_s)
        relaxed_s = relaxed.time / self._units.per_s
        return Planned(
            time_s=time_s,
            energy_j=self._rounding.effective_j(choice, switch) + self._problem.waiting_w * until_s,
            durations_s=durations_s,
            choice=tuple(self._problem.curve(at).options[picked] for at, picked in enumerate(choice.tolist())),
            switches=int(self._rounding.switched(choice).sum()),
            deadline_s=relaxed_s,
            relaxed_energy_j=self.total_j(relaxed_s),
            relaxed_durations_s=np.minimum((relaxed.end - relaxed.start) / self._units.per_s, self._longest),
            until_s=until_s,
            energy_error_j=self._error_j(choice),
        )

    def _error_j(self, choice: Choice) -> float:
        pairs, counts = np.unique(np.stack([self._problem.curve_of, choice]), axis=1, return_counts=True)
        errors_j = [self._problem.curves[curve].options[option].energy_error_j for curve, option in pairs.T.tolist()]
        return float(np.hypot.reduce(counts * np.array(errors_j)))


def _lower_hull(time: Ints, energy: Ints) -> Ints:
    """Indexes of the corners, slowest first. All of them, unless a grid of slopes made some a little too dear.

    Plans between two corners are still there: the mean of two plans is a plan, and costs no more than their mean.
    """
    kept: list[int] = []
    times, energies = [int(t) for t in time], [int(e) for e in energy]  # products leave 64 bits
    for i in range(len(times)):
        while kept and energies[i] <= energies[kept[-1]]:
            kept.pop()
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            over = (energies[b] - energies[a]) * (times[a] - times[i])
            if over < (energies[i] - energies[a]) * (times[a] - times[b]):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept, dtype=np.int64)
