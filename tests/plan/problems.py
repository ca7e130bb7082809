"""Small problems for the tests of the solver: random graphs with random options, and what an LP says of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog

from joulewise.core.frontier import Point
from joulewise.plan.problem import Problem

Options = tuple[Point[str], ...]
Edges = list[tuple[int, int, float]]


@dataclass(frozen=True)
class Case:
    options: list[Options]
    edges: Edges
    blocking_w: float
    lanes: int

    def problem(self) -> Problem[str]:
        return Problem.of(self.options, self.edges, blocking_w=self.blocking_w, lanes=self.lanes)


# Milliseconds and tenths of joules: noisy, non-convex, with repeats, and at times 0 s long.
_points = st.tuples(st.integers(0, 40), st.integers(1, 400)).map(lambda p: (p[0] / 1000, p[1] / 10))
_options = st.lists(_points, min_size=1, max_size=6).map(
    lambda points: tuple(Point(t, e, f"s{i % 3}") for i, (t, e) in enumerate(points))
)


@st.composite
def cases(draw: st.DrawFn, most: int = 7) -> Case:
    count = draw(st.integers(1, most))
    kinds = draw(st.lists(_options, min_size=1, max_size=4))
    options = [kinds[draw(st.integers(0, len(kinds) - 1))] for _ in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    # Numbers of operations say nothing of their order.
    names = draw(st.permutations(range(count)))
    edges = [(names[i], names[j], draw(st.sampled_from((0.0, 0.0, 0.003)))) for i, j in chosen]
    return Case(options, edges, draw(st.sampled_from((0.0, 80.0))), draw(st.integers(0, 3)))


def linear_program(problem: Problem[str], deadline_s: float) -> float:
    """Least effective energy by the deadline: start of every operation, and its duration and cost as mixtures of hull
    points. Another formulation than ``plan.bound``'s, by SciPy."""
    price: list[float] = [0.0] * problem.operations
    mixes: list[list[int]] = []
    for at in range(problem.operations):
        curve = problem.curve(at)
        mixes.append(list(range(len(price), len(price) + len(curve.options))))
        price += curve.effective_j.tolist()
    rows, limits = [], []

    def before(at: int, row: np.ndarray, limit: float) -> None:
        row[at] = 1.0
        row[mixes[at]] = problem.curve(at).time_s
        rows.append(row)
        limits.append(limit)

    for one, other, lag_s in zip(problem.before, problem.after, problem.lag_s, strict=True):
        row = np.zeros(len(price))
        row[other] = -1.0
        before(int(one), row, -lag_s)
    for at in range(problem.operations):
        before(at, np.zeros(len(price)), deadline_s)
    sums = np.zeros((problem.operations, len(price)))
    for at, mix in enumerate(mixes):
        sums[at, mix] = 1.0
    found = linprog(price, A_ub=np.array(rows), b_ub=limits, A_eq=sums, b_eq=np.ones(len(sums)), method="highs")
    assert found.success, found.message
    return float(found.fun)


def pipeline(stages: int, microbatches: int) -> tuple[list[tuple[int, str]], Edges, list[list[int]]]:
    """A 1F1B pipeline by hand: (stage, kind) of every operation, edges, and the order of each stage."""
    names: dict[tuple[int, str, int], int] = {}
    lanes: list[list[int]] = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, microbatches)
        order = [("forward", m) for m in range(warm)]
        for m in range(microbatches):
            if warm + m < microbatches:
                order.append(("forward", warm + m))
            order.append(("backward", m))
        lanes.append([])
        for kind, m in order:
            names[stage, kind, m] = len(names)
            lanes[-1].append(names[stage, kind, m])
    edges = [(a, b, 0.0) for lane in lanes for a, b in pairwise(lane)]
    for stage in range(stages - 1):
        for m in range(microbatches):
            edges.append((names[stage, "forward", m], names[stage + 1, "forward", m], 0.0))
            edges.append((names[stage + 1, "backward", m], names[stage, "backward", m], 0.0))
    return [(stage, kind) for stage, kind, _ in names], edges, lanes
