"""What a recurring job's tuner knows, told to people: size by size, as a whole, and as a frontier of whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring
from joulewise.tune.series_choice import Outlook
from joulewise.tune.series_epochs import Epochs
from joulewise.tune.series_price import Costs
from joulewise.tune.series_trials import TrialRecord, Trials

_INTERVAL_SD = 1.96


@dataclass(frozen=True, slots=True)
class SizeBelief:
    """What is believed of one batch size on one platform. Intervals are 95 % and of the mean, not of one run."""

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
    """Of a run, in the job's currency; None while nothing is known to work anywhere."""
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
    """What one run of the default is expected to take; None while it was not seen."""
    best_energy_j: float | None
    best_duration_s: float | None
    learning_cost: float | None
    """What recurrences cost more than the best size would have, in runs of the best size."""
    saved: float | None
    """Of the cost, against running the default every time: 0.3 is 30 % less; None while the default was not seen."""
    saved_error: float | None
    """One standard error: how well the default's cost is known."""


def beliefs(
    job: Recurring, epochs: Epochs, costs: Costs, outlook: Outlook | None, crashes: Mapping[int, int]
) -> list[SizeBelief]:
    """Size by size."""
    belief, noise = epochs.belief(), epochs.noise
    expected = epochs.expected(belief, noise)
    result = []
    for place, size in enumerate(job.batch_sizes):
        sd = belief.sd(place)
        mean = float(expected[place])
        epoch = costs.cheapest(place, mean, math.inf)
        cost = low = high = None
        if outlook is not None:
            log_kappa, kappa_sd = float(outlook.log_epoch[place]), math.sqrt(float(outlook.epoch_var[place]))
            spread = math.exp(_INTERVAL_SD * math.hypot(sd, kappa_sd))
            cost = mean * math.exp(log_kappa)
            low, high = cost / spread, cost * spread
        state, says = _state(place, epochs, costs, outlook, crashes)
        spread = math.exp(_INTERVAL_SD * sd)
        result.append(
            SizeBelief(
                size,
                state,
                epochs.runs(place),
                epochs.successes[place],
                mean,
                max(1.0, mean / spread),
                mean * spread,
                epoch,
                cost,
                low,
                high,
                says,
            )
        )
    return result


def _state(
    place: int, epochs: Epochs, costs: Costs, outlook: Outlook | None, crashes: Mapping[int, int]
) -> tuple[str, str]:
    if costs.too_large is not None and place >= costs.too_large:
        return "too large", "ran out of memory, or a smaller one did"
    if crashes.get(place, 0) > 1:
        return "crashes", f"crashed {crashes[place]} times"
    if outlook is None:
        return "open", "nothing has reached the target yet"
    if place == outlook.safe:
        return "best", "the best of what is known to work"
    if epochs.successes[place]:
        return "works", "reached the target, at a higher cost"
    weighed = outlook.weigh(place)
    if math.isinf(weighed.net):
        return "hopeless", "cannot be expected to win"
    return "open", "worth a try" if weighed.net > 0 else "not worth a try now"


def summary(job: Recurring, epochs: Epochs, costs: Costs, outlook: Outlook | None, trials: Trials) -> SeriesSummary:
    """Of one platform."""
    platform = costs.platform
    mine = [record for record in trials.records() if record.asked.platform.key == platform.key]
    told = [record for record in mine if record.told is not None]
    energy_j = sum(record.told.energy_j for record in told if record.told is not None)
    duration_s = sum(record.told.duration_s for record in told if record.told is not None)
    default = job.batch_sizes.index(job.default)
    expected = epochs.expected(epochs.belief(), epochs.noise)
    untuned = costs.untuned(default) if epochs.successes[default] else None
    best = costs.cheapest(outlook.safe, float(expected[outlook.safe]), math.inf) if outlook is not None else None
    saved = saved_error = learning = None
    done = {record.asked.recurrence for record in told if record.told and record.told.outcome is Outcome.REACHED}
    spent = sum(_cost(record, costs, platform) for record in told if record.asked.recurrence in done)
    if done and untuned is not None:
        whole = costs.price.of(untuned, platform) * float(expected[default]) * len(done)
        saved = 1.0 - spent / whole
        saved_error = (spent / whole) * epochs.belief().sd(default)
    if done and best is not None and outlook is not None:
        optimal = costs.price.of(best, platform) * float(expected[outlook.safe])
        explored = {r.asked.recurrence for r in told if r.asked.purpose is not Purpose.BEST} & done
        paid = sum(_cost(record, costs, platform) for record in told if record.asked.recurrence in explored)
        learning = (paid - optimal * len(explored)) / optimal
    return SeriesSummary(
        recurrences=len({record.asked.recurrence for record in mine}),
        trials=len(mine),
        best=job.batch_sizes[outlook.safe] if outlook is not None else None,
        energy_j=energy_j,
        duration_s=duration_s,
        default_energy_j=untuned.energy_j * float(expected[default]) if untuned is not None else None,
        default_duration_s=untuned.duration_s * float(expected[default]) if untuned is not None else None,
        best_energy_j=best.energy_j * float(expected[outlook.safe])
        if best is not None and outlook is not None
        else None,
        best_duration_s=best.duration_s * float(expected[outlook.safe])
        if best is not None and outlook is not None
        else None,
        learning_cost=learning,
        saved=saved,
        saved_error=saved_error,
    )


def _cost(record: TrialRecord, costs: Costs, platform: Platform) -> float:
    told = record.told
    if told is None or told.duration_s <= 0:
        return 0.0
    return costs.price.of(EpochCost(told.duration_s, max(told.energy_j, 0.0)), platform)


def frontier(job: Recurring, epochs: Epochs, costs: Costs) -> Frontier[tuple[int, Setting]]:
    """Whole runs of the sizes that work, at every setting that was measured. BadSpec where there is none."""
    belief, expected = epochs.belief(), epochs.expected(epochs.belief(), epochs.noise)
    points = [
        Point(
            epoch.duration_s * float(expected[place]),
            epoch.energy_j * float(expected[place]),
            (job.batch_sizes[place], epoch.setting),
            epoch.duration_s * float(expected[place]) * belief.sd(place),
            epoch.energy_j * float(expected[place]) * belief.sd(place),
        )
        for place in epochs.proven
        for epoch in costs.profiles[place].values()
    ]
    if not points:
        raise BadSpec(f"nothing of {job.name!r} was measured on {costs.platform.key} yet; run it there first")
    return Frontier(points)
