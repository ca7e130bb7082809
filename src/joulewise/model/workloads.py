"""A library of training workloads: endless sequences of phases, each a load of the law.

What it is: what virtual GPUs run, what examples and benches train. A workload is drawn from a family
(``model/families``: CNN, transformer, GNN, …) by a seed and scaled to a GPU, so that the same name makes sense
on any of them. Steps jitter; now and then comes an evaluation, a checkpoint, a loader stall or a compile
warm-up. What it is not: a real network, or the noise and spread between cards (``model/truth``).

    for phase in get("transformer", seed=3).phases():
        ...                                     # phase.load on the GPU; phase.ends_step marks the step's end
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from joulewise.core.errors import BadSpec
from joulewise.model import catalog, physics
from joulewise.model.families import FAMILIES, Family, Part, Span
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Load

_STEADY = Jitter(spread=0.0)
# Tags in brackets are the sources listed in model/families.
_HOST_JITTER = Jitter(spread=0.03, correlation=0.3, tail=3.0)  # [assumed] the host wanders more than the GPU
_STALL_STEPS = 20.0  # no single loader stall is longer than this many steps
_STALL_TAIL = 1.5  # Pareto index: many short stalls, few long ones; mean 3 steps
_SHRUNK = 0.1  # a shrinking computation starts anew below this share of its first step


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of work with one load. The last phase of a step says so."""

    name: str
    load: Load
    ends_step: bool = False


@dataclass(frozen=True, slots=True)
class Events:
    """What happens beside the steps. A count of steps between two of a kind; 0 = never."""

    compile_phases: tuple[Load, ...] = ()
    evaluation_every: int = 0
    evaluation_batches: int = 0
    checkpoint_every: int = 0
    checkpoint: Load | None = None
    stall_chance: float = 0.0  # per step


@dataclass(frozen=True, slots=True)
class Workload:
    """One training job, drawn and scaled. `replace(workload, events=Events())` gives its bare steps."""

    name: str
    description: str
    seed: int
    periodic: bool  # steps repeat within a few percent
    nominal_step_s: float  # one step without jitter on the GPU's law at its default settings
    loads: Mapping[str, Load]
    order: tuple[str, ...]  # the names in `loads` that make up one step
    jitter: Jitter = _STEADY
    host_jitter: Jitter = _STEADY
    spreads: Mapping[str, float] | None = None  # of single parts, on top of the step's jitter
    shrink: float = 1.0
    evaluated: str = ""
    events: Events = Events()

    def step(self) -> tuple[Phase, ...]:
        """The phases of one step as they are without jitter."""
        last = len(self.order) - 1
        return tuple(Phase(name, self.loads[name], i == last) for i, name in enumerate(self.order))

    def phases(self) -> Iterator[Phase]:
        """Phases for ever, the same ones each time. Evaluation and checkpoint come after a step's end."""
        key = f"{self.name} {self.seed}"
        draw = random.Random(f"phases {key}")
        lengths = self.jitter.factors(f"steps {key}")
        hosts = self.host_jitter.factors(f"host {key}")
        spreads = self.spreads or {}
        last = len(self.order) - 1
        size = 1.0
        for load in self.events.compile_phases:
            yield Phase("compile", load)
        for number in itertools.count(1):
            if draw.random() < self.events.stall_chance:
                wait_s = self.nominal_step_s * min(draw.paretovariate(_STALL_TAIL), _STALL_STEPS)
                yield Phase("loader stall", _waiting(wait_s))
            length, host = size * next(lengths), next(hosts)
            for i, name in enumerate(self.order):
                spread = spreads.get(name, 0.0)
                own = math.exp(spread * draw.gauss(0.0, 1.0)) if spread else 1.0
                yield Phase(name, stretched(self.loads[name], length * own, host), i == last)
            size = size * self.shrink if size * self.shrink > _SHRUNK else 1.0
            yield from self._between(number)

    def _between(self, number: int) -> Iterator[Phase]:
        events = self.events
        if events.evaluation_every and number % events.evaluation_every == 0:
            for _ in range(events.evaluation_batches):
                yield Phase("evaluation", self.loads[self.evaluated])
        if events.checkpoint and events.checkpoint_every and number % events.checkpoint_every == 0:
            yield Phase("checkpoint", events.checkpoint)


def library() -> tuple[str, ...]:
    """The names that `get` knows."""
    return tuple(FAMILIES)


