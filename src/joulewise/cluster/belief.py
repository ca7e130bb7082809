"""What the scheduler believes of a job: its ways to run, learnt while it runs, and how much work is left.

What it is: three beliefs behind one protocol (``ways``, ``tell``, ``work_left``). `FittedBelief` knows a job through
the law of ``model/throughput``, fitted to what was seen of it and of jobs with the same fingerprint, with what the
other jobs on this fabric taught as prior (`Fabric`). `FrontierBelief` is for a job that brings its own time–energy
points per GPU count: from the job tuner, the series tuner or a plan. Why: an allocator sees only ways, and must not
know where they come from. What it is not: the truth of a simulation or of an engine.

``ways()`` returns the same tuple until something new was learnt, so that allocators may keep what they made of it.
A size is offered up to what the user asked for, beyond that only up to twice the largest one seen: a throughput law
extrapolates badly (one inter-node size does not tell the next).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, POWER_LIMIT_W, SM_MHZ, Setting
from joulewise.model.catalog import GpuModel
from joulewise.model.throughput import Frame, Spots, iteration_gain, local_batch
from joulewise.model.throughput_fit import GENERIC, JobFit, Prior, Seen, believe, fit
from joulewise.model.throughput_prior import pooled

CLOCKS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Clock fractions offered unless told otherwise: below half of the maximum no measured load saves energy."""

_NEWS = 1.0  # a known spot that is off its prediction by more than so many standard errors of noise is news
_TEACHES = 3  # spots that a job must have been seen at before others learn from it
_ANEW = (4, 16, 64)  # spots at which a fit begins anew, so that it is not caught in a valley of its first looks
_LEAST_LEFT = 1e-3  # of the predicted work: an outlived job is never told to be done


@dataclass(frozen=True, slots=True)
class WorkGuess:
    """A prediction of a job's whole work: its median, and the spread of its logarithm (0: taken to be exact)."""

    work: float
    sigma: float = 0.0

    def left(self, done: float) -> float:
        """Median of what is left, given that the job has done so much and has not ended. Always above 0."""
        least = _LEAST_LEFT * self.work
        if self.sigma <= 0 or done <= 1e-9 * self.work:
            return max(self.work - max(done, 0.0), least)
        normal = NormalDist()
        beyond = normal.cdf(-math.log(done / self.work) / self.sigma)
        if beyond < 1e-12:  # far out in the tail: as much again as the spread says
            return max(done * math.expm1(min(self.sigma, 1.0) * 0.1), least)
        return max(self.work * math.exp(-self.sigma * normal.inv_cdf(beyond / 2.0)) - done, least)


@dataclass(slots=True)
class _Memory:
    """What was seen of all jobs with one fingerprint: means per spot, and the fit."""

    frame: Frame
    rows: dict[tuple[float, ...], list[float]] = field(default_factory=dict)  # spot -> [count, Σ ln s, Σ ln W]
    fit: JobFit | None = None
    version: int = 0
    largest: int = 0  # GPUs that any of them ran on
    batch: float = 0.0  # and the largest global batch
    ways: dict[Any, tuple[int, tuple[Way, ...]]] = field(default_factory=dict)


