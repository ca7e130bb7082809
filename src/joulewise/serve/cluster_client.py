"""The other end of ``joulewise cluster up``: how its cluster stands, what it may draw, and a node's reports.

On the standard library alone. What the scheduler refuses is BadSpec in its own words; where it does not answer it is
NotKept, and nothing is tried again by itself: an agent reports again anyway, and an operator sees what happened.
"""

from __future__ import annotations

import urllib.parse

from joulewise.cluster.declared import Declared, Report
from joulewise.cluster.engine import GIVEN, Order
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.core.plain import built, plain
from joulewise.serve.cluster_messages import STARTS, Submitted, Why
from joulewise.serve.local_paths import reached_cluster_socket
from joulewise.serve.wire import TIMEOUT_S, Wire

_AT = "/api/cluster"


class ClusterClient:
    """One scheduler, at ``http://…`` or ``unix:PATH``; None: this machine's, by its Unix socket. BadSpec for an address
    or a token that cannot be one; nothing is sent yet."""

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        url = f"unix:{reached_cluster_socket()}" if url is None else url
        self._wire = Wire(url, token, timeout_s=timeout_s, starts=STARTS)

    @property
    def url(self) -> str:
        """Where it is asked."""
        return self._wire.url

    def status(self) -> Status:
        """How everything stands."""
        return built(Status, self._wire.call("GET", _AT))

    def job(self, name: str) -> JobStatus:
        """How one job stands. BadSpec where there is none of that name."""
        return built(JobStatus, self._wire.call("GET", _job(name)))

    def why(self, name: str) -> Why:
        """Why a job runs as it does, or waits."""
        return built(Why, self._wire.call("GET", f"{_job(name)}/why"))

    def submit(self, order: Order) -> Submitted:
        """Hand a job in. BadSpec where its engine has a queue of its own."""
        body = {name: value for name, value in plain(order).items() if name not in GIVEN}
        return built(Submitted, self._wire.call("POST", f"{_AT}/jobs", body))

    def cancel(self, name: str) -> None:
        """End a job for good."""
        self._wire.call("DELETE", _job(name))

    def cap(self, power_w: float | None, *, for_s: float | None = None, ramp_w_per_s: float | None = None) -> None:
        """What the cluster may draw; None: anything."""
        self._wire.call("PUT", f"{_AT}/cap", {"power_w": power_w, "for_s": for_s, "ramp_w_per_s": ramp_w_per_s})

    def budget(self, energy_j: float | None, period_s: float = 86_400.0) -> None:
        """What it may spend in each period; None: anything."""
        self._wire.call("PUT", f"{_AT}/budget", {"energy_j": energy_j, "period_s": period_s})

    def exchange(self, report: Report, *, wait_s: float = 0.0) -> Declared:
        """Report; what shall be so on the node, as soon as that is newer than what the report holds, or in ``wait_s``.

        NotKept where nobody answers: what was declared last holds."""
        path = f"{_AT}/nodes/{urllib.parse.quote(report.node, safe='')}?wait_s={wait_s:g}"
        return built(Declared, self._wire.call("POST", path, plain(report)))


def _job(name: str) -> str:
    return f"{_AT}/jobs/{urllib.parse.quote(name, safe='')}"
