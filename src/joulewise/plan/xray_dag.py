"""One step of a whole job as a graph: the pieces of every rank's lane, joined where a collective joins ranks.

A collective that several traces show is one piece: it begins when the last rank has come and lasts as long as that
rank saw it; what the others saw beyond is their wait. ``Graph.finish`` plays the step for many durations at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.plan.dag import Edge
from joulewise.plan.trace import Trace
from joulewise.plan.trace_steps import Steps
from joulewise.plan.xray_piece import HOST, LINK, RUN, Piece
from joulewise.plan.xray_pieces import Cut, cut

Array = NDArray[Any]

# Of a lane and of a job: seconds to solve, not minutes.
_MOST_LINKS, _FEWEST_LINKS, _LINKS_IN_ALL = 250, 20, 1000
_FEWEST_RUNS, _RUNS_IN_ALL = 8, 128


@dataclass(frozen=True, slots=True)
class Graph:
    """Pieces and who waits for whom. ``lanes_of[i]``: the lanes that piece i occupies, more than one if it joins."""

    pieces: tuple[Piece, ...]
    lanes_of: tuple[tuple[int, ...], ...]
    edges: tuple[Edge, ...]
    order: tuple[int, ...]
    lanes: int
    seen_s: float
    """How long the step took in the traces: the longest lane."""
    read: bool
    joined: int
    """How many collectives join ranks whose traces were given."""

    def starts(self, durations_s: Array) -> Array:
        """When each piece begins if each begins as early as it may. Rows: pieces; columns: cases."""
        starts = np.zeros_like(durations_s)
        before: list[list[Edge]] = [[] for _ in self.pieces]
        for edge in self.edges:
            before[edge.after].append(edge)
        for index in self.order:
            for edge in before[index]:
                ends = starts[edge.before] + durations_s[edge.before] + edge.lag_s
                np.maximum(starts[index], ends, out=starts[index])
        return starts

    def finish(self, durations_s: Array) -> Array:
        """How long the step takes in each case (column)."""
        return np.asarray((self.starts(durations_s) + durations_s).max(axis=0))

    def waits(self) -> Iterator[tuple[int, str, str, float]]:
        """Where lanes stood still as the traces show it: lane, for what (link or host), its name, seconds."""
        durations = np.array([[piece.duration_s] for piece in self.pieces])
        starts = self.starts(durations)[:, 0]
        ends = starts + durations[:, 0]
        end_s = float(ends.max())
        before: dict[int, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            before[edge.after].append(edge)
        for lane in range(self.lanes):
            runs = sorted((i for i, p in enumerate(self.pieces) if p.lane == lane and p.what == RUN), key=starts.item)
            until_s = 0.0
            for run in runs:
                if starts[run] > until_s:
                    last = max(before[run], key=lambda edge: ends[edge.before] + edge.lag_s, default=None)
                    yield lane, *self._named(None if last is None else last.before), float(starts[run] - until_s)
                until_s = max(until_s, float(ends[run]))
            if end_s > until_s:
                others = [i for i, lanes in enumerate(self.lanes_of) if lane in lanes and self.pieces[i].what != RUN]
                last_one = max(others, key=ends.item, default=None)
                tail = last_one if last_one is not None and ends[last_one] > until_s else None
                yield lane, *self._named(tail), end_s - until_s

    def _named(self, index: int | None) -> tuple[str, str]:
        if index is None or self.pieces[index].what == RUN:
            return "rank", "another rank's kernels"
        piece = self.pieces[index]
        return piece.what, "" if piece.what == HOST else next(iter(piece.names))[1]


def build(traces: Sequence[Trace], found: Sequence[Steps], step: int, *, strict: bool = True) -> Graph:
    """The graph of step number ``step`` (counted from 0) over all traces."""
    cuts: list[Cut] = []
    seen_s = 0.0
    lanes = sum(len(steps.lanes) for steps in found)
    few = {
        "most_links": max(_FEWEST_LINKS, min(_MOST_LINKS, _LINKS_IN_ALL // lanes)),
        "most_runs": max(_FEWEST_RUNS, _RUNS_IN_ALL // lanes),
    }
    for trace, steps in zip(traces, found, strict=True):
        for lane in steps.lanes:
            cuts.append(cut(trace, lane[step], len(cuts), strict=strict, **few))
            seen_s = max(seen_s, lane[step].duration_s)
    shared = _shared(cuts) if len(cuts) > 1 else {}
    graph = _joined(cuts, shared, seen_s)
    return graph if graph is not None else _alone(cuts, seen_s)


def _alone(cuts: Sequence[Cut], seen_s: float) -> Graph:
    graph = _joined(cuts, {}, seen_s)
    if graph is None:  # pieces of one lane are in the order of time
        raise AssertionError("a lane waits for itself")
    return graph


def _shared(cuts: Sequence[Cut]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """(lane, piece) → what identifies its collective over ranks: ranks, name and how manieth it is.

    A name that lanes of one group show different numbers of times (point to point, or a step cut short) joins nobody.
    """
    counted: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for lane, part in enumerate(cuts):
        for index, piece in enumerate(part.pieces):
            if piece.what == LINK and piece.key[1]:
                counted[piece.key][lane].append(index)
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for key, lanes in counted.items():
        if len(lanes) < 2 or len({len(indexes) for indexes in lanes.values()}) > 1:
            continue
        for lane, indexes in lanes.items():
            for number, index in enumerate(indexes):
                found[lane, index] = (*key, number)
    return found


def _joined(cuts: Sequence[Cut], shared: dict[tuple[int, int], tuple[Any, ...]], seen_s: float) -> Graph | None:
    """All lanes' pieces, those of one collective made one; None if ranks show their collectives in clashing order."""
    pieces: list[Piece] = []
    lanes_of: list[tuple[int, ...]] = []
    place: dict[tuple[int, int], int] = {}
    of_collective: dict[tuple[Any, ...], int] = {}
    for lane, part in enumerate(cuts):
        for index, piece in enumerate(part.pieces):
            what = shared.get((lane, index))
            if what is not None and what in of_collective:
                at = place[lane, index] = of_collective[what]
                lanes_of[at] += (lane,)
                if piece.duration_s < pieces[at].duration_s:
                    pieces[at] = piece
                continue
            place[lane, index] = len(pieces)
            if what is not None:
                of_collective[what] = len(pieces)
            pieces.append(piece)
            lanes_of.append((lane,))
    lags: dict[tuple[int, int], float] = {}
    for lane, part in enumerate(cuts):
        for one, other, lag_s in part.edges:
            ends = place[lane, one], place[lane, other]
            if ends[0] != ends[1]:
                lags[ends] = max(lags.get(ends, 0.0), lag_s)
    edges = tuple(Edge(one, other, lag_s) for (one, other), lag_s in lags.items())
    order = _order(len(pieces), edges)
    if len(order) < len(pieces):
        return None
    return Graph(
        tuple(pieces),
        tuple(lanes_of),
        edges,
        tuple(order),
        len(cuts),
        seen_s,
        all(part.read for part in cuts),
        sum(len(lanes) > 1 for lanes in lanes_of),
    )


def _order(count: int, edges: Sequence[Edge]) -> list[int]:
    following: list[list[int]] = [[] for _ in range(count)]
    waits = Counter(edge.after for edge in edges)
    for edge in edges:
        following[edge.before].append(edge.after)
    ready = [index for index in range(count) if not waits[index]]
    order: list[int] = []
    while ready:
        index = ready.pop()
        order.append(index)
        for other in following[index]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return order
