"""Prices that clear the market of GPUs, and a whole allocation near them.

What it is: a problem of choice. Each job takes one of its offers or none, for a value; the GPUs of each kind are
limited; the sum of values shall be highest. At given prices of a GPU every job chooses alone, which gives a bound on
the sum (weak duality). ``prices`` finds the prices of the least bound, by bisection for one kind and by the ellipsoid
method for several; ``settle`` takes what jobs choose there and repairs, fills and swaps until nothing simple is better.
What it is not: where values come from (``priced``), or the exact optimum (``milp``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulewise.cluster.allocators.priced_menu import Floats, Ints


@dataclass(frozen=True, slots=True)
class Problem:
    """Jobs × offers: what each is worth (0: as much as waiting), its GPUs and the number of their kind."""

    value: Floats
    gpus: Ints
    kind: Ints
    there: Ints
    """GPUs of each kind."""

    def chosen(self, prices: Floats) -> Ints:
        """The offer each job takes at these prices, -1 for none; in a tie the first, and none before any."""
        net = self.value - prices[self.kind] * self.gpus
        best = net.argmax(axis=1)
        return np.where(net[np.arange(len(best)), best] > 0.0, best, -1)

    def used(self, choice: Ints) -> Ints:
        """GPUs of each kind that a choice takes."""
        rows = np.flatnonzero(choice >= 0)
        picked = choice[rows]
        taken = np.bincount(self.kind[rows, picked], self.gpus[rows, picked], minlength=len(self.there))
        return taken.astype(np.int64)

    def worth(self, choice: Ints) -> float:
        """The sum of values."""
        rows = np.flatnonzero(choice >= 0)
        return float(self.value[rows, choice[rows]].sum())

    def bound(self, prices: Floats) -> float:
        """What no choice within the limits can be worth more than."""
        net = (self.value - prices[self.kind] * self.gpus).max(axis=1)
        return float(np.maximum(net, 0.0).sum() + prices @ self.there)


# Halvings of a price's interval: 2⁻³⁰ of the dearest price is below any difference between two real offers.
_HALVINGS = 30
# Steps of the ellipsoid for each kind squared: each shrinks its volume by e^(−1/(2·(kinds + 1))).
_STEPS = 40


def prices(problem: Problem) -> Floats:
    """A GPU's price by kind at (nearly) the least bound; 0 where GPUs are left over."""
    free = np.zeros(len(problem.there))
    if (problem.used(problem.chosen(free)) <= problem.there).all():
        return free
    dearest = max(float((problem.value / problem.gpus).max()), 0.0)
    return _bisected(problem, dearest) if len(free) == 1 else _cut(problem, dearest)


def _bisected(problem: Problem, dearest: float) -> Floats:
    """The lowest price at which what is wanted fits."""
    low, high = 0.0, dearest
    there = int(problem.there[0])
    value, gpus = problem.value, problem.gpus
    rows = np.arange(len(value))
    for _ in range(_HALVINGS):
        price = 0.5 * (low + high)
        net = value - price * gpus
        best = net.argmax(axis=1)
        used = int(gpus[rows, best][net[rows, best] > 0.0].sum())
        if used > there:
            low = price
        else:
            high = price
            if used == there:
                break
    return np.array([high])


def _cut(problem: Problem, dearest: float) -> Floats:
    """The ellipsoid method on the bound, which is convex in the prices; the best prices seen."""
    size = len(problem.there)
    centre = np.full(size, 0.5 * dearest)
    shape = np.eye(size) * (size * (0.5 * dearest) ** 2)
    best, least = np.zeros(size), problem.bound(np.zeros(size))
    for _ in range(_STEPS * size * size):
        wrong = np.flatnonzero(centre < 0)
        if len(wrong):  # no price is below 0: cut that side off
            slope = np.zeros(size)
            slope[wrong[0]] = -1.0
        else:
            bound = problem.bound(centre)
            if bound < least:
                best, least = centre.copy(), bound
            slope = (problem.there - problem.used(problem.chosen(centre))).astype(float)
        spread = float(slope @ shape @ slope)
        if spread <= (1e-9 * dearest * (1.0 + np.abs(slope).sum())) ** 2:
            break
        step = shape @ slope / np.sqrt(spread)
        centre = centre - step / (size + 1)
        shape = (size**2 / (size**2 - 1.0)) * (shape - (2.0 / (size + 1)) * np.outer(step, step))
    return best


