"""What a scheduler has before its eyes: engine, agents, book and jobs as last seen, and when it must decide again.

What it is: the one state that the parts of a scheduler share. All of it but the book is rebuilt from what the engine
and the agents say; while the engine does not answer (``lost``), the last that it showed stands.
What it is not: a decision (``scheduler_rounds``), an act (``scheduler_acts``) or a limit (``scheduler_watts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.engine import DONE, Engine, JobSeen, NodeSeen, Order
from joulewise.cluster.life import Belief
from joulewise.cluster.queue import Book, Kept
from joulewise.cluster.scheduler_acts import done
from joulewise.cluster.scheduler_track import JobRun, NoBelief, Track, found
from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec, EngineLost

T = TypeVar("T")
# A job that a prolog has claimed GPUs for is claimed within a second or two; its node's agent looks every second.
_CLAIMED_S = 30.0


class Sight:
    """``step`` is called before and after every effect; ``period_s``: how far apart rounds are at least."""

    def __init__(
        self,
        engine: Engine,
        book: Book,
        agents: AgentDesk | None,
        *,
        kinds: Sequence[Kind],
        most_gpu_w: Mapping[str, float],
        believe: Callable[[Order], Belief],
        plain: Callable[[Order], Belief] | None,
        now: Callable[[], float],
        step: Callable[[str], None],
        period_s: float,
    ) -> None:
        self.engine = engine
        self.book = book
        self.agents = agents
        self.kinds = {kind.name: kind for kind in kinds}
        self.most_gpu_w = dict(most_gpu_w)
        self.now = now
        self.step = step
        self.period_s = period_s
        self._believe = believe
        self._plain = plain
        self.tracks: dict[str, Track] = {}
        self.nodes: tuple[NodeSeen, ...] = ()
        self.seen: dict[str, JobSeen] = {}
        self.missing: dict[str, float] = {}
        """Jobs that are not over and that the engine does not show, since when; the last that it showed stands."""
        self.silent: frozenset[str] = frozenset()
        """Nodes whose agents say nothing though they should."""
        self.fresh: set[str] = set()
        """Nodes that have booted and were not heard of since: nothing of ours has run there yet."""
        self._up_s: dict[str, float] = {}
        """When those of them that are up were first seen so."""
        self.lost = ""
        """Why the engine does not answer; empty: it does."""
        self.taken = False
        self.faults: dict[str, str] = {}
        """What an operator should know, by what it is about."""
        self.refused: set[tuple[str, int]] = set()
        self._unclaimed_s: dict[str, float] = {}
        """Jobs that run on a node that knows of no claim for them, since when."""
        self.due_s = math.inf
        self.last_round_s: float | None = None
        self._time_s = -math.inf

    def led(self) -> None:
        """A new epoch: what was known of jobs is looked up anew, and the engine is taken."""
        self.tracks.clear()
        self.taken = False
        try:
            self.do("take", lambda: self.engine.take(self.book.epoch))
            self.taken, self.lost = True, ""
        except EngineLost as lost:
            self.lost = str(lost)

    def keep_time(self, now_s: float) -> None:
        """A clock that was set back takes the times of rounds with it: they must not wait until it is there again."""
        back_s = self._time_s - now_s
        self._time_s = now_s
        if back_s > 0:
            self.due_s -= back_s
            if self.last_round_s is not None:
                self.last_round_s -= back_s

    def see(self, now_s: float) -> None:
        """What the engine shows; the last known while it does not answer."""
        try:
            if self.lost and not self.taken:
                self.do("take", lambda: self.engine.take(self.book.epoch))
                self.taken = True
            nodes, jobs = self.engine.nodes(), self.engine.jobs()
        except EngineLost as lost:
            self.lost = str(lost)
            return
        if self.lost:
            self.call(now_s)
            self.missing.clear()  # it may need a while to know everything again
        self.lost = ""
        states = {node.name: (node.state, node.gpus, node.foreign_gpus) for node in self.nodes}
        if states != {node.name: (node.state, node.gpus, node.foreign_gpus) for node in nodes}:
            self.call(now_s)
        for node in nodes:
            was = states.get(node.name)
            if node.state in ("off", "booting"):
                self.fresh.add(node.name)
                self._up_s.pop(node.name, None)
            elif node.name in self.fresh and (was is None or self._awake(node, now_s)):
                self.fresh.discard(node.name)
                self.call(now_s)
            if node.kind not in self.kinds:
                known = ", ".join(self.kinds)
                self.faults[f"node {node.name}"] = (
                    f"node {node.name} is of kind {node.kind!r}, which is not described; known: {known}"
                )
        self.nodes = nodes
        shown = {job.name: job for job in jobs}
        for name, kept in self.book.jobs.items():
            if kept.over or name in shown:
                self.missing.pop(name, None)
                continue
            self.missing[name] = min(now_s, self.missing.get(name, now_s))
            if name in self.seen:
                shown[name] = self.seen[name]
        self.seen = shown

    def _awake(self, node: NodeSeen, now_s: float) -> bool:
        """Whether a node that has booted was heard of, or has had time enough for it: then it is silent."""
        agents = self.agents
        if agents is None or agents.heard(node.name):
            return True
        up_s = self._up_s[node.name] = min(now_s, self._up_s.get(node.name, now_s))
        kind = self.kinds.get(node.kind)
        return now_s - up_s > agents.lost_s + (0.0 if kind is None else kind.boot_s)

    def watch_agents(self, now_s: float) -> None:
        """Which nodes are silent, and which decisions were refused."""
        agents = self.agents
        if agents is None:
            return
        silent = frozenset(
            node.name
            for node in self.nodes
            if node.state != "off" and node.name not in self.fresh and agents.silent_s(node.name) > agents.lost_s
        )
        if silent != self.silent:
            self.silent = silent
            self.call(now_s)
        doubts = agents.doubts()
        for told in [told for told in self.faults if told.startswith("agent ")]:
            if told.removeprefix("agent ") not in doubts:
                del self.faults[told]
        self.faults.update({f"agent {name}": why for name, why in doubts.items()})
        by_id = {kept.id: kept for kept in self.book.jobs.values() if not kept.over}
        for refusal in agents.refusals():
            key = (refusal.id, refusal.version)
            kept = by_id.get(refusal.id)
            if kept is None or key in self.refused:
                continue
            self.refused.add(key)
            if kept.aim is not None and kept.aim.way is not None and kept.aim.version == refusal.version:
                self.track(kept).refuse(kept.aim.way, now_s)
                self.call(now_s)
            name = kept.order.name
            self.faults[f"refused {name}"] = f"Node {refusal.node} refused its setting: {refusal.why}"
        for name in [key.removeprefix("refused ") for key in self.faults if key.startswith("refused ")]:
            followed = self.tracks.get(name)
            if followed is None or not followed.refuses(now_s):
                del self.faults[f"refused {name}"]
        self._watch_claims(agents.unclaimed(), now_s)

    def _watch_claims(self, unclaimed: Mapping[str, tuple[str, ...]], now_s: float) -> None:
        """Which jobs run, for longer than a start takes, where nobody has claimed GPUs for them."""
        where = {
            name: unclaimed[seen.id]
            for name, seen in self.seen.items()
            if seen.state == "running" and seen.id in unclaimed and not set(unclaimed[seen.id]) & self.silent
        }
        self._unclaimed_s = {name: self._unclaimed_s.get(name, now_s) for name in where}
        for told in [told for told in self.faults if told.startswith("claim ")]:
            if told.removeprefix("claim ") not in where:
                del self.faults[told]
        for name, since_s in self._unclaimed_s.items():
            if now_s - since_s > _CLAIMED_S:
                self.faults[f"claim {name}"] = (
                    f"job {name} runs on {', '.join(where[name])} and its GPUs are not claimed there: it is neither "
                    "tuned nor counted; see whether the node's prolog runs 'joulewise grant'"
                )

    def track(self, kept: Kept) -> Track:
        """What is followed of a job, from where the book left it."""
        track = self.tracks.get(kept.order.name)
        if track is None or track.order != kept.order:
            name = kept.order.name
            try:
                plain = None if self._plain is None else self._plain(kept.order)
                track = Track(kept.order, self._believe(kept.order), plain=plain, done=kept.done, gpu_s=kept.gpu_s)
                track.ways(self.kinds.values(), self.now())
                track.work_left()
                self.faults.pop(f"belief {name}", None)
            except Exception as fault:
                # One job that cannot be understood, whatever its user wrote, must not keep the others from being
                # scheduled.
                said = str(fault) if isinstance(fault, BadSpec) else f"{type(fault).__name__}: {fault}"
                self.faults[f"belief {name}"] = f"job {name} cannot be scheduled: {said}"
                track = Track(kept.order, NoBelief(), done=kept.done, gpu_s=kept.gpu_s)
            self.tracks[name] = track
        return track

    def runs(self) -> dict[str, JobRun]:
        """How every job that is not over counts: what it has, or is on its way to."""
        runs: dict[str, JobRun] = {}
        for name, kept in self.book.jobs.items():
            seen = self.seen.get(name)
            if kept.over or seen is None or seen.state in DONE or (kept.aim is not None and kept.aim.what == "stop"):
                continue
            aim = kept.aim
            if aim is None or aim.way is None:
                runs[name] = JobRun()
            else:
                way = found(self.track(kept).belief.ways(), aim.way)
                runs[name] = JobRun(way, dict(aim.place), sure=done(kept, seen))
        return runs

    def call(self, at_s: float) -> None:
        """Ask for a round at ``at_s``, or as soon after the last one as may be."""
        if self.last_round_s is not None:
            at_s = max(at_s, self.last_round_s + self.period_s)
        self.due_s = min(self.due_s, at_s)

    def do(self, what: str, effect: Callable[[], T]) -> T:
        """An effect, between two steps."""
        self.step(f"before {what}")
        result = effect()
        self.step(f"after {what}")
        return result
