"""The operations of one training iteration and what must end before what: a directed acyclic graph, checked when made.

Every planner of an iteration works on this one shape, whoever made it: a pipeline schedule (``plan.schedules``), a
profiler's trace, a hand. It knows nothing of clocks, times or joules; those come with a profile (``plan.profile``) and
are chosen by the solver (``plan.flow``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from joulewise.core.errors import BadSpec

FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD = "forward", "backward", "input_grad", "weight_grad"
KINDS = (FORWARD, BACKWARD, INPUT_GRAD, WEIGHT_GRAD)
"""What a pipeline computes, in the words of profiles and plans. A backward is input_grad and weight_grad in one."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One piece of work of one microbatch on one rank. ``stage`` counts over the whole model, virtual stages too."""

    rank: int
    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, microbatch {self.microbatch}"


@dataclass(frozen=True, slots=True)
class Edge:
    """``after`` may start ``lag_s`` after ``before`` has ended. Both index ``Dag.operations``; a lag is a transfer."""

    before: int
    after: int
    lag_s: float = 0.0


@dataclass(frozen=True)
class Dag:
    """Operations and their order. Raises BadSpec for an index out of range, a negative lag, or a cycle (naming one)."""

    operations: tuple[Operation, ...]
    edges: tuple[Edge, ...]
    ranks: int

    def __post_init__(self) -> None:
        last = len(self.operations) - 1
        for edge in self.edges:
            if not (0 <= edge.before <= last and 0 <= edge.after <= last):
                raise BadSpec(f"an edge {edge.before} → {edge.after} leaves the {last + 1} operations 0…{last}")
            if not 0 <= edge.lag_s < float("inf"):
                raise BadSpec(f"an edge {edge.before} → {edge.after} has a lag of {edge.lag_s} s; it must be 0 or more")
        for operation in self.operations:
            if not 0 <= operation.rank < self.ranks:
                raise BadSpec(f"{operation} runs on rank {operation.rank}, but there are ranks 0…{self.ranks - 1} only")
        object.__setattr__(self, "_order", self._sorted())

    @property
    def order(self) -> tuple[int, ...]:
        """Indexes of the operations, each after all that must come before it."""
        order: tuple[int, ...] = self.__dict__["_order"]
        return order

    def starts_s(self, durations_s: Sequence[float]) -> list[float]:
        """When each operation starts if each starts as early as it may. One duration in seconds per operation."""
        if len(durations_s) != len(self.operations):
            raise BadSpec(f"{len(durations_s)} durations were given for {len(self.operations)} operations")
        following = self._following()
        starts = [0.0] * len(self.operations)
        for index in self.order:
            end = starts[index] + durations_s[index]
            for edge in following[index]:
                starts[edge.after] = max(starts[edge.after], end + edge.lag_s)
        return starts

    def _following(self) -> list[list[Edge]]:
        following: list[list[Edge]] = [[] for _ in self.operations]
        for edge in self.edges:
            following[edge.before].append(edge)
        return following

    def _sorted(self) -> tuple[int, ...]:
        following = self._following()
        waits = Counter(edge.after for edge in self.edges)
        ready = [index for index in range(len(self.operations)) if not waits[index]]
        order: list[int] = []
        while ready:
            index = ready.pop()
            order.append(index)
            for edge in following[index]:
                waits[edge.after] -= 1
                if not waits[edge.after]:
                    ready.append(edge.after)
        if len(order) < len(self.operations):
            raise BadSpec(self._cycle(set(range(len(self.operations))) - set(order)))
        return tuple(order)

    def _cycle(self, stuck: set[int]) -> str:
        """One cycle, in words. Every stuck operation waits for another stuck one, so walking back must return."""
        awaits = {edge.after: edge.before for edge in self.edges if edge.before in stuck and edge.after in stuck}
        walked: dict[int, None] = {}
        index = min(stuck)
        while index not in walked:
            walked[index] = None
            index = awaits[index]
        path = list(walked)
        shown = [str(self.operations[index]) for index in path[path.index(index) :]]
        if len(shown) > 6:
            shown = [*shown[:5], f"… and {len(shown) - 5} more"]
        return f"these operations wait for each other in a circle: {' after '.join(shown)} after the first again"
