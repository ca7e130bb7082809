"""What it is worth to run each job each way, in job-seconds a second, once joules have a price.

What it is: the values that ``priced`` hands to its market, by the formula in its docstring: weights (fairness in them),
the price of a GPU at the end of a job's life, the cost of a job from now to its end, the cost of changes, deadlines.
What it is not: a choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulewise.cluster.allocators.priced_market import Problem
from joulewise.cluster.allocators.priced_menu import Bools, Floats, Ints, Menu
from joulewise.cluster.state import Snapshot


@dataclass(frozen=True, slots=True)
class Terms:
    """What is a matter of taste or of the cluster, not of the jobs.

    ``standing``: the part of a GPU's price that jobs to come will hold up (0: no arrivals; 1: sizes do not matter).
    ``patience``: within how long a change of GPU count must have paid for itself, as a multiple of the jobs' harmonic
    mean time left: where short jobs come and go, prices change soon.
    ``fairness``: 0 minimises the mean completion time; above it a job's weight grows with this power of its finish-time
    ratio (time since submission to the end, over the time alone on what it asked for), which shortens the worst ones.
    ``deadline``: ways that meet a job's deadline are worth up to so many times more to it, the more the nearer it is,
    while it can be met; 0: deadlines do not matter.
    ``fill``: GPUs left over in nodes that are in use anyway are given away for the watts alone that they add.
    ``enough``: the gap below which a decision is not improved further. ``polish_s``: seconds that HiGHS may take to
    close it where it is wider; 0: never.
    """

    standing: float = 0.3
    patience: float = 2.0
    fairness: float = 0.0
    deadline: float = 4.0
    fill: bool = True
    enough: float = 0.002
    polish_s: float = 0.0


class Worth:
    """The jobs of a menu, valued."""

    def __init__(self, snapshot: Snapshot, menu: Menu, terms: Terms) -> None:
        self.menu = menu
        self._expected: tuple[float, Floats] | None = None
        self._snapshot = snapshot
        self._terms = terms
        jobs = menu.jobs
        # The fastest setting is the last: settings are sorted by watts, and dominated ones are gone.
        self._fast_s = 1.0 / menu.speed[:, :, -1]
        self.weight = np.array([job.weight for job in jobs])
        if terms.fairness:
            self.weight = self.weight * self._ratio() ** terms.fairness
        self.end = self._end()
        self.held = self._held()
        self._change_s = self._changes()
        self._urgent = self._deadlines()
        self._patience_s = terms.patience * len(jobs) / float((1.0 / self._fast_s.min(axis=1)).sum())

    def _ratio(self) -> Floats:
        """Finish-time ratios: the time from submission to the end, over that alone on what was asked for."""
        jobs, gpus = self.menu.jobs, self.menu.gpus
        asked = np.array([job.gpus_asked for job in jobs])
        at = np.abs(np.log(gpus / asked[:, None])).argmin(axis=1)
        alone_s = self._fast_s[np.arange(len(jobs)), at]
        had_s = np.array([job.attained_gpu_s for job in jobs]) / asked
        age_s = np.array([self._snapshot.now_s - job.submitted_s for job in jobs])
        ratio: Floats = np.maximum((age_s + alone_s) / (had_s + alone_s), 1.0)
        return ratio

    def _end(self) -> Floats:
        """What part of now's GPU price each job still meets at its end: its rank from the longest, a share."""
        left_s = self._fast_s.min(axis=1) / self.weight
        rank = np.empty(len(left_s))
        rank[np.argsort(-left_s, kind="stable")] = np.arange(1, len(left_s) + 1)
        return self._terms.standing + (1.0 - self._terms.standing) * rank / len(left_s)

    def _held(self) -> Ints:
        """The offer each job runs on now, -1 for none."""
        held = np.full(len(self.menu.jobs), -1, dtype=np.int64)
        names = {kind.name: number for number, kind in enumerate(self._snapshot.kinds)}
        for row, job in enumerate(self.menu.jobs):
            if job.way is not None and job.way.kind in names:
                offers = self.menu.cards[row].offers
                same = np.flatnonzero((offers[0] == job.way.gpus) & (offers[1] == names[job.way.kind]))
                if len(same):
                    held[row] = same[0]
        return held

    def _changes(self) -> Floats:
        """Seconds of work that each offer would cost in changes; the offer held costs none."""
        costs, gpus = self._snapshot.costs, self.menu.gpus
        most = int(gpus.max())
        table = np.array(
            [[costs.of(max(count, 1), again=again) for count in range(most + 1)] for again in (False, True)]
        )
        again = np.array([int(job.restarts > 0 or job.way is not None) for job in self.menu.jobs])
        change_s: Floats = table[again[:, None], gpus]
        runs = np.flatnonzero(self.held >= 0)
        same = gpus[runs] == gpus[runs, self.held[runs]][:, None]
        same &= self.menu.kind[runs] == self.menu.kind[runs, self.held[runs]][:, None]
        change_s[runs] = np.where(same, 0.0, change_s[runs])
        return change_s

    def _deadlines(self) -> Floats | None:
        """By what share ways that still meet a job's deadline are worth more; None where no job has one."""
        if all(job.deadline_s is None for job in self.menu.jobs):
            return None
        now_s = self._snapshot.now_s
        slack_s = np.array([np.inf if job.deadline_s is None else job.deadline_s - now_s for job in self.menu.jobs])
        left_s = 1.0 / self.menu.speed + self._change_s[:, :, None]
        least_s = left_s.min(axis=(1, 2))
        urgency = np.where((slack_s > 0) & (least_s <= slack_s), least_s / np.maximum(slack_s, 1e-9), 0.0)
        return np.where(left_s <= slack_s[:, None, None], self._terms.deadline * urgency[:, None, None], 0.0)

    def cost_s(self, gpu_s: Floats, joule_s: float) -> Floats:
        """What each job costs from now to its end, in job-seconds, with GPUs at ``gpu_s`` now (C of ``priced``)."""
        menu = self.menu
        slots = gpu_s[menu.kind] * menu.gpus * self.end[:, None] + self.weight[:, None]
        if joule_s == 0.0:
            cost_s: Floats = (slots * self._fast_s).min(axis=1)
        else:
            cost_s = ((slots[:, :, None] + joule_s * menu.power_w) / menu.speed).min(axis=(1, 2))
        return cost_s

    def values(self, cost_s: Floats, watt_s: float) -> Floats:
        """What a second in every way is worth, changes apart: jobs × offers × settings."""
        value = cost_s[:, None, None] * self.menu.speed
        if self._urgent is not None:
            value += value * self._urgent
        if watt_s:
            value -= watt_s * self.menu.power_w
        return value

    def problem(self, cost_s: Floats, watt_s: float, changes: Floats | None = None) -> tuple[Problem, Ints]:
        """Values of offers at their best settings, less what changes cost, and these settings; ``watt_s`` is the price
        of a watt for a second, by whatever makes it scarce."""
        menu = self.menu
        value = self.values(cost_s, watt_s)
        setting = value.argmax(axis=2)
        best = np.take_along_axis(value, setting[:, :, None], axis=2)[:, :, 0]
        if changes is not None:
            best = best - changes
        return Problem(best, menu.gpus, menu.kind, menu.there), setting

    def fresh(self) -> Bools:
        """Who has never run."""
        return np.array([job.way is None and not job.restarts and not job.attained_gpu_s for job in self.menu.jobs])

    def waited_s(self) -> Floats:
        """How long each job has waited for its first start, times its weight; 0 for any that has started."""
        age_s = np.array([self._snapshot.now_s - job.submitted_s for job in self.menu.jobs])
        return np.where(self.fresh(), np.maximum(age_s, 0.0) * self.weight, 0.0)

    def spared_s(self) -> float:
        """What one that is let in would else wait: half of the time until the first of those who run has ended."""
        rows = np.flatnonzero(self.held >= 0)
        return 0.5 * float(self._fast_s[rows, self.held[rows]].min())

    def restarts_s(self, offer: Ints) -> float:
        """Job-seconds that those lose who run now and would run otherwise."""
        rows = np.flatnonzero((self.held >= 0) & (offer >= 0))
        return float((self.weight[rows] * self._change_s[rows, offer[rows]]).sum())

    def let_in(self, paid: Floats, jobs: Bools) -> Floats:
        """The costs of changes where to fewer GPUs of the same kind costs nothing, and ``jobs`` gain besides what they
        would else wait (no more than a restart takes of what they have waited), spread over their own time."""
        menu = self.menu
        runs = np.flatnonzero(self.held >= 0)
        at = self.held[runs]
        fewer = (menu.gpus[runs] < menu.gpus[runs, at][:, None]) & (menu.kind[runs] == menu.kind[runs, at][:, None])
        free = paid.copy()
        free[runs] = np.where(fewer, paid[runs, at][:, None], paid[runs])
        restart_s = float(self._change_s[runs].max())
        gained_s = np.maximum(np.minimum(self.waited_s()[jobs], restart_s), self.weight[jobs] * self.spared_s())
        free[jobs] -= gained_s[:, None] / (self._fast_s[jobs] + self._change_s[jobs])
        return free

    def changes(self, gpu_s: Floats, joule_s: float) -> Floats:
        """What changes cost, spread over the time in which they must pay: jobs × offers.

        While a job starts it waits, and its GPUs idle. To stop a running one costs its next start: all its offers are
        worth so much more than waiting. One that waits must start some time, so for it a start never costs as much as
        running is worth, and no joules.
        """
        menu = self.menu
        within_s = np.minimum(self._fast_s, self._patience_s)
        slots = gpu_s[menu.kind] * menu.gpus
        start = (self.weight[:, None] + self.end[:, None] * slots) * self._change_s
        paid: Floats = start / (within_s + self._change_s)
        runs = np.flatnonzero(self.held >= 0)
        if len(runs):
            at = self.held[runs]
            idle_w = np.array([kind.idle_gpu_w + kind.slot_w for kind in self._snapshot.kinds])
            idle = joule_s * (idle_w[menu.kind[runs]] * menu.gpus[runs])
            rate = (self.weight[runs, None] + slots[runs] + idle) / within_s[runs]
            again = np.array([self._snapshot.costs.of(int(gpus), again=True) for gpus in menu.gpus[runs, at]])
            paid[runs] = rate * self._change_s[runs] - (rate[np.arange(len(runs)), at] * again)[:, None]
        return paid

    def expected(self, joule_s: float) -> Floats:
        """The GPU prices at which jobs, each choosing what is best to its end, want just what there is."""
        if self._expected is None or self._expected[0] != joule_s:
            self._expected = (joule_s, self._cleared(joule_s))
        return self._expected[1]

    def _cleared(self, joule_s: float) -> Floats:
        menu = self.menu
        gpu_s = np.zeros(len(menu.there))
        if (self._wanted(gpu_s, joule_s) <= menu.there).all():
            return gpu_s
        usual = self.weight.sum() / np.maximum(menu.there, 1)  # of a kind that others hold altogether nobody has any
        for _ in range(1 if len(gpu_s) == 1 else _SWEEPS):
            for kind in range(len(gpu_s)):
                gpu_s[kind] = 0.0
                if self._wanted(gpu_s, joule_s)[kind] <= menu.there[kind]:
                    continue
                low, high = np.log(usual[kind] * _CHEAP), np.log(usual[kind] * _DEAR)
                for _ in range(_HALVINGS):
                    gpu_s[kind] = np.exp(0.5 * (low + high))
                    if self._wanted(gpu_s, joule_s)[kind] > menu.there[kind]:
                        low = 0.5 * (low + high)
                    else:
                        high = 0.5 * (low + high)
                gpu_s[kind] = np.exp(high)
        return gpu_s

    def _wanted(self, gpu_s: Floats, joule_s: float) -> Ints:
        problem, _ = self.problem(self.cost_s(gpu_s, joule_s), joule_s)
        return problem.used(problem.chosen(gpu_s))


# A GPU's price against jobs per GPU: p/(1−p) for speed-ups n^p, so 0.1 at p = 0.1 and 100 at 0.99; with room around.
_CHEAP, _DEAR = 1e-3, 1e4
# 16 halvings of ln(10⁷) leave the price within 0.03 %; sweeps over several kinds settle within three.
_HALVINGS = 14
_SWEEPS = 3
