"""Rounds on a real cluster: a snapshot from what is seen, the round's decision, and every aim written down.

What it is: ``decide``, which brings all of a decision into the book before anything is done about it, and ``clamp``,
which meets a cap that has fallen by clocks alone, at once, and leaves resizing and stopping to the round after.
What it is not: the deciding itself (``round``) or the doing (``scheduler_acts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from joulewise.cluster.change import Move
from joulewise.cluster.engine import Order
from joulewise.cluster.fairness import Weights
from joulewise.cluster.placement import Floor
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.scheduler_energy import Energy
from joulewise.cluster.scheduler_sight import Sight
from joulewise.cluster.scheduler_track import JobRun, Track, found
from joulewise.cluster.scheduler_view import Ground, floors, ground
from joulewise.cluster.scheduler_watts import Watts
from joulewise.cluster.state import Allocation, Costs, Job, Snapshot, Way, cluster_power_w
from joulewise.cluster.within import keep_within
from joulewise.core.errors import BadSpec, EngineLost
from joulewise.core.units import format_power

# Nodes report once a period: what they draw is known that much later, and a mean over fewer periods than this is dust.
_SETTLED, _LEARNS = 2.0, 5.0
# Whoever is here has waited, if only so long: the clock of the machine that it came from may be ahead of ours.
_JUST_S = 1e-3


class Rounds:
    """``last``: the snapshot and decision of the last round; ``count``: how many there were."""

    def __init__(
        self,
        sight: Sight,
        watts: Watts,
        energy: Energy,
        round_: Round,
        costs: Costs,
        watch: Callable[[Snapshot, Decision], None] | None,
        weights: Weights,
    ) -> None:
        self._sight = sight
        self._watts = watts
        self._energy = energy
        self._round = round_
        self._costs = costs
        self._watch = watch
        self._weights = weights
        self.last: tuple[Snapshot, Decision] | None = None
        self.count = 0
        self._quiet_s: float | None = None
        self._anchored_s: float | None = None
        self._report_s = 0.0 if sight.agents is None else sight.agents.period_s

    def watch_quiet(self, now_s: float, runs: Mapping[str, JobRun]) -> None:
        """Let the purse compare the meter with what is believed only while everything is as decided.

        Between a decision and its coming true (clocks on their way, jobs that save, start or leave) the cluster draws
        something else, and that is no error of the beliefs.
        """
        sight, agents = self._sight, self._sight.agents
        quiet = not sight.silent and not sight.lost
        for name, run in runs.items():
            seen, kept = sight.seen[name], sight.book.jobs[name]
            waits = run.way is None and seen.state == "waiting"
            works = run.sure and seen.state == "running" and kept.aim is not None
            if works and agents is not None and kept.aim is not None:
                works = agents.applied(kept.id, kept.aim.version)
            quiet = quiet and (waits or works)
        if not quiet:
            self._quiet_s = self._anchored_s = None
            return
        if self._quiet_s is None:
            self._quiet_s = now_s
        if self._anchored_s is None and now_s - self._quiet_s >= _SETTLED * self._report_s:
            self._anchored_s = now_s
            self._anchor(now_s, runs)

    def _anchor(self, now_s: float, runs: Mapping[str, JobRun]) -> None:
        """From now on the meter is held against what is believed now."""
        purse = self._watts.purse
        if purse is None:
            return
        jobs_w = sum(run.way.power_w for run in runs.values() if run.way is not None)
        whole_w = sum(need.believed_w for need in self._watts.needs.values()) + self._watts.uncontrolled_w
        snapshot = Snapshot(now_s, (), (), self._costs, self._energy.meter.whole_j)
        purse.decided(snapshot, jobs_w, max(0.0, whole_w - jobs_w))

    def decide(self, now_s: float, runs: Mapping[str, JobRun]) -> None:
        """One round: decided, and every aim of it in the book; nodes are switched, jobs not yet told."""
        there = self._ground(runs)
        self._sight.due_s = math.inf
        self._sight.last_round_s = now_s
        if not there.kinds:
            return
        rigid = {name for name in runs if not self._sight.book.jobs[name].order.elastic}
        floor_of, homeless = floors(there, runs, rigid)
        jobs = self._jobs(now_s, there, runs, homeless)
        snapshot = Snapshot(now_s, there.kinds, jobs, self._costs, self._energy.meter.whole_j)
        if self._anchored_s is None or now_s - self._anchored_s < _LEARNS * self._report_s:
            self._anchor(now_s, runs)
        self._quiet_s = self._anchored_s = None
        decision = self._decided_in(snapshot, floor_of)
        if decision is None:
            self._sight.call(now_s + self._sight.period_s)
            return
        self.count += 1
        self.last = (snapshot, decision)
        if self._watch is not None:
            self._watch(snapshot, decision)
        moved = set()
        for move in decision.moves:
            moved.add(move.job)
            self._aim(now_s, move, there, runs[move.job], decision)
        for name in homeless:
            if name not in moved:
                self._sight.book.aim(now_s, name, "preempt", None, {}, "its place is gone")
        for on, switched in ((False, decision.power_off), (True, decision.power_on)):
            for kind, number in switched:
                self._power(there.names[kind][number], on=on)
        if decision.again_s is not None:
            self._sight.call(max(decision.again_s, now_s + self._sight.period_s / 2))

    def _decided_in(self, snapshot: Snapshot, floor_of: Mapping[str, Floor]) -> Decision | None:
        """The round's word; None, and that is said, where no limit can be kept by any."""
        try:
            if self._watts.purse is not None:
                self._watts.purse.power_w = None if self._watts.cap_w is None else self._watts.allowed_w()
            decision = self._round.decide(snapshot, floor_of)
        except (BadSpec, ValueError) as fault:
            # Limits that cannot be kept, or a policy that says what cannot be: what runs goes on as it is.
            self._sight.faults["round"] = f"no decision could be made: {fault}"
            return None
        self._sight.faults.pop("round", None)
        return decision

    def _aim(self, now_s: float, move: Move, there: Ground, run: JobRun, decision: Decision) -> None:
        reason = decision.allocation.reasons.get(move.job, "")
        if move.way is None:
            self._sight.book.aim(now_s, move.job, "preempt", None, {}, reason)
            return
        if move.what == "retune":
            self._retune(now_s, move.job, move.way, run, reason)
            return
        place = there.named(move.way.kind, move.place)
        self._sight.book.aim(now_s, move.job, move.what, move.way, place, reason)

    def _power(self, node: str, *, on: bool) -> None:
        try:
            self._sight.do("power", lambda: self._sight.engine.power(node, on=on))
            self._sight.faults.pop(f"power {node}", None)
        except EngineLost as lost:
            self._sight.lost = str(lost)
        except BadSpec as fault:
            # A job that was told to leave is still there, say: in the next round.
            self._sight.faults[f"power {node}"] = str(fault)
            self._sight.call(self._sight.now() + self._sight.period_s)

    def clamp(self, now_s: float, runs: Mapping[str, JobRun]) -> None:
        """The cap fell: the clocks of what runs go down at once, with the GPUs that they have."""
        there = self._ground(runs)
        jobs = self._jobs(now_s, there, runs, [])
        running = tuple(job for job in jobs if job.way is not None)
        ways = {job.name: job.way for job in running if job.way is not None}
        if not ways or self._watts.cap_w is None:
            return
        snapshot = Snapshot(now_s, there.kinds, running, self._costs)
        packed_w = cluster_power_w(snapshot, Allocation(ways)) - sum(way.power_w for way in ways.values())
        spread_w = self._others_w(there, ways)
        target_w = self._watts.allowed_w() - (spread_w - packed_w)
        kept = keep_within(snapshot, Allocation(ways), target_w).ways
        for job in running:
            way = kept.get(job.name) or min(
                (each for each in job.ways if job.way is not None and each.gpus == job.way.gpus),
                key=lambda each: each.power_w,
                default=job.way,
            )
            if way is None or job.way is None or (way.setting == job.way.setting and way.batch == job.way.batch):
                continue
            self._retune(now_s, job.name, way, runs[job.name], f"the cap fell to {format_power(self._watts.cap_w)}")
        if len(kept) == len(ways):
            # Clocks are enough: nobody has to be stopped in a hurry, so the round waits for its turn.
            return
        self._sight.due_s = now_s

    def _retune(self, now_s: float, name: str, way: Way, run: JobRun, reason: str) -> None:
        aim = self._sight.book.jobs[name].aim
        what = "retune" if run.sure or aim is None else aim.what
        self._sight.book.aim(now_s, name, what, way, run.place, reason)

    def _ground(self, runs: Mapping[str, JobRun]) -> Ground:
        held: dict[str, int] = {}
        for run in runs.values():
            for node, gpus in run.place.items():
                held[node] = held.get(node, 0) + gpus
        # A node that has come up and whose agent has not is not used yet: nobody would set its clocks.
        nodes = [
            replace(node, state="booting") if node.state == "up" and node.name in self._sight.fresh else node
            for node in self._sight.nodes
        ]
        return ground(nodes, self._sight.kinds, silent=self._sight.silent, held=held)

    def _jobs(
        self, now_s: float, there: Ground, runs: Mapping[str, JobRun], homeless: Sequence[str]
    ) -> tuple[Job, ...]:
        """The jobs of a snapshot, in order of submission; those that fit nowhere now are left out, and that is said."""
        jobs = []
        for name, run in sorted(runs.items(), key=lambda item: self._sight.book.jobs[item[0]].number):
            kept = self._sight.book.jobs[name]
            track = self._sight.track(kept)
            ways = track.ways(there.kinds, now_s)
            way = None if name in homeless else run.way
            if way is not None:
                way = found(ways, way)
            if not ways and way is None:
                unknown = self._sight.faults.get(f"belief {name}")
                self._sight.faults[f"job {name}"] = unknown or self._fits_nowhere(kept.order, track, there)
                continue
            self._sight.faults.pop(f"job {name}", None)
            order = kept.order
            whose = (order.user, order.account, order.qos)
            jobs.append(
                Job(
                    name,
                    min(order.submitted_s, now_s - _JUST_S),
                    track.work_left(),
                    ways or ((way,) if way is not None else ()),
                    order.gpus,
                    way,
                    track.gpu_s,
                    max(0, kept.starts - 1),
                    order.deadline_s,
                    self._weights.counted(order.weight, *whose),
                    order.tenant,
                    order.elastic,
                    order.user,
                    track.plain(there.kinds, self._weights.plain(order.weight, *whose)),
                )
            )
        return tuple(jobs)

    def _fits_nowhere(self, order: Order, track: Track, there: Ground) -> str:
        most = max((kind.gpus for kind in there.kinds), default=0)
        sizes = sorted({way.gpus for way in track.belief.ways()})
        return (
            f"none of its sizes ({', '.join(map(str, sizes)) or 'none'}; {order.gpus} asked) fits the {most} GPUs that "
            "there are now, on one node or on whole nodes"
        )

    def _others_w(self, there: Ground, ways: Mapping[str, Way]) -> float:
        """Hosts and idle GPUs of all powered nodes as they are now, and sleep."""
        whole_w = 0.0
        for kind in there.kinds:
            states = [there.nodes[name].state for name in there.names[kind.name]]
            on = sum(1 for state in states if state in ("up", "booting"))
            used = sum(way.gpus for way in ways.values() if way.kind == kind.name)
            idle = max(0, on * kind.gpus_per_node - used)
            off_w = kind.off_w if self._watts.sleeps else kind.empty_node_w
            whole_w += on * kind.host_w + idle * kind.idle_gpu_w + (kind.nodes - on) * off_w
        return whole_w
