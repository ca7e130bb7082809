"""What a report of a live cluster is made of: what was watched, what was promised, what a meter saw.

What it is: readers of three files and of the journal, and the few figures drawn from them. A *stretch* is a time in
which a job ran in one way: so many GPUs, one setting. What was promised of it is the way that the scheduler wrote down
when it decided (``Aimed``); what was measured are the script's own steps and its GPUs' counters, as agents reported
them, each fitted by a line over the stretch. What it is not: a page (``cluster_report_page``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from joulewise.cluster.limits import Limits
from joulewise.cluster.response import Response, response, smoothed
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.cluster.state import Way
from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.event import Aimed, Event, Limited
from joulewise.core.knob import SM_MHZ, Setting
from joulewise.core.parsing import json_value
from joulewise.core.plain import built

Series = list[tuple[float, float]]
LEAST_S = 10.0
"""Shorter stretches tell nothing: steps are written down about once a second, energies are reported as often."""
_SETTLES_S = 3.0
"""After a change, until reports and progress are of the new way alone."""
_LEAST_POINTS = 5
_MEAN_S = 1.0
_LOOKED_S = 20.0


@dataclass(frozen=True, slots=True)
class Amount:
    """A value and one standard error of it."""

    value: float
    error: float

    def __truediv__(self, other: Amount) -> Amount:
        ratio = self.value / other.value
        return Amount(ratio, abs(ratio) * math.hypot(self.error / self.value, other.error / other.value))

    def __mul__(self, other: Amount) -> Amount:
        product = self.value * other.value
        return Amount(product, abs(product) * math.hypot(self.error / self.value, other.error / other.value))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A job in one way. ``promised``: as it was decided; ``unit_s``, ``unit_j``: measured, of a unit of work and all
    its GPUs; None where it was too short, or its script tells no steps. ``capped``: a power cap was in force."""

    job: str
    from_s: float
    to_s: float
    gpus: int
    setting: Setting
    promised: Way | None
    reason: str
    unit_s: Amount | None
    unit_j: Amount | None
    capped: bool = False

    @property
    def clock_mhz(self) -> float:
        """What its clocks are limited to; infinite where they are not."""
        return self.setting.get(SM_MHZ.name, math.inf)


@dataclass(frozen=True, slots=True)
class Cut:
    """A cap that fell. ``power``: what came of it, as means over a second."""

    time_s: float
    cap_w: float
    was_w: float
    """The cap before, or what was drawn where there was none."""
    power: Response


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known. ``power``: of the whole cluster, by the meter where there is one."""

    watched: tuple[Status, ...]
    events: tuple[Event, ...]
    power: Series
    metered: bool
    stretches: tuple[Stretch, ...]
    cuts: tuple[Cut, ...]
    accounts_j: Mapping[str, float]

    @property
    def begun_s(self) -> float:
        """When the watching began."""
        return self.watched[0].time_s

    @property
    def last(self) -> Status:
        """How it stood at the end."""
        return self.watched[-1]

    def of(self, job: str) -> list[Stretch]:
        """The stretches of one job, in order."""
        return [stretch for stretch in self.stretches if stretch.job == job]


def told(
    watched: Sequence[Status], events: Iterable[Event], meter: Series | None, accounts: Mapping[str, float]
) -> Story:
    """The story of what was watched, with the journal's events of that time. BadSpec where nothing was watched."""
    if len(watched) < 2:
        raise BadSpec(
            f"{len(watched)} lines of status tell no story; 'joulewise cluster status --json --live' writes them"
        )
    from_s, to_s = watched[0].time_s, watched[-1].time_s
    during = tuple(event for event in events if from_s - 1.0 <= _time_s(event) <= to_s + 60.0)
    power = [each for each in meter if from_s <= each[0] <= to_s] if meter else _as_reported(watched)
    if len(power) < 2:
        raise BadSpec("the meter's file has no values of the time that was watched; its times are seconds since 1970")
    return Story(
        tuple(watched),
        during,
        power,
        bool(meter),
        tuple(stretches(watched, during)),
        tuple(cuts(during, power)),
        dict(accounts),
    )


def _as_reported(watched: Sequence[Status]) -> Series:
    return [(status.time_s, status.power_w) for status in watched]


def _time_s(event: Event) -> float:
    return float(getattr(event, "time_s", -math.inf))


# Files.


def read_watched(path: Path) -> list[Status]:
    """Lines of ``cluster status --json --live``. BadSpec, with the line, for anything else."""
    found = []
    for number, line in enumerate(_lines(path), 1):
        try:
            found.append(built(Status, json_value(line)))
        except (ValueError, BadSpec) as fault:
            raise BadSpec(f"{path}, line {number} is no status of a cluster ({str(fault)[:80]})") from None
    return [found[0], *(after for before, after in pairwise(found) if after.time_s > before.time_s)] if found else []


def read_meter(path: Path) -> Series:
    """Rows of ``time_s,power_w``, in order of time. BadSpec for anything else."""
    rows = csv.DictReader(_lines(path))
    try:
        return sorted((float(row["time_s"]), float(row["power_w"])) for row in rows)
    except (KeyError, TypeError, ValueError):
        raise BadSpec(f"{path} is no meter's file; it has the columns time_s (since 1970) and power_w") from None


