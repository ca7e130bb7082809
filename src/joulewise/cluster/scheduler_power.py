"""Watts and joules of a cluster as its scheduler counts them: what nodes tell, what is believed, what must be feared.

What it is: three pure views (what a node is believed to draw after a decision, what it is counted with under a cap, the
room that ceilings share) and one meter. A node whose agent is silent counts with the most that it can draw, one that
sleeps with what sleep draws, one that boots with the boot. The meter is the sum of the nodes' own counters, which last
over restarts of agents; while a node is silent it is taken to draw what is believed, until its own counter tells (its
most would be taken for an error of the beliefs, and everybody would pay for that twice).
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
    down, and under "" what had been counted then."""

    def __init__(self, meters_j: Mapping[str, float], now_s: float) -> None:
        self._whole_j = meters_j.get("", 0.0)
        self._at_s = now_s
        self._heard: dict[str, float] = {node: j for node, j in meters_j.items() if node}
        self._ahead: dict[str, float] = {}
        self._shown_j = self._whole_j

    @property
    def whole_j(self) -> float:
        """Of all nodes, with what silent ones are taken to have drawn since they were heard."""
        self._shown_j = max(self._shown_j, self._whole_j + sum(self._ahead.values()))
        return self._shown_j

    @property
    def heard(self) -> frozenset[str]:
        """Nodes whose own meters are known."""
        return frozenset(self._heard)

    def meters_j(self) -> dict[str, float]:
        """As the constructor takes them."""
        unheard_j = sum(joules for node, joules in self._ahead.items() if node not in self._heard)
        return {"": self._whole_j + unheard_j, **self._heard}

    def count(
        self,
        now_s: float,
        reports: Mapping[str, tuple[Report, float]],
        assumed_w: Mapping[str, float],
    ) -> None:
        """Take in what nodes say: their reports, and how long ago each came. From then on a node is taken to draw what
        it last said, and ``assumed_w`` where it said nothing of that, or never anything."""
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        for node, watts in assumed_w.items():
            if node not in reports:
                self._ahead[node] = self._ahead.get(node, 0.0) + watts * passed_s
                continue
            report, ago_s = reports[node]
            before = self._heard.get(node)
            if before is None:
                # What a node drew before it was ever heard of is not this cluster's, but what was assumed since is.
                self._whole_j += self._ahead.get(node, 0.0)
            else:
                # A counter that was lost with its node's disk starts from nothing; one that is a hair lower was only
                # added up in another order.
                lost = report.node_j < before - _DUST_J
                self._whole_j += report.node_j if lost else max(0.0, report.node_j - before)
            self._heard[node] = report.node_j
            self._ahead[node] = ago_s * (watts if report.power_w is None else report.power_w)
