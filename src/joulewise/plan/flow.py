"""The exact time–energy frontier of an iteration: every vertex of it, by parametric minimum-cost flow.

The dual of "least energy by a deadline" is a flow from start to end whose value is the worth of a second of the
deadline in watts (Fulkerson 1961, Kelley 1961). As it grows, the deadline falls from vertex to vertex, each found warm
from the one before (native/flow). The relaxed frontier is exact on the hulls of measured options; plans are rounded to
measured options when they are read (``plan.iteration``). No clock is applied and nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.flow_native import Flow, OutOfUnits, WholeDag
from joulewise.plan.iteration import IterationFrontier, Planned
from joulewise.plan.options import LIMIT, Units
from joulewise.plan.problem import EdgeLike, Problem

__all__ = ["IterationFrontier", "Planned", "solve"]

S = TypeVar("S")


def solve(
    options: Sequence[Sequence[Point[S]]],
    edges: Iterable[EdgeLike],
    *,
    blocking_w: float,
    lanes: int,
    slope_grid: float | None = None,
    lane_order: Sequence[Sequence[int]] = (),
) -> IterationFrontier[S]:
    """The frontier of operations with measured options on a directed acyclic graph.

    ``options[i]`` are the ways to do operation i, energy as measured; operations that share one object share one curve.
    ``edges`` are (before, after, lag in seconds). ``lanes`` GPUs draw ``blocking_w`` each while they wait.
    ``slope_grid`` rounds slopes to multiples of so many watts: fewer vertices, each a true plan, and slightly dearer.
    ``lane_order`` lists the operations of each lane in the order in which they run, for switch costs.
    BadSpec for what cannot be planned; MissingPart where the compiled solver is not there.
    """
    if slope_grid is not None and not 0 < slope_grid < math.inf:
        raise BadSpec(f"a slope grid of {slope_grid:g} W; it must be above 0")
    problem = Problem.of(options, edges, blocking_w=blocking_w, lanes=lanes, lane_order=lane_order)
    for units in _units(problem):
        try:
            flow, dag = _run(problem, units, slope_grid)
        except (OutOfUnits, OverflowError):
            continue
        return IterationFrontier(problem, flow, dag, units)
    raise BadSpec(
        "times and energies span too much for exact sums of 62 bits; plan a part of the iteration, or drop options "
        "whose times are all but equal"
    )


def _run(problem: Problem[S], units: Units, slope_grid: float | None) -> tuple[Flow, WholeDag]:
    lag = np.array([units.up(lag_s) for lag_s in problem.lag_s.tolist()], dtype=np.int64)
    dag = WholeDag(problem.curve_of, problem.before, problem.after, lag)
    exact = [curve.whole(units) for curve in problem.curves]
    if slope_grid is None:
        flow = Flow(exact, dag)
    else:
        flow = Flow([curve.whole(units, grid_w=slope_grid) for curve in problem.curves], dag, exact=exact)
    flow.run()
    return flow, dag


def _units(problem: Problem[S]) -> Iterator[Units]:
    """Units for sums of 62 bits, finest first: about 10¹⁰ steps for the time of an iteration, the rest for slopes.

    Steps are powers of ten, of at least 1 ps and 1 µW. Coarser slopes follow for graphs with steep hulls.
    """
    least_j = problem.each([curve.effective_j[curve.hull[0]] for curve in problem.curves])
    most_j = problem.each([curve.effective_j[curve.hull[-1]] for curve in problem.curves])
    span_j = float(np.abs(least_j).sum() + (most_j - least_j).sum())
    slowest_s = problem.end_s(problem.each([curve.slowest_s for curve in problem.curves]).tolist())
    time_digits = _digits(1e10, slowest_s, at_most=12)
    slope_digits = _digits(LIMIT / 4 / 10.0**time_digits, span_j, at_most=6)
    # A slope unit of more than a kilowatt would say nothing about GPUs any more.
    for digits in range(slope_digits, max(slope_digits - 4, -3) - 1, -1):
        yield Units(10.0**time_digits, 10.0**digits)


def _digits(steps: float, of: float, *, at_most: int) -> int:
    """The largest power of ten that makes no more than so many steps of a quantity."""
    return min(at_most, math.floor(math.log10(steps) - math.log10(of))) if of > 0 else at_most
