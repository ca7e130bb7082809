"""Why a job runs as it does, or waits: the prices of a decision, in words.

What it is: sentences made from a snapshot and the allocation that was decided for it. At its prices (job-seconds for a
GPU's second, for a joule, for a watt's second) the way a job has is compared with its neighbours: more GPUs, fewer, a
faster setting, a slower one. For an hour, or to its end if that is nearer, each would save so much by its end (its own
time, and what it then no longer needs of GPUs and joules: C of ``allocators.priced``) and cost the others so much now.
What it is not: a decision, or an account of energy (``outcome``). Where a policy sets no prices, times and energies
to the job's end are compared instead.
"""

from __future__ import annotations

from joulewise.cluster.allocators.by_ways import ByWays
from joulewise.cluster.allocators.priced_menu import card, menu
from joulewise.cluster.allocators.priced_worth import Terms, Worth
from joulewise.cluster.state import Allocation, Budget, Job, Kind, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_KWH

_HOUR_S = 3600.0


def explain(
    snapshot: Snapshot,
    budget: Budget,
    allocation: Allocation,
    job: str,
    *,
    terms: Terms | None = None,
    held_back: bool = False,
) -> str:
    """A few sentences about one job, result first. BadSpec for a job that the snapshot does not have.

    ``terms``: those of the policy, where they are not the usual ones. ``held_back``: what it was given is not carried
    out yet, since the nodes that are on have no room for it (see ``change``).
    """
    found = next((each for each in snapshot.jobs if each.name == job), None)
    if found is None:
        names = ", ".join(each.name for each in snapshot.jobs[:5]) or "none"
        raise BadSpec(f"no job here is called {job!r}; those there are: {names}{', …' * (len(snapshot.jobs) > 5)}")
    told = _Told(snapshot, allocation, found, Terms() if terms is None else terms)
    way = allocation.ways.get(job)
    sentences = (
        [told.waits()] if way is None else [told.held_back(way) if held_back else told.runs(way), *told.neighbours(way)]
    )
    sentences += [told.deadline(way), told.prices(), told.budget(budget)]
    if reason := allocation.reasons.get(job):
        sentences.append(reason)
    return " ".join(sentence for sentence in sentences if sentence)


