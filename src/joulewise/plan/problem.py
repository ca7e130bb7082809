"""What a frontier is asked of: operations with options, what must end before what, and what waiting costs.

Any directed acyclic graph of anything; nothing here knows of pipelines. Checked when made. The solver (``plan.flow``),
rounding (``plan.rounding``) and the outside bound (``plan.bound``) all read this one shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.plan.dag import Edge
from joulewise.plan.options import Curve, Floats

S = TypeVar("S")
EdgeLike = Edge | tuple[int, int, float] | tuple[int, int]
"""An edge, or (before, after[, lag in seconds])."""


@dataclass(frozen=True, eq=False)
class Problem(Generic[S]):
    """Made by ``Problem.of``."""

    options: tuple[Sequence[Point[S]], ...]
    curves: tuple[Curve[S], ...]
    curve_of: NDArray[np.int32]
    """Of every operation, its curve."""
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    lag_s: Floats
    blocking_w: float
    lanes: int
    previous: NDArray[np.int32]
    """Of every operation the one before it in its lane, −1 for none; all −1 where no order was given."""
    order: tuple[int, ...]
    """Operations, each after all that must come before it."""

    @classmethod
    def of(
        cls,
        options: Sequence[Sequence[Point[S]]],
        edges: Iterable[EdgeLike],
        *,
        blocking_w: float,
        lanes: int,
        lane_order: Sequence[Sequence[int]] = (),
    ) -> Problem[S]:
        """Operations that share one options object share its curve. BadSpec says what cannot be planned."""
        if not options:
            raise BadSpec("there is no operation to plan; a frontier needs at least one")
        if not (0 <= blocking_w < math.inf and lanes >= 0):
            raise BadSpec(f"{lanes} lanes that wait at {blocking_w:g} W make no sense; both must be 0 or more")
        index_of: dict[int, int] = {}
        curves: list[Curve[S]] = []
        for at, given in enumerate(options):
            if id(given) not in index_of:
                index_of[id(given)] = len(curves)
                curves.append(Curve(given, blocking_w=blocking_w, name=f"operation {at}"))
        curve_of = np.array([index_of[id(given)] for given in options], dtype=np.int32)
        before, after, lag_s = _arcs(edges, len(options))
        return cls(
            tuple(options),
            tuple(curves),
            curve_of,
            before,
            after,
            lag_s,
            float(blocking_w),
            lanes,
            _previous(lane_order, len(options)),
            _sorted(len(options), before, after),
        )

    @property
    def operations(self) -> int:
        """How many."""
        return len(self.options)

    @property
    def waiting_w(self) -> float:
        """What all lanes draw while they wait."""
        return self.blocking_w * self.lanes

    def curve(self, operation: int) -> Curve[S]:
        """The curve of an operation."""
        return self.curves[int(self.curve_of[operation])]

    def each(self, of_curve: Sequence[float]) -> Floats:
        """A number for every curve, as one for every operation."""
        return np.asarray(of_curve, dtype=np.float64)[self.curve_of]

    def end_s(self, durations_s: Sequence[float]) -> float:
        """When all is done if everything starts as early as it may."""
        return self.critical(durations_s)[0]

    def critical(self, durations_s: Sequence[float]) -> tuple[float, list[int]]:
        """When all is done, and operations of which each waits for the one before, none of which may be later."""
        starts, waited_for = [0.0] * self.operations, [-1] * self.operations
        end_s, last = 0.0, self.order[-1]
        following = self._following
        for at in self.order:
            done_s = starts[at] + durations_s[at]
            if done_s > end_s:
                end_s, last = done_s, at
            for other, lag_s in following[at]:
                if done_s + lag_s > starts[other]:
                    starts[other], waited_for[other] = done_s + lag_s, at
        path = []
        while last >= 0:
            path.append(last)
            last = waited_for[last]
        return end_s, path[::-1]

    @property
    def _following(self) -> list[list[tuple[int, float]]]:
        """Made at the first use and kept: a plan is played many times."""
        kept: list[list[tuple[int, float]]] | None = self.__dict__.get("_following_kept")
        if kept is None:
            kept = [[] for _ in range(self.operations)]
            for before, after, lag_s in zip(
                self.before.tolist(), self.after.tolist(), self.lag_s.tolist(), strict=True
            ):
                kept[before].append((after, lag_s))
            object.__setattr__(self, "_following_kept", kept)
        return kept


def _arcs(edges: Iterable[EdgeLike], operations: int) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Columns; of edges between the same two operations only the longest lag counts."""
    longest: dict[tuple[int, int], float] = {}
    for edge in edges:
        if isinstance(edge, Edge):
            before, after, lag_s = edge.before, edge.after, edge.lag_s
        else:
            before, after = edge[:2]
            lag_s = edge[2] if len(edge) > 2 else 0.0
        if not (0 <= before < operations and 0 <= after < operations):
            raise BadSpec(f"an edge {before} → {after} leaves the {operations} operations 0…{operations - 1}")
        if not 0 <= lag_s < math.inf:
            raise BadSpec(f"an edge {before} → {after} has a lag of {lag_s} s; it must be 0 or more")
        longest[before, after] = max(longest.get((before, after), 0.0), lag_s)
    pairs = np.array(list(longest), dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy(), np.array(list(longest.values()), dtype=np.float64)


def _previous(lane_order: Sequence[Sequence[int]], operations: int) -> NDArray[np.int32]:
    previous = np.full(operations, -1, dtype=np.int32)
    seen: set[int] = set()
    for lane in lane_order:
        for at in lane:
            if not 0 <= at < operations or at in seen:
                raise BadSpec(f"operation {at} of a lane's order is not one of {operations}, or is there twice")
            seen.add(at)
        previous[np.array(lane[1:], dtype=np.intp)] = np.array(lane[:-1], dtype=np.int32)
    return previous


def _sorted(operations: int, before: NDArray[np.int32], after: NDArray[np.int32]) -> tuple[int, ...]:
    following: list[list[int]] = [[] for _ in range(operations)]
    waits = np.bincount(after, minlength=operations).tolist()
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        following[one].append(other)
    order = [at for at in range(operations) if not waits[at]]
    for at in order:
        for other in following[at]:
            waits[other] -= 1
            if not waits[other]:
                order.append(other)
    if len(order) < operations:
        stuck = [at for at in range(operations) if waits[at]]
        shown = ", ".join(map(str, stuck[:6])) + (" …" if len(stuck) > 6 else "")
        raise BadSpec(f"operations wait for each other in a circle: it is among {shown}")
    return tuple(order)