# Rounds of exchanges between two jobs; each must raise the sum, and a hundred jobs need about three.
_EXCHANGES = 24


def settle(problem: Problem, price: Floats, *, enough: float = 0.0) -> Ints:
    """A choice within the limits, at or near what jobs take at these prices.

    ``enough``: it is not improved further once the sum is within this share of the bound. Few jobs with large offers
    may end short of it: then one kind of GPUs is counted through, if that is not too much to count.
    """
    bound = problem.bound(price)
    good = bound - enough * abs(bound)
    choice = problem.chosen(price)
    _shed(problem, choice)
    _improve(problem, choice, good)
    if problem.worth(choice) >= good:
        return choice
    if len(problem.there) == 1 and problem.value.size * int(problem.there[0]) <= _COUNTED:
        return _counted(problem)
    other = np.full(len(choice), -1, dtype=np.int64)
    _improve(problem, other, good)
    return other if problem.worth(other) > problem.worth(choice) else choice


# Jobs × offers × GPUs that are counted through in about a millisecond: 30 jobs of 7 offers on 512 GPUs.
_COUNTED = 120_000


def _counted(problem: Problem) -> Ints:
    """The exact best for one kind of GPUs, by dynamic programming over how many are given."""
    there = int(problem.there[0])
    jobs, offers = problem.value.shape
    most = np.zeros(there + 1)
    taken = np.full((jobs, there + 1), -1, dtype=np.int64)
    for row in range(jobs):
        before = most
        most = before.copy()
        for offer in range(offers):
            gpus, value = int(problem.gpus[row, offer]), float(problem.value[row, offer])
            if value <= 0.0 or gpus > there:
                continue
            with_it = before[: there + 1 - gpus] + value
            better = with_it > most[gpus:]
            most[gpus:][better] = with_it[better]
            taken[row, gpus:][better] = offer
    choice = np.full(jobs, -1, dtype=np.int64)
    left = there
    for row in range(jobs - 1, -1, -1):
        choice[row] = taken[row, left]
        if choice[row] >= 0:
            left -= int(problem.gpus[row, choice[row]])
    return choice


def _improve(problem: Problem, choice: Ints, good: float) -> None:
    """Fill, and exchange, until the sum is as good as wanted or nothing simple is better."""
    _fill(problem, choice)
    for _ in range(_EXCHANGES):
        if problem.worth(choice) >= good or not _exchange(problem, choice):
            return
        _fill(problem, choice)


def _shed(problem: Problem, choice: Ints) -> None:
    """While a kind has too few GPUs, let the step down happen that loses least for each GPU that it frees."""
    left = problem.there - problem.used(choice)
    while (left < 0).any():
        short = int(np.flatnonzero(left < 0)[0])
        rows = np.flatnonzero((choice >= 0) & (problem.kind[np.arange(len(choice)), choice] == short))
        now, held = problem.value[rows, choice[rows]], problem.gpus[rows, choice[rows]]
        # Down to fewer GPUs of the same kind, to another kind that has room, or to none (the last column).
        fits = (problem.kind[rows] == short) & (problem.gpus[rows] < held[:, None])
        fits |= (problem.kind[rows] != short) & (problem.gpus[rows] <= left[problem.kind[rows]])
        freed = np.where(problem.kind[rows] == short, held[:, None] - problem.gpus[rows], held[:, None])
        loss = np.where(fits, (now[:, None] - problem.value[rows]) / np.maximum(freed, 1), np.inf)
        loss = np.column_stack([loss, now / held])
        row, offer = divmod(int(loss.argmin()), loss.shape[1])
        choice[rows[row]] = offer if offer < problem.value.shape[1] else -1
        left = problem.there - problem.used(choice)


