"""What really happens to a job of a trace: seconds and joules of one iteration, by GPUs, nodes and clock.

No public trace joins jobs with power per clock, so the truth is put together from measurements, and every chart made
with it must say so:

* *speed at full clock*: measured iterations/s by model × global batch × GPUs (ElasticFlow's A100 and T4 tables),
  log-log between the measured GPU counts;
* *more nodes than needed*: on A100, the communication of the same table's two-node column where a job that fits one
  node is spread; on T4, the measured step times of Pollux's placements, spread against packed;
* *clock*: a measured time curve for each model, blended from the two measured series (pipeline stages and applications
  on an A100; applications on a Turing card for T4) whose sensitivities lie around the model's, and only for the share
  of an iteration that computes;
* *power*: one of the two laws of ``bench.cluster_energy_power``;
* *scatter*: two jobs of one model differ in speed, communication, sensitivity and power, by seed.

Nothing here is a form that the allocators' beliefs use, and nothing that decides may import it.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from bench import public_sweeps
from bench.cluster_energy_power import PowerLaw
from joulewise.cluster.state import Way
from joulewise.core.errors import BadSpec
from joulewise.model.sweep import Series

# The share of a step that follows the SM clock: 1 − μ of PowerFlow's reconstruction, assumed; cifar10, ncf and yolov3
# (T4 only) after how little or how much they compute between communications.
SENSITIVITY = {
    "bert": 0.8,
    "gpt2": 0.75,
    "vgg16": 0.7,
    "inception3": 0.65,
    "resnet50": 0.6,
    "deepspeech2": 0.5,
    "imagenet": 0.6,
    "cifar10": 0.55,
    "ncf": 0.3,
    "yolov3": 0.65,
}
A100_MHZ = (855, 1005, 1110, 1200, 1305, 1410)
"""Clocks that the A100's series were measured at; the lowest is the pipeline stages' own."""
T4_MHZ = (870, 1005, 1125, 1275, 1440, 1590)
_AT = 0.7  # the clock at which two curves' sensitivities are compared


class Speed(Protocol):
    """Seconds of an iteration at full clock, and the share of them that the GPUs compute."""

    @property
    def per_node(self) -> int:
        """GPUs of one node."""
        ...

    def iteration(self, batch: int, gpus: int, nodes: int) -> tuple[float, float]:
        """For all ``gpus`` on ``nodes``; at least as many nodes as they need."""
        ...

    def most_gpus(self, batch: int) -> int:
        """The most GPUs that this batch was measured on."""
        ...

    @property
    def most_local(self) -> float:
        """The largest batch that one GPU takes at once."""
        ...

    @property
    def batches(self) -> Sequence[int]:
        """The measured ones."""
        ...


@dataclass(frozen=True)
class Table:
    """Iterations/s of one model: by global batch, by GPUs."""

    model: str
    rates: Mapping[int, Mapping[int, float]]

    @classmethod
    def read(cls, path: Path) -> Table:
        """One of ElasticFlow's files. Empty, 0 and nan mean: not measured."""
        rates: dict[int, dict[int, float]] = {}
        for row in public_sweeps.rows_of(path, "global_batch_size", "1"):
            batch = int(row.pop("global_batch_size"))
            found = {int(gpus): float(rate) for gpus, rate in row.items() if rate}
            rates[batch] = {gpus: rate for gpus, rate in found.items() if rate > 0}
        return cls(path.stem, rates)

    def rate(self, batch: int, gpus: float) -> float:
        """Iterations/s, log-log between what was measured, as at the nearest count beyond; nearest batch."""
        row = self.rates[self.nearest(batch)]
        seen = sorted(row)
        return math.exp(float(np.interp(math.log(gpus), [math.log(n) for n in seen], [math.log(row[n]) for n in seen])))

    def nearest(self, batch: int) -> int:
        """The measured batch that is nearest, by ratio."""
        return min(self.rates, key=lambda known: (abs(math.log(known / batch)), known))


