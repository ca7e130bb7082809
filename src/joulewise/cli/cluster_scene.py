"""One simulated cluster and its jobs, on which any number of policies can be tried: all alike but for the policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulewise.cli.cluster_gpus import Rack, assumed, racks
from joulewise.cli.cluster_jobs import Knowledge, Sized, at_load, offered, refuse_too_large, sized
from joulewise.cli.cluster_laws import ALIKE, LAWS
from joulewise.cli.cluster_policies import Policy
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.outcome import Outcome
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import simulate
from joulewise.cluster.state import Snapshot
from joulewise.cluster.tariff import Tariff
from joulewise.cluster.traces import read_trace
from joulewise.core.errors import BadSpec
from joulewise.core.units import format_si, kwh_from_joules

_TELLING_LOAD = 5.0
Watch = Callable[[Snapshot, Decision], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cluster may spend; None: as much as it likes."""

    energy_j: float | None = None
    period_s: float = 86_400.0
    power_w: float | None = None

    def purse(self, tariff: Tariff | None = None) -> Purse | None:
        """A fresh one; None where nothing is limited. ``tariff``: what a joule counts by the hour."""
        if self.energy_j is None and self.power_w is None:
            return None
        return Purse(energy_j=self.energy_j, period_s=self.period_s, power_w=self.power_w, weight=tariff)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one policy. ``decided_s``: its first round, from which budgets count; ``cpu_s``: of all of it."""

    policy: Policy
    outcome: Outcome
    decided_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Made by ``set_up``."""

    trace: str
    racks: tuple[Rack, ...]
    jobs: tuple[Sized, ...]
    knowledge: Knowledge
    limits: Limits
    warm: int | None
    """Empty nodes that stay on; None: no node is ever switched off."""
    seed: int
    size_error: float
    tariff: Tariff | None = None
    """What a kWh costs by the hour; the energy budget is then in joules of its mean hour."""

    @property
    def gpus(self) -> int:
        """Of all racks."""
        return sum(rack.kind.gpus for rack in self.racks)

    def play(
        self,
        policy: Policy,
        *,
        flat: bool = False,
        progress: Callable[[int, int], None] | None = None,
        watch: Watch | None = None,
    ) -> Result:
        """All jobs under one policy; ``flat``: as if there were no tariff. BadSpec where a budget cannot be kept even
        with nothing to do."""
        nodes = None if self.warm is None else NodePower(warm=self.warm)
        first_s: list[float] = []

        def seen(snapshot: Snapshot, decision: Decision) -> None:
            if not first_s:
                first_s.append(snapshot.now_s)
            if watch is not None:
                watch(snapshot, decision)

        round_ = Round(policy.make(), nodes=nodes, purse=self.limits.purse(None if flat else self.tariff))
        began = time.process_time()
        kinds = [rack.kind for rack in self.racks]
        outcome = simulate(self.knowledge.submissions(), kinds, round_, progress=progress, watch=seen)
        return Result(policy, outcome, first_s[0] if first_s else outcome.begun_s, time.process_time() - began)

    def about(self) -> str:
        """What is simulated, in a line."""
        words = ", ".join(f"{rack.kind.gpus} × {rack.kind.name}" for rack in self.racks)
        load = offered(self.jobs, self.racks)
        said = f"{self.trace}: {len(self.jobs)} jobs on {words}"
        # Of jobs that come almost at once it says nothing.
        return said if load is None or load > _TELLING_LOAD else f"{said}, offered load {load:.2g}"

    def assumptions(self) -> list[str]:
        """What no trace says and was assumed, a line each."""
        lines = assumed(self.racks)
        names = {each.job.model for each in self.jobs}
        if None in names:
            lines.append(f"jobs without a model got one of {len(LAWS)} laws, drawn by seed {self.seed}")
        strange = sorted(name for name in names if name is not None and ALIKE.get(name, name) not in LAWS)
        if strange:
            said = ", ".join(strange[:6]) + (" …" if len(strange) > 6 else "")
            lines.append(f"there is no law of {said}; each name got one, drawn by seed {self.seed}")
        lines.append(
            "no trace knows power: seconds by laws fitted to public A100 tables, power of a made-up card a job"
        )
        lines.append(f"sizes are predicted with an error of σ {self.size_error:g} of their logarithm")
        if self.limits.energy_j is not None:
            every = f"{self.limits.period_s / 3600.0:g} h"
            mean = "" if self.tariff is None else " of the tariff's mean hour"
            lines.append(f"energy budget {kwh_from_joules(self.limits.energy_j):,.4g} kWh{mean} every {every}")
        if self.tariff is not None:
            lines.append(f"tariff: {self.tariff.mean:.4g} {self.tariff.words} on average, by the trace's clock as UTC")
            lines += [f"tariff: {line}" for line in self.tariff.says]
        if self.limits.power_w is not None:
            lines.append(f"power cap {format_si(self.limits.power_w, 'W')} for the whole cluster")
        lines.append("nodes are never switched off" if self.warm is None else f"empty nodes sleep, but for {self.warm}")
        return lines


def set_up(
    trace: Path,
    gpu: str,
    *,
    limits: Limits,
    load: float | None = None,
    seed: int = 0,
    count: int | None = None,
    tenant: str | None = None,
    size_error: float = 0.5,
    per_node: int | None = None,
    host_w: float | None = None,
    warm: int | None = 1,
    tariff: Tariff | None = None,
) -> Scene:
    """Read, size, stretch, probe. ``count``: the first so many jobs. BadSpec where the input makes no sense."""
    there = racks(gpu, per_node=per_node, host_w=host_w)
    read = read_trace(trace, tenant=tenant)[:count]
    refuse_too_large(read, there)
    jobs: Sequence[Sized] = sized(read, there, seed)
    if load is not None:
        jobs = at_load(jobs, there, load)
    if size_error < 0:
        raise BadSpec(f"--size-error {size_error:g} makes no sense; 0 means that sizes are known")
    knowledge = Knowledge(jobs, there, seed, size_error)
    return Scene(trace.name, there, tuple(jobs), knowledge, limits, warm, seed, size_error, tariff)
