"""How long one iteration of an unknown job takes, from what its GPU's sensors show. Pure: signals in, an answer out.

A job that repeats makes power, the energy counter and the activity counters repeat with it. ``find`` looks for the
period that explains them, states its error, and says "unknown" or "aperiodic" rather than guess: a ruler that is wrong
is worse than none. Samples are used at their own times; nothing is assumed to be evenly spaced.

Two things no method can know from samples alone, and this one does not pretend to. A step of like halves may be taken
for two: the answer is then another *multiple*, which is harmless as long as it stays the same at all clocks; ``near``
sees to that. And a sensor that looks once in 100 ms shows steps shorter than two updates as if they were longer (an
*alias*, like a wheel that turns backwards in a film). Two signals of one ``quantity`` with different windows, such as
instant power and the driver's average of it, tell the two apart, since averaging removes the fast swing and not the
slow one; with one signal the answer carries the alias that it might be. A period that gets shorter at a lower clock is
the sign of one.

This is not the ruler: which signals to look at, for how long, and what to do with the answer is ``monitor.ruler``'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from joulewise.monitor.period_search import REPEATS, guesses
from joulewise.monitor.period_timing import HARMONICS, Row, Timing, time_period

Array = NDArray[np.float64]
Kind = Literal["stable", "aperiodic", "unknown"]

LEAST_SAMPLES = 64
"""Fewer say nothing: six seconds at ten a second."""
MOST_SLIP = 0.12
"""Neighbouring segments of a stable job arrive within an eighth of a period of each other, rms; steps that come when
they like slip by a quarter, as evenly spread ones do."""
MOST_ERROR = 0.012
"""A period known no better than this judges no bound worth having."""
LEAST_SHARE, SHARE_PER_SEGMENT = 0.42, 1.4
"""A stable period explains this share of a signal, plus this over the number of segments: few segments are easily
explained by chance."""
SOUND_BONUS = 0.1
"""Between periods that explain alike the one wins that explains with lines where they are, not where they fold to."""
MULTIPLES = (1, 2, 3)
"""How many steps a period may have held before a clock change."""
MOST_GAPS = 0.2
"""A signal of which more than this is missing is not looked at."""
_STALE = (0.01, 0.5)
"""Shares of repeated readings between which polls and updates are taken to run abreast; more is a value that stays."""
APERIODIC_S = 20.0
"""A job is called aperiodic only after so long; a longer period may yet show."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Readings of one sensor, oldest first. NaN is no reading."""

    name: str
    times_s: Array
    values: Array
    update_s: float
    """The sensor says something new once in this time."""
    window_s: float
    """What it says is the mean over this time."""
    quantity: str = ""
    """Signals of the same quantity, in the same unit, are compared to expose an alias; empty: with none."""

    @property
    def reach_s(self) -> float:
        """The shortest period that can be asked of it."""
        return 2.0 * max(self.update_s, self.window_s)


@dataclass(frozen=True, slots=True)
class Period:
    """A period that was found."""

    period_s: float
    error_s: float
    """One standard error of the job's mean iteration time, its own jitter included."""
    strength: float
    """Share of the best signal that repeats with it, 0 to 1."""
    multiple: int = 1
    """How many iterations it is taken to hold: a convention, kept by ``near`` from one clock to the next."""
    alias_s: float | None = None
    """The step shorter than two updates that would look the same, where no second signal rules it out."""

    @property
    def error(self) -> float:
        """One relative standard error."""
        return self.error_s / self.period_s


@dataclass(frozen=True, slots=True)
class Found:
    """What ``find`` says. ``period`` is there exactly when ``kind`` is "stable"."""

    kind: Kind
    says: str
    """One sentence for the user."""
    period: Period | None = None
    timing: Timing | None = None
    """The best guess and how it fared, stable or not."""


