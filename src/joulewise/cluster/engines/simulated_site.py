"""A cluster that is not there, in virtual time: nodes with names, jobs that come, work, stop and end.

What it is: what stands behind ``SimulatedEngine``: the same world as the simulator's (``world``), but moved by whoever
calls, in any order, as a real engine is. A job that is told to stop first saves (``save_s``); a start waits until its
GPUs are free; a node can die (``kill``) and come back (``revive``); jobs on it then go on from their last checkpoint.
Why it exists: a scheduler can be tried, killed and started again a thousand times in the seconds that a real engine
needs for one round, on the truths of a simulation that it must agree with.
What it is not: a scheduler, nor Slurm in detail (no priorities, no queue of its own).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from joulewise.cluster.engine import DONE, NOBODY, Happened, JobState, NodeState, Order, Place
from joulewise.cluster.life import Life, Submission
from joulewise.cluster.state import Costs, Kind, Way
from joulewise.cluster.world import ARRIVAL, BOOT, END, SAVED, WORK, World
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT, Setting


def order_of(submission: Submission, *, command: tuple[str, ...] = ("train",)) -> Order:
    """A submission as its user would hand it in: elastic ones have a checkpoint folder of their own name."""
    return Order(
        submission.name,
        command,
        submission.gpus_asked,
        submission.submitted_s,
        checkpoint=f"/checkpoints/{submission.name}" if submission.elastic else None,
        work=submission.work,
        deadline_s=submission.deadline_s,
        weight=submission.weight,
        tenant=submission.tenant,
    )


@dataclass(slots=True)
class SiteJob:
    """A job here. ``wanted``: where it shall run (None: it shall wait)."""

    order: Order
    id: str
    life: Life
    state: JobState = "waiting"
    place: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] | None = None
    setting: Setting = DEFAULT
    starts: int = 0
    since_s: float = 0.0
    saved: float = 0.0
    """Units of work that a restart goes on from, written at ``saved_s``."""
    saved_s: float = 0.0
    saving: float = 0.0
    """What will be saved once it has left."""
    why: str = ""
    exit_code: int | None = None
    account_j: float = 0.0
    by: Caller = NOBODY


class _Rack:
    """All nodes of a kind: a ``Ground`` of the world."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.names = [f"{kind.name}-{number}" for number in range(kind.nodes)]
        self.free_on = dict.fromkeys(self.names, kind.gpus_per_node)
        self.states: dict[str, NodeState] = dict.fromkeys(self.names, "up")

    def _in(self, state: NodeState) -> list[int]:
        return [at for at, name in enumerate(self.names) if self.states[name] == state]

    @property
    def free(self) -> int:
        return sum(self.free_on[name] for name in self.names if self.states[name] == "up")

    @free.setter
    def free(self, _: int) -> None:
        raise AttributeError("counted, not set")

    @property
    def off(self) -> list[int]:
        return self._in("off")

    @property
    def booting(self) -> list[int]:
        return self._in("booting")

    @property
    def on(self) -> int:
        return len(self._in("up"))

    @property
    def used(self) -> int:
        return self.on * self.kind.gpus_per_node - self.free


