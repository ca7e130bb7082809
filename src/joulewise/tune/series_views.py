"""What a recurring job's tuner knows, told to people: size by size, as a whole, and as a frontier of whole runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.errors import BadSpec
from joulewise.core.event import Told
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose
from joulewise.model.curves import Array
from joulewise.tune.series_choice import Outlook
from joulewise.tune.series_learnt import Learnt
from joulewise.tune.series_price import Costs
from joulewise.tune.series_trials import TrialRecord

WORTH_A_TRY = "worth a try"
"""What is said of a size that will be tried."""
_INTERVAL_SD = 1.96


@dataclass(frozen=True, slots=True)
class SizeBelief:
    """What is believed of one batch size on one platform. Intervals are 95 % and of the mean, not of one run.

    Of a size that never succeeded no more than the job's most epochs are told: nobody has seen what lies beyond. Where
    ``epochs_high`` is that many it is at least ``epochs_low``, and that is all.
    """

    batch_size: int
    state: str
    """"best", "works", "open", "hopeless", "too large" or "crashes"."""
    runs: int
    successes: int
    epochs: float
    """To the target, expected."""
    epochs_low: float
    epochs_high: float
    epoch: EpochCost | None
    """What an epoch costs at the best setting; None where it was not measured here."""
    cost: float | None
    """Of a run, in the job's currency; None while nothing is known to work anywhere, or nothing was measured here."""
    cost_low: float | None
    cost_high: float | None
    says: str


@dataclass(frozen=True, slots=True)
class SeriesSummary:
    """A recurring job on one platform, so far."""

    recurrences: int
    trials: int
    best: int | None
    """Batch size; None while none is known to work."""
    energy_j: float
    duration_s: float
    """Of all trials together."""
    default_energy_j: float | None
    default_duration_s: float | None
    """What one run of the default takes, by its own runs; None while it was not seen."""
    best_energy_j: float | None
    best_duration_s: float | None
    learning_cost: float | None
    """What recurrences cost more than the best size would have, in runs of the best size; those that ran the best known
    are no learning, whatever their luck."""
    saved: float | None
    """Of the cost, against running the default every time: 0.3 is 30 % less; None while the default was not seen."""
    saved_error: float | None
    """One standard error: how well the default's cost is known."""


def beliefs(learnt: Learnt, platform: Platform, outlook: Outlook | None) -> list[SizeBelief]:
    """Size by size."""
    job, epochs, costs = learnt.job, learnt.epochs, learnt.costs(platform)
    belief, noise = epochs.belief(), epochs.noise
    expected = epochs.expected(belief, noise)
    result = []
    for place, size in enumerate(job.batch_sizes):
        sd = belief.sd(place)
        mean = float(expected[place])
        epoch = _in_time(learnt.default, costs, expected, place)
        cost = low = high = None
        if outlook is not None and costs.known:  # without any size that was measured here only ratios mean something
            log_kappa, kappa_sd = float(outlook.log_epoch[place]), math.sqrt(float(outlook.epoch_var[place]))
            spread = math.exp(_INTERVAL_SD * math.hypot(sd, kappa_sd))
            cost = mean * math.exp(log_kappa)
            low, high = cost / spread, cost * spread
        state, says = _state(place, learnt, costs, outlook)
        spread = math.exp(_INTERVAL_SD * sd)
        most = math.inf if epochs.successes[place] else float(job.max_epochs)
        result.append(
            SizeBelief(
                size,
                state,
                epochs.runs(place),
                epochs.successes[place],
                min(mean, most),
                min(max(1.0, mean / spread), most),
                min(mean * spread, most),
                epoch,
                cost,
                low,
                high,
                says,
            )
        )
    return result


def _state(place: int, learnt: Learnt, costs: Costs, outlook: Outlook | None) -> tuple[str, str]:
    if costs.too_large is not None and place >= costs.too_large:
        return "too large", "ran out of memory, or a smaller one did"
    if place in learnt.crashes.barred:
        return "crashes", f"crashed {learnt.crashes.barred[place]} times"
    if outlook is None:
        return "open", "nothing has reached the target yet"
    if place == outlook.safe:
        return "best", "the best of what is known to work"
    if learnt.epochs.successes[place]:
        late = math.isinf(outlook.log_cost[place])
        return "works", "reached the target, but too late" if late else "reached the target, at a higher cost"
    weighed = outlook.weigh(place)
    if math.isinf(weighed.net):
        return "hopeless", "cannot be expected to win"
    return "open", WORTH_A_TRY if weighed.net > 0 else "not worth a try now"


