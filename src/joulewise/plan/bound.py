"""A bound from outside: the least energy by a deadline as a linear program, solved by HiGHS (extra ``plan``).

It shares the hulls with ``plan.flow`` and nothing else: other arithmetic (floats), other algorithm, other authors. No
plan, whoever made it, that ends by the deadline needs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.highs import highs as solver
from joulewise.plan.problem import EdgeLike, Problem

S = TypeVar("S")


def lp_bound(
    options: Sequence[Sequence[Point[S]]],
    edges: Iterable[EdgeLike],
    deadline_s: float,
    *,
    blocking_w: float,
    lanes: int,
) -> float:
    """Total joules that no plan ending by ``deadline_s`` undercuts, if waiting is charged until then.

    BadSpec where no plan ends by then; MissingPart without HiGHS.
    """
    problem = Problem.of(options, edges, blocking_w=blocking_w, lanes=lanes)
    return Bound(problem).effective_j(deadline_s) + problem.waiting_w * deadline_s


def gap(energy_j: float, bound_j: float) -> float:
    """How much more a plan needs than the bound, as a share of the bound."""
    return energy_j / bound_j - 1.0


class Bound:
    """The program of one problem, asked for many deadlines: each starts where the last ended.

    Variables: when every operation starts, and the seconds shaved off each segment of its hull, from its slowest.
    """

    def __init__(self, problem: Problem[S]) -> None:
        self._highs = solver("the outside bound")
        self._least_j = 0.0
        self._inf = float(self._highs.getInfinity())
        count = problem.operations
        # One column an operation's start, then one for each of its segments, then the end of all.
        price: list[float] = [0.0] * count
        upper: list[float] = [self._inf] * count
        shaved: list[list[int]] = []
        slowest_s = problem.each([curve.slowest_s for curve in problem.curves]).tolist()
        segments = []
        for curve in problem.curves:
            time_s, energy_j = curve.time_s[curve.hull], curve.effective_j[curve.hull]
            length_s = -np.diff(time_s)
            segments.append((length_s.tolist(), (np.diff(energy_j) / length_s).tolist(), float(energy_j[0])))
        for at in range(count):
            length_s, slope_w, least_j = segments[problem.curve_of[at]]
            self._least_j += least_j
            shaved.append(list(range(len(price), len(price) + len(length_s))))
            price += slope_w
            upper += length_s
        self._end = len(price)
        self._highs.addVars(len(price) + 1, np.zeros(len(price) + 1), np.array([*upper, self._inf]))
        self._highs.changeColsCost(len(price), np.arange(len(price), dtype=np.int32), np.array(price))
        for before, after, lag_s in zip(
            problem.before.tolist(), problem.after.tolist(), problem.lag_s.tolist(), strict=True
        ):
            self._follows(before, after, shaved[before], slowest_s[before] + lag_s)
        awaited = set(problem.before.tolist())
        for at in range(count):
            if at not in awaited:
                self._follows(at, self._end, shaved[at], slowest_s[at])

    def effective_j(self, deadline_s: float) -> float:
        """Least effective joules by a deadline. BadSpec where there is no plan."""
        self._highs.changeColBounds(self._end, 0.0, deadline_s)
        self._highs.run()
        status = self._highs.getModelStatus()
        if self._highs.modelStatusToString(status) != "Optimal":
            raise BadSpec(
                f"no plan ends within {deadline_s:g} s (HiGHS says: {self._highs.modelStatusToString(status)})"
            )
        return float(self._highs.getInfo().objective_function_value) + self._least_j

    def _follows(self, before: int, after: int, shaved: list[int], apart_s: float) -> None:
        """start(after) − start(before) + shaved off ≥ slowest + lag."""
        columns = np.array([after, before, *shaved], dtype=np.int32)
        values = np.array([1.0, -1.0] + [1.0] * len(shaved))
        self._highs.addRow(apart_s, self._inf, len(columns), columns, values)
