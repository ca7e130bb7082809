"""The history that a Prometheus would hold of watched jobs: DCGM's series, as text to feed one, or answered here.

``openmetrics`` is what ``promtool tsdb create-blocks-from openmetrics`` reads; ``Kept`` answers the queries of
``monitor/fleet`` from the same samples, so that a bench needs no server. Each job runs on GPUs of its own, one after
another where a GPU has several, with idle time between; its ten minutes are repeated as long as it lasts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.estimate_truths import SCRAPE_S, Scrape, Watched
from joulewise.device.dcgm import METRICS
from joulewise.model.fleet_kin import kin_of
from joulewise.monitor.prometheus import Series, Span

START_S = 1_700_000_000.0 // 7200.0 * 7200.0
"""When it all began, at the edge of a block."""
OF = {
    "power_w": "power_w",
    "sm_mhz": "sm_mhz",
    "memory_mhz": "memory_mhz",
    "engine": "engine",
    "util": "util",
    "sm_active": "sm",
    "dram_active": "dram",
    "limit_w": "limit_w",
}
"""Our names of metrics → fields of a scrape."""


@dataclass
class Line:
    """One series: DCGM's name, labels, and its samples in DCGM's unit."""

    series: str
    labels: dict[str, str]
    times_s: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where and when a job runs."""

    watched: Watched
    job: str
    """For the label; empty: none."""
    gpus: int = 1
    hours: float = 2.0
    idle_hours: float = 0.5
    """After it, the GPU idle with the job's label still on."""
    free_hours: float = 0.5
    """After that, nobody's."""


def history(
    places: Sequence[Place], *, label: str = "exported_pod", without: Sequence[str] = (), reset: bool = False
) -> list[Line]:
    """The series of all places, side by side from START_S on. ``without`` leaves metrics out (our names); ``reset``
    starts every energy counter anew half-way."""
    lines: list[Line] = []
    for number, place in enumerate(places):
        taken = place.watched.taken()
        for copy in range(place.gpus):
            lines += _gpu(place, taken, f"GPU-{number:04d}-{copy:04d}", number, label, without, reset)
    return lines


def _gpu(
    place: Place, taken: list[Scrape], uuid: str, number: int, label: str, without: Sequence[str], reset: bool
) -> list[Line]:
    base = {
        "UUID": uuid,
        "gpu": "0",
        "device": "nvidia0",
        "modelName": place.watched.gpu_name,
        "Hostname": f"node{number:03d}",
        "instance": f"node{number:03d}:9400",
        "pod": "nvidia-dcgm-exporter-x2x4z",
        "container": "nvidia-dcgm-exporter",
    }
    named = {**base, label: f"{place.job}-0"} if place.job else base
    counts = [round(hours * 3600.0 / SCRAPE_S) for hours in (place.hours, place.idle_hours, place.free_hours)]
    resting = _resting(place.watched)
    plan = [taken[i % len(taken)] for i in range(counts[0])] + [resting] * (counts[1] + counts[2])
    whose = [named] * (counts[0] + counts[1]) + [base] * counts[2]
    lines: dict[tuple[str, bool], Line] = {}
    energy_j = 1000.0
    for step, (scrape, labels) in enumerate(zip(plan, whose, strict=True)):
        time_s = START_S + (step + 1) * SCRAPE_S
        energy_j = 0.0 if reset and step == len(plan) // 2 else energy_j + _gained_j(taken, step, counts[0], resting)
        for metric in METRICS:
            value = energy_j if metric.name == "energy_j" else getattr(scrape, OF[metric.name])
            if value is None or metric.name in without:
                continue
            line = lines.setdefault((metric.series, labels is base), Line(metric.series, labels))
            line.times_s.append(time_s)
            line.values.append(value / metric.factor)
    return list(lines.values())


def _gained_j(taken: list[Scrape], step: int, busy: int, resting: Scrape) -> float:
    """Joules since the scrape before, by the job's own counter where it has one."""
    if step >= busy:
        return resting.power_w * SCRAPE_S
    now, before = taken[step % len(taken)], taken[step % len(taken) - 1]
    if now.energy_j is None or before.energy_j is None or now.energy_j < before.energy_j:
        return now.power_w * SCRAPE_S
    return now.energy_j - before.energy_j


