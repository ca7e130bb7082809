"""The desk where nodes' agents report and hear what is declared for them.

What it is: what is wanted of each node now (``declare``), what each has said (``latest``), and the two rules by which
the one becomes the other, exchange by exchange:

- *One decision on all nodes or on none.* The setting of a job on several nodes is sent not firm; it becomes firm once
  all of them are ready, and is taken back on all when one refuses or says nothing for ``lost_s``. On one node it is
  firm at once. Whoever reports a version as applied proves that it was firm, perhaps under a scheduler before this one.
- *Lower first, raise after.* A node is counted with the highest ceiling that may be in force there: the one that it
  reports, and any that was sent after what it reports to hold. A lower ceiling goes out at once; a higher one only as
  far as the others, so counted, leave room. A node that has been silent for ``lost_s`` counts with the most that it can
  draw. So the ceilings in force never sum to more than the room, in whatever order agents hear of them.

What it is not: how much each may draw (``ceilings``), a server or a book: it lives in memory, and agents tell a new one
all that it has to know. Thread-safe.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from joulewise.cluster.declared import Declared, Report, Share
from joulewise.core.knob import DEFAULT

# A report older than the last one is late, not new, unless the node's clock was set back by more than this.
_CLOCK_SET_S = 60.0
# Less of a raise than this is not worth a declaration.
_LEAST_RAISE_W = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A decision about a job that a node did not follow; ``why`` is in words."""

    job: str
    id: str
    version: int
    node: str
    why: str


@dataclass(slots=True)
class _Group:
    """One version of one job's share, on all its nodes."""

    share: Share
    nodes: frozenset[str]
    since_s: float
    firm: bool
    ready: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    refusal: Refusal | None = None

    @property
    def taken_back(self) -> bool:
        return self.refusal is not None and not self.firm


@dataclass(slots=True)
class _Node:
    """One node as the desk knows it. ``sent``: ceilings by (epoch, number) that may be in force or on their way."""

    heard_s: float
    report: Report | None = None
    declared: Declared | None = None
    sent: dict[tuple[int, int], float] = field(default_factory=dict)


