"""The windows of a fleet's history, joined GPU by GPU and summed: what ``monitor/fleet`` keeps while it reads.

What it is: running sums by GPU model and by kind of work, fed one piece of the range after another; what is kept does
not grow with the length of the history. What it is not: a query, or a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.device import dcgm
from joulewise.device.dcgm import METRICS, POWER, Metric, Whose
from joulewise.model.fleet import Sight
from joulewise.model.fleet_kin import kin_of
from joulewise.monitor.prometheus import Series, Span

Array = NDArray[Any]

IDLE = 0.02
"""A window is idle where less than this share of it had a kernel running."""
_AWAKE = 0.6  # of the highest SM clock
_IDLE_W = 1.15  # × resident idle power of the model, where no activity is exported
_SURE_ENGINE, _SURE_UTIL, _SURE_SM = 0.01, 0.05, 0.2  # standard errors of how busy a GPU is, by what says so
_LEAST_ERROR = 0.003  # relative, of a mean power
_SIGHT = ("sm_mhz", "memory_mhz", "busy", "busy_error", "sm_active", "dram_active", "limit_w")
_BINS = (10.0, 5.0, 5.0)  # of power / limit, busy, DRAM activity: what looks alike


@dataclass(slots=True)
class Sums:
    """Running sums over the busy windows of one kind of work."""

    windows: int = 0
    power: float = 0.0
    squares: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SIGHT, 0.0))
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SIGHT, 0.0))
    gpus: set[str] = field(default_factory=set)

    def sight(self) -> Sight:
        """Their means."""
        mean_w = self.power / self.windows
        variance = max(0.0, self.squares / self.windows - mean_w**2)
        means = {name: self.sums[name] / self.counts[name] if self.counts[name] else None for name in _SIGHT}
        error = means.pop("busy_error")
        return Sight(
            mean_w, max(_LEAST_ERROR, math.sqrt(variance / self.windows) / mean_w), busy_error=error or 0.02, **means
        )


@dataclass(slots=True)
class KindSums:
    """Running sums over one GPU model."""

    gpus: set[str] = field(default_factory=set)
    power_s: float = 0.0
    idle: dict[bool, list[float]] = field(default_factory=lambda: {True: [0.0, 0.0], False: [0.0, 0.0]})
    most_w: float = 0.0
    most_sm_mhz: float | None = None
    most_memory_mhz: float | None = None
    limits: list[float] = field(default_factory=lambda: [0.0, 0.0])
    counter_j: float = 0.0
    under_counter_j: float = 0.0


@dataclass(slots=True)
class Seen:
    """When one GPU's power is known."""

    windows: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf

    def holds(self, step_s: float) -> float:
        """The share of the windows between its first and its last that it has."""
        return self.windows / (1.0 + (self.last_s - self.first_s) / step_s)


