"""A cluster's watts under its cap: what nodes need, what cannot be moved, and what is declared to the agents.

What it is: the cap in force, and two things made from it: the power that a round may plan with, and the ceilings that
hold whatever jobs do. ``limit`` is quick and has a lock of its own: an operator's word reaches the agents without
waiting for a pass.
What it is not: the words themselves (``limits``) or the budget of a round (``purse``).
"""

from __future__ import annotations

import math
import threading

from joulewise.cluster.ceilings import Need, ceilings
from joulewise.cluster.declared import Report, Share
from joulewise.cluster.engine import DONE, JobSeen
from joulewise.cluster.limits import Limits
from joulewise.cluster.purse import Purse
from joulewise.cluster.queue import Kept
from joulewise.cluster.scheduler_acts import HOLDS
from joulewise.cluster.scheduler_power import most_w, needs
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_track import JobRun
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.core.event import Limited
from joulewise.core.units import format_power

# Sensors disagree by so much; what lasts for fewer reports than this is a change on its way.
_TOLERATED, _OVER_PERIODS = 1.01, 8.0
# What had to be given up because nothing else helped is not tried again for so long.
_DEARER_S = 600.0


class Watts:
    """``sleeps``: whether nodes are switched off, so that an idle cluster draws only what sleep does. ``watch_s``: how
    long a pass may wait; the lowest cap until then counts."""

    def __init__(self, sight: Sight, limits: Limits, purse: Purse | None, *, sleeps: bool, watch_s: float) -> None:
        self._sight = sight
        self.limits = limits
        self.purse = purse
        self.sleeps = sleeps
        self._watch_s = watch_s
        self.lock = threading.RLock()
        self.cap_w: float | None = None
        self.needs: dict[str, Need] = {}
        self.uncontrolled_w = 0.0
        self._used: frozenset[str] = frozenset()
        self._over_s: float | None = None
        self._dearer = 1.0
        """How many times what is believed jobs were seen to draw though nothing was on its way."""
        self._dearer_until_s = -math.inf

    def led(self, now_s: float) -> None:
        """The limits as the book has them, and the budget's period where another scheduler left it."""
        for event in self._sight.book.limits:
            self.limits.hear(event)
        limit = self.limits.at(now_s)
        self.cap_w = limit.cap_w
        if self.purse is not None:
            self.purse.rebudget(limit.energy_j, limit.period_s)
            self.purse.resume(self._sight.book.purse)

    def idle(self) -> None:
        """Tell the limits what the cluster draws with nothing to do, now that nodes have been seen."""
        there = [node for node in self._sight.nodes if node.kind in self._sight.kinds and node.state != "down"]
        kinds = [self._sight.kinds[node.kind] for node in there]
        self.limits.idle_w = sum(kind.off_w if self.sleeps else kind.empty_node_w for kind in kinds)

    def watch(self, now_s: float) -> bool:
        """Look at the feed and at the clock; whether the cap fell."""
        with self.lock:
            try:
                for event in self.limits.poll(now_s):
                    self.limited(event)
                self._sight.faults.pop("feed", None)
            except BadSpec as fault:
                self._sight.faults["feed"] = str(fault)
            before_w = math.inf if self.cap_w is None else self.cap_w
            limit = self.limits.at(now_s)
            cap_w = self.limits.lowest_w(now_s, now_s + self._watch_s)
            self.cap_w = cap_w
            now_w = math.inf if cap_w is None else cap_w
            purse = self.purse
            if purse is not None and (purse.energy_j, purse.period_s) != (limit.energy_j, limit.period_s):
                purse.rebudget(limit.energy_j, limit.period_s)
                self._sight.call(now_s)
            if now_w != before_w:
                self._over_s = None
                self._sight.call(now_s)
            self._watch_excess(now_s)
            return now_w < before_w

    def _watch_excess(self, now_s: float) -> None:
        """If the nodes go on drawing more than the cap (clocks refused, ceilings that cannot be kept), plan with less:
        fewer jobs are the last thing that helps."""
        agents = self._sight.agents
        if now_s > self._dearer_until_s:
            self._dearer = 1.0
        if agents is None or self.cap_w is None:
            self._over_s, self._dearer = None, 1.0
            return
        told = [report for node in self.needs if (report := agents.latest(node)) is not None and agents.heard(node)]
        if len(told) < len(self.needs):
            self._over_s = None  # silent ones are counted with their most already
            return
        drawn_w = self.uncontrolled_w
        for report in told:
            said_w = self.credible_w(report)
            drawn_w += self.needs[report.node].believed_w if said_w is None else said_w
        if drawn_w <= _TOLERATED * self.cap_w:
            self._over_s = None
        elif self._over_s is None:
            self._over_s = now_s
        elif now_s - self._over_s > _OVER_PERIODS * agents.period_s:
            idle_w = self.limits.idle_w
            believed_w = sum(need.believed_w for need in self.needs.values()) + self.uncontrolled_w
            self._dearer = max(self._dearer, (drawn_w - idle_w) / max(1.0, believed_w - idle_w))
            self._dearer_until_s = now_s + _DEARER_S
            self._over_s = None
            self._sight.faults["cap"] = (
                f"the nodes draw {format_power(drawn_w)}, above the cap of {format_power(self.cap_w)}, though clocks "
                "were lowered; jobs are stopped until it is kept"
            )
            self._sight.call(now_s)
        if self._dearer <= 1.0:
            self._sight.faults.pop("cap", None)

    def credible_w(self, report: Report) -> float | None:
        """What a node says that it draws, as far as it can: one wrong sensor must not stop everybody's jobs. None: it
        does not say."""
        if report.power_w is None:
            return None
        node = next((each for each in self._sight.nodes if each.name == report.node), None)
        kind = None if node is None else self._sight.kinds.get(node.kind)
        if node is None or kind is None or node.kind not in self._sight.most_gpu_w:
            return report.power_w
        return min(report.power_w, most_w(node, kind, self._sight.most_gpu_w[node.kind]))

    def limited(self, event: Limited) -> None:
        """A word on the limits: written down, then heard."""
        self._sight.book.append(event)
        self.limits.hear(event)

    def limit(self, now_s: float) -> None:
        """Ceilings for the cap that holds now, from what nodes are believed to need."""
        agents = self._sight.agents
        if agents is None:
            return
        with self.lock:
            cap_w = self.limits.lowest_w(now_s, now_s + self._watch_s)
            if cap_w is None:
                agents.limit({}, room_w=None)
                return
            most = {node: need.most_w for node, need in self.needs.items()}
            room_w = max(0.0, cap_w - self.uncontrolled_w)
            heard = {node: need for node, need in self.needs.items() if node not in self._sight.silent}
            silent_w = sum(most[node] for node in self._sight.silent if node in most)
            given = ceilings(max(0.0, room_w - silent_w), heard)
            for node in self._sight.silent:
                if node in most:  # if it comes back, it begins low
                    given[node] = self.needs[node].least_w
            agents.limit(given, room_w=room_w, most_w=most)

    def allowed_w(self) -> float:
        """What the round may believe to draw: the cap less what no decision moves, never below idle."""
        assert self.cap_w is not None
        extra_w = 0.0
        for node in self._sight.nodes:
            kind = self._sight.kinds.get(node.kind)
            if kind is None:
                continue
            gpu_w = self._sight.most_gpu_w.get(node.kind, 0.0)
            if node.name in self._sight.silent and node.name not in self._sight.fresh and node.state != "off":
                # A round counts those with jobs on them, as believed, and leaves the others out.
                counted = node.state == "up" and node.name in self._used and node.name in self.needs
                extra_w += most_w(node, kind, gpu_w) - (self.needs[node.name].believed_w if counted else 0.0)
            elif node.state == "down":
                extra_w += kind.empty_node_w if self._sight.agents is not None else 0.0
            else:
                extra_w += node.foreign_gpus * max(0.0, gpu_w - kind.idle_gpu_w)
        idle_w = self.limits.idle_w
        return idle_w + max(0.0, self.cap_w - extra_w - idle_w) / self._dearer

    def declare(self, now_s: float) -> None:
        """Needs of all nodes, ceilings, and the settings of everybody who holds GPUs or will."""
        held: dict[str, tuple[JobRun, ...]] = {}
        frugal: dict[str, Way] = {}
        shares: dict[str, list[Share]] = {node.name: [] for node in self._sight.nodes}
        for name, kept in self._sight.book.jobs.items():
            seen = self._sight.seen.get(name)
            if kept.over or seen is None or seen.state in DONE:
                continue
            runs = _present(kept, seen)
            if not runs:
                continue
            held[name] = tuple(run for _, run in runs)
            ways = self._sight.track(kept).belief.ways()
            for number, (version, run) in enumerate(runs):
                assert run.way is not None
                same = [way for way in ways if way.gpus == run.way.gpus and way.kind == run.way.kind]
                if same and number == 0:
                    frugal[name] = min(same, key=lambda way: way.power_w)
                for on in run.place:
                    mine = shares.setdefault(on, [])
                    if all(share.id != kept.id for share in mine):
                        mine.append(Share(name, kept.id, run.way.setting, version))
        with self.lock:
            self._used = frozenset(on for on, mine in shares.items() if mine)
            self.needs = needs(
                [
                    n
                    for n in self._sight.nodes
                    if n.state == "up" or (n.state == "down" and self._sight.agents is not None)
                ],
                self._sight.kinds,
                self._sight.most_gpu_w,
                held,
                frugal,
            )
            self.uncontrolled_w = 0.0
            for node in self._sight.nodes:
                kind = self._sight.kinds.get(node.kind)
                if kind is None:
                    continue
                if node.state == "off":
                    self.uncontrolled_w += kind.off_w
                elif node.name in self._sight.fresh or node.state == "booting":
                    self.uncontrolled_w += max(kind.boot_w, kind.empty_node_w)
                    # Strangers may be there before our agent is, and nothing of ours holds them down.
                    gpu_w = self._sight.most_gpu_w.get(node.kind, 0.0)
                    self.uncontrolled_w += node.foreign_gpus * max(0.0, gpu_w - kind.idle_gpu_w)
                    self.needs.pop(node.name, None)
            if self._sight.agents is None:
                return
            self._sight.step("before declare")
            self._sight.agents.declare_shares(shares)
            self.limit(now_s)
            self._sight.step("after declare")
        known = {kept.id for kept in self._sight.book.jobs.values()} | self._sight.book.former.keys()
        for node in self._sight.nodes:
            report = self._sight.agents.latest(node.name)
            if report is not None:
                self._sight.agents.forget(job.id for job in report.jobs if job.final and job.id not in known)


def _present(kept: Kept, seen: JobSeen) -> list[tuple[int, JobRun]]:
    """What a job is to have, and what it still holds until then, each with its version."""
    runs: list[tuple[int, JobRun]] = []
    aim, former = kept.aim, kept.former
    if aim is not None and aim.way is not None:
        runs.append((aim.version, JobRun(aim.way, dict(aim.place))))
    if seen.state in HOLDS and former is not None and former.way is not None:
        left = {node: gpus for node, gpus in seen.place.items() if aim is None or node not in aim.place}
        if left:
            runs.append((former.version, JobRun(former.way, left)))
    return runs
