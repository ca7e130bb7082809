"""What plans of one step would take, under one draw of the laws: one clock, a clock a phase and GPU, a clock a run.

Each is measured against the step as it was seen, at no more than a given slowdown:

* ``one_clock``: all GPUs at one lower clock for the whole step; needs nothing but a lock.
* ``phased``: the step in a few phases, each no shorter than four changes of clock take, and a clock for every GPU and
  phase: what a plan can do on hardware of today.
* ``each_run``: every run of kernels at its own clock, changes free, waits at the lowest clock: no plan can do better.

The first two are played exactly, with whoever waits for whom; the last is solved by ``plan/flow``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.frontier import Frontier, Point
from joulewise.plan.trace_kinds import Kind
from joulewise.plan.xray_dag import Graph
from joulewise.plan.xray_law import CLOCKS, EVEN, KINDS, SEEN, Laws, Table
from joulewise.plan.xray_piece import LINK, RUN

Array = NDArray[Any]

_SWITCHES_A_PHASE = 4  # a phase so much longer than a change of clock spends a quarter of its time between clocks
_MOST_PHASES = 8
_DEEPER = (1, 2, 4, 6)  # steps of CLOCKS that a GPU with slack is tried below the others
_EXPOSED = 0.8  # of a link must pass with no kernel beside it for its clock to be its own
_TOLERANCE = 1e-9  # of times that are equal but for rounding


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan played: how long, how many joules of all GPUs, and the clock (index of CLOCKS) of every piece."""

    time_s: float
    energy_j: float
    choice: Array
    beside_j: Array | None = None
    """Of every piece: what is saved because it runs beside kernels of a lower clock, its own choice apart."""


class Costs:
    """Seconds of every piece and joules beyond waiting as long, at every clock; and what waiting takes."""

    def __init__(self, graph: Graph, table: Table, draw: int) -> None:
        busy = np.array([[piece.busy_s.get(kind, 0.0) for kind in KINDS] for piece in graph.pieces])
        fixed = np.array([piece.fixed_s for piece in graph.pieces])
        lanes = np.array([len(on) for on in graph.lanes_of])
        self.wait_w: Array = table.wait_w[draw]
        self.time: Array = table.time[draw]  # kinds × clocks
        self.power_w: Array = table.power_w[draw]
        self.durations_s = busy @ self.time + fixed[:, None]  # pieces × clocks
        self.excess_j = lanes[:, None] * (busy @ (self.time * (self.power_w - self.wait_w)))


