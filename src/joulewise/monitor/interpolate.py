"""Energy of stretches of time from the power readings near them, and how wrong that may be.

The readings' own covariance (``load``) decides how far each of them speaks for a stretch: the best linear
interpolation, known as kriging. It is told apart from what a part-time sensor did not look at at all, which no
interpolation brings back and only shows in the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.monitor.evidence import Evidence
from joulewise.monitor.load import Array, Load

_ROUNDING_W = 0.01  # power comes in hundredths of a watt
_NEAR = 4  # readings on either side of an edge that take part in its interpolation
_MOST_READINGS = 48  # in one interpolation, which takes the cube of their number
_IN_STEP = 0.1  # how likely a load is taken to be in step with a sensor that updates faster than it is read


@dataclass(frozen=True, slots=True)
class View:
    """Readings as the sensor made them: each the mean over ``window_s`` up to ``end_s``, none of them twice."""

    end_s: Array
    power_w: Array
    utilization: Array
    summed_j: Array
    window_s: float
    lag_error_s: float
    """One standard error of ``end_s``, shared by all."""
    left_out: int | None


def view_of(evidence: Evidence, near_s: float) -> View:
    """The readings of ``evidence`` as the sensor made them, by what is known of its ticks near ``near_s``."""
    ticks, time_s = evidence.power_ticks, evidence.time_s
    if ticks.known_at(near_s):
        end_s = ticks.at_s + np.floor((time_s - ticks.at_s) / ticks.period_s) * ticks.period_s
        fresh = np.diff(end_s, prepend=-math.inf) > 0.5 * ticks.period_s
    else:
        end_s = time_s - 0.5 * ticks.period_s
        fresh = np.diff(evidence.power_w, prepend=math.nan) != 0
        fresh |= np.diff(time_s, prepend=-math.inf) > 0.7 * ticks.period_s
    left_out = evidence.left_out
    if left_out is not None:
        fresh[left_out] = True
        left_out = int(np.count_nonzero(fresh[:left_out]))
    return View(
        end_s=end_s[fresh],
        power_w=evidence.power_w[fresh],
        utilization=evidence.utilization[fresh],
        summed_j=evidence.summed_j[fresh],
        window_s=evidence.timing.power_window_s,
        lag_error_s=ticks.error_at_s(near_s),
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch whose energy is to be added (sign 1) or taken off (sign −1)."""

    from_s: float
    to_s: float
    sign: float = 1.0


def between(mark_s: float, edge_s: float, sign: float) -> Piece:
    """What lies from ``mark_s`` to ``edge_s``, negative if the edge comes first."""
    return Piece(mark_s, edge_s, sign) if mark_s <= edge_s else Piece(edge_s, mark_s, -sign)


def interpolate(pieces: Sequence[Piece], view: View, load: Load) -> tuple[float, float]:
    """Energy of the pieces, J, and its variance, J², given the readings near them."""
    start_s = np.array([piece.from_s for piece in pieces])
    stop_s = np.array([piece.to_s for piece in pieces])
    sign = np.array([piece.sign for piece in pieces])
    low = np.searchsorted(view.end_s, start_s) - _NEAR
    high = np.searchsorted(view.end_s - view.window_s, stop_s) + _NEAR
    chosen = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]))
    chosen = chosen[(chosen >= 0) & (chosen < len(view.end_s))]
    if len(chosen) > _MOST_READINGS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, _MOST_READINGS).astype(int)]
    end_s, power_w = view.end_s[chosen], view.power_w[chosen]
    begin_s = end_s - view.window_s
    own, wanted, target = np.zeros((len(chosen), len(chosen))), np.zeros(len(chosen)), 0.0
    for part in load.parts:
        own += part.covariance(begin_s, end_s, begin_s, end_s) / view.window_s**2
        wanted += part.covariance(begin_s, end_s, start_s, stop_s) @ sign / view.window_s
        target += float(sign @ part.covariance(start_s, stop_s, start_s, stop_s) @ sign)
    # A reading whose place is uncertain shows other power than that of the place it is given.
    slip = sum(-2.0 * part.variance * math.expm1(-view.lag_error_s / part.memory_s) for part in load.parts)
    own[np.diag_indices_from(own)] += slip + _ROUNDING_W**2
    weights = np.linalg.solve(own, wanted)
    length_s = float(sign @ (stop_s - start_s))
    energy_j = load.mean_w * length_s + float(weights @ (power_w - load.mean_w))
    # As far as the readings near by do not decide, the mean does, which is itself uncertain.
    undecided_s = length_s - float(weights.sum())
    return energy_j, max(0.0, target - float(weights @ wanted)) + undecided_s**2 * load.mean_variance


def unseen(length_s: float, summed_s: float, update_s: float, window_s: float, load: Load) -> float:
    """Variance, J², in ``length_s`` from looking at only ``window_s`` of each ``update_s``.

    Three ways to be wrong: gaps that by chance differ from what was seen, in the ``summed_s`` that are a plain sum
    of looks; a load nearly in step with the sensor, whose readings then drift slowly and all miss in the same
    direction (as far as readings move together, half of it is taken to be such a beat, half to be real); and a
    load exactly in step, which no reading shows.
    """
    blind = 1.0 - window_s / update_s
    if blind <= 0.01:
        return 0.0
    chance = sum(part.miss(update_s, window_s) for part in load.parts) * summed_s * update_s
    finer = update_s / load.spacing_s
    if finer > 0.9:
        together = 0.5 * load.mean_scatter(length_s) + load.locked
    else:
        # Updates come more often than readings, which are taken at uneven times and show no beat. Each step is
        # looked at several times, so that it is missed by less; that it is missed in the same way every time
        # cannot be excluded.
        together = max(load.locked, _IN_STEP * load.variance) * finer**2
    return chance + blind * together * length_s**2