def find(signals: Sequence[Signal], *, near: Period | None = None, ratio: tuple[float, float] = (0.66, 1.5)) -> Found:
    """The period of the job behind ``signals``, or why there is none to be stated.

    ``near`` is the period before a clock change: only ``ratio`` times it is looked for, and its multiple kept.
    """
    known, rows = _usable(signals)
    if not rows:
        return Found("unknown", f"no signal has {LEAST_SAMPLES} readings that differ")
    from_s = max(row.times_s[0] for row in rows)
    duration_s = min(row.times_s[-1] for row in rows) - from_s
    step_s = max(row.step_s for row in rows)
    shortest_s = max(min(signal.reach_s for signal in known), 2.0 * step_s)
    low_s, high_s = shortest_s, duration_s / REPEATS
    if near is not None:
        low_s, high_s = max(low_s, ratio[0] * near.period_s), min(high_s, ratio[1] * near.period_s)
        # What was two steps long may show as one now: it is looked for too, and taken as often as it was.
        shortest_s = max(shortest_s, low_s / MULTIPLES[-1])
    if not low_s < high_s:
        return Found("unknown", f"{duration_s:.1f} s is too short for periods of {low_s:.2g} s and more")
    grid_s = from_s + step_s * np.arange(int(duration_s / step_s) + 1)
    tried = [
        timing
        for guess_s in guesses([np.interp(grid_s, row.times_s, row.values) for row in rows], step_s, shortest_s, high_s)
        if (timing := time_period(rows, guess_s)) is not None and 0.99 * shortest_s <= timing.period_s <= 1.01 * high_s
    ]
    if not tried:
        return _none(known, rows, None)
    best = max(tried, key=_credit)
    if near is None:
        return _judge(known, rows, _shortest(best, rows, shortest_s))
    count = min(MULTIPLES, key=lambda each: abs(math.log(each * best.period_s / near.period_s)))
    if not 0.99 * low_s <= count * best.period_s <= 1.01 * high_s:
        return _none(known, rows, best)
    return _judge(known, rows, best, count, near.multiple)


def resolution(found: Found, duration_s: float) -> float:
    """One relative standard error of an iteration's time over a window of ``duration_s``; infinite without a period."""
    if found.period is None or found.timing is None or duration_s < 2.0 * found.period.period_s:
        return math.inf
    return found.timing.relative_error(duration_s)


def _usable(signals: Sequence[Signal]) -> tuple[list[Signal], list[Row]]:
    """The signals that say something and cover the same time, and what is looked at of each."""
    pairs = [(signal, row) for signal in signals if (row := _row(signal)) is not None]
    longest_s = max((row.times_s[-1] - row.times_s[0] for _, row in pairs), default=0.0)
    pairs = [pair for pair in pairs if pair[1].times_s[-1] - pair[1].times_s[0] >= (1.0 - MOST_GAPS) * longest_s]
    return [signal for signal, _ in pairs], [row for _, row in pairs]


