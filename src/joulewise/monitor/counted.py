"""Energy by the counter: from a tick near one edge of a window to a tick near the other, and power in between.

A look at the counter tells what it showed at its last tick, so the looks at the edges turn into two moments at which
the cumulative energy is known. Which tick a look belongs to is plain, unless it came within the uncertainty of
one: then both are weighed, by how likely each is and by how well it fits the power readings.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from joulewise.core.measurement import EnergyReading, Source
from joulewise.monitor.evidence import Estimate, Evidence
from joulewise.monitor.interpolate import View, between, interpolate, unseen
from joulewise.monitor.load import Load
from joulewise.monitor.ticks import Ticks

ROUNDING_J = 1e-3  # NVML counts whole thousandths of a joule; AMD counts finer
_NEAR = 4  # looks on either side of an edge among which the best is taken
_LEAST_DOUBT = 1e-3  # below this the other tick is not considered


@dataclass(frozen=True, slots=True)
class _Mark:
    """A moment at which the counter is known: a tick, as far as one can tell."""

    at_s: float
    energy_j: float
    doubt: float = 0.0
    """Probability that what was read belongs to the tick at ``other_s`` instead."""
    other_s: float = 0.0

    def places(self) -> list[tuple[float, float]]:
        """Where it may be, and how likely."""
        if self.doubt < _LEAST_DOUBT:
            return [(self.at_s, 1.0)]
        return [(self.at_s, 1.0 - self.doubt), (self.other_s, self.doubt)]


def by_counter(
    from_s: float, to_s: float, evidence: Evidence, view: View, load: Load, summed: Estimate
) -> Estimate | None:
    """Energy between two moments, or None where no tick lies inside to count from.

    ``summed`` is what power readings say; it decides where a look may belong to either of two ticks.
    """
    ticks = evidence.counter_ticks
    if ticks is None or not evidence.counter:
        return None
    known = ticks.known_at(to_s)
    first, last = (_nearest(evidence.counter, edge_s, ticks, known=known) for edge_s in (from_s, to_s))
    counted_s = last.at_s - first.at_s
    if counted_s < 0.5 * ticks.period_s or last.at_s <= from_s or first.at_s >= to_s:
        return None
    weights, energies_j, variances = [], [], []
    for (first_s, one), (last_s, other) in itertools.product(first.places(), last.places()):
        edges_j, variance = _edges(from_s, to_s, first_s, last_s, evidence, view, load)
        energies_j.append(last.energy_j - first.energy_j + edges_j)
        variances.append(variance)
        spread = summed.error_j**2 + variance
        weights.append(one * other * math.exp(-0.5 * (energies_j[-1] - summed.energy_j) ** 2 / spread))
    if not sum(weights) > 0:  # power excludes them all; which is not for us to judge
        weights = [one * other for (_, one), (_, other) in itertools.product(first.places(), last.places())]
    energy_j = float(np.average(energies_j, weights=weights))
    variance = float(np.average(np.array(variances) + (np.array(energies_j) - energy_j) ** 2, weights=weights))
    window_s = evidence.timing.counter_window_s
    if window_s is not None:
        variance += unseen(to_s - from_s, counted_s, ticks.period_s, window_s, load)
    near_w = np.interp((first.at_s, last.at_s), view.end_s, view.power_w)
    if known:  # all ticks are early or late together, which matters as far as power differs
        apart = float(near_w[1] - near_w[0]) ** 2 + 2.0 * load.variance
    else:
        apart = float(near_w @ near_w) + 2.0 * load.variance
    variance += ticks.error_at_s(to_s) ** 2 * apart
    source = Source.COUNTER if counted_s >= 0.5 * (to_s - from_s) else Source.INTEGRATED
    return Estimate(max(0.0, energy_j), math.sqrt(variance + ROUNDING_J**2), source)


def by_counter_alone(from_s: float, to_s: float, evidence: Evidence) -> Estimate | None:
    """Energy where power cannot be read: the counter's mean rate, wrong by up to a tick at each edge."""
    ticks = evidence.counter_ticks
    if ticks is None or not evidence.counter:
        return None
    known = ticks.known_at(to_s)
    first, last = (_nearest(evidence.counter, edge_s, ticks, known=known) for edge_s in (from_s, to_s))
    if last.at_s - first.at_s < 0.5 * ticks.period_s:
        return None
    rate_w = (last.energy_j - first.energy_j) / (last.at_s - first.at_s)
    error_j = math.hypot(rate_w * ticks.period_s / math.sqrt(6.0), ROUNDING_J)
    return Estimate(rate_w * (to_s - from_s), error_j, Source.COUNTER, ("no power readings",))


def _edges(
    from_s: float, to_s: float, first_s: float, last_s: float, evidence: Evidence, view: View, load: Load
) -> tuple[float, float]:
    """What lies between the edges and the ticks at ``first_s`` and ``last_s``: J to be added, and its variance."""
    pieces = [between(first_s, from_s, -1.0), between(last_s, to_s, 1.0)]
    edges_j, variance = interpolate(pieces, view, load)
    update_s = evidence.power_ticks.period_s
    if evidence.timing.counter_window_s is None and view.window_s < 0.99 * update_s:
        # The counter sees all, but power, on which the edges rest, does not.
        variance += sum(unseen(piece.to_s - piece.from_s, 0.0, update_s, view.window_s, load) for piece in pieces)
    return edges_j, variance


def _mark(look: EnergyReading, ticks: Ticks, *, known: bool) -> _Mark:
    at_s = look.time_s + 0.5 * look.call_s
    if not known:
        return _Mark(at_s - 0.5 * ticks.period_s, look.energy_j)
    tick_s = ticks.last_s(at_s)
    error_s = math.hypot(ticks.error_at_s(at_s), look.call_s / math.sqrt(12.0))
    since_s, until_s = at_s - tick_s, tick_s + ticks.period_s - at_s
    doubt = 0.5 * math.erfc(min(since_s, until_s) / (max(error_s, 1e-9) * math.sqrt(2.0)))
    return _Mark(tick_s, look.energy_j, doubt, tick_s + math.copysign(ticks.period_s, since_s - until_s))


def _nearest(looks: Sequence[EnergyReading], edge_s: float, ticks: Ticks, *, known: bool) -> _Mark:
    """The mark that tells most about an edge: near it, and with little doubt which tick it is."""
    place = bisect.bisect(looks, edge_s, key=lambda look: look.time_s)
    marks = [_mark(look, ticks, known=known) for look in looks[max(0, place - _NEAR) : place + _NEAR]]
    return min(marks, key=lambda mark: abs(mark.at_s - edge_s) + 4.0 * ticks.period_s * math.sqrt(mark.doubt))