@dataclass(frozen=True)
class A100Speed:
    """Of ElasticFlow's A100 table, 8 GPUs a node."""

    table: Table
    per_node: int = 8

    @property
    def batches(self) -> Sequence[int]:
        """The measured ones."""
        return sorted(self.table.rates)

    def most_gpus(self, batch: int) -> int:
        """The most GPUs that this batch was measured on."""
        return max(self.table.rates[self.table.nearest(batch)])

    @property
    def most_local(self) -> float:
        """All of them were measured on one GPU."""
        return math.inf

    @cached_property
    def _compute(self) -> tuple[float, float]:
        """Seconds a step and a sample, from the one-GPU column: neither can be negative."""
        rows = sorted((batch, 1.0 / rates[1]) for batch, rates in self.table.rates.items() if 1 in rates)
        batches, seconds = np.array(rows).T
        slope, level = np.polyfit(batches, seconds, 1) if len(rows) > 1 else (seconds[0] / batches[0], 0.0)
        if level < 0:
            slope, level = float(np.mean(seconds / batches)), 0.0
        return float(level), float(slope)

    def _compute_s(self, batch: float) -> float:
        level, slope = self._compute
        return level + slope * batch

    def iteration(self, batch: int, gpus: int, nodes: int) -> tuple[float, float]:
        """A job that would fit one node but is on several communicates as the table's two-node job does."""
        batch = self.table.nearest(batch)
        whole_s = 1.0 / self.table.rate(batch, gpus)
        compute_s = min(whole_s, self._compute_s(batch / gpus))
        if nodes > 1 and 1 < gpus <= self.per_node:
            two = 2 * self.per_node
            across_s = 1.0 / self.table.rate(batch, two) - self._compute_s(batch / two)
            whole_s = max(whole_s, compute_s + across_s)
        return whole_s, compute_s / whole_s


