"""``cluster up``'s flags as objects: an engine, its nodes as kinds, what is believed of its jobs, where it is written.

What it is: the one place where names become a cluster. What a Slurm does not tell of its nodes (which GPU model, what a
host draws, how long it boots) comes from the flags and the catalogue, else it is assumed, and said.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from joulewise.cli.cluster_gpus import BOOT_S, HOST_W, OFF_W, racks
from joulewise.cli.cluster_jobs import OnSeveralKinds
from joulewise.cluster.agents import AgentDesk
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought import belief_of, plain_belief_of
from joulewise.cluster.engine import Engine, NodeSeen, Order
from joulewise.cluster.life import Belief
from joulewise.cluster.progress import Progress
from joulewise.cluster.state import Kind
from joulewise.core.errors import BadSpec
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.store import Journal, MemoryJournal, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNTYPED = "gpu"
"""What an engine calls the GPUs of a node that has no type in its Gres."""
_LOST_S = 5.0
"""Wall seconds after which a simulated node counts as silent: only a starved process gets there."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A cluster to schedule. ``pace``: how many of its seconds pass in one; ``lasts``: jobs outlive this process."""

    engine: Engine
    desk: AgentDesk
    kinds: tuple[Kind, ...]
    models: Mapping[str, GpuModel]
    journal: Journal
    now: Callable[[], float]
    progress: Callable[[Order], Progress | None] | None
    pace: float
    lasts: bool
    says: tuple[str, ...]
    enforces: frozenset[str] = frozenset({"account", "qos"})
    """Of these, what only those can name for a job who may."""

    @property
    def most_gpu_w(self) -> dict[str, float]:
        """By kind, the most that one GPU can draw: its highest limit."""
        return {kind: model.power_limit_w.high for kind, model in self.models.items()}

    @property
    def most_w(self) -> float:
        """The most that all of it can draw."""
        most = self.most_gpu_w
        return sum(kind.nodes * (kind.host_w + kind.gpus_per_node * most[kind.name]) for kind in self.kinds)

    def idle_w(self, *, sleeps: bool) -> float:
        """What it draws with nothing to do, as its engine shows it now; ``sleeps``: nodes may be switched off then."""
        there = {kind.name: kind.off_w if sleeps else kind.empty_node_w for kind in self.kinds}
        return sum(there.get(node.kind, 0.0) for node in self.engine.nodes() if node.state != "down")

    def believe(self) -> Callable[[Order], Belief]:
        """What is thought of a job when it comes; a user's jobs on one kind of nodes learn from each other. Not from
        other users' jobs: what they tell of their progress is their word (``fairness``)."""
        fabrics: dict[str, dict[str, tuple[Fabric, int]]] = {}

        def believed(order: Order) -> Belief:
            own = fabrics.get(order.user)
            if own is None:
                own = fabrics[order.user] = self._fabrics()
            return _on_each(order, own, belief_of)

        return believed

    def believe_plain(self) -> Callable[[Order], Belief]:
        """What is thought of any job that asks for as many GPUs, by which users' shares are decided."""
        fabrics = self._fabrics()
        return lambda order: _on_each(order, fabrics, plain_belief_of)

    def _fabrics(self) -> dict[str, tuple[Fabric, int]]:
        return {
            kind.name: (Fabric(self.models[kind.name], kind.gpus_per_node, kind=kind.name), kind.gpus)
            for kind in self.kinds
        }


class _Believes(Protocol):
    def __call__(self, order: Order, fabric: Fabric, /, *, gpus_there: int) -> Belief: ...


def _on_each(order: Order, fabrics: Mapping[str, tuple[Fabric, int]], believe: _Believes) -> Belief:
    """A belief of the kinds that a job fits on."""
    fits = {name: each for name, each in fabrics.items() if order.gpus <= each[1]} or fabrics
    beliefs = {name: believe(order, fabric, gpus_there=gpus) for name, (fabric, gpus) in fits.items()}
    return next(iter(beliefs.values())) if len(beliefs) == 1 else OnSeveralKinds(beliefs)