class SimulatedSite:
    """Nodes of some kinds, called ``KIND-NUMBER``, and the jobs on them, from ``begun_s`` on.

    ``submissions`` come by themselves when their time is there, as orders of their users. ``known`` makes a submission
    of any other order that is handed in; None: such an order is refused. ``costs`` are those of a start; ``save_s``: of
    a stop, in which the job works no more; ``checkpoint_s``: how often a job at work saves, for the day its node dies.
    ``exits``: with which code a job ends, None: with 0; with any other it has failed.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        submissions: Iterable[Submission] = (),
        *,
        known: Callable[[Order], Submission] | None = None,
        costs: Costs = Costs(),  # noqa: B008  (frozen)
        save_s: float = 0.0,
        checkpoint_s: float = 600.0,
        exits: Callable[[Order], int] | None = None,
        begun_s: float = 0.0,
    ) -> None:
        self.jobs: dict[str, SiteJob] = {}
        self.former: list[SiteJob] = []
        """Jobs that are done and whose names others have now."""
        self.happened: list[Happened] = []
        self.heard: list[Happened] = []
        """All that ever happened, for those who look back."""
        self.epoch = 0
        self._ids = 0
        self._known = known
        self._costs = costs
        self._save_s = save_s
        self._checkpoint_s = checkpoint_s
        self._exits = exits
        self.racks = [_Rack(kind) for kind in kinds]
        self._rack = {name: rack for rack in self.racks for name in rack.names}
        self.world = World(begun_s, self.racks, None)
        for submission in submissions:
            self.world.plan(submission.submitted_s, ARRIVAL, Life(submission))
        self.world.nodes_changed()

    # Time.

    def now(self) -> float:
        """Seconds of this site's clock."""
        return self.world.meter.time_s

    def advance(self, to_s: float, *, until_news: bool = False) -> None:
        """Let time pass; ``until_news``: no further than to the first thing that happened, or that had already."""
        events = self.world.events
        while events and events[0][0] <= (self.now() if until_news and self.happened else to_s):
            time_s, rank, _, about, span = heapq.heappop(events)
            if isinstance(about, Life):
                if span != about.span:
                    continue
                self.world.meter.advance(time_s)
                self._at(rank, about, time_s)
            elif about is not None:
                self.world.meter.advance(time_s)
                self._booted(*about)
        if not (until_news and self.happened):
            self.world.meter.advance(to_s)

    def _at(self, rank: int, life: Life, time_s: float) -> None:
        if rank == ARRIVAL:
            self._come(order_of(life.submission), life)
            return
        job = self.jobs[life.submission.name]
        if rank == WORK:
            self.world.work(life, time_s)
            self._turn(job, "running")
            self._say("started", job.order.name)
        elif rank == END:
            self._leave(job, time_s)
            self._end(job)
            self._settle()
        elif rank == SAVED:
            self._left(job, time_s)

    # Jobs.

    def submit(self, order: Order, by: Caller | None = None) -> str:
        """Take a job in; its id. The same again is the same; another under the name of one not done: BadSpec."""
        there = self.jobs.get(order.name)
        if there is not None and there.state not in DONE:
            if there.order != order:
                raise BadSpec(f"a job called {order.name!r} is there already ({there.id}); choose another name")
            return there.id
        if self._known is None:
            raise BadSpec(f"nothing is known of what {order.name!r} would do on this simulated site")
        self.check_size(order.name, order.gpus)
        return self._come(order, Life(self._known(order)), NOBODY if by is None else by)

    def check_size(self, name: str, gpus: int) -> None:
        """BadSpec where no kind has so many GPUs."""
        most = max(rack.kind.gpus for rack in self.racks)
        if not 1 <= gpus <= most:
            raise BadSpec(f"job {name!r} asks for {gpus} GPUs, but the cluster has {most} of one kind")

    def _come(self, order: Order, life: Life, by: Caller = NOBODY) -> str:
        self._ids += 1
        number = str(self._ids)
        job = SiteJob(order, number, life, since_s=self.now(), by=by)
        if order.name in self.jobs:
            self.former.append(self.jobs[order.name])
        self.jobs[order.name] = job
        self._say("submitted", order.name)
        if not life.submission.work > 0:
            self._end(job)
        return number

    def want(self, name: str, place: Place | None) -> None:
        """A job shall run there, or wait. BadSpec for a place that can never be, a rigid job's other size, and one
        that is over."""
        job = self.job(name)
        if job.state in DONE:
            raise BadSpec(f"job {name!r} is over ({job.state}); hand it in again")
        if place is not None:
            self._check_place(job, place)
        job.wanted = None if place is None else dict(place)
        if job.state in ("starting", "running") and job.place != (job.wanted or {}):
            self._save(job)
        self._settle()

    def stop(self, name: str, why: str) -> None:
        """A job ends now, for good."""
        job = self.job(name)
        if job.state in DONE:
            return
        if job.place:
            self._leave(job, self.now())
        job.why = why
        self._done(job, "cancelled", None)
        self._settle()

    def retune(self, name: str, setting: Setting) -> None:
        """The clocks of a job, at once; they last until it leaves its GPUs."""
        job = self.job(name)
        if job.setting == setting or not job.place or job.state == "leaving":
            return
        job.setting = setting
        life, now_s = job.life, self.now()
        ready_s = life.ready_s
        self._keep(job, now_s)
        self.world.stop(life, now_s)
        self._begin(job, now_s, ready_s)
        self.world.note()

    def job(self, name: str) -> SiteJob:
        """BadSpec for one that is not here."""
        if name not in self.jobs:
            raise BadSpec(f"no job is called {name!r} here")
        return self.jobs[name]

    def numbered(self, name: str, id_: str) -> SiteJob:
        """The job of that name with this id, which may have left it to another; empty: the one that has it."""
        job = self.job(name)
        if id_ in ("", job.id):
            return job
        for each in self.former:
            if (each.order.name, each.id) == (name, id_):
                return each
        raise BadSpec(f"no job called {name!r} had the id {id_} here; it is {job.id}")

    def done(self, name: str) -> float:
        """Units of work that a job has done."""
        job = self.job(name)
        return job.saving if job.state == "leaving" else job.life.done_at(self.now())

    def energy_j(self, name: str) -> float:
        """What a job has really drawn up to its last change of way, place or state, with its share of hosts."""
        return self.job(name).life.energy_j

    # Nodes.

    def power(self, node: str, *, on: bool) -> None:
        """Switch a node; BadSpec to switch off one with a job on it."""
        rack = self.rack(node)
        state = rack.states[node]
        if on and state == "off":
            rack.states[node] = "booting"
            self.world.plan(self.now() + rack.kind.boot_s, BOOT, (rack.kind.name, rack.names.index(node)))
        elif not on and state in ("up", "booting"):
            if rack.free_on[node] < rack.kind.gpus_per_node:
                raise BadSpec(f"node {node} has a job on it and cannot be switched off; preempt the job first")
            rack.states[node] = "off"
            self._say("off", node)
        else:
            return
        self.world.nodes_changed()

    def kill(self, node: str) -> None:
        """A node dies; jobs on it wait, on all their nodes, at their last checkpoint."""
        rack = self.rack(node)
        if rack.states[node] == "down":
            return
        for job in self.jobs.values():
            if node in job.place:
                self._keep(job, self.now())
                self._leave(job, self.now())
                job.life.done = job.saved
                job.wanted = None
                self._turn(job, "waiting")
                job.why = f"node {node} went down"
                self._say("lost", job.order.name, job.why)
        rack.states[node] = "down"
        self._say("down", node)
        self.world.nodes_changed()

    def revive(self, node: str) -> None:
        """A node that was down is up again, empty."""
        rack = self.rack(node)
        if rack.states[node] == "down":
            rack.states[node] = "up"
            self._say("up", node)
            self.world.nodes_changed()
            self._settle()

    def rack(self, node: str) -> _Rack:
        """Of a node; BadSpec for one that is not here."""
        if node not in self._rack:
            raise BadSpec(f"no node is called {node!r}; there are {', '.join(self._rack)}")
        return self._rack[node]

    def power_w(self) -> float:
        """What the whole cluster really draws now."""
        return self.world.meter.watts.whole

    # How it is done.

    def _booted(self, kind: str, number: int) -> None:
        rack = next(rack for rack in self.racks if rack.kind.name == kind)
        node = rack.names[number]
        if rack.states[node] == "booting":
            rack.states[node] = "up"
            self._say("up", node)
            self.world.nodes_changed()
            self._settle()

    def _check_place(self, job: SiteJob, place: Mapping[str, int]) -> None:
        kinds = set()
        for node, gpus in place.items():
            kind = self.rack(node).kind
            kinds.add(kind.name)
            if not 1 <= gpus <= kind.gpus_per_node:
                raise BadSpec(f"{gpus} GPUs of node {node} cannot be given; it has {kind.gpus_per_node}")
        if len(kinds) != 1:
            raise BadSpec(f"a place needs nodes of one kind, not {', '.join(sorted(kinds)) or 'none'}")
        asked, given = job.order.gpus, sum(place.values())
        if not job.order.elastic and given != asked:
            raise BadSpec(f"job {job.order.name!r} has no checkpoint folder and runs on {asked} GPUs only, not {given}")

    def _settle(self) -> None:
        """Start whoever shall run and has room, in order of submission."""
        for job in self.jobs.values():
            if job.state == "waiting" and job.wanted is not None and self._room(job.wanted):
                self._start(job, job.wanted)

    def _room(self, place: Mapping[str, int]) -> bool:
        return all(
            self._rack[node].states[node] == "up" and self._rack[node].free_on[node] >= gpus
            for node, gpus in place.items()
        )

    def _start(self, job: SiteJob, place: Mapping[str, int]) -> None:
        for node, gpus in place.items():
            self._rack[node].free_on[node] -= gpus
        job.place = dict(place)
        job.setting = DEFAULT
        again = job.starts > 0
        job.life.restarts += again
        job.starts += 1
        now_s = self.now()
        self._turn(job, "starting")
        self._begin(job, now_s, now_s + self._costs.of(sum(place.values()), again=again))
        self.world.nodes_changed()

    def _begin(self, job: SiteJob, now_s: float, ready_s: float) -> None:
        rack = self._rack[next(iter(job.place))]
        way = self._way(job, rack.kind, sum(job.place.values()))
        self.world.begin(job.life, way, rack.kind, len(job.place), now_s, ready_s)

    def _way(self, job: SiteJob, kind: Kind, gpus: int) -> Way:
        """How it runs now. A truth may be a factor on what is believed, so the believed way is taken where there is
        one; with nothing set a GPU runs at its top clock, which is the fastest."""
        there = [way for way in job.life.submission.belief.ways() if way.gpus == gpus and way.kind == kind.name]
        exact = [way for way in there if way.setting == job.setting]
        if exact:
            return exact[0]
        if job.setting == DEFAULT and there:
            return min(there, key=lambda way: way.unit_s)
        return Way(gpus, 1.0, 1.0, job.setting, kind.name, job.order.batch)

    def _save(self, job: SiteJob) -> None:
        """It saves: draws as before, works no more, and is gone after ``save_s``."""
        now_s = self.now()
        self._keep(job, now_s)
        job.saving = job.life.done_at(now_s) if job.order.elastic else 0.0
        job.life.span += 1  # its end is void
        self._turn(job, "leaving")
        if self._save_s > 0:
            self.world.plan(now_s + self._save_s, SAVED, job.life)
        else:
            self._left(job, now_s)

    def _left(self, job: SiteJob, time_s: float) -> None:
        self._leave(job, time_s)
        job.saved = job.life.done = job.saving
        self._turn(job, "waiting")
        self._say("stopped", job.order.name)
        self._settle()

    def _keep(self, job: SiteJob, time_s: float) -> None:
        """Note the last checkpoint that an elastic job wrote in its present span, if it wrote one."""
        life = job.life
        since_s = max(job.saved_s, life.ready_s)
        written = (time_s - since_s) // self._checkpoint_s
        if job.order.elastic and job.state != "leaving" and written >= 1:
            job.saved_s = since_s + written * self._checkpoint_s
            job.saved = life.done_at(job.saved_s)

    def _leave(self, job: SiteJob, time_s: float) -> None:
        """It holds its GPUs no more."""
        self.world.stop(job.life, time_s)
        job.life.way = None
        for node, gpus in job.place.items():
            self._rack[node].free_on[node] += gpus
        job.place = {}
        self.world.nodes_changed()

    def _turn(self, job: SiteJob, state: JobState) -> None:
        job.state = state
        job.since_s = self.now()

    def _end(self, job: SiteJob) -> None:
        """Its work is done."""
        job.life.done = job.life.submission.work
        code = 0 if self._exits is None else self._exits(job.order)
        self._done(job, "failed" if code else "ended", code)

    def _done(self, job: SiteJob, state: Literal["ended", "failed", "cancelled"], exit_code: int | None) -> None:
        job.wanted = None
        job.exit_code = exit_code
        self._turn(job, state)
        self._say(state, job.order.name, job.why)

    def _say(self, what: str, about: str, says: str = "") -> None:
        news = Happened(self.now(), what, about, says)
        self.happened.append(news)
        self.heard.append(news)
