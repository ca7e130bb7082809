"""What DCGM's exporter writes about a fleet: its metrics' names and units, and which labels say whose work it was.

Exporters and scrape configurations differ in labels; this is the one place that knows them. It is in this room since
DCGM's units are the vendor's. What it is not: a query (``monitor/prometheus``) or a sum (``monitor/fleet``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from joulewise.core.units import joules_from_millijoules

PREFIX = "DCGM_FI_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: our name for it, DCGM's, the factor to our unit, the highest and least sane value in our unit."""

    name: str
    series: str
    factor: float
    most: float
    without: str
    """What an estimate has to do without it, for people."""
    counter: bool = False
    least: float = 0.0


POWER = Metric("power_w", "DCGM_FI_DEV_POWER_USAGE", 1.0, 5000.0, "nothing can be said", least=1.0)
# What it cannot read DCGM writes as huge numbers, and exporters as 0; outside `least` to `most` is no value.
METRICS = (
    POWER,
    Metric("sm_mhz", "DCGM_FI_DEV_SM_CLOCK", 1.0, 10_000.0, "the clock is the one that the law expects", least=1.0),
    Metric(
        "memory_mhz",
        "DCGM_FI_DEV_MEM_CLOCK",
        1.0,
        50_000.0,
        "memory clocks are taken to be at their highest",
        least=1.0,
    ),
    Metric("engine", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, 1.01, "how busy a GPU is comes from its utilisation"),
    Metric("util", "DCGM_FI_DEV_GPU_UTIL", 0.01, 1.01, "how busy a GPU is comes from its engine's activity"),
    Metric("sm_active", "DCGM_FI_PROF_SM_ACTIVE", 1.0, 1.01, "gaps inside kernels are not seen"),
    Metric("dram_active", "DCGM_FI_PROF_DRAM_ACTIVE", 1.0, 1.01, "what waits for memory is not seen: wider intervals"),
    Metric(
        "limit_w",
        "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        1.0,
        5000.0,
        "power limits are taken to be the usual ones",
        least=10.0,
    ),
    Metric(
        "energy_j",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        joules_from_millijoules(1.0),
        1e15,
        "joules are power summed over time",
        counter=True,
    ),
)

# Kubernetes: "exported_" where the scrape has a pod of its own, which is the exporter's. Slurm: hpc_job.
_JOBS = ("hpc_job",)
_PODS = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
_EXPORTERS = re.compile(r"dcgm|exporter|gpu-operator", re.IGNORECASE)
# "-0", "-worker-3", "-7d9f8b6c5d-x2x4z", "-x2x4z": what Kubernetes and its operators append to a job's name for each of
# its pods. Random parts have no vowels, and neither 0, 1 nor 3.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]{5}"
_POD_TAIL = re.compile(
    rf"-((worker|master|launcher|ps|chief)(-\d+)?|[0-9a-f]{{8,10}}-{_RANDOM}|\d+-{_RANDOM}|\d+|{_RANDOM})$"
)


@dataclass(frozen=True, slots=True)
class Whose:
    """The GPU that a series is about, and whose work ran on it."""

    gpu: str
    """Unique in the fleet."""
    name: str
    """Its model, as the exporter writes it."""
    job: str
    """Empty where no label says."""
    split: bool
    """A MIG instance: its power is that of the whole GPU."""


def whose(labels: Mapping[str, str], by: Sequence[str] = ()) -> Whose:
    """What the labels of a series say; ``by`` names the labels that make up a job, instead of the usual ones."""
    host = labels.get("Hostname") or labels.get("node") or labels.get("instance") or ""
    number = labels.get("gpu") or labels.get("device") or ""
    gpu = labels.get("UUID") or labels.get("uuid") or f"{host}/{number}"
    name = labels.get("modelName") or labels.get("model") or ""
    return Whose(gpu, name, _job(labels, by), bool(labels.get("GPU_I_ID")))


def _job(labels: Mapping[str, str], by: Sequence[str]) -> str:
    if by:
        return "/".join(part for name in by if (part := labels.get(name, "")))
    for name in _JOBS:
        if job := labels.get(name, ""):
            return job
    for namespace, pod in _PODS:
        if labels.get(pod) and not _exporters_own(labels, pod):
            return "/".join(part for part in (labels.get(namespace, ""), _stem(labels[pod])) if part)
    return ""


def _exporters_own(labels: Mapping[str, str], pod: str) -> bool:
    """Whether the pod is that of the exporter, not of a job."""
    return pod == "pod" and bool(_EXPORTERS.search(labels["pod"]) or _EXPORTERS.search(labels.get("container", "")))


def _stem(pod: str) -> str:
    """The name of a job from that of one of its pods."""
    return _POD_TAIL.sub("", pod) or pod


def selector(metric: Metric, match: str) -> str:
    """PromQL for the series of a metric; ``match`` is a list of label matchers without braces."""
    return f"{metric.series}{{{match}}}"
