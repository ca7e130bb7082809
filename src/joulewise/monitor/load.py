"""What readings of power tell about the load between them: its mean, how much it moves, and how fast.

A reading is the mean over the sensor's window, taken once per update. What happens inside a window, or between
two windows of a part-time sensor, shows only indirectly: in how much readings scatter, in how alike neighbours
are, and in utilisation (a GPU that is busy half of the time draws busy power half of the time, however steady its
readings look). ``Load`` gathers this as a stationary random process with a slow part that readings resolve and a
fast part that they do not. It is a description for error bars and interpolation, not a model of the job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BUSY_SPREAD = 0.2
"""Relative standard deviation of power inside a step while kernels run without a gap: a prior, used as far as
readings show less. On an H200 matrix products draw 716 W and copies 234 to 574 W, both busy all the time."""

LOCKED_SPREAD = 0.10
"""The same for a load that is in step with a part-time sensor, which then sees one and the same piece of every
step: smaller, because few steady-looking loads are in step."""

_LOCKED_SCATTER = 6.0
"""A load in step with the sensor gives steady readings; scatter of 1/6 of the expected variance rules it out."""

_REPEATS = 0.97
"""Correlation at which a pattern of readings counts as repeated."""

_PRIOR_WEIGHT = 3.0
"""How many readings the prior is worth."""


@dataclass(frozen=True, slots=True)
class Part:
    """A random component of power with exponentially fading correlation: variance in W², time in s."""

    variance: float
    memory_s: float

    def covariance(self, from_a: Array, to_a: Array, from_b: Array, to_b: Array) -> Array:
        """Covariances, in J², of the energies of stretches a (rows) with stretches b (columns)."""
        ends_a, ends_b = np.stack((from_a, to_a)), np.stack((from_b, to_b))
        ratio = np.abs(ends_a[:, None, :, None] - ends_b[None, :, None, :]) / self.memory_s
        twice = np.expm1(-ratio) + ratio  # integrates to the correlation twice over, up to memory²
        shape: Array = twice[1, 0] - twice[0, 0] - twice[1, 1] + twice[0, 1]
        return self.variance * self.memory_s**2 * shape

    def energy_variance(self, duration_s: float) -> float:
        """Variance, J², of the energy of a stretch."""
        return self.variance * duration_s**2 * averaging(duration_s / self.memory_s)

    def miss(self, update_s: float, window_s: float) -> float:
        """Variance, W², of the mean over an update minus the mean over the window at its end."""
        x, y = update_s / self.memory_s, window_s / self.memory_s
        shared = math.expm1(-x) + x + math.expm1(-y) + y - (math.expm1(-(x - y)) + x - y)
        return max(0.0, self.variance * (averaging(x) + averaging(y) - 2.0 * shared / (x * y)))


def averaging(ratio: float) -> float:
    """Variance of the mean over ``ratio`` memories, relative to the variance of the process itself."""
    if ratio < 1e-4:
        return 1.0 - ratio / 3.0
    return 2.0 * (ratio + math.expm1(-ratio)) / ratio**2


def _likeness(window_s: float, spacing_s: float, memory_s: float) -> float:
    """Correlation of two window means, ``spacing_s`` ≥ ``window_s`` apart."""
    x = window_s / memory_s
    bare = 1.0 - 2.0 * x / 3.0 if x < 1e-4 else math.expm1(-x) ** 2 / (2.0 * (x + math.expm1(-x)))
    return math.exp(-(spacing_s - window_s) / memory_s) * bare


def _memory_s(likeness: float, window_s: float, spacing_s: float) -> float:
    """The memory that makes neighbours this alike; between 1/8 and 1000 spacings."""
    low, high = math.log(0.125 * spacing_s), math.log(1000.0 * spacing_s)
    for _ in range(24):
        middle = 0.5 * (low + high)
        if _likeness(window_s, spacing_s, math.exp(middle)) < likeness:
            low = middle
        else:
            high = middle
    return math.exp(0.5 * (low + high))


@dataclass(frozen=True, slots=True)
class Load:
    """The load as its readings describe it."""

    mean_w: float
    slow: Part
    """What readings resolve."""
    fast: Part
    """What they cannot follow: changes inside the sensor's window, or between two looks."""
    locked: float
    """Variance, W², of a piece of the step that a sensor in step with the load would see again and again."""
    covariance: Array
    """Autocovariance of readings at 0, 1, 2 … spacings, W²."""
    spacing_s: float
    readings: int

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both parts."""
        return self.slow, self.fast

    @property
    def variance(self) -> float:
        """Of power at one instant, W²."""
        return self.slow.variance + self.fast.variance

    @property
    def mean_variance(self) -> float:
        """Of ``mean_w`` as an estimate of the load's true mean, W²."""
        span_s = self.readings * self.spacing_s
        return sum(part.variance * averaging(span_s / part.memory_s) for part in self.parts)

    def mean_scatter(self, duration_s: float) -> float:
        """Variance, W², of the mean of the readings in ``duration_s``, from how far they move together."""
        count = max(1.0, duration_s / self.spacing_s)
        lags = np.arange(min(len(self.covariance), math.ceil(count)))
        weights = 2.0 * (1.0 - lags / count)
        weights[0] = 1.0
        return max(0.0, float(weights @ self.covariance[: len(lags)])) / count