def _resting(watched: Watched) -> Scrape:
    """An idle board, clocks fallen."""
    chip = watched.case.model.chip
    return Scrape(chip.deep_idle_w, 0.2 * chip.sm_max_mhz, chip.memory_max_mhz, None, None, 0.0, 0.0, 0.0, 0.0)


def openmetrics(lines: Sequence[Line]) -> str:
    """As promtool reads it: a family's series together, times with them."""
    text = []
    for name in sorted({line.series for line in lines}):
        text.append(f"# TYPE {name} gauge")
        for line in lines:
            if line.series == name:
                labels = ",".join(f'{key}="{value}"' for key, value in line.labels.items())
                text += [
                    f"{name}{{{labels}}} {value:.10g} {time_s:.3f}"
                    for time_s, value in zip(line.times_s, line.values, strict=True)
                ]
    return "\n".join([*text, "# EOF\n"])


class Kept:
    """Answers ``monitor/fleet`` as a Prometheus that holds these lines would."""

    url = "http://bench"
    warnings: tuple[str, ...] = ()
    _COUNT = re.compile(r"count_over_time\((\w+)\{.*\}\[(\d+)s\]\)")
    _QUERY = re.compile(r"(avg|last)_over_time\((\w+)\{.*\}\[(\d+)s\]\)")

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines: dict[str, list[tuple[dict[str, str], np.ndarray, np.ndarray]]] = {}
        for line in lines:
            each = (line.labels, np.array(line.times_s), np.array(line.values))
            self._lines.setdefault(line.series, []).append(each)

    def now(self, query: str, time_s: float) -> list[tuple[dict[str, str], float]]:
        """Counts of samples in the time before, or whether there is any series at all."""
        asked = self._COUNT.fullmatch(query)
        if asked is None:
            return [({}, float(len(self._lines)))] if self._lines else []
        found = []
        for labels, times, _ in self._lines.get(asked[1], []):
            low, high = np.searchsorted(times, (time_s - float(asked[2]), time_s), side="right")
            if high > low:
                found.append((labels, float(high - low)))
        return found

    def range(self, query: str, span: Span) -> list[Series]:
        """Means, or last values, of the step before each moment."""
        asked = self._QUERY.fullmatch(query)
        if asked is None:
            raise ValueError(query)
        over, name, step = asked.groups()
        found = []
        for labels, times, values in self._lines.get(name, []):
            told = np.full(span.count, math.nan)
            for place in range(span.count):
                end_s = span.start_s + place * span.step_s
                low, high = np.searchsorted(times, (end_s - float(step), end_s), side="right")
                if high > low:
                    told[place] = values[low:high].mean() if over == "avg" else values[high - 1]
            if np.isfinite(told).any():
                found.append(Series(labels, told))
        return found


def span_of(lines: Sequence[Line], step_s: float = 300.0) -> Span:
    """The moments that cover all lines."""
    end_s = max(line.times_s[-1] for line in lines)
    return Span(START_S + step_s, step_s, math.floor((end_s - START_S) / step_s))


def neighbour_name(watched: Watched) -> str:
    """A name under which the estimate knows a neighbour of this GPU only."""
    names = {
        "h200": "NVIDIA H100 80GB HBM3",
        "a100-sxm": "NVIDIA A100-SXM4-80GB MIG",
        "rtx6000": "NVIDIA TITAN RTX",
        "v100": "Tesla V100-SXM2-32GB",
        "a40": "NVIDIA RTX A6000",
        "rtxpro6000": "NVIDIA RTX PRO 5000 Blackwell",
    }
    name = names[watched.case.model.key]
    if kin_of(name).kind != "neighbour":
        raise ValueError(name)
    return name


def stranger_name(watched: Watched) -> str:
    """A name that says nothing."""
    return f"Accelerator of {watched.case.model.default_limit_w:g} W"
