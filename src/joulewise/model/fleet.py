"""What tuning could save in work that was only watched: monitoring averages turned into draws of a saving.

What it is: the law of ``model/physics`` turned round. Power, clocks and the activity of SMs and memory, averaged over a
job as monitoring keeps them, make some loads likely (``model/draws``); each likely load, with what the law cannot say
on top (``model/discrepancy``), has a best setting within a slowdown bound and a saving there. The spread over draws is
what watching leaves open. What it is not: a measurement, or a choice of a setting; ``joulewise run --tune`` probes.

Two savings are told apart. *Possible* is what the best setting would save that keeps the bound, if somebody knew it.
*Reached* is what is left of it after probing, baselines and caution: `REACHED` of it, as ``bench.online`` measures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.core.knob import Setting
from joulewise.model.discrepancy import Departure
from joulewise.model.draws import posterior
from joulewise.model.fleet_kin import Kin
from joulewise.model.hypotheses import Hypotheses
from joulewise.model.unknowns import Dial

Array = NDArray[Any]

DRAWS = 400
# Share of an oracle's saving that the online tuner keeps, by bound: python -m bench.online --virtual, 74 jobs of half
# an hour. Longer jobs keep more, since probing is paid for once.
REACHED = ((0.0, 0.55), (0.01, 0.65), (0.02, 0.71), (0.05, 0.78), (0.1, 0.8))
# Share of jobs of which it keeps nothing: it found no setting that it would vouch for. 7 of 69, 5 of 72, 3 of 73 jobs
# of the same bench that had anything to save.
NOTHING = ((0.01, 0.1), (0.02, 0.07), (0.05, 0.04))
REACHED_SPREAD = 0.25
"""Standard deviation of the share kept between the other jobs: 0.24, 0.25, 0.15 at these bounds."""

_FREE_W = 1e6  # a power limit that never holds: the clock that was seen is where the limit has left it
_GAIN = 0.05  # of the power sensor, a few percent a card (arXiv 2312.02741)
_CLOCKS = np.concatenate([np.linspace(0.995, 0.86, 28), np.linspace(0.85, 0.4, 24)])  # of the clock seen
_LEAST_X = 0.2  # of the highest SM clock; a mean below is that of pauses
_LEAST_MEMORY = 0.5  # of the highest memory clock; below lie the clocks of idle boards
# As of whole jobs in model/dvfs: with these, intervals cover the truths of bench.estimate.
_TIME_DEPARTS, _POWER_DEPARTS = Departure(0.025), Departure(0.05)
_BUSY_ERROR = 0.03  # of "a kernel is running", read by a counter, besides what the reader says
_DRAM_ERROR = 0.04

# What activity counters add to the unknowns of the law. RTX 8000, 158 programs: memory-bound ones keep DRAM 0.80–0.90
# busy, those bound by the SM clock 0 to 0.4, few up to 0.7, those bound by latency or atomics in between; SMs have a
# warp 0.66–1.0 of the time that a kernel runs.
_COUNTERS = (
    Dial("dram_full", 0.0, 1.0, 0.86, 0.3),  # DRAM activity while the memory clock is the bound
    Dial("dram_blind", 0.0, 1.0, 0.6, 1.0),  # … while no clock is
    Dial("dram_beside", 0.0, 1.0, 0.2, 1.0),  # … while the SM clock is
    Dial("sm_fill", 0.0, 1.0, 0.92, 1.2),  # SM activity while a kernel runs
)


@dataclass(frozen=True, slots=True)
class Sight:
    """What monitoring saw of one kind of work on one GPU, averaged over its busy time. None: not exported.

    Shares are of time, 0 to 1.
    """

    power_w: float
    power_error: float = 0.01
    """Relative standard error of that mean, from sampling."""
    sm_mhz: float | None = None
    memory_mhz: float | None = None
    busy: float | None = None
    """A kernel was running."""
    busy_error: float = 0.02
    """Standard error of ``busy``, for how it was counted."""
    sm_active: float | None = None
    """An SM had a warp, mean over SMs."""
    dram_active: float | None = None
    limit_w: float | None = None
    """The power limit in force."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Draws of what could be saved of one kind of work, as shares of its energy."""

    possible: Array
    reached: Array
    slowdown: Array
    """At the best setting of each draw."""
    clock: Array
    """Its SM clock against the one seen."""
    memory: Array
    """Its memory clock against the one seen."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of draws, which adds up over jobs, and the range that holds the middle 95 % of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Array) -> Interval:
        """From draws of equal weight."""
        low, high = np.quantile(draws, (0.025, 0.975))
        return cls(float(np.mean(draws)), float(low), float(high))

    @property
    def half(self) -> float:
        """Half its width."""
        return 0.5 * (self.high - self.low)

    def times(self, factor: float) -> Interval:
        """In another unit; `factor` is not negative."""
        return Interval(self.mean * factor, self.low * factor, self.high * factor)


def reached_share(max_slowdown: float) -> float:
    """Mean share of an oracle's saving that the online tuner keeps under this bound."""
    bounds, shares = zip(*REACHED, strict=True)
    return float(np.interp(max_slowdown, bounds, shares))


