"""How time and power of each kind of work follow the clock, as far as is known before anything was measured.

What it is: draws from the physical law of ``model/physics`` with what is unknown of the card and of each kind of work
(``model/hypotheses``), and what the law cannot say on top (``model/discrepancy``). The spread over draws is what is not
known. What it is not: a measurement.

A trace says neither clock nor power. The clock that the job ran at is believed to be the highest at which the mean
power of the whole step stays within the power limit; kernels of more than mean power run a little below it, others
above (``_agility``), as limiters do. A clock or a mean power that the user has seen takes the place of that belief.
A lock below evens these clocks out and leaves the limiter room: hence ``locked`` beside ``own``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from joulewise.model import physics
from joulewise.model.catalog import GpuModel
from joulewise.model.discrepancy import Departure
from joulewise.model.hypotheses import LOAD, Hypotheses
from joulewise.model.learnt import LoadPrior
from joulewise.plan.trace_kinds import LINKS, Kind

Array = NDArray[Any]

KINDS = tuple(Kind)
SEEN = 0
"""The first of CLOCKS: as the job ran."""
_ABOVE = (1.2, 1.14, 1.09, 1.05, 1.02)
_BELOW = (0.99, 0.98, 0.965, 0.95, 0.93, 0.91, 0.88, 0.85, 0.81, 0.77, 0.73, 0.68, 0.62, 0.55, 0.47)
CLOCKS = np.array([1.0, *_ABOVE, 1.0, *_BELOW])
"""Clocks that a plan may choose, against the mean that the job ran at; those above only where a limit held it."""
EVEN = 1 + len(_ABOVE)
"""The mean itself, for all kinds alike."""

_GRID = np.linspace(0.16, 1.0, 57)  # clocks at which the law is evaluated, against the highest
_FREE_X = 0.995  # above, no limit held the clock
_FREE_W = 1e6  # a power limit that never holds
_POOL = 600  # draws of which those that agree with what the user has seen are kept
_SEEN_POWER = 0.05  # of a mean power that somebody read off a sensor (a few percent a card, arXiv 2312.02741)
# A kernel of twice the mean power pulls its clock down to 2^−agility: under a 500 W cap a B300 lets bursts of 50–500 ms
# reach 708–717 W but holds those of 5 ms to 526 W, so it acts on a mean, though not on that alone.
_MOST_AGILE = 0.35
# A clock that the limiter keeps moving costs more than the same clock held: an A40 under its limit of 300 W takes 3–5 %
# less energy, and no more time, when locked just below where the limiter holds it (GPT-3 stages); an A100 0–1 %.
_MOST_RESTLESS = 0.05
_RESTFUL = np.clip((1.01 - CLOCKS) / 0.03, 0.0, 1.0) * (np.arange(len(CLOCKS)) != SEEN)
_HALVINGS = 24
# What the law leaves open: further, and sooner, than of the whole jobs of model/dvfs (0.03 and 0.06, scale 0.3),
# in which many kinds of kernel average. With these, intervals cover the truths of tests/plan/test_xray_truth.
_TIME_DEPARTS, _POWER_DEPARTS = Departure(0.04, clock_scale=0.2), Departure(0.08, clock_scale=0.2)
_AWAY = np.linspace(-1.8, 0.8, 53)  # ln(clock / default) at which departures are drawn

# host_part: kernels have none; gaps are pieces of their own.
_NO_HOST = {"host_part": 1e-6}
PRIORS: Mapping[Kind, LoadPrior] = {
    # Dense arithmetic: κ 0.9–1.0 for single codes (RTX 8000, A100), 0.86–0.91 for whole GPT-3 stages on an A100 and
    # 0.31–0.53 on an A40, whose memory is slower; dynamic power 0.7–2.1 of limit − static (H200, by values), 1.3–1.4
    # (GPT-3 stages).
    Kind.COMPUTE: LoadPrior(
        {**_NO_HOST, "sm_share": 0.88, "intensity": 1.35},
        {"host_part": 0.01, "sm_share": 1.5, "intensity": 0.3},
        "compute-bound kernels: 40–99 % of their time follows the clock",
    ),
    # Streaming codes κ 0.02–0.10 (RTX 8000, A100), mixed ones up to 0.6; 0.5–0.9 of limit − static. Their power falls
    # with the clock as its power 0.9–1.1 (RTX 8000, 5 codes) to 1.3 (A100, babelstream): little of it is the memory's.
    Kind.MEMORY: LoadPrior(
        {**_NO_HOST, "sm_share": 0.10, "intensity": 0.68, "memory_share": 0.15},
        {"host_part": 0.01, "sm_share": 1.0, "intensity": 0.25, "memory_share": 1.0},
        "memory-bound kernels: 2–40 % of their time follows the clock",
    ),
    # The bus is the bound; the board hardly works.
    Kind.COPY: LoadPrior(
        {**_NO_HOST, "sm_share": 0.01, "intensity": 0.08},
        {"host_part": 0.01, "sm_share": 0.5, "intensity": 0.5},
        "copies over the bus: hardly follow the clock",
    ),
    # A copy kernel of 8, 16 and 32 blocks takes 234, 322 and 414 W on an H200: 0.2–0.5 of limit − static. Links are
    # the bound of large messages; what a rank waits for the others, no clock shortens.
    Kind.COMMUNICATION: LoadPrior(
        {**_NO_HOST, "sm_share": 0.06, "intensity": 0.3, "memory_share": 0.15},
        {"host_part": 0.01, "sm_share": 1.0, "intensity": 0.4, "memory_share": 1.0},
        "collectives: at most a fifth of their time follows the clock",
    ),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Draws × kinds × CLOCKS (of waits: draws × CLOCKS)."""

    time: Array
    """Against what was seen."""
    power_w: Array
    """Of one GPU while such work runs alone."""
    wait_w: Array
    """Of one GPU that waits."""


