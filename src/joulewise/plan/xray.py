"""What a plan could save in a training job, said from its profiler traces alone: no rights, no GPU, no measurement.

``look`` reads the steps of one or several ranks' traces as graphs (``xray_dag``), draws laws of time and power for each
kind of work (``xray_law``), and plays plans on them (``xray_plans``). Each draw takes another step and, where who waits
for whom had to be inferred, another reading of it; so the interval holds what is not known of the card, of the kernels,
of the steps and of the order. It is an estimate to decide by whether measuring is worth it, not a promise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.plan import flow, trace_steps, xray_law
from joulewise.plan.trace import Trace
from joulewise.plan.trace_kinds import Kind
from joulewise.plan.trace_steps import Steps
from joulewise.plan.xray_dag import Graph, build
from joulewise.plan.xray_law import CLOCKS, Laws
from joulewise.plan.xray_piece import RUN
from joulewise.plan.xray_plans import Played, phases_of
from joulewise.plan.xray_where import Bar, Place, Wait, Where, waits

Array = NDArray[Any]

SLOWDOWNS = (0.0, 0.01, 0.03)
PLANS = ("one_clock", "phased", "each_run")

_DRAWS, _FEWEST = 48, 16
_PIECES = 36_000  # pieces × draws: 1,600 pieces take about half a second a draw
_MANY = 20_000
_MOST_STEPS = 3
_STAND_IN = "h200"  # whose laws a trace without a GPU gets


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle of what is believed, and where nine in ten draws lie."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Saving:
    """What one kind of plan saves within a slowdown, as a share of all GPUs' energy."""

    plan: str
    slowdown: float
    saving: Interval
    took: float
    """How much slower it is: the middle of the draws."""
    clock: float | None
    """Of ``one_clock``: against the clock that the job ran at; the middle of the draws."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found. Figures are of all lanes together, per step."""

    model: GpuModel
    on_cpu: bool
    lanes: int
    ranks: tuple[int, ...]
    world: int | None
    steps: int
    steps_by: str
    step_s: float
    explained: float
    """The graph's time for the step against the seen one: 1 is all of it."""
    read: bool
    joined: int
    default_mhz: Interval
    power_w: Interval
    """Believed mean of one GPU in that job: compare it with a sensor."""
    seen_mhz: float | None
    seen_w: float | None
    """Clock and mean power that the user has seen; None: not said."""
    phases: int
    savings: tuple[Saving, ...]
    where: tuple[Place, ...]
    where_slowdown: float
    waits: tuple[Wait, ...]
    bars: tuple[Bar, ...]
    draws: int


