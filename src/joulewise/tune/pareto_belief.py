"""What a search over schedules believes: a Gaussian process over mixed columns, its own scales in doubt.

What it is: a belief about one objective over a finite list of candidates whose columns are ordered (SM counts, clocks)
or categorical (launch slots). The kernel is a sum of main effects and one product over all columns, Matérn 3/2 in
each: launch windows and SM counts bend sharply where communication ceases to be hidden, so nothing smoother fits. A
share of each ordered column's kernel belongs to the value alone (``rough``): kernels run in whole waves, so that one
SM more or less can matter where ten did not. Every scale (of each column, of both parts, of the noise) is drawn from
its posterior by a small cloud of parameters that moves a little with every measurement (differential evolution Markov
chains, ter Braak 2006), so that early on, with ten points, no single guess of a scale decides. Known linear effects
come as features with vague coefficients, integrated out. What it is not: an optimiser, or a model for thousands of
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Value = float | str

CLOUD = 12
"""Parameters kept side by side; even, since each half moves by differences within the other."""
_SWEEPS = 2  # moves of each half after a measurement
_VAGUE = 4.0  # variance of the constant and of the features' coefficients, for standardised targets
_JITTER = 1e-6
_CHUNK = 2000  # candidates predicted at once, for memory
# Logarithms, for standardised targets and columns of range 1: main effects, interactions, noise, rough share (of 1 +
# itself), scale of a column.
_MEAN = (math.log(0.7), math.log(0.5), math.log(0.05), math.log(0.05), math.log(0.5))
_SPREAD = (0.8, 0.8, 1.5, 1.0, 0.8)
_SHARED = 4  # of these, all but the last are one for all columns


@dataclass(frozen=True, slots=True)
class Column:
    """What a column of the candidates holds: names or numbers without order, or an order on a linear or log scale."""

    name: str
    scale: Literal["category", "linear", "log"]


class Space:
    """All candidates, as codes into each column's values and distances between those values."""

    def __init__(self, columns: Sequence[Column], candidates: Sequence[Sequence[Value]]) -> None:
        self.size = len(candidates)
        self.codes: list[Array] = []
        self.distances: list[Array] = []
        for index, column in enumerate(columns):
            values, codes = np.unique([row[index] for row in candidates], return_inverse=True)
            self.codes.append(codes)
            self.distances.append(_apart(column, values))

    def far(self, chosen: Sequence[int], among: Array) -> Array:
        """Distance (summed over columns) of each of ``among`` to the nearest of ``chosen``."""
        total = np.zeros((len(among), len(chosen)))
        for codes, distances in zip(self.codes, self.distances, strict=True):
            total += distances[codes[among][:, None], codes[list(chosen)][None, :]]
        return np.asarray(total.min(axis=1))


