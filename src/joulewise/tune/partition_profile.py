"""Profile partitions on a GPU: seconds and joules of one execution, as on a warm GPU, with errors that are stated.

What it is: the measurer for ``tune/pareto``. Somebody hands over a callable that executes one candidate (a clock, a
count of communication SMs, a launch slot) n times; it is called without a pause, in stretches of a second or two, until
time and energy are known well enough, or a limit is reached. All stretches are one window: sensors err at its edges
only, and by the same share of a tick in every stretch that is as long. Warm silicon leaks more: a cold A40 draws some
5 % less by ``model/physics``, so what is measured first would seem thrifty. Hence the first candidate is repeated until
the thermometer rests, and all others are told as at that temperature: how time and energy go with it is learnt from
the stretches, within each candidate, and what is not known of it is part of the error. So no candidate waits for the
GPU to cool or to warm.

Energy falls into a static part (what the GPU draws while it waits, times the time) and the dynamic rest: slack in a
pipeline is paid at the static power, so plans need them apart. What it is not: an actuator. The caller sets the clock,
through a lease, and knows how to launch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from joulewise.core.errors import BadSpec, NoReading, OutOfRange, Unsupported
from joulewise.core.frontier import Frontier, Point
from joulewise.core.knob import Setting
from joulewise.core.measurement import Measurement
from joulewise.monitor.window import Monitor
from joulewise.tune.pareto import ParetoSearch
from joulewise.tune.pareto_belief import Value
from joulewise.tune.subject import LIMIT_SETTLES_S

S = TypeVar("S")
Run = Callable[[int], object]
"""Execute a candidate so many times; returns when the GPU has done them."""

FEWEST_STRETCHES = 3
"""Two tell that they differ, three by how much."""
_RESTS_K, _RESTS_S = 1.0, 20.0  # at rest: within a thermometer's step for a third of a board's time constant (60 s)
# Before anything was seen, of time or energy per kelvin: static power grows by 0.6 % a kelvin (``model/physics``) and
# is at most half of what a busy GPU draws.
_PER_K = 0.003
_ALIKE = 0.5  # candidates differ in how much of their power is static: their slopes are known to this share
_MOST = 10**7  # executions in a stretch


@dataclass(frozen=True, slots=True)
class Profiled:
    """One execution of one candidate at the reference temperature, of all GPUs measured; errors: one standard error."""

    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    static_j: float
    stretches: int
    executions: int
    temperature_c: float | None
    """How warm the GPU was; None where it does not say, and then heat is in no error."""
    reached: bool
    """Whether both errors are as small as was asked for."""

    @property
    def dynamic_j(self) -> float:
        """What it costs beyond waiting as long."""
        return self.energy_j - self.static_j

    @property
    def power_w(self) -> float:
        """Mean power."""
        return self.energy_j / self.time_s

    def point(self, setting: S) -> Point[S]:
        """The same as an option for ``plan/compose`` and ``plan/flow``."""
        return Point(self.time_s, self.energy_j, setting, self.time_error_s, self.energy_error_j)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Logarithms of the seconds and joules of one execution, and how warm it was."""

    logs: tuple[float, float]
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A window: its stretches, and what it says as a whole."""

    stretches: list[_Stretch]
    whole: Measurement[Setting]
    executions: int

    def log(self, objective: int) -> float:
        """Logarithm of the seconds or joules of one execution."""
        return math.log((self.whole.energy_j if objective == 1 else self.whole.duration_s) / self.executions)


class PartitionProfiler:
    """Measures one candidate after another on the GPUs of ``monitor``.

    ``static_w``: what these GPUs draw together while they wait, such as ``measure`` of a kernel that only spins says
    (``power_w``). ``relative_error`` is wanted of time and of energy; a candidate is repeated in stretches of
    ``stretch_s`` for at most ``limit_s``, the first one for ``warm_s`` before. BadSpec for what cannot be meant.
    """

    def __init__(
        self,
        monitor: Monitor,
        *,
        static_w: float,
        relative_error: float = 0.01,
        stretch_s: float = 1.5,
        limit_s: float = 30.0,
        warm_s: float = 240.0,
    ) -> None:
        numbers = (static_w, warm_s), (relative_error, stretch_s, limit_s)
        if not (all(0 <= n < math.inf for n in numbers[0]) and all(0 < n < math.inf for n in numbers[1])):
            raise BadSpec(
                f"static_w={static_w:g} and warm_s={warm_s:g} are 0 or more, relative_error={relative_error:g}, "
                f"stretch_s={stretch_s:g} and limit_s={limit_s:g} above 0"
            )
        self.monitor, self.static_w, self.relative_error = monitor, static_w, relative_error
        self.reference_c: float | None = None
        """All are told as at this temperature; None before the first, or without a thermometer."""
        self._stretch_s, self._limit_s, self._warm_s = stretch_s, limit_s, warm_s
        self._warm = False
        self._products = [0.0, 0.0]  # over stretches, within candidates: temperature × log time, × log energy
        self._squares, self._left, self._freedom = 0.0, [0.0, 0.0], 0

    def measure(self, run: Run) -> Profiled:
        """One candidate. Raises what ``run`` raises, NoReading where nothing measures energy, GpuLost."""
        count = self._settled(run)
        if not self._warm:
            self._learn(self._stretches(run, count, self._rests, self._warm_s).stretches)
            self.reference_c, self._warm = self._temperature_c(), True

        def enough(seen: _Seen) -> bool:
            told = self._told(seen)
            return told.reached or self._chance(seen, 1) <= self.relative_error / 2

        seen = self._stretches(run, count, enough, self._limit_s)
        told = self._told(seen)
        self._learn(seen.stretches)
        return told

    def _settled(self, run: Run) -> int:
        """Executions in a stretch. Returns when a new clock, and the power limiter's answer to it, are there."""
        now_s = self.monitor.time.now_s
        began_s, count = now_s(), 1
        while True:
            before_s = now_s()
            run(count)
            took_s = now_s() - before_s
            if took_s >= LIMIT_SETTLES_S / 8 or count >= _MOST:
                if now_s() - began_s >= LIMIT_SETTLES_S or count >= _MOST:
                    return min(_MOST, max(1, round(count * self._stretch_s / max(took_s, 1e-9))))
            else:
                count *= 2  # the first may compile or load

    def _stretches(self, run: Run, count: int, enough: Callable[[_Seen], bool], limit_s: float) -> _Seen:
        """One window of stretches until ``enough``, or the time is over."""
        stretches: list[_Stretch] = []
        spent_s = spent_j = 0.0
        before_c = self._temperature_c()
        with self.monitor.window("partition") as window:
            while True:
                run(count)
                whole, after_c = window.so_far().total, self._temperature_c()
                took_s, took_j = whole.duration_s - spent_s, whole.energy_j - spent_j
                if not (took_s > 0 and took_j > 0):
                    raise NoReading(f"a stretch of {took_s:g} s and {took_j:g} J measured nothing; make it longer")
                warmth_c = None if before_c is None or after_c is None else (before_c + after_c) / 2
                stretches.append(_Stretch((math.log(took_s / count), math.log(took_j / count)), warmth_c))
                spent_s, spent_j, before_c = whole.duration_s, whole.energy_j, after_c
                seen = _Seen(stretches, whole, count * len(stretches))
                if len(stretches) >= FEWEST_STRETCHES and (enough(seen) or spent_s >= limit_s):
                    return seen

    def _rests(self, seen: _Seen) -> bool:
        """Whether the thermometer has rested for a while."""
        late = seen.stretches[-math.ceil(_RESTS_S / self._stretch_s) :]
        known = [each.temperature_c for each in late if each.temperature_c is not None]
        return seen.whole.duration_s >= _RESTS_S and len(known) == len(late) and max(known) - min(known) <= _RESTS_K

    def _temperature_c(self) -> float | None:
        """Mean over the GPUs; None where one does not say."""
        seen = [gpu.read().temperature_c for gpu in self.monitor.gpus]
        known = [each for each in seen if each is not None]
        return statistics.fmean(known) if len(known) == len(seen) else None

    def _told(self, seen: _Seen) -> Profiled:
        """A window as at the reference temperature."""
        known = [each.temperature_c for each in seen.stretches if each.temperature_c is not None]
        warmth_c = statistics.fmean(known) if known else None
        away_k = 0.0 if warmth_c is None or self.reference_c is None else warmth_c - self.reference_c
        values, errors = [], []
        for objective in (0, 1):
            slope, unsure = self._slope(objective, seen.stretches)
            values.append(math.exp(seen.log(objective) - slope * away_k))
            errors.append(math.hypot(self._chance(seen, objective), away_k * math.hypot(unsure, _ALIKE * slope)))
        return Profiled(
            values[0],
            values[0] * errors[0],
            values[1],
            values[1] * errors[1],
            self.static_w * values[0],
            len(seen.stretches),
            seen.executions,
            warmth_c,
            max(errors) <= self.relative_error,
        )

    def _chance(self, seen: _Seen, objective: int) -> float:
        """Relative error of the mean: by how far stretches are apart in time, and what sensors state of the energy."""
        apart = statistics.stdev(each.logs[0] for each in seen.stretches)
        if self._freedom:  # three may agree by luck; all candidates so far know better how far they are apart
            apart = max(apart, math.sqrt(self._left[0] / self._freedom))
        stated = seen.whole.error_j / seen.whole.energy_j if objective == 1 else 0.0
        return math.hypot(apart / math.sqrt(len(seen.stretches)), stated)

    def _slope(self, objective: int, more: Sequence[_Stretch]) -> tuple[float, float]:
        """Relative change per kelvin, and its error: by all candidates so far and ``more`` stretches of another."""
        products, squares, left, freedom = _sums(more, objective)
        products, squares = products + self._products[objective], squares + self._squares
        left, freedom = left + self._left[objective], freedom + self._freedom
        noise = max(left - products**2 / squares, 0.0) / max(freedom - 1, 1) if squares else 0.0
        if not noise:
            return (products / squares, 0.0) if squares else (0.0, _PER_K)
        precision = squares / noise + _PER_K**-2
        return products / noise / precision, precision**-0.5

    def _learn(self, stretches: Sequence[_Stretch]) -> None:
        for objective in (0, 1):
            products, squares, left, freedom = _sums(stretches, objective)
            self._products[objective] += products
            self._left[objective] += left
        self._squares, self._freedom = self._squares + squares, self._freedom + freedom


