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
from joulewise.cluster.limits import Limits
from joulewise.cluster.outcome import JobOutcome, Outcome
from joulewise.cluster.placement import Floor
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.state import Costs, Job, Kind, Snapshot, Way
from joulewise.cluster.world import ARRIVAL, BOOT, END, LIMIT, ROUND, SEEN, WORK, World
from joulewise.core.errors import BadSpec
from joulewise.core.event import Limited
from joulewise.core.timeline import Loop, VirtualTime

# A cap that moves along a ramp is followed in steps of so many seconds, each at the lowest in it.
_RAMP_S = 10.0

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
    limits: Limits | None = None,
    signals: Iterable[Limited] = (),
) -> Outcome:
    """Run until every job has ended, all that was to be switched off is off, or nothing can happen any more.

    ``seen_s``: how long a job must have worked in one way before its belief is told of it. ``patience_s``: how long
    nothing may run, while nobody else is to come, before those who wait are given up. ``progress`` is told how many
    jobs have ended, of how many; ``watch`` of every round. ``limits``: a cap that changes with time, kept by the
    round's purse; ``signals`` are heard when their time comes, and not before. Where the cap falls, clocks fall in the
    same moment if that is enough, and else there is a round. BadSpec for a job that asks for more than any kind has.
    """
    jobs = sorted(submissions, key=lambda job: job.submitted_s)
    _check(jobs, kinds)
    simulation = _Simulation(jobs, tuple(kinds), round_, costs, period_s, seen_s, patience_s, progress, watch)
    if limits is not None:
        simulation.limit(limits, sorted(signals, key=lambda signal: signal.time_s))
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
        self._patience_s = patience_s
        self._progress = progress
        self._watch = watch
        self._lives = [Life(job) for job in jobs]
        self._ended: dict[str, float] = {}
        self._active: dict[str, Life] = {}
        self._to_come = len(jobs)
        self._next_round_s: float | None = None
        self._alive_s = self._begun_s = jobs[0].submitted_s if jobs else 0.0
        self._rounds = self._boots = 0
        self._world = World(self._begun_s, tuple(self._floors.values()), seen_s)
        self.meter = self._world.meter
        for life in self._lives:
            self._world.plan(life.submission.submitted_s, ARRIVAL, life)
        self._world.nodes_changed()
        self._limits: Limits | None = None
        self._signals: list[Limited] = []

    def limit(self, limits: Limits, signals: list[Limited]) -> None:
        """Keep a cap that changes with time."""
        if self._round.purse is None:
            raise BadSpec("a cap that changes with time needs a purse that keeps it; give the round one")
        self._limits, self._signals = limits, signals
        for signal in signals:
            self._world.plan(max(signal.time_s, self._begun_s), LIMIT, None)
        self._world.plan(self._begun_s, LIMIT, None)

    def loop(self) -> Loop[Outcome]:
        """Let it all happen, one moment after the other."""
        events, meter = self._world.events, self.meter
        while events:
            time_s, rank, _, about, span = heapq.heappop(events)
            if isinstance(about, Life) and span != about.span:
                continue
            if rank == ROUND and time_s != self._next_round_s:
                continue
            if rank == LIMIT and not self._active and not self._to_come:
                continue  # nobody is left whom it could concern
            if self._given_up(time_s):
                break
            if time_s > meter.time_s:
                yield time_s - meter.time_s
                meter.advance(time_s)
            if rank == ROUND:
                self._decide(time_s)
            elif rank == LIMIT:
                self._relimit(time_s)
            elif isinstance(about, Life):
                if rank == WORK:
                    self._world.work(about, time_s)
                else:
                    _AT[rank](self, about, time_s)
            elif about is not None:
                self._floors[about[0]].booted(about[1])
                self._world.nodes_changed()
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
        self._world.stop(life, time_s)
        self._floors[life.way.kind].release(name)
        life.way = None
        life.done = life.submission.work
        del self._active[name]
        self._ended[name] = time_s
        self._world.nodes_changed()
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
            self._world.plan(at_s, ROUND, None)

    def _relimit(self, now_s: float) -> None:
        """The cap has changed, or is about to: down at once, by clocks if they are enough; up in the next round."""
        assert self._limits is not None
        while self._signals and self._signals[0].time_s <= now_s:
            self._limits.hear(self._signals.pop(0))
        next_s = self._limits.at(now_s).next_s
        if next_s is not None:
            self._world.plan(max(next_s, now_s + _RAMP_S), LIMIT, None)
        if self._keep_cap(now_s) and self._active:
            snapshot = self._snapshot(now_s)
            decision = self._round.slow(snapshot, self._floors)
            if decision is None:
                self._decide(now_s)
            else:
                self._bring_about(decision, now_s, snapshot)
        if self._active:
            self._call(now_s)

    def _keep_cap(self, now_s: float) -> bool:
        """Hand the cap to the purse; whether it is lower than before. On a ramp that is the lowest until the next
        look."""
        purse = self._round.purse
        if self._limits is None or purse is None:
            return False
        purse.rebudget(self._limits.energy_j, self._limits.period_s)
        before_w, purse.power_w = purse.power_w, self._limits.lowest_w(now_s, now_s + _RAMP_S)
        return purse.power_w is not None and (before_w is None or purse.power_w < before_w)

    def _snapshot(self, now_s: float) -> Snapshot:
        jobs = tuple(self._shown(life, now_s) for life in self._active.values())
        return Snapshot(now_s, self._kinds, jobs, self._costs, self.meter.joules.whole)

    def _decide(self, now_s: float) -> None:
        self._next_round_s = None
        self._keep_cap(now_s)
        snapshot = self._snapshot(now_s)
        self._bring_about(self._round.decide(snapshot, self._floors), now_s, snapshot)

    def _bring_about(self, decision: Decision, now_s: float, snapshot: Snapshot) -> None:
        self._rounds += 1
        if self._watch is not None:
            self._watch(snapshot, decision)
        for move in decision.moves:
            self._carry_out(move, now_s)
        for name, node in decision.power_on:
            self._boots += 1
            self._world.plan(now_s + self._kind[name].boot_s, BOOT, (name, node))
        if decision.moves or decision.power_on or decision.power_off:
            self._world.nodes_changed()
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
            self._world.stop(life, now_s)
        if move.way is None:
            life.way = None
            return
        if move.what == "retune":
            ready_s = works_at_s
        else:
            again = life.started_s is not None
            ready_s = now_s + self._costs.of(move.way.gpus, again=again)
            life.restarts += again
        self._world.begin(life, move.way, self._kind[move.way.kind], len(move.place), now_s, ready_s)

    def _given_up(self, time_s: float) -> bool:
        """Nobody is to come, nobody runs, and those who wait have waited in vain for too long."""
        idle = self._active and not self._world.running and not self._to_come
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
            self._world.spans,
        )


_AT: dict[int, Callable[[_Simulation, Life, float], None]] = {
    END: _Simulation._end,
    ARRIVAL: _Simulation._arrive,
    SEEN: _Simulation._see,
}
