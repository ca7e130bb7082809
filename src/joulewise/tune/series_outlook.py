"""What is believed of all batch sizes of a recurring job at one moment, put together: epochs, what one costs, what is
barred, what is in time, and what is under way. ``series_choice`` weighs it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from joulewise.core.series import Platform
from joulewise.tune.series_choice import Outlook
from joulewise.tune.series_learnt import Learnt

_LATE = 8.0
"""A run that is late by a tenth counts as if it cost twice as much: one that is in time is worth looking for."""


def outlook(learnt: Learnt, platform: Platform, under_way: Iterable[int], recurrences: int) -> Outlook | None:
    """As of now; None while no size is known to work. ``under_way``: the places of trials that run."""
    job, epochs = learnt.job, learnt.epochs
    barred = learnt.barred(platform)
    proven = [place for place in epochs.proven if place not in barred]
    if not proven:
        return None
    costs, belief, noise = learnt.costs(platform), epochs.belief(), epochs.noise
    places, default = range(len(job.batch_sizes)), learnt.default
    expected = epochs.expected(belief, noise)
    untuned = costs.untuned(default)
    most_s = costs.price.most_s(untuned.duration_s * float(expected[default]) if untuned is not None else math.inf)
    cheapest = {
        place: found
        for place in costs.known
        if (found := costs.cheapest(place, float(expected[place]), most_s)) is not None
    }
    late = [place for place in costs.known if place not in cheapest]
    hurry = all(place in late for place in proven)
    if hurry:  # nothing that works is in time: the quickest will have to do, until one that may be is found to be
        quickest = {place: min(costs.profiles[place].values(), key=lambda each: each.duration_s) for place in late}
        cheapest |= quickest
    price = costs.belief(cheapest, learnt.elsewhere(platform))
    known_var = np.where([place in cheapest for place in places], 0.0, np.diag(price.cov))
    log_cost = price.mean + np.log(expected)
    for place in barred if hurry else {*barred, *late}:
        log_cost[place] = math.inf
    if hurry:
        for place, each in quickest.items():
            log_cost[place] += _LATE * math.log(each.duration_s * float(expected[place]) / max(most_s, 1e-9))
    safe = min(proven, key=lambda place: float(log_cost[place]))
    base = (costs.price.of(untuned, platform) if untuned is not None else math.exp(float(price.mean[default]))) * float(
        expected[default]
    )
    base = max(base, math.exp(float(log_cost[safe]))) if hurry else base
    seen = belief
    for place in under_way:
        seen = seen.seen(place, float(noise[place]))
        known_var[place] = 0.0
    return Outlook(
        seen,
        noise,
        np.array([epochs.lost(place) for place in places]),
        np.array([epochs.vain(place) for place in places]),
        log_cost,
        price.mean,
        np.maximum(known_var, 0.0),
        price.cov,
        safe,
        base,
        costs.surcharge(),
        recurrences,
        job.max_epochs,
    )
