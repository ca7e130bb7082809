"""Which periods a trace might have: a short list of guesses, good to a percent or two, for ``period_timing`` to judge.

Two views of the same spectrum make the list. A comb over the autocorrelation adds up, for every period on a fine grid,
how alike the trace is to itself one, two, … six periods later; it finds a step whatever its shape, and forgives jitter,
since it looks only a few periods ahead. The highest lines of the spectrum find steps of two or three samples, for which
the comb's lags are too coarse. Nothing is decided here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHORTEST = 2.0
"""In samples: a period below is not told from a longer one by samples that are evenly spaced."""
REPEATS = 3.5
"""A period must fit so many times into a trace to be looked for."""
_AHEAD = 6.0
"""How many periods the comb looks ahead: jitter of 5 % a step leaves neighbours six apart still in phase."""
_HARMONICS = 4
_FINE = 70.0
"""Points of the grid per factor e: the comb's fourth harmonic over six periods is that narrow."""
_COMBED, _LINES = 3, 3
"""Guesses taken from the comb and from the spectrum."""
SHORT = 8.0
"""In samples: below, harmonics fold back, and a guess must be better than the grid."""
_NEARBY = np.linspace(0.97, 1.03, 25)
_FAR_AHEAD = 20.0
_FINE_HARMONICS = 5
_ROUND = 32
"""Numbers of lags are rounded to this, so that a window that grows does not need a new comb every time."""
_MOST_LAGS = 640


def guesses(rows: Sequence[Array], step_s: float, low_s: float, high_s: float) -> list[float]:
    """Periods in [low_s, high_s] worth a closer look, the likeliest first.

    ``rows`` are signals of one job at the same even spacing ``step_s``, each with mean 0 and variance 1.
    """
    count = len(rows[0])
    lags = min(_MOST_LAGS, max(_ROUND, count // 2 // _ROUND * _ROUND))
    if count < 2 * _ROUND:
        return []
    power = np.abs(np.fft.rfft(np.array(rows), 2 * count, axis=1)) ** 2
    alike = np.fft.irfft(power, axis=1)[:, : lags + 1] / np.arange(count, count - lags - 1, -1)
    periods, comb = _comb(lags)
    scores = comb @ (alike[:, 1:] / np.maximum(alike[:, :1], 1e-12)).T
    # A signal in which nothing repeats has no say in where the others are looked at.
    weights = np.maximum(scores.max(axis=0), 1e-6) ** 2
    together = weights @ alike[:, 1:]
    rate_hz = np.arange(1, power.shape[1]) / (2 * count * step_s)
    found = _highest((weights @ power)[1:], 1.0 / rate_hz, low_s, high_s, _LINES)
    for each in _highest(scores @ weights, periods * step_s, low_s, high_s, _COMBED):
        found.append(_zoom(together, each / step_s) * step_s if each < SHORT * step_s else each)
    kept: list[float] = []
    for each in found:
        same = 0.1 * each / (count * step_s)  # a tenth of a period over the whole trace
        if low_s <= each <= high_s and all(abs(each / other - 1.0) > max(same, 0.002) for other in kept):
            kept.append(each)
    return kept


def _zoom(alike: Array, period: float) -> float:
    """A period of few samples, more exactly: the comb again, with finer teeth and farther ahead."""
    lags = min(len(alike), int(_FAR_AHEAD * period))
    lag = np.arange(1, lags + 1)
    phase = (2.0 * np.pi / period) * np.outer(_NEARBY, lag)
    taper = alike[:lags] * (0.5 + 0.5 * np.cos(np.pi * lag / lags))
    scores = sum(np.cos(harmonic * phase) for harmonic in range(1, _FINE_HARMONICS + 1)) @ taper
    at = min(max(int(np.argmax(scores)), 1), len(_NEARBY) - 2)
    before, here, after = scores[at - 1 : at + 2]
    offset = 0.5 * (before - after) / min(before - 2.0 * here + after, -1e-12)
    return period / float(_NEARBY[at] + min(max(offset, -1.0), 1.0) * (_NEARBY[1] - _NEARBY[0]))


def _highest(scores: Array, periods_s: Array, low_s: float, high_s: float, most: int) -> list[float]:
    """The periods of the highest peaks within bounds, by parabola between the grid's points."""
    middle = scores[1:-1]
    inside = (periods_s[1:-1] >= low_s) & (periods_s[1:-1] <= high_s)
    peaks = np.flatnonzero(inside & (middle > scores[:-2]) & (middle >= scores[2:])) + 1
    peaks = peaks[np.argsort(-scores[peaks], kind="stable")[:most]]
    before, here, after = scores[peaks - 1], scores[peaks], scores[peaks + 1]
    offset = 0.5 * (before - after) / np.minimum(before - 2.0 * here + after, -1e-12)
    nearby = np.where(offset > 0, periods_s[peaks + 1], periods_s[peaks - 1])
    found_s = periods_s[peaks] * (nearby / periods_s[peaks]) ** np.abs(np.clip(offset, -0.5, 0.5))
    return [float(period_s) for period_s in np.clip(found_s, low_s, high_s)]


@functools.lru_cache(maxsize=8)
def _comb(lags: int) -> tuple[Array, Array]:
    """Periods in samples, and for each the weights of lags 1 … ``lags``; every row has length 1."""
    periods = np.exp(np.arange(math.log(SHORTEST * 0.95), math.log(lags / 1.5), 1.0 / _FINE))
    lag = np.arange(1, lags + 1)
    reach = np.minimum(_AHEAD * periods, lags)[:, None]
    taper = np.where(lag <= reach, 0.5 + 0.5 * np.cos(np.pi * lag / reach), 0.0)
    phase = 2.0 * np.pi * lag / periods[:, None]
    comb = taper * sum(np.cos(harmonic * phase) for harmonic in range(1, _HARMONICS + 1))
    return periods, comb / np.sqrt((comb**2).sum(axis=1, keepdims=True))