class _Told:
    """One job at the prices of one allocation."""

    def __init__(self, snapshot: Snapshot, allocation: Allocation, job: Job, terms: Terms) -> None:
        self._snapshot = snapshot
        self._allocation = allocation
        self._job = job
        self._kinds: dict[str, Kind] = {kind.name: kind for kind in snapshot.kinds}
        prices = allocation.prices
        self._joule_s = prices.joule_s + prices.watt_s
        self._priced = bool(prices.gpu_s) or self._joule_s > 0
        self._cost_s = 0.0
        there = menu(snapshot.jobs, snapshot.kinds, ByWays(card)) if self._priced else None
        if there is not None and job in there.jobs:
            worth = Worth(snapshot, there, terms)
            costs_s = worth.cost_s(worth.expected(prices.joule_s), prices.joule_s)
            self._cost_s = float(costs_s[there.jobs.index(job)])

    def _left_s(self, way: Way) -> float:
        return self._job.work_left * way.unit_s

    def _power_w(self, way: Way) -> float:
        return way.power_w + way.gpus * self._kinds[way.kind].slot_w

    def _saved(self, way: Way) -> float:
        """What a second this way saves by its end."""
        return self._cost_s / self._left_s(way)

    def _taken(self, way: Way) -> float:
        """What a second this way costs the others."""
        return self._allocation.prices.gpu_s.get(way.kind, 0.0) * way.gpus + self._joule_s * self._power_w(way)

    def _fitting(self) -> list[Way]:
        return [way for way in self._job.ways if way.kind in self._kinds and way.gpus <= self._kinds[way.kind].gpus]

    def _best(self, ways: list[Way]) -> Way:
        """At these prices; where there are none, the fastest."""
        if not self._priced:
            return min(ways, key=lambda way: (way.unit_s, way.unit_j))
        return max(ways, key=lambda way: self._saved(way) - self._taken(way))

    def runs(self, way: Way) -> str:
        """How it runs, and until when."""
        return f"{self._job.name} runs on {self._to_its_end(way)}"

    def held_back(self, way: Way) -> str:
        """What it waits for, though it was given a way; how it runs until then."""
        name, was = self._job.name, self._job.way
        if was is None:
            return f"{name} waits for a node to boot. Then it runs on {self._to_its_end(way)}"
        now = f"{name} runs on {_gpus(was)}{_setting(was)}, as before, until another node is up or others make room."
        return f"{now} Then it runs on {self._to_its_end(way)}"

    def _to_its_end(self, way: Way) -> str:
        left_s = self._left_s(way)
        return f"{_gpus(way)}{_setting(way)}: {_time(left_s)} to its end, with {_energy(left_s * self._power_w(way))}."

    def waits(self) -> str:
        """Why it waits: what its best way would save it, and cost the others."""
        name, ways = self._job.name, self._fitting()
        if not ways:
            most = max((kind.gpus for kind in self._snapshot.kinds), default=0)
            least = min(way.gpus for way in self._job.ways)
            return f"{name} waits: it needs {least} GPUs, and no kind here that it can use has more than {most}."
        if self._job.weight <= 0:
            return f"{name} waits: its weight is 0, so nothing is given up for it."
        way = self._best(ways)
        if not self._priced:
            return f"{name} waits. On {_gpus(way)}{_setting(way)} it would take {_time(self._left_s(way))}."
        for_s, how_long = self._period(way)
        shorter = sum(1 for each in self._snapshot.jobs if _shortest_s(each) < _shortest_s(self._job))
        return (
            f"{name} waits. {_gpus(way)}{_setting(way)} {how_long} would save it {_time(self._saved(way) * for_s)} by "
            f"its end but cost the others {_time(self._taken(way) * for_s)}; {shorter} of {len(self._snapshot.jobs)} "
            "jobs are shorter."
        )

    def neighbours(self, way: Way) -> list[str]:
        """The ways next to its own: fewer and more GPUs, a faster and a slower setting."""
        same_kind = [each for each in self._fitting() if each.kind == way.kind]
        fewer = max((each.gpus for each in same_kind if each.gpus < way.gpus), default=None)
        more = min((each.gpus for each in same_kind if each.gpus > way.gpus), default=None)
        found = []
        for gpus in (fewer, more):
            if gpus is not None:
                best = self._best([each for each in same_kind if each.gpus == gpus])
                found.append(self._compared(way, best, f"{way.gpus} → {_gpus(best)}"))
        beside = [each for each in same_kind if each.gpus == way.gpus]
        faster = [each for each in beside if each.unit_s < way.unit_s]
        slower = [each for each in beside if each.unit_s > way.unit_s and each.power_w < way.power_w]
        if faster:
            found.append(self._retuned(way, max(faster, key=lambda each: each.unit_s)))
        if slower:
            found.append(self._retuned(way, min(slower, key=lambda each: each.unit_s)))
        return found

    def _retuned(self, way: Way, other: Way) -> str:
        return self._compared(way, other, f"Running{_setting(other) or ' with nothing set'}")

    def _period(self, way: Way) -> tuple[float, str]:
        left_s = self._left_s(way)
        return (_HOUR_S, "for an hour") if left_s > _HOUR_S else (left_s, f"for {_time(left_s)}")

    def _compared(self, way: Way, other: Way, what: str) -> str:
        if not self._priced:
            saved_s = self._left_s(way) - self._left_s(other)
            more_j = self._left_s(other) * self._power_w(other) - self._left_s(way) * self._power_w(way)
            own = f"save it {_time(saved_s)}" if saved_s >= 0 else f"take it {_time(-saved_s)} longer"
            return f"{what} would {own}, for {_energy(abs(more_j))} {'more' if more_j >= 0 else 'less'}."
        for_s, how_long = self._period(way)
        saved_s = (self._saved(other) - self._saved(way)) * for_s
        cost_s = (self._taken(other) - self._taken(way)) * for_s
        own = f"save it {_time(saved_s)} by its end" if saved_s >= 0 else f"cost it {_time(-saved_s)} by its end"
        others = f"cost the others {_time(cost_s)}" if cost_s >= 0 else f"spare the others {_time(-cost_s)}"
        return f"{what} {how_long} would {own} {'but' if (saved_s >= 0) == (cost_s >= 0) else 'and'} {others}."

    def deadline(self, way: Way | None) -> str:
        """Whether its deadline can be met, and is."""
        if self._job.deadline_s is None:
            return ""
        slack_s = self._job.deadline_s - self._snapshot.now_s
        if slack_s <= 0:
            return "Its deadline has passed."
        ways = self._fitting()
        if not ways or min(self._left_s(each) for each in ways) > slack_s:
            return f"Its deadline, in {_time(slack_s)}, cannot be met by any way it has."
        if way is None:
            return f"Its deadline is in {_time(slack_s)}."
        met = self._left_s(way) <= slack_s
        return f"Its deadline, in {_time(slack_s)}, {'is met so' if met else 'is missed if nothing changes'}."

    def prices(self) -> str:
        """The prices."""
        if not self._priced:
            return "This policy sets no prices."
        prices = self._allocation.prices
        several = len(self._kinds) > 1
        worth = [
            f"an hour of a GPU{f' of {name}' if several else ''} is worth {_time(price * _HOUR_S)}"
            for name, price in prices.gpu_s.items()
            if price > 0
        ]
        text = f"In a job's time {', '.join(worth)}" if worth else "GPUs are left over, so they have no price"
        text += (
            f"; a kWh is worth {_time(prices.joule_s * J_PER_KWH)}" if prices.joule_s > 0 else "; energy has no price"
        )
        if prices.watt_s > 0:
            text += f"; the power cap makes a kWh {_time(prices.watt_s * J_PER_KWH)} dearer"
        return f"{text}."

    def budget(self, budget: Budget) -> str:
        """What limits there are."""
        limits = []
        if budget.energy_j is not None:
            limits.append(f"{_energy(budget.energy_j)} for the jobs that are here")
        if budget.power_w is not None:
            limits.append(f"{budget.power_w / 1000.0:,.1f} kW for the cluster")
        return f"The budget is {' and '.join(limits)}." if limits else ""


