"""Made-up jobs for a cluster: random speed-ups, clock curves, sizes. For choosing forms and for speed, never a score.

What it is: jobs drawn by seed from wide ranges of the laws in the note on PowerFlow (section 2): time of a step as
compute and synchronisation, power by clock and busy share. What it is not: any public trace or measured table, so that
what is chosen here can be scored there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulewise.cluster.simulator import Submission
from joulewise.cluster.state import Job, Kind, Snapshot, Way
from joulewise.core.knob import Setting

CLOCKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64)
TOP_MHZ = 1410.0


def kind(gpus: int, name: str = "gpu") -> Kind:
    """So many GPUs, 8 a node, with an A100 server's idle draw (Acme: 63 W a GPU, 1 kW a host)."""
    return Kind(name, nodes=-(-gpus // 8), gpus_per_node=8, idle_gpu_w=63.0, host_w=996.0, off_w=15.0)


@dataclass(frozen=True)
class Law:
    """One made-up model: seconds and watts of a unit of work (a second on one GPU at the top clock)."""

    follows: float
    """Share of a step's compute that follows the clock."""
    sync: float
    """Synchronisation inside a node, as a share of one GPU's step, and how it grows."""
    sync_more: float
    across: float
    across_more: float
    overlap: float
    linear_w: float
    cubic_w: float

    def unit(self, gpus: int, clock: float, *, across: bool = False) -> tuple[float, float]:
        """Seconds and joules (all GPUs) of one unit of work."""
        compute = ((1.0 - self.follows) + self.follows / clock) / gpus
        if gpus == 1:
            sync = 0.0
        elif gpus <= 8 and not across:
            sync = self.sync + self.sync_more * (gpus - 2)
        else:
            sync = self.across + self.across_more * (gpus - 2)
        step = (compute**self.overlap + sync**self.overlap) ** (1.0 / self.overlap)
        busy = min(compute / step, 1.0)
        power = 63.0 + busy * (self.linear_w * clock + self.cubic_w * clock**3) + (1.0 - busy) * 60.0
        return step, gpus * power * step

    def ways(self, most: int = 64, name: str = "gpu", faster: float = 1.0) -> tuple[Way, ...]:
        """Counts × clocks."""
        found = []
        for gpus in COUNTS:
            if gpus <= most:
                for clock in CLOCKS:
                    unit_s, unit_j = self.unit(gpus, clock)
                    setting = Setting(sm_mhz=round(TOP_MHZ * clock))
                    found.append(Way(gpus, unit_s / faster, unit_j / faster, setting, name))
        return tuple(found)


def law(rng: np.random.Generator) -> Law:
    """A random model: from nearly perfect scaling to none beyond a few GPUs."""
    sync = float(np.exp(rng.uniform(np.log(0.003), np.log(0.25))))
    across = sync * float(rng.uniform(1.1, 2.5))
    return Law(
        follows=float(rng.uniform(0.4, 0.9)),
        sync=sync,
        sync_more=sync * float(rng.uniform(0.0, 0.15)),
        across=across,
        across_more=across * float(np.exp(rng.uniform(np.log(0.002), np.log(0.02)))),
        overlap=float(rng.uniform(1.0, 3.0)),
        linear_w=float(rng.uniform(50.0, 120.0)),
        cubic_w=float(rng.uniform(150.0, 280.0)),
    )


def sizes(
    rng: np.random.Generator, count: int, tail: str = "lognormal"
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of work on one GPU: lognormal(9, 1.3), or Pareto with the same median and an infinite variance."""
    if tail == "pareto":
        return np.minimum(4000.0 * (1.0 + rng.pareto(1.3, count)), 2e6)
    return rng.lognormal(9.0, 1.3, count)


def snapshot(jobs: int, gpus: int, seed: int, *, kinds: int = 1) -> Snapshot:
    """Jobs that all wait, on a cluster of so many GPUs in all."""
    rng = np.random.default_rng(seed)
    floors = tuple(kind(gpus // kinds, f"gpu{n}" if n else "gpu") for n in range(kinds))
    made = []
    for number, work in enumerate(sizes(rng, jobs)):
        own = law(rng)
        ways = tuple(way for n, floor in enumerate(floors) for way in own.ways(floor.gpus, floor.name, 1.0 + 0.8 * n))
        made.append(Job(f"job{number}", 0.0, float(work), ways, gpus_asked=1))
    return Snapshot(0.0, floors, tuple(made))


class MadeTruth:
    """A law, as it happens: a job across nodes pays for the network, whatever its size."""

    def __init__(self, own: Law, kind_name: str = "gpu") -> None:
        self._own = own
        self._kind = kind_name

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        """See ``simulator.Truth``."""
        clock = way.setting["sm_mhz"] / TOP_MHZ
        return self._own.unit(way.gpus, clock, across=nodes > 1)


class MadeBelief:
    """Knows the law; the amount of work is a prediction, wrong by a factor."""

    def __init__(self, ways: tuple[Way, ...], predicted: float) -> None:
        self._ways = ways
        self._predicted = predicted

    def ways(self) -> tuple[Way, ...]:
        """All there are."""
        return self._ways

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        """Nothing is left to learn."""

    def work_left(self, done: float) -> float:
        """What was predicted; a job that outlives it is thought to have a third of what it has done before it."""
        return max(self._predicted - done, done / 3.0, 1.0)


def submissions(
    jobs: int, gpus: int, load: float, seed: int, *, sigma: float = 0.0, tail: str = "lognormal"
) -> list[Submission]:
    """Poisson arrivals that offer so much load: GPU-seconds at what jobs ask for, over GPUs × time."""
    rng = np.random.default_rng(seed)
    laws = [law(rng) for _ in range(jobs)]
    work = sizes(rng, jobs, tail)
    asked = [_asked(own, rng, gpus) for own in laws]
    gpu_s = sum(n * own.unit(n, 1.0)[0] * float(w) for own, n, w in zip(laws, asked, work, strict=True))
    times = np.cumsum(rng.exponential(gpu_s / (gpus * load) / jobs, jobs))
    guess = work * np.exp(sigma * rng.standard_normal(jobs))
    return [
        Submission(
            f"job{i}",
            float(times[i]),
            float(work[i]),
            asked[i],
            MadeTruth(laws[i]),
            MadeBelief(laws[i].ways(min(64, gpus)), float(guess[i])),
        )
        for i in range(jobs)
    ]


def _asked(own: Law, rng: np.random.Generator, gpus: int) -> int:
    """What a user asks for: as many GPUs as are used at least so well."""
    least = rng.uniform(0.5, 0.95)
    well = [n for n in COUNTS if n <= min(gpus, 32) and own.unit(n, 1.0)[0] * n <= own.unit(1, 1.0)[0] / least]
    return max(well)
