"""The least change from how jobs run now to how a policy wants them to run, worked out on the floors.

What it is: the comparison of a snapshot with an allocation, and the placing that follows from it: who is preempted,
started, resized, retuned, and who has to be moved for that. Where powered nodes have not enough room, those who would
start or grow are held back. Where there is room in pieces only, others are moved for one that starts if that costs
less than the wait for a node, and for one that grows if that costs less than it gains; else it stays as it is. They are
moved at any cost for a start with no node to wait for, and for a job that shrinks or changes its kind: its old room has
been given to others.
What it is not: a policy, a limit of watts or the switching of nodes (``round`` puts all these together).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from joulewise.cluster.placement import Floor, Place
from joulewise.cluster.state import Allocation, Job, Snapshot, Way

What = Literal["start", "resize", "retune", "preempt", "migrate"]

# Emptying a node may cost each job on it at most this share of the time that it still has to run …
_MOVE_SHARE = 0.01
# … and must save this many times the joules that the restarts cost: the gap is only an expectation.
_MOVE_GAIN = 2.0


@dataclass(frozen=True, slots=True)
class Move:
    """One thing to do about one job. ``way`` and ``place`` are what it has afterwards: None and empty if preempted."""

    job: str
    what: What
    way: Way | None
    place: Place


def same_way(a: Way, b: Way) -> bool:
    """Whether two ways set the same things, whatever is believed of their time and energy."""
    return a is b or (a.gpus == b.gpus and a.kind == b.kind and a.setting == b.setting and a.batch == b.batch)


class Change:
    """The way from how jobs run now to an allocation, on the floors."""

    def __init__(self, snapshot: Snapshot, allocation: Allocation, floors: Mapping[str, Floor]) -> None:
        self._snapshot = snapshot
        self._ways = allocation.ways
        self._floors = floors
        self._moves: dict[str, tuple[What, Way | None]] = {}

    def make(self, may_wait_s: Mapping[str, float]) -> dict[str, int]:
        """Place everybody who has room; by kind, the GPUs that those want who have to wait for nodes."""
        moving = self._compare()
        if not moving:
            return {}
        if not any(self._grows(name) for name in moving) and not any(floor.strict for floor in self._floors.values()):
            return self._place(moving, may_wait_s)[0]
        noted = self._moves
        while True:
            before = {name: floor.saved() for name, floor in self._floors.items()}
            self._moves = dict(noted)
            short, stay = self._place(moving[:], may_wait_s)
            if not stay:
                return short
            # Their places may be taken by now: place everybody anew, without them. Each time there are fewer.
            for name, floor in self._floors.items():
                floor.restore(before[name])
            moving = [name for name in moving if name not in stay]

    def _place(self, moving: list[str], may_wait_s: Mapping[str, float]) -> tuple[dict[str, int], set[str]]:
        """Place those who move; by kind, the GPUs to be waited for, and who should rather not have grown."""
        short = self._hold_back(moving)
        stay: set[str] = set()
        for name in moving:
            was = self._jobs[name].way
            if was is not None:
                self._floors[was.kind].release(name)
        # The largest first: small ones fit in what large ones leave. Ties by the order of the policy.
        for name in sorted(moving, key=lambda name: -self._ways[name].gpus):
            way = self._ways[name]
            floor = self._floors[way.kind]
            if floor.place(name, way.gpus) is None:
                worth_s = may_wait_s.get(way.kind) if self._jobs[name].way is None else self._gain_s(name)
                if self._make_room(name, way, floor, worth_s):
                    continue
                if self._jobs[name].way is not None:
                    stay.add(name)
                    continue
                del self._moves[name]
                short[way.kind] = short.get(way.kind, 0) + way.gpus
        return short, stay

    def empty_a_node(self, floor: Floor) -> None:
        """Move the jobs of the emptiest node elsewhere, if there is room on nodes in use and it pays."""
        kind = floor.kind
        if floor.used > (floor.busy - 1) * kind.gpus_per_node:
            return  # they would not fit by number
        candidates = floor.least_used()
        if not candidates:
            return
        node = candidates[0]
        tenants = floor.on_node(node)
        rest_s = [self._rest_s(name) for name in tenants]
        restarts_j = 0.0
        for (name, _), left_s in zip(tenants.items(), rest_s, strict=True):
            way = self._way_now(name)
            cost_s = self._snapshot.costs.of(way.gpus, again=True)
            if cost_s > _MOVE_SHARE * left_s:
                return
            restarts_j += cost_s * way.gpus * (kind.idle_gpu_w + kind.slot_w)
        # Without the move the node stays on until the last of its jobs ends.
        saved_j = (kind.empty_node_w - kind.off_w) * max(rest_s)
        if saved_j < _MOVE_GAIN * (restarts_j + kind.boot_s * kind.boot_w):
            return
        for name in floor.vacate(node) or ():
            self._moved(name)

    @property
    def power_w(self) -> float:
        """What all jobs are believed to draw after the change, hosts apart."""
        whole = 0.0
        for job in self._snapshot.jobs:
            what = self._moves.get(job.name)
            way = job.way if what is None else what[1]
            if way is not None:
                whole += way.power_w
        return whole

    def gpus(self) -> dict[str, dict[str, int]]:
        """GPUs after the change: user → kind → how many."""
        held: dict[str, dict[str, int]] = {}
        for job in self._snapshot.jobs:
            what = self._moves.get(job.name)
            way = job.way if what is None else what[1]
            if way is not None:
                own = held.setdefault(job.user, {})
                own[way.kind] = own.get(way.kind, 0) + way.gpus
        return held

    def moves(self) -> tuple[Move, ...]:
        """What is to be done: first all that frees, then the rest, each in the order in which it was decided."""
        done = [
            Move(name, what, way, () if way is None else self._floors[way.kind].place_of(name))
            for name, (what, way) in self._moves.items()
        ]
        return tuple(sorted(done, key=lambda move: move.what != "preempt"))

    def _compare(self) -> list[str]:
        """Note retunes and preemptions (these leave the floor at once); who starts or changes size, in policy order."""
        changed = set()
        for job in self._snapshot.jobs:
            way = self._ways.get(job.name)
            was = job.way
            if way is was:
                continue
            if way is None:
                assert was is not None
                self._floors[was.kind].release(job.name)
                self._moves[job.name] = ("preempt", None)
            elif was is not None and way.gpus == was.gpus and way.kind == was.kind:
                if not same_way(way, was):
                    self._moves[job.name] = ("retune", way)
            else:
                changed.add(job.name)
        return [name for name in self._ways if name in changed] if changed else []

    def _hold_back(self, moving: list[str]) -> dict[str, int]:
        """Note starts and resizes; take out of ``moving`` those for whom powered nodes have no room, last ones first
        served last. By kind, the GPUs that these lack."""
        room = {name: floor.free for name, floor in self._floors.items()}
        for name in moving:
            way, was = self._ways[name], self._jobs[name].way
            room[way.kind] -= way.gpus
            if was is not None:
                room[was.kind] += was.gpus
            self._moves[name] = ("start" if was is None else "resize", way)
        short: dict[str, int] = {}
        while over := [kind for kind, left in room.items() if left < 0]:
            kind = over[0]
            given = sum(way.gpus for way in self._ways.values() if way.kind == kind)
            if given > (there := self._floors[kind].kind.gpus):
                raise ValueError(f"the policy gave {given} GPUs of {kind} where there are {there}")
            # Take all of this kind out, then let them in again in order while there is room.
            asking = [name for name in moving if self._ways[name].kind == kind and self._more(name) > 0]
            room[kind] += sum(self._more(name) for name in asking)
            for name in asking:
                more = self._more(name)
                if more <= room[kind]:
                    room[kind] -= more
                    continue
                moving.remove(name)
                del self._moves[name]
                short[kind] = short.get(kind, 0) + more
                was = self._jobs[name].way
                if was is not None and was.kind != kind:
                    room[was.kind] -= was.gpus
        return short

    def _more(self, name: str) -> int:
        """GPUs of its new kind that a job would take beyond what it has of it."""
        way, was = self._ways[name], self._jobs[name].way
        return way.gpus - (was.gpus if was is not None and was.kind == way.kind else 0)

    def _grows(self, name: str) -> bool:
        was = self._jobs[name].way
        return was is not None and was.kind == self._ways[name].kind and was.gpus < self._ways[name].gpus

    def _gain_s(self, name: str) -> float | None:
        """By how much sooner one that grows is believed to end; None for any other."""
        was = self._jobs[name].way
        if was is None or not self._grows(name):
            return None
        return max(0.0, self._jobs[name].work_left * (was.unit_s - self._ways[name].unit_s))

    def _make_room(self, name: str, way: Way, floor: Floor, worth_s: float | None) -> bool:
        """Place a job by moving others, if their restarts together take at most ``worth_s`` (None: at any cost)."""
        before = floor.saved() if worth_s is not None else None
        moved = floor.repack_for(name, way.gpus)
        if moved is None:
            # Those for whom there is no room by number have been held back: what is in the way may not be moved.
            return False
        if before is not None and worth_s is not None:
            lost_s = sum(
                self._snapshot.costs.of(self._way_now(other).gpus, again=True)
                for other in moved
                if self._moves.get(other, ("retune",))[0] in ("retune", "migrate")
            )
            if lost_s > worth_s:
                floor.restore(before)
                return False
        for other in moved:
            self._moved(other)
        return True

    def _moved(self, name: str) -> None:
        """Note that a job's place has changed; one that starts or changes size anyhow loses nothing more."""
        if name not in self._moves or self._moves[name][0] == "retune":
            self._moves[name] = ("migrate", self._way_now(name))

    def _way_now(self, name: str) -> Way:
        """How a placed job runs after what is decided so far."""
        what = self._moves.get(name)
        way = self._jobs[name].way if what is None else what[1]
        assert way is not None
        return way

    @cached_property
    def _jobs(self) -> dict[str, Job]:
        return {job.name: job for job in self._snapshot.jobs}

    def _rest_s(self, name: str) -> float:
        """How long a job will still run, as believed."""
        return self._jobs[name].work_left * self._way_now(name).unit_s
