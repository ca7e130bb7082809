"""What stretches of clean work took: joules with their error, the clock, and whether the power limit held it back.

Stretches may be many and short, with holes where a switch or a stall was left out. What it is not: the choice of
stretches, which is the ruler's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.core.errors import NoReading
from joulewise.core.measurement import Reading, Throttle
from joulewise.monitor.estimate import estimate
from joulewise.monitor.evidence import Evidence
from joulewise.monitor.track import Extract, Track

_CAPPED = 0.3  # share of busy readings held back by the power limit that makes a stretch "capped"
_LEAST_READINGS = 8  # that describe a load: fewer are not told apart from what was read under another setting
_HOLE_S = 0.15
"""Holes shorter than this lie within the sensors' own blur (100 ms); they are taken out at the mean power."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What clean work took on all GPUs."""

    energy_j: float
    error_j: float
    sm_mhz: float | None
    power_capped: bool | None


def spent(
    tracks: Sequence[Track],
    intervals: Sequence[tuple[float, float]],
    heads: Mapping[float, Sequence[Extract]] | None = None,
    switches: Iterable[tuple[float, float]] = (),
) -> Spent | None:
    """Over ``intervals`` on all GPUs; None where nothing was read, or not all of it. ``heads`` is what was kept around
    moments that the tracks may have forgotten; ``switches`` are moments between which another setting came into force:
    what was read beyond one says nothing of the power on this side."""
    switches = list(switches)
    energy_j = variance = 0.0
    for from_s, to_s, holes_s in _bridged(intervals):
        kept = (heads or {}).get(from_s, [None] * len(tracks))
        for track, head in zip(tracks, kept, strict=True):
            if track.lost is not None and (track.seen_s or -math.inf) < to_s:
                return None
            try:
                evidence = track.witness(from_s, to_s, head)()
                found = estimate(from_s, to_s, _undisturbed(evidence, from_s, to_s, switches))
            except NoReading:
                return None
            share = 1.0 - holes_s / (to_s - from_s)
            energy_j += share * found.energy_j
            variance += (share * found.error_j) ** 2
    if not energy_j > 0:
        return None
    readings = [reading for track in tracks for reading in _within(track, intervals)]
    return Spent(energy_j, math.sqrt(variance), _mean_mhz(readings), _capped(readings))


def _undisturbed(evidence: Evidence, from_s: float, to_s: float, switches: Sequence[tuple[float, float]]) -> Evidence:
    """What was read under the setting of [from_s, to_s], where that is enough: an edge is filled in from readings near
    it and from their mean, which is another one on the other side of a switch."""
    since_s = max((settled_s for _, settled_s in switches if settled_s <= from_s + 1e-6), default=-math.inf)
    until_s = min((switch_s for switch_s, _ in switches if switch_s >= to_s - 1e-6), default=math.inf)
    ours = (evidence.time_s >= since_s) & (evidence.time_s <= until_s)
    counter = [look for look in evidence.counter if since_s <= look.time_s <= until_s]
    counted = not evidence.counter or (len(counter) > 1 and counter[0].time_s < to_s <= counter[-1].time_s + 1.0)
    if ours.all() or evidence.left_out is not None or ours.sum() < _LEAST_READINGS or not counted:
        return evidence
    return replace(
        evidence,
        time_s=evidence.time_s[ours],
        power_w=evidence.power_w[ours],
        utilization=evidence.utilization[ours],
        summed_j=evidence.summed_j[ours],
        counter=counter,
    )


def _bridged(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """Intervals joined over short holes, with the holes' seconds."""
    bridged: list[tuple[float, float, float]] = []
    for from_s, to_s in intervals:
        if bridged and from_s - bridged[-1][1] < _HOLE_S:
            start_s, end_s, holes_s = bridged[-1]
            bridged[-1] = (start_s, to_s, holes_s + from_s - end_s)
        else:
            bridged.append((from_s, to_s, 0.0))
    return bridged


def _within(track: Track, intervals: Sequence[tuple[float, float]]) -> list[Reading]:
    """Busy readings inside the intervals."""
    readings = track.readings(intervals[0][0])
    found, place = [], 0
    for reading in readings:
        while place < len(intervals) and intervals[place][1] < reading.time_s:
            place += 1
        if place == len(intervals):
            break
        if reading.time_s >= intervals[place][0] and reading.utilization != 0:
            found.append(reading)
    return found


def _mean_mhz(readings: Sequence[Reading]) -> float | None:
    clocks = [reading.sm_mhz for reading in readings if reading.sm_mhz is not None]
    return sum(clocks) / len(clocks) if clocks else None


def _capped(readings: Sequence[Reading]) -> bool | None:
    told = [Throttle.POWER_CAP in reading.throttle for reading in readings if reading.throttle is not None]
    return sum(told) >= _CAPPED * len(told) if told else None
