"""How well one period explains a trace, and how long it is exactly: steps are timed as astronomers time pulsars.

The trace is cut into segments of a few periods. Each segment's harmonics, taken at the samples' own times, say by how
much it comes early or late against the common waveform: its *arrival*. The slope of the arrivals corrects the period,
their scatter gives its error, and how they wander from segment to segment tells a job's jitter from chance. A fold of
the whole trace along the arrivals then says which share of the signal repeats.

This times one guess; ``period_search`` makes the guesses and ``period`` chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from joulewise.monitor.period_search import SHORT

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
Ints = NDArray[np.intp]

HARMONICS = 8
"""Most harmonics of a waveform: three to six phases are told well enough by eight."""
HARMONICS_PER_SAMPLE = 1.5
"""Most harmonics for each sample in a period: those that fold back are part of what a sharp sensor shows."""
SEGMENTS = 24
"""Most segments: more would follow noise."""
SEGMENT_S = 1.5
SEGMENT_SAMPLES = 15
"""A segment is so long at least: its harmonics need some samples to stand on."""
USUAL_JITTER, USUAL_WEIGHT = 0.01, 3.0
"""Jitter of a step that training usually has, and as how many slips that counts."""
LEAST_TURN = 0.75
"""A harmonic must be seen to turn by so much over a segment."""
_SHIFTS = np.linspace(-0.25, 0.25, 51)
"""Arrivals are looked for within a quarter of a period of where they are expected."""
_STEPS = np.linspace(-0.12, 0.12, 17)
"""Following goes in such steps, in periods."""
_TABLE = 128
"""Points of a waveform's table."""
_COSINES: Array = np.cos(2.0 * np.pi * np.outer((np.arange(_TABLE) + 0.5) / _TABLE, np.arange(1, HARMONICS + 1)))
_SINES: Array = np.sin(2.0 * np.pi * np.outer((np.arange(_TABLE) + 0.5) / _TABLE, np.arange(1, HARMONICS + 1)))
_RIDGE = [1e-3 * np.tile(np.arange(1, count + 1), 2) for count in range(HARMONICS + 1)]
_TURNS: Complex = np.exp(-2j * np.pi * np.arange(1, HARMONICS + 1)[:, None] * _SHIFTS)


@dataclass(frozen=True, slots=True)
class Row:
    """One signal, ready to be timed: its samples' times, and its values without drift at mean 0 and variance 1."""

    times_s: Array
    values: Array
    step_s: float
    """Mean time between samples."""
    scale: float = 1.0
    """One unit of ``values`` in the signal's own."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What one guess came to."""

    period_s: float
    duration_s: float
    """Of the trace."""
    explained: float
    """Share of the best signal's variance that repeats."""
    sound: float
    """What the harmonics below half the sampling rate explain of it: the rest leans on lines folded back."""
    swings: tuple[Array, ...]
    """Amplitudes of the harmonics below half the sampling rate in each signal, in its own unit."""
    noise: tuple[float, ...]
    """One standard error of such an amplitude, for each signal."""
    slip: float
    """By how much neighbouring segments arrive early or late, rms, as a share of the period."""
    wander: float
    """How the arrivals drift apart with time (the steps' jitter), as variance in s² a second."""
    edge: float
    """Variance of one arrival in s², the sensors' share."""
    segment_s: float
    segments: int

    @property
    def error_s(self) -> float:
        """One standard error of the job's mean period."""
        return self.relative_error(self.duration_s) * self.period_s

    def relative_error(self, duration_s: float) -> float:
        """One relative standard error of the period over ``duration_s``: jitter averages out, arrivals get apart.

        The slope of n arrivals has the variance 1.2·q/n when they walk at random by q from one to the next, and
        12·u²/n³ when each is wrong by u on its own.
        """
        count = duration_s / self.segment_s
        walk = 1.2 * self.wander * self.segment_s / max(count, 1.0)
        alone = 12.0 * self.edge / max(count, 1.0) ** 3
        return math.sqrt(walk + alone) / self.segment_s


