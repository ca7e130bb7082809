"""Power traces with a known period, and traces with none, as a polled sensor shows them. Made, not measured.

A training job is three to six phases of random level and length that repeat; every step is drawn 1 % longer or
shorter, and power is noisy by 3 % at every millisecond. Half of the jobs end their step with a low phase, as one does
that waits for data. At a lower clock the same job has the same phases, but each stretches by a share of its own and
draws less. What a tuner sees of it is a sensor (a mean over ``window_s``, renewed every ``update_s``) polled ten times
a second with a little jitter. The kinds without a period are those that a detector is likely to fall for.

Everything is drawn from the seed and the job's number, so any case can be made again alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRID_S = 1e-3
"""Power is made at this resolution."""
POLL_S = 0.1
POLL_JITTER_S = 0.003
"""One standard deviation of when a poll happens: what a sleeping Python thread does on a busy machine."""
STEP_JITTER = 0.01
NOISE = 0.03
LEAD_S = 1.5
"""Power before the first poll, for sensors that look back."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """How power is shown: the mean over ``window_s`` before each update, held until the next."""

    name: str
    update_s: float
    window_s: float

    @property
    def reach_s(self) -> float:
        """Shorter periods cannot be asked of it: half the rate at which it says something new."""
        return 2.0 * max(self.update_s, self.window_s)


AVERAGE = Sensor("1 s mean", 0.1, 1.0)
SENSORS = (Sensor("25 ms of 100", 0.1, 0.025), Sensor("100 ms mean", 0.1, 0.1), AVERAGE)
PERIODS_S = (0.12, 0.25, 0.45, 0.8, 1.3, 2.7, 5.0, 9.0)
STRETCHES = (1.0, 1.03, 1.12, 1.4)
"""Step time at each clock, relative to the first: a bound's worth, a tuner's usual probe, and far down."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One recording: polls, and the step ends that nobody may look at but the judge."""

    name: str
    time_s: Array
    power_w: Array
    average_w: Array
    """The driver's 1 s average, polled at the same times: what tells an alias from a period."""
    sensor: Sensor
    step_ends_s: Array
    """Empty where there is no period."""

    @property
    def period_s(self) -> float | None:
        """Mean time between the step ends seen, or None where there is no period."""
        ends_s = self.step_ends_s
        return float((ends_s[-1] - ends_s[0]) / (len(ends_s) - 1)) if len(ends_s) > 1 else None


@dataclass(frozen=True, slots=True)
class Job:
    """Phases that repeat. Shares of the step and of how far each stretches at a lower clock add up to one."""

    name: str
    period_s: float
    levels_w: Array
    lengths: Array
    stretch_shares: Array
    static_w: float

    def at(self, stretch: float) -> Job:
        """The same job at a clock that makes its step ``stretch`` times as long."""
        lengths = self.lengths + (stretch - 1.0) * self.stretch_shares
        # Switching power falls faster than speed, since the voltage falls too; between 1/s and 1/s² is usual.
        levels_w = self.static_w + (self.levels_w - self.static_w) / stretch**1.5
        return replace(self, period_s=self.period_s * stretch, lengths=lengths / stretch, levels_w=levels_w)


def draw_for(*key: object) -> np.random.Generator:
    """A generator that depends on all of ``key`` and nothing else."""
    return np.random.default_rng([zlib.crc32(repr(part).encode()) for part in key])


def training(seed: int, number: int, period_s: float) -> Job:
    """The ``number``-th job of a seed."""
    draw = draw_for("job", seed, number, period_s)
    phases = int(draw.integers(3, 7))
    levels_w = draw.uniform(150.0, 700.0, phases)
    lengths = draw.uniform(0.3, 1.7, phases)
    if number % 2:
        levels_w[-1] = draw.uniform(80.0, 130.0)
    lengths /= lengths.sum()
    shares = lengths * draw.uniform(0.0, 1.0, phases)
    return Job(f"{period_s:g} s #{number}", period_s, levels_w, lengths, shares / shares.sum(), 80.0)


def duration_of(period_s: float) -> float:
    """How long a case is watched: 25 s, or six periods."""
    return max(25.0, 6.0 * period_s)


def record(job: Job, sensor: Sensor, seed: int, *, jitter: float = STEP_JITTER, noise: float = NOISE) -> Trace:
    """Watch a job through a sensor."""
    draw = draw_for("record", seed, job.name, job.period_s, sensor.name)
    duration_s = duration_of(job.period_s)
    steps = int(1.3 * (duration_s + LEAD_S) / job.period_s) + 8
    step_s = job.period_s * np.maximum(0.2, 1.0 + jitter * draw.standard_normal(steps))
    ends_s = np.cumsum(step_s) - LEAD_S - job.period_s * draw.uniform()
    edges_s = (ends_s - step_s)[:, None] + step_s[:, None] * (np.cumsum(job.lengths) - job.lengths)
    power_w = _levels(edges_s.ravel(), np.tile(job.levels_w, steps), duration_s)
    time_s, shown_w, average_w = watch(power_w, sensor, draw, noise=noise)
    seen_s = ends_s[(ends_s >= 0.0) & (ends_s <= duration_s)]
    return Trace(f"{job.name}, {sensor.name}", time_s, shown_w, average_w, sensor, seen_s)


