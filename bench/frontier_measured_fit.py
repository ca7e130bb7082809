"""Fits the stage law of one pipeline to two measured iterations: with nothing set, and of the fastest plan.

Known of both: the times of operations, the iteration's time and energy, and the mean clock of each rank. What they
leave open comes from priors: the GPU model of the catalogue, the published blocking power, and how the same operations
of another model followed the clock on such a GPU (its stage profile). One standard error of a prediction comes from the
covariance of all unknowns at the fit, and from what the clocks do not tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.frontier_measured_clocks import Clocks, Ends, clocks, fitting
from bench.frontier_measured_law import StageLaw
from joulewise.model.catalog import GpuModel
from joulewise.model.levenberg import Prior, Problem, own_covariance, solve_own
from joulewise.model.physics import Load
from joulewise.plan.dag import FORWARD, Dag

Array = NDArray[Any]

TIME_NOISE = 0.012
"""Of an operation's time: stages of the same layers, and mean clocks for those of every operation."""
ENERGY_NOISE = 0.01
_OUTLIER = 3.0  # standard errors beyond which a measurement pulls only linearly
_STEP = 1e-4


@dataclass(frozen=True)
class Iteration:
    """One measured iteration. ``mean_s`` and ``median_s`` of operations are (ranks, kinds)."""

    time_s: float
    energy_j: float
    mean_mhz: Array
    mean_s: Array
    median_s: Array


@dataclass(frozen=True)
class Pipeline:
    """What is known of a pipeline before anything is predicted."""

    dag: Dag
    microbatches: int
    gpu: GpuModel
    wait_w: float
    sm_share: Array
    """How much of a forward and a backward follows the clock, on another model."""
    unset: Iteration
    fastest: Iteration
    slow_mhz: Array
    """The lowest mean clock of each rank in any plan."""

    @cached_property
    def ends(self) -> Ends:
        """Of the plans' clocks."""
        return Ends(self.slow_mhz, self.fastest.mean_mhz, int(self.fastest.mean_s.sum(axis=1).argmax()))

    def played_s(self, operation_s: Array) -> float:
        """Of all operations in the schedule's order, without what lies between and after them."""
        columns = [(operation.rank, int(operation.kind != FORWARD)) for operation in self.dag.operations]
        lengths = [float(operation_s[at]) for at in columns]
        return max(start + length for start, length in zip(self.dag.starts_s(lengths), lengths, strict=True))

    @cached_property
    def fill_s(self) -> float:
        """What filling and draining takes beyond the cycles of the slowest rank, with nothing set."""
        return self.played_s(self.unset.mean_s) - self.cycles_s(self.unset.mean_s)

    @cached_property
    def rest_s(self) -> float:
        """What an iteration takes beyond its operations: transfers, the optimiser's step."""
        return self.unset.time_s - self.played_s(self.unset.mean_s)

    def cycles_s(self, operation_s: Array) -> float:
        """All microbatches on the slowest rank."""
        return self.microbatches * float(operation_s.sum(axis=1).max())


