"""A scheduler's whole surroundings in virtual time: the simulated site as its engine, toy agents at its desk.

The toy agents hold what they were declared as real ones do: a share that is not firm is prepared, a firm one is set by
``SimulatedSite.retune``, energies are the site's own; they can be silent, slow, or refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.declared import Declared, GpuReport, JobEnergy, Report, ShareReport
from joulewise.cluster.engine import DONE, Order
from joulewise.cluster.engines.simulated import SimulatedEngine, SimulatedSite
from joulewise.cluster.life import Belief, Submission
from joulewise.cluster.limits import Limits
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.progress import Progress
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Round
from joulewise.cluster.scheduler import Scheduler
from joulewise.cluster.state import Allocator, Costs, Kind
from joulewise.core.knob import DEFAULT, Setting
from joulewise.store.journal import Journal, MemoryJournal

MOST_GPU_W = 400.0


@dataclass
class ToyAgent:
    """One node's agent. ``silent``: it says nothing; ``refuses``: settings it will not set; ``unclaimed``: no prolog
    says here whose GPUs are whose. ``node_j`` is all that the node has drawn; ``slept_j`` of it no counter tells, since
    none runs while the node is off."""

    node: str
    site: SimulatedSite
    silent: bool = False
    unclaimed: bool = False
    refuses: Callable[[Setting], bool] = lambda _: False
    held: Declared | None = None
    firm: dict[str, tuple[int, Setting]] = field(default_factory=dict)
    energy: dict[str, tuple[float, bool]] = field(default_factory=dict)
    node_j: float = 0.0
    slept_j: float = 0.0
    idle_j: float = 0.0
    at_s: float | None = None

    def there(self) -> dict[str, str]:
        """Ids and names of the jobs that hold GPUs here."""
        return {job.id: name for name, job in self.site.jobs.items() if self.node in job.place}

    def power_w(self) -> float:
        rack = self.site.rack(self.node)
        if rack.states[self.node] != "up":
            return rack.kind.boot_w if rack.states[self.node] == "booting" else rack.kind.off_w
        watts = rack.kind.host_w + rack.free_on[self.node] * rack.kind.idle_gpu_w
        return watts + sum(self._job_w(name) for name in self.there().values())

    def _job_w(self, name: str) -> float:
        job = self.site.jobs[name]
        share = job.place[self.node] / sum(job.place.values())
        return share * (job.life.watts if job.life.works else job.life.start_w)

    def measure(self) -> None:
        """Count what was drawn since the last look, as counters do."""
        now_s = self.site.now()
        took_s = 0.0 if self.at_s is None else now_s - self.at_s
        self.at_s = now_s
        there = self.there()
        watts = {id_: self._job_w(name) for id_, name in there.items()}
        whole = self.power_w() * took_s
        for id_ in there:
            before, _ = self.energy.get(id_, (0.0, False))
            self.energy[id_] = (before + watts[id_] * took_s, False)
        for id_, (joules, _) in list(self.energy.items()):
            if id_ not in there:
                self.energy[id_] = (joules, True)
        self.node_j += whole
        if self.site.rack(self.node).states[self.node] == "up":
            self.idle_j += whole - sum(watts.values()) * took_s
        else:
            self.slept_j += whole

    def report(self) -> Report:
        there = self.there()
        states = []
        for share in () if self.held is None else self.held.shares:
            if self.refuses(share.setting):
                state, why = "refused", "clocks are refused here"
            elif share.id not in there or self.unclaimed:
                state, why = "waiting", ""
            elif self.firm.get(share.id) == (share.version, share.setting):
                state, why = "applied", ""
            else:
                state, why = "ready", ""
            states.append(ShareReport(share.id, share.version, state, why))
        gpus = tuple(
            GpuReport(f"{self.node}:{at}", None, 0.0, self.firm.get(id_, (0, DEFAULT))[1], id_)
            for at, id_ in enumerate(there)
        )
        held = self.held
        return Report(
            self.node,
            self.site.now(),
            0 if held is None else held.epoch,
            0 if held is None else held.number,
            self.power_w(),
            self.node_j - self.slept_j,
            self.idle_j,
            gpus,
            tuple(states),
            tuple(JobEnergy(id_, joules, 0.0, 0.0, final) for id_, (joules, final) in self.energy.items()),
            None if held is None else held.ceiling_w,
        )

    def obey(self, declared: Declared) -> None:
        if self.held is not None and declared.epoch < self.held.epoch:
            return
        self.held = declared
        there = self.there()
        for id_ in [id_ for id_ in self.firm if id_ not in there]:
            del self.firm[id_]
        for id_ in declared.ended:
            self.energy.pop(id_, None)
        for share in declared.shares:
            if share.firm and share.id in there and not self.refuses(share.setting):
                self.firm[share.id] = (share.version, share.setting)
                self.site.retune(there[share.id], share.setting)

    def look(self, desk: AgentDesk) -> None:
        """One exchange."""
        self.measure()
        if not self.silent and self.site.rack(self.node).states[self.node] == "up":
            self.obey(desk.exchange(self.report()))


class Rig:
    """A site, agents and a scheduler that can be killed and made anew on the same journal.

    ``agents`` False: nobody reports, and clocks are set by the rig itself as soon as they are aimed at.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        submissions: Sequence[Submission],
        allocate: Allocator,
        *,
        agents: bool = True,
        power_off: bool = False,
        cap_w: float | None = None,
        costs: Costs = Costs(),  # noqa: B008
        period_s: float = 60.0,
        watch_s: float = 1.0,
        seen_s: float = 60.0,
        account_s: float = 60.0,
        save_s: float = 0.0,
        checkpoint_s: float = 600.0,
        journal: Journal | None = None,
    ) -> None:
        self.submissions = {one.name: one for one in submissions}
        self.site = SimulatedSite(
            kinds,
            submissions,
            known=lambda order: self.submissions[order.name],
            costs=costs,
            save_s=save_s,
            checkpoint_s=checkpoint_s,
        )
        self.kinds = tuple(kinds)
        self.journal = journal or MemoryJournal()
        self.agents = {name: ToyAgent(name, self.site) for rack in self.site.racks for name in rack.names}
        self._with_agents = agents
        self._allocate = allocate
        self._power_off = power_off
        self._costs = costs
        self._times = (period_s, watch_s, seen_s, account_s)
        self.beliefs: dict[str, Belief] = {}
        self.step: Callable[[str], None] = lambda _: None
        self.scheduler = self.fresh()
        self.scheduler.lead()
        if cap_w is not None:
            self.scheduler.cap(cap_w)

    def fresh(self) -> Scheduler:
        """A new scheduler on the same journal and site, as after a kill; ``lead`` is not called yet."""
        period_s, watch_s, seen_s, account_s = self._times
        purse = Purse(round_s=period_s)
        self.desk = AgentDesk(now=self.site.now, period_s=watch_s) if self._with_agents else None
        self.scheduler = Scheduler(
            SimulatedEngine(self.site),
            Round(self._allocate, nodes=NodePower(warm=0) if self._power_off else None, purse=purse),
            kinds=self.kinds,
            most_gpu_w={kind.name: MOST_GPU_W for kind in self.kinds},
            journal=self.journal,
            believe=self.believe,
            now=self.site.now,
            agents=self.desk,
            limits=Limits(),
            purse=purse,
            costs=self._costs,
            period_s=period_s,
            watch_s=watch_s,
            seen_s=seen_s,
            account_s=account_s,
            progress=self.progress,
            step=lambda what: self.step(what),
        )
        return self.scheduler

    def believe(self, order: Order) -> Belief:
        return self.beliefs.get(order.name) or self.submissions[order.name].belief

    def progress(self, order: Order) -> Progress | None:
        """What the script would have written down."""
        if order.checkpoint is None or order.name not in self.site.jobs:
            return None
        job = self.site.jobs[order.name]
        if not job.starts:
            return None
        return Progress(math.floor(self.site.done(order.name)), None, math.floor(job.saved), self.site.now())

    def look(self) -> None:
        """One pass of the scheduler, and one exchange of every agent."""
        self.scheduler.look()
        if self.desk is None:
            for name, kept in self.scheduler.book.jobs.items():
                if kept.aim is not None and kept.aim.way is not None and name in self.site.jobs:
                    self.site.retune(name, kept.aim.way.setting)
            return
        for agent in self.agents.values():
            agent.look(self.desk)

    @property
    def over(self) -> bool:
        """Whether every job has come and is done, as the book says."""
        book = self.scheduler.book.jobs
        return len(book) == len(self.submissions) and all(kept.settled for kept in book.values())

    def play(self, until_s: float = 1e6, most: int = 200_000) -> None:
        """Look until all is over."""
        for _ in range(most):
            if self.over or self.site.now() > until_s:
                return
            self.look()
        raise AssertionError(f"not over after {most} looks, at {self.site.now()} s: {self.scheduler.status()}")

    def ends(self) -> dict[str, float]:
        """When each job really ended."""
        return {name: job.since_s for name, job in self.site.jobs.items() if job.state in DONE}
