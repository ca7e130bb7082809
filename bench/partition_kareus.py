"""Kareus' multi-objective search (OSDI'26, section 4.3 and its published code), as a baseline that is not weakened.

96 random candidates, then up to 4 batches of 32. Two boosted-tree surrogates, of time and of effective energy (beyond
the blocking power), total energy derived from both; each batch is filled in order by: 0.4 hypervolume improvement of
the predicted (time, total energy), 0.2 of (time, effective energy), 0.2 least predicted time, 0.2 largest
disagreement of 5 bootstrap members (in raw units, as published); a shortfall goes to the larger improvement.
Objectives are min–max normalised and the reference point is 1.1 × the worst of the initial design. Its evaluations
are counted one by one, in the order of the batch, which is kinder to it than whole batches.

``ordered`` encodes the launch window by its two positions instead of one-hot, which is not Kareus' way but the
information that our own search has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.partition_table import KAREUS_BLOCKING_W, Table, codes
from joulewise.tune.pareto_gain import improvement, non_dominated

Array = NDArray[Any]

INITIAL, BATCH, BATCHES = 96, 32, 4
PASSES = (0.4, 0.2, 0.2, 0.2)
MEMBERS, MEMBER_SHARE = 5, 0.8
ROUNDS = 100
PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.3,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 1,
    "nthread": 1,
}


def search(
    table: Table, seed: int, *, blocking_w: float = KAREUS_BLOCKING_W, ordered: bool = False
) -> Iterator[tuple[int, float, float, str]]:
    """One run: yields (candidate, seconds seen, joules seen, which pass chose it) until its budget is spent."""
    random = np.random.default_rng([seed, 2])
    features = _features(table, ordered=ordered)
    chosen = [int(i) for i in random.permutation(len(table))[:INITIAL]]
    seen: list[tuple[float, float]] = []
    for candidate in chosen:
        seen.append(table.look(candidate, random))
        yield candidate, *seen[-1], "initial"
    worst = np.array([(t, e - blocking_w * t, e) for t, e in seen]).max(axis=0)
    reference = 1.1 * worst
    for _ in range(BATCHES):
        left = np.setdiff1d(np.arange(len(table)), chosen)
        if not len(left):
            return
        batch = _batch(features, chosen, np.array(seen), left, blocking_w, reference)
        for candidate, why in batch:
            chosen.append(candidate)
            seen.append(table.look(candidate, random))
            yield candidate, *seen[-1], why


def _features(table: Table, *, ordered: bool) -> Array:
    """One row a candidate: slot one-hot (or its positions), everything else as the index of its value."""
    values = np.array(table.values)
    rest = [i for i in range(len(table.columns)) if i not in table.slot]
    # The clock goes in as MHz and the SM count as an index: to trees both are the same order.
    columns = [codes(values[:, i]).astype(float) for i in rest]
    if ordered:
        columns += [values[:, i] for i in table.slot]
    else:
        _, slots = np.unique(values[:, list(table.slot)], axis=0, return_inverse=True)
        columns += [(slots.ravel() == slot).astype(float) for slot in range(slots.max() + 1)]
    return np.column_stack(columns)


def _batch(
    features: Array, chosen: list[int], seen: Array, left: Array, blocking_w: float, reference: Array
) -> list[tuple[int, str]]:
    """The next candidates, each with the pass that chose it."""
    time, total = seen[:, 0], seen[:, 1]
    effective = total - blocking_w * time
    known, asked = features[chosen], features[left]
    time_at = _predict(known, time, asked, 0)
    effective_at = _predict(known, effective, asked, 0)
    total_at = effective_at + blocking_w * time_at
    members = np.array([_member(known, time, effective, asked, 42 + i) for i in range(MEMBERS)])
    doubt = members.std(axis=0).sum(axis=0)
    by_total = _improvement(np.column_stack([time, total]), np.column_stack([time_at, total_at]), reference[[0, 2]])
    by_effective = _improvement(
        np.column_stack([time, effective]), np.column_stack([time_at, effective_at]), reference[[0, 1]]
    )
    wanted = min(BATCH, len(left))
    counts = [round(share * wanted) for share in PASSES]
    counts[-1] = wanted - sum(counts[:-1])
    picked: dict[int, str] = {}
    for (why, score), count in zip(
        (("total", by_total), ("effective", by_effective), ("static", -time_at), ("uncertainty", doubt)),
        counts,
        strict=True,
    ):
        order = np.argsort(-score, kind="stable")
        if why in ("total", "effective"):
            order = order[score[order] > 0]
        _take(picked, order, why, count)
    _take(picked, np.argsort(-np.maximum(by_total, by_effective), kind="stable"), "shortfall", wanted - len(picked))
    return [(int(left[i]), why) for i, why in picked.items()]


def _take(picked: dict[int, str], order: Array, why: str, count: int) -> None:
    for i in order:
        if count <= 0:
            return
        if int(i) not in picked:
            picked[int(i)] = why
            count -= 1


def _member(known: Array, time: Array, effective: Array, asked: Array, seed: int) -> tuple[Array, Array]:
    """Time and effective energy by one bootstrap member."""
    rows = np.random.default_rng(seed).integers(len(known), size=int(MEMBER_SHARE * len(known)))
    return _predict(known[rows], time[rows], asked, seed), _predict(known[rows], effective[rows], asked, seed)


def _predict(known: Array, target: Array, asked: Array, seed: int) -> Array:
    import xgboost

    model = xgboost.train(PARAMETERS | {"seed": seed}, xgboost.DMatrix(known, label=target), num_boost_round=ROUNDS)
    return np.asarray(model.predict(xgboost.DMatrix(asked)), dtype=float)


def _improvement(seen: Array, predicted: Array, reference: Array) -> Array:
    """Hypervolume that each predicted point would add to those seen, objectives min–max normalised."""
    low, span = seen.min(axis=0), np.maximum(np.ptp(seen, axis=0), 1e-12)
    seen, predicted, reference = (seen - low) / span, (predicted - low) / span, (reference - low) / span
    front = seen[non_dominated(seen)]
    return improvement(front, reference, predicted[:, 0], predicted[:, 1])
