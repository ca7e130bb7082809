"""``/metrics`` for Prometheus: this machine's GPUs, the host's processors, leases, and what the store's runs add up to.

Names follow Prometheus: one prefix, base units (watts, joules, hertz, ratios), counters end in ``_total``. What is not
known is absent, never 0 or NaN. Labels have few values: a GPU's uuid, a knob, a state; no run, job or user is one.
``joulewise_gpu_energy_joules_total`` is the GPU's own counter where it has one: it goes on over a restart of ours, and
``rate()`` of it is watts. Everything is looked at when Prometheus asks, and kept in no registry of its own.
"""

from __future__ import annotations

import hashlib
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from joulewise.core.errors import JoulewiseError
from joulewise.core.measurement import Throttle
from joulewise.core.units import hertz_from_megahertz
from joulewise.core.version import VERSION
from joulewise.report.summaries import Summaries
from joulewise.serve.guarded import allowed
from joulewise.serve.holders import Writes
from joulewise.serve.live import LiveGpus
from joulewise.serve.problems import documented
from joulewise.serve.tokens import Guard, Scope
from joulewise.serve.watched import GpuNow

Source = Callable[[], Iterable[Metric]]
"""Gives metrics when it is asked."""

_GPU = "joulewise_gpu_"
_BY_GPU = ("gpu_uuid",)
_TOTALS_EVERY_S = 15.0
"""What the store says of its runs is looked at once in this time, however often somebody scrapes."""


class RunTotals(Protocol):
    """What the store's runs add up to; ``report.summaries.Totals`` is one."""

    @property
    def runs(self) -> int:
        """How many there are."""
        ...

    @property
    def running(self) -> int:
        """How many of them have not ended."""
        ...

    @property
    def energy_j(self) -> float:
        """Measured, of all runs."""
        ...

    @property
    def saved_j(self) -> float | None:
        """Proven; None where nothing was."""
        ...

    @property
    def saved_half_j(self) -> float | None:
        """Half of the interval of ``saved_j``."""
        ...


def metrics_router(sources: Sequence[Source], guard: Guard) -> APIRouter:
    """``GET /metrics``, for whoever may read: Prometheus sends its token as ``authorization`` of the scrape config."""
    router = APIRouter(
        tags=["metrics"], dependencies=[Depends(allowed(guard, Scope.READ))], responses=documented(401, 403, 422)
    )
    families = _Families(sources)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "OpenMetrics where the client asks for it."}},
        summary="For Prometheus",
    )
    def metrics(request: Request) -> Response:
        """Power, energy, clocks and heat of this machine's GPUs; leases; runs and what they saved."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(families), headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    return router


class _Families(Collector):
    """All sources' metrics that have a value."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        for source in self._sources:
            yield from (each for each in source() if each.samples)


def of_server(live: LiveGpus, summaries: Summaries, store: str) -> list[Source]:
    """All that ``joulewise serve`` tells: itself, its machine's GPUs, what was written to them, the runs of ``store``
    (``store_label``)."""
    return [
        build,
        gpus(live),
        writes(Writes().counts),
        runs(lambda virtual: summaries.totals(virtual=virtual), store=store),
    ]


def store_label(name: str, node: str) -> str:
    """A short name for a store that all servers on it share: of a PostgreSQL its address, of a file its machine, too.
    It tells neither."""
    where = name if "://" in name else f"{node}:{name}"
    return hashlib.sha256(where.encode("utf-8", "replace")).hexdigest()[:8]


def build() -> Iterator[Metric]:
    """Which joulewise this is."""
    about = {"version": VERSION, "python": platform.python_version()}
    yield InfoMetricFamily("joulewise_build", "The joulewise that answers.", about)


def gpus(live: LiveGpus) -> Source:
    """The GPUs that ``live`` watches, their counters as of now."""

    def source() -> Iterator[Metric]:
        live.refresh()
        shown = live.gpus()
        yield from _counters(live, shown)
        yield _info(shown)
        yield _gauge(f"{_GPU}power_watts", "Power drawn, the driver's mean over a second.", shown, lambda g: g.power_w)
        yield _gauge(f"{_GPU}power_limit_watts", "Power limit in force.", shown, lambda g: g.limit_w)
        yield _gauge(f"{_GPU}utilization_ratio", "Share of time with a kernel running.", shown, lambda g: g.utilization)
        yield _gauge(f"{_GPU}temperature_celsius", "Temperature of the chip.", shown, lambda g: g.temperature_c)
        yield _gauge(f"{_GPU}memory_used_bytes", "Memory in use.", shown, lambda g: g.memory_used_bytes)
        yield _gauge(f"{_GPU}memory_size_bytes", "Memory there is.", shown, lambda g: g.memory_bytes)
        yield from (_clocks(shown), _throttled(shown))
        if (held := live.held) is not None:
            yield _gauge(
                "joulewise_lease_active", "Whether somebody holds a lease on it.", shown, lambda g: g.uuid in held
            )

    return source


