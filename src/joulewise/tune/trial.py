"""One candidate on trial: the pairs it was compared in, and what they say of its promise.

What it is: the guard's test on time where the user set a slowdown bound, the same test on the objective's cost where
there is none; and means with errors, of the pairs and of what was believed before them. The test says whether the
setting is *verified*; the means say how much of the time it may be held before it is (``tune/job``). What it is not: a
choice, or the test itself (``tune/guard``).
"""

from __future__ import annotations

import math
from statistics import fmean, stdev

from joulewise.core.block import Block
from joulewise.core.decision import Verdict
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.core.objective import Objective, slowdown_bound
from joulewise.tune.choice import log_cost_ratio
from joulewise.tune.guard import SlowdownTest, Watch, compare

# A budget that the baseline breaks is not a matter of comparing: so many blocks in a row that keep it are enough.
_KEEPING_BLOCKS = 3

# From so many pairs on they say more of their setting than what is believed of it.
KNOWN_PAIRS = 4
# Beliefs err by this much more than they claim (``python -m bench.belief``), and never less than the other.
_TRUST, _LEAST_BELIEVED = 1.2, 0.002
# Normal quantile of 95 %, one-sided: for what the time account is told, which errs on the safe side one time in twenty.
CAUTION = 1.645

Ratio = tuple[float, float]
"""ln of a ratio, and one standard error of it."""


