"""From what the engine says to what a round decides on: kinds of this round, floors with everybody where they are.

What it is: pure making. Nodes that are down, or silent with nothing on them, are left out; those that are silent with
jobs on them, and GPUs that others hold, are kept from being given out. Floors are made anew each time from what the
engine shows and what is on its way, so they cannot drift. Nodes are numbered by round, and ``names`` undoes that.
What it is not: a decision (``round``) or a memory (``queue``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.cluster.engine import NodeSeen
from joulewise.cluster.placement import Floor
from joulewise.cluster.placement import Place as Numbered
from joulewise.cluster.scheduler_track import JobRun
from joulewise.cluster.state import Kind


@dataclass(frozen=True, slots=True)
class Ground:
    """The nodes of a round. ``kinds`` are those that there are now; ``names``: of each kind, its nodes in order."""

    kinds: tuple[Kind, ...]
    names: Mapping[str, tuple[str, ...]]
    nodes: Mapping[str, NodeSeen]
    blocked: Mapping[str, int]
    """Node → GPUs of it that cannot be given out."""

    def named(self, kind: str, place: Numbered) -> dict[str, int]:
        """A place by names."""
        names = self.names[kind]
        return {names[node]: gpus for node, gpus in place}

    def numbered(self, kind: str, place: Mapping[str, int]) -> dict[int, int] | None:
        """A place by numbers; None where a node of it is not there."""
        names = self.names.get(kind, ())
        if not all(node in names for node in place):
            return None
        return {names.index(node): gpus for node, gpus in place.items()}


def ground(
    nodes: Sequence[NodeSeen],
    described: Mapping[str, Kind],
    *,
    silent: Collection[str] = (),
    held: Mapping[str, int] | None = None,
) -> Ground:
    """The nodes that can be decided on. ``described``: what is known of each kind, however many nodes it says.

    ``silent``: nodes whose agents say nothing; ``held``: node → GPUs that our jobs have there, or will.
    """
    used = held or {}
    kinds: list[Kind] = []
    names: dict[str, tuple[str, ...]] = {}
    blocked: dict[str, int] = {}
    for name, template in described.items():
        of_kind = [node for node in nodes if node.kind == name and node.state != "down"]
        there = [node for node in of_kind if node.name not in silent or used.get(node.name, 0) > 0]
        if not there:
            continue
        width = max(node.gpus for node in there)
        for node in there:
            lost = width - node.gpus + node.foreign_gpus
            if node.name in silent:
                lost = width - used.get(node.name, 0)
            if lost > 0:
                blocked[node.name] = lost
        taken = sum(blocked.get(node.name, 0) for node in there)
        kinds.append(replace(template, nodes=len(there), gpus_per_node=width, taken=taken))
        names[name] = tuple(node.name for node in there)
    return Ground(tuple(kinds), names, {node.name: node for node in nodes}, blocked)


def floors(there: Ground, runs: Mapping[str, JobRun], rigid: Collection[str]) -> tuple[dict[str, Floor], list[str]]:
    """Floors with everybody on them, and the jobs whose place is not there (any more).

    Those that the engine shows come first, then those on their way; large ones before small ones.
    """
    made = {kind.name: Floor(kind, placer="together") for kind in there.kinds}
    homeless: list[str] = []
    for kind, nodes in there.names.items():
        floor = made[kind]
        for number, name in enumerate(nodes):
            state = there.nodes[name].state
            if state in ("off", "booting"):
                floor.shut(number)
                if state == "booting":
                    floor.boot(number)
            elif lost := there.blocked.get(name, 0):
                floor.adopt(f"\0{name}", {number: lost}, fixed=True)
    order = sorted(
        (name for name, run in runs.items() if run.way is not None),
        key=lambda name: (not runs[name].sure, -sum(runs[name].place.values()), name),
    )
    for name in order:
        run = runs[name]
        assert run.way is not None
        place = there.numbered(run.way.kind, run.place)
        if place is None or not made[run.way.kind].adopt(name, place, fixed=name in rigid):
            homeless.append(name)
    return made, homeless
