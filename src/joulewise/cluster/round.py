"""One scheduling round: from a snapshot to what must be done about it. The same code in the simulator and on an engine.

What it is: budget from the purse, allocation from the policy, then the least change that brings it about: who is
preempted, started, resized, retuned or migrated, on which GPUs, and which nodes are switched. With several users it is
made twice, so that nobody's word takes GPUs from another (``fairness``). Where powered nodes have not enough room,
those that would start or grow wait (growing ones run on as they are) while nodes boot; where the room is there but in
pieces, others are moved for a start only if that costs less than the wait for a node, and for a job that grows only if
it gains more seconds than they lose (``change`` says where they are moved at any cost). Jobs are moved off a nearly
empty node only when the joules saved outweigh the restart, and it costs them next to nothing.
Why it exists: simulator and real scheduler drift apart unless they share this.
What it is not: a policy (``allocators``), a loop, a clock or an actuator. It knows no simulator.

The floors are the round's book: after ``decide`` they are as decided (jobs placed, nodes shut or booting). Whoever acts
on the decision calls ``Floor.release`` for jobs that end and ``Floor.booted`` for nodes that are up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from joulewise.cluster import fairness
from joulewise.cluster.calm import calm as keep_calm
from joulewise.cluster.change import Change, Move
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.placement import Floor, Placer, Saved
from joulewise.cluster.purse import Purse
from joulewise.cluster.rigid import keep_rigid
from joulewise.cluster.state import Allocation, Allocator, Budget, Kind, Snapshot
from joulewise.cluster.within import clocks_only, keep_within

# How often an allocation is cut back further because its jobs lie in pieces; then nobody runs in this round.
_CUTS = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round decided. Nodes are (kind, node). ``again_s``: when to decide again though nothing has happened."""

    allocation: Allocation
    budget: Budget
    moves: tuple[Move, ...]
    power_on: tuple[tuple[str, int], ...] = ()
    power_off: tuple[tuple[str, int], ...] = ()
    again_s: float | None = None


