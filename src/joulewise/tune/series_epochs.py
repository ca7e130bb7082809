"""What a recurring job's runs have taught about the epochs that each batch size needs, on any GPU.

Runs that reached the target count in full; a run that was stopped counts as "more than that"; a size that has
succeeded before and now ran far beyond what it needs was unlucky, and its luck is counted apart. Where nothing
converges any more, runs say so from a certain size on: on either side of the sizes that are known to work there may be
such an edge, and a failure makes it likelier here and beyond.

Luck differs from job to job and from size to size: each size's is learnt from its own runs, around the job's at large
(Zeus §4 plugs in each size's own two values). When runs come out other than believed again and again, the job has
drifted: what was known stays as a guess, with doubt added, and what is seen from then on decides. So only that is
forgotten which has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from joulewise.model.curves import Array, Belief, Stop, above, doubt, epochs_family, normal_cdf, octaves

_SLOPE_SD = 0.18
"""Of the logarithm of epochs an octave, on top of the law: below the knee they fall as fast as they rise above it."""
_BUMP_SD, _REACH = 0.2, 2.0
"""Bumps of 20 % that sizes within two octaves share."""
_LUCK_SD, _LUCK_RUNS = 0.15, 2.0
"""Runs of one size differ by 15 % (Zeus's six workloads: 0 to 27 %), believed as firmly as two runs would show it."""
_ALIKE = 3.0
"""How alike sizes are in that: the job's luck at large counts at each as three differences of its own runs would."""
_EDGE = 0.1
"""Chance an octave that nothing converges from there on."""
_LATE_SD = 3.0
"""A run of a size that has succeeded that is later than this is no slow one: it will not arrive."""
_FAILS, _FAILS_RUNS = 0.2, 2.0
"""Runs that fail although their size works: one in ten, believed as two runs would show it; then as the job's runs at
large, and each size's own, show."""
_DRIFT_SLACK, _DRIFT_ALARM, _DRIFT_CLIP = 0.5, 14.0, 3.0
"""Two-sided CUSUM of standardised surprises: six runs three sigmas off are found, one false alarm in some 10⁵ runs."""
_DRIFT_DOUBT = {"level_sd": 0.5, "slope_sd": 0.15, "bump_sd": 0.3, "reach": _REACH}
"""What a drift may have changed: most of all how hard the target is at large."""
_MOST_STOPS = 6
"""Of one size that are kept apart, by how far they ran: those that ran furthest say most."""


class Epochs:
    """Of one job. ``reached`` and ``stopped`` teach; the rest tells what is believed."""

    def __init__(self, sizes: tuple[int, ...], default: int, max_epochs: int) -> None:
        self.sizes, self.max_epochs = sizes, max_epochs
        count = len(sizes)
        self.x = octaves(sizes, default)
        self._family = epochs_family(
            self.x, max(2.0, 0.3 * max_epochs), slope_sd=_SLOPE_SD, bump_sd=_BUMP_SD, reach=_REACH
        )
        self.successes = [0] * count
        """Ever, by size."""
        self.failures = [0] * count
        """Unlucky runs of sizes that work."""
        self.failed_epochs = [0.0] * count
        self.reached_epochs = [0.0] * count
        self.resets = 0
        """How often the job has drifted."""
        self._runs, self._logs = np.zeros(count), np.zeros(count)
        self._last, self._jumps = np.zeros(count), np.zeros(count)
        self._stops: list[dict[int, int]] = [{} for _ in sizes]
        self._tails = np.ones(count)
        self._scatter, self._freedom = 0.0, 0.0  # of eras that are over
        self._start: Belief | None = None
        self._up = self._down = 0.0
        self._belief: Belief | None = None

    @property
    def proven(self) -> list[int]:
        """Places of the sizes that have reached the target."""
        return [place for place, count in enumerate(self.successes) if count]

    def runs(self, place: int) -> int:
        """How many runs of this size say something."""
        return self.successes[place] + self.failures[place] + sum(self._stops[place].values())

    def reached(self, place: int, epochs: int) -> None:
        """A run of this size reached the target."""
        if self.successes[place]:  # whether a size is as believed can be told only of one that was tried
            self._watch(place, epochs)
        value = math.log(epochs)
        if self._runs[place]:
            self._jumps[place] += 0.5 * (value - self._last[place]) ** 2
        self._runs[place] += 1
        self._logs[place] += value
        self._last[place] = value
        self.successes[place] += 1
        self.reached_epochs[place] += epochs
        self._belief = None

    def stopped(self, place: int, epochs: int) -> None:
        """A run of this size had not reached the target after ``epochs``."""
        belief, late = self.belief(), math.log(epochs + 0.5)
        spread = math.sqrt(belief.cov[place, place] + self.noise[place])
        if self.successes[place]:
            if late - belief.mean[place] > _LATE_SD * spread:
                self.failures[place] += 1
                self.failed_epochs[place] += epochs
                return
        else:
            tail = 0.5 * math.erfc((late - belief.mean[place]) / spread / math.sqrt(2.0))
            self._tails[place] *= max(tail, 1e-6)
        before = self._stops[place]
        stops = {**before, epochs: before.get(epochs, 0) + 1}
        self._stops[place] = {kept: stops[kept] for kept in sorted(stops)[-_MOST_STOPS:]}
        self._belief = None
        if self.belief().mean[place] < belief.mean[place]:  # others ran further, and have said what it says
            self._stops[place], self._belief = before, belief

    @property
    def noise(self) -> Array:
        """Variance of the logarithm of one run's epochs around its size's, at each size.

        Every size has luck of its own, around the job's: it is believed as the job's at large until its own runs
        show (inverse-gamma, ``_ALIKE`` differences strong), and a size that ran often says no more of the others'.
        """
        scatter, freedom = self._scattered()
        weight = _ALIKE * freedom / (_ALIKE + freedom)
        usual = (_LUCK_RUNS * _LUCK_SD**2 + float(weight @ scatter) + self._freedom * self._scatter) / (
            _LUCK_RUNS + float(np.sum(weight)) + self._freedom
        )
        noise: Array = (_ALIKE * usual + freedom * scatter) / (_ALIKE + freedom)
        return noise

    def measured(self, place: int) -> tuple[float, float] | None:
        """The epochs that this size's own runs took for each success, and their relative standard error; nothing of
        other sizes enters. None where it has not succeeded since the job last drifted."""
        runs = float(self._runs[place])
        if not runs:
            return None
        value = (self.reached_epochs[place] + self.failed_epochs[place]) / runs
        return value, math.sqrt((float(self.noise[place]) + 1.0 / 12.0 / value**2) / runs)

    def rounding(self, place: int) -> float:
        """Variance by which epochs are whole numbers."""
        return 1.0 / 12.0 / math.exp(2.0 * min(float(self.belief().mean[place]), 10.0))

    def belief(self) -> Belief:
        """Of the logarithm of epochs at each size."""
        if self._belief is None:
            seen = [place for place in range(len(self.sizes)) if self._runs[place] > 0]
            values = [float(self._logs[place] / self._runs[place]) for place in seen]
            noise = self.noise
            errors = [
                (float(noise[place]) + math.exp(-2.0 * value) / 12.0) / float(self._runs[place])
                for place, value in zip(seen, values, strict=True)
            ]
            known = (
                self._family.given(seen, values, errors)
                if self._start is None
                else _updated(self._start, seen, values, errors)
            )
            stops = [
                Stop(place, math.log(epochs + 0.5), 0.02 if self.successes[place] else self._edge_before(place), times)
                for place, kept in enumerate(self._stops)
                for epochs, times in sorted(kept.items())
            ]
            self._belief = above(known, stops, noise)
        return self._belief

    def lost(self, place: int) -> float:
        """How likely a run of this size never reaches the target, whatever its epochs are believed to be."""
        if self.successes[place]:
            usual = (_FAILS + sum(self.failures)) / (_FAILS_RUNS + sum(self.failures) + sum(self.successes))
            tried = self.failures[place] + self.successes[place]
            return float((_FAILS_RUNS * usual + self.failures[place]) / (_FAILS_RUNS + tried))
        proven = self.proven
        if not proven:
            return _EDGE
        low, high = proven[0], proven[-1]
        if low < place < high:
            edge = self._edge_before(place)
            return edge / (edge + (1.0 - edge) * float(self._tails[place]))
        way = list(range(high + 1, len(self.sizes))) if place > high else list(range(low - 1, -1, -1))
        before, alive, likelihood, weights = (high if place > high else low), 1.0, 1.0, []
        for step in way:  # the edge lies just before ``step``: what failed nearer by did so against its odds
            hazard = 1.0 - math.pow(1.0 - _EDGE, abs(float(self.x[step] - self.x[before])))
            weights.append(alive * hazard * likelihood)
            alive *= 1.0 - hazard
            likelihood *= float(self._tails[step])
            before = step
        return sum(weights[: way.index(place) + 1]) / (sum(weights) + alive * likelihood)

    def vain(self, place: int) -> float:
        """Epochs of the longest run of this size that was stopped, while none has succeeded; 0 where none was."""
        return float(max(self._stops[place], default=0)) if not self.successes[place] else 0.0

    def expected(self, belief: Belief, noise: Array) -> Array:
        """Epochs spent for one success at each size, failures at the last epoch and bad luck included."""
        whole = steps(self.max_epochs)
        cdf = normal_cdf((np.log(whole + 0.5)[None, :] - belief.mean[:, None]) / np.sqrt(noise)[:, None])
        arriving = np.diff(np.concatenate([np.zeros((len(self.sizes), 1)), cdf], axis=1), axis=1)
        epochs: Array = (arriving @ whole + (1.0 - cdf[:, -1]) * self.max_epochs) / np.maximum(cdf[:, -1], 1e-4)
        for place in self.proven:
            if self.failures[place]:
                epochs[place] *= 1.0 + self.failed_epochs[place] / max(self.reached_epochs[place], 1.0)
        return epochs

    def _scattered(self) -> tuple[Array, Array]:
        """Variance by which one run of each size differs from the next, and how many differences from their mean would
        tell as much (von Neumann's ratio). A job that drifts is not taken for one that scatters: it jumps once."""
        jumps = np.maximum(self._runs - 1.0, 0.0)
        return self._jumps / np.maximum(jumps, 1.0), 2.0 * jumps**2 / np.maximum(3.0 * jumps - 1.0, 1.0)

    def _edge_before(self, place: int) -> float:
        known = self.proven or [int(np.argmin(np.abs(self.x)))]
        return 1.0 - math.pow(1.0 - _EDGE, min(abs(float(self.x[place] - self.x[each])) for each in known))

    def _watch(self, place: int, epochs: int) -> None:
        """Take notice of a run that was to be expected otherwise; forget what has changed."""
        belief = self.belief()
        spread = math.sqrt(belief.cov[place, place] + self.noise[place] + self.rounding(place))
        surprise = min(max((math.log(epochs) - float(belief.mean[place])) / spread, -_DRIFT_CLIP), _DRIFT_CLIP)
        self._up = max(0.0, self._up + surprise - _DRIFT_SLACK)
        self._down = max(0.0, self._down - surprise - _DRIFT_SLACK)
        if max(self._up, self._down) < _DRIFT_ALARM:
            return
        self.resets += 1
        scatter, freedom = self._scattered()
        told = float(np.sum(freedom)) + self._freedom
        self._scatter = (float(freedom @ scatter) + self._freedom * self._scatter) / max(told, 1.0)
        self._freedom = min(0.5 * told, _ALIKE)
        self._start = belief.wider(doubt(self.x, **_DRIFT_DOUBT))
        self._runs[:], self._logs[:], self._last[:], self._jumps[:], self._tails[:] = 0.0, 0.0, 0.0, 0.0, 1.0
        self._stops = [{} for _ in self.sizes]
        # What came late or never was the drift's doing too.
        self.failures = [0] * len(self.sizes)
        self.failed_epochs, self.reached_epochs = [0.0] * len(self.sizes), [0.0] * len(self.sizes)
        self._up = self._down = 0.0
        self._belief = None

    def to_json(self) -> dict[str, Any]:
        """Everything that was learnt, in plain values."""
        return {
            "successes": self.successes,
            "failures": self.failures,
            "failed_epochs": self.failed_epochs,
            "reached_epochs": self.reached_epochs,
            "resets": self.resets,
            "runs": self._runs.tolist(),
            "logs": self._logs.tolist(),
            "last": self._last.tolist(),
            "jumps": self._jumps.tolist(),
            "stops": [sorted(kept.items()) for kept in self._stops],
            "tails": self._tails.tolist(),
            "scatter": [self._scatter, self._freedom],
            "start": [self._start.mean.tolist(), self._start.cov.tolist()] if self._start is not None else None,
            "drift": [self._up, self._down],
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """What ``to_json`` gave, of the same sizes."""
        self.successes, self.failures = list(kept["successes"]), list(kept["failures"])
        self.failed_epochs, self.reached_epochs = list(kept["failed_epochs"]), list(kept["reached_epochs"])
        self.resets = int(kept["resets"])
        self._runs, self._logs = np.array(kept["runs"], dtype=float), np.array(kept["logs"], dtype=float)
        self._last, self._jumps = np.array(kept["last"], dtype=float), np.array(kept["jumps"], dtype=float)
        self._tails = np.array(kept["tails"], dtype=float)
        self._stops = [{int(epochs): int(times) for epochs, times in each} for each in kept["stops"]]
        self._scatter, self._freedom = kept["scatter"]
        start = kept["start"]
        self._start = Belief(np.array(start[0]), np.array(start[1])) if start is not None else None
        self._up, self._down = kept["drift"]
        self._belief = None


def _updated(start: Belief, places: list[int], values: list[float], variances: list[float]) -> Belief:
    """A belief after some values were seen."""
    mean, cov = start.mean, start.cov
    for place, value, variance in zip(places, values, variances, strict=True):
        column = cov[:, place]
        scale = float(column[place]) + variance
        mean = mean + column * ((value - float(mean[place])) / scale)
        cov = cov - np.outer(column, column) / scale
    return Belief(mean, cov)


@cache
def steps(most: int) -> Array:
    """Epochs at which a run may be stopped: every one of few, some forty of many."""
    if most <= 60:
        return np.arange(1, most + 1, dtype=float)
    return np.unique(np.round(np.geomspace(1.0, most, 48)))
