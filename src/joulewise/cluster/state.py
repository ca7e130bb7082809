"""What an allocator sees and what it says, as plain data: a snapshot of cluster and jobs in, an allocation out.

What it is: the vocabulary of the cluster floor. A job is seen only through its *ways*: for a GPU model and a number
of GPUs, a setting and a batch size, the seconds and joules that one unit of its work takes. Where a way comes from
(a throughput law fitted online, the job tuner's frontier, a series, a plan) does not show. What it is not: where the
GPUs of a job are (``placement``), how a snapshot is made (``simulator``, an engine), or a decision (``allocators``).

All times are in seconds of one clock, all powers in watts, all energies in joules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import DEFAULT, Setting


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a job. ``unit_s`` and ``unit_j`` are for one unit of its work, over all its GPUs, hosts apart."""

    gpus: int
    unit_s: float
    unit_j: float
    setting: Setting = DEFAULT
    kind: str = "gpu"
    batch: int | None = None
    error: float = 0.0
    """One standard error of ``unit_s``, relative; of a believed way, not of a measured one."""

    @property
    def power_w(self) -> float:
        """Average power of all its GPUs together."""
        return self.unit_j / self.unit_s

    @property
    def point(self) -> Point[Way]:
        """As a point of a frontier: time and energy of one unit of work."""
        return Point(self.unit_s, self.unit_j, self)


@dataclass(frozen=True, slots=True)
class Plain:
    """A job as it counts against other users' jobs: what is thought of any job that asks for as many GPUs, with nothing
    that its user or its script says of it. ``weight``: at most what the site allows its user."""

    ways: tuple[Way, ...]
    work_left: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has been submitted and has not ended, as the scheduler believes it to be.

    ``work_left`` is a prediction: it may be wrong, and is never 0 before the end. ``gpus_asked`` is what its user
    asked for; one that is not elastic (``elastic`` False) has only ways with that many GPUs. ``way`` is how it runs
    now, None while it waits. ``attained_gpu_s`` is the service it has had, ``restarts`` how often it was started.
    ``user`` is whose it is, by the engine's word; ``plain`` how it counts against other users (``fairness``), None
    where nothing is known of it that its user could have made up.
    """

    name: str
    submitted_s: float
    work_left: float
    ways: tuple[Way, ...]
    gpus_asked: int
    way: Way | None = None
    attained_gpu_s: float = 0.0
    restarts: int = 0
    deadline_s: float | None = None
    weight: float = 1.0
    tenant: str = ""
    elastic: bool = True
    user: str = ""
    plain: Plain | None = None

    def __post_init__(self) -> None:
        if not self.ways:
            raise BadSpec(f"job {self.name!r} has no way to run; give it at least one number of GPUs that fits")
        if not self.work_left > 0:
            raise BadSpec(f"job {self.name!r} has {self.work_left} units of work left; it must be above 0")


@dataclass(frozen=True, slots=True)
class Kind:
    """All nodes with one GPU model. ``host_w``: a powered node without its GPUs; ``off_w``: a sleeping one."""

    name: str
    nodes: int
    gpus_per_node: int
    idle_gpu_w: float
    host_w: float
    off_w: float = 0.0
    boot_s: float = 300.0
    boot_w: float = 1500.0
    top_mhz: float | None = None
    """The SM clock that its GPUs run at where none is set; None: not known."""
    taken: int = 0
    """GPUs that cannot be given out: others hold them."""

    @property
    def gpus(self) -> int:
        """Of all its nodes, without those that others hold."""
        return self.nodes * self.gpus_per_node - self.taken

    @property
    def empty_node_w(self) -> float:
        """What a powered node draws with nothing on it."""
        return self.host_w + self.gpus_per_node * self.idle_gpu_w

    @property
    def slot_w(self) -> float:
        """The host's draw for each GPU."""
        return self.host_w / self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Costs:
    """What a change costs a job before it works again. Clocks change for nothing."""

    start_s: float = 2.0
    per_doubling_s: float = 2.0
    restart_s: float = 27.0

    def of(self, gpus: int, *, again: bool) -> float:
        """Seconds lost by a start with so many GPUs; ``again``: it ran before, so its processes restart."""
        doublings = (gpus - 1).bit_length()
        return self.start_s + self.per_doubling_s * (doublings + 1) + (self.restart_s if again else 0.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment. ``jobs`` are in order of submission. ``energy_j``: what its meters have counted so far
    for the whole cluster, from whatever moment they began; None without meters."""

    now_s: float
    kinds: tuple[Kind, ...]
    jobs: tuple[Job, ...]
    costs: Costs = Costs()
    energy_j: float | None = None

    @property
    def gpus(self) -> Mapping[str, int]:
        """GPUs there are, by kind, powered or not."""
        return {kind.name: kind.gpus for kind in self.kinds}


@dataclass(frozen=True, slots=True)
class Budget:
    """What comes down to the allocator. None means: no limit of that kind.

    ``energy_j``: what the snapshot's jobs may draw from now to their ends, with the hosts' share of their slots. Only
    ``priced`` and ``powerflow`` honour it; no round sets it by itself. ``purse`` keeps energy under every policy by
    ``power_w``, held by the round's last check (``within``), and asks for less by ``joule_s``.
    ``power_w``: what the whole cluster may draw now, idle GPUs and hosts of powered nodes included.
    ``joule_s``: what a joule is worth, in seconds of one job's completion time (0: nothing). An allocator that finds
    its own price from ``energy_j`` uses the higher of the two.
    """

    energy_j: float | None = None
    power_w: float | None = None
    joule_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What the scarce things were worth in a decision, in seconds of completion time: one GPU for a second (by kind),
    one joule, one watt for a second."""

    gpu_s: Mapping[str, float] = field(default_factory=dict)
    joule_s: float = 0.0
    watt_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Allocation:
    """Who runs, and how. A job without an entry waits. ``gap``: how far at most from the best there is, relative, by
    the policy's own objective; None where a policy has none. ``reasons``: a sentence a job, for people. ``again_s``:
    when the policy wants to be asked again though nothing has happened by then; None: only when something has."""

    ways: Mapping[str, Way]
    prices: Prices = Prices()
    gap: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    again_s: float | None = None

    def gpus(self, kind: str | None = None) -> int:
        """GPUs given, of one kind or of all."""
        return sum(way.gpus for way in self.ways.values() if kind is None or way.kind == kind)

    @property
    def power_w(self) -> float:
        """Of all GPUs given, hosts apart."""
        return sum(way.power_w for way in self.ways.values())


Allocator = Callable[[Snapshot, Budget], Allocation]
"""A pure function: same snapshot and budget, same allocation."""


def cluster_power_w(snapshot: Snapshot, allocation: Allocation, *, warm_nodes: int = 0) -> float:
    """What the cluster draws with an allocation packed into as few nodes as it fits in, and ``warm_nodes`` more."""
    whole = 0.0
    spare = warm_nodes
    for kind in snapshot.kinds:
        used = allocation.gpus(kind.name)
        nodes = min(kind.nodes, -(-used // kind.gpus_per_node))
        kept = min(spare, kind.nodes - nodes)
        spare -= kept
        on = nodes + kept
        whole += on * kind.host_w + (on * kind.gpus_per_node - used) * kind.idle_gpu_w + (kind.nodes - on) * kind.off_w
    return whole + allocation.power_w
