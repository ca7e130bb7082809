"""The guard: may a candidate setting be kept within the user's slowdown bound, and is the whole job still within it?

What it is: a sequential test on pairs of blocks (``SlowdownTest``), its error shared out over a job's candidates
(``AlphaBudget``), a watch on what is being held (``Watch``), and, from tune/debt, the job's time account (``Debt``).
All are folds of what they are told: no clock, no draw of their own. Why it exists: a bound that is only aimed at is
broken by every second job; one that is tested at each look with a fixed-sample test is broken too. What it is not: the
choice of what to try (tune/job), nor the proof of the saving (tune/proof).

**Why the test holds.** A pair is two adjacent blocks of equal work, one at the candidate and one at the baseline; a
fair coin that nothing else depends on (``candidate_first``) says which comes first. Let u₁, u₂ be the logarithms of
the unit times that the two places would show at baseline, and θ = ln(1 + slowdown) what the candidate adds in either
place. The pair shows r = θ + ε·(u₁ − u₂) with ε = ±1 by the coin. *Given* u₁ and u₂, whatever their distribution,
drift, tails or dependence on the past, r − θ is ±|u₁ − u₂| with equal chance. Put x = ln(1 + bound) − r and bet on
x > 0: wealth is multiplied by 1 + f(x), f odd, increasing and |f| < 1, chosen from the pairs before this one. Under
the hypothesis "slowdown ≥ bound" x ≤ −ε·(u₁ − u₂), hence E[f(x) | past, u₁, u₂] ≤ ½f(−d) + ½f(d) = 0: wealth is a
non-negative supermartingale that starts at 1, and so is a mixture of several. By Ville's inequality the chance that it
*ever* reaches 1/α is at most α, at whatever times anyone looks or stops. No variance is plugged in and no tail assumed.
The mirrored bet, −f, tests "slowdown ≤ bound". n pairs cannot say more than 2⁻ⁿ: five at least for α = 5 %.

**What it assumes.** The coin does not change the noise, and the candidate stretches all work alike. Where it does not
(most pairs lose 1 %, one in ten falls on work that loses 15 %), the bets judge what is usual, not the mean, which is
what a job pays. So a candidate is kept only if the plain mean of its pairs, which no outlier is cut from, is within the
bound too, with 80 % (one-sided), and ``Watch`` sends it back when the mean over what follows is not. That needs rare
work to have been seen: what falls on one pair in ten is missed by half of all tests of six pairs, and no test of six
pairs could do better. Until it is seen the time account (``Debt``), which goes by means, bounds what it costs.

**The bets.** f(x) = 0.99·tanh(c·x/q), q the usual |x| of the pairs before (first pair: the sign alone). For normal
noise and a margin of g standard deviations tanh(g·x/σ) is the bet of fastest growth; c = 0.5, 1.4, 4.5 are it at
g = 0.5, 1, 2. Their mixture costs little against knowing g: pairs needed (median) for a margin of 2, 1, 0.5σ a pair at
α = 5 %: 5, 8, 34 (``python -m bench.guarantee``).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from joulewise.core.block import Block, Rung
from joulewise.core.decision import Verdict
from joulewise.tune.debt import Debt

__all__ = ["AlphaBudget", "Bets", "Debt", "SlowdownTest", "Watch", "candidate_first", "compare", "line_of"]

Array = npt.NDArray[np.float64]

# c and the share of the first stake on each, see above; the boldest gets most, since candidates are chosen with margin.
_BOLDNESS = np.array([0.5, 1.4, 4.5])
_SHARES = np.array([0.25, 0.30, 0.45])
# Pairs that the usual |x| is taken from: it follows noise that grows, and long tests stay cheap.
_REMEMBERED = 20
# Below 1, so that one lost pair never ruins a bet for good.
_MOST_STAKED = 0.99
# Giving up is the safe side, but a good setting that is given up is lost for long; what is clear is seen by the watch.
_ALPHA_VIOLATED = 0.03
# Normal quantile of 80 %. The bets carry the error; the mean is asked beside them, and where all work is stretched
# alike it is surer than this by the time that the bets are won.
_MEAN_SURE = 0.84


def line_of(phase: str, rung: Rung) -> str:
    """The name of a phase under one ruler, whose trials are numbered from 0."""
    return f"{phase}/{rung}"


def candidate_first(seed: int, trial: int, pair: int, line: str = "") -> bool:
    """The fair coin of pair ``pair`` of trial ``trial``, each from 0: whether the candidate's block comes first.

    ``line`` (``line_of``) gives each phase and ruler coins of its own.
    """
    return random.Random(f"pair {seed} {line} {trial} {pair}").random() < 0.5


def compare(candidate: Block, reference: Block) -> tuple[float, float]:
    """ln(candidate's unit time / reference's), and one standard error of it by the blocks' own account."""
    return math.log(candidate.unit_s / reference.unit_s), math.hypot(candidate.time_error, reference.time_error)