class Fabric:
    """What is known of one kind of nodes and the jobs on it; shared by the beliefs of all its jobs.

    ``model`` gives the chip of the power law and the clocks; ``clocks`` are fractions of its highest. ``prior`` is
    where a fabric starts: what another fabric taught, or the generic one.
    """

    def __init__(
        self,
        model: GpuModel,
        gpus_per_node: int,
        *,
        kind: str = "gpu",
        clocks: Sequence[float] = CLOCKS,
        prior: Prior = GENERIC,
    ) -> None:
        self.model = model
        self.gpus_per_node = gpus_per_node
        self.kind = kind
        self.prior = prior
        top = model.chip.sm_max_mhz
        locked = dict.fromkeys(model.sm_mhz.at_most(x * top) for x in sorted(clocks, reverse=True) if x < 1.0)
        self.settings: tuple[Setting, ...] = (DEFAULT, *(Setting(sm_mhz=mhz) for mhz in locked))
        self._memories: dict[Hashable, _Memory] = {}

    def memory(self, fingerprint: Hashable, batch: float) -> _Memory:
        """What is remembered of jobs with this fingerprint; ``batch``: usual samples a GPU, the first time."""
        if fingerprint not in self._memories:
            room_w = self.model.default_limit_w - self.model.chip.static_w
            self._memories[fingerprint] = _Memory(Frame(self.model.chip, room_w, batch))
        return self._memories[fingerprint]

    def spot(self, gpus: int, nodes: int, batch: float, steps: int, setting: Setting) -> tuple[float, ...]:
        """A row of `Spots`: this fabric's clocks and limits are in ``setting``."""
        x = setting.get(SM_MHZ.name, self.model.chip.sm_max_mhz) / self.model.chip.sm_max_mhz
        limit_w = min(setting.get(POWER_LIMIT_W.name, math.inf), self.model.default_limit_w)
        return (float(gpus), float(nodes), batch, float(steps), min(x, 1.0), limit_w)

    def learn(self, memory: _Memory, spot: tuple[float, ...], iteration_s: float, iteration_j: float) -> None:
        """Take a look at a running job into account; fits again only where it says something new."""
        row = memory.rows.setdefault(spot, [0.0, 0.0, 0.0])
        row[0] += 1.0
        row[1] += math.log(iteration_s)
        row[2] += math.log(iteration_j)
        gpus, _, batch, steps, _, _ = spot
        memory.largest = max(memory.largest, int(gpus))
        memory.batch = max(memory.batch, gpus * batch * (steps + 1.0))
        looks = int(row[0])
        # Looks 1, 2, 4, 8, … at one spot: a mean that has settled teaches nothing.
        if looks == 1 or (looks & (looks - 1) == 0 and self._is_news(memory, spot)):
            self._refit(memory)

    def fitted(self, memory: _Memory) -> JobFit:
        """The fit of a memory; the prior alone while nothing was seen."""
        return memory.fit or believe(memory.frame, self._prior_for(memory))

    def _is_news(self, memory: _Memory, spot: tuple[float, ...]) -> bool:
        count, log_s, log_j = memory.rows[spot]
        said = self.fitted(memory).predict(Spots.of([spot]))
        off_s = abs(log_s / count - math.log(said.seconds[0]))
        off_j = abs(log_j / count - math.log(said.joules[0]))
        prior = self.fitted(memory).prior
        return off_s > _NEWS * prior.time_noise or off_j > _NEWS * (prior.time_noise + prior.power_noise)

    def _refit(self, memory: _Memory) -> None:
        table = np.array([*memory.rows.values()])
        seen = Seen(Spots.of(memory.rows), np.exp(table[:, 1] / table[:, 0]), np.exp(table[:, 2] / table[:, 0]))
        # A search from the last fit takes a millisecond; from anew, where there is much more to go by, several.
        anew = memory.fit is None or len(memory.rows) in _ANEW
        start = None if anew or memory.fit is None else memory.fit.z
        memory.fit = fit(memory.frame, seen, self._prior_for(memory), start=start)
        memory.version += 1

    def _prior_for(self, memory: _Memory) -> Prior:
        """From the other jobs of this fabric: never from the one that it is for."""
        others = [
            one.fit
            for one in self._memories.values()
            if one is not memory and one.fit is not None and len(one.rows) >= _TEACHES
        ]
        return pooled(others, self.prior) if others else self.prior