def fill_nodes(problem: Problem, choice: Ints, per_node: Ints, worth: Floats) -> None:
    """Give away GPUs that are left over in nodes in use: each is worth ``worth`` more (by kind) than the values say, as
    the host and the idle GPU are paid for."""
    _fill(problem, choice, per_node, worth)


def _fill(problem: Problem, choice: Ints, per_node: Ints | None = None, worth: Floats | None = None) -> None:
    """Give what is left to the step up that gains most for each GPU, until none fits or gains."""
    every = np.arange(len(choice))
    used = problem.used(choice)
    while True:
        left = problem.there - used
        if per_node is not None:
            left = np.minimum(left, -used % per_node)
        if not left.any():
            return
        running = choice >= 0
        now = np.where(running, problem.value[every, choice], 0.0)
        held = np.where(running, problem.gpus[every, choice], 0)
        own = np.where(running, problem.kind[every, choice], -1)
        more = problem.gpus - np.where(problem.kind == own[:, None], held[:, None], 0)
        gain = problem.value - now[:, None]
        if worth is not None:
            # Not from one kind to another: each would gain by the other's leftovers, in turn for ever.
            stays = (problem.kind == own[:, None]) | ~running[:, None]
            gain = np.where(stays & (more > 0), gain + worth[problem.kind] * more, 0.0)
        rate = np.where((gain > 1e-12) & (more <= left[problem.kind]), gain / np.maximum(more, 1e-3), 0.0)
        row, offer = divmod(int(rate.argmax()), rate.shape[1])
        if rate[row, offer] <= 0.0:
            return
        if running[row]:
            used[own[row]] -= held[row]
        choice[row] = offer
        used[problem.kind[row, offer]] += problem.gpus[row, offer]


def _exchange(problem: Problem, choice: Ints) -> bool:
    """Let one job step up to an offer for which another must step down, where the sum gains most; whether any does."""
    every = np.arange(len(choice))
    running = choice >= 0
    now = np.where(running, problem.value[every, choice], 0.0)
    held = np.where(running, problem.gpus[every, choice], 0)
    own = np.where(running, problem.kind[every, choice], -1)
    left = problem.there - problem.used(choice)
    gain = problem.value - now[:, None]
    more = problem.gpus - np.where(problem.kind == own[:, None], held[:, None], 0)
    best, change = 1e-9 * (1.0 + abs(float(now.sum()))), None
    for kind in range(len(left)):
        here = problem.kind == kind
        up_row, up_offer = np.nonzero(here & (gain > 0) & (more > left[kind]) & (problem.gpus <= problem.there[kind]))
        mine = own == kind
        if not len(up_row) or not mine.any():
            continue
        # Down: to fewer GPUs of this kind, to another kind that has room, or to none.
        away = ~here & (problem.gpus <= left[problem.kind])
        down_row, down_offer = np.nonzero(mine[:, None] & ((here & (more < 0)) | away))
        stop = np.flatnonzero(mine)
        rows = np.concatenate([down_row, stop])
        offers = np.concatenate([down_offer, np.full(len(stop), -1)])
        freed = np.where(here, -more, held[:, None])[down_row, down_offer]
        freed = np.concatenate([freed, held[stop]])
        loss = np.concatenate([-gain[down_row, down_offer], now[stop]])
        for need in np.unique(more[up_row, up_offer]):
            ups = np.flatnonzero(more[up_row, up_offer] == need)
            ups = ups[np.argsort(-gain[up_row[ups], up_offer[ups]], kind="stable")[:2]]
            downs = np.flatnonzero(freed >= need - left[kind])
            downs = downs[np.argsort(loss[downs], kind="stable")[:8]]
            for up in ups:
                for down in downs:
                    net = float(gain[up_row[up], up_offer[up]] - loss[down])
                    if net > best and rows[down] != up_row[up]:
                        best, change = net, (int(up_row[up]), int(up_offer[up]), int(rows[down]), int(offers[down]))
    if change is None:
        return False
    choice[change[2]] = change[3]
    choice[change[0]] = change[1]
    return True