def _shortest_s(job: Job) -> float:
    return job.work_left * min(way.unit_s for way in job.ways)


def _gpus(way: Way) -> str:
    return f"{way.gpus} GPU{'s' * (way.gpus != 1)}"


def _setting(way: Way) -> str:
    """The setting in words, with a blank before it; nothing where nothing is set."""
    parts = []
    if (mhz := way.setting.get("sm_mhz")) is not None:
        parts.append(f"at {mhz:,.0f} MHz")
    if (limit_w := way.setting.get("power_limit_w")) is not None:
        parts.append(f"limited to {limit_w:,.0f} W")
    if way.batch is not None:
        parts.append(f"with batch size {way.batch}")
    return "".join(f" {part}" for part in parts)


def _time(time_s: float) -> str:
    """A length of time at the grain at which people plan."""
    if time_s < 0.5:
        return "nothing"
    if time_s < 90:
        return f"{time_s:.0f} s"
    if time_s < 2 * _HOUR_S:
        return f"{time_s / 60.0:,.0f} min"
    if time_s < 3 * 24 * _HOUR_S:
        return f"{time_s / _HOUR_S:,.1f} h"
    return f"{time_s / (24 * _HOUR_S):,.1f} days"


def _energy(energy_j: float) -> str:
    kwh = energy_j / J_PER_KWH
    return f"{kwh:,.0f} kWh" if kwh >= 100 else f"{kwh:.2g} kWh"
