"""Jobs on virtual GPUs with marks as hooks would leave them, and the truth of what they do."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.marks import MarkKind
from joulewise.core.timeline import VirtualTime
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, physics
from joulewise.model.jitter import Jitter
from joulewise.model.physics import Load
from joulewise.model.workloads import Phase, stretched
from joulewise.monitor.steps import MemoryFeed

PID = 77
COMPUTE = Load(1.0, sm_share=0.8, dynamic_w=380.0, dram_share=0.1)
"""Below the limit of an H200: the default runs at the highest clock."""
STREAM = Load(1.0, sm_share=0.1, dynamic_w=320.0, dram_share=0.8)


@dataclass
class Played:
    """A job that plays on one H200 of its own time. ``source`` gives its phases; names that start with ":" are marked
    as phases, "pause" ones as pauses."""

    source: Callable[[], Iterator[Phase]]
    order: Sequence[Load]
    time: VirtualTime = field(default_factory=VirtualTime)
    model: str = "h200"
    slow: Setting = field(default_factory=lambda: Setting(sm_mhz=1200))
    ends_s: list[float] = field(default_factory=list)
    ends_j: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpu = VirtualGpu(catalog.load(self.model), time=self.time, gain=1.0)
        self.feed = MemoryFeed(self.time)
        self.feed.mark(MarkKind.HELLO)
        self.gpu.play(self, pid=PID, on_step=self._step)

    @classmethod
    def steady(cls, step_s: float = 0.2, jitter: float = 0.0, load: Load = COMPUTE, seed: int = 0) -> Played:
        """Steps of one load."""
        whole = stretched(load, step_s, step_s)
        factors = Jitter(spread=jitter, correlation=0.3, tail=4.0)

        def phases() -> Iterator[Phase]:
            for factor in factors.factors(f"steady {seed}"):
                yield Phase("work", stretched(whole, factor, factor), True)

        return cls(phases, (whole,))

    @classmethod
    def two_parts(cls, step_s: float = 1.3) -> Played:
        """Steps of two loads that power tells apart, and nothing marked that matters."""
        order = (stretched(COMPUTE, 0.6 * step_s, 0.0), Load(0.1 * step_s, 0.2, 60.0, host_s=0.3 * step_s))

        def phases() -> Iterator[Phase]:
            for factor in Jitter(spread=0.01, tail=4.0).factors("two"):
                for i, load in enumerate(order):
                    yield Phase("work", stretched(load, factor, factor), i == 1)

        return cls(phases, order)

    @classmethod
    def aperiodic(cls) -> Played:
        """Work in pieces of any length, of one kind."""
        draw = random.Random(3)

        def phases() -> Iterator[Phase]:
            while True:
                yield Phase("work", stretched(COMPUTE, draw.uniform(0.02, 1.5), 0.0), True)

        return cls(phases, (COMPUTE,))

    @classmethod
    def changing(cls, *loads_and_steps: tuple[Load, float, int], jitter: float = 0.01) -> Played:
        """Steps of one load for so many steps, then of the next; the last for ever."""
        factors = Jitter(spread=jitter, correlation=0.3, tail=4.0).factors("changing")

        def phases() -> Iterator[Phase]:
            last = len(loads_and_steps) - 1
            for number, (load, step_s, count) in enumerate(loads_and_steps):
                for _ in itertools.count() if number == last else range(count):
                    factor = step_s * next(factors)
                    yield Phase("work", stretched(load, factor, factor), True)

        load, step_s, _ = loads_and_steps[0]
        return cls(phases, (stretched(load, step_s, step_s),))

    @classmethod
    def alternating(
        cls, *parts: tuple[str, Load, float, int], marked: bool = True, silent: str = "", jitter: float = 0.01
    ) -> Played:
        """Phases in turn: name, load, seconds a step, steps a visit. In the phase ``silent`` no steps are told."""
        factors = Jitter(spread=jitter, correlation=0.3, tail=4.0).factors("alternating")

        def phases() -> Iterator[Phase]:
            while True:
                for name, load, step_s, count in parts:
                    for _ in range(count):
                        factor = step_s * next(factors)
                        yield Phase(f":{name}" if marked else "work", stretched(load, factor, factor), name != silent)

        return cls(phases, ())

    @classmethod
    def with_gaps(cls, step_s: float, steps: int, gap_s: float) -> Played:
        """Steps, then a wait for the host, over and over."""
        whole = stretched(COMPUTE, step_s, 0.0)

        def phases() -> Iterator[Phase]:
            while True:
                for _ in range(steps):
                    yield Phase("work", whole, True)
                yield Phase("wait", Load(0.0, 0.0, 0.0, host_s=gap_s))

        return cls(phases, (whole,))

    def phases(self) -> Iterator[Phase]:
        """The source's phases, with marks where they belong."""
        name = ""
        for phase in self.source():
            if phase.name.startswith(":") and phase.name != name:
                name = phase.name
                self.feed.mark(MarkKind.PHASE, name=name[1:], time_s=self.gpu.board.time_s)
            yield phase

    def truth(self, setting: Setting = DEFAULT, order: Sequence[Load] | None = None) -> tuple[float, float]:
        """Seconds and joules of one step under a setting, jitter aside."""
        model = self.gpu.model
        done = [
            physics.operate(
                model.chip,
                load,
                lock_mhz=setting.get("sm_mhz"),
                memory_mhz=setting.get("memory_mhz"),
                limit_w=setting.get("power_limit_w", model.default_limit_w),
                temperature_c=self.gpu.board.state.temperature_c,
            )
            for load in order or self.order
        ]
        return sum(each.step_s for each in done), sum(each.energy_j for each in done)

    def joules_at(self, time_s: float) -> float:
        """True joules drawn up to the end of the step that ended at ``time_s``."""
        return self.ends_j[bisect_left(self.ends_s, time_s - 1e-9)]

    def _step(self, end_s: float) -> None:
        self.ends_s.append(end_s)
        self.ends_j.append(self.gpu.board.trace.energy_j(end_s))
        self.feed.mark(MarkKind.STEP, time_s=end_s)


@dataclass
class Silent(Played):
    """A job whose hooks tell no steps between two moments, though it goes on; ``pause`` marks that time."""

    until_s: float = math.inf
    again_s: float = math.inf
    pause: str = ""
    every_s: list[float] = field(default_factory=list)
    """Ends of all steps, told or not."""

    def _step(self, end_s: float) -> None:
        silent = self.until_s <= end_s < self.again_s
        last_s = self.every_s[-1] if self.every_s else -math.inf
        self.every_s.append(end_s)
        if silent and self.pause and last_s < self.until_s:
            self.feed.mark(MarkKind.PAUSE, name=self.pause, time_s=end_s)
        if not silent:
            if self.pause and self.until_s <= last_s < self.again_s:
                self.feed.mark(MarkKind.RESUME, time_s=end_s)
            super()._step(end_s)