class Reader:
    """Joins pieces and keeps the sums."""

    def __init__(self, by: Sequence[str], step_s: float) -> None:
        self.by, self.step_s = by, step_s
        self.kinds: dict[str, KindSums] = {}
        self.works: dict[tuple[str, str, bool, tuple[int, ...]], Sums] = {}
        self.found: set[str] = set()
        """Metrics of which any value is one."""
        self.labels: set[str] = set()
        """Names of the labels that power's series have."""
        self.seen: dict[str, Seen] = {}
        """By GPU; also of those whose power is never a value."""
        self.moments = 0
        self._split: set[str] = set()  # GPUs of which this piece shows instances, by any metric
        self._last: dict[str, tuple[float, float]] = {}  # the counters at the end of the last piece

    def take(self, piece: Span, read: dict[str, list[Series]]) -> None:
        """One piece of the range, all metrics."""
        people: dict[str, list[tuple[Whose, Array]]] = {}
        self._split.clear()
        for said, values in self._told(read[POWER.name], POWER):
            people.setdefault(said.gpu, []).append((said, values))
        self.labels.update(*(series.labels for series in read[POWER.name]))
        rest = {metric.name: self._by_gpu(read[metric.name], metric) for metric in METRICS if metric is not POWER}
        covered = np.zeros(piece.count, dtype=bool)
        for gpu, told in people.items():
            # Whoever holds it comes first: beside a label that is empty, or an instance that is nobody's.
            told = sorted((each for each in told if np.isfinite(each[1]).any()), key=lambda each: not each[0].job)
            seen = self.seen.setdefault(gpu, Seen())
            if told:
                known = self._gpu(gpu, told, {name: found.get(gpu) for name, found in rest.items()}, piece)
                covered |= known
                places = np.flatnonzero(known)
                seen.windows += len(places)
                seen.first_s = min(seen.first_s, piece.start_s + places[0] * piece.step_s)
                seen.last_s = max(seen.last_s, piece.start_s + places[-1] * piece.step_s)
        self.moments += int(covered.sum())

    def _told(self, series: Sequence[Series], metric: Metric) -> Iterator[tuple[Whose, Array]]:
        """What the series of a metric are about, and their values, where they are any."""
        for each in series:
            values = _sane(each.values, metric)
            if np.isfinite(values).any():
                self.found.add(metric.name)
            said = dcgm.whose(each.labels, self.by)
            if said.split:
                self._split.add(said.gpu)
            yield said, values

    def _by_gpu(self, series: Sequence[Series], metric: Metric) -> dict[str, Array]:
        """A metric of each GPU. Where several series tell it (pods that follow each other, two scrapes of one
        exporter), the first that has a value; of instances of a split GPU the highest: it is busy where one is."""
        found: dict[str, Array] = {}
        for said, values in self._told(series, metric):
            before = found.get(said.gpu)
            if before is None:
                found[said.gpu] = values
            elif said.split:
                found[said.gpu] = np.fmax(before, values)
            else:
                found[said.gpu] = np.where(np.isnan(before), values, before)
        return found

    def _gpu(self, gpu: str, told: list[tuple[Whose, Array]], rest: dict[str, Array | None], piece: Span) -> Array:
        """One GPU over one piece. Its power counts once, however many series show it."""
        nothing = np.full(piece.count, math.nan)
        power_w, owner = nothing.copy(), np.full(piece.count, -1)
        for place, (_, values) in enumerate(told):
            new = np.isnan(power_w) & np.isfinite(values)
            power_w[new], owner[new] = values[new], place
        seen: dict[str, Array] = {name: nothing if values is None else values for name, values in rest.items()}
        seen["busy"], seen["busy_error"] = _busy(seen)
        known: Array = np.isfinite(power_w)
        for name in {said.name for said, _ in told}:
            mine = known & np.isin(owner, [place for place, (said, _) in enumerate(told) if said.name == name])
            self._sum_kind(name, gpu, power_w, mine, seen)
        self._sum_counter(gpu, told[0][0].name, power_w, seen["energy_j"], piece)
        for place, (said, _) in enumerate(told):
            self._sum_work(said, gpu, power_w, known & (owner == place), seen)
        return known

    def _sum_kind(self, name: str, gpu: str, power_w: Array, mine: Array, seen: dict[str, Array]) -> None:
        of = self.kinds.setdefault(name, KindSums())
        of.gpus.add(gpu)
        of.power_s += float(power_w[mine].sum())
        of.most_w = max(of.most_w, float(power_w[mine].max(initial=0.0)))
        of.most_sm_mhz = _highest(of.most_sm_mhz, seen["sm_mhz"][mine])
        of.most_memory_mhz = _highest(of.most_memory_mhz, seen["memory_mhz"][mine])
        limits = seen["limit_w"][mine & np.isfinite(seen["limit_w"])]
        of.limits[0] += float(limits.sum())
        of.limits[1] += len(limits)

    def _sum_counter(self, gpu: str, name: str, power_w: Array, counter_j: Array, piece: Span) -> None:
        """Counters between neighbouring moments; one that fell has started anew."""
        before_s, before_j = self._last.get(gpu, (-math.inf, math.nan))
        joined = before_j if abs(piece.start_s - piece.step_s - before_s) < 0.5 * piece.step_s else math.nan
        grown_j = np.diff(counter_j, prepend=joined)
        good = np.isfinite(grown_j) & np.isfinite(power_w) & (grown_j >= 0.0)
        of = self.kinds[name]
        of.counter_j += float(grown_j[good].sum())
        of.under_counter_j += float(power_w[good].sum()) * self.step_s
        self._last[gpu] = (piece.end_s, float(counter_j[-1]))

    def _sum_work(self, said: Whose, gpu: str, power_w: Array, mine: Array, seen: dict[str, Array]) -> None:
        of = self.kinds[said.name]
        usual = _usual(said.name)
        split = gpu in self._split
        job = "" if split else said.job  # the power of a split GPU is that of all its instances
        # Without activity: an idle board takes little, and lets its clock fall where nothing is resident.
        low = power_w < _IDLE_W * usual.resident_w
        asleep = low & ~(seen["sm_mhz"] > _AWAKE * usual.sm_max_mhz)
        idle = np.where(np.isnan(seen["busy"]), asleep, seen["busy"] < IDLE)
        resting = mine & idle
        sums = of.idle[bool(said.job)]
        sums[0] += float(resting.sum())
        sums[1] += float(power_w[resting].sum())
        busy = np.flatnonzero(mine & ~idle)
        alike = [((), busy)] if job or split else _alike(busy, power_w, seen, usual.limit_w)
        for bins, rows in alike:
            if len(rows):
                sums_of = self.works.setdefault((said.name, job, split, bins), Sums())
                self._add(sums_of, gpu, power_w, rows, seen)

    def _add(self, sums: Sums, gpu: str, power_w: Array, rows: Array, seen: dict[str, Array]) -> None:
        sums.gpus.add(gpu)
        sums.windows += len(rows)
        sums.power += float(power_w[rows].sum())
        sums.squares += float((power_w[rows] ** 2).sum())
        for name in _SIGHT:
            values = seen[name][rows]
            # A clock is that of the work: by how much of the window had any.
            weight = np.where(np.isnan(seen["busy"][rows]), 1.0, seen["busy"][rows]) if name == "sm_mhz" else 1.0
            weight = weight * np.isfinite(values)
            sums.sums[name] += float((np.nan_to_num(values) * weight).sum())
            sums.counts[name] += float(weight.sum())


