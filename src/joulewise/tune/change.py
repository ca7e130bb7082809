"""Change detection: has the job's own pace, or its joules a step, moved for good? One detector watches one phase.

What it is: a two-sided cumulative sum (CUSUM) on each stream it is told (seconds a unit, joules a unit, activity
shares), on logarithms that are compared within a setting, freed of autocorrelation, standardised robustly and clipped.
Why it exists: a setting was verified for the job as it was; when the batch doubles, that is worth nothing. What it is
not: a judge of the setting (tune/guard), or of phases that come back (tune/phases).

How: each setting has its level, a mean over up to 1,000 steps. Deviations from it feed an autoregression of the third
order, whose residual z, in robust standard deviations and clipped at ±4 (one stall says little), is summed up beyond
±0.5: S ← max(0, S + z − 0.5). The alarm is at S ≥ h·V. With h = 10, independent normal steps cry once in about 70,000
(Siegmund: exp(h + 1.17)), and shifts of 1, 2, 3σ are seen after about 22, 8, 5 steps. V ≥ 1 is the residuals' long-run
variance (batch means): real step times hang together over many steps, which no short autoregression removes, and a
CUSUM of such noise wanders V times as far. σ here is the residual's; below ``FLOOR`` it counts as that: a job of steps
equal to 0.05 % has not changed because the chip is a degree warmer. ``python -m bench.guarantee`` measures all this.

What is surely there may still be nobody's business: a shift below ``least`` (1 %, or half the user's bound) moves the
levels and is added up; only when the sum reaches ``least`` has the job changed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from joulewise.core.knob import Setting

Array = npt.NDArray[np.float64]

REFERENCE = 0.5
"""Drift a step below which nothing adds up, in standard deviations: half of the least shift of interest, 1σ."""
THRESHOLD = 10.0
"""Sum at which there is an alarm, before it is widened by V."""
CLIP = 4.0
"""No step counts for more standard deviations than this."""
FLOOR = 0.003
"""Least relative standard deviation of a step: shifts below about this size are nobody's business."""
LEAST = 0.01
"""Least shift that is worth verifying again for: below it neither a bound nor a saving is at stake."""
LARGE = 0.10
"""A shift of more than so much in time or energy is large: the old setting is no longer worth verifying."""

_WARM = 60  # steps before anything is judged
_MEMORY = 1000  # steps that levels and noise are learnt from
_ORDER = 3
# The threshold is widened by 1 + (this / steps that the noise is known from)²: from few steps neither level nor noise
# is known well, and a job that has just begun still settles.
_YOUNG = 90
# Noise once known from so many steps is not learnt again from fewer after a shift.
_KNOWN = 250
# Each alarm doubles the threshold, which then comes down again over some 20,000 steps: a job that changes all the time
# has not changed, and the tuner shall not spend its life verifying.
_HABIT = 2.0
_FORGET = 1 - 1 / 20_000
# The long-run variance is believed to be that of independent residuals as firmly as ten batches would say.
_PRIOR_BATCHES = 10
# Sizes are estimated from a dozen steps: with this share of ``least`` as the limit, one of ``least`` is seldom missed.
_PASSED_OVER = 0.85
_LEAST_SHARE = 0.01  # activity below this is none


@dataclass(frozen=True, slots=True)
class Shift:
    """The job changed. ``size`` is the relative change of the stream that cried, ``steps`` ago by the sum's account."""

    kind: str
    """"small": the setting is to be verified again; "large": the job is to be tuned again."""
    stream: str
    size: float
    steps: int

    @property
    def says(self) -> str:
        """One sentence for the journal."""
        names = {"time": "seconds a step", "energy": "joules a step"}
        return f"{names.get(self.stream, self.stream)} changed by {self.size:+.1%} about {self.steps} steps ago"


def matters(bound: float) -> float:
    """The least shift that matters to a job with this slowdown bound, which may be infinite: half of it."""
    return max(LEAST, 0.5 * bound) if math.isfinite(bound) else LEAST


