"""What a job's iterations take where it has never run: a few seen spots and a prior in, predictions with bands out.

What it is: robust least squares in logarithms with a Gaussian prior on the unknowns of ``throughput``
(Levenberg–Marquardt, all derivatives in one evaluation, a few milliseconds). What the law misses at a seen spot it
partly misses at its neighbours too: predictions are corrected by that, and bands are narrower near what was seen.
What it is not: the law (``throughput``), where a prior comes from (``throughput_prior``), or a memory of jobs
(``cluster/belief``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import ModelError
from joulewise.model.throughput import INDEX, UNKNOWNS, Frame, Spots, evaluate

Array = NDArray[Any]

BAND = 1.645  # standard errors to each side of a 90 % band
_EPSILON = 1e-5  # one-sided differences; unknowns are of order 1
_LONGEST = 1.5  # no unknown moves further in one step
_STEPS, _TRIES = 40, 6
_FIRST = 6  # steps from each beginning before the best goes on
# Other beginnings than the prior's middle: a fixed time of the host beside a GPU that follows the batch, and a GPU that
# hardly follows it. Each is a valley of its own.
_BEGINS: tuple[Mapping[str, float], ...] = (
    {"fixed": -3.0, "host": 0.0, "host_fixed": 2.0, "mesh": 0.0},
    {"fixed": 1.5, "host": -1.5, "host_fixed": -2.0},
)
_ROBUST = 2.0  # standard errors of noise beyond which a spot pulls linearly: a cluster's network has bad minutes
# What the law misses is smooth in part: one share of its variance goes over to spots with a like batch (the shape of
# the compute time, whatever the GPUs), another to those with GPUs alike as well. Lengths are in logarithms: twice as
# many are much alike, eight times as many are not.
_SHAPE, _SMOOTH = 0.4, 0.3
_GPUS, _BATCH, _CLOCK = 0.7, 1.0, 0.3
_CAP = 0.5  # of a power limit: the clock follows about the root of the power that it may take

# Where an unknown lies when nothing is known, and how far off that may be. Every spread is wide: a factor of 2 for
# power, of e to e² elsewhere. Host, dynamic, κ, batch: between the loads that the Zeus and Perseus series gave (see
# model/families). Synchronisation of two GPUs a tenth of the work, three times that between nodes, growing by some
# per cent a GPU: a ring all-reduce, of which only the latency grows.
_GENERIC = {
    "busy": (-2.0, 8.0),
    "fixed": (-1.5, 1.5),
    "host": (-0.9, 1.0),
    "host_fixed": (-0.5, 1.5),
    "mesh": (-2.3, 1.5),
    "near": (-2.0, 1.5),
    "near_growth": (-2.5, 1.5),
    "far": (1.0, 1.2),
    "far_growth": (-4.0, 1.5),
    "overlap": (-2.0, 1.5),
    "sm_share": (0.8, 1.2),
    "dynamic": (0.0, 0.7),
    "half": (-2.0, 1.2),
    "static": (0.0, 0.2),
    "wait": (0.0, 0.3),
}


@dataclass(frozen=True, slots=True)
class Prior:
    """Gaussian belief about the unknowns of a job not yet seen.

    ``time_noise``, ``power_noise``: what the law leaves unexplained of one measured spot, relative. ``time_widen``,
    ``energy_widen``: by how much bands must be wider than all that says, as other jobs showed.
    """

    mean: Array
    spread: Array
    time_noise: float = 0.03
    power_noise: float = 0.04
    time_widen: float = 1.0
    energy_widen: float = 1.0
    places: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(GPUs, nodes) → how much longer synchronisation takes there than the law says (a logarithm): what all jobs on a
    fabric share, such as a slow link between two full nodes."""

    def talk(self, spots: Spots) -> Array | float:
        """``places`` at spots; 0 where nobody has been."""
        if not self.places:
            return 0.0
        where = zip(spots.gpus.tolist(), spots.nodes.tolist(), strict=True)
        return np.array([self.places.get((int(gpus), int(nodes)), 0.0) for gpus, nodes in where])


