"""The period detectors of GPOEO and ODPP, written anew after their description, as baselines for ours.

GPOEO (IEEE TPDS 33(11), 2022): peaks of the spectrum propose periods; each is scored by cutting the trace into windows
of a whole number of samples, segmenting them by level and comparing neighbours segment by segment; a local search
follows, and the answer is stable if suffixes of the trace agree on it. ODPP (CCGRID 2020): the highest peak of the
spectrum. Both take samples for evenly spaced, as they do in life, and get the same samples as ours.

These are what they are: whole-sample windows, first-wins ties and all. Nothing here is used by the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.intp]

LONGEST_S = 15.0
"""T_up: periods above are not looked for."""
SHORTEST_S = 0.4
"""T_low: shorter candidates are replaced by common multiples."""
NO_SCORE = 1e4
STABLE_SPREAD = {"strict": 0.10, "normal": 0.15, "relaxed": 0.30}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer says of a trace."""

    period_s: float | None
    stable: bool


def odpp(power_w: Array, poll_s: float) -> Answer:
    """The period of the highest peak of the spectrum; it has no notion of an unstable one."""
    spectrum = np.abs(np.fft.rfft(power_w))
    rate_hz = np.fft.rfftfreq(len(power_w), poll_s)
    peaks = _peaks(spectrum)
    peaks = peaks[rate_hz[peaks] * LONGEST_S >= 1.0]
    if len(peaks) == 0:
        return Answer(None, stable=False)
    return Answer(float(1.0 / rate_hz[peaks[np.argmax(spectrum[peaks])]]), stable=True)


def gpoeo(power_w: Array, poll_s: float, *, strictness: str = "normal") -> Answer:
    """GPOEO's period and whether it would call it stable."""
    duration_s = (len(power_w) - 1) * poll_s
    first = _period(power_w, poll_s)
    if first is None or first[0] > 0.5 * duration_s:
        return Answer(first[0] if first else None, stable=False)
    periods, scores = [first[0]], [first[1]]
    left_s = duration_s - max(0.5 * first[0], 0.1 * duration_s)
    while left_s / max(periods) >= 2.8:
        found = _period(power_w[int((duration_s - left_s) / poll_s) :], poll_s)
        if found is None or found[0] > 0.5 * left_s:  # not long enough to tell
            return Answer(found[0] if found else None, stable=False)
        periods.append(found[0])
        scores.append(found[1])
        left_s -= max(0.5 * found[0], 0.1 * duration_s)
    periods_s, score = np.array(periods), np.array(scores)
    count = len(periods_s)
    if count > 8:  # the middle 60 %, in time
        kept = np.arange(round(0.2 * count), round(0.8 * count) - 1)
    elif count >= 4:
        middle_s = np.sort(periods_s)[round(count / 2)]
        kept = np.flatnonzero((periods_s > 0.6 * middle_s) & (periods_s < 1.35 * middle_s))
    else:
        kept = np.arange(count)
    periods_s, score = periods_s[kept], score[kept]
    spread = float((periods_s.max() - periods_s.min()) / periods_s.mean())
    best_s = periods_s[np.argmin(score)]
    period_s = float(periods_s[(periods_s > 0.65 * best_s) & (periods_s < 1.35 * best_s)].mean())
    return Answer(period_s, stable=count >= 3 and spread < STABLE_SPREAD[strictness])


def _period(power_w: Array, poll_s: float) -> tuple[float, float] | None:
    """Candidates from the spectrum, the best by score, and a local search around it: (period, score)."""
    candidates = _candidates(power_w, poll_s)
    if candidates is None:
        return None
    periods_s, factor_s = candidates
    longest_s = float(periods_s.max())
    scores = [_score(period_s, power_w, poll_s, periods_s[0], longest_s) for period_s in periods_s]
    if max(scores) >= NO_SCORE:  # one of them is too long for this trace: ask for more of it
        return longest_s, NO_SCORE
    best = int(np.argmin(scores))
    best_s, best_score = float(periods_s[best]), scores[best]
    half_bin_hz = 0.5 / (len(power_w) * poll_s)
    for _ in range(3):
        low_hz = 1.0 / best_s - 0.7 * half_bin_hz
        low_s = min(0.85 * best_s, 1.0 / (1.0 / best_s + 0.7 * half_bin_hz))
        high_s = max(1.15 * best_s, 1.0 / low_hz if low_hz > 0 else 1.5 * best_s)
        low_s, high_s = max(low_s, best_s - 0.5 * factor_s), min(high_s, best_s + 0.5 * factor_s)
        step_s = max(min((high_s - low_s) / 10.0, 1.0), poll_s)
        if high_s - low_s <= step_s:
            return best_s, best_score
        tried_s = np.concatenate([np.arange(low_s, high_s, step_s), [high_s, best_s]])
        scores = [_score(period_s, power_w, poll_s, best_s, longest_s) for period_s in tried_s]
        best = int(np.argmin(scores))  # the first of equals, which whole-sample windows often are
        best_s, best_score, last = float(tried_s[best]), scores[best], len(tried_s) - 1
        if best == last or 0.2 * last < best < 0.8 * last:
            break
    if best_s < SHORTEST_S:
        best_s *= max(1.0, round(SHORTEST_S / best_s))
    return best_s, best_score