class Round:
    """Decides round after round.

    ``nodes``: when nodes sleep; None: they never do. ``purse``: where each round's budget comes from; None: it is
    ``budget`` in every round. ``placer``: see ``placement``. ``migrate`` False: nobody is moved to empty a node.
    ``keep_rigid``: running jobs that are not elastic are stopped only where the cap cannot be kept otherwise.
    ``calm``: under the purse's cap nobody is stopped whom lower clocks can keep running.
    """

    def __init__(
        self,
        allocate: Allocator,
        *,
        nodes: NodePower | None = None,
        purse: Purse | None = None,
        budget: Budget | None = None,
        placer: Placer = "buddy",
        migrate: bool = True,
        keep_rigid: bool = False,
        calm: bool = False,
    ) -> None:
        self._allocate = allocate
        self._nodes = nodes
        self._purse = purse
        self._budget = budget or Budget()
        self._placer: Placer = placer
        self._migrate = migrate
        self.keep_rigid = keep_rigid
        self._calm = calm
        self._kinds: tuple[tuple[Kind, ...], tuple[Kind, ...]] = ((), ())

    @property
    def sleeps(self) -> bool:
        """Whether nodes are switched off when they are not needed."""
        return self._nodes is not None

    def floors(self, kinds: Iterable[Kind]) -> dict[str, Floor]:
        """Empty floors for a cluster, all powered, with this round's placer."""
        return {kind.name: Floor(kind, placer=self._placer) for kind in kinds}

    def decide(self, snapshot: Snapshot, floors: Mapping[str, Floor]) -> Decision:
        """What to do now. ``floors`` holds the jobs that run, and is changed to what is decided."""
        seen = self._as_priced(snapshot)
        plain = fairness.unclaimed(seen)
        budget = self._budget if self._purse is None else self._purse.budget(plain)
        allocation, change, short = self._made(seen, plain, budget, floors)
        if self._nodes is not None and self._migrate:
            for floor in floors.values():
                if not short.get(floor.kind.name):
                    change.empty_a_node(floor)
        on, off, look_s = self._switch(snapshot.now_s, change, floors, short, budget.power_w)
        again = [look_s]
        if snapshot.jobs:  # with nobody there only nodes still have something to wait for
            again.append(allocation.again_s)
        if self._purse is not None:
            jobs_w = change.power_w
            self._purse.decided(snapshot, jobs_w, _draw_w(change, floors) - jobs_w)
            again.append(self._purse.again_s(snapshot.now_s) if snapshot.jobs else None)
        times = [time_s for time_s in again if time_s is not None]
        return Decision(allocation, budget, change.moves(), on, off, min(times, default=None))

    @property
    def purse(self) -> Purse | None:
        """Where each round's budget comes from."""
        return self._purse

    def slow(self, snapshot: Snapshot, floors: Mapping[str, Floor]) -> Decision | None:
        """A cap has been cut: what clocks alone can do about it, at once. Nobody starts, stops or moves, no node is
        switched; None where that is not enough, and ``decide`` must. Its result holds until the next round."""
        seen = self._as_priced(snapshot)
        budget = self._budget if self._purse is None else self._purse.budget(seen)
        if budget.power_w is None:
            return None
        now = Change(seen, Allocation({job.name: job.way for job in seen.jobs if job.way is not None}), floors)
        others_w = _draw_w(now, floors) - now.power_w
        allocation = clocks_only(seen, budget.power_w, others_w)
        if allocation is None:
            return None
        change = Change(seen, allocation, floors)
        change.make({})
        if self._purse is not None:
            self._purse.decided(snapshot, change.power_w, others_w)
        return Decision(allocation, budget, change.moves())

    def _made(
        self, seen: Snapshot, plain: Snapshot, budget: Budget, floors: Mapping[str, Floor]
    ) -> tuple[Allocation, Change, dict[str, int]]:
        """Decide, and bring it about on the floors, so that nobody has less for what other users say (``fairness``).
        By kind, the GPUs to be booted for."""
        entitled = self._wanted(plain, budget)
        if plain is seen:
            return self._change(seen, entitled, floors, budget.power_w)
        wanted = fairness.shared(seen, plain, entitled, budget, self._wanted)
        before = _saved(floors)
        plainly = self._change(plain, entitled, floors, budget.power_w)
        if wanted is None:
            return plainly
        after_plainly = _saved(floors)
        _restore(floors, before)
        made = self._change(seen, wanted, floors, budget.power_w)
        meant, due = fairness.given(seen, wanted), fairness.given(plain, entitled)
        if not fairness.lowered(made[1].gpus(), plainly[1].gpus(), meant, due):
            return made
        _restore(floors, after_plainly)
        return plainly

    def _wanted(self, seen: Snapshot, budget: Budget) -> Allocation:
        """What the policy says, less what would stop those whom it should not."""
        wanted = self._allocate(seen, budget)
        if self._calm and self._purse is not None and self._purse.capped:
            wanted = keep_calm(seen, budget, self._allocate, wanted)
        return keep_rigid(seen, wanted) if self.keep_rigid else wanted

    def _change(
        self, seen: Snapshot, allocation: Allocation, floors: Mapping[str, Floor], power_w: float | None
    ) -> tuple[Allocation, Change, dict[str, int]]:
        """Bring an allocation about on the floors, cut back to ``power_w``; by kind, the GPUs to be booted for."""
        may_wait_s = self._may_wait_s(floors)
        if power_w is None:
            change = Change(seen, allocation, floors)
            return allocation, change, change.make(may_wait_s)
        believed_w = power_w
        for _ in range(_CUTS):
            allocation = keep_within(seen, allocation, believed_w)
            before = _saved(floors)
            change = Change(seen, allocation, floors)
            short = change.make(may_wait_s)
            # A policy counts with as few nodes as jobs fit in; in pieces they need more. Empty ones are shut at once.
            over_w = _draw_w(change, floors, shut=self._nodes is not None) - power_w
            if over_w <= 0:
                return allocation, change, short
            _restore(floors, before)
            believed_w -= over_w
        allocation = replace(allocation, ways={})
        change = Change(seen, allocation, floors)
        return allocation, change, change.make(may_wait_s)

    def _switch(
        self,
        now_s: float,
        change: Change,
        floors: Mapping[str, Floor],
        short: Mapping[str, int],
        power_w: float | None,
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...], float | None]:
        """Switch nodes, as far as ``power_w`` allows: which on, which off, and when to look again."""
        if self._nodes is None:
            return (), (), None
        left_w = float("inf") if power_w is None else power_w - _draw_w(change, floors, shut=True)
        on: list[tuple[str, int]] = []
        off: list[tuple[str, int]] = []
        look_s: float | None = None
        for name, floor in floors.items():
            kind = floor.kind
            node_w = max(kind.boot_w, kind.empty_node_w) - kind.off_w
            room = None if power_w is None or node_w <= 0 else max(0, int(left_w / node_w))
            switching = self._nodes.look(now_s, floor, short.get(name, 0), room=room)
            for node in switching.on:
                floor.boot(node)
                on.append((name, node))
            for node in switching.off:
                floor.shut(node)
                off.append((name, node))
            left_w -= node_w * (len(floor.empty) + len(switching.on))
            if switching.again_s is not None:
                look_s = switching.again_s if look_s is None else min(look_s, switching.again_s)
        return tuple(on), tuple(off), look_s

    def _as_priced(self, snapshot: Snapshot) -> Snapshot:
        """What a policy should count with: a node that never sleeps draws as much unused as empty."""
        if self._nodes is not None:
            return snapshot
        if self._kinds[0] is not snapshot.kinds:
            awake = tuple(replace(kind, off_w=kind.empty_node_w) for kind in snapshot.kinds)
            self._kinds = (snapshot.kinds, awake)
        return replace(snapshot, kinds=self._kinds[1])

    def _may_wait_s(self, floors: Mapping[str, Floor]) -> dict[str, float]:
        """By kind, how long one waits for another node at most, where there is one to wait for."""
        if self._nodes is None:
            return {}
        return {name: floor.kind.boot_s for name, floor in floors.items() if floor.off or floor.booting}


def _saved(floors: Mapping[str, Floor]) -> dict[str, Saved]:
    return {name: floor.saved() for name, floor in floors.items()}


def _restore(floors: Mapping[str, Floor], saved: Mapping[str, Saved]) -> None:
    for name, floor in floors.items():
        floor.restore(saved[name])


def _draw_w(change: Change, floors: Mapping[str, Floor], *, shut: bool = False) -> float:
    """What the cluster is believed to draw after a change; ``shut``: with every empty node switched off."""
    whole = change.power_w
    for floor in floors.values():
        kind = floor.kind
        on = floor.busy if shut else floor.on
        booting = len(floor.booting)
        whole += on * kind.host_w + (on * kind.gpus_per_node - floor.used) * kind.idle_gpu_w
        whole += booting * max(kind.boot_w, kind.empty_node_w) + (kind.nodes - on - booting) * kind.off_w
    return whole