def look(
    traces: Sequence[Trace],
    *,
    gpu: str | None = None,
    sm_mhz: float | None = None,
    power_w: float | None = None,
    slowdowns: Sequence[float] = SLOWDOWNS,
    seed: int = 0,
    solve: Callable[..., Any] = flow.solve,
    progress: Callable[[str], None] = lambda _: None,
) -> Findings:
    """What plans could save in the job that ``traces`` show, one trace a rank.

    ``gpu``: a model of the catalogue to believe in, else the one that the traces name. ``sm_mhz``, ``power_w``: clock
    and mean power of one GPU seen in that job, in place of a belief. BadSpec where traces do not belong together,
    or the GPU is not known.
    """
    model = _model(traces, gpu)
    found = _steps(traces)
    count = found[0].count
    middle = _middle(found)
    chosen = sorted({middle, *np.linspace(0, count - 1, min(count, _MOST_STEPS)).round().astype(int).tolist()})
    graphs = [build(traces, found, step) for step in chosen]
    if not all(graph.read for graph in graphs):
        graphs += [build(traces, found, step, strict=False) for step in chosen]
    graph = graphs[chosen.index(middle)]
    if not any(piece.what == RUN and piece.busy_s and piece.duration_s > 0 for piece in graph.pieces):
        raise BadSpec(f"{traces[0].path} shows no kernel within its steps; nothing could be given another clock")
    draws = int(min(_DRAWS, max(_FEWEST, _PIECES // len(graph.pieces))))
    shares = {kind: float(np.mean([_share(each, kind) for each in graphs])) for kind in Kind}
    laws = xray_law.believed(model, shares, draws=draws, seed=seed, sm_mhz=sm_mhz, power_w=power_w)
    sums = _Sums(laws, slowdowns)
    if draws * len(graph.pieces) > _MANY:
        progress(f"planning {len(graph.pieces)} pieces under {draws} draws of the laws")
    for draw in range(draws):
        sums.add(Played(graphs[draw % len(graphs)], laws, draw), solve)
    seen = [Played(each, laws, 0).seen.time_s / each.seen_s for each in graphs[: len(chosen)]]
    return Findings(
        model=model,
        on_cpu=traces[0].on_cpu,
        lanes=graph.lanes,
        ranks=tuple(trace.rank for trace in traces if trace.rank is not None),
        world=max((trace.world for trace in traces if trace.world is not None), default=None),
        steps=count,
        steps_by=found[0].found,
        step_s=graph.seen_s,
        explained=float(np.mean(seen)),
        read=all(each.read for each in graphs),
        joined=graph.joined,
        default_mhz=_interval(laws.default_mhz),
        power_w=_interval(np.array(sums.power_w)),
        seen_mhz=sm_mhz,
        seen_w=power_w,
        phases=phases_of(graph.seen_s, laws.switch_s),
        savings=sums.savings(),
        where=sums.where.places(),
        where_slowdown=sums.at,
        waits=waits(graphs),
        bars=sums.where.bars(graph),
        draws=draws,
    )


class _Sums:
    """What the draws say, gathered."""

    def __init__(self, laws: Laws, slowdowns: Sequence[float]) -> None:
        self.laws, self.slowdowns = laws, tuple(slowdowns)
        self.at = min(self.slowdowns, key=lambda slowdown: abs(slowdown - 0.01))
        self.power_w: list[float] = []
        self.where = Where()
        self._saved: dict[tuple[str, float], list[tuple[float, float, float]]] = defaultdict(list)

    def add(self, played: Played, solve: Callable[..., Any]) -> None:
        """Play all plans under one draw."""
        seen = played.seen
        self.power_w.append(seen.energy_j / seen.time_s / played.graph.lanes)
        for slowdown, limit in zip(self.slowdowns, played.each_run(self.slowdowns, solve), strict=True):
            if slowdown == self.at:
                self.where.add(played, limit)
            one, phased = played.one_clock(slowdown), played.phased(slowdown, self.laws.switch_s)
            # One clock is a plan of phases too, and no plan beats the limit of all: rounding apart.
            phased = min(phased, one, key=lambda outcome: outcome.energy_j)
            limit = min(limit, phased, key=lambda outcome: outcome.energy_j)
            for plan, outcome in zip(PLANS, (one, phased, limit), strict=True):
                saved, took = 1.0 - outcome.energy_j / seen.energy_j, outcome.time_s / seen.time_s - 1.0
                self._saved[plan, slowdown].append((saved, took, float(CLOCKS[outcome.choice[0]])))

    def savings(self) -> tuple[Saving, ...]:
        """Every plan at every slowdown."""
        found = []
        for (plan, slowdown), rows in sorted(
            self._saved.items(), key=lambda item: (item[0][1], PLANS.index(item[0][0]))
        ):
            saved, took, clock = np.array(rows).T
            middle = float(np.median(clock)) if plan == "one_clock" else None
            found.append(Saving(plan, slowdown, _interval(saved), float(np.median(took)), middle))
        return tuple(found)


def _model(traces: Sequence[Trace], gpu: str | None) -> GpuModel:
    if not traces:
        raise BadSpec("no trace was given")
    names = {trace.gpu for trace in traces}
    if len(names) > 1:
        shown = ", ".join(sorted("no GPU" if name is None else name or "a GPU without a name" for name in names))
        raise BadSpec(f"the traces are of different hardware: {shown}; give traces of one job")
    name = gpu or traces[0].gpu
    if name is None:
        name = _STAND_IN
    if not name:
        raise BadSpec(f"{traces[0].path} does not name its GPU; say which with --gpu, for example --gpu h200")
    try:
        return catalog.load(name)
    except BadSpec as error:
        if gpu:
            raise
        raise BadSpec(f"the trace is of a GPU that is not known: {error}; name the most alike with --gpu") from error


def _steps(traces: Sequence[Trace]) -> list[Steps]:
    """The steps of every trace. BadSpec where they are not the same steps of one job."""
    ranks = [trace.rank for trace in traces if trace.rank is not None]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        paths = ", ".join(str(trace.path) for trace in traces if trace.rank == twice[0])
        raise BadSpec(f"rank {twice[0]} is there more than once: {paths}; give each rank's trace once")
    found = [trace_steps.find(trace) for trace in traces]
    if len({steps.count for steps in found}) > 1:
        shown = ", ".join(f"{trace.path} {steps.count}" for trace, steps in zip(traces, found, strict=True))
        raise BadSpec(f"the traces have different numbers of steps: {shown}; record the same steps on every rank")
    numbers = {tuple(step.number for step in steps.lanes[0]) for steps in found if steps.found == trace_steps.MARKED}
    if len(numbers) > 1:
        raise BadSpec("the traces are of different steps of the job; record the same steps on every rank")
    return found


def _middle(found: Sequence[Steps]) -> int:
    """The step of middle length, on the slowest lane of each."""
    longest = [max(lane[step].duration_s for steps in found for lane in steps.lanes) for step in range(found[0].count)]
    return int(np.argsort(longest)[(len(longest) - 1) // 2])


def _share(graph: Graph, kind: Kind) -> float:
    """Seconds of work of a kind, per second of a GPU."""
    busy_s = sum(
        piece.busy_s.get(kind, 0.0) * len(lanes) for piece, lanes in zip(graph.pieces, graph.lanes_of, strict=True)
    )
    return busy_s / (graph.seen_s * graph.lanes)


def _interval(values: Array) -> Interval:
    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95)).tolist()
    return Interval(middle, low, high)