GENERIC = Prior(
    np.array([_GENERIC[name][0] for name in UNKNOWNS]),
    np.array([_GENERIC[name][1] for name in UNKNOWNS]),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured of one job: seconds and joules of an iteration (all GPUs) at spots. NaN joules: not known."""

    spots: Spots
    seconds: Array
    joules: Array

    def __post_init__(self) -> None:
        if len(self.spots) == 0:
            raise ModelError("a job of which nothing was seen cannot be fitted; give at least one spot")
        if not (np.all(self.seconds > 0) and np.all((self.joules > 0) | np.isnan(self.joules))):
            raise ModelError("seconds and joules that were seen must be above 0")

    def pick(self, which: Any) -> Seen:
        """Some of the spots."""
        return Seen(self.spots.pick(which), self.seconds[which], self.joules[which])


@dataclass(frozen=True, slots=True)
class Predicted:
    """At each spot: seconds and joules of an iteration, and one standard error of the logarithm of each."""

    seconds: Array
    joules: Array
    time_error: Array
    energy_error: Array

    def time_band(self) -> tuple[Array, Array]:
        """The 90 % band of the seconds."""
        wide = np.exp(BAND * self.time_error)
        return self.seconds / wide, self.seconds * wide

    def energy_band(self) -> tuple[Array, Array]:
        """The 90 % band of the joules."""
        wide = np.exp(BAND * self.energy_error)
        return self.joules / wide, self.joules * wide


@dataclass(frozen=True, slots=True)
class _Misses:
    """What the law misses of one quantity (a logarithm: believed − seen), and what that says elsewhere."""

    spots: Spots
    values: Array
    slopes: Array  # by unknown
    inverse: Array  # of their correlation

    @property
    def variance(self) -> float | None:
        """Of one miss, what neighbours share allowed for; None without misses."""
        return float(self.values @ self.inverse @ self.values) / len(self.values) if len(self.values) else None

    def carried(self, spots: Spots) -> tuple[Array, Array, Array]:
        """For spots: what is missed there too, its slopes, and the share of the noise's variance that stays."""
        if not len(self.spots):
            return np.zeros(len(spots)), np.zeros((len(spots), len(UNKNOWNS))), np.ones(len(spots))
        alike = _alike(spots, self.spots)
        weight = alike @ self.inverse
        stays = np.maximum(1.0 - (weight * alike).sum(axis=1), 1.0 - _SHAPE - _SMOOTH)
        return weight @ self.values, weight @ self.slopes, stays


@dataclass(frozen=True, slots=True)
class JobFit:
    """A job's unknowns, what they were drawn from, and how unsure they are."""

    frame: Frame
    prior: Prior
    z: Array
    covariance: Array
    time: _Misses = field(repr=False)
    power: _Misses = field(repr=False)

    def predict(self, spots: Spots) -> Predicted:
        """What an iteration takes at spots that need not have been seen."""
        log_time, log_power, time_slopes, power_slopes = _with_slopes(self.frame, self.z, spots, self.prior.talk(spots))
        time_missed, time_carried, time_stays = self.time.carried(spots)
        power_missed, power_carried, power_stays = self.power.carried(spots)
        log_time, log_power = log_time - time_missed, log_power - power_missed
        time_slopes, power_slopes = time_slopes - time_carried, power_slopes - power_carried
        time_noise = time_stays * self.prior.time_noise**2
        power_noise = power_stays * self.prior.power_noise**2
        time_var = _spread(time_slopes, self.covariance) + time_noise
        energy_var = _spread(time_slopes + power_slopes, self.covariance) + time_noise + power_noise
        return Predicted(
            np.exp(log_time),
            np.exp(log_time + log_power),
            self.prior.time_widen * np.sqrt(time_var),
            self.prior.energy_widen * np.sqrt(energy_var),
        )


def believe(frame: Frame, prior: Prior) -> JobFit:
    """A job of which nothing was seen: the prior alone."""
    nothing = _Misses(Spots.of([]), np.zeros(0), np.zeros((0, len(UNKNOWNS))), np.zeros((0, 0)))
    return JobFit(frame, prior, prior.mean.copy(), np.diag(prior.spread**2), nothing, nothing)


def fit(frame: Frame, seen: Seen, prior: Prior = GENERIC, *, start: Array | None = None) -> JobFit:
    """The unknowns that explain what was ``seen`` and are likely by ``prior``; ``start``: those of the last fit."""
    log_time, log_power = np.log(seen.seconds), np.log(seen.joules / seen.seconds)
    known = ~np.isnan(log_power)
    metered = seen.spots.pick(known)
    time_root, power_root = _root(seen.spots), _root(metered)
    # One matrix turns misses into independent ones of size 1.
    time_whiten = np.linalg.inv(time_root).T / prior.time_noise
    power_whiten = np.linalg.inv(power_root).T / prior.power_noise
    talk = prior.talk(seen.spots)
    weight = 1.0 / prior.spread**2

    def misses(z: Array) -> tuple[Array, Array]:
        """Whitened misses at ``z`` and their slopes (misses × unknowns)."""
        said_time, said_energy = evaluate(frame, _moved(z), seen.spots, talk)
        by_time = (said_time - log_time) @ time_whiten
        by_power = ((said_energy - said_time)[:, known] - log_power[known]) @ power_whiten
        rows = np.concatenate([by_time, by_power], axis=1)
        return rows[0], ((rows[1:] - rows[0]) / _EPSILON).T

    if start is None:
        starts = np.vstack([prior.mean, *(_begun(prior.mean, begin) for begin in _BEGINS)])
        # The level is seen at once.
        starts[:, INDEX["busy"]] += np.median(log_time - evaluate(frame, starts, seen.spots, talk)[0], axis=1)
        start = min((_searched(misses, z, prior.mean, weight, steps=_FIRST) for z in starts), key=lambda s: s.cost).z
    found = _searched(misses, start, prior.mean, weight)
    z, missed, slopes = found.z, found.missed, found.slopes
    trust = _trust(missed)
    covariance = np.linalg.inv((slopes.T * trust) @ slopes + np.diag(weight))
    count = len(log_time)
    return JobFit(
        frame,
        prior,
        z,
        covariance,
        _kept(seen.spots, time_root, missed[:count], slopes[:count], prior.time_noise),
        _kept(metered, power_root, missed[count:], slopes[count:], prior.power_noise),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a search ended: unknowns, whitened misses and their slopes, cost."""

    z: Array
    missed: Array
    slopes: Array
    cost: float


def _begun(mean: Array, begin: Mapping[str, float]) -> Array:
    """A place to begin the search at, other than the prior's middle."""
    z = mean.copy()
    for name, value in begin.items():
        z[INDEX[name]] = value
    return z


def _searched(
    misses: Callable[[Array], tuple[Array, Array]], z: Array, mean: Array, weight: Array, *, steps: int = _STEPS
) -> _Found:
    """Levenberg–Marquardt from ``z``."""

    def cost_of(z: Array, missed: Array) -> float:
        loss = 2.0 * _ROBUST**2 * (np.sqrt(1.0 + (missed / _ROBUST) ** 2) - 1.0)
        return float(loss.sum() + (weight * (z - mean) ** 2).sum())

    damping = 1e-2
    missed, slopes = misses(z)
    cost = cost_of(z, missed)
    for _ in range(steps):
        trusted = slopes.T * _trust(missed)
        matrix = trusted @ slopes + np.diag(weight)
        pull = trusted @ missed + weight * (z - mean)
        for _ in range(_TRIES):
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), pull)
            trial = z - np.clip(step, -_LONGEST, _LONGEST)
            trial_missed, trial_slopes = misses(trial)
            trial_cost = cost_of(trial, trial_missed)
            if trial_cost < cost:
                break
            damping = min(damping * 8.0, 1e8)
        else:
            break
        gain = cost - trial_cost
        z, missed, slopes, cost = trial, trial_missed, trial_slopes, trial_cost
        damping = max(damping / 6.0, 1e-8)
        if gain < 1e-3 * (1.0 + cost):
            break
    return _Found(z, missed, slopes, cost)


