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

Silence is what agents do not say while we listen: where this process itself stood still, or its clock was set, nobody
is called silent for it. A report of a declaration that was never sent is not heard (``doubts``).

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
    """One node as the desk knows it. ``sent``: ceilings by (epoch, number) that may be in force or on their way.
    ``late_s``: the time of a report that came after a later one; ``doubt``: why its last report was not believed;
    ``excused``: that we stood still was allowed for since it was last heard."""

    heard_s: float = -math.inf
    report: Report | None = None
    declared: Declared | None = None
    sent: dict[tuple[int, int], float] = field(default_factory=dict)
    late_s: float | None = None
    doubt: str = ""
    excused: bool = False


class AgentDesk:
    """``period_s``: how often agents report; ``lost_s``: after how long without a report a node counts as silent.
    ``now``: seconds of any clock, best of one that nobody sets; between looks at it no more than ``lost_s`` / 2 should
    pass, and it may be another one than reports have."""

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
        self._looked_s = self._born_s = now()
        self._excused = False
        self._lock = threading.RLock()
        self._epoch = 0
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
                self._born_s, self._excused = self._time(), False
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

    def remember(self, ids: Iterable[str]) -> None:
        """These jobs go on after all: agents keep their accounts."""
        with self._lock:
            self._settled.difference_update(ids)

    # What an agent says and hears.

    def exchange(self, report: Report) -> Declared:
        """Take a report in, and say what shall be so on its node: what it holds already, as long as nothing is said."""
        with self._lock:
            self._time()
            node = self._nodes.setdefault(report.node, _Node())
            # The same one again is an agent that still waits for its answer: nothing new was heard.
            if report is not node.report and not self._late(node, report) and self._believed(node, report):
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
            now_s = self._time()
            return now_s - (self._born_s if known is None else max(known.heard_s, self._born_s))

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

    def unclaimed(self) -> dict[str, tuple[str, ...]]:
        """By a job's id: the nodes that know of no claim on GPUs for it, so that they neither set nor count for it."""
        with self._lock:
            return {id: tuple(sorted(group.waiting)) for (id, _), group in self._groups.items() if group.waiting}

    def applied(self, id: str, version: int) -> bool:
        """Whether every node of a job holds this version."""
        with self._lock:
            group = self._groups.get((id, version))
            if group is None:
                return False
            return all(self._state(node, id, version) == "applied" for node in group.nodes)

    def doubts(self) -> dict[str, str]:
        """By node, in words: why its last report was not heard. It counts as one that says nothing."""
        with self._lock:
            return {name: node.doubt for name, node in self._nodes.items() if node.doubt}

    # How it is done.

    def _time(self) -> float:
        """What the clock says; whoever looks at it goes through here."""
        now_s = self._now()
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if gap_s < 0 or gap_s > self.lost_s / 2:
            self._stood_still(now_s, gap_s)
        return now_s

    def _stood_still(self, now_s: float, gap_s: float) -> None:
        """Nobody looked for ``gap_s``, so nobody could be heard: who was not silent before has ``lost_s`` from here.
        Once, or nobody would ever be silent to one that is always late. Below 0: the clock was set back."""
        last_s = now_s - gap_s
        for node in self._nodes.values():
            if gap_s < 0:
                node.heard_s += gap_s
            elif not node.excused and last_s - max(node.heard_s, self._born_s) <= self.lost_s:
                node.heard_s, node.excused = now_s, True
        if gap_s < 0:
            self._born_s += gap_s
        elif not self._excused and last_s - self._born_s <= self.lost_s:
            self._born_s, self._excused = now_s, True
        for group in self._groups.values():
            group.since_s = group.since_s + gap_s if gap_s < 0 else now_s

    @staticmethod
    def _late(node: _Node, report: Report) -> bool:
        """Whether a report was overtaken by a later one. If reports go on from there, the node's clock was set back."""
        if node.report is None or report.time_s >= node.report.time_s:
            return False
        if node.late_s is not None and report.time_s > node.late_s:
            return False
        node.late_s = report.time_s
        return True

    def _believed(self, node: _Node, report: Report) -> bool:
        """Whether a report is about a declaration that was made: one that was not would hide what is in force."""
        sent = 0 if node.declared is None else node.declared.number
        node.doubt = ""
        if report.epoch > self._epoch:
            node.doubt = (
                f"the agent of node {report.node} follows epoch {report.epoch}, this scheduler is epoch {self._epoch}: "
                "another one leads, or the journal that counted epochs is lost; stop one, or remove the agent's --state"
            )
        elif report.epoch == self._epoch and report.number > sent:
            node.doubt = (
                f"node {report.node} tells of declaration {report.number}, and the last that it was sent is {sent}: "
                "somebody else reports under its name; renew its token"
            )
        return not node.doubt

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
        group = _Group(share, nodes, self._time(), firm=len(nodes) == 1 or same)
        for node in nodes:
            if (there := self._nodes.get(node)) is not None and there.report is not None:
                self._answers(group, there.report)
        if group.firm:
            self._firm[share.id] = replace(share, firm=True)
        return group

    def _hear(self, node: _Node, report: Report) -> None:
        node.heard_s, node.excused, node.late_s = self._time(), False, None
        node.report = report
        held = (report.epoch, report.number)
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
            group.since_s = self._time()
        elif self._time() - group.since_s > self.lost_s:
            node = min(group.nodes - group.ready)
            why = f"node {node} has not answered for {self.lost_s:.3g} s"
            group.refusal = Refusal(group.share.job, group.share.id, group.share.version, node, why)

    def _due(self, name: str, node: _Node) -> Declared:
        """What shall be so now: the last declaration itself where nothing has changed."""
        shares = tuple(self._share(self._groups[key]) for key in self._shares.get(name, ()))
        ceiling_w = self._ceiling_w(name, node)
        live = {share.id for share in shares}  # an engine may give a number away again
        told = (
            ()
            if node.report is None
            else tuple(dict.fromkeys(job.id for job in node.report.jobs if job.id in self._settled - live))
        )
        last = node.declared
        if last is not None and (last.shares, last.ceiling_w, last.ended) == (shares, ceiling_w, told):
            return last
        return Declared(
            name, self._epoch, 1 if last is None else last.number + 1, shares, ceiling_w, told, self.period_s
        )

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
        if node is None or node.report is None or self._time() - max(node.heard_s, self._born_s) > self.lost_s:
            return most_w
        reported_w = math.inf if node.report.ceiling_w is None else node.report.ceiling_w
        return min(most_w, max(reported_w, *node.sent.values(), 0.0))
