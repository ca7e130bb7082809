"""Fits the law of `model/physics` to sweeps: the chip's parameters from many series, a load from a few points.

What it is: the translation between the law's parameters and free unknowns (logarithms and logits, so that no bound
can be broken), weak priors that keep what the data do not show within reason, and searches from several starts.
Errors are relative (of log time and log power), robust, and power and time weigh the same. What it is not: a reader
of files (``joulewise model fit`` and the benches read), or an online tuner (which calls `fit_load`).

Several chips often explain the same series equally well (static power, voltage floor and memory share trade off),
so a fit also keeps the other good minima: predictions averaged over them err less than those of the best alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model import physics
from joulewise.model.levenberg import Prior, Problem, Solution, own_covariance, solve_all, solve_own
from joulewise.model.physics import Chip, Load

Array = NDArray[Any]

_NOISE = 0.02  # relative error of one measured time or power that the priors are weighed against
_ROBUST = 0.02  # beyond this relative error a point pulls linearly (many points: some are outliers)
_PLAIN = 0.10  # the same for up to four points, where the mean is a better guess than the median
_NO_LIMIT_W = 1e9


@dataclass(frozen=True, slots=True)
class Point:
    """One measured setting of one piece of work. None: not set, or not known."""

    time_s: float  # of one unit of work: an iteration, an epoch, a run
    power_w: float  # average over that time
    lock_mhz: float | None = None  # SM clock asked for
    memory_mhz: float | None = None
    limit_w: float | None = None  # power limit in force
    sm_mhz: float | None = None  # SM clock observed; where given, it stands and lock and limit are not used


@dataclass(frozen=True, slots=True)
class Series:
    """The same work under several settings."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class LoadFit:
    """A load, and one standard error of each of its fitted parameters (in the parameter's own unit)."""

    load: Load
    errors: Mapping[str, float]
    cost: float


@dataclass(frozen=True, slots=True)
class ChipFit:
    """A chip, the loads of its series, and how well both tell the points that they were fitted to."""

    chip: Chip
    loads: tuple[Load, ...]
    time_mape: float  # mean absolute error, percent
    power_mape: float
    points: int
    free: tuple[str, ...]  # the chip's parameters that the points could tell; the others stand as given
    alternatives: tuple[tuple[Chip, tuple[Load, ...]], ...]  # the good minima, best first, this one included


@dataclass(frozen=True, slots=True)
class _Dial:
    """One unknown: its name, its open bounds, and where a weak prior puts it (spread in logs or logits)."""

    name: str
    low: float
    high: float
    centre: float
    spread: float

    def z(self, value: Any) -> Any:
        part = np.maximum(np.asarray(value, dtype=float) - self.low, 1e-9)
        if math.isinf(self.high):
            return np.log(part)
        share = np.clip(part / (self.high - self.low), 1e-6, 1.0 - 1e-6)
        return np.log(share / (1.0 - share))

    def value(self, z: Any) -> Any:
        if math.isinf(self.high):
            return self.low + np.exp(np.clip(z, -50.0, 50.0))
        return self.low + (self.high - self.low) / (1.0 + np.exp(-np.clip(z, -30.0, 30.0)))


# Centres are the middle of the fits published for V100, A40, RTX 6000, P100 and A100; spreads about twice theirs.
# Centres of static and idle power are in units of the lowest power seen (a floor under both, nearly).
_CHIP_DIALS = (
    _Dial("static_w", 0.0, math.inf, 0.85, 0.6),
    _Dial("idle_w", 0.0, math.inf, 0.7, 0.5),
    _Dial("volt_knee", 0.02, 0.98, 0.70, 1.0),
    _Dial("volt_floor", 0.3, 1.0, 0.65, 1.0),
    _Dial("sm_floor", 0.02, 1.0, 0.22, 0.8),
    _Dial("limiter_gain", 0.5, math.inf, 1.0, 0.06),
    _Dial("overlap", 1.0, 20.0, 2.0, 0.8),
    _Dial("memory_share", 0.0, 1.0, 0.4, 1.5),
    _Dial("memory_part", 0.0, 1.0, 0.3, 1.0),  # memory_w / static_w
    _Dial("sharpness", 1.0, 8.0, 1.7, 0.8),  # of all loads of this fit
)
_LOAD_DIALS = (
    _Dial("gpu_s", 0.0, math.inf, 1.0, 1e6),  # no belief at all
    _Dial("sm_share", 0.0, 1.0, 0.7, 5.0),
    _Dial("dynamic_w", 0.0, math.inf, 1.3, 2.5),  # in units of the series' highest power
    _Dial("host_part", 0.0, math.inf, 0.6, 5.0),  # host_s / gpu_s
    _Dial("dram_part", 0.0, 1.0, 0.5, 2.5),  # dram_share / (1 − sm_share)
    _Dial("static_part", 0.0, math.inf, 1.0, 0.15),
)