def time_period(rows: Sequence[Row], guess_s: float, most: int = HARMONICS) -> Timing | None:
    """Time a guess that is good to some percent, by at most so many harmonics; None where it hardly fits thrice."""
    from_s = max(row.times_s[0] for row in rows)
    duration_s = min(row.times_s[-1] for row in rows) - from_s
    step_s = max(row.step_s for row in rows)
    shortest_s = max(SEGMENT_S, SEGMENT_SAMPLES * step_s, duration_s / SEGMENTS)
    segment_s = guess_s * math.ceil(shortest_s / guess_s - 1e-9)
    count = int(duration_s / segment_s)
    if count < 3:
        return None
    edges_s = from_s + segment_s * np.arange(count + 1)
    harmonics = _harmonics(guess_s, step_s, segment_s, most)
    waves = [_waves(row.times_s / guess_s - from_s / guess_s, harmonics) for row in rows]
    if guess_s < SHORT * step_s:
        arrivals = _followed(rows, waves, harmonics, guess_s, edges_s)
    else:
        used = int(min(guess_s / (2.0 * step_s), most))
        arrivals = _arrivals([_spectra(row, wave[:, :used], edges_s) for row, wave in zip(rows, waves, strict=True)])
    slope, walk, alone = _walk(arrivals, segment_s / guess_s)
    rate_hz = 1.0 / guess_s + slope / segment_s
    if rate_hz <= 0.0:
        return None
    middles_s = edges_s[:-1] + 0.5 * segment_s
    below = int(np.searchsorted(harmonics, guess_s / (2.0 * step_s), side="right"))
    folds = [
        _explained(row, _along(wave, harmonics, np.interp(row.times_s, middles_s, arrivals)), max(below, 1))
        for row, wave in zip(rows, waves, strict=True)
    ]
    explained, sound = max(fold[:2] for fold in folds)
    period_s = 1.0 / rate_hz
    slips = np.diff(arrivals) - slope
    return Timing(
        period_s=period_s,
        duration_s=duration_s,
        explained=explained,
        sound=sound,
        swings=tuple(fold[2] for fold in folds),
        noise=tuple(fold[3] for fold in folds),
        slip=math.sqrt(float(slips @ slips) / len(slips)),
        wander=walk * period_s**2 / segment_s,
        edge=alone * period_s**2,
        segment_s=segment_s,
        segments=count,
    )


def _harmonics(period_s: float, step_s: float, segment_s: float, most: int) -> Ints:
    """The harmonics of a period that samples every ``step_s`` show as something that turns.

    Above half the sampling rate they fold back. One that folds to hardly any turn over a segment would take every slow
    change for its own.
    """
    harmonics = np.arange(1, 1 + int(min(HARMONICS_PER_SAMPLE * period_s / step_s, most)))
    turns = harmonics * (step_s / period_s)
    kept: Ints = harmonics[np.abs(turns - np.rint(turns)) * (segment_s / step_s) >= LEAST_TURN]
    return kept


def _waves(phase: Array, harmonics: Ints) -> Complex:
    """exp(−2πi·h·phase) at every sample, one column a harmonic."""
    turn = np.exp(-2j * np.pi * phase)
    every = np.cumprod(np.broadcast_to(turn[:, None], (len(turn), harmonics[-1])), axis=1)
    return every if len(harmonics) == harmonics[-1] else every[:, harmonics - 1]


def _along(waves: Complex, harmonics: Ints, ahead: Array) -> Array:
    """The harmonics along the arrivals, cosines before sines, one row a sample."""
    folded = waves * _waves(ahead, harmonics)
    return np.concatenate([folded.real, folded.imag], axis=1)


def _spectra(row: Row, waves: Complex, edges_s: Array) -> Complex:
    """Every segment's harmonics, its own mean left out; zero where a segment has hardly a sample."""
    starts = np.searchsorted(row.times_s, edges_s)
    counts, last = np.diff(starts), int(starts[-1])
    values, waves = row.values[:last, None], waves[:last]
    joined: Complex = np.concatenate([waves * values, waves, values.astype(np.complex128)], axis=1)
    sums: Complex = np.add.reduceat(joined, np.minimum(starts[:-1], last - 1), axis=0)
    used, count = waves.shape[1], np.maximum(counts, 1)[:, None]
    spectra: Complex = (sums[:, :used] - sums[:, used : 2 * used] * sums[:, 2 * used :] / count) / count
    spectra[counts < 3] = 0.0
    return spectra


def _arrivals(spectra: Sequence[Complex]) -> Array:
    """How far each segment is ahead of the first guess, in periods: by the phases of its harmonics."""
    index = np.arange(len(spectra[0]))
    joined = np.concatenate([_weight(each) * each for each in spectra], axis=1)
    used = spectra[0].shape[1]
    harmonic = np.tile(np.arange(1, used + 1), len(spectra))
    turns = np.tile(_TURNS[:used], (len(spectra), 1))
    ahead = np.zeros(len(index))
    apart = 1
    while apart <= len(index) // 2:  # neighbours first, then farther and farther apart: the drift gets finer
        alike = (np.conj(joined[:-apart]) * joined[apart:]).sum(axis=0)
        drift = _best((alike @ turns).real[None, :])[0] / apart * index
        ahead += drift
        joined = joined * np.exp(-2j * np.pi * drift[:, None] * harmonic)
        apart *= 4
    for _ in range(2):
        shift = _best(((np.conj(joined.mean(axis=0)) * joined) @ turns).real)
        ahead += shift
        joined = joined * np.exp(-2j * np.pi * shift[:, None] * harmonic)
    return ahead


