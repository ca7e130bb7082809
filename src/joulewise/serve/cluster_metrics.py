"""A cluster for Prometheus, from its own scheduler: watts against the cap, joules, GPUs, nodes and jobs by state.

Part of ``/metrics`` of ``joulewise cluster up``, which knows what is drawn this second; ``joulewise serve`` reads only
journals. No job or tenant is a label: there may be any number of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from joulewise.cluster.scheduler_status import Status
from joulewise.serve.metrics import Source

_PREFIX = "joulewise_cluster_"


def cluster_source(status: Callable[[], Status]) -> Source:
    """The metrics of the cluster that ``status`` tells of."""

    def source() -> Iterator[Metric]:
        now = status()
        yield _gauge("power_watts", "Power drawn, silent nodes at their most.", now.power_w)
        yield _gauge("power_cap_watts", "Power that may be drawn.", now.cap_w)
        energy = CounterMetricFamily(f"{_PREFIX}energy_joules", "Energy that the cluster's meters have counted.")
        energy.add_metric((), now.energy_j)
        yield energy
        yield _gauge("budget_joules", "Energy that may be spent in each period.", now.budget_j)
        yield _gauge("gpus", "GPUs of nodes that are not down.", sum(n.gpus for n in now.nodes if n.state != "down"))
        yield _gauge("used_gpus", "GPUs that jobs hold.", sum(node.used_gpus for node in now.nodes))
        yield _by_state("nodes", "Nodes, by state.", Counter(node.state for node in now.nodes))
        yield _by_state("jobs", "Jobs that the scheduler knows, by state.", Counter(job.state for job in now.jobs))

    return source


def _gauge(name: str, says: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, says)
    if value is not None:
        family.add_metric((), value)
    return family


def _by_state(name: str, says: str, counts: Counter[str]) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, says, labels=("state",))
    for state, count in sorted(counts.items()):
        family.add_metric((state,), count)
    return family
