"""``cluster up --engine sim``: a cluster that is not there, in scaled wall time, with agents on its nodes.

What it is: a ``SimulatedSite`` that lives ``speed`` seconds a second, behind the protocol of an engine, and for each of
its nodes what an agent does there: report power and energy, take clocks, keep the node's ceiling. So that everybody can
hand jobs in, cut the power and ask why, on a laptop; the scheduler is the real one.
What it is not: a truth about anybody's jobs. A job follows one of the laws of ``cluster_laws``, chosen by its
``--workload`` where that names one, else drawn by name; its command is not run.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from joulewise.cli.cluster_gpus import Rack
from joulewise.cli.cluster_laws import ALIKE, BATCHES, LAWS, JobTruth, drawn
from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.declared import Declared, JobEnergy, Report, Share, ShareReport
from joulewise.cluster.engine import DONE, Happened, JobSeen, NodeSeen, Order, Place
from joulewise.cluster.engines.simulated import SimulatedEngine, SimulatedSite
from joulewise.cluster.engines.simulated_site import SiteJob
from joulewise.cluster.life import Submission
from joulewise.cluster.progress import Progress
from joulewise.cluster.state import Kind, Way
from joulewise.core.caller import Caller
from joulewise.core.knob import Setting

TICK_S = 0.1
"""Wall seconds between two looks of the agents."""
_USUAL_S = 3600.0
"""What a job takes on the GPUs that it asks for if it does not say how many steps it has."""


class LiveSite:
    """The engine and the agents of a simulated cluster. Safe with several threads; time passes in ``wait`` alone."""

    def __init__(
        self, racks: Sequence[Rack], desk_of: Callable[[Callable[[], float]], AgentDesk], *, speed: float, seed: int
    ) -> None:
        self._lock = threading.RLock()
        self._speed = speed
        begun_s = time.time()
        there = {rack.kind.name: rack for rack in racks}
        self._site = SimulatedSite(
            [rack.kind for rack in racks],
            known=lambda order: _submission(order, there, seed),
            save_s=5.0,
            begun_s=begun_s,
        )
        self._engine = SimulatedEngine(self._site)
        self._began = (time.monotonic(), begun_s)
        self.desk = desk_of(self.now)
        steps = {rack.kind.name: _steps(rack) for rack in racks}
        self._agents = _Agents(self._site, self.desk, steps)

    def now(self) -> float:
        """Seconds since 1970 of its own, faster clock."""
        wall_s, begun_s = self._began
        return begun_s + self._speed * (time.monotonic() - wall_s)

    def progress(self, order: Order) -> Progress | None:
        """How far a job is, as its script would write it down."""
        with self._lock:
            job = self._site.jobs.get(order.name)
            if job is None or job.order != order or not job.starts:
                return None
            done = int(self._site.done(order.name))
            steps = None if order.work is None else int(order.work)
            return Progress(
                done, steps, int(job.saved), self._site.now(), max(1, sum(job.place.values())), False, job.starts
            )

    # The protocol of an engine: that of the simulated one, under a lock, and with real seconds in ``wait``.

    def take(self, epoch: int) -> None:
        """As ``Engine.take``."""
        with self._lock:
            self._engine.take(epoch)

    def nodes(self) -> tuple[NodeSeen, ...]:
        """As ``Engine.nodes``."""
        with self._lock:
            return self._engine.nodes()

    def jobs(self) -> tuple[JobSeen, ...]:
        """As ``Engine.jobs``."""
        with self._lock:
            return self._engine.jobs()

    def submit(self, order: Order, by: Caller | None = None) -> str:
        """As ``Engine.submit``."""
        with self._lock:
            return self._engine.submit(order, by)

    def start(self, name: str, place: Place) -> None:
        """As ``Engine.start``."""
        with self._lock:
            self._engine.start(name, place)

    def resize(self, name: str, place: Place) -> None:
        """As ``Engine.resize``."""
        with self._lock:
            self._engine.resize(name, place)

    def preempt(self, name: str) -> None:
        """As ``Engine.preempt``."""
        with self._lock:
            self._engine.preempt(name)

    def stop(self, name: str, why: str) -> None:
        """As ``Engine.stop``."""
        with self._lock:
            self._engine.stop(name, why)

    def power(self, node: str, *, on: bool) -> None:
        """As ``Engine.power``."""
        with self._lock:
            self._engine.power(node, on=on)

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        """As ``Engine.account``."""
        with self._lock:
            self._engine.account(name, energy_j, id)

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        """As ``Engine.wait``; ``longest_s`` of the simulated clock."""
        until_s = self.now() + max(0.0, longest_s)
        while True:
            with self._lock:
                self._site.advance(max(self._site.now(), self.now()))
                self._agents.look()
                news = self._engine.wait(0.0)
            left_s = (until_s - self.now()) / self._speed
            if news or left_s <= 0:
                return news
            time.sleep(min(TICK_S, left_s))


def _submission(order: Order, racks: Mapping[str, Rack], seed: int) -> Submission:
    """What a job that is handed in really does."""
    word = ALIKE.get(order.workload, order.workload)
    law = LAWS[word if word in LAWS else drawn(seed, order.workload or order.name)]
    batch = order.batch or random.Random(f"batch {seed} {order.name}").choice(BATCHES)
    truth = JobTruth.of(law, max(batch, order.gpus), dict(racks), seed, order.name)
    where = next((kind for kind, rack in racks.items() if rack.kind.gpus >= order.gpus), next(iter(racks)))
    work = order.work if order.work is not None else _USUAL_S / truth.seconds(where, order.gpus)
    return Submission(order.name, order.submitted_s, work, order.gpus, truth, _Nothing(), elastic=order.elastic)


class _Nothing:
    """The site's own belief of its jobs: none, so that it asks their truths."""

    def ways(self) -> tuple[Way, ...]:
        return ()

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        pass

    def work_left(self, done: float) -> float:  # noqa: ARG002
        return 1.0