def describe(
    end_s: Array,
    power_w: Array,
    utilization: Array,
    *,
    window_s: float,
    update_s: float,
    idle_power_w: float | None = None,
    limit_w: float | None = None,
    most_lags: int = 400,
) -> Load:
    """A Load from readings: when each one's window ended, its power, and utilisation (NaN where unknown).

    At least one reading is needed. With few, the prior leads: what utilisation says about idle gaps, and
    ``BUSY_SPREAD``.
    """
    spacing_s = max(float(np.median(np.diff(end_s))) if len(end_s) > 1 else update_s, update_s)
    if window_s > 1.5 * spacing_s:  # windows overlap: every so many of them are apart
        stride = round(window_s / spacing_s)
        spacing_s, power_w, utilization = stride * spacing_s, power_w[::-stride], utilization[::-stride]
    window_s = min(window_s, spacing_s)
    count = len(power_w)
    mean_w = float(power_w.mean())
    deviations = power_w - mean_w
    seen = float(deviations @ deviations) / max(1, count - 1)
    lags = min(most_lags, max(1, count // 2))
    # Readings are taken as evenly spaced; the few that are not only blur the correlation.
    spectrum = np.fft.rfft(deviations, 2 * count)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), 2 * count)[:lags] / count

    expected = _expected_variance(mean_w, utilization, idle_power_w, BUSY_SPREAD)
    slow, fast_seen = _split(deviations, seen, window_s, spacing_s)
    share = count / (count + _PRIOR_WEIGHT)
    slow = Part(max(share * slow.variance, 1e-6), slow.memory_s)
    fast = max(fast_seen, 0.0) * share + (1.0 - share) * expected
    # A sensor that updates often is read at uneven times, so that only what is inside its window stays hidden.
    hidden = window_s / spacing_s if update_s < 0.5 * spacing_s else 1.0
    fast = max(fast, hidden * expected - slow.variance)
    locked = _expected_variance(mean_w, utilization, idle_power_w, LOCKED_SPREAD, limit_w)
    return Load(
        mean_w=mean_w,
        slow=slow,
        fast=Part(max(fast, 1e-6), 0.25 * update_s),
        locked=max(locked - _LOCKED_SCATTER * seen, _repeated(covariance, count), 0.0),
        covariance=covariance,
        spacing_s=spacing_s,
        readings=count,
    )


def _split(deviations: Array, seen: float, window_s: float, spacing_s: float) -> tuple[Part, float]:
    """The part of the scatter that neighbours share, and the variance of the rest."""
    count = len(deviations)
    if count < 4 or seen <= 0:
        return Part(seen, 0.125 * spacing_s), 0.0
    steps = [0.5 * float(np.mean((deviations[lag:] - deviations[:-lag]) ** 2)) for lag in (1, 2)]
    # One reading in n pulls the mean along, which hides 1/n of every correlation.
    first, second = (max(0.0, 1.0 - step / (seen * (1.0 + 1.0 / count))) for step in steps)
    if first <= 0.05:
        memory_s = 0.125 * spacing_s
        return Part(seen / averaging(window_s / memory_s), memory_s), 0.0
    # Exponential fading: the second neighbour tells how fast, the first one then tells how much there is.
    fade = min(0.9995, max(second / first, first * first, 0.05))
    resolved = min(1.0, first / fade)
    memory_s = _memory_s(fade, window_s, spacing_s)
    slow = Part(resolved * seen / averaging(window_s / memory_s), memory_s)
    rest = (1.0 - resolved) * seen
    return slow, rest / averaging(window_s / (0.125 * spacing_s))


def _repeated(covariance: Array, count: int) -> float:
    """Variance, W², of the mean of a pattern of m readings that repeats: a load in step with every m-th update.

    The sensor then sees the same m pieces of every step, whose mean misses that of the step by about 1/m of their
    spread. 0 where nothing repeats, or not for long.
    """
    if len(covariance) < 3 or covariance[0] <= 0:
        return 0.0
    alike = covariance / covariance[0] / (1.0 - np.arange(len(covariance)) / count)
    apart = np.flatnonzero(alike < 0.7)
    if len(apart) == 0:
        return 0.0
    again = np.flatnonzero(alike[apart[0] :] > _REPEATS)
    if len(again) == 0:
        return 0.0
    period = int(apart[0] + again[0])
    latest = (len(alike) - 1) // period * period
    return float(covariance[0]) / period**2 if alike[latest] > _REPEATS else 0.0


def _expected_variance(
    mean_w: float,
    utilization: Array,
    idle_power_w: float | None,
    spread: float,
    limit_w: float | None = None,
) -> float:
    """Variance of power at one instant, W², that utilisation and experience let one expect.

    Two levels, idle and busy, in the shares that utilisation gives, and ``spread`` among busy kernels. With
    ``limit_w`` the readings are not trusted to show busy power, which is then at least half of the limit.
    """
    known = utilization[~np.isnan(utilization)]
    busy = float(known.mean()) if len(known) else 1.0
    spread = spread if len(known) else 2.0 * spread
    idle_w = min(mean_w, idle_power_w if idle_power_w is not None else 0.2 * mean_w)
    if busy < 0.02:
        return (0.02 * mean_w) ** 2
    busy_w = idle_w + (mean_w - idle_w) / busy
    if limit_w is not None:
        busy_w = max(busy_w, 0.5 * limit_w) if busy < 0.98 else busy_w
    return busy * (1.0 - busy) * (busy_w - idle_w) ** 2 + busy * (spread * busy_w) ** 2