def summary(
    learnt: Learnt, platform: Platform, outlook: Outlook | None, records: Sequence[TrialRecord]
) -> SeriesSummary:
    """Of one platform.

    Told runs count with all they took, also what came before their first epoch. A recurrence that is not done yet, or
    never will be, counts with what exploring has cost it, and with nothing on the other side.
    """
    job, epochs, costs, default = learnt.job, learnt.epochs, learnt.costs(platform), learnt.default
    mine = [record for record in records if record.asked.platform.key == costs.platform.key]
    told = [(record.asked, record.told) for record in mine if record.told is not None]
    done = {asked.recurrence for asked, end in told if end.outcome is Outcome.REACHED}
    explored = {asked.recurrence for asked, _ in told if asked.purpose is not Purpose.BEST} & done
    expected = epochs.expected(epochs.belief(), epochs.noise)
    default_run = best_run = learning = saved = saved_error = None
    if epochs.successes[default] and (untuned := costs.untuned(default)) is not None:
        needed, error = epochs.measured(default) or (float(expected[default]), epochs.belief().sd(default))
        default_run = _times(untuned, needed)
        spent = sum(
            _cost(end, costs) for asked, end in told if asked.recurrence in done or asked.purpose is Purpose.EXPLORE
        )
        if done:
            ratio = spent / (len(done) * costs.price.of(default_run, costs.platform))
            saved, saved_error = 1.0 - ratio, ratio * math.hypot(error, _relative_error(untuned))
    if outlook is not None and (best := _in_time(default, costs, expected, outlook.safe)) is not None:
        needed, _ = epochs.measured(outlook.safe) or (float(expected[outlook.safe]), 0.0)
        best_run = _times(best, needed)
        optimal = costs.price.of(best_run, costs.platform)
        paid = sum(
            _cost(end, costs) for asked, end in told if asked.recurrence in explored or asked.purpose is Purpose.EXPLORE
        )
        learning = paid / optimal - len(explored) if done else None
    return SeriesSummary(
        recurrences=len({record.asked.recurrence for record in mine}),
        trials=len(mine),
        best=job.batch_sizes[outlook.safe] if outlook is not None else None,
        energy_j=sum(end.energy_j for _, end in told),
        duration_s=sum(end.duration_s for _, end in told),
        default_energy_j=default_run.energy_j if default_run is not None else None,
        default_duration_s=default_run.duration_s if default_run is not None else None,
        best_energy_j=best_run.energy_j if best_run is not None else None,
        best_duration_s=best_run.duration_s if best_run is not None else None,
        learning_cost=learning,
        saved=saved,
        saved_error=saved_error,
    )


def _in_time(default: int, costs: Costs, expected: Array, place: int) -> EpochCost | None:
    """The cheapest epoch with which a run of this size ends in time, or at all; None where none was measured here."""
    untuned = costs.untuned(default)
    most_s = costs.price.most_s(untuned.duration_s * float(expected[default]) if untuned is not None else math.inf)
    mean = float(expected[place])
    return costs.cheapest(place, mean, most_s) or costs.cheapest(place, mean, math.inf)


def _times(epoch: EpochCost, epochs: float) -> EpochCost:
    return EpochCost(epoch.duration_s * epochs, epoch.energy_j * epochs, epoch.setting)


def _cost(told: Told, costs: Costs) -> float:
    if told.duration_s <= 0:
        return 0.0
    return costs.price.of(EpochCost(told.duration_s, max(told.energy_j, 0.0)), costs.platform)


def _relative_error(epoch: EpochCost) -> float:
    energy = epoch.error_j / epoch.energy_j if epoch.energy_j > 0 else 0.0
    return max(energy, epoch.error_s / epoch.duration_s)


def frontier(learnt: Learnt, platform: Platform) -> Frontier[tuple[int, Setting]]:
    """Whole runs of the sizes that work, at every setting that was measured. BadSpec where there is none."""
    job, epochs, costs = learnt.job, learnt.epochs, learnt.costs(platform)
    belief, expected = epochs.belief(), epochs.expected(epochs.belief(), epochs.noise)
    fits = costs.too_large if costs.too_large is not None else len(job.batch_sizes)
    points = [
        Point(
            epoch.duration_s * float(expected[place]),
            epoch.energy_j * float(expected[place]),
            (job.batch_sizes[place], epoch.setting),
            epoch.duration_s * float(expected[place]) * belief.sd(place),
            epoch.energy_j * float(expected[place]) * belief.sd(place),
        )
        for place in epochs.proven
        if place < fits
        for epoch in costs.profiles[place].values()
    ]
    if not points:
        raise BadSpec(f"nothing of {job.name!r} was measured on {costs.platform.key} yet; run it there first")
    return Frontier(points)
