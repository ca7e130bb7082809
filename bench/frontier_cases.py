"""Pipelines to plan: a synthetic family of any size, and measured stage profiles; both 1F1B, one stage a lane.

The synthetic stage is an A100-like law with a voltage floor; stages differ by up to 8 % (seed 0) and the last is 10 %
longer. It is the family that published times of lowtime and of exact solvers refer to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan import profile_files
from joulewise.plan.dag import FORWARD, Edge
from joulewise.plan.problem import Problem
from joulewise.plan.profile import Options, Profile
from joulewise.plan.schedules_named import named

CLOCKS_MHZ = range(1410, 869, -30)
SYNTHETIC_BLOCKING_W = 85.0


@dataclass(frozen=True)
class Case:
    """One pipeline with the measured options of its operations."""

    name: str
    options: list[Options]
    edges: tuple[Edge, ...]
    blocking_w: float
    lanes: int

    @cached_property
    def distinct(self) -> list[Options]:
        """Every options object once."""
        return list({id(points): points for points in self.options}.values())

    @cached_property
    def index_of(self) -> dict[int, int]:
        """By id of an options object, its place in ``distinct``."""
        return {id(points): at for at, points in enumerate(self.distinct)}

    @cached_property
    def problem(self) -> Problem[Setting]:
        """As bounds and other people's plans are judged on."""
        return Problem.of(self.options, self.edges, blocking_w=self.blocking_w, lanes=self.lanes)

    @cached_property
    def baseline(self) -> tuple[float, float]:
        """Seconds and total joules with every operation at its highest clock."""
        highest = [max(points, key=lambda point: point.setting["sm_mhz"]) for points in self.options]
        time_s = self.problem.end_s([point.time_s for point in highest])
        effective_j = sum(point.energy_j - self.blocking_w * point.time_s for point in highest)
        return time_s, effective_j + self.problem.waiting_w * time_s


def synthetic(stages: int, microbatches: int) -> Case:
    """A pipeline of the synthetic family."""
    random = np.random.default_rng(0)
    factors = 1.0 + 0.08 * random.uniform(-1.0, 1.0, stages)
    factors[-1] *= 1.10
    options: dict[tuple[int, str], Options] = {}
    for stage in range(stages):
        for kind, base_s in (("forward", 0.050), ("backward", 0.100)):
            points = []
            for clock_mhz in CLOCKS_MHZ:
                ratio = clock_mhz / CLOCKS_MHZ[0]
                time_s = float(base_s * factors[stage] * (0.85 / ratio + 0.15))
                voltage = 0.72 + 0.28 * ratio
                power_w = 85.0 + 300.0 * (0.85 * ratio * voltage**2 + 0.075)
                points.append(Point(time_s, power_w * time_s, Setting(sm_mhz=clock_mhz)))
            options[stage, kind] = tuple(points)
    return _case(f"{stages}x{microbatches}", Profile(options), microbatches, SYNTHETIC_BLOCKING_W)


def profiled(path: Path, microbatches: int, blocking_w: float) -> Case:
    """A pipeline of the stages in a profile."""
    return _case(f"{path.stem} × {microbatches}", profile_files.read(path), microbatches, blocking_w)


def _case(name: str, profile: Profile, microbatches: int, blocking_w: float) -> Case:
    stages = sum(kind == FORWARD for _, kind in profile.options)
    # Not torch's answer, though it is the same: a bench should not depend on whether torch is there.
    dag = named("1f1b", stages=stages, microbatches=microbatches, ask=False).dag
    return Case(name, profile.of(dag), dag.edges, blocking_w, dag.ranks)