class AgentDesk:
    """``period_s``: how often agents report; ``lost_s``: after how long without a report a node counts as silent."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        period_s: float = 1.0,
        lost_s: float | None = None,
    ) -> None:
        self.period_s = period_s
        self.lost_s = 3.0 * period_s + 1.0 if lost_s is None else lost_s
        self._now = now
        self._born_s = now()
        self._lock = threading.RLock()
        self._epoch = 0
        self._outdated: int | None = None
        self._nodes: dict[str, _Node] = {}
        self._shares: dict[str, tuple[tuple[str, int], ...]] = {}
        self._groups: dict[tuple[str, int], _Group] = {}
        self._firm: dict[str, Share] = {}
        self._ceilings: dict[str, float] = {}
        self._room_w: float | None = None
        self._most_w: dict[str, float] = {}
        self._settled: set[str] = set()
        self._said: set[str] = set()  # in this epoch: shares, limit; before both agents keep what they hold

    # What the scheduler says.

    def lead(self, epoch: int) -> None:
        """Declarations are of this epoch from now on; until shares and limit have been said agents keep what they hold.
        Nodes that say nothing are given ``lost_s`` from here."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch = epoch
                self._born_s = self._now()
                self._said = set()
                for node in self._nodes.values():
                    node.declared = None

    def declare(
        self,
        shares: Mapping[str, Sequence[Share]],
        ceilings: Mapping[str, float] | None = None,
        *,
        room_w: float | None = None,
        most_w: Mapping[str, float] | None = None,
    ) -> None:
        """What shall be so on every node: shares by node, and ceilings as in ``limit``. It replaces all said before."""
        with self._lock:
            self.declare_shares(shares)
            self.limit(ceilings or {}, room_w=room_w, most_w=most_w)

    def declare_shares(self, shares: Mapping[str, Sequence[Share]]) -> None:
        """The shares alone, of all nodes."""
        with self._lock:
            wanted: dict[tuple[str, int], tuple[Share, set[str]]] = {}
            for node, those in shares.items():
                for share in those:
                    wanted.setdefault((share.id, share.version), (share, set()))[1].add(node)
            self._groups = {key: self._group(key, share, frozenset(on)) for key, (share, on) in wanted.items()}
            self._said.add("shares")
            self._shares = {node: tuple((share.id, share.version) for share in those) for node, those in shares.items()}
            there = {key[0] for key in wanted}
            self._firm = {id_: share for id_, share in self._firm.items() if id_ in there}

    def limit(
        self, ceilings: Mapping[str, float], *, room_w: float | None = None, most_w: Mapping[str, float] | None = None
    ) -> None:
        """The ceilings alone: watts by node, of all nodes that are counted, which sum to ``room_w`` (None: no limit).

        ``most_w``: the most that each of them can draw."""
        with self._lock:
            if most_w is not None:
                self._most_w = dict(most_w)
            self._said.add("limit")
            self._room_w = room_w
            # More than it can draw is no ceiling, and would be mistaken for one that was raised.
            most = self._most_w
            wanted = {node: min(watts, most.get(node, math.inf)) for node, watts in ceilings.items()}
            self._ceilings = wanted if room_w is not None else {}

    def forget(self, ids: Iterable[str]) -> None:
        """The energy of these jobs is written down for good: agents that still tell of them may stop."""
        with self._lock:
            self._settled.update(ids)

    # What an agent says and hears.

    def exchange(self, report: Report) -> Declared:
        """Take a report in, and say what shall be so on its node: what it holds already, as long as nothing is said."""
        with self._lock:
            node = self._nodes.setdefault(report.node, _Node(self._now()))
            late = node.report is not None and 0 < node.report.time_s - report.time_s < _CLOCK_SET_S
            if not late:
                self._hear(node, report)
            if len(self._said) < 2:
                return Declared(report.node, report.epoch, report.number, period_s=self.period_s)
            declared = self._due(report.node, node)
            if declared != node.declared:
                node.declared = declared
                key = (declared.epoch, declared.number)
                node.sent[key] = math.inf if declared.ceiling_w is None else declared.ceiling_w
            return declared

    def newer(self, node: str, epoch: int, number: int) -> bool:
        """Whether there is something to say to an agent that holds this declaration."""
        with self._lock:
            if len(self._said) < 2:
                return False
            known = self._nodes.get(node)
            if known is None:
                return True
            due = self._due(node, known)
            return (due.epoch, due.number) > (epoch, number)

    # What is known.

    def latest(self, node: str) -> Report | None:
        """The last report of a node."""
        with self._lock:
            known = self._nodes.get(node)
            return None if known is None else known.report

    def silent_s(self, node: str) -> float:
        """For how long nothing was heard of a node; since this epoch began, where nothing ever was."""
        with self._lock:
            known = self._nodes.get(node)
            return self._now() - (self._born_s if known is None else max(known.heard_s, self._born_s))

    def heard(self, node: str) -> bool:
        """Whether a node has reported at all, and not been silent for long."""
        return self.latest(node) is not None and self.silent_s(node) <= self.lost_s

    def in_force_w(self, node: str) -> float:
        """The highest ceiling that may be in force on a node; infinite where it may have none and no most is known."""
        with self._lock:
            return self._bound_w(node)

    def ceiling_w(self, node: str) -> float | None:
        """The ceiling that a node shall have; None: no limit."""
        with self._lock:
            return self._ceilings.get(node)

    def refusals(self) -> tuple[Refusal, ...]:
        """Decisions that are declared now and were not followed."""
        with self._lock:
            for group in self._groups.values():
                self._settle(group)
            return tuple(group.refusal for group in self._groups.values() if group.refusal is not None)

    def applied(self, id: str, version: int) -> bool:
        """Whether every node of a job holds this version."""
        with self._lock:
            group = self._groups.get((id, version))
            if group is None:
                return False
            return all(self._state(node, id, version) == "applied" for node in group.nodes)

    @property
    def outdated(self) -> int | None:
        """The epoch of a later scheduler, where an agent has heard of one; None: we are the last."""
        with self._lock:
            return self._outdated

    # How it is done.

    def _state(self, name: str, id: str, version: int) -> str:
        """What a node last said of a share; empty if nothing."""
        node = self._nodes.get(name)
        shares = () if node is None or node.report is None else node.report.shares
        return next((each.state for each in shares if each.id == id and each.version == version), "")

    def _group(self, key: tuple[str, int], share: Share, nodes: frozenset[str]) -> _Group:
        known = self._groups.get(key)
        if known is not None and known.nodes == nodes and known.share.setting == share.setting:
            return known
        firm = self._firm.get(share.id)
        same = firm is not None and firm.version == share.version and firm.setting == share.setting
        group = _Group(share, nodes, self._now(), firm=len(nodes) == 1 or same)
        for node in nodes:
            if (there := self._nodes.get(node)) is not None and there.report is not None:
                self._answers(group, there.report)
        if group.firm:
            self._firm[share.id] = replace(share, firm=True)
        return group

    def _hear(self, node: _Node, report: Report) -> None:
        node.heard_s = self._now()
        node.report = report
        held = (report.epoch, report.number)
        if report.epoch > self._epoch:
            self._outdated = max(report.epoch, self._outdated or 0)
        node.sent = {key: watts for key, watts in node.sent.items() if key >= held}
        for group in self._groups.values():
            if report.node in group.nodes:
                self._answers(group, report)

    def _answers(self, group: _Group, report: Report) -> None:
        """What a report says of one version of a share."""
        share, node = group.share, report.node
        for each in report.shares:
            if each.id != share.id or each.version != share.version:
                continue
            group.waiting.discard(node)
            if each.state == "refused":
                group.refusal = Refusal(share.job, share.id, share.version, node, each.why)
            elif each.state == "waiting":
                group.waiting.add(node)
            elif not group.taken_back:
                group.ready.add(node)
                if each.state == "applied":
                    group.ready = set(group.nodes)
                    if group.firm:
                        group.refusal = None
        self._settle(group)

    def _settle(self, group: _Group) -> None:
        """Make a version firm, or take it back, if it is time."""
        if group.firm or group.taken_back:
            return
        if group.ready >= group.nodes:
            group.firm = True
            self._firm[group.share.id] = replace(group.share, firm=True)
        elif group.waiting:
            group.since_s = self._now()
        elif self._now() - group.since_s > self.lost_s:
            node = min(group.nodes - group.ready)
            why = f"node {node} has not answered for {self.lost_s:.3g} s"
            group.refusal = Refusal(group.share.job, group.share.id, group.share.version, node, why)

    def _due(self, name: str, node: _Node) -> Declared:
        """What shall be so now: the last declaration itself where nothing has changed."""
        shares = tuple(self._share(self._groups[key]) for key in self._shares.get(name, ()))
        ceiling_w = self._ceiling_w(name, node)
        told = (
            ()
            if node.report is None
            else tuple(dict.fromkeys(job.id for job in node.report.jobs if job.id in self._settled))
        )
        last = node.declared
        if last is not None and (last.shares, last.ceiling_w, last.ended) == (shares, ceiling_w, told):
            return last
        number = 1 if last is None else last.number + 1
        if node.report is not None and node.report.epoch == self._epoch:
            number = max(number, node.report.number + 1)
        return Declared(name, self._epoch, number, shares, ceiling_w, told, self.period_s)

    def _share(self, group: _Group) -> Share:
        self._settle(group)
        share = group.share
        if group.firm:
            return replace(share, firm=True)
        if not group.taken_back:
            return replace(share, firm=False)
        before = self._firm.get(share.id)
        return Share(
            share.job,
            share.id,
            DEFAULT if before is None else before.setting,
            0 if before is None else before.version,
            firm=True,
        )

    def _ceiling_w(self, name: str, node: _Node) -> float | None:
        """What a node may be told now: lower at once, higher as far as the others leave room."""
        if self._room_w is None:
            return None
        wanted_w = self._ceilings.get(name)
        if wanted_w is None:
            return None if node.declared is None else node.declared.ceiling_w
        own_w = self._bound_w(name)
        if wanted_w <= own_w:
            return wanted_w
        now_w = own_w if node.declared is None or node.declared.ceiling_w is None else node.declared.ceiling_w
        free_w = self._room_w - sum(self._bound_w(other) for other in self._ceilings if other != name)
        given_w = min(wanted_w, free_w)
        return given_w if given_w > max(now_w, own_w) + (_LEAST_RAISE_W if given_w < wanted_w else 0.0) else now_w

    def _bound_w(self, name: str) -> float:
        most_w = self._most_w.get(name, math.inf)
        node = self._nodes.get(name)
        if node is None or node.report is None or self._now() - max(node.heard_s, self._born_s) > self.lost_s:
            return most_w
        reported_w = math.inf if node.report.ceiling_w is None else node.report.ceiling_w
        return min(most_w, max(reported_w, *node.sent.values(), 0.0))