def writes(counts: Callable[[], Mapping[tuple[str, str], int] | None]) -> Source:
    """Writes to GPUs by (knob, result), as ``holders.Writes.counts`` gives them."""

    def source() -> Iterator[Metric]:
        family = CounterMetricFamily(
            "joulewise_control_writes",
            "Writes to GPUs through the daemon since this server looks: ok, restored, refused or failed.",
            labels=("knob", "result"),
        )
        for labels, count in sorted((counts() or {}).items()):
            family.add_metric(labels, count)
        yield family

    return source


def runs(totals: Callable[[bool], RunTotals], *, store: str = "", now: Callable[[], float] = time.monotonic) -> Source:
    """What the store's runs add up to. ``totals`` gives it for those on real GPUs (False) and on virtual ones (True),
    whose joules were never spent; what it raises leaves these metrics out until it can be asked again. ``store``
    labels them, since every server on a store tells the same."""
    remembered = _Remembered(lambda: {virtual: totals(virtual) for virtual in (False, True)}, now)

    def source() -> Iterator[Metric]:
        found = remembered.value()
        many = GaugeMetricFamily("joulewise_runs", "Runs in the store, by state.", labels=("store", "state", "virtual"))
        sums = [
            GaugeMetricFamily(f"joulewise_{name}_joules", says, labels=("store", "virtual"))
            for name, says in (
                ("runs_energy", "Measured energy of all runs in the store."),
                ("saved", "Proven savings of all runs in the store."),
                ("saved_half_width", "Half of the 95 % interval of the savings."),
            )
        ]
        for virtual, told in found.items():
            word = str(virtual).lower()
            many.add_metric((store, "running", word), told.running)
            many.add_metric((store, "ended", word), told.runs - told.running)
            for family, value in zip(sums, (told.energy_j, told.saved_j, told.saved_half_j), strict=True):
                if value is not None:
                    family.add_metric((store, word), value)
        yield from (many, *sums)

    return source


class _Remembered:
    """What ``ask`` gave, for some seconds; nothing while it cannot be asked."""

    def __init__(self, ask: Callable[[], Mapping[bool, RunTotals]], now: Callable[[], float]) -> None:
        self._ask, self._now = ask, now
        self._value: Mapping[bool, RunTotals] = {}
        self._due_s = float("-inf")
        self._lock = threading.Lock()

    def value(self) -> Mapping[bool, RunTotals]:
        with self._lock:
            if self._now() >= self._due_s:
                try:
                    self._value = self._ask()
                except JoulewiseError:
                    self._value = {}
                self._due_s = self._now() + _TOTALS_EVERY_S
            return self._value


def _counters(live: LiveGpus, shown: Sequence[GpuNow]) -> Iterator[Metric]:
    energy = CounterMetricFamily(
        f"{_GPU}energy_joules", "Energy by the GPU's own counter; summed from power where it has none.", labels=_BY_GPU
    )
    counted = live.counted()
    for gpu in shown:
        if gpu.uuid in counted:
            energy.add_metric((gpu.uuid,), counted[gpu.uuid].energy_j)
    yield energy
    host = CounterMetricFamily(
        "joulewise_cpu_energy_joules",
        "Energy of the host's processors and memory since this server looks, by RAPL zone; no zone is part of another.",
        labels=("zone",),
    )
    for zone, energy_j in sorted(live.zones_j.items()):
        host.add_metric((zone,), energy_j)
    yield host


def _info(shown: Sequence[GpuNow]) -> Metric:
    family = InfoMetricFamily("joulewise_gpu", "What a GPU is.", labels=_BY_GPU)
    for gpu in shown:
        # Nothing that may change meanwhile: another value is another series, and a join over both fails.
        about = {"gpu": str(gpu.index), "name": gpu.name, "node": gpu.node, "virtual": str(gpu.virtual).lower()}
        family.add_metric((gpu.uuid,), about)
    return family


def _gauge(name: str, says: str, shown: Sequence[GpuNow], of: Callable[[GpuNow], float | None]) -> Metric:
    family = GaugeMetricFamily(name, says, labels=_BY_GPU)
    for gpu in shown:
        if (value := of(gpu)) is not None:
            family.add_metric((gpu.uuid,), float(value))
    return family


def _clocks(shown: Sequence[GpuNow]) -> Metric:
    family = GaugeMetricFamily(f"{_GPU}clock_hertz", "Clock.", labels=(*_BY_GPU, "clock"))
    for gpu in shown:
        for clock, mhz in (("sm", gpu.sm_mhz), ("memory", gpu.memory_mhz)):
            if mhz is not None:
                family.add_metric((gpu.uuid, clock), hertz_from_megahertz(mhz))
    return family


def _throttled(shown: Sequence[GpuNow]) -> Metric:
    family = GaugeMetricFamily(
        f"{_GPU}throttled", "1 while the clock is held back for this reason.", labels=(*_BY_GPU, "reason")
    )
    for gpu in shown:
        if gpu.throttle is not None:
            for reason in Throttle:
                family.add_metric((gpu.uuid, reason.value.replace(" ", "_")), float(reason.value in gpu.throttle))
    return family
