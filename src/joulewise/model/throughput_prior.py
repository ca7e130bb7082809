"""What other jobs on the same fabric say about a job not yet seen: medians, spreads, noise, and how wide bands must be.

Why it exists: a few spots leave much of the throughput law open. One inter-node size cannot tell how synchronisation
grows with GPUs; other jobs on the same network can. What it is not: a fit of one job (``throughput_fit``). A prior must
never be learnt from the job that it is for; callers leave that one out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.model.throughput import INDEX, Frame
from joulewise.model.throughput_fit import BAND, GENERIC, JobFit, Prior, Seen, fit

Array = NDArray[Any]

_WEIGHT = 2.0  # the generic prior counts as so many jobs
_PLACE = 0.3  # spread of what a place takes longer or shorter than the law says
_OWN = ("busy",)  # a job's own size: other jobs say nothing about it
_WIDEN = (0.7, 2.5)  # bands are widened, or narrowed, by no more than that: few jobs tell a quantile badly


def learn(
    jobs: Sequence[tuple[Frame, Seen]], *, rounds: int = 6, generic: Prior = GENERIC, calibrate: bool = True
) -> Prior:
    """The prior that jobs (each with its frame and all that was seen of it) suggest, found by turns with their fits.

    ``calibrate``: also how wide bands must be, by hiding a part of each job and looking at what it really was.
    """
    prior = generic
    for _ in range(rounds if jobs else 0):
        prior = pooled([fit(frame, seen, prior) for frame, seen in jobs], generic)
    return _calibrated(prior, jobs) if calibrate and jobs else prior


def pooled(fits: Sequence[JobFit], generic: Prior = GENERIC) -> Prior:
    """The prior that fits of other jobs suggest.

    A few jobs cannot narrow much: ``generic`` counts as ``_WEIGHT`` jobs more, and what a job could not tell counts as
    wide as it was left.
    """
    z = np.array([one.z for one in fits])
    own = np.array([np.diag(one.covariance) for one in fits])
    mean = np.median(z, axis=0)
    squares = ((z - mean) ** 2 + own).sum(axis=0)
    spread = np.sqrt((_WEIGHT * generic.spread**2 + squares) / (_WEIGHT + len(fits)))
    for name in _OWN:
        mean[INDEX[name]], spread[INDEX[name]] = generic.mean[INDEX[name]], generic.spread[INDEX[name]]
    return replace(
        generic,
        mean=mean,
        spread=spread,
        time_noise=_noise([one.time.variance for one in fits], generic.time_noise),
        power_noise=_noise([one.power.variance for one in fits], generic.power_noise),
        places=_places(fits),
    )


def _noise(variances: Sequence[float | None], usual: float) -> float:
    """Root of the mean of what fits leave, every job alike, with ``usual`` as one job's worth of it."""
    each = [variance for variance in variances if variance is not None]
    return float(np.sqrt((usual**2 + sum(each)) / (1.0 + len(each))))


def _places(fits: Sequence[JobFit]) -> dict[tuple[int, int], float]:
    """What synchronisation takes longer than the law at each (GPUs, nodes), over all jobs that have been there: least
    squares of what their fits leave, drawn to 0."""
    gpus, nodes = (np.concatenate([getattr(one.time.spots, name) for one in fits]) for name in ("gpus", "nodes"))
    follows = np.concatenate([one.time.slopes[:, INDEX["near"]] for one in fits])  # log seconds by log synchronisation
    sure = np.concatenate([np.full(len(one.time.values), 1.0 / one.prior.time_noise**2) for one in fits])
    talk = np.concatenate([np.broadcast_to(one.prior.talk(one.time.spots), one.time.values.shape) for one in fits])
    left = talk * follows - np.concatenate([one.time.values for one in fits])
    where, which = np.unique(np.stack([gpus, nodes], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)
    pull = np.bincount(which, sure * follows * left, minlength=len(where))
    stiff = np.bincount(which, sure * follows**2, minlength=len(where)) + 1.0 / _PLACE**2
    shifts = (pull / stiff).tolist()
    return {(int(n), int(k)): shift for (n, k), shift in zip(where, shifts, strict=True) if n > 1}


def _calibrated(prior: Prior, jobs: Sequence[tuple[Frame, Seen]]) -> Prior:
    """``prior`` with bands as wide as these jobs needed: each predicted from a third of its spots."""
    time_off: list[Array] = []
    energy_off: list[Array] = []
    for frame, seen in jobs:
        order = np.lexsort((seen.spots.x, seen.spots.limit_w, seen.spots.batch, seen.spots.gpus))
        for turn in range(3):
            shown = order[turn::3]
            hidden = np.setdiff1d(order, shown)
            if len(shown) == 0 or len(hidden) == 0:
                continue
            said = fit(frame, seen.pick(shown), prior).predict(seen.spots.pick(hidden))
            time_off.append(np.abs(np.log(said.seconds / seen.seconds[hidden])) / said.time_error)
            off = np.abs(np.log(said.joules / seen.joules[hidden])) / said.energy_error
            energy_off.append(off[~np.isnan(off)])
    return replace(prior, time_widen=_widened(time_off), energy_widen=_widened(energy_off))


def _widened(off: Sequence[Array]) -> float:
    """What makes 90 % of the standardised errors fit a 90 % band."""
    errors = np.concatenate(off) if off else np.zeros(0)
    if len(errors) < 10:
        return 1.0
    return float(np.clip(np.quantile(errors, 0.9) / BAND, *_WIDEN))