def watch(
    power_w: Array, sensor: Sensor, draw: np.random.Generator, *, noise: float = NOISE
) -> tuple[Array, Array, Array]:
    """Poll times, and what the sensor and the driver's 1 s average show then.

    ``power_w`` is given every millisecond from ``LEAD_S`` before the first poll.
    """
    power_w = power_w * (1.0 + noise * draw.standard_normal(len(power_w)))
    summed = np.concatenate([[0.0], np.cumsum(power_w)])
    polls = int((len(power_w) * GRID_S - LEAD_S) / POLL_S)
    time_s = np.sort(np.arange(polls) * POLL_S + POLL_JITTER_S * draw.standard_normal(polls).clip(-3, 3))
    shown = []
    for each in (sensor, AVERAGE):
        phase_s = draw.uniform(0.0, each.update_s)
        ticks_s = np.floor((time_s - phase_s) / each.update_s) * each.update_s + phase_s
        last = np.clip(np.round((ticks_s + LEAD_S) / GRID_S).astype(int), 1, len(power_w))
        first = np.maximum(0, last - round(each.window_s / GRID_S))
        shown.append((summed[last] - summed[first]) / (last - first))
    return time_s, shown[0], shown[1]


def _levels(edges_s: Array, levels_w: Array, duration_s: float) -> Array:
    """Power on the grid, when ``levels_w[i]`` begins at ``edges_s[i]``."""
    grid_s = np.arange(-LEAD_S, duration_s, GRID_S)
    return levels_w[np.clip(np.searchsorted(edges_s, grid_s, side="right") - 1, 0, None)]


def _telegraph(draw: np.random.Generator, duration_s: float) -> Array:
    """Levels that last for exponentially distributed times: no memory at all."""
    mean_s = np.exp(draw.uniform(np.log(0.15), np.log(3.0)))
    lengths_s = draw.exponential(mean_s, int(3 * (duration_s + LEAD_S) / mean_s) + 40)
    return _levels(np.cumsum(lengths_s) - lengths_s[0] - LEAD_S, draw.uniform(100.0, 700.0, len(lengths_s)), duration_s)


def _uneven(draw: np.random.Generator, duration_s: float) -> Array:
    """Steps of the same phases whose lengths differ by half: buckets of sentence lengths, work that depends on data."""
    job = training(int(draw.integers(2**31)), int(draw.integers(2)), np.exp(draw.uniform(np.log(0.3), np.log(5.0))))
    steps = int(4 * (duration_s + LEAD_S) / job.period_s) + 20
    step_s = job.period_s * np.exp(0.5 * draw.standard_normal(steps))
    ends_s = np.cumsum(step_s) - LEAD_S
    edges_s = (ends_s - step_s)[:, None] + step_s[:, None] * (np.cumsum(job.lengths) - job.lengths)
    return _levels(edges_s.ravel(), np.tile(job.levels_w, steps), duration_s)


def _wander(draw: np.random.Generator, duration_s: float) -> Array:
    """Power that drifts about a mean with one time constant (an Ornstein-Uhlenbeck process)."""
    count = round((duration_s + LEAD_S) / GRID_S)
    decay = np.exp(-GRID_S / np.exp(draw.uniform(np.log(0.2), np.log(4.0))))
    drift = np.empty(count)
    value, pushes = float(draw.standard_normal()), draw.standard_normal(count) * np.sqrt(1.0 - decay**2)
    for i, push in enumerate(pushes):
        value = decay * value + push
        drift[i] = value
    return np.maximum(60.0, 400.0 + 90.0 * drift)


def _flat(draw: np.random.Generator, duration_s: float) -> Array:
    """Nothing but noise: one long kernel, or steps too short to be seen at all."""
    return np.full(round((duration_s + LEAD_S) / GRID_S), draw.uniform(150.0, 690.0))


def _shrinking(draw: np.random.Generator, duration_s: float) -> Array:
    """Steps that become five times shorter: iterations on what is left."""
    job = training(int(draw.integers(2**31)), int(draw.integers(2)), np.exp(draw.uniform(np.log(0.8), np.log(6.0))))
    rate = np.log(5.0) / duration_s
    begins_s = [-LEAD_S]
    while begins_s[-1] < duration_s:
        begins_s.append(begins_s[-1] + job.period_s * np.exp(-rate * max(0.0, begins_s[-1])))
    step_s = np.diff(begins_s)
    edges_s = np.array(begins_s[:-1])[:, None] + step_s[:, None] * (np.cumsum(job.lengths) - job.lengths)
    return _levels(edges_s.ravel(), np.tile(job.levels_w, len(step_s)), duration_s)


def _requests(draw: np.random.Generator, duration_s: float) -> Array:
    """Equal bursts that come when somebody asks: a server."""
    burst_s = np.exp(draw.uniform(np.log(0.1), np.log(1.5)))
    gaps_s = draw.exponential(burst_s * draw.uniform(0.5, 2.0), int(4 * (duration_s + LEAD_S) / burst_s) + 20)
    lengths_s = np.stack([np.full(len(gaps_s), burst_s), gaps_s], axis=1).ravel()
    return _levels(np.cumsum(lengths_s) - burst_s - LEAD_S, np.tile([620.0, 110.0], len(gaps_s)), duration_s)


APERIODIC: dict[str, Callable[[np.random.Generator, float], Any]] = {
    "telegraph": _telegraph,
    "uneven steps": _uneven,
    "wander": _wander,
    "flat": _flat,
    "shrinking": _shrinking,
    "requests": _requests,
}


def aperiodic(kind: str, seed: int, number: int, sensor: Sensor) -> Trace:
    """A trace of 25 to 54 s without a period."""
    draw = draw_for("aperiodic", kind, seed, number, sensor.name)
    power_w = APERIODIC[kind](draw, float(draw.choice([25.0, 30.0, 54.0])))
    time_s, shown_w, average_w = watch(power_w, sensor, draw)
    return Trace(f"{kind} #{number}, {sensor.name}", time_s, shown_w, average_w, sensor, np.array([]))
