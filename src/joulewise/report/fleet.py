"""What tuning would save in a fleet, from what its monitoring kept: the estimate of ``joulewise estimate``.

What it is: every kind of work of ``monitor/fleet`` given to ``model/fleet``, and its draws added up by job, by GPU
model and in all, a day. Work that takes little is estimated together (``report/fleet_alike``). What it is not: a
promise: `UNKNOWNS` says what monitoring cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.units import J_PER_KWH
from joulewise.model.fleet import Interval, Outlook, outlook, reached_share
from joulewise.model.fleet_kin import Kin, kin_of
from joulewise.model.fleet_sum import added
from joulewise.monitor.fleet import Fleet, Work
from joulewise.report.fleet_alike import condensed

Array = NDArray[Any]

DAY_S = 86_400.0
NO_JOB = "(no job label)"


@dataclass(frozen=True, slots=True)
class Saving:
    """What could be saved of something, a day. Shares are of its energy."""

    kwh: float
    """What it takes, a day."""
    possible: Interval
    """kWh a day that the best setting within the bound would save."""
    reached: Interval
    """kWh a day that are left of it after probing and caution."""

    @property
    def share(self) -> Interval:
        """Reached, as a share of what it takes."""
        return self.reached.times(1.0 / self.kwh) if self.kwh > 0.0 else Interval(0.0, 0.0, 0.0)

    @property
    def possible_share(self) -> Interval:
        """Possible, as a share of what it takes."""
        return self.possible.times(1.0 / self.kwh) if self.kwh > 0.0 else Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class JobSaving:
    """One job on one GPU model."""

    job: str
    gpu_name: str
    gpus: int
    gpu_hours: float
    """Busy, over the whole history."""
    mean_w: float
    saving: Saving
    clock: float
    """The SM clock that would likely be set, against the one seen."""
    slowdown: float
    """Expected there."""


@dataclass(frozen=True, slots=True)
class ModelSaving:
    """All GPUs of one model."""

    gpu_name: str
    gpus: int
    law: str
    """What the law of this GPU rests on."""
    kwh: float
    """All it takes a day, idle and busy."""
    held_kwh: float
    """Idle, with a job's label on it, a day."""
    free_kwh: float
    """Idle and nobody's, a day."""
    split_kwh: float
    """Busy, and split into MIG instances, a day: not estimated."""
    saving: Saving


@dataclass(frozen=True, slots=True)
class Findings:
    """The estimate."""

    max_slowdown: float
    days: float
    """Covered by readings."""
    start_s: float
    end_s: float
    step_s: float
    gpus: int
    kwh: float
    """All that the fleet takes a day."""
    held_kwh: float
    free_kwh: float
    split_kwh: float
    """On GPUs that are split into MIG instances: not estimated."""
    saving: Saving
    """Of what busy GPUs take."""
    models: tuple[ModelSaving, ...]
    jobs: tuple[JobSaving, ...]
    """By what could be saved, most first."""
    reached_share: float
    """Of what is possible, by the bench of the online tuner."""
    rests_on: tuple[str, ...]
    """What was missing or odd in the series, and what stands in for it."""

    @property
    def share(self) -> Interval:
        """Reached saving as a share of all that the fleet takes, idle GPUs included."""
        return self.saving.reached.times(1.0 / self.kwh) if self.kwh > 0.0 else Interval(0.0, 0.0, 0.0)


UNKNOWNS = (
    "whether a job's settings are already tuned: the clock that was seen is taken as its default",
    "what hosts take meanwhile: a job that runs longer keeps them busy longer",
    "phases within a window: work is taken as its mean",
    "the future: a day is taken to be like the mean day of this history",
)
"""What no such history can tell."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A kind of work with its draws of saved kWh a day."""

    work: Work
    outlook: Outlook
    possible: Array
    reached: Array
    kwh: float