def _sums(stretches: Sequence[_Stretch], objective: int) -> tuple[float, float, float, int]:
    """Σ temperature × log, Σ temperature², Σ log², about their means, and how many are free."""
    known = [(each.temperature_c, each.logs[objective]) for each in stretches if each.temperature_c is not None]
    if len(known) < 2:
        return 0.0, 0.0, 0.0, 0
    warmth, log = (statistics.fmean(column) for column in zip(*known, strict=True))
    return (
        sum((c - warmth) * (value - log) for c, value in known),
        sum((c - warmth) ** 2 for c, _ in known),
        sum((value - log) ** 2 for _, value in known),
        len(known) - 1,
    )


def explore(
    search: ParetoSearch, profiler: PartitionProfiler, prepare: Callable[[Sequence[Value]], Run]
) -> Frontier[tuple[Value, ...]]:
    """Ask, measure and tell until ``search`` has had enough; its frontier, settings by their values.

    ``prepare`` sets a candidate's clock and returns how to run it. What cannot be set or does not fit into memory is
    barred; anything else that is raised ends the search. BadSpec where no candidate could be measured.
    """
    while (asked := search.ask()) is not None:
        try:
            seen = profiler.measure(prepare(search.candidates[asked.setting]))
        except (Unsupported, OutOfRange, MemoryError):
            search.bar(asked.setting)
        except RuntimeError as error:  # frameworks have out-of-memory errors of their own, told by name
            if type(error).__name__ != "OutOfMemoryError":
                raise
            search.bar(asked.setting)
        else:
            search.tell(asked.setting, seen.time_s, seen.energy_j)
    return Frontier(
        Point(one.time_s, one.energy_j, search.candidates[one.setting], one.time_error_s, one.energy_error_j)
        for one in search.frontier()
    )
