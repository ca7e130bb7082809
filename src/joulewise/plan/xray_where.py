"""Where the energy of a step goes and where a plan saves it: by kind of work, by kernel, by wait; and bars to draw.

A run's kernels are charged all power while they run; a link, which runs beside kernels or waits, what it takes beyond
waiting; standing still is charged the power of waiting. Together that is all energy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.plan.xray_dag import Graph
from joulewise.plan.xray_law import CLOCKS, KINDS
from joulewise.plan.xray_piece import HOST, LINK, RUN
from joulewise.plan.xray_plans import Outcome, Played

Array = NDArray[Any]

WAIT = "wait"
_NAMES = 12  # kernels that are told by name: those where most is saved


@dataclass(frozen=True, slots=True)
class Place:
    """Where energy goes, and what is saved there. Shares are of all GPUs' time and energy."""

    kind: str
    """A kind of work, or ``wait``."""
    name: str
    """Empty: all of the kind."""
    time: float
    """Kinds may run beside each other."""
    energy: float
    saved: float
    clock: float | None
    """Mean clock under the plan, against the one seen; None for waits."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What GPUs stood still for: a ``link``, the ``host`` or another ``rank``; share of the GPUs' time."""

    cause: str
    name: str
    time: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a step, for a picture; its clock under the plan against the one seen."""

    lane: int
    what: str
    kind: str
    name: str
    start_s: float
    duration_s: float
    clock: float


class Where:
    """Gathers what plans do, draw after draw."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], Array] = defaultdict(lambda: np.zeros(4))  # time, energy, saved, clock × time
        self._clocks: dict[int, list[Array]] = defaultdict(list)  # by graph
        self._draws = 0

    def add(self, played: Played, plan: Outcome) -> None:
        """Take one draw's plan into account."""
        graph, all_j = played.graph, played.seen.energy_j
        lanes_s = graph.lanes * played.seen.time_s
        standing_s, saved = lanes_s, 0.0
        for index, piece in enumerate(graph.pieces):
            clock = int(plan.choice[index])
            if piece.what == RUN:
                standing_s -= sum(piece.busy_s.values())
            beyond_w = 0.0 if piece.what == RUN else float(played.own.wait_w[0])
            whole_s = sum(piece.names.values())
            for (kind, name), seconds in piece.names.items():
                at = KINDS.index(kind)
                busy_s = seconds * len(graph.lanes_of[index])
                had_j = busy_s * (played.own.power_w[at, 0] - beyond_w)
                has_j = busy_s * played.own.time[at, clock] * (played.own.power_w[at, clock] - beyond_w)
                if plan.beside_j is not None and whole_s > 0:
                    has_j -= plan.beside_j[index] * seconds / whole_s
                row = [busy_s / lanes_s, had_j / all_j, (had_j - has_j) / all_j, CLOCKS[clock] * busy_s / lanes_s]
                self._rows[kind.value, name] += row
                self._rows[kind.value, ""] += row
                saved += row[2]
        rest = 1.0 - plan.energy_j / all_j - saved
        self._rows[WAIT, ""] += [standing_s / lanes_s, standing_s * played.own.wait_w[0] / all_j, rest, 0.0]
        self._clocks[id(graph)].append(CLOCKS[plan.choice])
        self._draws += 1

    def places(self) -> tuple[Place, ...]:
        """Kinds by energy, then the kernels and collectives where most is saved."""
        found = []
        for (kind, name), row in self._rows.items():
            time, energy, saved, turned = (row / self._draws).tolist()
            clock = turned / time if time > 0 and kind != WAIT else None
            found.append(Place(kind, name, time, energy, saved, clock))
        kinds = sorted((place for place in found if not place.name), key=lambda place: -place.energy)
        names = sorted((place for place in found if place.name), key=lambda place: (-place.saved, place.name))
        return (*kinds, *names[:_NAMES])

    def bars(self, graph: Graph) -> tuple[Bar, ...]:
        """The step of ``graph`` as the traces show it, with the mean clock of its plans."""
        durations = np.array([[piece.duration_s] for piece in graph.pieces])
        starts = graph.starts(durations)[:, 0]
        clocks = np.mean(self._clocks[id(graph)], axis=0) if self._clocks[id(graph)] else np.ones(len(starts))
        bars = []
        for index, piece in enumerate(graph.pieces):
            if piece.what == HOST or piece.duration_s <= 0 or not piece.names:
                continue
            (kind, name), _ = piece.names.most_common(1)[0]
            start_s = float(starts[index]) + (piece.fixed_s if piece.what == LINK else 0.0)
            length_s = sum(piece.busy_s.values()) if piece.what == LINK else piece.duration_s
            bars += [
                Bar(lane, piece.what, kind.value, name, start_s, length_s, float(clocks[index]))
                for lane in graph.lanes_of[index]
            ]
        return tuple(bars)


def waits(graphs: Sequence[Graph]) -> tuple[Wait, ...]:
    """What GPUs stood still for, longest first: the mean of the steps."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for graph in graphs:
        end_s = float(graph.finish(np.array([[piece.duration_s] for piece in graph.pieces]))[0])
        for _, cause, name, seconds in graph.waits():
            found[cause, name] += seconds / (end_s * graph.lanes * len(graphs))
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return tuple(Wait(cause, name, time) for (cause, name), time in ordered)
