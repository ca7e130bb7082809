"""The compiled solver at its own boundary: integers that add up exactly, errors for any input, and Ctrl-C."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings

from joulewise.core.errors import BadSpec
from joulewise.plan import flow_native
from joulewise.plan.flow_native import Flow, OutOfUnits, WholeDag
from joulewise.plan.options import Units, WholeHull
from tests.plan.problems import Case, cases

UNITS = Units(1e6, 1e3)


def dag_of(hull: list[int], edges: list[tuple[int, int, int]]) -> WholeDag:
    columns = np.array(edges, dtype=np.int64).reshape(-1, 3)
    return WholeDag(
        np.array(hull, np.int32),
        columns[:, 0].astype(np.int32),
        columns[:, 1].astype(np.int32),
        columns[:, 2].copy(),
    )


def hull_of(duration: list[int], slope: list[int], energy: list[int]) -> WholeHull:
    return WholeHull(np.array(duration, np.int64), np.array(slope, np.int64), np.array(energy, np.int64))


def cost(hull: WholeHull, duration: int) -> int:
    """By hand, in whole numbers."""
    if duration >= hull.duration[0]:
        return int(hull.energy[0])
    at = int(np.flatnonzero(hull.duration > duration)[-1])
    return int(hull.energy[at]) + int(hull.slope[at]) * (int(hull.duration[at]) - duration)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_durations_at_every_vertex_and_between_cost_exactly_what_the_frontier_says(case: Case) -> None:
    problem = case.problem()
    hulls = [curve.whole(UNITS) for curve in problem.curves]
    lag = np.array([UNITS.up(lag_s) for lag_s in problem.lag_s.tolist()], np.int64)
    flow = Flow(hulls, WholeDag(problem.curve_of, problem.before, problem.after, lag))
    flow.run()
    time_, energy, slope = flow.vertices()
    assert (np.diff(time_) < 0).all()
    assert (np.diff(slope) > 0).all()
    for at in range(len(time_)):
        for ticks in {int(time_[at]), int(time_[at] + time_[max(at - 1, 0)]) // 2}:
            plan = flow.plan(ticks)
            assert (plan.start >= 0).all()
            assert (plan.end <= ticks).all()
            assert (plan.start[problem.after] >= plan.end[problem.before] + lag).all()
            paid = sum(
                cost(hulls[kind], int(room)) for kind, room in zip(problem.curve_of, plan.end - plan.start, strict=True)
            )
            assert paid == energy[at] - slope[at] * (ticks - time_[at])


def test_a_plan_can_be_read_for_every_vertex_of_a_long_run() -> None:
    """More vertices than snapshots: most are run again from the snapshot before them."""
    rng = np.random.default_rng(3)
    hulls = []
    for _ in range(40):
        duration = np.sort(rng.choice(10**6, 20, replace=False))[::-1].copy()
        slope = np.sort(rng.choice(10**6, 19, replace=False)) + 1
        hulls.append(WholeHull(duration, slope, np.concatenate([[0], np.cumsum(slope * -np.diff(duration))])))
    dag = dag_of(list(range(40)), [(i, i + 1, 0) for i in range(19)] + [(i, i + 1, 5) for i in range(20, 39)])
    flow = Flow(hulls, dag)
    flow.run()
    time_, energy, _ = flow.vertices()
    assert len(time_) > 2 * flow_native.SNAPSHOTS
    for at in range(0, len(time_), 37):
        plan = flow.plan(int(time_[at]))
        room = plan.end - plan.start
        assert sum(cost(hull, int(span)) for hull, span in zip(hulls, room, strict=True)) == energy[at]
    assert 0 < flow.memory_bytes < 1e6


ONE = hull_of([5, 2], [7], [0, 21])


@pytest.mark.parametrize(
    ("hulls", "hull", "edges", "error"),
    [
        ([ONE], [0, 1], [], BadSpec),
        ([ONE], [0, -1], [], BadSpec),
        ([ONE], [0], [(0, 1, 0)], BadSpec),
        ([ONE], [0, 0], [(0, 1, -1)], BadSpec),
        ([ONE], [0, 0], [(0, 1, 0), (1, 0, 0)], BadSpec),
        ([ONE], [], [], BadSpec),
        ([hull_of([2, 5], [7], [0, 21])], [0], [], BadSpec),
        ([hull_of([5, 2], [0], [0, 0])], [0], [], BadSpec),
        ([hull_of([9, 5, 2], [7, 7], [0, 28, 49])], [0], [], BadSpec),
        ([hull_of([-1], [], [0])], [0], [], BadSpec),
        ([hull_of([1 << 62], [], [0])], [0], [], OutOfUnits),
        ([hull_of([1 << 59], [], [0])], [0] * 4, [], OutOfUnits),
        ([hull_of([2, 1], [1 << 61], [0, 1 << 61])], [0], [], OutOfUnits),
        ([hull_of([1], [], [1 << 61])], [0, 0], [], OutOfUnits),
        ([hull_of([1 << 40, 0], [1 << 40], [0, 0])], [0], [], OutOfUnits),
    ],
)
def test_bad_input_is_an_error_and_never_a_crash(
    hulls: list[WholeHull], hull: list[int], edges: list[tuple[int, int, int]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Flow(hulls, dag_of(hull, edges)).run()


def test_null_pointers_are_errors_too() -> None:
    library = flow_native.library()
    assert library.jw_flow_new(None, None, None, 1, None) < 0
    assert library.jw_flow_advance(None, 1) < 0
    assert library.jw_flow_vertices(None, None) < 0
    assert library.jw_flow_plan(None, 0, None, None, None) < 0
    assert library.jw_flow_repair(None, None, None, 0, None) < 0
    assert library.jw_flow_fit(None, None, None, None) < 0
    assert library.jw_flow_bytes(None) == 0
    library.jw_flow_free(None)


def test_a_plan_outside_the_frontier_is_refused() -> None:
    flow = Flow([ONE], dag_of([0], []))
    flow.run()
    for ticks in (1, 6):
        with pytest.raises(BadSpec, match="does not exist"):
            flow.plan(ticks)
    with pytest.raises(ctypes.ArgumentError):
        flow.plan("soon")  # type: ignore[arg-type]


LONG = """
import sys, numpy as np
from joulewise.core.frontier import Point
from joulewise.plan.flow import solve
rng = np.random.default_rng(0)
options = [tuple(Point(float(t), float(100 / t + rng.normal()), i) for i, t in enumerate(rng.uniform(1, 3, 40)))
           for _ in range(6000)]
edges = [(int(a), int(b), 0.0) for b in range(1, 6000) for a in {rng.integers(max(0, b - 40), b) for _ in range(3)}]
print("ready", flush=True)
solve(options, edges, blocking_w=1.0, lanes=1)
print("done", flush=True)
"""


def test_ctrl_c_ends_a_long_run_between_two_calls() -> None:
    child = subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(60.0, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(1.0)  # into the solver, which takes far longer
        os.kill(child.pid, signal.SIGINT)
        out, problems = child.communicate()
    finally:
        watchdog.cancel()
    assert out == ""
    assert "KeyboardInterrupt" in problems
    assert child.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)