def _followed(rows: Sequence[Row], waves: Sequence[Complex], harmonics: Ints, period_s: float, edges_s: Array) -> Array:
    """The same for a period of few samples, whose harmonics fold back onto each other within a segment.

    The whole trace gives the waveform, somewhat blurred by jitter, and each segment is shifted to where it fits best.
    """
    middles = len(edges_s) - 1
    table = np.concatenate([_COSINES[:, harmonics - 1], -_SINES[:, harmonics - 1]], axis=1)
    misfit = np.zeros((middles, len(_STEPS)))
    for row, wave in zip(rows, waves, strict=True):
        waveform, explained = _waveform(row, np.concatenate([wave.real, wave.imag], axis=1))
        phase = (row.times_s - edges_s[0]) / period_s
        at = ((phase[:, None] + _STEPS) * _TABLE).astype(np.intp) % _TABLE
        apart = (row.values[:, None] - (table @ waveform)[at]) ** 2
        starts = np.minimum(np.searchsorted(row.times_s, edges_s[:-1]), len(row.times_s) - 1)
        misfit += np.add.reduceat(apart, starts, axis=0) / max(1.0 - explained, 0.02)
    return _best(-misfit, _STEPS)


def _weight(spectra: Complex) -> float:
    """How much of a signal's harmonics comes again in the next segment, 0 to 1, squared."""
    alike = np.abs((np.conj(spectra[:-1]) * spectra[1:]).sum(axis=0)).sum()
    return float((alike / max(float((np.abs(spectra) ** 2).sum()), 1e-12)) ** 2)


def _best(scores: Array, shifts: Array = _SHIFTS) -> Array:
    """The shift of every row's highest score, by parabola."""
    rows = np.arange(len(scores))
    at = np.minimum(np.maximum(np.argmax(scores, axis=1), 1), len(shifts) - 2)
    before, here, after = scores[rows, at - 1], scores[rows, at], scores[rows, at + 1]
    bend = np.minimum(before - 2.0 * here + after, -1e-12)
    shift: Array = shifts[at] + np.minimum(np.maximum(0.5 * (before - after) / bend, -1.0), 1.0) * (
        shifts[1] - shifts[0]
    )
    return shift


def _walk(arrivals: Array, periods: float) -> tuple[float, float, float]:
    """Slope of arrivals per segment, and the variances of their walk (per segment) and of each one on its own.

    ``periods`` is how many a segment holds.
    """
    count = len(arrivals)
    index = np.arange(count) - 0.5 * (count - 1)
    slope = float(index @ arrivals / (index @ index))
    slips = np.diff(arrivals) - slope
    scatter = float(slips @ slips) / (count - 1)
    # What is wrong with one arrival is wrong with the next slip too, the other way: −cov is its variance.
    alone = float(np.clip(-(slips[1:] @ slips[:-1]) / (count - 2), 0.0, 0.5 * scatter))
    # A few slips may be small by luck: they are taken together with what steps usually do.
    usual = USUAL_JITTER**2 * periods
    walk = ((count - 2) * max(scatter - 2.0 * alone, 0.25 * scatter) + USUAL_WEIGHT * usual) / (
        count - 3 + USUAL_WEIGHT
    )
    return slope, walk, alone


def _waveform(row: Row, design: Array) -> tuple[Array, float]:
    """The waveform that fits best, and the share of the variance that it explains."""
    square, product = design.T @ design, design.T @ row.values
    harmonics = design.shape[1] // 2
    # A trace of ridge: harmonics that the samples cannot tell apart share what they explain, the lower ones first.
    square.flat[:: 2 * harmonics + 1] += _RIDGE[harmonics] * len(design)
    waveform: Array = np.linalg.solve(square, product).astype(np.float64, copy=False)
    return waveform, float(product @ waveform) / float(row.values @ row.values)


def _explained(row: Row, design: Array, below: int) -> tuple[float, float, Array, float]:
    """What a waveform along the arrivals comes to in one signal.

    The shares of the variance that it explains with all harmonics and with the first ``below``, the amplitudes of
    those, and one standard error of an amplitude.
    """
    waveform, share = _waveform(row, design)
    part, harmonics = share, design.shape[1] // 2
    if below < harmonics:
        _, part = _waveform(row, np.concatenate([design[:, :below], design[:, harmonics : harmonics + below]], axis=1))
    swings = row.scale * np.hypot(waveform[:below], waveform[harmonics : harmonics + below])
    noise = row.scale * math.sqrt(2.0 * max(1.0 - share, 0.0) / len(design))
    return share, min(part, share), swings, noise
