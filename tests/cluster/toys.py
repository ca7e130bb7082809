"""Small clusters and jobs for the tests of this floor: a truth and a belief that differ, and two plain policies."""

from __future__ import annotations

from dataclasses import dataclass, field

from joulewise.cluster.simulator import Submission
from joulewise.cluster.state import Allocation, Budget, Kind, Snapshot, Way, cluster_power_w
from joulewise.core.knob import Setting

TOY = Kind("toy", nodes=4, gpus_per_node=8, idle_gpu_w=50.0, host_w=800.0, off_w=20.0, boot_s=300.0, boot_w=1200.0)

CLOCKS_MHZ = (1400, 1000, 700)


def toy_ways(gpus: tuple[int, ...] = (1, 2, 4, 8, 16), *, kind: str = "toy") -> tuple[Way, ...]:
    """A job that speeds up with GPUs^0.8 and draws 100 + 200·clock³ W a GPU; time is linear in the clock."""
    ways = []
    for count in gpus:
        for mhz in CLOCKS_MHZ:
            clock = mhz / CLOCKS_MHZ[0]
            unit_s = 1.0 / count**0.8 / clock
            watts = count * (100.0 + 200.0 * clock**3)
            ways.append(Way(count, unit_s, unit_s * watts, Setting(sm_mhz=mhz), kind))
    return tuple(ways)


@dataclass
class ToyBelief:
    """Believes the ways it was given, whatever it is told; remembers what it was told."""

    menu: tuple[Way, ...]
    work: float
    told: list[tuple[Way, int, float, float]] = field(default_factory=list)

    def ways(self) -> tuple[Way, ...]:
        return self.menu

    def tell(self, way: Way, nodes: int, unit_s: float, unit_j: float) -> None:
        self.told.append((way, nodes, unit_s, unit_j))

    def work_left(self, done: float) -> float:
        return max(self.work - done, 0.01 * self.work)


@dataclass(frozen=True)
class ToyTruth:
    """The believed seconds and joules times factors, and 10 % more seconds for each node beyond the first."""

    slower: float = 1.0
    hungrier: float = 1.0

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        unit_s = way.unit_s * self.slower * (1.0 + 0.1 * (nodes - 1))
        return unit_s, way.power_w * self.hungrier * unit_s


def toy_job(
    name: str,
    submitted_s: float,
    work: float,
    gpus: int = 1,
    *,
    truth: ToyTruth | None = None,
    menu: tuple[Way, ...] | None = None,
) -> Submission:
    belief = ToyBelief(menu or toy_ways(), work or 1.0)
    return Submission(name, submitted_s, work, gpus, truth or ToyTruth(), belief)


def first_come(snapshot: Snapshot, budget: Budget) -> Allocation:
    """Everybody in order with the GPUs asked for, at the top clock, while there is room; blind to energy."""
    left = dict(snapshot.gpus)
    ways = {}
    for job in snapshot.jobs:
        way = next(way for way in job.ways if way.gpus == job.gpus_asked)
        if way.gpus <= left[way.kind]:
            left[way.kind] -= way.gpus
            ways[job.name] = way
    return Allocation(ways)


def thrifty(snapshot: Snapshot, budget: Budget) -> Allocation:
    """As ``first_come``, each at the clock that is best at the budget's price of a joule, while watts last."""
    left = dict(snapshot.gpus)
    ways: dict[str, Way] = {}
    for job in snapshot.jobs:
        menu = [way for way in job.ways if way.gpus == job.gpus_asked and way.gpus <= left[way.kind]]
        menu.sort(key=lambda way: way.unit_s + budget.joule_s * way.unit_j)
        for way in menu:
            power_w = cluster_power_w(snapshot, Allocation({**ways, job.name: way}))
            if budget.power_w is None or power_w <= budget.power_w:
                ways[job.name] = way
                left[way.kind] -= way.gpus
                break
    return Allocation(ways)