@dataclass(frozen=True, slots=True)
class Laws:
    """What draws believe."""

    own: Table
    """Each piece of work at the clock named, whatever the rest does."""
    locked: Table
    """All work locked to at most that clock, under the power limit."""
    default_mhz: Array
    """One a draw: the mean clock that the job ran at."""
    switch_s: float
    """How long a change of clock takes on this GPU."""


def believed(
    model: GpuModel,
    shares: Mapping[Kind, float],
    *,
    draws: int,
    seed: int = 0,
    sm_mhz: float | None = None,
    power_w: float | None = None,
) -> Laws:
    """The laws of ``model`` for a job whose work of each kind took ``shares`` of a GPU's time.

    ``sm_mhz`` and ``power_w``: mean SM clock and power of one GPU seen in that job; BadSpec if it can have no such.
    """
    chip = model.chip
    if sm_mhz is not None and not chip.sm_floor * chip.sm_max_mhz * 0.99 <= sm_mhz <= chip.sm_max_mhz * 1.01:
        raise BadSpec(f"an SM clock of {sm_mhz:g} MHz is outside {model.sm_mhz} of {model.name}")
    if power_w is not None and not chip.deep_idle_w * 0.5 <= power_w <= model.default_limit_w * 1.2:
        raise BadSpec(f"{power_w:g} W is no mean power of {model.name}, whose limit is {model.default_limit_w:g} W")
    random = np.random.default_rng(seed)
    job = _Job(model, np.array([shares.get(kind, 0.0) for kind in KINDS]), random)
    clocks = job.limited(np.ones(_POOL)) if sm_mhz is None else job.held_at(sm_mhz / chip.sm_max_mhz)
    job.keep(_kept(job.mean_w(clocks), power_w, draws, random))
    clocks = clocks[job.kept]
    job.depart(clocks, random)
    mean_x = job.mean_x(clocks)
    asked = np.clip(mean_x[:, None] * CLOCKS, _GRID[0], 1.0)
    own, locked = [clocks], [clocks]
    for column in range(1, len(CLOCKS)):
        lock = asked[:, column]
        own.append(np.repeat(lock[:, None], len(KINDS), axis=1))
        locked.append(np.minimum(lock[:, None], job.limited(lock)))
    return Laws(
        job.table(own, clocks), job.table(locked, clocks), mean_x * chip.sm_max_mhz, model.switching.clock_switch_s
    )