def _apart(column: Column, values: Array) -> Array:
    if column.scale == "category":
        return 1.0 - np.eye(len(values))
    place = np.log(values) if column.scale == "log" else values
    place = (place - place[0]) / max(float(np.ptp(place)), 1e-300)
    return np.asarray(np.abs(place[:, None] - place[None, :]))


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Means and variances (cloud × candidates) of the objective itself; variance of its noise (cloud)."""

    mean: Array
    variance: Array
    noise: Array
    slopes: Array  # cloud × features: posterior mean of the coefficients, in units of objective per unit of feature


class Belief:
    """One objective. ``learn`` replaces all data and moves the cloud; the same calls give the same beliefs."""

    def __init__(self, space: Space, random: np.random.Generator) -> None:
        self._space, self._random = space, random
        columns = len(space.codes)
        self._mean = np.array([*_MEAN[:_SHARED], *([_MEAN[_SHARED]] * columns)])
        self._spread = np.array([*_SPREAD[:_SHARED], *([_SPREAD[_SHARED]] * columns)])
        self._cloud = self._mean + 0.5 * self._spread * random.normal(size=(CLOUD, columns + _SHARED))

    def learn(self, rows: Array, values: Array, features: Array) -> None:
        """Measured ``values`` of candidates ``rows`` (repeats allowed); ``features``: one row a measurement."""
        self._rows, self._features = rows, features
        self._centre = float(values.mean())
        self._scale = max(float(values.std()), 1e-6 * abs(self._centre)) or 1.0
        self._y = (values - self._centre) / self._scale
        self._move()
        self._tables = self._kernels(self._cloud)
        matrix = self._covariance(self._cloud, self._tables, rows, rows, features, features)
        self._inverse = np.linalg.inv(matrix + self._noise(self._cloud))
        self._weights = self._inverse @ self._y

    def foresee(self, rows: Array, features: Array) -> Foreseen:
        """The objective at candidates ``rows``."""
        means, variances = [], []
        for start in range(0, len(rows), _CHUNK):
            part, more = rows[start : start + _CHUNK], features[start : start + _CHUNK]
            cross = self._covariance(self._cloud, self._tables, part, self._rows, more, self._features)
            own = np.exp(2.0 * self._cloud[:, :2]).sum(axis=1)[:, None] + _VAGUE * (1.0 + (more**2).sum(axis=1))
            means.append(np.einsum("pmn,pn->pm", cross, self._weights))
            variances.append(np.maximum(own - np.einsum("pmn,pmn->pm", cross @ self._inverse, cross), 1e-12))
        return Foreseen(
            self._centre + self._scale * np.concatenate(means, axis=1),
            self._scale**2 * np.concatenate(variances, axis=1),
            self._scale**2 * np.exp(2.0 * self._cloud[:, 2]),
            self._scale * _VAGUE * (self._weights @ self._features),
        )

    def _kernels(self, cloud: Array) -> list[Array]:
        """Between all values of each column: Matérn 3/2, and the rough share."""
        tables = []
        rough = (np.exp(cloud[:, 3]) / (1.0 + np.exp(cloud[:, 3])))[:, None, None]
        for index, distances in enumerate(self._space.distances):
            apart = math.sqrt(3.0) * distances[None] / np.exp(cloud[:, _SHARED + index])[:, None, None]
            tables.append((1.0 - rough) * (1.0 + apart) * np.exp(-apart) + rough * np.eye(len(distances)))
        return tables

    def _covariance(self, cloud: Array, tables: list[Array], a: Array, b: Array, fa: Array, fb: Array) -> Array:
        # Most of the time of a search is spent here, on memory: one column after another, and nothing copied twice.
        shape = len(cloud), len(a), len(b)
        main, product = np.zeros(shape), np.ones(shape)
        for codes, table in zip(self._space.codes, tables, strict=True):
            alike = table.take(codes[a], axis=1).take(codes[b], axis=2)
            main += alike
            product *= alike
        size = np.exp(2.0 * cloud[:, :2])[..., None, None]
        main *= size[:, 0] / len(tables)
        product *= size[:, 1]
        main += product
        main += _VAGUE * (1.0 + fa @ fb.T)
        return main

    def _noise(self, cloud: Array) -> Array:
        return np.asarray((np.exp(2.0 * cloud[:, 2])[:, None, None] + _JITTER) * np.eye(len(self._rows)))

    def _level(self, cloud: Array) -> Array:
        """Logarithm of the posterior density of each parameter, up to a constant."""
        count = len(self._rows)
        # One factorisation gives both: below the root of the matrix, its last row is root⁻¹·y.
        matrix = np.full((len(cloud), count + 1, count + 1), 1e9)
        matrix[:, :count, :count] = self._noise(cloud) + self._covariance(
            cloud, self._kernels(cloud), self._rows, self._rows, self._features, self._features
        )
        matrix[:, count, :count] = matrix[:, :count, count] = self._y
        try:
            root = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            if len(cloud) == 1:
                return np.array([-math.inf])
            return np.concatenate([self._level(one[None]) for one in cloud])
        white, diagonal = root[:, count, :count], np.einsum("pii->pi", root)[:, :count]
        told = -0.5 * (white**2).sum(axis=1) - np.log(diagonal).sum(axis=1)
        return np.asarray(told - 0.5 * (((cloud - self._mean) / self._spread) ** 2).sum(axis=1))

    def _move(self) -> None:
        level = self._level(self._cloud)
        half, unknowns = CLOUD // 2, self._cloud.shape[1]
        # Log-densities of draws lie within about half their number of unknowns of the best: what lies four times as
        # far is stuck where earlier measurements left it, and begins again where another stands.
        lost = np.flatnonzero(~(level >= level.max() - 2.0 * unknowns))
        if len(lost):
            sound = np.setdiff1d(np.arange(CLOUD), lost)
            others = self._random.choice(sound if len(sound) else lost, size=len(lost))
            self._cloud[lost], level[lost] = self._cloud[others], level[others]
        for sweep in range(2 * _SWEEPS):
            moving = np.arange(half) + half * (sweep % 2)
            others = half * (1 - sweep % 2) + self._random.integers(half, size=(2, half))
            stretch = 2.38 / math.sqrt(2.0 * unknowns)  # ter Braak 2006
            trial = self._cloud[moving] + stretch * (self._cloud[others[0]] - self._cloud[others[1]])
            trial = trial + 0.05 * self._random.normal(size=trial.shape)
            reached = self._level(trial)
            taken = np.log(self._random.random(half)) < reached - level[moving]
            self._cloud[moving[taken]], level[moving[taken]] = trial[taken], reached[taken]
