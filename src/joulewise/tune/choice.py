"""What settings are worth under a belief, which one to try next, and which probe would teach most.

What it is: arithmetic on the joint draws of `model/dvfs`. On each draw a setting gains a share of the baseline's cost,
or is not allowed by a budget, which counts as no gain at all; its value is the mean over draws. The slowdown bound is
one of the whole job, so a setting that is slower than it may be held for a part of the time, and gains that part
(`held_share`): the best value lies near the bound whatever the belief's spread, and a setting far beyond it is worth
little. What it is not: a test (``tune/guard`` judges what was chosen) or a model (it sees draws only).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.block import Block
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.core.objective import MinEnergy, Objective, Within, slowdown_bound

Array = NDArray[Any]

# Below this gain nothing is worth the trouble: a job's report could not tell it from nothing either.
LEAST_GAIN = 0.005
# A further probe must be expected to add this share of what there is to gain.
LESSON = 0.02
# How many draws stand for the belief here: a probability near 0.9 is then known to 2 %, finer than it needs to be,
# and the objective is evaluated a few ten thousand times at most.
MOST_DRAWS = 256
# How many of them are taken in turn for the truth when the value of a probe is worked out.
TRUTHS = 48


@dataclass(frozen=True, slots=True)
class Worth:
    """What settings are worth: one row a draw, one column a setting."""

    settings: tuple[Setting, ...]
    log_time: Array
    """ln of unit time over the baseline's."""
    log_energy: Array
    gain: Array
    """Share of the baseline's cost saved; ``floor`` where the setting is not allowed on that draw."""
    allowed: Array
    floor: float = 0.0
    """What setting nothing is worth: 0, or −1 where a budget does not allow that."""

    @property
    def value(self) -> Array:
        """Expected gain of each setting."""
        return np.asarray(self.gain.mean(axis=0))

    @property
    def chance(self) -> Array:
        """Probability that each setting is allowed."""
        return np.asarray(self.allowed.mean(axis=0))

    @property
    def slowdown(self) -> Array:
        """Expected slowdown of each setting."""
        return np.asarray(np.exp(self.log_time).mean(axis=0)) - 1.0

    def settings_over(self, slowdown: float) -> set[Setting]:
        """Settings that cost more than ``slowdown`` by one standard error of what is believed."""
        high = np.exp(self.log_time.mean(axis=0) + self.log_time.std(axis=0)) - 1.0
        return {setting for setting, each in zip(self.settings, high.tolist(), strict=True) if each > slowdown}

    def best(
        self, rank: Array | None = None, *, least_chance: float = 0.0, without: Collection[Setting] = ()
    ) -> int | None:
        """The setting that ranks highest, by its value unless ``rank`` is given, among those that are allowed with
        ``least_chance`` and are worth more than setting nothing; None where there is none."""
        rank = (self.value if rank is None else rank).copy()
        rank[(self.chance < least_chance) | (self.value <= self.floor + LEAST_GAIN)] = -math.inf
        for index, setting in enumerate(self.settings):
            if setting in without:
                rank[index] = -math.inf
        index = int(rank.argmax())
        return index if rank[index] > -math.inf else None

    def upside(self, here: int) -> Array:
        """What trying each setting is expected to add to ``here``, to which one goes back where it is not better."""
        return np.asarray(np.maximum(self.gain - self.gain[:, [here]], 0.0).mean(axis=0))

    def index(self, setting: Setting) -> int:
        """Where a setting stands; ValueError if it was not weighed."""
        return self.settings.index(setting)

    def expected(self, index: int) -> tuple[float, float]:
        """Expected change of time and of energy of one setting, −0.1 being 10 % less."""
        time = float(np.exp(self.log_time[:, index]).mean()) - 1.0
        return time, float(np.exp(self.log_energy[:, index]).mean()) - 1.0

    def believed(self, index: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """ln of time and of energy of one setting against the baseline's, each with its error."""
        time, energy = self.log_time[:, index], self.log_energy[:, index]
        return (float(time.mean()), float(time.std())), (float(energy.mean()), float(energy.std()))

    def points(self, base: Point[Setting]) -> list[Point[Setting]]:
        """Every setting as a point, with its errors; ``base`` is the baseline."""
        time, energy = np.exp(self.log_time) * base.time_s, np.exp(self.log_energy) * base.energy_j
        columns = (time.mean(axis=0), energy.mean(axis=0), time.std(axis=0), energy.std(axis=0))
        rows = zip(*(column.tolist() for column in columns), self.settings, strict=True)
        return [Point(t, e, setting, t_error, e_error) for t, e, t_error, e_error, setting in rows]

    def lesson(self, index: int, *, time_error: float, energy_error: float) -> float:
        """How much better the choice would be expected to be after one block at a setting, as a share of cost.

        Each of some draws is taken for the truth in turn; the others are weighed by how well they agree with what
        would be seen, and the best value under those weights is what could then be had.
        """
        stride = max(1, len(self.log_time) // TRUTHS)
        time, energy = self.log_time[:, index], self.log_energy[:, index]
        # Twice the variance: what would be seen errs once around the truth, and once more when it is weighed.
        misfit = (time[None, :] - time[::stride, None]) ** 2 / (2 * time_error**2)
        misfit += (energy[None, :] - energy[::stride, None]) ** 2 / (2 * energy_error**2)
        weights = np.exp(-0.5 * misfit)
        weights /= weights.sum(axis=1, keepdims=True)
        after = np.maximum((weights @ self.gain).max(axis=1), self.floor).mean()
        return float(after - max(float(self.value.max()), self.floor))


def best_probe(
    worth: Worth, base: Block, bound: float, *, probed: Collection[Setting], probe_s: float, ahead_s: float
) -> int | None:
    """The setting of which one more block teaches more than it costs; None when the choice can be made.

    ``base`` is a baseline block, whose errors say what a block of ``probe_s`` seconds would err by; ``ahead_s`` is how
    long the job is thought to go on. A first probe is always worth it: nobody should trust a law alone.
    """
    scale = math.sqrt(base.duration_s / probe_s)
    time_error = base.time_error * math.hypot(scale, 1.0)
    energy_error = math.hypot(time_error, base.power_error * math.hypot(scale, 1.0))
    top = max(float(worth.value.max()), 0.0)
    net = []
    for index, setting in enumerate(worth.settings):
        if setting in probed:
            net.append(-math.inf)
            continue
        time, energy = worth.expected(index)
        # Time lost beyond the bound has to be earned back at the baseline, where nothing is saved.
        lost_s = probe_s * max(0.0, time - bound) / bound if 0 < bound < math.inf else 0.0
        cost = (lost_s * top + probe_s * max(0.0, energy + top)) / ahead_s
        net.append(worth.lesson(index, time_error=time_error, energy_error=energy_error) - cost)
    best = int(np.argmax(net))
    # What is to be chosen anyway is learnt about by choosing it: only a clear lesson is worth a probe of its own.
    least = max(LESSON * top, 0.25 * LEAST_GAIN) if probed else -math.inf
    return best if net[best] > least else None


def weigh(
    settings: Sequence[Setting],
    time: Array,
    energy: Array,
    objective: Objective,
    baseline: Point[Any],
    *,
    margin: float = 0.0,
) -> Worth:
    """Weigh settings by joint draws of their time and energy ratios, one row a draw. ``margin`` is what a slowdown is
    not known better than after a trial: so much further from the bound counts as on it."""
    stride = max(1, len(time) // MOST_DRAWS)
    time, energy = time[::stride], energy[::stride]
    cost = _costs(_unhurried(objective), time, energy, baseline)
    affordable = np.isfinite(cost)
    reference = unbounded(objective).cost(baseline, baseline)
    floor = 0.0 if math.isfinite(objective.cost(baseline, baseline)) else -1.0
    bound = slowdown_bound(objective)
    saved = (1.0 - np.where(affordable, cost, 0.0) / reference) * held_share(time - 1.0 + margin, bound)
    gain = np.where(affordable, saved, floor)
    return Worth(tuple(settings), np.log(time), np.log(energy), gain, affordable & (time <= 1.0 + bound), floor)


def held_share(slowdown: Array, bound: float) -> Array:
    """How much of a job's work may be done at a setting of this slowdown, so that the whole job keeps its bound."""
    over = np.maximum(slowdown, 1e-9)
    # Squared: what is clearly over the bound will be given up, and what was learnt of it with it.
    return np.where(slowdown <= bound, 1.0, (bound / over) ** 2)


def unbounded(objective: Objective) -> Objective:
    """The objective without its bounds and budgets: a finite cost for every point, to take ratios of."""
    if isinstance(objective, Within):
        return unbounded(objective.objective)
    return MinEnergy(math.inf) if isinstance(objective, MinEnergy) else objective


def _unhurried(objective: Objective) -> Objective:
    """The objective with its budgets but without a slowdown bound."""
    if isinstance(objective, Within):
        return Within(_unhurried(objective.objective), objective.budget)
    return unbounded(objective)


def log_cost_ratio(objective: Objective, point: Point[Any], baseline: Point[Any]) -> float:
    """ln of a point's cost over the baseline's, bounds and budgets aside."""
    plain = unbounded(objective)
    return math.log(plain.cost(point, baseline) / plain.cost(baseline, baseline))


def _costs(objective: Objective, time: Array, energy: Array, baseline: Point[Any]) -> Array:
    if isinstance(objective, MinEnergy):  # the usual case, and the same arithmetic without a loop
        allowed = time <= 1.0 + objective.max_slowdown
        return np.where(allowed, energy * baseline.energy_j, math.inf)
    flat = [
        objective.cost(Point(t * baseline.time_s, e * baseline.energy_j, None), baseline)
        for t, e in zip(time.ravel().tolist(), energy.ravel().tolist(), strict=True)
    ]
    return np.array(flat).reshape(time.shape)
