"""Local search: what neighbours of measured settings may be like when the law of ``model/dvfs`` is refuted.

What it is: for logarithms of time and energy, a linear trend over the logarithms of the knobs with weak expectations,
and a departure from it that is alike only for settings close by (a Gaussian process, both in closed form). Its draws
take the place of the belief's, and the tuner goes on as before: probing, choosing, comparing in pairs, only in smaller
steps, since far from what was measured these draws are wide. What it is not: physics. It knows no limiter, no voltage
and no kind of work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.knob import KNOBS, Setting

Array = NDArray[Any]

REFUTED = 3.0
"""A law whose standardised misses are larger than this is not believed any more (``Belief.misfit``)."""

DRAWS = 256
# Elasticities by knob: SM clock, memory clock, power limit. Time falls by half a per cent for one per cent of clock,
# more or less; energy rises or falls.
_TIME = (np.array([-0.5, -0.3, -0.3]), np.array([0.5, 0.4, 0.4]))
_ENERGY = (np.array([0.4, 0.2, 0.3]), np.array([0.8, 0.5, 0.6]))
# The departure: this large, alike over this much of ln(knob); ten per cent of clock is a bold step.
_SIZE, _SCALE = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting against the default: logarithms of ratios, and one standard error of each."""

    log_time: float
    time_error: float
    log_energy: float
    energy_error: float


def draws(
    measured: Mapping[Setting, Measured], settings: Sequence[Setting], default: Setting, *, seed: int
) -> tuple[Array, Array]:
    """Joint draws (draws × settings) of time and energy ratios. ``default`` says what the knobs are when not set."""
    known = np.array([_place(setting, default) for setting in measured]).reshape(-1, len(KNOBS))
    asked = np.array([_place(setting, default) for setting in settings]).reshape(-1, len(KNOBS))
    random = np.random.default_rng([seed, len(measured)])
    time = _draw(
        known,
        np.array([one.log_time for one in measured.values()]),
        np.array([one.time_error for one in measured.values()]),
        asked,
        _TIME,
        random,
    )
    energy = _draw(
        known,
        np.array([one.log_energy for one in measured.values()]),
        np.array([one.energy_error for one in measured.values()]),
        asked,
        _ENERGY,
        random,
    )
    return np.exp(time), np.exp(energy)


def _place(setting: Setting, default: Setting) -> list[float]:
    """Logarithms of the knobs against the default's; 0 for a knob that is not set, or whose default nobody knows."""
    return [
        math.log(setting[knob.name] / default[knob.name]) if knob.name in setting and knob.name in default else 0.0
        for knob in KNOBS
    ]


def _draw(
    known: Array, values: Array, errors: Array, asked: Array, trend: tuple[Array, Array], random: np.random.Generator
) -> Array:
    mean, spread = trend

    def covariance(a: Array, b: Array) -> Array:
        def alike(one: Array, other: Array) -> Array:
            return np.asarray(np.exp(-0.5 * ((one[:, None] - other[None]) ** 2).sum(axis=-1) / _SCALE**2))

        origin = np.zeros((1, a.shape[1]))
        # The departure is 0 at the default, as the trend is.
        departure = alike(a, b) - alike(a, origin) - alike(origin, b) + 1.0
        return np.asarray((a * spread**2) @ b.T + _SIZE**2 * departure)

    centre, own = asked @ mean, covariance(asked, asked)
    if len(known):
        cross = covariance(asked, known)
        gain = np.linalg.solve(covariance(known, known) + np.diag(errors**2 + 1e-8), cross.T).T
        centre = centre + gain @ (values - known @ mean)
        own = own - gain @ cross.T
    root = np.linalg.cholesky(own + 1e-8 * np.eye(len(own)))
    return np.asarray(centre + random.normal(size=(DRAWS, len(asked))) @ root.T)