def _candidates(power_w: Array, poll_s: float) -> tuple[Array, float] | None:
    """Periods worth scoring, and the longest of those too short (large if none is)."""
    padding = 1
    for again in (True, False):
        count = padding * len(power_w)
        spectrum = np.abs(np.fft.rfft(power_w, count))[: count // 2]
        rate_hz = np.fft.rfftfreq(count, poll_s)[: count // 2]
        peaks = _peaks(spectrum)
        peaks = peaks[rate_hz[peaks] * LONGEST_S >= 1.0]
        if len(peaks) == 0:
            return None
        peaks = peaks[np.argsort(-spectrum[peaks], kind="stable")]
        peaks = peaks[spectrum[peaks] > 0.60 * spectrum[peaks[0]]][:6]
        periods_s = 1.0 / rate_hz[peaks]
        resolvable_s = 2.0 * len(power_w) * poll_s / 3.0
        if not again or periods_s.max() <= resolvable_s:
            break
        padding = int(np.ceil(LONGEST_S / resolvable_s))
    short_s = periods_s[periods_s < SHORTEST_S]
    if len(short_s) == 0:
        return periods_s, 1e4
    longest_s = float(short_s.max())
    kept = [*periods_s[periods_s >= SHORTEST_S], longest_s, *_common_multiples(short_s)]
    return np.array(kept), longest_s


def _common_multiples(short_s: Array) -> list[float]:
    """Approximate common multiples of short periods, from the shortest allowed period up."""
    longest_s = float(short_s.max())
    multiple = SHORTEST_S / longest_s
    tried_s = longest_s * round(multiple) if round(multiple) < multiple else SHORTEST_S
    found: list[float] = []
    while tried_s < LONGEST_S:
        ratios = tried_s / short_s
        whole = np.maximum(1.0, np.round(ratios))
        if np.max(np.abs(ratios - whole) / whole) < 0.1:
            if found and (
                tried_s / found[0] > 1.3 or len(found) >= len(short_s) or found[-1] - found[0] > 0.6 * longest_s
            ):
                break
            found.append(tried_s)
        tried_s += 0.2 * longest_s
    return found


def _score(period_s: float, power_w: Array, poll_s: float, start_s: float, longest_s: float) -> float:
    """How unlike neighbouring windows of one period are, in percent of their mean; lower is better.

    A period well below ``start_s`` gets finer segments, one below ``longest_s`` is judged by the worst windows in it.
    """
    duration_s = (len(power_w) - 1) * poll_s
    samples = int(period_s / poll_s)
    if period_s > 0.5 * duration_s or samples < 1:
        return NO_SCORE
    windows = int(duration_s / period_s)
    parts = max(1, int(start_s / period_s + 0.25))
    differences = []
    for i in range(windows - 1):
        one = power_w[i * samples : (i + 1) * samples]
        two = power_w[(i + 1) * samples : (i + 2) * samples]
        if len(two) < samples:
            break
        edges = _segment(two if one.std() < two.std() else one, parts)
        lengths = np.diff(edges)
        one_means = np.add.reduceat(one, edges[:-1]) / lengths - one.mean()
        two_means = np.add.reduceat(two, edges[:-1]) / lengths - two.mean()
        apart = np.abs(two_means - one_means) / (0.5 * (one.mean() + two.mean())) * 100.0
        differences.append(float(np.average(apart, weights=lengths)))
    if not differences:
        return NO_SCORE
    if longest_s / period_s < 1.7:
        return float(np.mean(differences))
    each = int(np.ceil(longest_s / period_s))
    return float(np.mean([max(differences[i : i + each]) for i in range(0, len(differences), each)]))


def _segment(values: Array, parts: int) -> Ints:
    """Cut a window into groups of like level, each in so many parts; edges from 0 to the window's length."""
    count = len(values)
    seed, half_width = _densest(values)
    inside = np.flatnonzero((values >= seed - half_width) & (values <= seed + half_width))
    if len(inside) == 0:
        return np.array([0, count])
    breaks = np.flatnonzero(np.diff(inside) > 1)
    begins = [int(inside[0]), *(int(inside[i + 1]) for i in breaks)]
    ends = [*(int(inside[i]) + 1 for i in breaks), int(inside[-1]) + 1]
    first = list(zip(begins, ends, strict=True))
    groups = _grow(values, first.copy())
    for i, (begin, end) in enumerate(groups):
        if end - begin > 0.85 * count:  # one group over nearly all says nothing: undo it
            groups[i : i + 1] = [pair for pair in first if begin <= pair[0] and pair[1] <= end]
            break
    edges = np.array(sorted({0, count, *(edge for pair in groups for edge in pair)}))
    if parts > 1:
        cuts = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(parts) // parts
        edges = np.unique(np.append(cuts, count))
    return edges


def _densest(values: Array) -> tuple[float, float]:
    """The quintile with the narrowest neighbourhood that holds a third of the values, and its half width."""
    order = np.sort(values)
    low, high, count = order[0], order[-1], len(values)
    best = (np.inf, float(order[count // 2]))
    for share in (0.2, 0.4, 0.6, 0.8):
        point = order[int(share * count)]
        narrow, wide = 0.0, max(high - point, point - low)
        half = wide
        while wide - narrow > 0.03 * (high - low):
            half = 0.5 * (narrow + wide)
            if np.sum((values > point - half) & (values < point + half)) / count < 0.33:
                narrow = half
            else:
                wide = half
        best = min(best, (half, float(point)))
    return best[1], float(best[0])


def _grow(values: Array, groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Let groups swallow gaps and neighbours of nearly their own level, the longest first."""
    tried: set[tuple[int, int]] = set()
    while waiting := [group for group in groups if group not in tried]:
        group = max(waiting, key=lambda pair: pair[1] - pair[0])
        merged = True
        while merged:
            merged = False
            for side in (-1, 1):
                grown = _swallow(values, groups, group, side)
                if grown is not None:
                    groups[:] = [pair for pair in groups if not (grown[0] <= pair[0] and pair[1] <= grown[1])]
                    groups.append(grown)
                    groups.sort()
                    group, merged = grown, True
        tried.add(group)
    return groups


def _swallow(values: Array, groups: list[tuple[int, int]], group: tuple[int, int], side: int) -> tuple[int, int] | None:
    """The group and its neighbour on one side (or the rest of the window) as one, if they are alike."""
    at, count = groups.index(group), len(values)
    if side < 0:
        neighbour = groups[at - 1] if at > 0 else (0, 0)
        grown, gap = (neighbour[0], group[1]), (neighbour[1], group[0])
    else:
        neighbour = groups[at + 1] if at + 1 < len(groups) else (count, count)
        grown, gap = (group[0], neighbour[1]), (group[1], neighbour[0])
    if gap[0] >= gap[1]:
        return None
    whole, between = values[grown[0] : grown[1]], values[gap[0] : gap[1]]
    level, whole_mean, gap_mean = values[group[0] : group[1]].mean(), whole.mean(), between.mean()
    short_gap = 2.0 if gap[1] - gap[0] <= 0.04 * count else 1.0
    short = 2.0 if grown[1] - grown[0] <= 0.04 * count else 1.0
    alike = (
        whole.std() < short * 0.999 * values.std()
        and abs(level - whole_mean) / (0.5 * (level + whole_mean)) < short * 0.03
        and abs(level - gap_mean) / (0.5 * (level + gap_mean)) < short_gap * 0.04
    )
    return grown if alike else None


def _peaks(spectrum: Array) -> Ints:
    """Local maxima, ends left out."""
    middle = spectrum[1:-1]
    return np.flatnonzero((middle > spectrum[:-2]) & (middle >= spectrum[2:])) + 1
