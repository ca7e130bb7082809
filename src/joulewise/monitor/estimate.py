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

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.core.errors import NoReading
from joulewise.core.measurement import EnergyReading, SensorTiming, Source
from joulewise.core.units import format_energy
from joulewise.monitor.load import Array, Load, describe
from joulewise.monitor.ticks import Ticks

_ROUNDING_J = 1e-3  # NVML counts whole thousandths of a joule; AMD counts finer
_ROUNDING_W = 0.01  # power comes in hundredths of a watt
_NEAR = 4  # readings on either side of an edge that take part in its interpolation
_MOST_READINGS = 48  # in one interpolation, which takes the cube of their number
_IN_STEP = 0.1  # how likely a load is taken to be in step with a sensor that updates faster than it is read
_DISAGREE = 5.0  # standard errors between counter and power at which one of them must be broken


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read of one GPU around a window. Arrays are equally long and in order of time."""

    timing: SensorTiming
    time_s: Array
    """When power was read."""
    power_w: Array
    utilization: Array
    """Share of time busy, NaN where unknown."""
    summed_j: Array
    """Power held and summed up to each reading, by the time of reading."""
    power_ticks: Ticks
    counter_ticks: Ticks | None = None
    counter: Sequence[EnergyReading] = ()
    """Looks at the counter, with resets taken out so that it never falls."""
    left_out: int | None = None
    """Index of the reading before which others were left out, as they lie amid a long window."""
    idle_power_w: float | None = None
    limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Joules, one standard error, and where they come from."""

    energy_j: float
    error_j: float
    source: Source
    notes: tuple[str, ...] = ()


def estimate(from_s: float, to_s: float, evidence: Evidence) -> Estimate:
    """Energy between two moments. NoReading where there is nothing to go by."""
    if len(evidence.time_s) == 0:
        raise NoReading("no power reading near the window; 'joulewise doctor' says what this GPU can measure")
    view = _view(evidence, to_s)
    load = describe(
        view.end_s,
        view.power_w,
        view.utilization,
        window_s=view.window_s,
        update_s=evidence.power_ticks.period_s,
        idle_power_w=evidence.idle_power_w,
        limit_w=evidence.limit_w,
    )
    by_power = _by_power(from_s, to_s, view, load)
    by_counter = _by_counter(from_s, to_s, evidence, view, load)
    if by_counter is None:
        return by_power
    # Over many ticks the counter has seen more than the readings, whatever their errors say.
    short = to_s - from_s < 10.0 * evidence.power_ticks.period_s
    best = by_power if short and by_power.error_j < 0.8 * by_counter.error_j else by_counter
    apart_j = abs(by_counter.energy_j - by_power.energy_j)
    if apart_j > _DISAGREE * math.hypot(by_counter.error_j, by_power.error_j) + 0.05 * best.energy_j:
        counted, summed = format_energy(by_counter.energy_j), format_energy(by_power.energy_j)
        note = f"counter ({counted}) and power ({summed}) disagree"
        return Estimate(best.energy_j, max(best.error_j, apart_j), best.source, (note,))
    return best


@dataclass(frozen=True, slots=True)
class _View:
    """Readings as the sensor made them: each the mean over ``window_s`` up to ``end_s``, none of them twice."""

    end_s: Array
    power_w: Array
    utilization: Array
    summed_j: Array
    window_s: float
    lag_error_s: float
    """One standard error of ``end_s``, shared by all."""
    left_out: int | None