class Bets:
    """The wealth of bets on "below" and on "above" many limits at once: the test's arithmetic, on arrays.

    ``limits`` are log ratios; ``add`` takes one log ratio, or one for each limit (benches replay many jobs at once).
    """

    def __init__(self, limits: Array) -> None:
        self._limits = limits
        self._below = np.zeros((limits.size, _BOLDNESS.size))
        self._above = np.zeros((limits.size, _BOLDNESS.size))
        self._recent: deque[Array] = deque(maxlen=_REMEMBERED)
        self.pairs = 0

    def add(self, log_ratio: float | Array) -> None:
        """Settle the bets on one pair."""
        x = self._limits - log_ratio
        size = np.abs(x)
        usual = self._usual() if self._recent else size
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(usual > 0, x / usual, np.sign(x))  # no spread so far: the sign is all there is
        z = np.where(np.isnan(z), 0.0, z)
        stake = _MOST_STAKED * np.tanh(_BOLDNESS * z[:, None])
        self._below += np.log1p(stake)
        self._above += np.log1p(-stake)
        self._recent.append(size)
        self.pairs += 1

    def _usual(self) -> Array:
        """The mean |x| of the pairs before, each counted with three medians at most (one may be a stall)."""
        recent = np.array(self._recent)
        usual: Array = np.minimum(recent, 3 * np.median(recent, axis=0)).mean(axis=0)
        return usual

    @property
    def below(self) -> Array:
        """ln wealth of "the slowdown is below the limit"."""
        return self._mixed(self._below)

    @property
    def above(self) -> Array:
        """ln wealth of "the slowdown is above the limit"."""
        return self._mixed(self._above)

    @staticmethod
    def _mixed(each: Array) -> Array:
        mixed: Array = np.logaddexp.reduce(each + np.log(_SHARES), axis=1)
        return mixed


