"""What epochs of a running trial cost: seconds and joules between the moments at which they were told, in the GPUs' own
time, by the setting that was in force.

An epoch in which the job tuner tried several settings says little about any of them and is left out, as long as there
is another. What came before training (imports, data) is the same for every batch size and no part of an epoch: it ends
where the job tells of epoch 0, and else it is what the first epoch took longer than the others. A first epoch warms up
in any case (caches, autotuning, compiling): a short one is left out as soon as there is another, and alone is no
measure of a batch size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.metric import Metric
from joulewise.core.series import EpochCost
from joulewise.monitor.sampler import Sampler
from joulewise.monitor.spent import Spent, spent
from joulewise.monitor.track import AROUND_S, Extract, affordable

PURE = 0.9
"""The share of an epoch that one setting must have had for the epoch to be called its own."""
WARM_S = 60.0
"""In a first epoch of less than this the warming up, which takes seconds, may count for more than the training."""
_LEAST_S = 1e-3
"""Epochs told closer together than this, in the GPUs' time, were not done in between."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What was done between two tellings: ``count`` epochs, mostly under ``setting``, for ``share`` of the time."""

    count: float
    duration_s: float
    energy_j: float
    error_j: float
    setting: Setting
    share: float
    first: bool
    """Whether what came before training, or warming up, may be much of it."""


class Epochs:
    """Follows one trial on the GPUs that ``sampler`` polls. For one thread."""

    def __init__(self, sampler: Sampler, begun_s: float) -> None:
        self._sampler = sampler
        self._edge_s, self._edge_epoch = begun_s, 0.0
        self._told_begin = False
        self._before = (0.0, 0.0)
        self._head: Sequence[Extract] | None = None
        self._held: defaultdict[Setting, float] = defaultdict(float)
        self._looked_s = begun_s
        self._epochs: list[Epoch] = []

    @property
    def done(self) -> float:
        """Epochs done, as last told."""
        return self._edge_epoch

    def look(self, setting: Setting = DEFAULT) -> None:
        """Now and then: this setting is in force."""
        now_s = self._sampler.time.now_s()
        self._held[setting] += now_s - self._looked_s
        self._looked_s = now_s
        if self._head is None and now_s >= self._edge_s + AROUND_S:
            # Kept before the tracks forget it: an epoch may last hours.
            self._head = self._extracts()

    def told(self, metric: Metric) -> None:
        """The job said how far it is, at ``metric.time_s`` of the GPUs' time."""
        count = metric.epoch - self._edge_epoch
        if metric.epoch == 0 and not self._epochs:
            if not self._told_begin and metric.time_s > self._edge_s + _LEAST_S:
                found = self._spent(metric.time_s)
                self._before = (metric.time_s - self._edge_s, found.energy_j if found is not None else 0.0)
            self._told_begin = True
            self._next(metric)
        elif count > 0 and metric.time_s > self._edge_s + _LEAST_S:
            self._measure(metric.time_s, count)
            self._next(metric)
        elif count > 0:
            self._edge_epoch = metric.epoch

    def profile(self, *, over: bool = False) -> tuple[EpochCost, ...]:
        """One epoch under each setting that is known; none while there is none but a short first one, unless the trial
        is ``over`` and no other will come."""
        if not over and len(self._epochs) == 1 and self._epochs[0].duration_s < WARM_S:
            return ()
        known = [epoch for epoch in self._epochs if not epoch.first] or self._epochs
        by_setting: defaultdict[Setting, list[Epoch]] = defaultdict(list)
        for epoch in known:
            if epoch.share >= PURE:
                by_setting[epoch.setting].append(epoch)
        if not by_setting and known:
            by_setting[known[-1].setting].append(known[-1])
        return tuple(_mean(setting, epochs) for setting, epochs in by_setting.items())

    def before(self) -> tuple[float, float]:
        """Seconds and joules that went by before training had begun and warmed up."""
        before_s, before_j = self._before
        first, rest = self._epochs[:1], self._epochs[1:]
        if not rest or not first[0].first:
            return self._before
        count = sum(epoch.count for epoch in rest)
        usual_s = sum(epoch.duration_s for epoch in rest) / count
        usual_j = sum(epoch.energy_j for epoch in rest) / count
        return (
            before_s + max(0.0, first[0].duration_s - first[0].count * usual_s),
            before_j + max(0.0, first[0].energy_j - first[0].count * usual_j),
        )

    def _spent(self, to_s: float) -> Spent | None:
        tracks = self._sampler.tracks
        dear = affordable([track for track in tracks if track.slow_counter], to_s - self._edge_s)
        for track in tracks:
            if dear or not track.slow_counter:
                track.count()
            track.poll()
        heads = {self._edge_s: self._head} if self._head is not None else None
        return spent(tracks, [(self._edge_s, to_s)], heads)

    def _measure(self, to_s: float, count: float) -> None:
        found = self._spent(to_s)
        if found is None:
            return
        in_all_s = sum(self._held.values())
        setting, held_s = max(self._held.items(), key=lambda each: each[1], default=(DEFAULT, 0.0))
        share = held_s / in_all_s if in_all_s > 0 else 1.0
        duration_s = to_s - self._edge_s
        first = not self._epochs and (not self._told_begin or duration_s < WARM_S)
        self._epochs.append(Epoch(count, duration_s, found.energy_j, found.error_j, setting, share, first))

    def _next(self, metric: Metric) -> None:
        self._edge_s, self._edge_epoch = metric.time_s, metric.epoch
        self._head = None
        self._held.clear()
        self._looked_s = max(self._looked_s, metric.time_s)

    def _extracts(self) -> list[Extract]:
        return [track.extract(self._edge_s, self._edge_s) for track in self._sampler.tracks]


def _mean(setting: Setting, epochs: Sequence[Epoch]) -> EpochCost:
    """One epoch on average; its errors are those of measuring, or of the epochs' own spread where that is larger."""
    count = sum(epoch.count for epoch in epochs)
    duration_s = sum(epoch.duration_s for epoch in epochs) / count
    energy_j = sum(epoch.energy_j for epoch in epochs) / count
    error_j = math.sqrt(sum(epoch.error_j**2 for epoch in epochs)) / count
    spread_s = _spread([epoch.duration_s / epoch.count for epoch in epochs])
    spread_j = _spread([epoch.energy_j / epoch.count for epoch in epochs])
    return EpochCost(duration_s, energy_j, setting, spread_s, max(error_j, spread_j))


def _spread(values: Sequence[float]) -> float:
    """One standard error of their mean; 0 where there is but one."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
