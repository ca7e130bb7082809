"""The scheduler of a real cluster: one process that looks, decides, writes down, acts, and can be killed at any point.

What it is: the loop around ``round`` on an engine. One pass (``look``): wait for something to happen, see what the
engine and the agents show, bring the book up to it, decide if a round is due, write every aim down, say what is left to
be said to the engine, declare clocks and ceilings to the agents. Nothing that it must not lose is in memory alone:
after a kill a new one takes the journal over (``lead``), fences the old one, and says what is aimed at again.

A cap that falls acts at once: ceilings go down in the same call, clocks of what runs in the same pass; only the round
after that resizes or stops anybody. When the engine does not answer, clocks and caps still hold through the agents.
What it is not: a policy (``allocators``), a limit (``limits``), an actuator of clocks (the agents) or a server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.engine import Engine, Order
from joulewise.cluster.explain import explain
from joulewise.cluster.fairness import Weights
from joulewise.cluster.life import Belief
from joulewise.cluster.limits import Limits
from joulewise.cluster.progress import Progress
from joulewise.cluster.progress import read as read_progress
from joulewise.cluster.purse import Purse
from joulewise.cluster.queue import Book
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.scheduler_energy import Energy
from joulewise.cluster.scheduler_follow import Following
from joulewise.cluster.scheduler_hands import Hands
from joulewise.cluster.scheduler_rounds import Rounds
from joulewise.cluster.scheduler_shown import Shown
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_status import JobStatus, NodeStatus, Status
from joulewise.cluster.scheduler_watts import Watts
from joulewise.cluster.state import Costs, Kind, Snapshot
from joulewise.core.caller import Caller, uid_of
from joulewise.core.errors import BadSpec, EngineLost, NotKept, NotPermitted
from joulewise.core.event import Limited
from joulewise.store.journal import Journal

__all__ = ["JobStatus", "NodeStatus", "Scheduler", "Status"]


class Scheduler:
    """Schedules one cluster.

    ``kinds``: what is known of each kind of nodes (their number comes from the engine); ``most_gpu_w``: by kind, the
    most that one GPU can draw. ``believe``: what is thought of a job at first. ``agents``: None where clocks are not
    set. ``plain``: what is thought of any job that asks for as much, so that no user's word lowers another's GPUs
    (``fairness``); None: all are believed. ``weights``: how much theirs may count. ``limits`` and ``purse``: the purse
    must be the one that ``round_`` has. ``period_s``: rounds are so far apart at least; ``watch_s``: the longest wait
    of a pass; ``seen_s``: how long a job runs in one way before its belief is told; ``account_s``: how often energies
    are written down. ``progress``: how far a job's script is. ``step`` is called with a name before and after every
    effect (tests kill there). ``now``: seconds since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        round_: Round,
        *,
        kinds: Sequence[Kind],
        most_gpu_w: Mapping[str, float],
        journal: Journal,
        believe: Callable[[Order], Belief],
        now: Callable[[], float],
        plain: Callable[[Order], Belief] | None = None,
        weights: Weights = Weights(),  # noqa: B008  (frozen)
        agents: AgentDesk | None = None,
        limits: Limits | None = None,
        purse: Purse | None = None,
        costs: Costs = Costs(),  # noqa: B008  (frozen)
        period_s: float = 10.0,
        watch_s: float = 1.0,
        seen_s: float = 60.0,
        account_s: float = 60.0,
        progress: Callable[[Order], Progress | None] | None = None,
        step: Callable[[str], None] | None = None,
        watch: Callable[[Snapshot, Decision], None] | None = None,
    ) -> None:
        round_.keep_rigid = True
        self._watch_s = watch_s
        self._agents = agents
        self._weights = weights
        self._now = now
        self._lock = threading.RLock()
        told = step or (lambda _: None)
        self.book = Book(journal, watch=told)
        self.limits = limits or Limits()
        self._sight = Sight(
            engine,
            self.book,
            agents,
            kinds=kinds,
            most_gpu_w=most_gpu_w,
            believe=believe,
            plain=plain,
            now=now,
            step=told,
            period_s=period_s,
        )
        self._hands = Hands(self._sight)
        self._watts = Watts(self._sight, self.limits, purse, sleeps=round_.sleeps, watch_s=watch_s)
        self._energy = Energy(
            self._sight, self._watts, progress=progress or _progress, seen_s=seen_s, account_s=account_s
        )
        self._following = Following(self._sight, self._hands.said, self._energy)
        self._rounds = Rounds(self._sight, self._watts, self._energy, round_, costs, watch, weights)
        self._shown = Shown(self._sight, self._watts, self._energy, self._rounds, weights)
        self._status: Status | None = None
        self._wait_s = 0.0

    # From outside.

    def lead(self) -> int:
        """Take the cluster over: a new epoch, the book as it was left, whatever the engine runs taken in; the epoch."""
        with self._lock:
            now_s = self._now()
            epoch = self.book.lead(now_s)
            self._watts.led(now_s)
            self._energy.led(now_s)
            self._hands.led()
            if self._agents is not None:
                self._agents.lead(epoch)
                self._agents.forget(kept.id for kept in self.book.jobs.values() if kept.settled)
            self._sight.led()
            self._sight.call(now_s)
            return epoch

    def run(self, stop: threading.Event) -> None:
        """Look until ``stop`` is set. Fenced where another scheduler takes over."""
        while not stop.is_set():
            wait_s = self.look()
            if self._sight.lost or "engine" in self._sight.faults:
                stop.wait(min(wait_s, self._watch_s))

    def look(self) -> float:
        """One pass; for how long the next one may wait, in seconds, if nothing happens."""
        sight = self._sight
        answers = True
        try:
            sight.engine.wait(self._wait_s)  # what happened is seen in what is: nothing depends on being told of it
        except EngineLost as lost:
            sight.lost, answers = str(lost), False
        except BadSpec as fault:
            # One thing that the engine would not do; whoever asked for it asks again, or decides anew.
            sight.faults["engine"] = str(fault)
        else:
            sight.faults.pop("engine", None)
        with self._lock:
            now_s = self._now()
            try:
                self._pass(now_s, answers=answers)
                sight.faults.pop("journal", None)
            except NotKept as fault:
                # Nothing is done that is not written down; agents go on holding what they were told.
                sight.faults["journal"] = str(fault)
                sight.call(now_s + self._watch_s)
            self._wait_s = self._until(now_s)
            self._status = self._shown.made(now_s)
            return self._wait_s

    def cap(
        self,
        cap_w: float | None,
        *,
        at_s: float | None = None,
        for_s: float | None = None,
        ramp_w_per_s: float | None = None,
        by: Caller | None = None,
    ) -> None:
        """The operator's word on watts; None: no limit. Ceilings follow in this call, clocks in the next pass.

        ``by``: whose word it is, for the journal. BadSpec for a cap below what the cluster draws with nothing to do;
        the old one then stays.
        """
        with self._watts.lock:
            now_s = self._now()
            word = self.limits.cap(now_s, cap_w, at_s=at_s, for_s=for_s, ramp_w_per_s=ramp_w_per_s)
            self._watts.limited(_said_by(word, by))
            self._watts.limit(now_s)

    def budget(self, energy_j: float | None, period_s: float = 86_400.0, *, by: Caller | None = None) -> None:
        """The operator's word on joules for every ``period_s``; None: no limit. BadSpec for less than idle power."""
        with self._watts.lock:
            self._watts.limited(_said_by(self.limits.budget(self._now(), energy_j, period_s), by))

    def submit(self, order: Order, *, by: Caller | None = None) -> str:
        """Hand a job in, for engines without a queue of their own; its id. It is ``by``'s from then on. BadSpec for
        what can never run."""
        with self._lock:
            known = self.book.jobs.get(order.name)
            there = known if known is not None and not known.over else None
            if order.submitted_s <= 0:
                # The same order again is the same job, and the engine knows it by its time as well.
                order = replace(order, submitted_s=self._now() if there is None else there.order.submitted_s)
            self._check_size(order)
            id_ = self._sight.do("submit", lambda: self._sight.engine.submit(order, by))
            self._sight.call(self._now())
            return id_

    def cancel(self, name: str, *, by: Caller) -> None:
        """End a job for good. BadSpec for one that is not here, or is over; NotPermitted for another user's job, unless
        ``by`` is an operator. Whose it is the engine says, never its order."""
        kept = self.book.jobs.get(name)
        if kept is None or kept.over:
            raise BadSpec(f"no job called {name!r} is here that could be cancelled; see 'joulewise cluster status'")
        seen = self._sight.seen.get(name)
        owner = seen.uid if seen is not None and seen.id == kept.id else uid_of(kept.by)
        own = owner is not None and by.uid == owner
        if not (own or by.operator):
            raise NotPermitted(f"job {name!r} is not yours; its owner and operators may cancel it")
        who = str(by)
        why = "cancelled by its user" if own else f"cancelled by {who}" if who else "cancelled"
        # Of that very job: another may have come to its name meanwhile.
        self.book.aim(self._now(), name, "stop", None, {}, why, by=by.facts, number=kept.number)

    def status(self) -> Status:
        """How the cluster stands, as of the last pass."""
        status = self._status
        if status is None:
            with self._lock:
                return self._shown.made(self._now())
        return status

    def explain(self, name: str) -> str:
        """Why a job runs as it does, or waits. BadSpec for one that is not here."""
        kept = self.book.jobs.get(name)
        if kept is None:
            names = ", ".join(list(self.book.jobs)[:5]) or "none"
            raise BadSpec(f"no job here is called {name!r}; those there are: {names}")
        if kept.over:
            return f"{name} is over: {kept.state}{f' ({kept.why})' if kept.why else ''}."
        last = self._rounds.last
        if last is None or all(job.name != name for job in last[0].jobs):
            why = self._sight.faults.get(f"job {name}")
            return f"{name} waits: {why}." if why else f"{name} waits for the next round."
        snapshot, decision = last
        job = next(job for job in snapshot.jobs if job.name == name)
        given = decision.allocation.ways.get(name)
        moved = any(move.job == name for move in decision.moves)
        held = given is not None and not moved and (job.way is None or job.way.gpus != given.gpus)
        said = explain(snapshot, decision.budget, decision.allocation, name, held_back=held)
        order = kept.order
        counts = self._weights.clipped(order.weight, order.user, order.account, order.qos)
        more = f"{counts[0].upper()}{counts[1:]}." if counts else ""
        return " ".join(part for part in (said, more, self._sight.faults.get(f"refused {name}")) if part)

    # One pass.

    def _pass(self, now_s: float, *, answers: bool) -> None:
        sight = self._sight
        sight.keep_time(now_s)
        if answers:  # an engine that is away lets every question wait
            sight.see(now_s)
        self._watts.idle()
        fell = self._watts.watch(now_s)
        if not sight.lost:
            self._following.take_in(now_s)
        sight.watch_agents(now_s)
        runs = sight.runs()
        self._energy.measure(now_s, runs)
        self._rounds.watch_quiet(now_s, runs)
        if fell:
            self._rounds.clamp(now_s, runs)
            runs = sight.runs()
        if not sight.lost and now_s >= sight.due_s - 1e-9 and sight.nodes:
            self._rounds.decide(now_s, runs)
        if not sight.lost:
            self._hands.carry_out(now_s)
        self._watts.declare(now_s)
        self._energy.account(now_s)

    def _until(self, now_s: float) -> float:
        times = [self._sight.due_s, now_s + self._watch_s]
        if (next_s := self.limits.at(now_s).next_s) is not None:
            times.append(next_s)
        return max(0.0, min(times) - now_s)

    def _check_size(self, order: Order) -> None:
        widths = [node.gpus for node in self._sight.nodes if node.state != "down"]
        if not widths:
            return
        width, whole = max(widths), sum(widths)
        if order.gpus < 1 or order.gpus > whole or (order.gpus > width and order.gpus % width):
            raise BadSpec(
                f"job {order.name!r} asks for {order.gpus} GPUs, which no place here has: 1 to {width} on one node, or "
                f"whole nodes of {width} up to {whole}"
            )


def _said_by(word: Limited, by: Caller | None) -> Limited:
    return word if by is None else replace(word, facts={**word.facts, "by": by.facts})


def _progress(order: Order) -> Progress | None:
    return None if order.checkpoint is None else read_progress(order.checkpoint)