class ChangeDetector:
    """Watches one phase of one job. A fold: tell it every clean step, with the setting in force.

    ``least`` (``matters``) is the relative change below which the job counts as the same.
    """

    def __init__(self, least: float = LEAST) -> None:
        self._least = math.log1p(least)
        self._streams: dict[str, _Stream] = {}

    def tell(
        self,
        setting: Setting,
        unit_s: float,
        unit_j: float | None = None,
        activity: Mapping[str, float] | None = None,
    ) -> Shift | None:
        """One clean step (or several together): seconds and joules a unit of work, and activity shares if any.

        A Shift when the job has changed; the detector then learns the new job's levels from the beginning. Keep it: it
        remembers how noisy the job is, and how often it cried.
        """
        values = {"time": unit_s, "energy": unit_j, **{k: max(v, _LEAST_SHARE) for k, v in (activity or {}).items()}}
        for name, value in values.items():
            if value is None or not value > 0 or not math.isfinite(value):
                continue
            stream = self._streams.setdefault(name, _Stream(self._least))
            found = stream.tell(setting, math.log(value))
            if found is not None:
                self.restart()
                size = math.expm1(found[0])
                return Shift("large" if abs(size) > LARGE else "small", name, size, found[1])
        return None

    def restart(self) -> None:
        """Something else has found that the job changed: learn its levels anew."""
        for each in self._streams.values():
            each.restart()


@dataclass(slots=True)
class _Level:
    """Mean of one setting's logarithms so far."""

    mean: float
    count: int = 1

    def learn(self, value: float) -> None:
        self.count = min(self.count + 1, _MEMORY)
        self.mean += (value - self.mean) / self.count