def _row(signal: Signal) -> Row | None:
    """A signal made ready: gaps left out, outliers bounded, drift removed, scaled. None if there is too little."""
    real = np.isfinite(signal.values)
    if real.sum() < max(LEAST_SAMPLES, (1.0 - MOST_GAPS) * len(real)):
        return None
    times_s, values = _fresh(signal.times_s[real], signal.values[real].astype(np.float64), signal.update_s)
    if len(values) < LEAST_SAMPLES:
        return None
    low, middle, high = np.percentile(values, (10.0, 50.0, 90.0))
    if high > low:  # a stall or a checkpoint must not drown the steps around it
        values = np.clip(values, middle - 2.0 * (high - low), middle + 2.0 * (high - low))
    values = values - _running_mean(values, len(values) // 3)
    spread = float(values.std())
    if not spread > 1e-9 * (abs(middle) + 1e-12):
        return None
    step_s = float((times_s[-1] - times_s[0]) / (len(times_s) - 1))
    return Row(times_s, values / spread, step_s, spread)


def _fresh(times_s: Array, values: Array, update_s: float) -> tuple[Array, Array]:
    """Each reading once, at the update that made it.

    Polls that come faster than updates show values twice. Where both run abreast, a poll just when the sensor updates
    shows now the new value, now the old one: its time is wrong by a whole update. Which of the two it was follows from
    the poll's own small jitter.
    """
    again = values[1:] == values[:-1]
    duration_s = float(times_s[-1] - times_s[0])
    if len(times_s) * update_s > 1.25 * duration_s:
        changed = np.concatenate([[True], ~again])
        # Values that often stay, such as whole percents, do not show when they were renewed: they are left as they are.
        return (times_s[changed], values[changed]) if changed.sum() * update_s > 0.7 * duration_s else (times_s, values)
    index = np.arange(len(times_s)) - 0.5 * (len(times_s) - 1)
    tick_s = float(index @ times_s / (index @ index))
    if not _STALE[0] < float(again.mean()) < _STALE[1] or abs(tick_s / update_s - 1.0) > 1e-3:
        return times_s, values
    turns = (times_s - times_s[0]) / tick_s
    phases = np.unique(turns % 1.0)  # an update just before any of the polls: no other choice differs
    ticks = np.floor(turns - phases[:, None] + 1e-9)
    wrong = ((ticks[:, 1:] == ticks[:, :-1]) != again).sum(axis=1)
    best = int(np.argmin(wrong))
    if wrong[best] > 0.5 * again.sum():
        return times_s, values
    first = np.concatenate([[True], np.diff(ticks[best]) > 0])
    return times_s[0] + (phases[best] + ticks[best][first]) * tick_s, values[first]


def _running_mean(values: Array, width: int) -> Array:
    """The mean over ``width`` values around each, fewer at the ends."""
    summed = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(0, index - width // 2), np.minimum(len(values), index + width // 2 + 1)
    mean: Array = (summed[last] - summed[first]) / (last - first)
    return mean


def _shortest(best: Timing, rows: Sequence[Row], low_s: float) -> Timing:
    """The half or third of a period, and so on, as long as it does as well: multiples explain what a step does."""
    shorter = best
    while True:
        parts = [
            part
            for count in (2, 3)
            if shorter.period_s / count >= 0.99 * low_s
            # As many harmonics as reach as far: a part must not win by following sharper edges.
            and (part := time_period(rows, shorter.period_s / count, HARMONICS // count)) is not None
            and abs(part.period_s * count / shorter.period_s - 1.0) < 0.02
            and _does_as_well(part, shorter)
        ]
        if not parts:
            return shorter
        part = max(parts, key=_credit)
        shorter = time_period(rows, part.period_s) or part


def _does_as_well(timing: Timing, best: Timing) -> bool:
    """Whether a period explains nearly as much as the best.

    A shorter one may leave a little more unexplained, since its jitter is averaged over fewer samples, but must not
    wander more (half a step that fits only when it may come early and late is none), nor lean on lines folded back.
    """
    left = 1.0 + SOUND_BONUS - _credit(best)
    grace = min(0.1, max(0.01, 0.025 / timing.period_s))
    most_slip = 2.0 * best.slip * best.period_s / timing.period_s * math.sqrt(timing.segment_s / best.segment_s) + 0.02
    explains = 1.0 + SOUND_BONUS - _credit(timing) <= max(0.015, min(1.8 * left, left + grace))
    return explains and timing.slip <= min(MOST_SLIP, most_slip) and timing.sound >= best.sound - max(0.05, grace)


def _credit(timing: Timing) -> float:
    """What a period explains, and a little for doing so with harmonics that the samples do not fold back."""
    return timing.explained + SOUND_BONUS * min(1.0, timing.sound / max(timing.explained, 1e-12))


def _judge(signals: Sequence[Signal], rows: Sequence[Row], best: Timing, count: int = 1, multiple: int = 1) -> Found:
    """Whether ``count`` of the best guess are a period that may be relied on."""
    needed = LEAST_SHARE + SHARE_PER_SEGMENT / best.segments
    error = best.error_s / best.period_s
    if best.explained < needed or best.slip > MOST_SLIP or error > MOST_ERROR or best.segments < 4:
        return _none(signals, rows, best)
    alias = _alias(signals, best)
    if alias is True:
        says = (
            f"what looks like {best.period_s:.3g} s is a faster swing, seen too rarely: it fades where it is averaged"
        )
        return Found("unknown", says, timing=best)
    update_s = min(max(signal.update_s, row.step_s) for signal, row in zip(signals, rows, strict=True))
    alias_s = None if alias is False else 1.0 / (1.0 / update_s - 1.0 / best.period_s)
    period = Period(count * best.period_s, count * best.error_s, best.explained, multiple, alias_s)
    says = f"repeats every {period.period_s:.3g} s ± {100 * error:.2g} %, which explains {100 * best.explained:.0f} %"
    return Found("stable", says, period, best)


def _alias(signals: Sequence[Signal], best: Timing) -> bool | None:
    """Whether the period is the alias of a faster one, by signals of one quantity; None if none can tell.

    A swing at rate f is seen through a window w by sinc(f·w). Seen every u seconds, one at 1/u − f or faster looks the
    same, but a wider window leaves less of it.
    """
    told: list[bool] = []
    for (sharp, sharp_at), (wide, wide_at) in _pairs(signals):
        harmonic = int(np.argmax(best.swings[sharp_at]))
        rate_hz = (harmonic + 1) / best.period_s
        swing, seen = best.swings[sharp_at][harmonic], best.swings[wide_at][harmonic]
        if swing <= 3.0 * best.noise[sharp_at]:
            continue
        slow = swing * _passes(wide, rate_hz) / _passes(sharp, rate_hz)
        folded_hz = 1.0 / sharp.update_s - rate_hz
        fast = swing * _passes(wide, folded_hz) / _passes(sharp, folded_hz)
        doubt = 3.0 * math.hypot(best.noise[wide_at], best.noise[sharp_at] * slow / swing)
        middle = math.sqrt(slow * fast)
        if seen < middle and seen < slow - doubt:
            told.append(True)
        elif seen > middle and seen > fast + doubt:
            told.append(False)
    return any(told) if told else None


def _pairs(signals: Sequence[Signal]) -> Iterator[tuple[tuple[Signal, int], tuple[Signal, int]]]:
    """Two signals of one quantity of which the second has a window twice as wide or more, and where they stand."""
    for one, two in permutations(range(len(signals)), 2):
        sharp, wide = signals[one], signals[two]
        if sharp.quantity and sharp.quantity == wide.quantity and wide.window_s >= 2.0 * sharp.window_s:
            yield (sharp, one), (wide, two)


def _passes(signal: Signal, rate_hz: float) -> float:
    """The share of a swing that a signal's window lets through; never quite nothing."""
    return max(abs(float(np.sinc(rate_hz * signal.window_s))), 1e-3)


def _none(signals: Sequence[Signal], rows: Sequence[Row], best: Timing | None) -> Found:
    """No period: because there is none, or because it cannot be known?"""
    duration_s = min(row.times_s[-1] for row in rows) - max(row.times_s[0] for row in rows)
    slow = max(_lasting(signal, row) for signal, row in zip(signals, rows, strict=True))
    if duration_s >= APERIODIC_S and slow > 0.3 and (best is None or best.explained < 0.7):
        return Found("aperiodic", f"{duration_s:.0f} s of changing load and nothing that repeats", timing=best)
    if slow <= 0.3:
        return Found(
            "unknown", "no slow change: steps are too short for these sensors, or nothing differs", timing=best
        )
    return Found("unknown", f"no period is certain after {duration_s:.0f} s", timing=best)


def _lasting(signal: Signal, row: Row) -> float:
    """Correlation of samples so far apart that neither the sensor's window nor its updates make them alike."""
    apart = math.ceil(max(3.0, 1.5 * max(signal.window_s, signal.update_s) / row.step_s))
    return float(row.values[apart:] @ row.values[:-apart]) / max(float(row.values @ row.values), 1e-12)