def _steps(rack: Rack) -> tuple[Setting, ...]:
    """Clocks to go down by, highest first: twentieths of the highest down to a fifth of it."""
    chip = rack.model
    shares = [share / 20.0 for share in range(19, 3, -1)]
    clocks = dict.fromkeys(chip.sm_mhz.at_most(share * chip.chip.sm_max_mhz) for share in shares)
    return tuple(Setting(sm_mhz=mhz) for mhz in clocks)


@dataclass(slots=True)
class _Account:
    """What one job has drawn on one node."""

    gpu_j: float = 0.0
    host_j: float = 0.0
    gpu_s: float = 0.0
    final: bool = False


@dataclass(slots=True)
class _NodeAgent:
    """What one node's agent remembers."""

    declared: Declared | None = None
    idle_j: float = 0.0
    gone_j: float = 0.0
    jobs: dict[str, _Account] = field(default_factory=dict)


class _Agents:
    """All nodes' agents: each look counts energy, sets clocks as declared and as ceilings allow, and reports."""

    def __init__(self, site: SimulatedSite, desk: AgentDesk, steps: Mapping[str, tuple[Setting, ...]]) -> None:
        self._site = site
        self._desk = desk
        self._steps = steps
        self._last_s = site.now()
        self._nodes = {name: _NodeAgent() for rack in site.racks for name in rack.names}

    def look(self) -> None:
        """Once for all nodes."""
        now_s = self._site.now()
        took_s, self._last_s = now_s - self._last_s, now_s
        on = {name: rack.kind for rack in self._site.racks for name in rack.names if rack.states[name] == "up"}
        jobs = [job for job in self._site.jobs.values() if job.place and job.state not in DONE]
        for name, kind in on.items():
            self._count(name, kind, jobs, took_s)
        self._hold(on, jobs)
        for name, kind in on.items():
            self._report(name, kind, jobs, now_s)
        self._hold(on, jobs)

    def _count(self, name: str, kind: Kind, jobs: Sequence[SiteJob], took_s: float) -> None:
        """Energy since the last look: a job's GPUs and its part of the host; the rest is idle."""
        agent = self._nodes[name]
        here = {job.id: job for job in jobs if name in job.place}
        held = sum(job.place[name] for job in here.values())
        for id_, job in here.items():
            account = agent.jobs.setdefault(id_, _Account())
            account.final = False
            account.gpu_j += took_s * _gpus_w(job) * job.place[name] / sum(job.place.values())
            account.host_j += took_s * kind.host_w * job.place[name] / held
            account.gpu_s += took_s * job.place[name]
        agent.idle_j += took_s * (kind.gpus_per_node - held) * kind.idle_gpu_w + (0.0 if held else took_s * kind.host_w)
        for id_, account in agent.jobs.items():
            account.final = id_ not in here

    def _hold(self, on: Mapping[str, Kind], jobs: Sequence[SiteJob]) -> None:
        """Every job at what is declared for it, or as much lower as the ceilings of its nodes ask for."""
        wanted = {job.id: self._declared(job) for job in jobs}
        for name, kind in on.items():
            declared = self._nodes[name].declared
            here = [job for job in jobs if name in job.place]
            if declared is None or declared.ceiling_w is None or not here:
                continue
            lower = iter(self._steps[kind.name])
            while self._node_w(name, kind, here, wanted) > declared.ceiling_w and (step := next(lower, None)):
                for job in here:
                    if wanted[job.id].get("sm_mhz", float("inf")) > step["sm_mhz"]:
                        wanted[job.id] = step
        for job in jobs:
            self._site.retune(job.order.name, wanted[job.id])

    def _declared(self, job: SiteJob) -> Setting:
        """What a job's nodes were told; what it has, where none was."""
        for name in job.place:
            share = self._share(name, job.id)
            if share is not None and share.firm:
                return share.setting
        return job.setting

    def _share(self, node: str, id_: str) -> Share | None:
        declared = self._nodes[node].declared
        return None if declared is None else next((each for each in declared.shares if each.id == id_), None)

    def _node_w(self, name: str, kind: Kind, here: Sequence[SiteJob], wanted: Mapping[str, Setting]) -> float:
        free = kind.gpus_per_node - sum(job.place[name] for job in here)
        jobs_w = 0.0
        for job in here:
            gpus = sum(job.place.values())
            if not job.life.works:
                jobs_w += kind.idle_gpu_w * job.place[name]
                continue
            way = Way(gpus, 1.0, 1.0, wanted[job.id], kind.name, job.order.batch)
            unit_s, unit_j = job.life.submission.truth.unit(way, len(job.place))
            jobs_w += unit_j / unit_s * job.place[name] / gpus
        return kind.host_w + free * kind.idle_gpu_w + jobs_w

    def _report(self, name: str, kind: Kind, jobs: Sequence[SiteJob], now_s: float) -> None:
        agent = self._nodes[name]
        here = {job.id: job for job in jobs if name in job.place}
        held = agent.declared
        shares = []
        for share in () if held is None else held.shares:
            state = "waiting" if share.id not in here else "applied" if share.firm else "ready"
            shares.append(ShareReport(share.id, share.version, state))
        accounts = tuple(
            JobEnergy(id_, each.gpu_j, each.host_j, each.gpu_s, each.final) for id_, each in agent.jobs.items()
        )
        report = Report(
            name,
            now_s,
            0 if held is None else held.epoch,
            0 if held is None else held.number,
            self._node_w(name, kind, list(here.values()), {id_: job.setting for id_, job in here.items()}),
            agent.gone_j + agent.idle_j + sum(each.gpu_j + each.host_j for each in agent.jobs.values()),
            agent.idle_j,
            shares=tuple(shares),
            jobs=accounts,
            ceiling_w=None if held is None else held.ceiling_w,
        )
        declared = self._desk.exchange(report)
        if held is None or declared.epoch >= held.epoch:
            agent.declared = declared
            for id_ in declared.ended:
                if id_ in agent.jobs and agent.jobs[id_].final:
                    gone = agent.jobs.pop(id_)
                    agent.gone_j += gone.gpu_j + gone.host_j


def _gpus_w(job: SiteJob) -> float:
    return job.life.watts if job.life.works else job.life.start_w