class _Stream:
    """One stream of logarithms."""

    def __init__(self, least: float) -> None:
        self._least = _PASSED_OVER * least
        self._followed = 0.0  # shifts too small to matter, added up
        self._levels: dict[Setting, _Level] = {}
        self._deviations: deque[float] = deque(maxlen=_MEMORY)
        self._weights = np.zeros(_ORDER)
        self._lags = np.zeros(_ORDER)  # the last deviations, latest first
        self._limit = math.inf
        self._sigma = FLOOR
        self._widening = 1.0
        self._told = 0
        self._known = 1  # steps that the noise was learnt from
        self._habit = 1.0
        self._learn_at = _WARM
        self._up = self._down = 0.0
        self._up_since = self._down_since = 0
        self._first: list[tuple[Setting, float]] = []

    def restart(self) -> None:
        """Learn levels anew; the noise is believed to be what it was until there is more to go by."""
        self._levels.clear()
        self._first.clear()
        self._deviations.clear()
        self._lags[:] = 0.0
        self._told, self._learn_at = 0, _WARM
        self._up = self._down = self._followed = 0.0
        self._habit *= _HABIT

    def tell(self, setting: Setting, log: float) -> tuple[float, int] | None:
        """One step; (log size, steps ago) of a shift if there is one."""
        self._told += 1
        if self._told <= _WARM:
            self._first.append((setting, log))
            if self._told == _WARM:
                self._begin()
            return None
        level = self._levels.get(setting)
        if level is None:
            self._levels[setting] = _Level(log)
            return None
        deviation = log - level.mean
        z = self._standard(deviation, level.count)
        self._habit = 1 + (self._habit - 1) * _FORGET
        shift = self._sum(z, deviation)
        if shift is not None and abs(self._followed + shift[0]) < self._least:
            self._follow(shift[0])
            return None
        # A step far out would drag a young level along: it moves it as far as one at the clip would.
        expected = deviation - z * self._sigma
        calm = max(self._up, self._down) < 0.5 * self._threshold
        if calm:  # else it may be the new job that is being learnt
            level.learn(level.mean + expected + max(-CLIP, min(CLIP, z)) * self._sigma)
        self._deviations.append(deviation)
        self._lags[1:] = self._lags[:-1]
        self._lags[0] = deviation
        if self._told >= self._learn_at and calm:
            self._learn_noise()
            self._learn_at = self._told + min(self._told // 3, _MEMORY)
        return (self._followed + shift[0], shift[1]) if shift is not None else None

    def _follow(self, size: float) -> None:
        """The job has shifted by so little that it is the same: its levels move along."""
        self._followed += size
        self._up = self._down = 0.0
        self._lags -= size
        for level in self._levels.values():
            level.mean += size

    @property
    def _threshold(self) -> float:
        """Wider while little is known of the noise, and for a job that has cried often."""
        return THRESHOLD * self._widening * (1 + (_YOUNG / self._known) ** 2) * self._habit

    def _begin(self) -> None:
        """Levels by medians, then the noise around them, from the first steps."""
        by_setting: dict[Setting, list[float]] = {}
        for setting, log in self._first:
            by_setting.setdefault(setting, []).append(log)
        for setting, logs in by_setting.items():
            self._levels[setting] = _Level(float(np.median(logs)), len(logs))
        self._deviations.extend(log - self._levels[setting].mean for setting, log in self._first)
        self._first.clear()
        self._learn_noise()
        self._learn_at = 2 * _WARM

    def _standard(self, deviation: float, count: int) -> float:
        """The residual in standard deviations, the level's own error (it is from ``count`` steps) included."""
        # What a far step leaves behind: nothing after a stall, an echo after a push. The kinder reading counts.
        echo = float(self._weights @ self._lags)
        clipped = float(self._weights @ np.clip(self._lags, -self._limit, self._limit))
        expected = min(echo, clipped, key=lambda value: abs(deviation - value))
        return (deviation - expected) / (self._sigma * math.sqrt(1 + self._widening / count))

    def _sum(self, z: float, deviation: float) -> tuple[float, int] | None:
        clipped = max(-CLIP, min(CLIP, z))
        if self._up == 0.0:
            self._up_since = self._told
        if self._down == 0.0:
            self._down_since = self._told
        self._up = max(0.0, self._up + clipped - REFERENCE)
        self._down = max(0.0, self._down - clipped - REFERENCE)
        limit = self._threshold
        if max(self._up, self._down) < limit:
            return None
        steps = self._told - (self._up_since if self._up >= limit else self._down_since) + 1
        # The sum may have begun to grow a little before the shift: its later half is surely after it.
        recent = [*self._deviations, deviation][-max(3, steps // 2) :]
        return _agreed(float(np.median(recent)), fmean(recent)), steps

    def _learn_noise(self) -> None:
        """Autoregression, deviation and long-run variance from what lies in memory."""
        if len(self._deviations) < min(self._known, _KNOWN):
            return
        self._known = len(self._deviations)
        values = np.asarray(self._deviations)
        values = values - np.median(values)
        self._limit = CLIP * max(_spread(values), FLOOR)
        clipped = np.clip(values, -self._limit, self._limit)
        # An order for every sixty steps: fewer steps cannot tell more.
        order = min(_ORDER, values.size // _WARM)
        self._weights = np.zeros(_ORDER)
        self._weights[:order] = _autoregression(clipped, order)
        residuals = values[order:] - sum(
            self._weights[lag] * clipped[order - 1 - lag : values.size - 1 - lag] for lag in range(order)
        )
        self._sigma = max(_spread(residuals), FLOOR)
        self._widening = _long_run(np.clip(residuals / self._sigma, -CLIP, CLIP))


def _agreed(median: float, mean: float) -> float:
    """The smaller of two estimates of a shift, 0 where they contradict each other.

    A stall moves the mean and not the median. A stamp that is late makes one step longer and the next one shorter,
    which moves the median and not the mean.
    """
    return math.copysign(min(abs(median), abs(mean)), median) if median * mean > 0 else 0.0


def _spread(values: Array) -> float:
    """Robust standard deviation about zero: the median |value| of a normal is 0.6745σ."""
    return float(np.median(np.abs(values))) / 0.6745


def _autoregression(values: Array, order: int) -> Array:
    """Yule–Walker's weights, stationary by construction."""
    size = values.size
    covariance = np.array([float(values[: size - lag] @ values[lag:]) / size for lag in range(order + 1)])
    if not covariance[0] > 0:
        return np.zeros(order)
    lags = np.abs(np.subtract.outer(np.arange(order), np.arange(order)))
    matrix = covariance[lags] + 1e-9 * covariance[0] * np.eye(order)
    weights: Array = np.linalg.solve(matrix, covariance[1:])
    return weights


def _long_run(z: Array) -> float:
    """Variance of a sum of residuals, a step: 1 for independent ones. The largest that batch means of any length show.

    Batches are about as long as a shift takes to be seen, which is the scale on which the sum wanders.
    """
    found = 1.0
    for length in (10, 25, 50, 100):
        count = z.size // length
        if count < 8:
            break
        means = z[: count * length].reshape(count, length).mean(axis=1)
        estimate = length * float(np.var(means, ddof=1))
        found = max(found, (count * estimate + _PRIOR_BATCHES * float(np.var(z))) / (count + _PRIOR_BATCHES))
    return found
