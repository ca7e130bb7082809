"""What jobs take: their progress and joules, told to their beliefs, to the book and to the engine's accounting.

What it is: the way of every joule from the agents' reports. A job's energy is the sum over all nodes and all its
starts; it goes into the accounting at intervals, and for good once every node has said its last word on it (or has had
time enough to). What is no job's is idle energy, counted by the nodes.
What it is not: a meter of GPUs (the agents have those) or a belief.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from joulewise.cluster.engine import Order
from joulewise.cluster.progress import Progress
from joulewise.cluster.queue import Kept
from joulewise.cluster.scheduler_power import ClusterMeter
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_track import JobRun, slowed
from joulewise.cluster.scheduler_watts import Watts
from joulewise.core.errors import BadSpec, EngineLost

# How long after a job's end its nodes may take for their last word on its energy, beyond being lost.
_LAST_WORD_S = 10.0


class Energy:
    """``seen_s``: how long a job runs in one way before its belief is told; ``account_s``: how often energies are
    written down; ``progress``: how far a job's script is."""

    def __init__(
        self,
        sight: Sight,
        watts: Watts,
        *,
        progress: Callable[[Order], Progress | None],
        seen_s: float,
        account_s: float,
    ) -> None:
        self._sight = sight
        self._watts = watts
        self._progress = progress
        self._seen_s = seen_s
        self._account_s = account_s
        self._accounted_s = -math.inf
        self._written: frozenset[str] = frozenset()
        """Nodes whose meters the book has: what one draws before that is lost with this process."""
        self.meter = ClusterMeter({}, sight.now())

    def led(self, now_s: float) -> None:
        """Go on from where the book's meters stood."""
        book = self._sight.book
        self.meter = ClusterMeter(
            book.meters_j, now_s, idle_meters_j=book.idle_j, shown_j=book.shown_j, since_s=book.measured_s
        )
        self._accounted_s = -math.inf
        self._written = self.meter.heard

    def measure(self, now_s: float, runs: Mapping[str, JobRun]) -> None:
        """Take in what agents and scripts say, and tell beliefs what has been seen for long enough."""
        reports = (
            {}
            if self._sight.agents is None
            else {node.name: self._sight.agents.latest(node.name) for node in self._sight.nodes}
        )
        # The last word of a node that has gone off since says nothing of what it draws now.
        asleep = {
            node.name
            for node in self._sight.nodes
            if node.state in ("off", "booting") or (node.state == "up" and node.name in self._sight.fresh)
        }
        told = {
            node: (replace(report, power_w=self._watts.credible_w(report)), self._sight.agents.silent_s(node))
            for node, report in reports.items()
            if report is not None and self._sight.agents is not None
        }
        self.meter.count(now_s, told, self.assumed_w(), asleep)
        for name, run in runs.items():
            kept = self._sight.book.jobs[name]
            seen = self._sight.seen[name]
            track = self._sight.track(kept)
            works = seen.state == "running" and run.sure
            track.look(now_s, run.way, runs=works, read=self._progress)
            if not works or run.way is None or kept.aim is None:
                continue
            gpu_j: tuple[float, float] | None = None
            if self._sight.agents is not None:
                there = [reports.get(node) for node in run.place]
                rows = [
                    (sum(job.gpu_j for job in report.jobs if job.id == kept.id), report.time_s)
                    for report in there
                    if report is not None
                ]
                if len(rows) < len(run.place) or not self._sight.agents.applied(kept.id, kept.aim.version):
                    continue
                gpu_j = (sum(row[0] for row in rows), sum(row[1] for row in rows) / len(rows))
                held = [gpu for report in there if report is not None for gpu in report.gpus if gpu.job == kept.id]
                if any(slowed(run.way.setting, gpu.setting) for gpu in held):
                    track.throttled()
                    continue
            key = (kept.aim.version, seen.starts, tuple(sorted(run.place.items())))
            if track.tell(run.way, len(run.place), key, gpu_j, self._seen_s):
                self._sight.call(now_s)

    def assumed_w(self) -> dict[str, float]:
        """What each node is taken to draw while it says nothing."""
        watts: dict[str, float] = {}
        for node in self._sight.nodes:
            kind = self._sight.kinds.get(node.kind)
            if kind is None:
                continue
            need = self._watts.needs.get(node.name)
            if node.state == "off":
                watts[node.name] = kind.off_w
            elif node.state == "booting":
                watts[node.name] = max(kind.boot_w, kind.empty_node_w)
            elif node.state == "down" and self._sight.agents is None:
                watts[node.name] = 0.0
            else:
                watts[node.name] = kind.empty_node_w if need is None else need.believed_w
        return watts

    def job_j(self, kept: Kept) -> dict[str, float]:
        """A job's joules by node, over all its starts: as the agents say now, else as last written down."""
        energy = dict(kept.energy_j)
        for node, joules in self._told_j(kept.id).items():
            energy[node] = max(energy.get(node, 0.0), kept.before_j.get(node, 0.0) + joules)
        return energy

    def _told_j(self, id_: str) -> dict[str, float]:
        """What agents say now of a job with this id, by node."""
        told: dict[str, float] = {}
        agents = self._sight.agents
        for node in self._sight.nodes if agents is not None and id_ else ():
            report = None if agents is None else agents.latest(node.name)
            for job in () if report is None else report.jobs:
                if job.id == id_:
                    told[node.name] = told.get(node.name, 0.0) + job.gpu_j + job.host_j
        return told

    def reopened(self, kept: Kept, id_: str) -> dict[str, float]:
        """A job that was over goes on under ``id_``: agents keep its account again; of what it has taken so far, by
        node, what they do not tell any more."""
        if self._sight.agents is not None:
            self._sight.agents.remember([id_])
        told = self._told_j(id_)
        return {node: max(0.0, joules - told.get(node, 0.0)) for node, joules in self.job_j(kept).items()}

    def gpu_j(self, name: str) -> float:
        """What a job's GPUs have drawn, as far as agents still tell."""
        agents, kept = self._sight.agents, self._sight.book.jobs[name]
        if agents is None or not kept.id:
            return 0.0
        reports = [agents.latest(node.name) for node in self._sight.nodes]
        told = (job for report in reports if report is not None for job in report.jobs)
        return sum(job.gpu_j for job in told if job.id == kept.id)

    def account(self, now_s: float) -> None:
        """Energies into the engine's accounting and the book: at intervals, and for good when a job is over."""
        regular = now_s - self._accounted_s >= self._account_s
        if regular:
            self._accounted_s = now_s
        if regular or self.meter.heard - self._written:
            self._written = self.meter.heard
            purse = {} if self._watts.purse is None else self._watts.purse.facts()
            if self._sight.nodes and (purse or self._sight.agents is not None):
                self._sight.book.turn(
                    now_s,
                    "",
                    "measured",
                    meters_j=self.meter.meters_j(),
                    idle_j=self.meter.idle_meters_j(),
                    shown_j=self.meter.whole_j,
                    purse=purse,
                )
        book = self._sight.book
        for kept in list(book.former.values()):
            # Another job has its name now; what followed that name is the other's.
            energy = self.job_j(kept)
            if self._last_word(now_s, kept) and self._accounted(kept, energy):
                book.turn(now_s, kept.order.name, "measured", of=kept.id, energy_j=energy, final=True)
                self._forget(kept)
        for name, kept in list(book.jobs.items()):
            if kept.settled:
                continue
            energy = self.job_j(kept)
            if kept.over:
                if self._last_word(now_s, kept):
                    if not self._accounted(kept, energy):
                        continue
                    track = self._sight.tracks.pop(name, None)
                    facts = {} if track is None else {"done": track.done, "gpu_s": track.gpu_s}
                    book.turn(now_s, name, "measured", of=kept.id, energy_j=energy, final=True, **facts)
                    self._forget(kept)
            elif regular and energy and energy != dict(kept.energy_j) and self._accounted(kept, energy):
                self.note(now_s, kept)

    def note(self, now_s: float, kept: Kept) -> None:
        """Write down what a job has taken so far."""
        track = self._sight.track(kept)
        facts = {"energy_j": self.job_j(kept), "done": track.done, "gpu_s": track.gpu_s}
        self._sight.book.turn(now_s, kept.order.name, "measured", of=kept.id, **facts)

    def _forget(self, kept: Kept) -> None:
        if self._sight.agents is not None and kept.id:
            self._sight.agents.forget([kept.id])

    def _accounted(self, kept: Kept, energy: Mapping[str, float]) -> bool:
        """Whether the engine has a job's energy; False: try again later."""
        if self._sight.lost:
            return False
        name = kept.order.name
        if not energy or name not in self._sight.seen or name in self._sight.missing:
            return True
        try:
            self._sight.do("account", lambda: self._sight.engine.account(name, sum(energy.values()), kept.id))
            return True
        except EngineLost as lost:
            self._sight.lost = str(lost)
            return False
        except BadSpec as fault:
            self._sight.faults["account"] = f"the energy of {name} is not in the engine's accounting: {fault}"
            return True

    def _last_word(self, now_s: float, kept: Kept) -> bool:
        """Whether all nodes have told the last of a job that is over, or have had time enough to."""
        if self._sight.agents is None:
            return True
        assert kept.ended_s is not None
        if now_s - kept.ended_s > self._sight.agents.lost_s + _LAST_WORD_S:
            return True
        if not kept.starts:
            return True
        rows = [
            (node.name, job.final)
            for node in self._sight.nodes
            if (report := self._sight.agents.latest(node.name)) is not None
            for job in report.jobs
            if job.id == kept.id
        ]
        last = kept.aim if kept.aim is not None and kept.aim.place else kept.former
        told = {node for node, _ in rows}
        return bool(rows) and all(final for _, final in rows) and (last is None or told >= set(last.place))