class Unknowns:
    """What is fitted, as numbers of order 1 around the priors."""

    names = (
        *("sm_share_0", "sm_share_1", "dynamic_0", "dynamic_1", "static", "wait", "rest"),
        *("cap", "averaging", "agility", "volt_floor", "volt_knee"),
    )

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.count = len(self.names)

    def law(self, z: Array) -> StageLaw:
        """The law that unknowns stand for."""
        pipeline, chip = self._pipeline, self._pipeline.gpu.chip
        at = dict(zip(self.names, z.tolist(), strict=True))
        limit_w = pipeline.gpu.default_limit_w
        # Dynamic power is 1.3–1.4 of limit − static for GPT-3 stages, 0.7–2.1 for steps of other values.
        dynamic_w = 1.35 * (limit_w - chip.static_w) * np.exp(0.35 * np.array([at["dynamic_0"], at["dynamic_1"]]))
        share = np.log(pipeline.sm_share / (1.0 - pipeline.sm_share))
        share = share + 0.8 * np.array([at["sm_share_0"], at["sm_share_1"]])
        wait_w = pipeline.wait_w * np.exp(0.05 * at["wait"])
        return StageLaw(
            chip=replace(
                chip,
                # Fits of one chip to other series leave the voltage curve open by about this much.
                volt_floor=chip.volt_floor + 0.04 * at["volt_floor"],
                volt_knee=chip.volt_knee + 0.03 * at["volt_knee"],
            ),
            # Fields may hold arrays, which broadcast: see model/physics.
            load=Load(
                gpu_s=1.0,
                sm_share=1.0 / (1.0 + np.exp(-share)),  # type: ignore[arg-type]
                dynamic_w=dynamic_w,  # type: ignore[arg-type]
                static_part=float(np.exp(0.15 * at["static"])),  # the spread of model/unknowns
            ),
            full_s=pipeline.unset.mean_s,
            cap_w=chip.limiter_gain * limit_w * float(np.exp(0.01 * at["cap"])),
            averaging=_logistic(at["averaging"]),
            agility=0.175 + 0.1 * at["agility"],  # as in plan/xray_law: from 0 to 0.35
            wait_w=wait_w,
            # Between waiting and full work; transfers and the optimiser are bound by memory or links.
            rest_w=wait_w + _logistic(-1.1 + 0.7 * at["rest"]) * (limit_w - wait_w),
        )


@dataclass(frozen=True)
class Predicted:
    """One iteration, with one standard error of each."""

    time_s: float
    energy_j: float
    time_error_s: float
    energy_error_j: float