class FittedBelief:
    """A data-parallel job known through the throughput law. One unit of its work is one iteration at its own batch.

    ``fingerprint`` says which jobs are alike (network and batch, say); they share what is seen. ``batch`` is the
    global batch, ``local_batch_most`` what fits a GPU (beyond it gradients are accumulated). The global batch stays,
    unless ``gradient`` = (noise, signal) at that batch is known: then 2×, 4×, … up to ``batch_most`` are offered as
    well (no more than twice the largest that was seen), and a unit is the progress of one iteration at its own batch.
    """

    def __init__(
        self,
        fabric: Fabric,
        fingerprint: Hashable,
        *,
        batch: float,
        gpus_asked: int,
        guess: WorkGuess,
        gpus_most: int | None = None,
        local_batch_most: float = math.inf,
        elastic: bool = True,
        gradient: tuple[float, float] | None = None,
        batch_most: float | None = None,
    ) -> None:
        if batch <= 0 or gpus_asked < 1:
            raise BadSpec(f"job {fingerprint!r}: batch {batch:g} and {gpus_asked} GPUs asked must be above 0")
        self._fabric = fabric
        self._batch = batch
        self._asked = gpus_asked
        self._most = max(gpus_most or gpus_asked, gpus_asked)
        self._local_most = local_batch_most
        self._elastic = elastic
        self._gradient = gradient
        self._batches = _batches(batch, batch_most) if gradient is not None else (batch,)
        self._guess = guess
        usual, _ = local_batch(batch, gpus_asked, local_batch_most)
        self._memory = fabric.memory(fingerprint, usual)
        # Jobs alike in all of this share one tuple of ways.
        self._key = (batch, self._most, gpus_asked, local_batch_most, elastic, gradient, self._batches)

    @property
    def fit(self) -> JobFit:
        """What is believed now."""
        return self._fabric.fitted(self._memory)

    def ways(self) -> tuple[Way, ...]:
        """Every GPU count that may be offered × every clock (× every batch, where the gradient noise is known)."""
        memory = self._memory
        kept = memory.ways.get(self._key)
        if kept is None or kept[0] != memory.version:
            kept = (memory.version, self._made())
            memory.ways[self._key] = kept
        return kept[1]

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """Seconds and joules of a unit, as seen while the job ran ``way`` on so many nodes."""
        if not (unit_s > 0 and unit_j > 0):
            return
        batch = self._batch if way.batch is None else float(way.batch)
        gain = self._gain(batch)
        local, steps = local_batch(batch, way.gpus, self._local_most)
        spot = self._fabric.spot(way.gpus, nodes, local, steps, way.setting)
        self._fabric.learn(self._memory, spot, unit_s * gain, unit_j * gain)

    def work_left(self, done: float) -> float:
        """Units left after ``done``, as predicted; above 0."""
        return self._guess.left(done)

    def _gain(self, batch: float) -> float:
        if self._gradient is None or batch == self._batch:
            return 1.0
        return iteration_gain(*self._gradient, batch / self._batch)

    def _sizes(self) -> list[int]:
        if not self._elastic:
            return [self._asked]
        largest = min(self._most, max(self._asked, 2 * self._memory.largest))
        doubling = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
        return sorted({*doubling, self._asked})

    def _made(self) -> tuple[Way, ...]:
        fabric, rows, choices = self._fabric, [], []
        for gpus in self._sizes():
            nodes = -(-gpus // fabric.gpus_per_node)
            for batch in self._batches:
                if batch > max(self._batch, 2.0 * self._memory.batch) or (batch < gpus and gpus != self._asked):
                    continue  # never trusted that far, or less than a sample a GPU
                local, steps = local_batch(batch, gpus, self._local_most)
                for setting in fabric.settings:
                    rows.append(fabric.spot(gpus, nodes, local, steps, setting))
                    choices.append((gpus, batch, setting))
        said = self.fit.predict(Spots.of(rows))
        batches = len(self._batches) > 1
        return tuple(
            Way(
                gpus,
                seconds / self._gain(batch),
                joules / self._gain(batch),
                setting,
                fabric.kind,
                round(batch) if batches else None,
                error,
            )
            for (gpus, batch, setting), seconds, joules, error in zip(
                choices, said.seconds.tolist(), said.joules.tolist(), said.time_error.tolist(), strict=True
            )
        )


class FrontierBelief:
    """A job that brings time–energy points of one unit of work per GPU count; its points stand, up to one factor.

    ``frontiers``: GPU count → Frontier, or more points than its (energy over all its GPUs). ``as_setting`` turns a
    point's setting into a GPU setting where it is not one already (a plan's deadline, say). What is told moves all
    points by one factor of time and one of energy, once they are off by more than ``tolerance``. All its points are of
    one ``kind`` of GPUs: points found on one model say nothing of another, and one factor would not hold for both.
    """

    def __init__(
        self,
        frontiers: Mapping[int, Iterable[Point[Any]]],
        *,
        guess: WorkGuess,
        kind: str = "gpu",
        as_setting: Callable[[Any], Setting] | None = None,
        tolerance: float = 0.03,
    ) -> None:
        if not frontiers:
            raise BadSpec("a job that brings its frontiers needs at least one GPU count")
        self._guess = guess
        self._tolerance = tolerance
        self._log_time = self._log_energy = 0.0
        self._told = 0
        self._brought = tuple(
            Way(
                gpus,
                point.time_s,
                point.energy_j,
                _setting(point.setting, as_setting),
                kind,
                error=point.time_error_s / point.time_s,
            )
            for gpus, frontier in sorted(frontiers.items())
            for point in frontier
        )
        self._by_choice = {(way.gpus, way.setting): way for way in self._brought}
        self._ways = self._brought

    def ways(self) -> tuple[Way, ...]:
        """All points of all GPU counts."""
        return self._ways

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:  # noqa: ARG002 (one protocol)
        """What a unit really took: averaged over all looks as one factor of time and one of energy."""
        brought = self._by_choice.get((way.gpus, way.setting))
        if brought is None or not (unit_s > 0 and unit_j > 0):
            return
        self._told += 1
        self._log_time += (math.log(unit_s / brought.unit_s) - self._log_time) / self._told
        self._log_energy += (math.log(unit_j / brought.unit_j) - self._log_energy) / self._told
        first_now, first = self._ways[0], self._brought[0]
        off = max(
            abs(self._log_time - math.log(first_now.unit_s / first.unit_s)),
            abs(self._log_energy - math.log(first_now.unit_j / first.unit_j)),
        )
        if off > self._tolerance:
            slower, dearer = math.exp(self._log_time), math.exp(self._log_energy)
            self._ways = tuple(
                Way(w.gpus, w.unit_s * slower, w.unit_j * dearer, w.setting, w.kind, w.batch, w.error)
                for w in self._brought
            )

    def work_left(self, done: float) -> float:
        """Units left after ``done``, as predicted; above 0."""
        return self._guess.left(done)


def _batches(batch: float, most: float | None) -> tuple[float, ...]:
    """The job's own batch and its doublings up to ``most``."""
    found = [batch]
    while most is not None and 2.0 * found[-1] <= most:
        found.append(2.0 * found[-1])
    return tuple(found)


def _setting(given: Any, as_setting: Callable[[Any], Setting] | None) -> Setting:
    if as_setting is not None:
        return as_setting(given)
    if not isinstance(given, Setting):
        raise BadSpec(f"a frontier's setting must be a Setting, not {type(given).__name__}; give as_setting")
    return given
