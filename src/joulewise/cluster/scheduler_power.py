"""Watts and joules of a cluster as its scheduler counts them: what nodes tell, what is believed, what must be feared.

What it is: three pure views (what a node is believed to draw after a decision, what it is counted with under a cap, the
room that ceilings share) and one meter. A node whose agent is silent counts with the most that it can draw, one that
sleeps with what sleep draws, one that boots with the boot. The meter is the sum of the nodes' own counters, which last
over restarts of agents; while a node is silent it is taken to draw what is believed, until its own counter tells (its
most would be taken for an error of the beliefs, and everybody would pay for that twice). No counter tells of sleep and
boot: they are counted as assumed, for good. What is no job's is counted beside it, from the same moment on.
What it is not: a limit (``limits``, ``purse``) or its sharing out (``ceilings``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from joulewise.cluster.ceilings import Need
from joulewise.cluster.declared import Report
from joulewise.cluster.engine import NodeSeen
from joulewise.cluster.scheduler_track import JobRun
from joulewise.cluster.state import Kind, Way

_DUST_J = 0.01


def most_w(node: NodeSeen, kind: Kind, gpu_w: float) -> float:
    """The most that a powered node can draw, with ``gpu_w`` for each GPU."""
    return kind.host_w + node.gpus * gpu_w


def needs(
    nodes: Collection[NodeSeen],
    kinds: Mapping[str, Kind],
    most_gpu_w: Mapping[str, float],
    runs: Mapping[str, tuple[JobRun, ...]],
    frugal: Mapping[str, Way],
) -> dict[str, Need]:
    """What every powered node needs: ``runs`` are jobs' present and coming ways, ``frugal`` their lowest ones."""
    made: dict[str, Need] = {}
    for node in nodes:
        kind = kinds.get(node.kind)
        if kind is None or node.state == "off":
            continue
        gpu_w = most_gpu_w.get(node.kind, 0.0)
        most = most_w(node, kind, gpu_w)
        least = believed = kind.host_w + node.foreign_gpus * (gpu_w - kind.idle_gpu_w) + node.gpus * kind.idle_gpu_w
        for name, there in runs.items():
            # On a node that it leaves and comes to, a job is counted with the dearer of the two.
            shares = [
                (run.place[node.name], run.way) for run in there if run.way is not None and run.place.get(node.name)
            ]
            if not shares:
                continue
            believed += max(_above_idle_w(count, way, kind) for count, way in shares)
            low = frugal.get(name)
            least += max(_above_idle_w(count, low if low is not None else way, kind) for count, way in shares)
        made[node.name] = Need(min(least, believed, most), min(believed, most), most)
    return made


def _above_idle_w(count: int, way: Way, kind: Kind) -> float:
    return max(0.0, count * (way.power_w / way.gpus - kind.idle_gpu_w))


class ClusterMeter:
    """Joules of all nodes together, which only grow. ``meters_j``: where the nodes' meters stood when last written
    down, and under "" what had been counted then; ``idle_meters_j``: the same of what was no job's; ``shown_j``: what
    was shown then; ``since_s``: when that was, None for ``now_s``."""

    def __init__(
        self,
        meters_j: Mapping[str, float],
        now_s: float,
        *,
        idle_meters_j: Mapping[str, float] | None = None,
        shown_j: float = 0.0,
        since_s: float | None = None,
    ) -> None:
        self._whole_j = meters_j.get("", 0.0)
        self._at_s = now_s
        self._asleep_s = now_s if since_s is None else min(since_s, now_s)
        self._heard: dict[str, float] = {node: j for node, j in meters_j.items() if node}
        self._ahead: dict[str, float] = {}
        self._shown_j = max(self._whole_j, shown_j)
        idle = idle_meters_j or {}
        self._idle_j = idle.get("", 0.0)
        self._idle_heard: dict[str, float] = {node: j for node, j in idle.items() if node}

    @property
    def whole_j(self) -> float:
        """Of all nodes, with what silent ones are taken to have drawn since they were heard."""
        self._shown_j = max(self._shown_j, self._whole_j + sum(self._ahead.values()))
        return self._shown_j

    @property
    def idle_j(self) -> float:
        """Of it, what was no job's, as far as nodes have told; and sleep and boots."""
        return self._idle_j

    @property
    def heard(self) -> frozenset[str]:
        """Nodes whose own meters are known."""
        return frozenset(self._heard)

    def meters_j(self) -> dict[str, float]:
        """As the constructor takes them."""
        unheard_j = sum(joules for node, joules in self._ahead.items() if node not in self._heard)
        return {"": self._whole_j + unheard_j, **self._heard}

    def idle_meters_j(self) -> dict[str, float]:
        """As the constructor takes them."""
        return {"": self._idle_j, **self._idle_heard}

    def count(
        self,
        now_s: float,
        reports: Mapping[str, tuple[Report, float]],
        assumed_w: Mapping[str, float],
        asleep: Collection[str] = (),
    ) -> None:
        """Take in what nodes say: their reports, and how long ago each came. From then on a node is taken to draw what
        it last said, and ``assumed_w`` where it said nothing of that, or never anything.

        ``asleep``: nodes that are off, boot, or have booted and were not heard of since. They draw ``assumed_w``."""
        passed_s, asleep_s = max(0.0, now_s - self._at_s), max(0.0, now_s - self._asleep_s)
        self._at_s = self._asleep_s = now_s
        for node, watts in assumed_w.items():
            if node in reports:
                self._take_in(node, reports[node][0])
            if node in asleep:
                self._whole_j += self._ahead.pop(node, 0.0) if node not in self._heard else 0.0
                self._whole_j += watts * asleep_s
                self._idle_j += watts * asleep_s
                self._ahead[node] = 0.0
            elif node in reports:
                report, ago_s = reports[node]
                self._ahead[node] = ago_s * (watts if report.power_w is None else report.power_w)
            else:
                self._ahead[node] = self._ahead.get(node, 0.0) + watts * passed_s

    def _take_in(self, node: str, report: Report) -> None:
        """Add what a node's counters have counted since they were last heard."""
        before = self._heard.get(node)
        if before is None:
            # What a node drew before it was ever heard of is not this cluster's, but what was assumed since is.
            self._whole_j += self._ahead.get(node, 0.0)
        else:
            self._whole_j += _grown_j(before, report.node_j)
        self._heard[node] = report.node_j
        self._idle_j += _grown_j(self._idle_heard.get(node, report.idle_j), report.idle_j)
        self._idle_heard[node] = report.idle_j


def _grown_j(before_j: float, now_j: float) -> float:
    """What a counter has counted. One that was lost with its node's disk starts from nothing; one that is a hair lower
    was only added up in another order."""
    return now_j if now_j < before_j - _DUST_J else max(0.0, now_j - before_j)