def read_accounts(path: Path) -> dict[str, float]:
    """Joules by job's name, from ``sacct -nPX -o jobname,admincomment`` with any columns between."""
    found = {}
    for line in _lines(path):
        name, _, rest = line.partition("|")
        comment = rest.rpartition("|")[2] or rest
        for word in comment.split():
            key, _, value = word.partition("=")
            if key == "energy_j":
                try:
                    found[name] = float(value)
                except ValueError:
                    raise BadSpec(f"{path}: {word!r} of job {name} is no energy") from None
    return found


def _lines(path: Path) -> list[str]:
    return [line for line in input_files.read_text(path).splitlines() if line.strip()]


# Stretches.


def stretches(watched: Sequence[Status], events: Sequence[Event]) -> list[Stretch]:
    """Every time in which a job ran in one way, with a cap or without one, in order of job and time."""
    rows: dict[str, list[tuple[float, JobStatus, bool]]] = {}
    for status in watched:
        for job in status.jobs:
            rows.setdefault(job.name, []).append((status.time_s, job, status.cap_w is not None))
    aims = [event for event in events if isinstance(event, Aimed) and event.facts.get("way")]
    found = []
    for name, seen in rows.items():
        run: list[tuple[float, JobStatus]] = []
        before: tuple[object, ...] = ()
        for time_s, job, capped in [*seen, (math.inf, JobStatus(name, "", "", "", 0, {}), False)]:
            if run and (capped, _way(job)) != before:
                found.append(replace(_stretch(name, run, aims), capped=bool(before[0])))
                run = []
            before = (capped, _way(job))
            if job.state == "running" and not job.aim:
                run.append((time_s, job))
    return found


def _way(job: JobStatus) -> tuple[object, ...]:
    there = job.state == "running" and not job.aim
    return (there, job.gpus, job.setting, tuple(sorted(job.place.items())), job.starts)


def _stretch(name: str, run: Sequence[tuple[float, JobStatus]], aims: Sequence[Aimed]) -> Stretch:
    from_s, to_s, job = run[0][0], run[-1][0], run[-1][1]
    promised, reason = None, ""
    for aim in aims:
        if aim.name == name and aim.time_s <= to_s:
            way = built(Way, aim.facts["way"])
            if way.gpus == job.gpus and way.setting == job.setting:
                promised, reason = way, aim.reason
    settled = [(time_s, each) for time_s, each in run if time_s >= from_s + _SETTLES_S]
    unit_s = unit_j = None
    if settled and to_s - from_s >= LEAST_S:
        pace = _slope([(time_s, each.done) for time_s, each in settled])
        watts = _slope([(time_s, each.gpu_j) for time_s, each in settled])
        if pace is not None:
            unit_s = Amount(1.0, 0.0) / pace
            unit_j = None if watts is None else watts * unit_s
    return Stretch(name, from_s, to_s, job.gpus, job.setting, promised, reason, unit_s, unit_j)


def _slope(seen: Series) -> Amount | None:
    """Growth a second, from the moments at which a counter was seen to grow; None where it hardly did."""
    grown = [after for before, after in pairwise(seen) if after[1] > before[1]]
    if len(grown) < _LEAST_POINTS:
        return None
    mean_t = math.fsum(time_s for time_s, _ in grown) / len(grown)
    mean_v = math.fsum(value for _, value in grown) / len(grown)
    spread = math.fsum((time_s - mean_t) ** 2 for time_s, _ in grown)
    slope = math.fsum((time_s - mean_t) * (value - mean_v) for time_s, value in grown) / spread
    off = math.fsum((value - mean_v - slope * (time_s - mean_t)) ** 2 for time_s, value in grown)
    if slope <= 0:
        return None
    return Amount(slope, math.sqrt(off / (len(grown) - 2) / spread))


def reference(found: Sequence[Stretch]) -> Stretch | None:
    """The stretch that others of a job are compared with: at the highest clocks that were measured, first of those."""
    known = [stretch for stretch in found if stretch.unit_j is not None]
    return max(known, key=lambda stretch: (stretch.clock_mhz, -stretch.from_s), default=None)


# The cap.


def cuts(events: Sequence[Event], power: Series) -> list[Cut]:
    """Every cap that fell below what was drawn or allowed before, and what came of it until the next word on it."""
    words = [event for event in events if isinstance(event, Limited) and event.what == "cap"]
    mean = smoothed(power, _MEAN_S)
    found = []
    limits = Limits()  # a word may end by itself or begin later, and the lower of operator and feed counts
    begins = [max(event.time_s, event.facts.get("from_s") or event.time_s) for event in words]
    for event, from_s in zip(words, begins, strict=True):
        before_w = limits.at(from_s).aim_w
        limits.hear(event)
        now = limits.at(from_s)
        held_w = now.aim_w
        next_s = min((later_s for later_s in begins if later_s > from_s), default=math.inf)
        until_s = min(next_s, now.until_s or math.inf, from_s + _LOOKED_S, power[-1][0])
        if held_w is None or held_w == before_w or power[0][0] > from_s or until_s <= from_s:
            continue
        seen = response(mean, _steady(held_w), from_s, until_s, settle_s=2.0, before_s=5.0)
        if held_w < (seen.before_w if before_w is None else before_w):
            found.append(Cut(from_s, held_w, seen.before_w if before_w is None else before_w, seen))
    return found


def _steady(cap_w: float) -> Callable[[float], float]:
    return lambda _: cap_w


def caps(watched: Sequence[Status]) -> Series:
    """The cap over time; NaN where there was none."""
    return [(status.time_s, math.nan if status.cap_w is None else status.cap_w) for status in watched]