class Watch:
    """Goes back early: says when what is held is clearly slower than the bound, after two windows at the soonest.

    A one-sided cumulative sum of (log ratio − ln(1 + bound))/error, reference ½, threshold 4, each window counted with
    4 at most: two windows that are each 2.5 standard errors over the bound are enough (R16), one alone, which may be a
    stall, never is. At a slowdown exactly on the bound it cries once in about 330 windows (Siegmund's formula). From
    ``_MEAN_KNOWN`` windows on, their plain mean above the bound by more than ``_MEAN_SURE`` standard errors is enough
    too: rare windows that lose much would be cut above. It controls no error of *keeping*: going back is the safe side.
    """

    _REFERENCE = 0.5
    _THRESHOLD = 4.0
    _MOST = 4.0
    # Below this no ruler tells two blocks apart: a hundredth of a per cent.
    _LEAST_ERROR = 1e-4
    # From so many windows on their own spread is known within about 40 %, and a block's claim is not needed.
    _KNOWN = 6
    # Fewer may hold a stall that only many can outweigh.
    _MEAN_KNOWN = 8

    def __init__(self, bound: float) -> None:
        self.bound = bound
        self._limit = math.log1p(bound)
        self._seen: list[float] = []
        self._excess = 0.0

    def add(self, log_ratio: float, error: float | None = None) -> None:
        """Tell of one window: ln(held unit time / baseline's beside it), and one standard error of it if known.

        The error in use is the spread of the windows before; while those are few, the one given if it is larger. With
        neither (the first windows, no error given) a window cannot be judged.
        """
        spread = self._spread()
        scale = spread if len(self._seen) >= self._KNOWN else max(spread, error or 0.0)
        self._seen.append(log_ratio)
        if scale > 0 or error is not None:
            z = (log_ratio - self._limit) / max(scale, self._LEAST_ERROR)
            self._excess = max(0.0, self._excess + min(z, self._MOST) - self._REFERENCE)

    def _spread(self) -> float:
        """Robust standard deviation of the windows so far, from the differences of neighbours: blind to one step."""
        if len(self._seen) < 3:
            return 0.0
        # The median |difference| of two normals is 0.954σ.
        return float(np.median(np.abs(np.diff(self._seen[-50:])))) / 0.954

    @property
    def violated(self) -> bool:
        """Whether to go back to the baseline."""
        return self.clear or self._mean_over

    @property
    def clear(self) -> bool:
        """Whether window after window is over the bound, as the cumulative sum has it."""
        return self._excess >= self._THRESHOLD

    @property
    def _mean_over(self) -> bool:
        if len(self._seen) < self._MEAN_KNOWN:
            return False
        mean, error = _mean(self._seen)
        return mean - _MEAN_SURE * error > self._limit


