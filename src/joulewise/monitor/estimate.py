"""Energy of a stretch of time from a counter that ticks and a power reading that updates, with its standard error.

Pure functions. A window's edges fall between ticks. The counter's difference is exact between the tick before one
edge and the tick before the other; what lies between tick and edge is filled in from power readings by the best
linear interpolation that the load's description allows (kriging), which also says how wrong it may be. Where there
is no counter, power readings, each held for its own stretch, are summed and treated as one: their sum too is known
at the sensor's updates. Of the two ways the counter's is taken; within few ticks, that with a clearly smaller error.

The standard error adds, in squares: the interpolation at the edges, what a part-time sensor did not look at,
uncertain ticks, holes in the readings, rounding. The sensor's gain is not in it: it is the same in every window of
a card, and is stated apart.
"""

from __future__ import annotations

import math

import numpy as np

from joulewise.core.errors import NoReading
from joulewise.core.measurement import Source
from joulewise.core.units import format_energy
from joulewise.monitor.counted import ROUNDING_J, by_counter, by_counter_alone
from joulewise.monitor.evidence import Estimate, Evidence
from joulewise.monitor.interpolate import Piece, View, interpolate, unseen, view_of
from joulewise.monitor.load import Load, describe

__all__ = ["Estimate", "Evidence", "estimate"]

_DISAGREE = 5.0  # standard errors between counter and power at which one of them must be broken


def estimate(from_s: float, to_s: float, evidence: Evidence) -> Estimate:
    """Energy between two moments. NoReading where there is nothing to go by."""
    if len(evidence.time_s) == 0:
        alone = by_counter_alone(from_s, to_s, evidence)
        if alone is None:
            raise NoReading("no power reading near the window; 'joulewise doctor' says what this GPU can measure")
        return alone
    view = view_of(evidence, to_s)
    load = describe(
        view.end_s,
        view.power_w,
        view.utilization,
        window_s=view.window_s,
        update_s=evidence.power_ticks.period_s,
        idle_power_w=evidence.idle_power_w,
        limit_w=evidence.limit_w,
    )
    summed = _by_power(from_s, to_s, view, load)
    counted = by_counter(from_s, to_s, evidence, view, load, summed)
    if counted is None:
        return summed
    # Over many ticks the counter has seen more than the readings, whatever their errors say.
    short = to_s - from_s < 10.0 * evidence.power_ticks.period_s
    best = summed if short and summed.error_j < 0.8 * counted.error_j else counted
    apart_j = abs(counted.energy_j - summed.energy_j)
    if apart_j > _DISAGREE * math.hypot(counted.error_j, summed.error_j) + 0.05 * best.energy_j:
        note = f"counter ({format_energy(counted.energy_j)}) and power ({format_energy(summed.energy_j)}) disagree"
        return Estimate(best.energy_j, max(best.error_j, apart_j), best.source, (note,))
    return best


def _by_power(from_s: float, to_s: float, view: View, load: Load) -> Estimate:
    """Readings, each held for the stretch around its window, from one update inside to another."""
    looked_s = min(view.window_s, load.spacing_s)
    update_s = max(load.spacing_s, looked_s)
    mark_s = view.end_s - 0.5 * (view.window_s - looked_s)
    inside = np.flatnonzero((mark_s >= from_s) & (mark_s <= to_s))
    if len(inside) < 3:
        energy_j, variance = interpolate([Piece(from_s, to_s)], view, load)
        variance += unseen(to_s - from_s, 0.0, update_s, looked_s, load)
        return Estimate(max(0.0, energy_j), math.sqrt(variance + ROUNDING_J**2), Source.INTEGRATED)
    first, last = int(inside[0]), int(inside[-1])
    power_w, gaps_s = view.power_w[first : last + 1], np.diff(mark_s[first : last + 1])
    # Between the middles of two windows half belongs to either; a mark lies half a look after its middle.
    held_j = 0.5 * (power_w[1:] + power_w[:-1]) * gaps_s
    holes = gaps_s > 2.5 * load.spacing_s
    if view.left_out is not None and first < view.left_out <= last:
        across = view.left_out - first - 1
        held_j[across] = view.summed_j[view.left_out] - view.summed_j[view.left_out - 1]
        holes[across] = False
    swing_w = float(power_w[-1] - power_w[0])
    edges_j, variance = interpolate([Piece(from_s, float(mark_s[first])), Piece(float(mark_s[last]), to_s)], view, load)
    variance += unseen(to_s - from_s, float(gaps_s.sum()), update_s, looked_s, load)
    variance += view.lag_error_s**2 * (swing_w**2 + 2.0 * load.variance)
    variance += sum(part.energy_variance(float(gap_s)) for part in load.parts for gap_s in gaps_s[holes])
    energy_j = float(held_j.sum()) + 0.5 * looked_s * swing_w + edges_j
    return Estimate(max(0.0, energy_j), math.sqrt(variance + ROUNDING_J**2), Source.INTEGRATED)