@dataclass(frozen=True)
class T4Speed:
    """ElasticFlow's T4 table, 4 GPUs a node, with Pollux's measured placements of the same applications."""

    table: Table
    placements: Path
    per_node: int = 4

    @property
    def batches(self) -> Sequence[int]:
        """The measured ones."""
        return sorted(self.table.rates)

    def most_gpus(self, batch: int) -> int:
        """The most GPUs that this batch was measured on."""
        return max(self.table.rates[self.table.nearest(batch)])

    @cached_property
    def _steps(self) -> Mapping[tuple[int, int], tuple[Sequence[float], Sequence[float], Sequence[float]]]:
        """(GPUs, nodes) → log of the local batch, log step time, communication's share; mean over placements."""
        seen: dict[tuple[int, int], dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for row in public_sweeps.rows_of(self.placements, "placement", "local_bsz", "step_time", "sync_time"):
            where = [int(gpus) for gpus in row["placement"]]
            step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
            seen[sum(where), len(where)][int(row["local_bsz"])].append((step_s, sync_s))
        found = {}
        for key, rows in seen.items():
            local = sorted(rows)
            steps = [sum(step for step, _ in rows[b]) / len(rows[b]) for b in local]
            syncs = [sum(sync for _, sync in rows[b]) / len(rows[b]) for b in local]
            shares = [min(1.0, sync / step) for sync, step in zip(syncs, steps, strict=True)]
            found[key] = ([math.log(b) for b in local], [math.log(step) for step in steps], shares)
        return found

    @cached_property
    def most_local(self) -> float:
        """The largest batch that one GPU was measured with; beyond it gradients are accumulated."""
        return math.exp(max(x[-1] for x, _, _ in self._steps.values()))

    def _step(self, gpus: int, nodes: int, local: float) -> tuple[float, float]:
        """Seconds and communication's share of a step; the nearest placement that was measured."""
        known = self._steps
        key = min(known, key=lambda k: (abs(math.log(k[0] / gpus)), abs(k[1] - nodes), k))
        x, steps, shares = known[key]
        at = math.log(max(1.0, local))
        return math.exp(float(np.interp(at, x, steps))), float(np.interp(at, x, shares))

    def iteration(self, batch: int, gpus: int, nodes: int) -> tuple[float, float]:
        """The table's time for the fewest nodes, longer by what the placements measured for more."""
        batch = self.table.nearest(batch)
        whole_s = 1.0 / self.table.rate(batch, gpus)
        local = batch / gpus
        # No local batch beyond what fits: the rest is accumulated, and only the last step of several communicates.
        times = math.ceil(local / self.most_local)
        fewest = -(-gpus // self.per_node)
        packed_s, share = self._step(gpus, fewest, local / times)
        packed_s += (times - 1) * packed_s * (1.0 - share)
        if nodes > fewest:
            spread_s, spread_share = self._step(gpus, nodes, local / times)
            spread_s += (times - 1) * spread_s * (1.0 - spread_share)
            # A few placements were measured faster than the packed one: noise, not a gain from spreading.
            if spread_s > packed_s:
                whole_s, share = whole_s * spread_s / packed_s, max(share, spread_share)
        compute = times * (1.0 - share) / (1.0 + (times - 1) * (1.0 - share))
        return whole_s, max(0.05, compute)


@dataclass(frozen=True)
class Curve:
    """Time against that at full clock, measured: rising as the clock fraction falls, straight in 1/x between points."""

    slowness: tuple[float, ...]
    """1/x, ascending from 1."""
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, series: Sequence[Series], max_mhz: float) -> Curve:
        """The sum of pieces of work that were measured at the same clocks, each under its highest power limit."""
        times: dict[float, float] = defaultdict(float)
        for each in series:
            limit_w = max(point.limit_w or 0.0 for point in each.points)
            for point in each.points:
                if point.lock_mhz and (point.limit_w or 0.0) == limit_w:
                    times[max_mhz / point.lock_mhz] += point.time_s
        slowness = sorted(times)
        # A clock that was measured to be faster than a higher one is noise of under 2 %.
        rising = np.maximum.accumulate([times[s] / times[slowness[0]] for s in slowness])
        return cls(tuple(slowness), tuple(float(r) for r in rising))

    def __call__(self, x: float) -> float:
        """At clock fraction ``x``; beyond the last measured one along the last piece."""
        s = 1.0 / x
        if s <= self.slowness[-1]:
            return float(np.interp(s, self.slowness, self.ratios))
        (s0, s1), (r0, r1) = self.slowness[-2:], self.ratios[-2:]
        return r1 + (r1 - r0) / (s1 - s0) * (s - s1)

    @cached_property
    def sensitivity(self) -> float:
        """The share of the time that follows the clock, read off at one clock."""
        return (self(_AT) - 1.0) / (1.0 / _AT - 1.0)


@dataclass(frozen=True)
class Blend:
    """Two measured curves mixed so that the sensitivity is the one wanted, within what was measured."""

    low: Curve
    high: Curve
    share: float

    @classmethod
    def to(cls, sensitivity: float, curves: Sequence[Curve]) -> Blend:
        """Of the curves next to ``sensitivity`` on either side."""
        ordered = sorted(curves, key=lambda curve: curve.sensitivity)
        above = next((i for i, curve in enumerate(ordered) if curve.sensitivity >= sensitivity), len(ordered) - 1)
        low, high = ordered[max(0, above - 1)], ordered[above]
        gap = high.sensitivity - low.sensitivity
        share = (sensitivity - low.sensitivity) / gap if gap > 0 else 1.0
        return cls(low, high, min(1.0, max(0.0, share)))

    def __call__(self, x: float) -> float:
        """Time at clock fraction ``x`` against that at full clock."""
        return (1.0 - self.share) * self.low(x) + self.share * self.high(x)


@dataclass(frozen=True)
class Scatter:
    """By how much jobs of one model differ: standard deviations of logarithms, and of the sensitivity itself.

    Inputs, sequence lengths and hosts differ between jobs of one model; cards by 8–18 % in power (``model/truth``).
    """

    speed: float = 0.10
    communication: float = 0.15
    sensitivity: float = 0.08
    power: float = 0.08


@dataclass
class JobTruth:
    """One job's own truth; ``unit`` is what the simulator asks for. A unit of work is one iteration."""

    model: str
    batch: int
    speed: Speed
    curve: Blend
    power: PowerLaw
    max_mhz: float
    speed_factor: float = 1.0
    communication_factor: float = 1.0
    _seen: dict[tuple[int, float, int], tuple[float, float]] = field(default_factory=dict, repr=False)

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        """Seconds, and joules of all its GPUs, of one iteration at this way on so many nodes."""
        mhz = way.setting.get("sm_mhz", self.max_mhz)
        key = (way.gpus, mhz, nodes)
        if (known := self._seen.get(key)) is None:
            known = self._seen[key] = self._unit(*key)
        return known

    def _unit(self, gpus: int, mhz: float, nodes: int) -> tuple[float, float]:
        x = min(1.0, mhz / self.max_mhz)
        whole_s, share = self.speed.iteration(self.batch, gpus, nodes)
        compute_s = whole_s * share * self.curve(x)
        talk_s = whole_s * (1.0 - share) * self.communication_factor
        unit_s = compute_s + talk_s
        unit_j = gpus * (compute_s * self.power.busy_w(x) + talk_s * self.power.waiting_w(x))
        return unit_s * self.speed_factor, unit_j * self.speed_factor

    def seconds(self, gpus: int) -> float:
        """Of one iteration at full clock on the fewest nodes."""
        return self.unit(Way(gpus, 1.0, 1.0), -(-gpus // self.speed.per_node))[0]


class Tables:
    """All measurements of one GPU model (``a100`` or ``t4``), read once; makes the truths of jobs."""

    def __init__(self, gpu: str, data: Path) -> None:
        cluster = data / "cluster"
        folder = cluster / "elasticflow" / "throughputs" / f"throughputs_{gpu.upper()}"
        paths = sorted(folder.glob("*.csv"))
        if not paths:
            raise BadSpec(f"{folder} has no throughput tables; set JOULEWISE_DATA to the folder of public data")
        self.gpu = gpu
        tables = {path.stem: Table.read(path) for path in paths}
        self.speeds: dict[str, Speed]
        self.curves: tuple[Curve, ...]
        if gpu == "a100":
            self.clocks_mhz: tuple[int, ...] = A100_MHZ
            # A model that was never measured across nodes has no truth there.
            self.speeds = {
                name: A100Speed(table)
                for name, table in tables.items()
                if all(max(row) > 8 for row in table.rates.values())
            }
            stages = public_sweeps.stages(data / "perseus" / "stage_profile" / "gpt3-175b+a100_sxm_bf16.csv")
            grid = public_sweeps.grid(data / "dvfs" / "a100_clock_powerlimit_grid.csv")
            self.curves = (Curve.of(stages, 1410.0), *(Curve.of([each], 1410.0) for each in grid))
        else:
            self.clocks_mhz = T4_MHZ
            pollux = cluster / "pollux" / "traces"
            self.speeds = {name: T4Speed(table, pollux / name / "placements.csv") for name, table in tables.items()}
            sweep = public_sweeps.sweep([data / "dvfs" / "rtx8000-dvfs-real-profile.csv"])
            self.curves = tuple(Curve.of([each], 1710.0) for each in sweep)

    @property
    def max_mhz(self) -> int:
        """The clock at which the tables were measured."""
        return self.clocks_mhz[-1]

    def draw(self, seed: int, name: str) -> tuple[str, int]:
        """A model and a batch for a job of a trace that names none: all alike likely, the same for the same seed."""
        rng = random.Random(f"model {seed} {name}")
        model = rng.choice(sorted(self.speeds))
        return model, rng.choice(list(self.speeds[model].batches))

    def truth(
        self, model: str, batch: int, name: str, power: str, *, seed: int = 0, scatter: Scatter | None = None
    ) -> JobTruth:
        """Of the job of that name. ``power`` is ``note`` or ``mixture``; BadSpec for a model without a table."""
        speed = self.speeds.get(model)
        if speed is None:
            raise BadSpec(f"no {self.gpu} table for model {model!r}; there are {', '.join(sorted(self.speeds))}")
        scatter = scatter or Scatter()
        rng = random.Random(f"job {seed} {name}")
        # Power comes last: a job's times are the same under either law.
        speed_factor = math.exp(scatter.speed * rng.gauss(0.0, 1.0))
        communication_factor = math.exp(scatter.communication * rng.gauss(0.0, 1.0))
        sensitivity = min(0.95, max(0.05, SENSITIVITY.get(model, 0.6) + scatter.sensitivity * rng.gauss(0.0, 1.0)))
        return JobTruth(
            model,
            batch,
            speed,
            Blend.to(sensitivity, self.curves),
            PowerLaw.of(power, self.gpu, sensitivity, rng, scatter.power),
            self.max_mhz,
            speed_factor,
            communication_factor,
        )