def _highest(before: float | None, values: Array) -> float | None:
    known = values[np.isfinite(values)]
    return before if not len(known) else max(before or 0.0, float(known.max()))


def _sane(values: Array, metric: Metric) -> Array:
    """In our unit; what cannot be is no value."""
    values = values * metric.factor
    with np.errstate(invalid="ignore"):
        return np.where((values >= metric.least) & (values <= metric.most), values, math.nan)


def _busy(seen: dict[str, Array]) -> tuple[Array, Array]:
    """How busy, and with what standard error, by the best that is exported."""
    busy, error = np.full_like(seen["engine"], math.nan), np.full_like(seen["engine"], math.nan)
    # SM activity is a floor under it: a kernel may leave SMs empty.
    for name, sure, factor in (("engine", _SURE_ENGINE, 1.0), ("util", _SURE_UTIL, 1.0), ("sm_active", _SURE_SM, 1.1)):
        new = np.isnan(busy) & np.isfinite(seen[name])
        busy[new], error[new] = np.minimum(1.0, factor * seen[name][new]), sure
    return busy, error


def _alike(rows: Array, power_w: Array, seen: dict[str, Array], limit_w: float) -> list[tuple[tuple[int, ...], Array]]:
    """Windows without a job, by how they look."""
    bins = looks(power_w[rows] / limit_w, seen["busy"][rows], seen["dram_active"][rows])
    kinds, where = np.unique(bins, axis=0, return_inverse=True)
    where = where.reshape(-1)
    return [(tuple(int(each) for each in kind), rows[where == place]) for place, kind in enumerate(kinds)]


def looks(power: Array, busy: Array, dram_active: Array) -> Array:
    """How work looks, in whole numbers, a row each: what has the same ones is alike. ``power`` is a share of the limit;
    NaN: not exported."""
    columns = zip((power, busy, dram_active), _BINS, strict=True)
    return np.stack([np.nan_to_num(np.floor(each * per), nan=-1.0) for each, per in columns], axis=1).astype(int)


@dataclass(frozen=True, slots=True)
class _Usual:
    """What is usual of a GPU model, as far as its name tells."""

    resident_w: float
    """With work resident but waiting."""
    limit_w: float
    sm_max_mhz: float


@cache
def _usual(name: str) -> _Usual:
    kin = kin_of(name)
    if kin.model is None:
        return _Usual(0.2 * kin.limit_w, kin.limit_w, kin.space.knobs["sm_mhz"].high)
    return _Usual(kin.model.chip.idle_w, kin.limit_w, kin.model.chip.sm_max_mhz)
