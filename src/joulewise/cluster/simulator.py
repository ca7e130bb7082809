"""A cluster in virtual time: submissions in, what became of every job and joule out. Deterministic, no ticking.

What it is: an event heap around ``round``, which decides here as it would on an engine. Jobs arrive, start, are seen at
work, end at exact times; nodes boot. Rounds fall on multiples of ``period_s``, only when something has happened or the
last round asked to be called again. What really happens comes from each job's *truth*, what the scheduler thinks from
its *belief*; they are never the same object. All energy is counted: jobs, starts, idle GPUs, hosts, sleep, boots.
What it is not: a model of jobs (``model/throughput``), a policy, or a reader of traces (``traces``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from joulewise.cluster.change import Move, same_way
from joulewise.cluster.life import Belief, Life, Submission, Truth
from joulewise.cluster.outcome import JobOutcome, Meter, Outcome, Span
from joulewise.cluster.placement import Floor
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.state import Costs, Job, Kind, Snapshot, Way
from joulewise.core.errors import BadSpec
from joulewise.core.timeline import Loop, VirtualTime

__all__ = ["Belief", "Submission", "Truth", "simulate"]


def simulate(
    submissions: Iterable[Submission],
    kinds: Sequence[Kind],
    round_: Round,
    *,
    costs: Costs = Costs(),  # noqa: B008  (frozen)
    period_s: float = 60.0,
    seen_s: float = 60.0,
    patience_s: float = 7 * 86_400.0,
    progress: Callable[[int, int], None] | None = None,
    watch: Callable[[Snapshot, Decision], None] | None = None,
) -> Outcome:
    """Run until every job has ended, all that was to be switched off is off, or nothing can happen any more.

    ``seen_s``: how long a job must have worked in one way before its belief is told of it. ``patience_s``: how long
    nothing may run, while nobody else is to come, before those who wait are given up. ``progress`` is told how many
    jobs have ended, of how many; ``watch`` of every round. BadSpec for a job that asks for more than any kind has.
    """
    jobs = sorted(submissions, key=lambda job: job.submitted_s)
    _check(jobs, kinds)
    simulation = _Simulation(jobs, tuple(kinds), round_, costs, period_s, seen_s, patience_s, progress, watch)
    return VirtualTime(simulation.meter.time_s).run(simulation.loop())


def _check(jobs: Sequence[Submission], kinds: Sequence[Kind]) -> None:
    if not kinds:
        raise BadSpec("a cluster needs at least one kind of nodes")
    largest = max(kinds, key=lambda kind: kind.gpus)
    names: set[str] = set()
    for job in jobs:
        if job.gpus_asked > largest.gpus:
            raise BadSpec(
                f"job {job.name!r} asks for {job.gpus_asked} GPUs, but the cluster has {largest.gpus} "
                f"of {largest.name}; give it more nodes or leave the job out"
            )
        if job.gpus_asked < 1 or not job.work >= 0:
            raise BadSpec(f"job {job.name!r} asks for {job.gpus_asked} GPUs and {job.work} units of work")
        if job.name in names:
            raise BadSpec(f"two jobs are called {job.name!r}; names must differ")
        names.add(job.name)


# What happens at the same moment happens in this order: what frees before what asks, and the round last.
_END, _BOOT, _ARRIVAL, _WORK, _SEEN, _ROUND = range(6)

_Event = tuple[float, int, int, Life | tuple[str, int] | None, int]
"""Time, rank, number (so that equal ones keep their order), about whom, of which span."""


class _Simulation:
    def __init__(
        self,
        jobs: Sequence[Submission],
        kinds: tuple[Kind, ...],
        round_: Round,
        costs: Costs,
        period_s: float,
        seen_s: float,
        patience_s: float,
        progress: Callable[[int, int], None] | None,
        watch: Callable[[Snapshot, Decision], None] | None,
    ) -> None:
        self._kinds = kinds
        self._kind = {kind.name: kind for kind in kinds}
        self._gpus = {kind.name: kind.gpus for kind in kinds}
        self._round = round_
        self._floors: dict[str, Floor] = round_.floors(kinds)
        self._costs = costs
        self._period_s = period_s
        self._seen_s = seen_s
        self._patience_s = patience_s
        self._progress = progress
        self._watch = watch
        self._lives = [Life(job) for job in jobs]
        self._ended: dict[str, float] = {}
        self._active: dict[str, Life] = {}
        self._running = 0
        self._to_come = len(jobs)
        self._events: list[_Event] = []
        self._number = 0
        self._next_round_s: float | None = None
        self._alive_s = self._begun_s = jobs[0].submitted_s if jobs else 0.0
        self._rounds = self._boots = 0
        self._spans: list[Span] = []
        self.meter = Meter(self._begun_s)
        for life in self._lives:
            self._plan(life.submission.submitted_s, _ARRIVAL, life)
        self._nodes_changed()

    def loop(self) -> Loop[Outcome]:
        """Let it all happen, one moment after the other."""
        events, meter = self._events, self.meter
        while events:
            time_s, rank, _, about, span = heapq.heappop(events)
            if isinstance(about, Life) and span != about.span:
                continue
            if rank == _ROUND and time_s != self._next_round_s:
                continue
            if self._given_up(time_s):
                break
            if time_s > meter.time_s:
                yield time_s - meter.time_s
                meter.advance(time_s)
            if rank == _ROUND:
                self._decide(time_s)
            elif isinstance(about, Life):
                _AT[rank](self, about, time_s)
            elif about is not None:
                self._floors[about[0]].booted(about[1])
                self._nodes_changed()
                self._call(time_s)
        return self._outcome()

    # What happens.

    def _arrive(self, life: Life, time_s: float) -> None:
        self._to_come -= 1
        if life.submission.work > 0:
            self._active[life.submission.name] = life
            self._alive_s = time_s
            self._call(time_s)
        else:
            self._ended[life.submission.name] = time_s

    def _work(self, life: Life, time_s: float) -> None:
        """A job has started up and works from now on."""
        self.meter.watts.starts -= life.start_w
        self.meter.watts.jobs += life.watts
        life.works = True
        self._note()
        self._plan(time_s + self._seen_s, _SEEN, life)

    def _see(self, life: Life, time_s: float) -> None:
        """A job has worked in one way for long enough; if that changes what is believed of it, that is news."""
        assert life.way is not None
        belief = life.submission.belief
        belief.tell(life.way, life.nodes, life.unit_s, life.watts * life.unit_s)
        if belief.ways() is not life.ways:
            self._call(time_s)

    def _end(self, life: Life, time_s: float) -> None:
        assert life.way is not None
        name = life.submission.name
        self._stop(life, time_s)
        self._floors[life.way.kind].release(name)
        life.way = None
        life.done = life.submission.work
        del self._active[name]
        self._ended[name] = time_s
        self._nodes_changed()
        self._call(time_s)
        if self._progress is not None:
            self._progress(len(self._ended), len(self._lives))

    # Rounds.

    def _call(self, time_s: float) -> None:
        """Ask for a round at the next multiple of the period from ``time_s`` on."""
        at_s = ceil(time_s / self._period_s - 1e-9) * self._period_s
        if at_s < self.meter.time_s:  # the product fell a hair short of a moment that is a multiple
            at_s = self.meter.time_s
        if self._next_round_s is None or at_s < self._next_round_s:
            self._next_round_s = at_s
            self._plan(at_s, _ROUND, None)

    def _decide(self, now_s: float) -> None:
        self._next_round_s = None
        self._rounds += 1
        jobs = tuple(self._shown(life, now_s) for life in self._active.values())
        snapshot = Snapshot(now_s, self._kinds, jobs, self._costs, self.meter.joules.whole)
        decision = self._round.decide(snapshot, self._floors)
        if self._watch is not None:
            self._watch(snapshot, decision)
        for move in decision.moves:
            self._carry_out(move, now_s)
        for name, node in decision.power_on:
            self._boots += 1
            self._plan(now_s + self._kind[name].boot_s, _BOOT, (name, node))
        if decision.moves or decision.power_on or decision.power_off:
            self._nodes_changed()
        if decision.again_s is not None:
            # Not in this round again; a hair of rounding must not make it so.
            self._call(max(decision.again_s, now_s + self._period_s / 2))

    def _shown(self, life: Life, now_s: float) -> Job:
        """A job as the scheduler may see it."""
        submission = life.submission
        ways = submission.belief.ways()
        if ways is not life.ways:
            self._new_ways(life, ways)
        elif life.job is not None and life.way is None:
            return life.job
        job = life.job = Job(
            submission.name,
            submission.submitted_s,
            max(submission.belief.work_left(life.done_at(now_s)), 1e-9),
            life.fits,
            submission.gpus_asked,
            life.way,
            life.gpu_s_at(now_s),
            life.restarts,
            submission.deadline_s,
            submission.weight,
            submission.tenant,
            submission.elastic,
        )
        return job

    def _new_ways(self, life: Life, ways: tuple[Way, ...]) -> None:
        """Keep those that fit in the cluster; the one that it runs in is known by what it sets."""
        life.ways = ways
        fits = tuple(way for way in ways if way.gpus <= self._gpus.get(way.kind, 0))
        life.fits = ways if len(fits) == len(ways) else fits
        if life.way is not None:
            now = life.way
            life.way = next((way for way in fits if same_way(way, now)), now)

    def _carry_out(self, move: Move, now_s: float) -> None:
        life = self._active[move.job]
        self._alive_s = now_s
        life.job = None
        works_at_s = 0.0
        if life.way is not None:
            works_at_s = life.ready_s
            self._stop(life, now_s)
        life.way = move.way
        if move.way is None:
            return
        self._running += 1
        again = life.started_s is not None
        if life.started_s is None:
            life.started_s = now_s
        life.kind = self._kind[move.way.kind]
        life.nodes = len(move.place)
        life.unit_s, unit_j = life.submission.truth.unit(move.way, life.nodes)
        life.watts = unit_j / life.unit_s
        life.since_s = now_s
        if move.what == "retune":
            life.ready_s = works_at_s
        else:
            life.ready_s = now_s + self._costs.of(move.way.gpus, again=again)
            life.restarts += again
        life.works = life.ready_s <= now_s
        if not life.works:
            self.meter.watts.starts += life.start_w
            self._plan(life.ready_s, _WORK, life)
        else:
            self.meter.watts.jobs += life.watts
            self._plan(now_s + self._seen_s, _SEEN, life)
        left = max(0.0, life.submission.work - life.done)
        self._plan(max(now_s, life.ready_s) + left * life.unit_s, _END, life)

    def _stop(self, life: Life, time_s: float) -> None:
        """A job's span ends: by its end, a preemption or any other move."""
        assert life.way is not None
        if life.works:
            self.meter.watts.jobs -= life.watts
        else:
            self.meter.watts.starts -= life.start_w
        self._running -= 1
        if not self._running:  # no dust of rounding stays behind
            self.meter.watts.jobs = self.meter.watts.starts = 0.0
        start_s = max(0.0, min(time_s, life.ready_s) - life.since_s)
        way = life.way
        name = life.submission.name
        if time_s > life.since_s:
            self._spans.append(Span(name, life.since_s, time_s, way.gpus, life.nodes, way.setting, way.kind, start_s))
        life.close(time_s)

    # The book.

    def _plan(self, time_s: float, rank: int, about: Life | tuple[str, int] | None) -> None:
        self._number += 1
        span = about.span if isinstance(about, Life) else 0
        heapq.heappush(self._events, (time_s, rank, self._number, about, span))

    def _nodes_changed(self) -> None:
        watts = self.meter.watts
        watts.idle = watts.hosts = watts.sleeping = watts.boots = 0.0
        for floor in self._floors.values():
            kind = floor.kind
            watts.idle += floor.free * kind.idle_gpu_w
            watts.hosts += floor.on * kind.host_w
            watts.sleeping += len(floor.off) * kind.off_w
            watts.boots += len(floor.booting) * kind.boot_w
        self._note()

    def _note(self) -> None:
        floors = self._floors.values()
        self.meter.note(sum(floor.used for floor in floors), sum(floor.on for floor in floors))

    def _given_up(self, time_s: float) -> bool:
        """Nobody is to come, nobody runs, and those who wait have waited in vain for too long."""
        idle = self._active and not self._running and not self._to_come
        return bool(idle) and time_s - self._alive_s > self._patience_s

    def _outcome(self) -> Outcome:
        jobs = tuple(
            JobOutcome(
                life.submission.name,
                life.submission.submitted_s,
                life.started_s,
                self._ended.get(life.submission.name),
                life.energy_j,
                life.gpu_s,
                life.restarts,
                life.submission.deadline_s,
                life.submission.tenant,
            )
            for life in self._lives
        )
        return Outcome(
            jobs,
            self.meter.joules,
            self._begun_s,
            self.meter.time_s,
            self._rounds,
            self._boots,
            self.meter.watts.whole,
            self.meter.series,
            self._spans,
        )


_AT: dict[int, Callable[[_Simulation, Life, float], None]] = {
    _END: _Simulation._end,
    _ARRIVAL: _Simulation._arrive,
    _WORK: _Simulation._work,
    _SEEN: _Simulation._see,
}