@contextmanager
def simulated(
    gpu: str | None, per_node: int | None, host_w: float | None, database: str | None, *, speed: float, seed: int
) -> Iterator[Plant]:
    """A cluster that is not there. Its journal ends with it, too, unless a ``database`` is named, where the dashboard
    finds it under the time of its start. BadSpec for GPUs that make no cluster."""
    from joulewise.cli.cluster_live_sim import TICK_S, LiveSite

    there = racks(gpu or "sim:a100-sxm*32", per_node=per_node, host_w=host_w)

    def desk_of(now: Callable[[], float]) -> AgentDesk:
        return AgentDesk(now=now, period_s=max(1.0, TICK_S * speed), lost_s=_LOST_S * max(1.0, speed))

    site = LiveSite(there, desk_of, speed=speed, seed=seed)
    kinds = tuple(rack.kind for rack in there)
    says = [f"simulated: {_words(kind)}" for kind in kinds]
    says.append(f"a second here is {speed:g} of the cluster's; jobs follow made-up laws, and no command is run")
    with ExitStack() as stack:
        journal: Journal = MemoryJournal()
        if database is not None:
            # A name of its own each time: what a simulated cluster was cannot be gone on with.
            name = datetime.now(UTC).strftime("sim-%Y%m%d-%H%M%S")
            journal = stack.enter_context(closing(open_store(database))).journal(f"cluster/{name}")
            says.append(f"kept as cluster {name}: 'joulewise serve --database …' shows it")
        yield Plant(
            site,
            site.desk,
            kinds,
            {rack.kind.name: rack.model for rack in there},
            journal,
            site.now,
            site.progress,
            speed,
            False,
            tuple(says),
        )


@contextmanager
def on_slurm(
    partition: str | None, gpu: str | None, host_w: float | None, database: str | None, *, grace_s: float
) -> Iterator[Plant]:
    """The Slurm of this machine. MissingPart, EngineLost or BadSpec where it cannot be used from here."""
    from joulewise.cluster.engines.slurm import SlurmEngine

    engine = SlurmEngine(partition=partition, grace_s=grace_s)
    says = list(engine.ready())
    nodes = engine.nodes()
    models = gpu_models(gpu, [node.kind for node in nodes if node.gpus])
    kinds = kinds_of(nodes, models, host_w)
    says += [_words(kind) for kind in kinds]
    if host_w is None:
        says.append("what hosts draw is assumed; --host-watts tells it, and agents measure it where they can")
    # Silence is of a clock that nobody sets: a step of the other one must not make nodes look lost.
    desk = AgentDesk(now=time.monotonic)
    with closing(open_store(database)) as store:
        journal = store.journal(
            f"cluster/{_cluster_name(engine.commands.run('scontrol', 'show', 'config'), partition)}"
        )
        yield Plant(engine, desk, kinds, models, journal, time.time, None, 1.0, True, tuple(says), engine.enforced())


def gpu_models(text: str | None, kinds: Iterable[str]) -> dict[str, GpuModel]:
    """The catalogue's model for each kind of nodes. ``text``: ``"a100-sxm"`` for all of them, or
    ``"a100=a100-sxm,h200"`` by Slurm's types. BadSpec where one is not known."""
    named: dict[str, str] = {}
    everywhere: str | None = None
    for part in (text or "").replace("sim:", "").split(","):
        kind, equals, model = (word.strip() for word in part.partition("="))
        if equals:
            named[kind] = model
        elif kind:
            everywhere = kind if everywhere is None else everywhere
            named.setdefault(kind, kind)
    found = {}
    for kind in dict.fromkeys(kinds):
        wanted = named.get(kind) or everywhere or (None if kind == _UNTYPED else kind)
        if wanted is None:
            raise BadSpec("Slurm does not say which GPUs its nodes have; name the model: --gpu a100-sxm")
        try:
            found[kind] = catalog.load(wanted)
        except BadSpec as error:
            raise BadSpec(f"{error}; for nodes of Slurm's type {kind!r} write --gpu {kind}=a100-sxm") from None
    return found


def kinds_of(nodes: Sequence[NodeSeen], models: Mapping[str, GpuModel], host_w: float | None) -> tuple[Kind, ...]:
    """The nodes that there are, by GPU model."""
    made = []
    for name, model in models.items():
        there = [node for node in nodes if node.kind == name and node.gpus]
        each = max(node.gpus for node in there)
        node_w = each * HOST_W if host_w is None else host_w
        idle_w = model.chip.deep_idle_w
        boot_w = node_w + each * idle_w
        made.append(Kind(name, len(there), each, idle_w, node_w, OFF_W, BOOT_S, boot_w, model.chip.sm_max_mhz))
    return tuple(made)


def _cluster_name(config: str, partition: str | None) -> str:
    said = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.M)
    name = said[1] if said is not None else "slurm"
    return name if partition is None else f"{name}/{partition}"


def _words(kind: Kind) -> str:
    watts = f"idle GPU {kind.idle_gpu_w:g} W, host {kind.host_w:g} W, asleep {kind.off_w:g} W, boot {kind.boot_s:g} s"
    return f"{kind.nodes} nodes of {kind.gpus_per_node} {kind.name}; {watts}"