def _kept(max_slowdown: float, draws: int, random: np.random.Generator) -> Array:
    """Draws of the share that the online tuner keeps of one job: at times nothing at all, else most."""
    bounds, shares = zip(*NOTHING, strict=True)
    nothing = float(np.interp(max_slowdown, bounds, shares))
    some = reached_share(max_slowdown) / (1.0 - nothing) + REACHED_SPREAD * random.normal(size=draws)
    return np.where(random.uniform(size=draws) < nothing, 0.0, np.clip(some, 0.0, 1.1))


def outlook(kin: Kin, seen: Sight, max_slowdown: float, *, seed: int = 0, draws: int = DRAWS) -> Outlook:
    """What could be saved of the work that ``seen`` describes on a GPU of ``kin``, at most ``max_slowdown`` slower.

    The same arguments give the same draws. Raises ModelError where ``seen`` cannot be of this GPU at all.
    """
    if not 0.0 < seen.power_w < 100.0 * kin.limit_w:
        raise ModelError(f"a mean power of {seen.power_w:g} W cannot be of {kin.name}, limit {kin.limit_w:g} W")
    random = np.random.default_rng([seed, 1])
    watched = _Watched(kin, seen)
    z = posterior(watched.log_likelihood, watched.mean, watched.spread, count=draws, seed=seed)
    settings = watched.settings()
    said = watched.laws.at(z[:, : watched.unknowns], [watched.default, *settings], ceiling_x=watched.ceiling_x)
    log_time, log_power = np.log(said.time), np.log(said.power_w)
    log_time, log_power = log_time[:, 1:] - log_time[:, :1], log_power[:, 1:] - log_power[:, :1]
    clock, memory = watched.relative(settings)
    features = np.stack([np.log(clock), np.log(memory), np.zeros(len(clock))], axis=1)
    log_time = _falling(log_time + _departed(_TIME_DEPARTS, features, draws, random), memory, 1)
    log_power = _falling(log_power + _departed(_POWER_DEPARTS, features, draws, random), memory, -1)
    allowed = log_time <= math.log1p(max_slowdown)
    if not kin.memory_sure:
        allowed &= (memory >= 1.0) | (np.arange(draws) % 2 == 0)[:, None]
    saving = np.where(allowed, 1.0 - np.exp(log_time + log_power), 0.0)
    best = saving.argmax(axis=1)
    rows = np.arange(draws)
    possible = saving[rows, best]
    nothing = possible <= 0.0
    kept = _kept(max_slowdown, draws, random)
    return Outlook(
        possible=np.where(nothing, 0.0, possible),
        reached=np.where(nothing, 0.0, possible * kept),
        slowdown=np.where(nothing, 0.0, np.expm1(log_time[rows, best])),
        clock=np.where(nothing, 1.0, clock[best]),
        memory=np.where(nothing, 1.0, memory[best]),
    )


