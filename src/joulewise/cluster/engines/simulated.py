"""An engine without a cluster: the protocol of ``engine`` on a simulated site, in virtual time.

What it is: what a scheduler holds in its hand. Several of them may be made for one site, as several schedulers may meet
on one Slurm: the one that took the highest epoch acts, the others are ``Fenced``. Time passes in ``wait`` and nowhere
else. Clocks are not an engine's business; here ``SimulatedSite.retune`` sets them, called by whatever stands for the
node agents.
What it is not: the simulator (``simulator.simulate`` runs policies by the thousand rounds a second); this one is for
schedulers, which are to behave on it as they do on Slurm.
"""

from __future__ import annotations

from joulewise.cluster.engine import Happened, JobSeen, NodeSeen, Order, Place
from joulewise.cluster.engines.simulated_site import SimulatedSite, order_of
from joulewise.core.caller import Caller
from joulewise.core.errors import EngineLost, Fenced

__all__ = ["SimulatedEngine", "SimulatedSite", "order_of"]


class SimulatedEngine:
    """One scheduler's hand on a site. ``lost``: while True the engine does not answer (``EngineLost``)."""

    def __init__(self, site: SimulatedSite) -> None:
        self.site = site
        self.lost = False
        self._epoch: int | None = None

    def now(self) -> float:
        """Seconds of the site's clock, for a scheduler that asks for the time."""
        return self.site.now()

    def take(self, epoch: int) -> None:
        """Only the highest epoch acts from now on."""
        self._answer()
        if epoch < self.site.epoch:
            raise Fenced(f"epoch {epoch} comes after epoch {self.site.epoch} has taken this cluster over")
        self._epoch = self.site.epoch = epoch

    def nodes(self) -> tuple[NodeSeen, ...]:
        """All nodes, by kind and number."""
        self._answer()
        return tuple(
            NodeSeen(name, rack.kind.gpus_per_node, rack.states[name], rack.kind.name)
            for rack in self.site.racks
            for name in rack.names
        )

    def jobs(self) -> tuple[JobSeen, ...]:
        """All jobs that ever came, in order."""
        self._answer()
        return tuple(
            JobSeen(
                job.order.name,
                job.id,
                job.state,
                job.order,
                dict(job.place),
                job.starts,
                job.since_s,
                job.exit_code,
                job.why,
                job.by,
            )
            for job in self.site.jobs.values()
        )

    def submit(self, order: Order, by: Caller | None = None) -> str:
        """Hand a job in, as its user would: no epoch is needed for that."""
        self._answer()
        return self.site.submit(order, by)

    def start(self, name: str, place: Place) -> None:
        """It shall run there, as soon as these GPUs are free."""
        self._act()
        self.site.want(name, place)

    def resize(self, name: str, place: Place) -> None:
        """It shall save, stop, and run there instead."""
        self._act()
        self.site.want(name, place)

    def preempt(self, name: str) -> None:
        """It shall save, stop and wait."""
        self._act()
        self.site.want(name, None)

    def stop(self, name: str, why: str) -> None:
        """It shall end now."""
        self._act()
        self.site.stop(name, why)

    def power(self, node: str, *, on: bool) -> None:
        """Switch a node."""
        self._act()
        self.site.power(node, on=on)

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        """Let time pass until something happens, ``longest_s`` at most; what happened since the last call."""
        self._answer()
        self.site.advance(self.site.now() + max(0.0, longest_s), until_news=True)
        news = tuple(self.site.happened)
        self.site.happened.clear()
        return news

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        """Write a job's energy down."""
        self._act()
        self.site.numbered(name, id).account_j = energy_j

    def _answer(self) -> None:
        if self.lost:
            raise EngineLost("the simulated engine does not answer; it was told not to")

    def _act(self) -> None:
        self._answer()
        if self._epoch != self.site.epoch:
            raise Fenced(f"epoch {self.site.epoch} has taken this cluster over; this scheduler holds {self._epoch}")
