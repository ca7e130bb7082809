"""Which batch size the next run of a recurring job should have, and when it should be stopped.

Every size has a belief about the cost of a run: its epochs (``series_epochs``) times what one costs (``series_price``).
The best size known to work is the safe one. Another is tried when what it may save over the recurrences to come exceeds
what trying it is expected to cost: a run stopped after k epochs costs those, and then a run of the safe size; it tells
of an improvement only if it arrives by then. So the size and the epoch at which to stop are chosen together. What one
run tells may have been luck; that it can be looked at again is worth something too (``model.one_armed``), and a run of
the safe size itself teaches. How many recurrences are to come nobody knows; a job that has recurred n times is expected
to recur about as often again.

No recurrence shall be dear. Where a trial that comes out worse than believed would take its recurrence well beyond the
default's cost (``_CAP``), a coin is thrown, so that even then the recurrence is expected to cost no more than that: the
dearer the failure, the rarer the try.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulewise.model.curves import Array, Belief, normal_cdf
from joulewise.model.one_armed import option
from joulewise.tune.series_epochs import steps

_TO_COME = 25.0
"""Recurrences that a job has before it at least: who tunes a recurring job means to run it again."""
_CAP = 1.38
"""A recurrence may be expected to cost so many times what the default does, even if a trial fails."""
_WORSE_SD = 0.7
"""How much dearer than believed an epoch, and how many more of them, may be for that to hold: three in four are not."""
_LOST = 3.0
"""Where nothing may converge, that is counted three times as likely here: it would be so for every run of that size."""
_FURTHER = 1.3
"""A size that was stopped in vain is tried again only for so many times as long."""
_OTHERS = 0.5
"""What a trial tells of other sizes counts half: they must be tried in their turn."""
CHANCES = (0.8, 0.4)
"""What may be tried nearly always comes first; what may be tried more rarely only if nothing else is worth it, and what
fewer than four coins in ten allow never."""
_ARRIVES_SD = 3.0
"""A size that works is given so many standard deviations more epochs than it needs before it counts as lost."""
_NODES: Array = np.linspace(-3.0, 3.0, 25)
_WEIGHTS: Array = np.exp(-0.5 * _NODES**2) / np.sum(np.exp(-0.5 * _NODES**2))
_HOPELESS_SD = 5.0


@dataclass(frozen=True, slots=True)
class Weighed:
    """What trying a size comes to, in the job's currency."""

    net: float
    """What it is worth more than running the safe size."""
    most_epochs: int
    """Where to stop; 0 where it may not be tried."""
    chance: float = 0.0
    """How often it may be tried so that no recurrence is expected to be dear, even if it never arrives."""
    saving: float = 0.0
    """What a recurrence would cost less, on average over what may be found."""
    price: float = 0.0
    """What trying it is expected to cost more than the safe size."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is believed of all sizes at one moment, on one platform."""

    epochs: Belief
    """Logarithms, runs that are under way counted as seen."""
    noise: Array
    """Variance of one run's logarithm, at each size."""
    lost: Array
    """Chance that a run never arrives."""
    vain: Array
    """Epochs after which the longest run of a size that never succeeded was stopped; 0 where none was."""
    log_cost: Array
    """Of a run that ends in success, at each size; infinite where it may not be run."""
    log_epoch: Array
    epoch_var: Array
    """What an epoch costs: logarithm and its variance, 0 where it was measured."""
    epoch_cov: Array
    """How what an epoch costs at one size tells of another."""
    safe: int
    default_cost: float
    surcharge: float
    """What a first epoch costs more, as a share."""
    recurrences: int
    max_epochs: int

    def weigh(self, place: int, log_epoch: float | None = None, least_chance: float = CHANCES[-1]) -> Weighed:
        """What trying this size is worth; ``log_epoch`` where it has just been seen what an epoch of it costs."""
        log_kappa = float(self.log_epoch[place]) if log_epoch is None else log_epoch
        kappa_var = 0.0 if log_epoch is not None else float(self.epoch_var[place])
        kappa, safe_cost = math.exp(log_kappa), math.exp(float(self.log_cost[self.safe]))
        mean, own = float(self.epochs.mean[place]), float(self.epochs.cov[place, place])
        whole_var = float(self.noise[place]) + math.exp(-2.0 * min(mean, 10.0)) / 12.0
        shared = float(self.epochs.cov[self.safe, place])
        above = float(self.log_cost[place] - self.log_epoch[place] - self.log_cost[self.safe]) + log_kappa
        if not above < _HOPELESS_SD * math.sqrt(own + kappa_var):
            return Weighed(-math.inf, 0)
        stops = steps(self.max_epochs)
        log_stops = np.log(stops + 0.5)
        lost = float(self.lost[place])
        first = self.surcharge if self.epoch_var[place] > 0 else 0.0
        price = self._spent(mean, math.sqrt(own + whole_var), kappa, first, lost, stops, log_stops, safe_cost)
        worse = math.exp(_WORSE_SD * math.sqrt(kappa_var))
        unlucky = mean + _WORSE_SD * math.sqrt(own)
        vain = min(_LOST * lost, 1.0)
        feared = self._spent(unlucky, math.sqrt(whole_var), kappa * worse, first, vain, stops, log_stops, safe_cost)
        room = max(_CAP * self.default_cost - safe_cost, 0.0)
        chance = np.minimum(room / np.maximum(feared - safe_cost, 1e-12 * safe_cost), 1.0)
        taught = max((own - shared) ** 2 / (own + whole_var), 1e-12)
        spread = math.sqrt(taught + kappa_var)
        # What a recurrence would cost less, node by node of what a run may find.
        gap = above + spread * _NODES
        saving = -np.expm1(np.minimum(gap, 0.0)) * safe_cost
        saving = saving + _OTHERS * self._others(place, above, taught, own + whole_var, safe_cost)
        # Waiting for the coin to fall is waiting for what would be found.
        to_come = _TO_COME + self.recurrences + 1.0 - 1.0 / np.maximum(chance, 1e-9)
        scale = ((own - shared) / own) ** 2
        left = max(scale * own * whole_var / (own + whole_var), 1e-12)
        again = option(gap, left, max(scale * whole_var, 1e-12), _TO_COME + self.recurrences) * safe_cost
        arrival = math.sqrt(max(own - taught, 0.0) + whole_var)
        by_stop = normal_cdf((log_stops[:, None] - (mean + math.sqrt(taught) * _NODES)[None, :]) / arrival)
        found = (1.0 - lost) * (by_stop @ (_WEIGHTS * saving))
        worth = to_come * found + (1.0 - lost) * (by_stop @ (_WEIGHTS * again))
        # A second look that ends where the first did would show the same again.
        may = (chance >= least_chance) & (stops > _FURTHER * self.vain[place])
        net = np.where(may, worth - (price - safe_cost), -math.inf)
        at = int(np.argmax(net))
        if math.isinf(net[at]):
            return Weighed(-math.inf, 0)
        return Weighed(
            float(net[at]), int(stops[at]), float(chance[at]), float(found[at]), float(price[at]) - safe_cost
        )

    def stop(self, place: int, log_epoch: float | None = None) -> int:
        """Where a trial of this size is to be stopped, now that it runs: as far as it is worth, within what the rarest
        of tries may cost. Which size is tried first is another question: there, the short look comes first."""
        return self.weigh(place, log_epoch).most_epochs

    def _others(self, place: int, above: float, taught: float, whole: float, safe_cost: float) -> Array:
        """What a recurrence of the size that then looks best would cost less, beyond what one looks like now, node by
        node of what a trial of ``place`` may find: neighbours tell of each other."""
        gap = self.log_cost - float(self.log_cost[self.safe])
        moved = (self.epochs.cov[:, place] - self.epochs.cov[self.safe, place]) / math.sqrt(whole)
        if self.epoch_var[place] > 0:  # what an epoch costs there will be known, too
            dearer = self.epoch_cov[:, place] / math.sqrt(float(self.epoch_cov[place, place]))
            moved = np.copysign(np.hypot(moved, dearer), moved + dearer)
        keep = np.isfinite(gap)
        keep[place] = False
        if not keep.any():
            return np.zeros(len(_NODES))
        alive = 1.0 - self.lost[keep]
        after = -np.expm1(np.minimum(gap[keep][:, None] + moved[keep][:, None] * _NODES[None, :], 0.0)) * alive[:, None]
        now = float(np.max(-np.expm1(np.minimum(gap[keep], 0.0)) * alive))
        own = -np.expm1(np.minimum(above + math.sqrt(taught) * _NODES, 0.0))
        gained: Array = np.maximum(np.max(after, axis=0) - np.maximum(own, now), 0.0) * safe_cost
        return gained

    @staticmethod
    def _spent(
        mean: float,
        sd: float,
        kappa: float,
        first: float,
        lost: float,
        stops: Array,
        log_stops: Array,
        safe_cost: float,
    ) -> Array:
        """Expected cost of a recurrence that tries a size up to each of ``stops`` epochs, then runs the safe one."""
        cdf = normal_cdf((log_stops - mean) / sd)
        arriving = np.diff(cdf, prepend=0.0)
        spent = kappa * (np.cumsum(arriving * stops) + (1.0 - cdf) * stops + first) + (1.0 - cdf) * safe_cost
        in_vain = kappa * (stops + first) + safe_cost
        result: Array = (1.0 - lost) * spent + lost * in_vain
        return result

    def patience(self, place: int) -> int:
        """Epochs after which a size that works has failed this time."""
        mean, own = float(self.epochs.mean[place]), float(self.epochs.cov[place, place])
        sd = math.sqrt(own + float(self.noise[place]) + math.exp(-2.0 * min(mean, 10.0)) / 12.0)
        return min(self.max_epochs, max(2, math.ceil(math.exp(min(mean + _ARRIVES_SD * sd, 20.0)) + 1.0)))