class _Watched:
    """The unknowns of one kind of work, and how likely what was seen makes them."""

    def __init__(self, kin: Kin, seen: Sight) -> None:
        self._seen, self._kin = seen, kin
        self.laws = Hypotheses(kin.space, kin.model, kin.limit_w, unsure=kin.limit_unsure, card=kin.card)
        self.unknowns = len(self.laws.mean)
        self.mean = np.concatenate([self.laws.mean, [float(dial.z(dial.centre)) for dial in _COUNTERS]])
        self.spread = np.concatenate([self.laws.spread, [dial.spread for dial in _COUNTERS]])
        top = self.laws.sm_max_mhz
        self.ceiling_x = 1.0 if seen.sm_mhz is None else min(1.0, max(_LEAST_X, seen.sm_mhz / top))
        y = 1.0 if seen.memory_mhz is None else seen.memory_mhz / self.laws.memory_max_mhz
        self._y = y if _LEAST_MEMORY <= y < 0.98 else 1.0
        limit_w = _FREE_W if seen.sm_mhz is not None else seen.limit_w or kin.limit_w
        fixed = {"power_limit_w": limit_w}
        if self._y < 1.0:
            fixed["memory_mhz"] = self._y * self.laws.memory_max_mhz
        self.default = Setting(**fixed)

    def log_likelihood(self, z: Array) -> Array:
        """Of draws (rows), by what was seen at the setting in force."""
        seen = self._seen
        said = self.laws.at(z[:, : self.unknowns], [self.default], ceiling_x=self.ceiling_x)
        value = self.laws.values(z[:, : self.unknowns])
        extra = {dial.name: np.asarray(dial.value(z[:, self.unknowns + i])) for i, dial in enumerate(_COUNTERS)}
        busy = said.busy[:, 0]
        off = np.log(said.power_w[:, 0] / seen.power_w) / math.hypot(_GAIN, seen.power_error)
        squares = off**2
        if seen.busy is not None:
            squares += ((busy - seen.busy) / math.hypot(_BUSY_ERROR, seen.busy_error)) ** 2
        if seen.sm_active is not None:
            squares += ((busy * extra["sm_fill"] - seen.sm_active) / _BUSY_ERROR) ** 2
        if seen.dram_active is not None:
            memory, blind = self._bounds(value, said.x[:, 0])
            moved = memory * extra["dram_full"] + blind * extra["dram_blind"]
            active = busy * (moved + (1.0 - memory - blind) * extra["dram_beside"])
            squares += ((active - seen.dram_active) / _DRAM_ERROR) ** 2
        return np.asarray(-0.5 * squares)

    def _bounds(self, value: dict[str, Array], x: Array) -> tuple[Array, Array]:
        """Shares of busy time in which the memory clock is the bound, and in which no clock is."""
        p = value["sharpness"]
        memory = value["dram_part"] * (1.0 - value["sm_share"]) * self._y**-p
        blind = (1.0 - value["dram_part"]) * (1.0 - value["sm_share"])
        whole = value["sm_share"] * x**-p + blind + memory
        return np.asarray(memory / whole), np.asarray(blind / whole)

    def settings(self) -> list[Setting]:
        """What could be set instead: SM clocks below the one seen, at each memory clock there is."""
        clocks = [float(mhz) for mhz in _CLOCKS * self.ceiling_x * self.laws.sm_max_mhz]
        highest = self._y * self.laws.memory_max_mhz
        lower = [mhz for mhz in self._kin.memory_mhz if _LEAST_MEMORY * highest <= mhz < 0.98 * highest]
        fixed = dict(self.default)
        found = [Setting(**{**fixed, "sm_mhz": mhz}) for mhz in clocks]
        whole = self.ceiling_x * self.laws.sm_max_mhz
        found += [
            Setting(**{**fixed, "memory_mhz": memory, "sm_mhz": mhz}) for memory in lower for mhz in (whole, *clocks)
        ]
        return found

    def relative(self, settings: list[Setting]) -> tuple[Array, Array]:
        """SM and memory clocks of settings against those in force."""
        whole, highest = self.ceiling_x * self.laws.sm_max_mhz, self._y * self.laws.memory_max_mhz
        clock = np.array([setting["sm_mhz"] / whole for setting in settings])
        return clock, np.array([setting.get("memory_mhz", highest) / highest for setting in settings])


def _departed(law: Departure, features: Array, draws: int, random: np.random.Generator) -> Array:
    """Draws of what the law cannot say, at settings; nothing at the one in force."""
    values, vectors = np.linalg.eigh(law.covariance(features, features))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(random.normal(size=(draws, len(features))) @ root.T)


def _falling(table: Array, memory: Array, sign: int) -> Array:
    """However far it departs: no work gets faster, and none takes more power, at a lower SM clock."""
    for level in np.unique(memory):
        columns = np.flatnonzero(memory == level)  # by falling clock
        start = table[:, columns] if level < 1.0 else np.maximum(sign * table[:, columns], 0.0) * sign
        table[:, columns] = sign * np.maximum.accumulate(sign * start, axis=1)
    return table
