"""A scheduler and a desk of agents that are real and small: in memory, with a queue of their own and no engine."""

import threading
from dataclasses import dataclass, field, replace

from joulewise.cluster.declared import Declared, Report
from joulewise.cluster.engine import Order
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.cluster.state import Prices
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec

NOBODY = Status(
    1.8e9,
    1,
    1500.0,
    1500.0,
    None,
    None,
    None,
    "",
    None,
    0.0,
    0.0,
    None,
    86_400.0,
    0.0,
    Prices({"gpu": 0.1}),
    None,
    0,
    None,
)
"""A cluster in which nothing happens."""


def toy_job(name: str, state: str = "waiting") -> JobStatus:
    return JobStatus(name, "1", state, "", 8, {})


@dataclass
class ToySteering:
    """Takes jobs, and refuses a cap below ``idle_w``."""

    idle_w: float = 1000.0
    said: list[tuple[object, ...]] = field(default_factory=list)
    now: Status = NOBODY
    by: list[Caller] = field(default_factory=list)

    def status(self) -> Status:
        return self.now

    def explain(self, name: str) -> str:
        return f"{name} runs on 8 GPUs."

    def submit(self, order: Order, *, by: Caller) -> str:
        self.by.append(by)
        self.said.append(("submit", order))
        if any(job.name == order.name for job in self.now.jobs):
            raise BadSpec(f"{order.name!r} is there already")
        self.now = replace(self.now, jobs=(*self.now.jobs, toy_job(order.name)))
        return str(len(self.now.jobs))

    def cancel(self, name: str, *, by: Caller) -> None:
        self.by.append(by)
        self.now = replace(self.now, jobs=tuple(job for job in self.now.jobs if job.name != name))

    def cap(
        self, cap_w: float | None, *, for_s: float | None = None, ramp_w_per_s: float | None = None, by: Caller
    ) -> None:
        self.by.append(by)
        if cap_w is not None and cap_w < self.idle_w:
            raise BadSpec(f"a cap of {cap_w:g} W is below the {self.idle_w:g} W of an idle cluster")
        self.said.append(("cap", cap_w, for_s, ramp_w_per_s))
        self.now = replace(self.now, cap_w=cap_w)

    def budget(self, energy_j: float | None, period_s: float, *, by: Caller) -> None:
        self.by.append(by)
        self.said.append(("budget", energy_j, period_s))
        self.now = replace(self.now, budget_j=energy_j)


class ToyDesk:
    """Declares one ceiling to all who ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.number = 0
        self.ceiling_w: float | None = None
        self.reports: list[Report] = []

    def declare(self, ceiling_w: float | None) -> None:
        with self._lock:
            self.number += 1
            self.ceiling_w = ceiling_w

    def exchange(self, report: Report) -> Declared:
        with self._lock:
            self.reports.append(report)
            return Declared(report.node, 1, self.number, ceiling_w=self.ceiling_w)

    def newer(self, node: str, epoch: int, number: int) -> bool:
        with self._lock:
            return (1, self.number) != (epoch, number)
