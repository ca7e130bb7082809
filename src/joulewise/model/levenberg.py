"""Robust least squares with one shared block of unknowns and many small blocks of their own.

What it is: Levenberg–Marquardt for "all series share the chip, each has its own load". The matrix of such a
problem is an arrowhead, so each step solves one tiny system per series and one for the shared block (Schur
complement): the cost grows linearly with the number of series. The loss is pseudo-Huber, quadratic up to `scale`
and linear beyond, so outliers pull but do not rule. Priors are Gaussian. What it is not: a general optimiser; it
finds the minimum near its start, and callers try several starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Residuals = Callable[[Array, Array], Array]  # (shared (C,), own (K, S)) → residuals (R, N)

_EPSILON = 1e-5  # step of the one-sided differences; unknowns are logarithms and logits, of order 1
_LONGEST = 1.0  # no unknown moves further than this in one step
_TRIES = 8  # rejected steps in a row before giving up


@dataclass(frozen=True, slots=True)
class Prior:
    """Gaussian belief about a block of unknowns; an infinite spread is no belief."""

    mean: Array
    spread: Array

    def penalty(self, z: Array) -> Array:
        """Squared distance in spreads, summed over the unknowns (the first axis)."""
        return np.asarray((((z.T - self.mean) / self.spread) ** 2).sum(axis=-1))

    def pull(self, z: Array) -> Array:
        """Half the gradient of `penalty`, in the transposed layout of `z`."""
        return np.asarray((z.T - self.mean) / self.spread**2)


@dataclass(frozen=True, slots=True)
class Problem:
    """`residuals` over points that are sorted by `owner` (which series a point belongs to, 0 … S−1)."""

    residuals: Residuals
    owner: Array
    shared_prior: Prior
    own_prior: Prior
    scale: float  # residual at which the loss turns from quadratic to linear
    noise: float  # residual worth one prior spread

    @property
    def first(self) -> Array:
        """Where each series begins."""
        return np.flatnonzero(np.diff(self.owner, prepend=-1))

    def costs(self, own: Array, residuals: Array) -> Array:
        """Cost of each series: loss of its points and penalty of its own unknowns."""
        loss = 2.0 * self.scale**2 * (np.sqrt(1.0 + (residuals / self.scale) ** 2) - 1.0)
        penalty = self.noise**2 * self.own_prior.penalty(own)
        return np.asarray(np.add.reduceat(loss.sum(axis=0), self.first) + penalty)

    def shared_cost(self, shared: Array) -> float:
        """Penalty of the shared unknowns."""
        return self.noise**2 * float(self.shared_prior.penalty(shared))


@dataclass(frozen=True, slots=True)
class Solution:
    """Where a search ended."""

    shared: Array
    own: Array
    costs: Array  # one a series
    cost: float  # all of them and the shared penalty


def solve_own(problem: Problem, shared: Array, own: Array, *, steps: int = 40) -> Solution:
    """Fit each series on its own, `shared` held. Every series has its own damping and stops on its own."""
    residuals = problem.residuals(shared, own)
    costs = problem.costs(own, residuals)
    damping = np.full(own.shape[1], 1e-2)
    for _ in range(steps):
        slope, matrix, _ = _own_system(problem, shared, own, residuals)
        step = -_solve(_damped(matrix, damping), slope)
        trial = own + np.clip(step, -_LONGEST, _LONGEST).T
        trial_residuals = problem.residuals(shared, trial)
        trial_costs = problem.costs(trial, trial_residuals)
        better = trial_costs < costs
        gain = np.where(better, costs - trial_costs, 0.0)
        own = np.where(better, trial, own)
        residuals = np.where(better[problem.owner], trial_residuals, residuals)
        costs = np.where(better, trial_costs, costs)
        damping = np.clip(np.where(better, damping / 4.0, damping * 6.0), 1e-7, 1e9)
        if np.all((gain <= 1e-7 * costs) & (better | (damping >= 1e6))):
            break
    return Solution(shared, own, costs, float(costs.sum()) + problem.shared_cost(shared))


def solve_all(problem: Problem, shared: Array, own: Array, *, steps: int = 40) -> Solution:
    """Fit the shared unknowns and all series' own together."""
    residuals = problem.residuals(shared, own)
    costs = problem.costs(own, residuals)
    cost = float(costs.sum()) + problem.shared_cost(shared)
    damping = 1e-2
    for _ in range(steps):
        own_slope, own_matrix, by_own = _own_system(problem, shared, own, residuals)
        by_shared = _by_shared(problem, shared, own, residuals)
        weight = 1.0 / np.sqrt(1.0 + (residuals / problem.scale) ** 2)
        slope = np.einsum("rn,rn,rnc->c", weight, residuals, by_shared)
        slope += problem.noise**2 * problem.shared_prior.pull(shared)
        matrix = np.einsum("rn,rnc,rnd->cd", weight, by_shared, by_shared)
        matrix += np.diag(problem.noise**2 / problem.shared_prior.spread**2)
        cross = np.add.reduceat(np.einsum("rn,rnk,rnc->nkc", weight, by_own, by_shared), problem.first)
        for _ in range(_TRIES):
            shared_step, own_step = _schur_step(
                _damped(own_matrix, np.full(len(costs), damping)),
                own_slope,
                cross,
                _damped(matrix[None], np.array([damping]))[0],
                slope,
            )
            trial_shared = shared + np.clip(shared_step, -_LONGEST, _LONGEST)
            trial = own + np.clip(own_step, -_LONGEST, _LONGEST).T
            trial_residuals = problem.residuals(trial_shared, trial)
            trial_costs = problem.costs(trial, trial_residuals)
            trial_cost = float(trial_costs.sum()) + problem.shared_cost(trial_shared)
            if trial_cost < cost:
                break
            damping = min(damping * 6.0, 1e9)
        else:
            break
        gain = cost - trial_cost
        shared, own, residuals, costs, cost = trial_shared, trial, trial_residuals, trial_costs, trial_cost
        damping = max(damping / 4.0, 1e-7)
        if gain < 1e-6 * cost:
            break
    return Solution(shared, own, costs, cost)