def _trust(missed: Array) -> Array:
    """Weights of the robust loss."""
    return np.asarray(1.0 / np.sqrt(1.0 + (missed / _ROBUST) ** 2))


def _alike(some: Spots, others: Spots) -> Array:
    """Correlation of what the law misses at different spots; in one node and across nodes are different things."""
    by_gpus = _near(np.log(some.gpus), np.log(others.gpus), _GPUS)
    by_batch = _near(np.log(some.batch), np.log(others.batch), _BATCH)
    by_clock = _near(_gear(some), _gear(others), _CLOCK)
    same = (some.nodes > 1)[:, None] == (others.nodes > 1)
    return np.asarray(by_clock * by_batch * (_SHAPE + _SMOOTH * same * by_gpus))


def _near(some: Array, others: Array, length: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((some[:, None] - others) / length) ** 2))


def _gear(spots: Spots) -> Array:
    """Logarithm of the clock, as far as clock and limit say it; limits beyond 1 kW are none."""
    return np.asarray(np.log(spots.x) + _CAP * np.log(np.minimum(spots.limit_w, 1000.0)))


def _root(spots: Spots) -> Array:
    """Cholesky factor of the correlation of misses at seen spots, each with a part of its own."""
    correlation = _alike(spots, spots)
    correlation[np.diag_indices_from(correlation)] = 1.0
    return np.asarray(np.linalg.cholesky(correlation))


def _kept(spots: Spots, root: Array, missed: Array, slopes: Array, noise: float) -> _Misses:
    """Misses in logarithms again, from whitened ones."""
    inverse = np.linalg.inv(root)
    return _Misses(spots, noise * (root @ missed), noise * (root @ slopes), inverse.T @ inverse)


def _moved(z: Array) -> Array:
    """``z``, and ``z`` with one unknown moved a little, for each unknown."""
    return np.vstack([z, z + _EPSILON * np.eye(len(z))])


def _with_slopes(frame: Frame, z: Array, spots: Spots, talk: Array | float) -> tuple[Array, Array, Array, Array]:
    """Log seconds and log watts at ``z``, and the slopes of each (spots × unknowns)."""
    log_time, log_energy = evaluate(frame, _moved(z), spots, talk)
    log_power = log_energy - log_time
    time_slopes, power_slopes = (((rows[1:] - rows[0]) / _EPSILON).T for rows in (log_time, log_power))
    return log_time[0], log_power[0], time_slopes, power_slopes


def _spread(slopes: Array, covariance: Array) -> Array:
    return np.asarray(((slopes @ covariance) * slopes).sum(axis=1))
