"""From measured schedules of one partition to the parameters of its simulator.

What it is: robust least squares on logarithms of time and energy (``model/levenberg``) with weak beliefs about every
unknown, from several starts. Schedules measured at one clock say little of what the operations do at another; that
comes from `Clocked` work, measured on work of the same kind on the same GPU model (a profile of pipeline stages),
and from the chip's voltage curve. What it is not: a judge; whoever fits holds rows out and looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model.levenberg import Prior, Problem, solve_own
from joulewise.model.partition import Collective, Operation, Outcome, Partition, Schedule, alone, simulate
from joulewise.model.physics import Chip

Array = NDArray[Any]

# One residual of 1: the accuracy that a law of this kind can have, in logarithms. Repeats of the A100 grid scatter by
# 0.0016 in time and 0.013 in energy.
_TIME_UNIT, _ENERGY_UNIT = 0.01, 0.01
# Work of the same kind is not the same work (0.02 at best), but a few clocks stand against hundreds of schedules.
_CLOCK_UNIT = 0.005
_OWN = 5  # unknowns of one operation: compute, memory, latency, queue, watts
_STARTS = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """One schedule: seconds and joules of one GPU."""

    schedule: Schedule
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True)
class Clocked:
    """Compute of the same kind at some SM clock, its clock not held back by a power limit. Only ratios count."""

    sm_mhz: float
    time_s: float
    energy_j: float


def fit(
    measured: Sequence[Measured],
    names: Sequence[str],
    *,
    sms: int,
    chip: Chip,
    static_w: float,
    clocked: Sequence[Clocked] = (),
    seed: int = 0,
) -> Partition:
    """The partition whose simulation is nearest to what was measured.

    `names` are the operations, in order; `static_w` is the belief about power without work; `clocked` work is like
    the operations together, without the collective, and as long or as short as it likes. Raises ModelError where
    there are fewer schedules than unknowns of one operation times the operations.
    """
    if len(measured) < _OWN * len(names):
        raise ModelError(f"{len(measured)} schedules cannot tell {len(names)} operations apart; measure more of them")
    schedules = [one.schedule for one in measured]
    target = np.log([[one.time_s for one in measured], [one.energy_j for one in measured]])
    x = np.array([one.sm_mhz / chip.sm_max_mhz for one in clocked])
    like = np.log([[one.time_s for one in clocked], [one.energy_j for one in clocked]])
    blocks = sorted({schedule.block for schedule in schedules})
    shape = _Shape(tuple(names), tuple(blocks), sms, chip)
    mean, spread = shape.belief(measured, static_w)

    def residuals(_: Array, own: Array) -> Array:
        partition = shape.partition(own[:, 0])
        seen = simulate(partition, schedules)
        miss = np.log([seen.time_s, seen.energy_j]) - target
        miss = miss / np.array([[_TIME_UNIT], [_ENERGY_UNIT]])
        if not clocked:
            return np.asarray(miss)
        apart = np.log(alone(partition, x)) - like
        return np.concatenate([miss, (apart - apart.mean(axis=1, keepdims=True)) / _CLOCK_UNIT], axis=1)

    problem = Problem(
        residuals,
        np.zeros(len(measured) + len(clocked), int),
        Prior(np.zeros(0), np.ones(0)),
        Prior(mean, spread),
        scale=3.0,
        noise=1.0,
    )
    random = np.random.default_rng(seed)
    starts = [mean, *(mean + 0.5 * spread * random.normal(size=len(mean)) for _ in range(_STARTS - 1))]
    found = [solve_own(problem, np.zeros(0), start[:, None], steps=60) for start in starts]
    return shape.partition(min(found, key=lambda solution: solution.cost).own[:, 0])


def errors(partition: Partition, measured: Sequence[Measured]) -> tuple[Array, Array]:
    """Relative errors of the simulated time and energy, one each a schedule; above 0: simulated too much."""
    seen: Outcome = simulate(partition, [one.schedule for one in measured])
    return (
        seen.time_s / np.array([one.time_s for one in measured]) - 1.0,
        seen.energy_j / np.array([one.energy_j for one in measured]) - 1.0,
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a vector of unknowns (logarithms and logits) becomes a partition."""

    names: tuple[str, ...]
    blocks: tuple[int, ...]
    sms: int
    chip: Chip

    def belief(self, measured: Sequence[Measured], static_w: float) -> tuple[Array, Array]:
        """Centre and spread of every unknown, scaled by the fastest schedule and the spread over SM counts."""
        fastest = min(one.time_s for one in measured)
        slowest = max(one.time_s for one in measured)
        least = min(one.energy_j for one in measured)
        joules = max(least - static_w * fastest, 0.1 * least)
        each = fastest / len(self.names)
        own = [np.log(0.8 * each), np.log(0.4 * each), np.log(0.5), -1.0, np.log(joules / fastest)]
        own_spread = [1.0, 1.0, 0.5, 1.0, 0.2]
        fewest = min(one.schedule.sms for one in measured)
        rate = 1.0 / (max(slowest - fastest, 0.1 * fastest) * fewest)
        shared = [
            *(np.log(rate) for _ in self.blocks),
            np.log(4.0 / fastest),  # link
            np.log(0.05 * fastest),  # HBM
            np.log(0.05 * joules),  # joules of the collective
            np.log(0.5),  # watts of one of its SMs
            np.log(2.0),  # sharpness
            np.log(0.01 * fastest),  # launch
            np.log(static_w),
        ]
        shared_spread = [*(1.0 for _ in self.blocks), 1.0, 1.0, 1.0, 1.0, 0.5, 1.5, 0.1]
        return np.array(own * len(self.names) + shared), np.array(own_spread * len(self.names) + shared_spread)

    def partition(self, z: Array) -> Partition:
        """The partition that `z` stands for."""
        operations = []
        for index, name in enumerate(self.names):
            compute, memory, latency, queue, watts = z[_OWN * index : _OWN * (index + 1)]
            operations.append(
                Operation(
                    name,
                    compute_s=float(np.exp(compute)),
                    memory_s=float(np.exp(memory)),
                    energy_j=float(np.exp(watts + max(compute, memory))),
                    latency=float(np.exp(latency)),
                    queue=float(1.0 / (1.0 + np.exp(-queue))),
                )
            )
        shared = np.exp(z[_OWN * len(self.names) :])
        rates = {block: float(shared[i]) for i, block in enumerate(self.blocks)}
        link, hbm, joules, sm_w, sharpness, launch, static = (float(value) for value in shared[len(self.blocks) :])
        collective = Collective(rates, link, hbm, joules, sm_w, sharpness, launch_s=launch)
        return Partition(tuple(operations), collective, self.sms, self.chip, static)