class _Job:
    """The law of every draw and kind over the grid of clocks, for one mixture of kinds."""

    def __init__(self, model: GpuModel, shares: Array, random: np.random.Generator) -> None:
        settings = [Setting(sm_mhz=x * model.chip.sm_max_mhz, power_limit_w=_FREE_W) for x in _GRID]
        times, powers = [], []
        card: Array | None = None
        for kind in KINDS:
            laws = Hypotheses(model.space, model, model.default_limit_w, prior=PRIORS[kind])
            z = laws.mean + laws.spread * random.normal(size=(_POOL, len(laws.mean)))
            if card is None:
                card = z[:, len(LOAD) :]
            z[:, len(LOAD) :] = card  # one card in each draw, whatever runs on it
            said = laws.at(z, settings)
            times.append(np.log(said.time))
            powers.append(np.log(said.busy_w))
        value = laws.values(z)
        self.log_time, self.log_power = np.stack(times, axis=1), np.stack(powers, axis=1)  # draws × kinds × grid
        self.wait_w = _waiting_w(model, value)
        self.cap_w = value["limiter_gain"] * model.default_limit_w
        self.shares = shares
        self.serial = np.array([kind not in LINKS for kind in KINDS])
        dynamic_w = np.maximum(np.exp(self.log_power[:, :, -1]) - self.wait_w[:, -1:], 1.0)
        mean_w = (dynamic_w * shares).sum(axis=1, keepdims=True) / max(float(shares.sum()), 1e-9)
        agility = _MOST_AGILE * random.random(size=(_POOL, 1))
        # A link has the clock of whatever runs beside it.
        self.leaning = np.where(self.serial, (np.maximum(mean_w, 1.0) / dynamic_w) ** agility, 1.0)
        self.unrest = _MOST_RESTLESS * random.random(size=_POOL) ** 3  # of most cards little
        self.kept = np.arange(_POOL)

    def keep(self, draws: Array) -> None:
        """Go on with these draws alone."""
        self.kept = draws
        for name in ("log_time", "log_power", "wait_w", "cap_w", "leaning", "unrest"):
            setattr(self, name, getattr(self, name)[draws])

    def depart(self, clocks: Array, random: np.random.Generator) -> None:
        """Add what the law cannot say: nothing at the clocks seen, more with the distance from them."""
        away = np.log(_GRID / clocks[:, :, None])
        for name, size, falling in (("log_time", _TIME_DEPARTS, 1), ("log_power", _POWER_DEPARTS, -1)):
            table = getattr(self, name)
            drawn = _departures(size, table.shape[:2], random)
            table = table + _read(drawn, away, _AWAY)
            # However far it departs: no work gets faster, and none takes more power, at a lower clock.
            table = falling * np.maximum.accumulate(falling * table[:, :, ::-1], axis=2)[:, :, ::-1]
            setattr(self, name, table)

    def mean_x(self, clocks: Array) -> Array:
        """Mean clock of the kernels."""
        weights = self.shares * self.serial + 1e-9
        return np.asarray((clocks * weights).sum(axis=1) / weights.sum())

    def mean_w(self, clocks: Array, seen: Array | None = None) -> Array:
        """Mean power of the step with each kind at its clock; ``seen``: the clocks at which shares were seen."""
        slower: Array = np.ones_like(clocks)
        if seen is not None:
            slower = np.exp(_read(self.log_time, clocks) - _read(self.log_time, seen))
        waiting_w = _read(self.wait_w, self.mean_x(clocks))
        busy = self.shares * slower
        beyond_w = (busy * (np.exp(_read(self.log_power, clocks)) - waiting_w[:, None])).sum(axis=1)
        length = 1.0 + (self.serial * self.shares * (slower - 1.0)).sum(axis=1)
        return np.asarray(waiting_w + beyond_w / length)

    def held_at(self, mean_x: float) -> Array:
        """Clocks of all kinds whose mean over time was seen, draws × kinds; what held it there is the limit, then."""
        clocks: Array = self.leaning * mean_x
        for _ in range(8):  # what the highest clock cuts off, the others make up for
            clocks = np.minimum(1.0, clocks * (mean_x / self.mean_x(clocks))[:, None])
        seen_w = self.mean_w(clocks)
        self.cap_w = np.where(self.mean_x(clocks) < _FREE_X, seen_w, np.maximum(seen_w, self.cap_w))
        return np.asarray(clocks)

    def limited(self, lock: Array) -> Array:
        """Clocks of all kinds under a lock, one a draw, and the power limit on the mean: draws × kinds."""
        low, high = np.full(len(lock), _GRID[0]), 1.0 / self.leaning.min(axis=1)

        def held(common: Array) -> Array:
            return np.asarray(np.clip(np.minimum(common[:, None] * self.leaning, lock[:, None]), _GRID[0], 1.0))

        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            within = self.mean_w(held(middle)) <= self.cap_w
            low, high = np.where(within, middle, low), np.where(within, high, middle)
        return held(high)

    def table(self, clocks: list[Array], seen: Array) -> Table:
        """Times against those seen and powers, for a list of clocks of all kinds."""
        start = _read(self.log_time, seen)
        times = [np.exp(_read(self.log_time, each) - start) for each in clocks]
        powers = [np.exp(_read(self.log_power, each)) for each in clocks]
        waits = [_read(self.wait_w, self.mean_x(each)) for each in clocks]
        held = self.mean_x(seen) < _FREE_X
        rest = 1.0 - (held * self.unrest)[:, None] * _RESTFUL
        return Table(np.stack(times, axis=2), np.stack(powers, axis=2) * rest[:, None, :], np.stack(waits, axis=1))