class SlowdownTest:
    """Is a candidate within the bound? One test for one candidate in one phase; see the module for why it holds.

    ``bound`` is a share (0.02 = 2 %), ``alpha`` the chance of keeping a candidate that is slower than that.
    ``most_pairs`` ends a test that goes nowhere with "not kept".
    """

    def __init__(self, bound: float, alpha: float = 0.05, *, most_pairs: int | None = None) -> None:
        if not bound >= 0:
            raise ValueError(f"a slowdown bound must be 0 or more, not {bound}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
        self.bound = bound
        self.alpha = alpha
        self.most_pairs = most_pairs
        self._bets = Bets(np.array([math.log1p(bound)]))
        self._watch = Watch(bound)
        self._ratios: list[float] = []
        self._kept: Verdict | None = None

    @property
    def pairs(self) -> int:
        """How many pairs were told."""
        return len(self._ratios)

    @property
    def wealth(self) -> float:
        """What one unit betted on "within the bound" has become; 1/alpha proves it."""
        return math.exp(min(float(self._bets.below[0]), 700.0))

    def add(self, log_ratio: float, error: float | None = None) -> None:
        """Tell of one pair whose order the coin drew: ln(candidate's unit time / baseline's).

        ``error`` (one standard error by the blocks' own account) only serves to go back early. ValueError if the
        ratio is not a finite number: a pair without two good blocks is no pair.
        """
        if not math.isfinite(log_ratio):
            raise ValueError(f"a pair's log ratio must be a finite number, not {log_ratio}")
        self._ratios.append(log_ratio)
        self._bets.add(log_ratio)
        self._watch.add(log_ratio, error)
        if self._kept is None:
            self._kept = self._judge()

    def _judge(self) -> Verdict | None:
        mean, error = _mean(self._ratios)
        won = float(self._bets.below[0]) >= math.log(1 / self.alpha)
        if won and mean + _MEAN_SURE * error <= math.log1p(self.bound):
            return Verdict(True, f"within +{self.bound:.1%}: {self.so_far}, error ≤ {self.alpha:.1%}")
        lost = float(self._bets.above[0]) >= math.log(1 / _ALPHA_VIOLATED) and mean > math.log1p(self.bound)
        if lost or self._watch.clear:
            return Verdict(False, f"slower than +{self.bound:.1%}: {self.so_far}")
        if self.most_pairs is not None and self.pairs >= self.most_pairs:
            return Verdict(False, f"not shown to be within +{self.bound:.1%}: {self.so_far}")
        return None

    @property
    def verdict(self) -> Verdict:
        """Kept, not kept, or not judged yet (None). The first answer stands: later pairs do not change it."""
        return self._kept or Verdict(None, f"not decided yet: {self.so_far}")

    @property
    def so_far(self) -> str:
        """The slowdown by the mean of the pairs, in words."""
        slowdown, error = self.estimate()
        spread = f" ± {error:.2%}" if math.isfinite(error) else ""
        return f"{slowdown:+.2%}{spread} after {self.pairs} pair{'s' * (self.pairs != 1)}"

    def estimate(self) -> tuple[float, float]:
        """The slowdown by the mean of the pairs, and one standard error; infinite error below two pairs."""
        if not self._ratios:
            return math.nan, math.inf
        mean, error = _mean(self._ratios)
        slowdown = math.expm1(mean)
        return slowdown, error * (1 + slowdown)

    def pairs_to_go(self) -> float:
        """About how many more pairs until kept, if pairs go on as they went; infinite when they lead nowhere."""
        gained = float(self._bets.below[0])
        if self.pairs < 2 or gained <= 0:
            return math.inf
        return max(0.0, (math.log(1 / self.alpha) - gained) / (gained / self.pairs))

    def interval(self, alpha: float = 0.05) -> tuple[float, float]:
        """The slowdowns that the pairs do not refute, valid at any time: the true one ever leaves with chance ≤ alpha.

        By inverting the test: every bound whose bets, on either side, never reached 2/alpha. (−1, ∞) at first.
        """
        if not self._ratios:
            return -1.0, math.inf
        low, high = min(self._ratios), max(self._ratios)
        # Beyond the range of the pairs all bets are won alike, and wealth no longer depends on the limit's distance
        # after about ten ranges.
        span = max(high - low, 1e-6)
        inside = np.linspace(low, high, 401)
        beyond = span * np.geomspace(1e-3, 10.0, 60)
        limits = np.concatenate([low - beyond[::-1], inside, high + beyond])
        bets = Bets(limits)
        most_below = np.full(limits.size, -math.inf)
        most_above = np.full(limits.size, -math.inf)
        for ratio in self._ratios:
            bets.add(ratio)
            most_below = np.maximum(most_below, bets.below)
            most_above = np.maximum(most_above, bets.above)
        enough = math.log(2 / alpha)
        return _outer(limits, most_above < enough, -1), _outer(limits, most_below < enough, +1)


def _mean(logs: Sequence[float]) -> tuple[float, float]:
    """The plain mean and its standard error, infinite below two."""
    mean = fmean(logs)
    return mean, stdev(logs, mean) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf


def _outer(limits: Array, stands: npt.NDArray[np.bool_], side: int) -> float:
    """The first refuted limit outside all that stand, on one side, as a slowdown: rounding widens, never narrows."""
    kept = np.flatnonzero(stands)
    if kept.size == 0:  # cannot be: the bets at the pairs' middle are never both won
        return math.expm1(float(np.median(limits)))
    edge = int(kept[-1] if side > 0 else kept[0]) + side
    if not 0 <= edge < limits.size:
        return math.inf if side > 0 else -1.0
    return math.expm1(float(limits[edge]))


class AlphaBudget:
    """One job's error, shared out over its candidates, so that the chance of *ever* keeping a bad one is ≤ ``alpha``.

    Candidate k is granted alpha/(k·(k+1)), which adds up to alpha over any number of them: later ones need a few pairs
    more, never too many. What a *kept* candidate was granted may be granted again: if it was rightly kept its error
    was not used, and if not, the one error is made already (the fallback procedure). The sum that bad candidates ever
    get is thus ≤ alpha.
    """

    def __init__(self, alpha: float = 0.05) -> None:
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
        self.alpha = alpha
        self.granted = 0
        self._returned = 0.0

    def grant(self) -> float:
        """The error that the next candidate's test may have."""
        self.granted += 1
        amount = self.alpha / (self.granted * (self.granted + 1)) + self._returned
        self._returned = 0.0
        return amount

    def kept(self, amount: float) -> None:
        """The candidate that was granted ``amount`` was kept: the amount may be used again."""
        self._returned += amount
