"""What a plan promises of this job's iterations, and whether they kept it.

A plan knows operations and what waiting costs on average; a job also has optimiser steps, loaders and logging, and its
GPUs wait at the clock of what comes next. So the promise is made in joules and seconds saved an iteration, against what
an iteration without a plan was measured to take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.core.knob import Setting
from joulewise.plan.plan import Plan, PlanPoint
from joulewise.tune.follow_clocks import ceiling_mhz

STALLED = 1.25
"""An iteration that takes so many times as long as the shortest beside it had to wait for something else."""
BAND = 0.02
"""A promise is kept within so much of an iteration's energy, and of its time, or within two standard errors."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations as measured, of all GPUs: one on average. ``error_j`` is one standard error."""

    time_s: float
    energy_j: float
    error_j: float
    count: int

    @classmethod
    def of(cls, ranks: Sequence[Sequence[tuple[float, float, float]]]) -> Iterations:
        """From the same iterations of every rank, as (seconds, joules, error): joules add, the slowest sets the pace.

        Iterations that were held up by something else (a checkpoint, a loader) are left out.
        """
        times_s = [max(time_s for time_s, _, _ in each) for each in zip(*ranks, strict=True)]
        clean = [at for at, time_s in enumerate(times_s) if time_s <= STALLED * min(times_s)]
        return cls(
            math.fsum(times_s[at] for at in clean) / len(clean),
            math.fsum(rank[at][1] for rank in ranks for at in clean) / len(clean),
            math.hypot(*(rank[at][2] for rank in ranks for at in clean)) / len(clean),
            len(clean),
        )

    def and_(self, other: Iterations) -> Iterations:
        """Both together, each counting as much as the other."""
        return Iterations(
            0.5 * (self.time_s + other.time_s),
            0.5 * (self.energy_j + other.energy_j),
            0.5 * math.hypot(self.error_j, other.error_j),
            self.count + other.count,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was promised of an iteration and what it was, as shares of one with nothing set."""

    promised_saving: float
    promised_slowdown: float
    saving: float
    slowdown: float
    error: float
    """One standard error of ``saving`` as measured, with that of the promise."""
    kept: bool
    iterations: int

    @property
    def says(self) -> str:
        """In a line."""
        kept = "kept" if self.kept else "not kept"
        return (
            f"{-100 * self.saving:+.1f} % ± {100 * self.error:.1f} % energy and {100 * self.slowdown:+.1f} % time an "
            f"iteration; {-100 * self.promised_saving:+.1f} % and {100 * self.promised_slowdown:+.1f} % were promised, "
            f"which was {kept}"
        )


class Waiting:
    """What a GPU draws while it waits, by the clock it waits at: measured at some, straight lines between."""

    def __init__(self, measured_w: Mapping[Setting, float], default_mhz: float) -> None:
        self._default_mhz = default_mhz
        found = sorted((self._mhz(setting), watts) for setting, watts in measured_w.items())
        self._mhz_of, self._watts = [mhz for mhz, _ in found], [watts for _, watts in found]

    def __call__(self, setting: Setting) -> float:
        """Watts."""
        return float(np.interp(self._mhz(setting), self._mhz_of, self._watts))

    def _mhz(self, setting: Setting) -> float:
        return min(ceiling_mhz(setting), self._default_mhz)


def saved_j(plan: Plan, point: PlanPoint, waiting_w: Callable[[int, Setting], float] | None = None) -> float:
    """Joules that an iteration at ``point`` needs less than with nothing set, of all GPUs.

    ``waiting_w`` is what a rank's GPU draws while it waits at a setting; None: as the plan takes it.
    """
    saved = plan.baseline.energy_j - point.energy_j
    if waiting_w is None:
        return saved
    corrections = [_waiting_j(plan, each, waiting_w) for each in (plan.baseline, point)]
    return saved + corrections[0] - corrections[1]


def verify(
    plan: Plan,
    point: PlanPoint,
    without: Iterations,
    with_: Iterations,
    waiting_w: Callable[[int, Setting], float] | None = None,
) -> Verdict:
    """Iterations with the plan against iterations without it, and against what the plan promised."""
    promised = saved_j(plan, point, waiting_w) / without.energy_j
    slower = (point.time_s - plan.baseline.time_s) / without.time_s
    saving = 1.0 - with_.energy_j / without.energy_j
    slowdown = with_.time_s / without.time_s - 1.0
    measured = math.hypot(with_.error_j, without.error_j) / without.energy_j
    error = math.hypot(measured, plan.energy_error_j(point) / without.energy_j)
    kept = saving >= promised - max(BAND, 2.0 * error) and slowdown <= slower + BAND
    return Verdict(promised, slower, saving, slowdown, error, kept, with_.count)


def _waiting_j(plan: Plan, point: PlanPoint, waiting_w: Callable[[int, Setting], float]) -> float:
    """What waiting takes beyond what the plan reckons for it: each wait is at the clock of the operation after it."""
    steps = [step for row in plan.steps(point) for step in row]
    extra_j = 0.0
    done_s = 0.0
    first: tuple[float, Setting] | None = None
    operations, times_s = plan.schedule.dag.operations, plan.times_s(point)
    for at, (operation, step, (start_s, end_s)) in enumerate(zip(operations, steps, times_s, strict=True)):
        if first is None:
            first = start_s, step.setting
        else:
            extra_j += (start_s - done_s) * (waiting_w(operation.rank, step.setting) - plan.costs.blocking_w)
        done_s = end_s
        if at + 1 == len(operations) or operations[at + 1].rank != operation.rank:
            around_s = first[0] + point.time_s - done_s
            extra_j += around_s * (waiting_w(operation.rank, first[1]) - plan.costs.blocking_w)
            first = None
    return plan.costs.gpus_per_rank * extra_j