def _waiting_w(model: GpuModel, value: Mapping[str, Array]) -> Array:
    """Power of a waiting GPU: draws × clocks of the grid."""
    columns: dict[str, Any] = {name: value[name][:, None] for name in ("idle_w", "volt_knee", "volt_floor")}
    columns["deep_idle_w"] = columns["idle_w"] * (model.chip.deep_idle_w / model.chip.idle_w)
    return np.asarray(physics.idle_power_w(replace(model.chip, **columns), np.tile(_GRID, (_POOL, 1))))


def _kept(mean_w: Array, seen_w: float | None, draws: int, random: np.random.Generator) -> Array:
    """Which draws stand for the belief: all alike, or by how well they agree with the power that was seen."""
    if seen_w is None:
        return np.arange(draws) % len(mean_w)
    off = np.log(np.maximum(mean_w, 1e-9) / seen_w) / _SEEN_POWER
    weight = np.exp(-0.5 * (off**2 - (off**2).min()))
    return np.asarray(random.choice(len(mean_w), size=draws, p=weight / weight.sum()))


def _departures(size: Departure, shape: tuple[int, int], random: np.random.Generator) -> Array:
    """One smooth departure over _AWAY for each of ``shape``."""
    features = np.stack([_AWAY, np.zeros_like(_AWAY), np.zeros_like(_AWAY)], axis=1)
    values, vectors = np.linalg.eigh(size.covariance(features, features))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(random.normal(size=(*shape, len(_AWAY))) @ root.T)


def _read(table: Array, x: Array, grid: Array = _GRID) -> Array:
    """A table over an even grid (last axis), read between its points; one or many x for each row."""
    many = x if x.ndim == table.ndim else x[..., None]
    place = np.clip((many - grid[0]) / (grid[1] - grid[0]), 0.0, len(grid) - 1.000001)
    left = place.astype(int)
    low, high = np.take_along_axis(table, left, axis=-1), np.take_along_axis(table, left + 1, axis=-1)
    found = low + (place - left) * (high - low)
    return np.asarray(found if x.ndim == table.ndim else found[..., 0])