@dataclass(frozen=True, slots=True)
class _Columns:
    """All points of all series as arrays, sorted by series."""

    owner: Array
    lock_x: Array
    seen_x: Array  # NaN where the clock was not observed
    y: Array
    limit_w: Array
    log_time: Array
    log_power: Array

    @property
    def series(self) -> int:
        return int(self.owner[-1]) + 1

    @property
    def limited(self) -> bool:
        return bool(np.any((self.limit_w < _NO_LIMIT_W) & np.isnan(self.seen_x)))

    def most(self, values: Array) -> Array:
        """The largest of `values` in each series."""
        return np.asarray(np.maximum.reduceat(values, np.flatnonzero(np.diff(self.owner, prepend=-1))))

    def times(self, copies: int) -> _Columns:
        """The same points several times over, each copy a set of series of its own."""
        owner = np.concatenate([self.owner + copy * self.series for copy in range(copies)])
        rest = (self.lock_x, self.seen_x, self.y, self.limit_w, self.log_time, self.log_power)
        return _Columns(owner, *(np.tile(column, copies) for column in rest))


def predict(chip: Chip, load: Load, points: Sequence[Point]) -> tuple[Array, Array]:
    """Seconds and watts that the law gives for `load` at the settings of `points`."""
    columns = _columns(chip, [Series("", tuple(points))], measured=False)
    return _evaluate(chip, load, columns)


def generic_chip(series: Sequence[Series], *, sm_max_mhz: float | None = None) -> Chip:
    """A chip to start from when nothing is known: clocks from the points (else 1000), powers from the lowest."""
    points = [point for one in series for point in one.points]
    clocks = [clock for p in points for clock in (p.lock_mhz, p.sm_mhz) if clock is not None]
    memory = [p.memory_mhz for p in points if p.memory_mhz is not None]
    lowest_w = min(point.power_w for point in points)
    middle = {dial.name: dial.centre for dial in _CHIP_DIALS}
    return Chip(
        sm_max_mhz=sm_max_mhz or max(clocks, default=1000.0),
        memory_max_mhz=max(memory, default=1000.0),
        sm_floor=middle["sm_floor"],
        static_w=middle["static_w"] * lowest_w,
        idle_w=middle["idle_w"] * lowest_w,
        deep_idle_w=middle["idle_w"] * lowest_w / 2.5,
        volt_knee=middle["volt_knee"],
        volt_floor=middle["volt_floor"],
        overlap=middle["overlap"],
        memory_share=middle["memory_share"],
    )