def estimate(
    fleet: Fleet, max_slowdown: float, *, seed: int = 0, progress: Callable[[str], None] = lambda _: None
) -> Findings:
    """What tuning within ``max_slowdown`` would save of ``fleet``. The same arguments give the same findings."""
    days = fleet.covered_s / DAY_S
    laws = {
        kind.name: kin_of(
            kind.name,
            limit_w=kind.limit_w,
            most_w=kind.most_w,
            most_sm_mhz=kind.most_sm_mhz,
            most_memory_mhz=kind.most_memory_mhz,
        )
        for kind in fleet.kinds
    }
    works = condensed([work for work in fleet.works if not work.split], laws)
    if len(works) > 20:
        progress(f"estimating {len(works)} kinds of work")
    parts = [_part(work, laws[work.gpu_name], max_slowdown, days, seed + place) for place, work in enumerate(works)]
    models = []
    per_day = 1.0 / J_PER_KWH / days
    for kind in fleet.kinds:
        mine = [part for part in parts if part.work.gpu_name == kind.name]
        split_j = sum(work.energy_j for work in fleet.works if work.split and work.gpu_name == kind.name)
        models.append(
            ModelSaving(
                kind.name,
                kind.gpus,
                laws[kind.name].says,
                kind.energy_j * per_day,
                kind.held_j * per_day,
                kind.free_j * per_day,
                split_j * per_day,
                _saving(mine, seed),
            )
        )
    return Findings(
        max_slowdown=max_slowdown,
        days=days,
        start_s=fleet.start_s,
        end_s=fleet.end_s,
        step_s=fleet.step_s,
        gpus=sum(kind.gpus for kind in fleet.kinds),
        kwh=sum(model.kwh for model in models),
        held_kwh=sum(model.held_kwh for model in models),
        free_kwh=sum(model.free_kwh for model in models),
        split_kwh=sum(model.split_kwh for model in models),
        saving=_saving(parts, seed),
        models=tuple(sorted(models, key=lambda model: -model.saving.reached.mean)),
        jobs=_jobs(parts, seed),
        reached_share=reached_share(max_slowdown),
        rests_on=_rests_on(fleet, laws),
    )


def _part(work: Work, kin: Kin, max_slowdown: float, days: float, seed: int) -> _Part:
    found = outlook(kin, work.sight, max_slowdown, seed=seed)
    kwh = work.energy_j / J_PER_KWH / days
    return _Part(work, found, found.possible * kwh, found.reached * kwh, kwh)


def _saving(parts: Sequence[_Part], seed: int) -> Saving:
    models = [part.work.gpu_name for part in parts]
    return Saving(
        sum(part.kwh for part in parts),
        Interval.of(added([part.possible for part in parts], models, seed=seed)),
        Interval.of(added([part.reached for part in parts], models, seed=seed)),
    )


def _jobs(parts: Sequence[_Part], seed: int) -> tuple[JobSaving, ...]:
    """Jobs by name; windows without one, of each GPU model together."""
    by_job: dict[tuple[str, str], list[_Part]] = {}
    for part in parts:
        by_job.setdefault((part.work.job or NO_JOB, part.work.gpu_name), []).append(part)
    found = []
    for (job, gpu_name), mine in by_job.items():
        weights = np.array([part.kwh for part in mine])
        busy_s = sum(part.work.busy_s for part in mine)
        found.append(
            JobSaving(
                job,
                gpu_name,
                max(part.work.gpus for part in mine),
                busy_s / 3600.0,
                sum(part.work.sight.power_w * part.work.busy_s for part in mine) / busy_s,
                _saving(mine, seed),
                float(np.average([np.median(part.outlook.clock) for part in mine], weights=weights)),
                float(np.average([part.outlook.slowdown.mean() for part in mine], weights=weights)),
            )
        )
    return tuple(sorted(found, key=lambda job: -job.saving.reached.mean))


def _rests_on(fleet: Fleet, laws: Mapping[str, Kin]) -> tuple[str, ...]:
    own = [kin.name for kin in laws.values() if kin.kind == "own"]
    told = [f"the laws of the catalogue for {', '.join(own)}"] if own else []
    told += [f"{kin.name or 'GPUs without a name'}: {kin.says}" for kin in laws.values() if kin.kind != "own"]
    busy = {"engine", "util"}
    missing = {metric.name for metric in fleet.missing}
    for metric in fleet.missing:
        if metric.name in busy and not busy <= missing:
            continue  # the other one tells it
        without = metric.without if metric.name not in busy else _no_activity(missing)
        line = f"no {metric.series}: {without}"
        if line not in told:
            told.append(line)
    return (*told, *fleet.notes)


def _no_activity(missing: set[str]) -> str:
    if "sm_active" in missing:
        return "how busy a GPU is comes from its power alone: wide intervals"
    return "how busy a GPU is comes from its SMs' activity"