def _view(evidence: Evidence, near_s: float) -> _View:
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
    return _View(
        end_s=end_s[fresh],
        power_w=evidence.power_w[fresh],
        utilization=evidence.utilization[fresh],
        summed_j=evidence.summed_j[fresh],
        window_s=evidence.timing.power_window_s,
        lag_error_s=ticks.error_at_s(near_s),
        left_out=left_out,
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch whose energy is to be added (sign 1) or taken off (sign −1)."""

    from_s: float
    to_s: float
    sign: float = 1.0


def _between(mark_s: float, edge_s: float, sign: float) -> _Piece:
    """What lies from ``mark_s`` to ``edge_s``, negative if the edge comes first."""
    return _Piece(mark_s, edge_s, sign) if mark_s <= edge_s else _Piece(edge_s, mark_s, -sign)


def _interpolate(pieces: Sequence[_Piece], view: _View, load: Load) -> tuple[float, float]:
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


def _unseen(length_s: float, summed_s: float, update_s: float, window_s: float, load: Load) -> float:
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


def _by_power(from_s: float, to_s: float, view: _View, load: Load) -> Estimate:
    """Readings, each held for the stretch around its window, from one update inside to another."""
    looked_s = min(view.window_s, load.spacing_s)
    update_s = max(load.spacing_s, looked_s)
    mark_s = view.end_s - 0.5 * (view.window_s - looked_s)
    inside = np.flatnonzero((mark_s >= from_s) & (mark_s <= to_s))
    if len(inside) < 3:
        energy_j, variance = _interpolate([_Piece(from_s, to_s)], view, load)
        variance += _unseen(to_s - from_s, 0.0, update_s, looked_s, load)
        return Estimate(max(0.0, energy_j), math.sqrt(variance + _ROUNDING_J**2), Source.INTEGRATED)
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
    edges_j, variance = _interpolate(
        [_Piece(from_s, float(mark_s[first])), _Piece(float(mark_s[last]), to_s)], view, load
    )
    variance += _unseen(to_s - from_s, float(gaps_s.sum()), update_s, looked_s, load)
    variance += view.lag_error_s**2 * (swing_w**2 + 2.0 * load.variance)
    variance += sum(part.energy_variance(float(gap_s)) for part in load.parts for gap_s in gaps_s[holes])
    energy_j = float(held_j.sum()) + 0.5 * looked_s * swing_w + edges_j
    return Estimate(max(0.0, energy_j), math.sqrt(variance + _ROUNDING_J**2), Source.INTEGRATED)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment at which the counter is known: a tick, as far as one can tell."""

    at_s: float
    energy_j: float
    doubt: float
    """Probability that what was read belongs to the neighbouring tick."""


def _by_counter(from_s: float, to_s: float, evidence: Evidence, view: _View, load: Load) -> Estimate | None:
    """The counter from a tick near one edge to a tick near the other, and power between tick and edge.

    None where no tick lies inside to count from.
    """
    ticks = evidence.counter_ticks
    if ticks is None or not evidence.counter:
        return None
    known = ticks.known_at(to_s)
    first, last = (_nearest(evidence.counter, edge_s, ticks, known=known) for edge_s in (from_s, to_s))
    counted_s = last.at_s - first.at_s
    if counted_s < 0.5 * ticks.period_s or last.at_s <= from_s or first.at_s >= to_s:
        return None
    edges_j, variance = _interpolate([_between(first.at_s, from_s, -1.0), _between(last.at_s, to_s, 1.0)], view, load)
    window_s = evidence.timing.counter_window_s
    if window_s is not None:
        variance += _unseen(to_s - from_s, counted_s, ticks.period_s, window_s, load)
    near_w = np.interp((first.at_s, last.at_s), view.end_s, view.power_w)
    if known:  # all ticks are early or late together, which matters as far as power differs
        apart = float(near_w[1] - near_w[0]) ** 2 + 2.0 * load.variance
    else:
        apart = float(near_w @ near_w) + 2.0 * load.variance
    variance += ticks.error_at_s(to_s) ** 2 * apart
    tick_j = load.mean_w * ticks.period_s
    variance += sum(mark.doubt * (1.0 - mark.doubt) for mark in (first, last)) * tick_j**2
    energy_j = last.energy_j - first.energy_j + edges_j
    source = Source.COUNTER if counted_s >= 0.5 * (to_s - from_s) else Source.INTEGRATED
    return Estimate(max(0.0, energy_j), math.sqrt(variance + _ROUNDING_J**2), source)


def _mark(look: EnergyReading, ticks: Ticks, *, known: bool) -> _Mark:
    at_s = look.time_s + 0.5 * look.call_s
    if not known:
        return _Mark(at_s - 0.5 * ticks.period_s, look.energy_j, 0.0)
    tick_s = ticks.last_s(at_s)
    error_s = math.hypot(ticks.error_at_s(at_s), look.call_s / math.sqrt(12.0))
    to_tick_s = min(at_s - tick_s, tick_s + ticks.period_s - at_s)
    return _Mark(tick_s, look.energy_j, 0.5 * math.erfc(to_tick_s / (max(error_s, 1e-9) * math.sqrt(2.0))))


def _nearest(looks: Sequence[EnergyReading], edge_s: float, ticks: Ticks, *, known: bool) -> _Mark:
    """The mark that tells most about an edge: near it, and with little doubt which tick it is."""
    place = bisect.bisect(looks, edge_s, key=lambda look: look.time_s)
    marks = [_mark(look, ticks, known=known) for look in looks[max(0, place - _NEAR) : place + _NEAR]]
    return min(marks, key=lambda mark: abs(mark.at_s - edge_s) + 4.0 * ticks.period_s * math.sqrt(mark.doubt))
