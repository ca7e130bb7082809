"""Ours: every scarce thing has a price, and each job takes what serves it best at these prices.

What it is: average completion time falls fastest when GPUs, joules and watts go where they save most job-seconds. A
second of job j's completion time is worth its weight; a GPU for a second costs others ``gpu_s`` job-seconds, a joule
``joule_s``. So job j costs, from now to its end,

    C_j = min over its ways of (weight_j + end_j·gpu_s·gpus + joule_s·power_w) · (seconds of all its work that way)

and a second of running it one way is worth C_j · (share of its work done) − joule_s·power_w, and waiting nothing. The
sum of these values is made highest within the GPUs there are (``priced_market``); the GPU price that clears this market
is gpu_s itself, found together with C_j. Sizes enter through end_j, the price of a GPU at the end of j's life as part
of now's: when j ends, those that are shorter are gone. With k of N jobs at least as long as j, that part is k/N (for
speed-ups n^p and no arrivals this grows with k as the exact solution does, heSRPT by Berg, Vesilo and Harchol-Balter),
of which ``standing`` never goes away, because new jobs keep coming. So a short job is worth more than a long one.

A change of GPU count must pay for its restart (``Terms.patience``); one that makes room for a job that has never run
may do so by the time that this one does not wait (``_let_in``). A joule counts with the host's share of a slot, for
a node that empties can be off; GPUs that idle in a node in use cost their own watts alone. ``Budget.energy_j`` raises
joule_s until what the jobs will draw to their ends fits (with the least for those who wait, where that fits at all);
``Budget.power_w`` adds a price of a watt for now. The form and its few numbers were chosen on made-up jobs
(``bench.cluster_made``). What it is not: where the GPUs are (``placement``), or how a round's budget comes about
(``purse``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.priced_market import fill_nodes, prices, settle
from joulewise.cluster.allocators.priced_menu import Bools, Card, Floats, Ints, card, menu
from joulewise.cluster.allocators.priced_worth import Terms, Worth
from joulewise.cluster.milp import Limit, best
from joulewise.cluster.state import Allocation, Allocator, Budget, Prices, Snapshot, Way

__all__ = ["Choice", "Decision", "Terms", "priced"]


def priced(terms: Terms | None = None) -> Allocator:
    """The allocator."""
    used = Terms() if terms is None else terms
    known: ByWays[Card | None] = ByWays(card)

    def allocate(snapshot: Snapshot, budget: Budget) -> Allocation:
        there = menu(snapshot.jobs, snapshot.kinds, known)
        if there is None:
            return Allocation({}, Prices({kind.name: 0.0 for kind in snapshot.kinds}, budget.joule_s), 0.0)
        return Decision(snapshot, budget, Worth(snapshot, there, used), used).allocation()

    return allocate


@dataclass(frozen=True, slots=True)
class Choice:
    """Offers and settings by job (offer -1: it waits), and the prices and the gap that they come from."""

    offer: Ints
    setting: Ints
    gpu_s: Floats
    joule_s: float
    watt_s: float
    gap: float
    again_in_s: float | None = None
    """When this choice would be another though nothing happens; None: never."""


# The price of a joule or a watt is sought around that at which the power of a job's smallest offer costs it as much as
# its time does (median job): from a ten-thousandth of it to where nobody spends a joule more than the least.
_LOWEST, _HIGHEST = 1e-4, 1e6
# 18 halvings of ln(10¹⁰) leave the price within 0.01 %.
_HALVINGS = 18
# What a limit leaves over after that is little: a few passes of a hundred tries use it up.
_PASSES, _TRIES = 4, 100


class Decision:
    """One snapshot, one budget."""

    def __init__(self, snapshot: Snapshot, budget: Budget, worth: Worth, terms: Terms) -> None:
        self._snapshot = snapshot
        self._budget = budget
        self._worth = worth
        self._terms = terms
        self._menu = worth.menu
        self._rows = np.arange(len(self._menu.jobs))
        kinds = snapshot.kinds
        self._per_node = np.array([kind.gpus_per_node for kind in kinds], dtype=np.int64)
        self._rebate_w = np.array([(kind.empty_node_w - kind.off_w) / kind.gpus_per_node for kind in kinds])
        self._off_w = float(sum(kind.nodes * kind.off_w for kind in kinds))
        if budget.energy_j is not None:
            self._energy_j = self._menu.energy_j
            least_j = self._energy_j.min(axis=(1, 2))
            # Those who wait will need their least as well; where not even that fits, only what runs is counted.
            self._kept_j = least_j if least_j.sum() <= budget.energy_j else np.zeros(len(least_j))

    def allocation(self) -> Allocation:
        """What to do."""
        choice = self.choice()
        names = [kind.name for kind in self._snapshot.kinds]
        gpu_s = {name: float(price) for name, price in zip(names, choice.gpu_s, strict=True)}
        again_s = None if choice.again_in_s is None else self._snapshot.now_s + choice.again_in_s
        return Allocation(self._ways(choice), Prices(gpu_s, choice.joule_s, choice.watt_s), choice.gap, again_s=again_s)

    def choice(self) -> Choice:
        """The market at the lowest prices of energy that keep the budget."""
        choice = self._at(self._budget.joule_s, 0.0)
        if self._too_many_joules(choice):
            choice = self._dearer(choice, joules=True)
        if self._too_many_watts(choice):
            choice = self._dearer(choice, joules=False)
        if choice.joule_s > self._budget.joule_s or choice.watt_s > 0:
            choice = self._topped_up(choice)
            choice = replace(choice, gap=self._gap(choice))
        choice = self._let_in(choice)
        if self._terms.polish_s > 0 and choice.gap > self._terms.enough:
            choice = self._polished(choice)
        return choice

    def values(self, choice: Choice) -> Floats:
        """Of every offer at every setting, at a choice's price of a joule: jobs × offers × settings."""
        worth = self._worth
        expected = worth.expected(choice.joule_s)
        cost_s = worth.cost_s(expected, choice.joule_s)
        return worth.values(cost_s, choice.joule_s) - worth.changes(expected, choice.joule_s)[:, :, None]

    def worth(self, choice: Choice, value: Floats) -> float:
        """The sum of a choice's values."""
        return float(np.where(choice.offer >= 0, value[self._rows, choice.offer, choice.setting], 0.0).sum())

    def _gap(self, choice: Choice) -> float:
        """How far a choice within a budget is at most from the best, by weak duality at its own prices."""
        menu, value = self._menu, self.values(choice)
        net = value - choice.watt_s * menu.power_w - (choice.gpu_s[menu.kind] * menu.gpus)[:, :, None]
        bound = float(np.maximum(net.max(axis=(1, 2)), 0.0).sum() + choice.gpu_s @ menu.there)
        if choice.watt_s > 0 and self._budget.power_w is not None:
            bound += choice.watt_s * max(0.0, self._budget.power_w - self._off_w)
        return max(0.0, bound - self.worth(choice, value)) / bound if bound > 0 else 0.0

    def exact(self, choice: Choice, value: Floats, limit_s: float) -> tuple[Choice, float]:
        """The best choice for these values within GPUs and budget, by HiGHS, and a bound on any choice's worth. Watts
        are those of jobs and their slots: with partly filled nodes it may be above the cap."""
        menu = self._menu
        shape = (len(self._rows), -1)
        limits = [
            Limit(
                np.where(menu.kind == number, menu.gpus, 0)[:, :, None].repeat(value.shape[2], 2).reshape(shape), there
            )
            for number, there in enumerate(menu.there.tolist())
        ]
        if self._budget.energy_j is not None:
            more_j = self._energy_j - self._kept_j[:, None, None]
            limits.append(Limit(more_j.reshape(shape), self._budget.energy_j - float(self._kept_j.sum())))
        if self._budget.power_w is not None:
            limits.append(Limit(menu.power_w.reshape(shape), self._budget.power_w - self._off_w))
        found = best(value.reshape(shape), limits, gap=1e-4, limit_s=limit_s)
        offer, setting = np.divmod(found.choice, value.shape[2])
        return replace(choice, offer=np.where(found.choice < 0, -1, offer), setting=setting), found.bound

    def _polished(self, choice: Choice) -> Choice:
        """The exact choice where HiGHS finds a better one in time that keeps the budget; its bound in any case."""
        value = self.values(choice)
        exact, bound = self.exact(choice, value, self._terms.polish_s)
        worth = self.worth(choice, value)
        if not (self._too_many_joules(exact) or self._too_many_watts(exact)) and self.worth(exact, value) > worth:
            choice, worth = exact, self.worth(exact, value)
        return replace(choice, gap=min(choice.gap, max(0.0, bound - worth) / bound if bound > 0 else 0.0))

    def _let_in(self, choice: Choice) -> Choice:
        """Others shrink for jobs that have never run, once that is sure to have been worth the restarts.

        Values are by the second: one that runs for seconds never pays for a restart, and would wait for as long as all
        others run. So it is let in when the job-seconds that such ones have waited so far, or half of those that they
        would still wait until somebody ends, are as many as those lost by the restarts. The first is never more than
        twice what foresight would lose; the half is for those who shrink and want to grow again.
        """
        worth = self._worth
        shut_out = (choice.offer < 0) & worth.fresh()
        if not shut_out.any() or not (worth.held >= 0).any():
            return choice
        tried = self._at(choice.joule_s, choice.watt_s, let_in=shut_out)
        shut_out &= tried.offer >= 0
        if not shut_out.any() or self._too_many_joules(tried) or self._too_many_watts(tried):
            return choice
        weight, lost_s = float(worth.weight[shut_out].sum()), worth.restarts_s(tried.offer)
        left_s = lost_s - float(worth.waited_s()[shut_out].sum())
        if left_s <= 0 or weight * worth.spared_s() >= lost_s:
            return tried
        return replace(choice, again_in_s=left_s / weight)

    def _at(self, joule_s: float, watt_s: float, *, changes: bool = True, let_in: Bools | None = None) -> Choice:
        """The market at given prices of energy; without the costs of changes, or so that those in ``let_in`` get in
        where others may shrink for nothing."""
        worth = self._worth
        expected = worth.expected(joule_s)
        cost_s = worth.cost_s(expected, joule_s)
        paid = worth.changes(expected, joule_s) if changes else None
        if let_in is not None and paid is not None:
            paid = worth.let_in(paid, let_in)
        problem, settings = worth.problem(cost_s, joule_s + watt_s, paid)
        gpu_s = prices(problem)
        offer = settle(problem, gpu_s, enough=self._terms.enough)
        bound = problem.bound(gpu_s)
        gap = max(0.0, bound - problem.worth(offer)) / bound if bound > 0 else 0.0
        if self._terms.fill and joule_s + watt_s > 0:
            fill_nodes(problem, offer, self._per_node, (joule_s + watt_s) * self._rebate_w)
        return Choice(offer, settings[self._rows, offer], gpu_s, joule_s, watt_s, gap)

    def _dearer(self, choice: Choice, *, joules: bool) -> Choice:
        """The lowest price of a joule (or of a watt) at which the choice is within its limit."""
        wrong = self._too_many_joules if joules else self._too_many_watts
        usual = float(np.median(self._worth.weight / self._menu.power_w[:, 0, -1]))
        low, high = np.log(usual * _LOWEST), np.log(usual * _HIGHEST)
        start = choice.joule_s if joules else choice.watt_s
        if start > 0:
            low = max(low, np.log(start))
        found: Choice | None = None
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            price = float(np.exp(middle))
            tried = self._at(price, choice.watt_s) if joules else self._at(choice.joule_s, price)
            if wrong(tried):
                low = middle
            else:
                found, high = tried, middle
        if found is None:  # what jobs hold may be too dear to keep: without the cost of changes, then with fewer jobs
            price = float(np.exp(high))
            found = self._at(price, 0.0, changes=False) if joules else self._at(choice.joule_s, price, changes=False)
            found = self._shed(found)
        return found

    def _shed(self, choice: Choice) -> Choice:
        """Jobs stop, those first that need most energy for their weight, until the choice is within its limits."""
        offer = choice.offer.copy()
        needs_j = (self._menu.power_w / self._menu.speed)[self._rows, offer, choice.setting] / self._worth.weight
        for row in np.argsort(-needs_j, kind="stable"):
            tried = replace(choice, offer=offer)
            if not (self._too_many_joules(tried) or self._too_many_watts(tried)):
                return tried
            offer = offer.copy()
            offer[row] = -1
        return replace(choice, offer=offer)

    def _topped_up(self, choice: Choice) -> Choice:
        """What the limits leave over goes to the steps that gain most for a joule (or for a watt)."""
        value = self.values(choice)
        scarce = self._menu.power_w if choice.watt_s > 0 else self._energy_j
        for _ in range(_PASSES):
            better = self._steps(choice, value, scarce)
            if better is None:
                break
            choice = better
        return choice

    def _steps(self, choice: Choice, value: Floats, scarce: Floats) -> Choice | None:
        """One step up at most for each job, the best for what is scarce first; None where none gains and fits."""
        menu, rows = self._menu, self._rows
        runs = choice.offer >= 0
        held = np.where(runs, menu.gpus[rows, choice.offer], 0)
        now, spent, watts = (
            np.where(runs, each[rows, choice.offer, choice.setting], 0.0) for each in (value, scarce, menu.power_w)
        )
        gain = value - now[:, None, None]
        more = menu.gpus - np.where(menu.kind == menu.kind[rows, choice.offer][:, None], held[:, None], 0)
        left = menu.there - self._used(choice)
        # What surely does not fit is left out at once: a GPU in a node that is on adds its own watts alone.
        likely = (gain > 1e-12) & (more <= left[menu.kind])[:, :, None]
        if self._budget.power_w is not None:
            adds_w = menu.power_w - watts[:, None, None] - (self._rebate_w[menu.kind] * np.maximum(more, 0))[:, :, None]
            likely &= adds_w <= self._budget.power_w - self._watts(choice)
        at = np.flatnonzero(likely)
        rate = gain.ravel()[at] / np.maximum((scarce - spent[:, None, None]).ravel()[at], 1e-9 * scarce.ravel()[at])
        stepped: set[int] = set()
        for index in at[np.argsort(-rate, kind="stable")[:_TRIES]]:
            row, offer, setting = (int(each) for each in np.unravel_index(index, value.shape))
            if row in stepped:
                continue
            tried = replace(choice, offer=choice.offer.copy(), setting=choice.setting.copy())
            tried.offer[row], tried.setting[row] = offer, setting
            if not (
                (self._used(tried) > menu.there).any() or self._too_many_joules(tried) or self._too_many_watts(tried)
            ):
                stepped.add(row)
                choice = tried
        return choice if stepped else None

    def _used(self, choice: Choice) -> Ints:
        rows = np.flatnonzero(choice.offer >= 0)
        at = choice.offer[rows]
        used = np.bincount(self._menu.kind[rows, at], self._menu.gpus[rows, at], minlength=len(self._menu.there))
        return used.astype(np.int64)

    def _too_many_joules(self, choice: Choice) -> bool:
        if self._budget.energy_j is None:
            return False
        runs = choice.offer >= 0
        needed = np.where(runs, self._energy_j[self._rows, choice.offer, choice.setting], self._kept_j)
        return float(needed.sum()) > self._budget.energy_j

    def _too_many_watts(self, choice: Choice) -> bool:
        if self._budget.power_w is None or not (choice.offer >= 0).any():
            return False
        return self._watts(choice) > self._budget.power_w

    def _watts(self, choice: Choice) -> float:
        """What the cluster draws (``state.cluster_power_w``): slots as if all nodes were full, and what the last node
        of each kind draws for GPUs that idle there."""
        runs = choice.offer >= 0
        jobs_w = np.where(runs, self._menu.power_w[self._rows, choice.offer, choice.setting], 0.0).sum()
        idle_w = (-self._used(choice) % self._per_node) @ self._rebate_w
        return float(jobs_w + idle_w) + self._off_w

    def _ways(self, choice: Choice) -> dict[str, Way]:
        return {
            self._menu.jobs[row].name: self._menu.way(int(row), int(choice.offer[row]), int(choice.setting[row]))
            for row in np.flatnonzero(choice.offer >= 0)
        }
