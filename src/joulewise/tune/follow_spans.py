"""What a rank of a pipeline did when: its operations as spans of the GPU's time, and what the GPU drew in each kind.

Spans are told by whoever runs the operations. Power readings are short means (25 ms on current GPUs); each is a mixture
of what went on while the sensor looked, so least squares over many of them tell the power of each kind of operation and
of waiting apart. Their sum is then held to the energy counter. Nothing is decided here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from joulewise.core.knob import Setting

K = TypeVar("K", bound=Hashable)
Kind = tuple[int, str]
"""Stage and kind of operation."""
Floats = NDArray[np.float64]

_FEW = 6
"""Readings that lie within one kind of operation altogether, from which on the mixed ones are not needed."""
_UNKNOWN = 0.5
"""Relative: how far a kind's power may be from the mean of all before anything was read of it. A GPU that waits draws a
quarter to a third of one that works; kinds of work differ by tens of percent."""
_NOISE = 0.02
"""Relative, of a reading as the mean of what it mixes: kernels differ."""


@dataclass(frozen=True, slots=True)
class Span:
    """One operation as it was run, in the GPU's time."""

    stage: int
    kind: str
    microbatch: int
    iteration: int
    setting: Setting
    """What was wanted for it."""
    from_s: float
    to_s: float

    @property
    def duration_s(self) -> float:
        """How long it took."""
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True)
class Readings:
    """Power as read: each the mean over ``window_s`` up to ``end_s``."""

    end_s: Floats
    power_w: Floats
    window_s: float
    error_s: float = 0.0
    """How unsure the moments are."""


def powers_w(
    pieces: Sequence[tuple[K, float, float]], waiting: K, readings: Readings, from_s: float, to_s: float
) -> dict[K, tuple[float, float]]:
    """Mean power of each name in ``pieces`` (name, from, to) and of ``waiting`` between them, with standard errors.

    Pieces are in order and do not overlap. Empty where nothing was read within [from_s, to_s].
    """
    start_s = readings.end_s - readings.window_s
    inside = (start_s >= from_s) & (readings.end_s <= to_s)
    read_w = readings.power_w[inside]
    if not len(read_w):
        return {}
    names = list(dict.fromkeys([*(name for name, _, _ in pieces), waiting]))
    shares = _shares(pieces, names, waiting, start_s[inside], readings.end_s[inside])
    margin = _shares(
        pieces, names, waiting, start_s[inside] - readings.error_s, readings.end_s[inside] + readings.error_s
    )
    pure = margin.max(axis=1) > 1.0 - 1e-9
    of = shares.argmax(axis=1)
    if all(np.count_nonzero(pure & (of == at)) >= _FEW for at in range(len(names))):
        return {name: _mean(read_w[pure & (of == at)]) for at, name in enumerate(names)}
    mean_w = float(read_w.mean())
    noise_w, spread_w = _NOISE * mean_w, _UNKNOWN * mean_w
    normal = shares.T @ shares / noise_w**2 + np.eye(len(names)) / spread_w**2
    covariance = np.linalg.inv(normal)
    found = covariance @ (shares.T @ read_w / noise_w**2 + np.full(len(names), mean_w / spread_w**2))
    missed_w = read_w - shares @ found
    worse = max(1.0, float(np.sqrt((missed_w**2).mean())) / noise_w)
    errors = np.sqrt(np.diag(covariance)) * worse
    return {name: (float(found[at]), float(errors[at])) for at, name in enumerate(names)}


def held_to(
    powers: Mapping[K, tuple[float, float]], seconds: Mapping[K, float], energy_j: float
) -> dict[K, tuple[float, float]]:
    """The same powers, all multiplied by one factor that makes them the ``energy_j`` of ``seconds``."""
    sum_j = math.fsum(powers[name][0] * seconds.get(name, 0.0) for name in powers)
    factor = energy_j / sum_j if sum_j > 0 else 1.0
    return {name: (power_w * factor, error_w * factor) for name, (power_w, error_w) in powers.items()}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """A mean and its standard error; of one value the error is that of a coarse guess, 2 %."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.02 * mean
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))


def _mean(values: Floats) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def _shares(
    pieces: Sequence[tuple[K, float, float]], names: Sequence[K], waiting: K, start_s: Floats, end_s: Floats
) -> Floats:
    """Readings × names: which share of each reading's window fell on what."""
    ends_s = [to_s for _, _, to_s in pieces]
    place = {name: at for at, name in enumerate(names)}
    shares = np.zeros((len(start_s), len(names)))
    for row, (low_s, high_s) in enumerate(zip(start_s.tolist(), end_s.tolist(), strict=True)):
        at = bisect_left(ends_s, low_s)
        while at < len(pieces) and pieces[at][1] < high_s:
            name, from_s, to_s = pieces[at]
            shares[row, place[name]] += max(0.0, min(to_s, high_s) - max(from_s, low_s)) / (high_s - low_s)
            at += 1
        shares[row, place[waiting]] += max(0.0, 1.0 - shares[row].sum())
    return shares
