"""Fits the law of `model/physics` to sweeps: the chip's parameters from many series, a load from a few points.

What it is: searches from several starts for the unknowns of `model/unknowns`. Errors are relative (of log time and
log power), robust, and time and power weigh the same. What it is not: a reader of files (``joulewise model fit`` and
the benches read), or an online tuner (which calls `fit_load`).

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
from joulewise.model.levenberg import Prior, Problem, Solution, own_covariance, solve_all, solve_own
from joulewise.model.physics import Chip, Load
from joulewise.model.sweep import Columns, Point, Series, columns_of, predict
from joulewise.model.unknowns import CHIP_DIALS, DIAL, LOAD_DIALS, Dial, Law, free_dials, unknowns_of

__all__ = [
    "ChipFit",
    "LoadFit",
    "Point",
    "Series",
    "fit_chip",
    "fit_load",
    "fit_loads",
    "generic_chip",
    "predict",
]

Array = NDArray[Any]

_NOISE = 0.02  # relative error of one measured time or power that the priors are weighed against
_ROBUST = 0.02  # beyond this relative error a point pulls linearly (many points: some are outliers)
_PLAIN = 0.10  # the same for up to four points, where the mean is a better guess than the median


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


def generic_chip(series: Sequence[Series], *, sm_max_mhz: float | None = None) -> Chip:
    """A chip to start from when nothing is known: clocks from the points (else 1000), powers from the lowest."""
    points = [point for one in series for point in one.points]
    clocks = [clock for p in points for clock in (p.lock_mhz, p.sm_mhz) if clock is not None]
    memory = [p.memory_mhz for p in points if p.memory_mhz is not None]
    lowest_w = min(point.power_w for point in points)
    middle = {dial.name: dial.centre for dial in CHIP_DIALS}
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
    columns = columns_of(start, series)
    if len(columns.owner) < 6:
        raise ModelError(f"{len(columns.owner)} points cannot fix a chip; give at least 6, better 30 or more")
    free = [dial for dial in free_dials(columns) if _parameter(dial) not in hold]
    mean = np.array([dial.z(_started(start, dial)) for dial in free])
    spread = np.array([dial.spread for dial in free])
    law = Law(columns, start, free)
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
    if "limiter_gain" not in hold:
        law = replace(law, start=replace(start, limiter_gain=_seen_limiter(start, series)))
    kept = [one for one in found if one.cost <= 1.3 * found[0].cost]
    alternatives = tuple((law.chip(one.shared), law.loads(one.shared, one.own)) for one in kept)
    time_mape, power_mape = law.mape(kept[0])
    return ChipFit(
        *alternatives[0], time_mape, power_mape, len(columns.owner), tuple(map(_parameter, free)), alternatives
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
    columns = columns_of(chip, series)
    law = Law(columns, chip, [], sharpness)
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


def _seen_limiter(chip: Chip, series: Sequence[Series]) -> float:
    """The limiter's gain where it shows directly: a clock observed below its lock, power near the limit."""
    held = [
        p.power_w / p.limit_w
        for one in series
        for p in one.points
        if p.limit_w and p.sm_mhz and p.sm_mhz < 0.985 * (p.lock_mhz or chip.sm_max_mhz)
    ]
    near = [gain for gain in held if 0.9 < gain < 1.1]
    return float(np.median(near)) if near else chip.limiter_gain


def _parameter(dial: Dial) -> str:
    """The parameter that a shared unknown stands for."""
    return "memory_w" if dial.name == "memory_part" else dial.name


def _started(start: Chip, dial: Dial) -> float:
    """Where the prior of a shared unknown sits: at the chip to start from."""
    if dial.name == "memory_part":
        return start.memory_w / start.static_w if start.memory_w else dial.centre
    return float(getattr(start, dial.name, dial.centre))


def _best_loads(problem: Problem, law: Law, shared: Array) -> Solution:
    """Each series' best own unknowns out of several starts, all searched at once."""
    columns = law.columns
    guesses = [(k, h, d) for k in (0.15, 0.4, 0.9) for h in (0.1, 1.0) for d in (1.0, 1.6, 3.0, 5.0)]
    shortest = -columns.most(-columns.log_time)
    highest_w = np.exp(columns.most(columns.log_power))
    room_w = np.maximum(highest_w - law.chip(shared).static_w, 0.1 * highest_w)
    starts = []
    for sm_share, host_part, factor in guesses:
        values = {"sm_share": sm_share, "host_part": host_part, "dram_part": 0.5, "static_part": 1.0}
        rows = {name: np.full(columns.series, DIAL[name].z(value)) for name, value in values.items()}
        rows["gpu_s"] = shortest - 0.5 * math.log1p(host_part**2)
        rows["dynamic_w"] = np.log(factor * room_w)
        starts.append(np.stack([rows[dial.name] for dial in LOAD_DIALS]))
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


def _load_prior(columns: Columns, loads: Sequence[Load] | None) -> Prior:
    """What is believed of the own unknowns: generic, or the middle of loads met before."""
    mean = np.tile([dial.z(dial.centre) for dial in LOAD_DIALS], (columns.series, 1))
    highest = list(DIAL).index("dynamic_w")
    mean[:, highest] = DIAL["dynamic_w"].z(1.0) + math.log(1.3) + columns.most(columns.log_power)
    spread = np.array([dial.spread for dial in LOAD_DIALS])
    if loads:
        met = np.array([unknowns_of(one) for one in loads])
        middle = np.median(met, axis=0)
        width = 1.4826 * np.median(np.abs(met - middle), axis=0) + 0.3
        for row, dial in enumerate(LOAD_DIALS):
            if dial.name in ("sm_share", "dynamic_w", "host_part", "dram_part"):
                mean[:, row] = middle[row]
                spread[row] = 5.0 * width[row]  # weak: the next workload may well be unlike all before
    return Prior(mean, spread)