class Trial:
    """A candidate. ``number`` counts the trials of a job, ``alpha`` is the error that its test was granted, ``prior``
    what was believed of its time and energy against the baseline's."""

    def __init__(
        self,
        setting: Setting,
        number: int,
        alpha: float,
        objective: Objective,
        prior: tuple[Ratio, Ratio] | None = None,
    ) -> None:
        self.setting = setting
        self.number = number
        self.alpha = alpha
        self.drawn = 0
        """Pairs whose order a coin drew: the number of the next coin."""
        self.given_up = False
        """For another reason than the test's."""
        self.settled = False
        """Whether its being kept was acted on."""
        self.pair_s = 0.0
        """How long the blocks of a pair were, on average."""
        self._objective = objective
        self._prior = prior
        self._bound = slowdown_bound(objective)
        # Without a bound the promise is that the cost falls: "it grows by 0 % or more" is what is to be refuted.
        self.test = SlowdownTest(self._bound if math.isfinite(self._bound) else 0.0, alpha)
        self._watch = Watch(self.test.bound)
        self._log_times: list[float] = []
        self._log_costs: list[float] = []
        self._log_energies: list[float] = []
        self._errors: list[float] = []
        self._weights_s: list[float] = []
        self._allowed: list[bool] = []
        self._forced = False

    @property
    def pairs(self) -> int:
        """How many pairs were told."""
        return len(self._log_times)

    def add(self, candidate: Block, reference: Block) -> None:
        """Tell of one pair whose order was drawn."""
        point = Point(candidate.unit_s, candidate.unit_j, None)
        base = Point(reference.unit_s, reference.unit_j, None)
        log_time, error = compare(candidate, reference)
        log_cost = log_cost_ratio(self._objective, point, base)
        judged = log_time
        if math.isinf(self._bound):
            judged, error = log_cost, math.hypot(error, candidate.power_error, reference.power_error)
        if self.test.verdict.kept:
            self._watch.add(judged, error)
        self.test.add(judged, error)
        self.pair_s += (0.5 * (candidate.duration_s + reference.duration_s) - self.pair_s) / (self.pairs + 1)
        self._log_times.append(log_time)
        self._weights_s.append(0.0)
        self._log_costs.append(log_cost)
        self._log_energies.append(math.log(point.energy_j / base.energy_j))
        self._errors.append(error)
        self._allowed.append(math.isfinite(self._objective.cost(point, base)))
        self._forced = math.isinf(self._bound) and math.isinf(self._objective.cost(base, base))

    @property
    def verdict(self) -> Verdict:
        """Kept, not kept, or not judged yet; what was kept is not any more when the watch cries."""
        verdict = self._in_budget() if self._forced else self.test.verdict
        if self.given_up:
            return Verdict(False, verdict.reason)
        if verdict.kept and self._watch.violated and not self._forced:
            return Verdict(False, f"worse than +{self.test.bound:.1%} since it was kept")
        return verdict

    def _in_budget(self) -> Verdict:
        last = self._allowed[-_KEEPING_BLOCKS:]
        if len(last) < _KEEPING_BLOCKS or len(set(last)) > 1:
            return Verdict(None, f"within the budget in {sum(self._allowed)} of {self.pairs} blocks so far")
        return Verdict(last[0], f"within the budget in {sum(self._allowed)} of {self.pairs} blocks")

    @property
    def slowdown(self) -> tuple[float, float]:
        """Slowdown by the pairs, and one standard error: the larger of what they show and what their blocks claim."""
        ratio = math.exp(fmean(self._log_times))
        return ratio - 1.0, ratio * self._error(self._log_times)

    def spent(self, seconds: float) -> None:
        """Time went by at this setting, after two pairs at least: the last one speaks for it."""
        self._weights_s[-1] += seconds

    @property
    def known_well(self) -> bool:
        """Whether its own pairs say more of it than a belief."""
        return self.pairs >= KNOWN_PAIRS

    @property
    def known(self) -> tuple[Ratio, Ratio]:
        """ln of time and of energy against the baseline, each with one standard error, by the pairs and what was
        believed before them; two pairs at least, or a belief."""
        logs = (self._log_times, self._log_energies)
        if self.pairs < 2:
            return self._prior or ((0.0, 1.0), (0.0, 1.0))
        time, energy = ((fmean(each), self._error(each)) for each in logs)
        if self._prior is None:
            return time, energy
        return _both(self._prior[0], time), _both(self._prior[1], energy)

    @property
    def upper(self) -> float:
        """What it costs in time at most, with 95 %, as far as ``known``."""
        log_time, error = self.known[0]
        return math.expm1(log_time + CAUTION * error)

    @property
    def cost(self) -> tuple[float, float]:
        """What the time at this setting has cost, for the time account, and what at most: as ``slowdown`` and
        ``upper``, or more where pairs that speak for more time say so. Most pairs are of the beginning, and the setting
        may have become slower since."""
        slowdown, upper = math.expm1(self.known[0][0]), self.upper
        if (whole_s := sum(self._weights_s)) > 0:
            weighed = sum(w * log for w, log in zip(self._weights_s, self._log_times, strict=True)) / whole_s
            later = max(0.0, math.expm1(weighed) - slowdown)
            slowdown, upper = slowdown + later, upper + later
        return slowdown, upper

    @property
    def spread(self) -> float:
        """How much pairs scatter: one standard deviation of their log ratios of time."""
        return stdev(self._log_times)

    @property
    def gain(self) -> float:
        """Share of the baseline's cost saved, by the pairs. More than any where only this setting keeps a budget."""
        return 1.0 if self._forced else -math.expm1(fmean(self._log_costs))

    @property
    def chance(self) -> float:
        """How likely the promise is kept: the bound, as far as ``known``; where there is none, that the cost falls, by
        the pairs alone. ½ where they cannot say."""
        if self.pairs < 3 or self._forced:
            return 0.5
        bounded = math.isfinite(self._bound)
        value, error = self.known[0] if bounded else (fmean(self._log_costs), self._error(self._log_costs))
        return 0.5 * math.erfc((value - math.log1p(self.test.bound)) / (max(error, 1e-6) * math.sqrt(2.0)))

    def _error(self, logs: list[float]) -> float:
        """Of the mean of some log ratios: as they scatter, or as their blocks claim while they are few and may agree by
        chance. Blocks that wander together claim more than a pair errs by."""
        claimed = math.sqrt(sum(error**2 for error in self._errors)) / len(logs)
        shown = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 2 else 0.0
        return shown if len(logs) >= 8 else max(claimed, shown)


def _both(believed: Ratio, seen: Ratio) -> Ratio:
    """A belief and what was seen after it, weighed by their precision."""
    errors = max(_TRUST * believed[1], _LEAST_BELIEVED), max(seen[1], 1e-5)
    weights = [error**-2 for error in errors]
    mean = (weights[0] * believed[0] + weights[1] * seen[0]) / sum(weights)
    return mean, 1.0 / math.sqrt(sum(weights))
