"""Expected gain of hypervolume in two objectives, the less the better, exactly.

What it is: the frontier's area below a reference point, and its expected growth when a candidate with an uncertain
time and an uncertain energy (which may depend on the time) is added. Below the frontier the plane falls into strips
between neighbouring times; in each, the expected energy won is a closed formula, and the time is integrated by
Gauss–Hermite nodes. What it is not: a model; it is told means and deviations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def non_dominated(points: Array) -> list[int]:
    """Rows (time, energy) that no other beats, fastest first; of equal ones the first."""
    kept: list[int] = []
    for row in np.lexsort((points[:, 1], points[:, 0])):
        if not kept or points[row, 1] < points[kept[-1], 1]:
            kept.append(int(row))
    return kept


def hypervolume(points: Array, reference: Array) -> float:
    """Area that ``points`` dominate below ``reference``."""
    area, height = 0.0, float(reference[1])
    for row in non_dominated(points):
        time, energy = float(points[row, 0]), float(points[row, 1])
        if time < reference[0] and energy < height:
            area += (float(reference[0]) - time) * (height - energy)
            height = energy
    return area


def improvement(front: Array, reference: Array, time: Array, energy: Array) -> Array:
    """Area that a point would add to ``front`` (non-dominated, by time; rows)."""
    edges, heights = _strips(front, reference)
    widths = np.clip(edges[1:] - np.maximum(edges[:-1], np.asarray(time)[..., None]), 0.0, None)
    return np.asarray((widths * np.clip(heights - np.asarray(energy)[..., None], 0.0, None)).sum(axis=-1))


def expected_improvement(
    front: Array,
    reference: Array,
    log_time: Array,
    log_time_error: Array,
    energy: Array,
    energy_error: Array,
    slope: Array,
) -> Array:
    """Expected area that uncertain points would add.

    ``log_time`` is normal with its error; at its centre the energy is normal around ``energy``, and it moves by
    ``slope`` joules per second of time. All arrays broadcast.
    """
    edges, heights = _strips(front, reference)
    total = np.zeros(np.broadcast(log_time, energy).shape)
    centre = np.exp(log_time)
    error = np.maximum(energy_error, 1e-300)[..., None]
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        time = np.exp(log_time + node * log_time_error)
        left = heights - (energy + slope * (time - centre))[..., None]
        widths = np.clip(edges[1:] - np.maximum(edges[:-1], time[..., None]), 0.0, None)
        total = total + weight * (widths * _won(left, error)).sum(axis=-1)
    return total


def _strips(front: Array, reference: Array) -> tuple[Array, Array]:
    """Edges in time (one more than strips) and, of each strip, the energy below which something is won."""
    front = front[(front < reference).all(axis=1)]
    edges = np.concatenate([[-math.inf], front[:, 0], [reference[0]]])
    return edges, np.concatenate([[reference[1]], front[:, 1]])


def _won(left: Array, error: Array) -> Array:
    """E max(0, left + error·z), z standard normal."""
    z = left / error
    return np.maximum(left * _below(z) + error * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi), 0.0)


def _below(z: Array) -> Array:
    """Φ(z), within 7.5e-8 (Abramowitz and Stegun 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * series
    return np.asarray(np.where(z >= 0.0, 1.0 - upper, upper))