def own_covariance(problem: Problem, solution: Solution) -> Array:
    """Covariance of each series' own unknowns, shared ones held, for a residual noise of `problem.noise`."""
    residuals = problem.residuals(solution.shared, solution.own)
    _, matrix, _ = _own_system(problem, solution.shared, solution.own, residuals)
    tiny = 1e-12 * np.eye(matrix.shape[-1])
    return np.asarray(problem.noise**2 * np.linalg.inv(matrix + tiny))


def _own_system(problem: Problem, shared: Array, own: Array, residuals: Array) -> tuple[Array, Array, Array]:
    """Half gradient (S, K), Gauss–Newton matrix (S, K, K) and derivatives (R, N, K) of the own unknowns."""
    by_own = _derivatives(lambda z: problem.residuals(shared, z), own, residuals)
    weight = 1.0 / np.sqrt(1.0 + (residuals / problem.scale) ** 2)
    slope = np.add.reduceat(np.einsum("rn,rn,rnk->nk", weight, residuals, by_own), problem.first)
    matrix = np.add.reduceat(np.einsum("rn,rnk,rnl->nkl", weight, by_own, by_own), problem.first)
    slope = slope + problem.noise**2 * problem.own_prior.pull(own)
    return slope, matrix + np.diag(problem.noise**2 / problem.own_prior.spread**2), by_own


def _by_shared(problem: Problem, shared: Array, own: Array, residuals: Array) -> Array:
    return _derivatives(lambda z: problem.residuals(z, own), shared, residuals)


def _derivatives(function: Callable[[Array], Array], z: Array, at_z: Array) -> Array:
    """d residuals / d each row of `z`, all series moved at once: (R, N, rows)."""
    columns = []
    for row in range(len(z)):
        moved = z.copy()
        moved[row] += _EPSILON
        columns.append((function(moved) - at_z) / _EPSILON)
    return np.stack(columns, axis=-1)


def _damped(matrix: Array, damping: Array) -> Array:
    """Marquardt's damping: each diagonal grown by its own size, with a floor for unknowns nobody sees."""
    diagonal = np.einsum("skk->sk", matrix)
    extra = damping[:, None] * (diagonal + 1e-9) + 1e-12
    return np.asarray(matrix + extra[..., None] * np.eye(matrix.shape[-1]))


def _solve(matrix: Array, right: Array) -> Array:
    return np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0])


def _schur_step(own_matrix: Array, own_slope: Array, cross: Array, matrix: Array, slope: Array) -> tuple[Array, Array]:
    """One Newton step of the arrowhead system."""
    through = np.linalg.solve(own_matrix, cross)
    alone = _solve(own_matrix, own_slope)
    reduced = matrix - np.einsum("skc,skd->cd", cross, through)
    right = slope - np.einsum("skc,sk->c", cross, alone)
    shared_step = -np.linalg.lstsq(reduced, right, rcond=None)[0]
    return shared_step, -(alone + np.einsum("skc,c->sk", through, shared_step))
