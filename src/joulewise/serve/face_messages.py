"""What the dashboard is answered: plain dataclasses, one a page or a part of one.

On the standard library, as all messages: ``core.plain`` makes JSON of them and ``answers.model_of`` their description.
Times are seconds since 1970, units end the names, and None is what nobody knows: never 0, never a made-up number.
What a run is in a list is ``report.summaries``' word, a GPU ``watched``'s, a cluster
``report.cluster_shown``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulewise.core.knob import Setting
from joulewise.report.cluster_shown import ClusterBrief
from joulewise.report.run_facts import Chapter, Proof, TriedPoint
from joulewise.report.summaries import RunSummary
from joulewise.serve.watched import GpuNow


@dataclass(frozen=True, slots=True)
class Overview:
    """What was spent and saved in all, what is drawn now, and the latest runs."""

    time_s: float
    power_w: float | None
    """Of the GPUs that this server reads; None where it reads none, or none tells."""
    gpus: int
    runs: int
    running: int
    virtual: int
    """How many of the runs were on simulated GPUs."""
    simulated: bool
    """Whether the sums below are of simulated GPUs: there are no others. Otherwise those are left out of them, since
    nothing of theirs was ever spent."""
    energy_j: float
    saved_j: float | None
    """Of all runs whose saving is proven; None where none is."""
    saved_half_j: float | None
    """Half of its 95 % interval."""
    kwh_price: float | None
    currency: str | None
    saved_money: float | None
    carbon_g_per_kwh: float | None
    carbon_source: str | None
    saved_carbon_g: float | None
    flag: str
    """What a command on this machine needs to find the store that these are of (`` --database FILE``), if anything."""
    recent: tuple[RunSummary, ...]
    troubles: tuple[str, ...]
    """What whoever looks should know, a sentence each."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that this server reads; none is no fault."""

    time_s: float
    gpus: tuple[GpuNow, ...]
    why: str
    """Where they come from, or why there is none."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Some runs, the latest first."""

    runs: tuple[RunSummary, ...]
    total: int
    """How many there are like this in all."""
    next: int | None
    """Ask again from this one on; None when these were the last."""


@dataclass(frozen=True, slots=True)
class RunFrontier:
    """What was tried, against default, the bound that held, and the setting that was held last."""

    tried: tuple[TriedPoint, ...]
    bound: float | None
    """The slowdown that was allowed: 0.05 is 5 %."""


@dataclass(frozen=True, slots=True)
class Run:
    """All of one run but its readings."""

    summary: RunSummary
    facts: Mapping[str, Any]
    decisions: tuple[Chapter, ...]
    more_decisions: int
    """How many there were before these: a list has an end."""
    frontier: RunFrontier
    proof: Proof | None
    claim_words: str
    verify: str
    """The command that checks it from the journal; empty where nothing is claimed."""


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """One GPU over a run: means of stretches of equal length, and the lowest and highest power in each."""

    uuid: str
    time_s: tuple[float, ...]
    power_w: tuple[float | None, ...]
    low_w: tuple[float | None, ...]
    high_w: tuple[float | None, ...]
    sm_mhz: tuple[float | None, ...]
    limit_w: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class RunReadings:
    """What was read during a run; no GPU where nothing was kept."""

    gpus: tuple[GpuReadings, ...]
    more_gpus: int
    """How many more there were: a list has an end."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan in a list. ``trouble``: why its file cannot be read; then everything else is unknown."""

    name: str
    headline: str
    stages: int | None = None
    microbatches: int | None = None
    schedule: str | None = None
    gpus: int | None = None
    points: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of the server's folder."""

    plans: tuple[PlanSummary, ...]


@dataclass(frozen=True, slots=True)
class PlanTime:
    """One point of a plan's frontier; energy is of all GPUs."""

    time_s: float
    energy_j: float
    words: str


@dataclass(frozen=True, slots=True)
class PlanShown:
    """A plan: what it is for, its frontier fastest first, and the same iteration with nothing set."""

    name: str
    about: str
    headline: str
    frontier: tuple[PlanTime, ...]
    fastest: PlanTime
    unset: PlanTime
    """Nothing set."""
    as_fast: PlanTime
    """Least energy without being slower than nothing set."""
    low_mhz: float | None
    high_mhz: float | None
    """The lowest and highest SM clock among its options, for a scale of colours."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One operation of one rank in an iteration; times since its beginning."""

    rank: int
    stage: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float
    setting: Setting
    words: str


@dataclass(frozen=True, slots=True)
class PlanAt:
    """The point of a plan for a deadline, and the whole iteration drawn out."""

    time_s: float
    energy_j: float
    words: str
    ranks: int
    steps: tuple[PlanStep, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that was found."""

    kind: str
    """"run", "series", "plan", "job" or "gpu"."""
    name: str
    words: str
    href: str
    """Where the dashboard shows it."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What was found, a few of each kind."""

    hits: tuple[Hit, ...]
    runs: int
    """How many runs are like this in all; see ``/api/runs?query=``."""
    more: int
    """How many others are, and are not among the hits."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters whose journals are in the store."""

    clusters: tuple[ClusterBrief, ...]


@dataclass(frozen=True, slots=True)
class JobWhy:
    """Why a job of a cluster runs as it does, or waits, in words."""

    job: str
    why: str