class Fitted:
    """The law of a pipeline, ready to be asked about other plans."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._unknowns = Unknowns(pipeline)
        ranks = len(pipeline.slow_mhz)
        fast = pipeline.fastest
        # Most operations slow and a few fast: the mean is below the median. That is a rank that fits into the cycle.
        self._fitted_in = fast.median_s.sum(axis=1) > fast.mean_s.sum(axis=1)
        size = self._unknowns.count + ranks
        problem = Problem(
            lambda _, own: self._misses(own[:, 0])[None, :],
            np.zeros(2 * ranks + 2, dtype=int),
            Prior(np.zeros(0), np.ones(0)),
            Prior(np.zeros((1, size)), np.ones(size)),
            _OUTLIER,
            1.0,
        )
        solution = solve_own(problem, np.zeros(0), np.zeros((size, 1)), steps=200)
        count = self._unknowns.count
        self._z = solution.own[:count, 0]
        self._covariance = own_covariance(problem, solution)[0][:count, :count]
        self.law = self._unknowns.law(self._z)

    def predict(self, mean_mhz: Array) -> Predicted:
        """Time and energy of a plan from the mean clock of each of its ranks."""
        slow_fill_s = self._slow_fill_s(self.law, mean_mhz)
        middle = self._said(self.law, mean_mhz, slow_fill_s)
        slopes = []
        for at in range(len(self._z)):
            moved = self._z.copy()
            moved[at] += _STEP
            slopes.append((self._said(self._unknowns.law(moved), mean_mhz, slow_fill_s) - middle) / _STEP)
        variance = np.einsum("ik,ij,jk->k", np.array(slopes), self._covariance, np.array(slopes))
        variance[0] += self._unseen_s(mean_mhz) ** 2
        return Predicted(*middle.tolist(), *np.sqrt(variance).tolist())

    def values(self) -> Mapping[str, float]:
        """The unknowns as fitted, in words and units."""
        law = self.law
        share, dynamic_w = np.asarray(law.load.sm_share), np.asarray(law.load.dynamic_w)
        return {
            "forward_sm_share": float(share[0]),
            "backward_sm_share": float(share[1]),
            "forward_dynamic_w": float(dynamic_w[0]),
            "backward_dynamic_w": float(dynamic_w[1]),
            "static_w": law.chip.static_w * law.load.static_part,
            "wait_w": law.wait_w,
            "rest_w": law.rest_w,
            "averaging": law.averaging,
            "full_mhz": float(law.full_x.min()) * law.chip.sm_max_mhz,
        }

    def _misses(self, z: Array) -> Array:
        """Of the two iterations, in standard errors. Behind the law's unknowns: how far one kind leads, one a rank."""
        pipeline, count = self._pipeline, self._unknowns.count
        law, fast = self._unknowns.law(z[:count]), pipeline.fastest
        lead = 1.0 / (1.0 + np.exp(-1.5 * z[count:]))  # nearly even between none and the largest
        had = clocks(law, pipeline.ends, fast.mean_mhz, self._fitted_in, lead)
        seen_s = np.where(self._fitted_in[:, None], fast.median_s, fast.mean_s)
        by_time = np.log(had.usual(law.time_s(had.mhz)) / seen_s) / TIME_NOISE
        top = np.full_like(law.full_s, law.chip.sm_max_mhz)
        unset_j = self._energy_j(law, law.energy_j(top), law.full_s, pipeline.unset.time_s)
        fast_j = self._of_clocks_j(law, had, fast.time_s)
        by_energy = np.log([unset_j / pipeline.unset.energy_j, fast_j / fast.energy_j]) / ENERGY_NOISE
        return np.concatenate([by_time.ravel(), by_energy])

    def _said(self, law: StageLaw, mean_mhz: Array, slow_fill_s: float) -> Array:
        """Seconds and joules, right for the fastest plan by construction: what the law misses there is taken off,
        wholly for plans like it and not at all for those like the slowest."""
        pipeline = self._pipeline
        progress = pipeline.ends.progress(mean_mhz)
        fast = pipeline.fastest
        missed = np.array([fast.time_s, fast.energy_j]) / self._plain(law, fast.mean_mhz, pipeline.fill_s, 1.0)
        return np.asarray(self._plain(law, mean_mhz, slow_fill_s, progress) * missed**progress)

    def _plain(self, law: StageLaw, mean_mhz: Array, slow_fill_s: float, progress: float) -> Array:
        pipeline = self._pipeline
        had = clocks(law, pipeline.ends, mean_mhz, fitting(law, pipeline.ends, mean_mhz))
        # Fast plans fill and drain the pipeline at full clock, slow ones at that of all other operations.
        fill_s = (1.0 - progress) * slow_fill_s + progress * pipeline.fill_s
        time_s = pipeline.cycles_s(had.usual(law.time_s(had.mhz))) + fill_s + pipeline.rest_s
        return np.array([time_s, self._of_clocks_j(law, had, time_s)])

    def _unseen_s(self, mean_mhz: Array) -> float:
        """What the unknowns do not cover: the leads of one kind over the other, and a slowest rank unlike the rest."""
        pipeline, law = self._pipeline, self.law
        had = clocks(law, pipeline.ends, mean_mhz, fitting(law, pipeline.ends, mean_mhz))
        by_lead_s = law.time_s(had.mhz)[:-1].sum(axis=2)
        leads_s = float(by_lead_s[:, int(by_lead_s.mean(axis=0).argmax())].std())
        # Only of the fastest plan, and of plans like it, is it known what the slowest rank takes.
        unlike_s = TIME_NOISE * (1.0 - pipeline.ends.progress(mean_mhz)) * float(by_lead_s.mean(axis=0).max())
        return pipeline.microbatches * float(np.hypot(leads_s, unlike_s))

    def _slow_fill_s(self, law: StageLaw, mean_mhz: Array) -> float:
        pipeline = self._pipeline
        had = clocks(law, pipeline.ends, mean_mhz, fitting(law, pipeline.ends, mean_mhz))
        usual_s = had.usual(law.time_s(had.mhz))
        return pipeline.played_s(usual_s) - pipeline.cycles_s(usual_s)

    def _of_clocks_j(self, law: StageLaw, had: Clocks, time_s: float) -> float:
        return self._energy_j(law, had.mean(law.energy_j(had.mhz)), had.mean(law.time_s(had.mhz)), time_s)

    def _energy_j(self, law: StageLaw, operation_j: Array, operation_s: Array, time_s: float) -> float:
        """Operations, waits, and what lies outside both."""
        pipeline, ranks = self._pipeline, len(operation_s)
        waiting_s = ranks * (time_s - pipeline.rest_s) - pipeline.microbatches * float(operation_s.sum())
        return float(
            pipeline.microbatches * operation_j.sum() + law.wait_w * waiting_s + law.rest_w * ranks * pipeline.rest_s
        )


def _logistic(z: float) -> float:
    return float(1.0 / (1.0 + np.exp(-z)))