class Played:
    """One graph under one draw."""

    def __init__(self, graph: Graph, laws: Laws, draw: int) -> None:
        self.graph = graph
        self.own, self.locked = Costs(graph, laws.own, draw), Costs(graph, laws.locked, draw)
        self.lane = np.array([piece.lane for piece in graph.pieces])
        self.what = np.array([piece.what for piece in graph.pieces])
        self.begun_s = np.array([piece.start_s for piece in graph.pieces])
        nothing = np.full(len(self.lane), SEEN)
        time_s, energy_j = self.play(nothing[:, None], nothing, np.full((1, 1, 1), SEEN))
        self.seen = Outcome(float(time_s[0]), float(energy_j[0]), nothing)

    def play(self, choice: Array, phase: Array, clocks: Array) -> tuple[Array, Array]:
        """Seconds and joules of each case. ``choice``: pieces × cases; ``clocks``: lanes or 1 × phases × cases."""
        rows = np.arange(len(choice))[:, None]
        durations = self.locked.durations_s[rows, choice]
        ends = self.graph.starts(durations) + durations
        time_s = ends.max(axis=0)
        energy = self.locked.excess_j[rows, choice].sum(axis=0)
        until = np.zeros_like(time_s)
        for number in range(clocks.shape[1]):
            here = ends[phase == number]
            end = np.maximum(until, here.max(axis=0)) if len(here) else until
            if number == clocks.shape[1] - 1:
                end = time_s
            lanes = self.graph.lanes if clocks.shape[0] == 1 else 1
            energy = energy + lanes * ((end - until) * self.locked.wait_w[clocks[:, number, :]]).sum(axis=0)
            until = end
        return np.asarray(time_s), np.asarray(energy)

    def one_clock(self, slowdown: float) -> Outcome:
        """All at one clock."""
        cases = np.arange(len(CLOCKS))
        choice = np.tile(cases, (len(self.lane), 1))
        time_s, energy_j = self.play(choice, np.zeros(len(self.lane), dtype=int), cases[None, None, :])
        return self._best(time_s, energy_j, choice, slowdown)

    def _best(self, time_s: Array, energy_j: Array, choice: Array, slowdown: float) -> Outcome:
        """The cheapest case within the slowdown; the step as it was seen where none saves."""
        allowed = time_s <= self.seen.time_s * (1.0 + slowdown) * (1.0 + _TOLERANCE)
        best = int(np.argmin(np.where(allowed, energy_j, np.inf)))
        if not allowed[best] or energy_j[best] >= self.seen.energy_j:
            return self.seen
        return Outcome(float(time_s[best]), float(energy_j[best]), choice[:, best])

    def phased(self, slowdown: float, switch_s: float) -> Outcome:
        """A clock for every GPU and phase. First one for all GPUs a phase, then those that have slack go deeper."""
        phases = phases_of(self.graph.seen_s, switch_s)
        phase = np.minimum((self.begun_s / max(self.graph.seen_s, 1e-12) * phases).astype(int), phases - 1)
        phase = np.maximum(phase, 0)
        deadline_s = self.seen.time_s * (1.0 + slowdown)
        uniform = self.one_clock(slowdown)
        clocks = np.full(phases, uniform.choice[0] if len(uniform.choice) else 0)
        if phases > 1:
            clocks = self._a_clock_a_phase(phase, phases, deadline_s, clocks)
        table = np.tile(clocks, (self.graph.lanes, 1))
        if self.graph.lanes > 1:
            table = self._deeper(phase, table, deadline_s)
        choice = table[self.lane, phase][:, None]
        time_s, energy_j = self.play(choice, phase, table[:, :, None])
        return self._best(time_s, energy_j, choice, slowdown)

    def _a_clock_a_phase(self, phase: Array, phases: int, deadline_s: float, start: Array) -> Array:
        """Phases follow each other, so their delays add nearly; what does not add is found by playing it."""
        cases = [(number, clock) for number in range(phases) for clock in range(len(CLOCKS))]
        clocks = np.zeros((1, phases, len(cases)), dtype=int)
        for case, (number, clock) in enumerate(cases):
            clocks[0, number, case] = clock
        time_s, energy_j = self.play(clocks[0][phase], phase, clocks)
        frontier: Frontier[Any] | None = None
        for number in range(phases):
            mine = [case for case, (at, _) in enumerate(cases) if at == number]
            points = Frontier(
                Point(float(time_s[case] - self.seen.time_s), float(energy_j[case]), (cases[case][1],)) for case in mine
            )
            frontier = points if frontier is None else frontier.then(points)
        assert frontier is not None
        allowance_s, best = deadline_s - self.seen.time_s, start
        best_j = float(self.play(best[phase][:, None], phase, best[None, :, None])[1][0])
        for _ in range(4):
            found = frontier.within(max(allowance_s, 0.0))
            if found is None:
                break
            clocks_found = np.array(_flat(found.setting))
            took_s, took_j = self.play(clocks_found[phase][:, None], phase, clocks_found[None, :, None])
            over_s = float(took_s[0]) - deadline_s
            if over_s <= deadline_s * _TOLERANCE:
                return clocks_found if took_j[0] < best_j else best
            allowance_s -= over_s
        return best

    def _deeper(self, phase: Array, table: Array, deadline_s: float) -> Array:
        """Lower the clocks of GPUs that wait for others, as long as nobody is late."""
        last = len(CLOCKS) - 1
        cases = [(lane, down) for lane in range(self.graph.lanes) for down in _DEEPER]
        for _ in range(2):
            tables = np.repeat(table[:, :, None], len(cases) + 1, axis=2)
            for case, (lane, down) in enumerate(cases):
                tables[lane, :, case] = np.minimum(np.maximum(table[lane], EVEN) + down, last)
            time_s, energy_j = self.play(tables[self.lane, phase], phase, tables)
            good = (time_s <= deadline_s * (1.0 + _TOLERANCE)) & (energy_j < energy_j[-1])
            if not good.any():
                return table
            joint = table.copy()
            for lane in range(self.graph.lanes):
                own = [case for case, (at, _) in enumerate(cases) if at == lane and good[case]]
                if own:
                    joint[lane] = tables[lane, :, min(own, key=energy_j.item)]
            took_s, _ = self.play(joint[self.lane, phase][:, None], phase, joint[:, :, None])
            if took_s[0] <= deadline_s * (1.0 + _TOLERANCE):
                table = joint
            else:
                table = tables[:, :, int(np.argmin(np.where(good, energy_j, np.inf)))]
        return table

    def each_run(self, slowdowns: Sequence[float], solve: Callable[..., Any]) -> list[Outcome]:
        """A clock for every run, and for links that no kernel runs beside; the rest as seen."""
        exposed, beside = self._links()
        occupied = np.array([len(lanes) for lanes in self.graph.lanes_of])
        chosen = (self.what == RUN) | exposed
        own, wait_w = self.own, float(self.own.wait_w[SEEN])
        # Beyond waiting at the clock seen. ``solve`` takes that waiting off again, once a piece.
        whole_j = own.excess_j + (occupied[:, None] * (own.wait_w - wait_w) + wait_w) * own.durations_s
        options = [
            tuple(
                Point(float(own.durations_s[index, clock]), float(whole_j[index, clock]), clock)
                for clock in range(len(CLOCKS) if chosen[index] else 1)
            )
            for index in range(len(self.lane))
        ]
        frontier = solve(options, self.graph.edges, blocking_w=wait_w, lanes=self.graph.lanes)
        link_w = own.power_w[KINDS.index(Kind.COMMUNICATION)] - own.wait_w
        outcomes = []
        for slowdown in slowdowns:
            plan = frontier.at(max(self.seen.time_s * (1.0 + slowdown), frontier.t_min_s))
            choice = np.array([point.setting for point in plan.choice])
            standing_s = self.graph.lanes * plan.time_s - float((occupied * plan.durations_s)[chosen].sum())
            energy_j = plan.relaxed_energy_j - max(0.0, standing_s) * float(wait_w - own.wait_w[-1])
            # A link beside kernels runs at their clock, and takes less when it is low.
            beside_j = np.zeros(len(self.lane))
            for link, run, seconds in beside:
                beside_j[link] += seconds * (link_w[SEEN] - link_w[choice[run]])
            energy_j -= float(beside_j.sum())
            outcomes.append(Outcome(plan.time_s, min(energy_j, self.seen.energy_j), choice, beside_j))
        return outcomes

    def _links(self) -> tuple[Array, list[tuple[int, int, float]]]:
        """Which links no kernel runs beside for most of their time; for the rest (link, run beside it, seconds)."""
        durations = self.own.durations_s[:, SEEN]
        starts = self.graph.starts(durations[:, None])[:, 0]
        ends = starts + durations
        exposed = np.zeros(len(self.lane), dtype=bool)
        beside: list[tuple[int, int, float]] = []
        for index in np.flatnonzero(self.what == LINK):
            both_s = np.maximum(np.minimum(ends, ends[index]) - np.maximum(starts, starts[index]), 0.0)
            both_s[(self.what != RUN) | ~np.isin(self.lane, self.graph.lanes_of[index])] = 0.0
            longest_s = max(float(both_s[self.lane == lane].sum()) for lane in self.graph.lanes_of[index])
            exposed[index] = longest_s <= (1.0 - _EXPOSED) * durations[index]
            if not exposed[index] and self.graph.pieces[index].busy_s.get(Kind.COMMUNICATION):
                beside += [(int(index), int(run), float(both_s[run])) for run in np.flatnonzero(both_s)]
        return exposed, beside


def phases_of(step_s: float, switch_s: float) -> int:
    """Into how many phases a step can be cut where a change of clock takes ``switch_s``."""
    return int(min(_MOST_PHASES, max(1, step_s // (_SWITCHES_A_PHASE * switch_s))))


def _flat(setting: Any) -> list[int]:
    """Nested pairs of settings, as ``Frontier.then`` makes them, in order."""
    if isinstance(setting, int):
        return [setting]
    return [clock for part in setting for clock in _flat(part)]