def get(name: str, *, gpu: catalog.GpuModel | None = None, seed: int = 0, step_s: float | None = None) -> Workload:
    """The workload of family `name` that `seed` draws, scaled to `gpu` (None: an H200).

    `step_s` sets the length of a nominal step instead of drawing it. The same arguments give the same workload.
    Raises BadSpec if there is no such family or `step_s` is not positive.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise BadSpec(f"no workload is called {name!r}; there are {', '.join(FAMILIES)}")
    if step_s is not None and not (step_s > 0.0 and math.isfinite(step_s)):
        raise BadSpec(f"step_s={step_s} is not a positive number of seconds")
    gpu = gpu or catalog.load("h200")
    draw = random.Random(f"workload {name} {seed}")

    order: list[str] = []
    for stretch in family.order:
        order += stretch.parts * draw.randint(*stretch.repeats)
    loads = {
        part_name: _drawn_load(draw, part, gpu, order.count(part_name)) for part_name, part in family.parts.items()
    }
    drawn_s = _uniform(draw, family.step_s)
    nominal_s = drawn_s if step_s is None else step_s
    unscaled_s = sum(_default_s(gpu, loads[part_name]) for part_name in order)
    loads = {
        part_name: stretched(load, nominal_s / unscaled_s, nominal_s / unscaled_s) for part_name, load in loads.items()
    }
    return Workload(
        name=name,
        description=family.description,
        seed=seed,
        periodic=family.periodic,
        nominal_step_s=nominal_s,
        loads=loads,
        order=tuple(order),
        jitter=replace(family.jitter_shape, spread=_uniform(draw, family.jitter)),
        host_jitter=_HOST_JITTER,
        spreads={part_name: part.spread for part_name, part in family.parts.items() if part.spread},
        shrink=_uniform(draw, family.shrink),
        evaluated=family.evaluated,
        events=_drawn_events(draw, family, gpu),
    )


def draw(
    count: int, *, gpu: catalog.GpuModel | None = None, seed: int = 0, names: Sequence[str] | None = None
) -> list[Workload]:
    """`count` different workloads over all families (or those in `names`), as evenly as `count` allows.

    Raises BadSpec if `names` is empty or holds a name that is not in the library.
    """
    if names is not None and not names:
        raise BadSpec(f"no family to draw from; there are {', '.join(FAMILIES)}")
    gpu = gpu or catalog.load("h200")
    choose = random.Random(f"draw {seed}")
    drawn: list[Workload] = []
    while len(drawn) < count:
        families = list(library() if names is None else names)
        choose.shuffle(families)
        drawn += [get(name, gpu=gpu, seed=choose.getrandbits(32)) for name in families[: count - len(drawn)]]
    return drawn


def _drawn_load(draw: random.Random, part: Part, gpu: catalog.GpuModel, repeats: int) -> Load:
    """A part's load, its busy seconds still in shares of the step."""
    gpu_s = _uniform(draw, part.weight) / repeats
    sm_share = _uniform(draw, part.sm_share)
    return Load(
        gpu_s=gpu_s,
        sm_share=sm_share,
        dynamic_w=_uniform(draw, part.intensity) * (gpu.default_limit_w - gpu.chip.static_w),
        host_s=gpu_s * _uniform(draw, part.host),
        dram_share=(1.0 - sm_share) * _uniform(draw, part.dram),
    )


def _drawn_events(draw: random.Random, family: Family, gpu: catalog.GpuModel) -> Events:
    room_w = gpu.default_limit_w - gpu.chip.static_w
    compile_phases: tuple[Load, ...] = ()
    if family.compiles:
        # [assumed] The host compiles; in between the GPU times candidates. Some seconds in all.
        compile_phases = tuple(
            Load(gpu_s=0.1 * host_s, sm_share=0.8, dynamic_w=0.6 * room_w, host_s=host_s)
            for host_s in (draw.uniform(0.5, 2.0) for _ in range(draw.randint(2, 4)))
        )
    # [assumed] A copy to the host and a write: the GPU is busy for a twentieth of it.
    write_s = draw.uniform(0.3, 3.0)
    return Events(
        compile_phases=compile_phases,
        evaluation_every=draw.randint(*family.evaluation_steps) if family.evaluation_steps else 0,
        evaluation_batches=draw.randint(5, 20),
        checkpoint_every=draw.randint(*family.checkpoint_steps) if family.checkpoint_steps else 0,
        checkpoint=Load(gpu_s=0.05 * write_s, sm_share=0.0, dynamic_w=0.1 * room_w, host_s=write_s),
        stall_chance=_uniform(draw, family.stall_chance),
    )


def _default_s(gpu: catalog.GpuModel, load: Load) -> float:
    """Seconds of `load` with nothing set: maximum clocks under the default limit."""
    return physics.operate(gpu.chip, load, limit_w=gpu.default_limit_w).step_s


def stretched(load: Load, busy: float, host: float) -> Load:
    """`load` with its busy seconds multiplied by `busy` and its host seconds by `host`."""
    return replace(load, gpu_s=load.gpu_s * busy, host_s=load.host_s * host)


def _waiting(duration_s: float) -> Load:
    """Nothing but host time."""
    return Load(gpu_s=0.0, sm_share=0.0, dynamic_w=0.0, host_s=duration_s)


def _uniform(draw: random.Random, span: Span) -> float:
    return draw.uniform(*span)