def fit_chip(
    series: Sequence[Series],
    *,
    start: Chip,
    hold: Collection[str] = (),
    starts: int = 16,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> ChipFit:
    """Fit the parameters that all series share, and each series' load.

    `start` gives the maximum clocks, the middle of the (weak) priors, heat, and whatever is held: the names in
    `hold`, and what the points cannot tell (the limiter where no limit was set, memory power where the memory
    clock did not change, sharpness where no clock is known).
    Raises ModelError if there are too few points to tell anything.
    """
    columns = _columns(start, series)
    if len(columns.owner) < 6:
        raise ModelError(f"{len(columns.owner)} points cannot fix a chip; give at least 6, better 30 or more")
    free = [dial for dial in _free_dials(columns) if dial.name not in hold]
    mean = np.array([dial.z(_started(start, dial)) for dial in free])
    spread = np.array([dial.spread for dial in free])
    law = _Law(columns, start, free)
    problem = Problem(law.residuals, columns.owner, Prior(mean, spread), _load_prior(columns, None), _ROBUST, _NOISE)
    random = np.random.default_rng(seed)
    found: list[Solution] = []
    for turn in range(starts):
        shared = mean + (0.7 * spread * random.normal(size=len(mean)) if turn else 0.0)
        own = _best_loads(problem, law, shared).own
        for _ in range(2):  # joint steps stall on the law's kinks; settling each series alone frees them
            solution = solve_all(problem, shared, own, steps=30)
            solution = solve_own(problem, solution.shared, solution.own, steps=10)
            shared, own = solution.shared, solution.own
        found.append(solution)
        if progress is not None:
            progress(f"start {turn + 1} of {starts}: cost {solution.cost:.4f}")
    found.sort(key=lambda solution: solution.cost)
    kept = [one for one in found if one.cost <= 1.3 * found[0].cost]
    alternatives = tuple((law.chip(one.shared), law.loads(one.shared, one.own)) for one in kept)
    time_mape, power_mape = law.mape(kept[0])
    return ChipFit(
        *alternatives[0], time_mape, power_mape, len(columns.owner), tuple(d.name for d in free), alternatives
    )


def fit_load(chip: Chip, points: Sequence[Point], *, prior: Sequence[Load] = (), sharpness: float = 1.0) -> LoadFit:
    """The load that explains `points` on a known chip; two to four points are enough.

    `prior` are loads met before on this chip: what the points leave open is drawn towards them, weakly. The errors
    say what was left open. Raises ModelError without points.
    """
    return fit_loads(chip, [Series("", tuple(points))], prior=prior, sharpness=sharpness)[0]


def fit_loads(
    chip: Chip, series: Sequence[Series], *, prior: Sequence[Load] = (), sharpness: float = 1.0
) -> tuple[LoadFit, ...]:
    """`fit_load` for many series at once, each on its own."""
    columns = _columns(chip, series)
    law = _Law(columns, chip, [], sharpness)
    nothing = Prior(np.zeros(0), np.ones(0))
    few = len(columns.owner) <= 4 * columns.series
    problem = Problem(
        law.residuals,
        columns.owner,
        nothing,
        _load_prior(columns, prior),
        _PLAIN if few else _ROBUST,
        _NOISE,
    )
    solution = solve_own(problem, np.zeros(0), _best_loads(problem, law, np.zeros(0)).own)
    covariance = own_covariance(problem, solution)
    loads = law.loads(solution.shared, solution.own)
    return tuple(
        LoadFit(load, law.errors(solution.own[:, i], covariance[i]), float(solution.costs[i]))
        for i, load in enumerate(loads)
    )


@dataclass(frozen=True, slots=True)
class _Law:
    """The law as residuals of unknowns: `free` of the chip first, then each series' own."""

    columns: _Columns
    start: Chip
    free: Sequence[_Dial]
    sharpness: float = 1.0

    def chip(self, shared: Array) -> Chip:
        values: dict[str, Any] = {d.name: float(d.value(z)) for d, z in zip(self.free, shared, strict=True)}
        values.pop("sharpness", None)
        memory_part = values.pop("memory_part", None)
        chip = replace(self.start, **values)
        if memory_part is not None:
            chip = replace(chip, memory_w=memory_part * chip.static_w)
        # Deep idle was not seen: it keeps its ratio to resident idle.
        return replace(chip, deep_idle_w=self.start.deep_idle_w * chip.idle_w / self.start.idle_w)

    def load(self, shared: Array, own: Array) -> Load:
        """The loads as one Load of arrays."""
        values = {dial.name: dial.value(z) for dial, z in zip(_LOAD_DIALS, own, strict=True)}
        sharpness = self.sharpness
        for dial, z in zip(self.free, shared, strict=True):
            if dial.name == "sharpness":
                sharpness = float(dial.value(z))
        dram_part = values["dram_part"] if self.memory_told else np.zeros_like(own[0])
        return Load(
            gpu_s=values["gpu_s"],
            sm_share=values["sm_share"],
            dynamic_w=values["dynamic_w"],
            host_s=values["host_part"] * values["gpu_s"],
            dram_share=dram_part * (1.0 - values["sm_share"]),
            sharpness=sharpness,
            static_part=values["static_part"],
        )

    @property
    def memory_told(self) -> bool:
        return bool(np.ptp(self.columns.y) > 0.0)

    def loads(self, shared: Array, own: Array) -> tuple[Load, ...]:
        return tuple(_floats(self.load(shared, own), i) for i in range(own.shape[1]))

    def residuals(self, shared: Array, own: Array) -> Array:
        columns = self.columns
        copies = own.shape[1] // columns.series
        if copies > 1:
            columns = columns.times(copies)
        load = self.load(shared, own)
        spread = Load(*(_at(getattr(load, name), columns.owner) for name in Load.__slots__))
        time_s, power_w = _evaluate(self.chip(shared), spread, columns)
        return np.stack([np.log(time_s) - columns.log_time, np.log(power_w) - columns.log_power])

    def mape(self, solution: Solution) -> tuple[float, float]:
        error = 100.0 * np.abs(np.expm1(self.residuals(solution.shared, solution.own))).mean(axis=1)
        return float(error[0]), float(error[1])

    def errors(self, own: Array, covariance: Array) -> dict[str, float]:
        """Standard errors of the dials' values, from those of the unknowns (first order)."""
        deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return {
            dial.name: float(abs(dial.value(z + 0.01) - dial.value(z - 0.01)) / 0.02 * sigma)
            for dial, z, sigma in zip(_LOAD_DIALS, own, deviation, strict=True)
            if dial.name != "dram_part" or self.memory_told
        }


def _started(start: Chip, dial: _Dial) -> float:
    """Where the prior of a shared unknown sits: at the chip to start from."""
    if dial.name == "memory_part":
        return start.memory_w / start.static_w if start.memory_w else dial.centre
    return float(getattr(start, dial.name, dial.centre))


def _best_loads(problem: Problem, law: _Law, shared: Array) -> Solution:
    """Each series' best own unknowns out of several starts, all searched at once."""
    columns = law.columns
    guesses = [(k, h, d) for k in (0.3, 0.9) for h in (0.1, 1.0) for d in (1.0, 1.6)]
    shortest = -columns.most(-columns.log_time)
    highest = columns.most(columns.log_power)
    starts = []
    for sm_share, host_part, factor in guesses:
        values = {"sm_share": sm_share, "host_part": host_part, "dram_part": 0.5, "static_part": 1.0}
        rows = {name: np.full(columns.series, _DIAL[name].z(value)) for name, value in values.items()}
        rows["gpu_s"] = shortest - 0.5 * math.log1p(host_part**2)
        rows["dynamic_w"] = highest + math.log(factor)
        starts.append(np.stack([rows[dial.name] for dial in _LOAD_DIALS]))
    prior = problem.own_prior
    many = replace(
        problem,
        owner=columns.times(len(starts)).owner,
        own_prior=Prior(np.tile(prior.mean, (len(starts), 1)), prior.spread),
    )
    solution = solve_own(many, shared, np.concatenate(starts, axis=1), steps=12)
    costs = solution.costs.reshape(len(starts), columns.series)
    best = costs.argmin(axis=0)
    pick = best * columns.series + np.arange(columns.series)
    own = solution.own[:, pick]
    return Solution(shared, own, solution.costs[pick], float(solution.costs[pick].sum()))


def _load_prior(columns: _Columns, loads: Sequence[Load] | None) -> Prior:
    """What is believed of the own unknowns: generic, or the middle of loads met before."""
    mean = np.tile([dial.z(dial.centre) for dial in _LOAD_DIALS], (columns.series, 1))
    highest = list(_DIAL).index("dynamic_w")
    mean[:, highest] = _DIAL["dynamic_w"].z(1.0) + math.log(1.3) + columns.most(columns.log_power)
    spread = np.array([dial.spread for dial in _LOAD_DIALS])
    if loads:
        met = np.array([_unknowns(one) for one in loads])
        middle = np.median(met, axis=0)
        width = 1.4826 * np.median(np.abs(met - middle), axis=0) + 0.3
        for row, dial in enumerate(_LOAD_DIALS):
            if dial.name in ("sm_share", "dynamic_w", "host_part", "dram_part"):
                mean[:, row] = middle[row]
                spread[row] = 5.0 * width[row]  # weak: the next workload may well be unlike all before
    return Prior(mean, spread)


def _unknowns(load: Load) -> list[float]:
    """A load as its own unknowns."""
    values = {
        "gpu_s": load.gpu_s,
        "sm_share": load.sm_share,
        "dynamic_w": load.dynamic_w,
        "host_part": load.host_s / load.gpu_s,
        "dram_part": load.dram_share / max(1.0 - load.sm_share, 1e-9),
        "static_part": load.static_part,
    }
    return [float(dial.z(values[dial.name])) for dial in _LOAD_DIALS]


def _free_dials(columns: _Columns) -> list[_Dial]:
    """The shared unknowns that these points can tell."""
    clocks_known = not np.all(np.isnan(columns.seen_x)) or float(np.ptp(columns.lock_x)) > 0.0
    told = {
        "limiter_gain": columns.limited,
        "sm_floor": columns.limited,
        "memory_part": float(np.ptp(columns.y)) > 0.0,
        "sharpness": clocks_known,
    }
    return [dial for dial in _CHIP_DIALS if told.get(dial.name, True)]


def _columns(chip: Chip, series: Sequence[Series], *, measured: bool = True) -> _Columns:
    points = [point for one in series for point in one.points]
    if not points or any(not one.points for one in series):
        raise ModelError("a series without points cannot be fitted; give at least one point")
    if measured and not all(p.time_s > 0 and p.power_w > 0 for p in points):
        bad = next(p for p in points if not (p.time_s > 0 and p.power_w > 0))
        raise ModelError(f"time and power must be above 0, not {bad.time_s:g} s and {bad.power_w:g} W")

    def column(pick: Callable[[Point], float | None], unit: float, missing: float) -> Array:
        return np.array([missing if (v := pick(p)) is None else v / unit for p in points])

    return _Columns(
        owner=np.repeat(np.arange(len(series)), [len(one.points) for one in series]),
        lock_x=np.minimum(1.0, column(lambda p: p.lock_mhz, chip.sm_max_mhz, 1.0)),
        seen_x=np.minimum(1.0, column(lambda p: p.sm_mhz, chip.sm_max_mhz, math.nan)),
        y=column(lambda p: p.memory_mhz, chip.memory_max_mhz, 1.0),
        limit_w=column(lambda p: p.limit_w, 1.0, _NO_LIMIT_W),
        log_time=np.log(column(lambda p: p.time_s, 1.0, 1.0)) if measured else np.zeros(len(points)),
        log_power=np.log(column(lambda p: p.power_w, 1.0, 1.0)) if measured else np.zeros(len(points)),
    )


def _evaluate(chip: Chip, load: Load, columns: _Columns) -> tuple[Array, Array]:
    """Step time and average power at every point."""
    x = columns.lock_x
    if columns.limited:
        x = physics.limited_x(chip, load, x, columns.limit_w, columns.y)
    x = np.where(np.isnan(columns.seen_x), x, columns.seen_x)
    return physics.step_s(chip, load, x, columns.y), physics.average_power_w(chip, load, x, columns.y)


def _at(value: Any, owner: Array) -> Any:
    return value[owner] if isinstance(value, np.ndarray) else value


def _floats(load: Load, i: int) -> Load:
    return Load(*(float(_at(getattr(load, name), np.array(i))) for name in Load.__slots__))


_DIAL = {dial.name: dial for dial in _LOAD_DIALS}
